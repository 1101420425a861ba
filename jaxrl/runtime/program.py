"""A function compiled ahead of time, with its figures and a guard against silent recompiles."""

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import monitoring

from jaxrl.errors import RetraceError
from jaxrl.runtime.flops import count_flops
from jaxrl.runtime.kept_programs import KeptPrograms

logger = logging.getLogger(__name__)

SMALL_FLOPS = 4e6
"""Below so many operations a call, what a CPU spends on threads and on setting up a product in a
library's way is more than they save. Measured: docs/performance.md."""
FOR_SMALL: dict[str, str | bool] = {
    "xla_cpu_multi_thread_eigen": False,
    "xla_cpu_experimental_ynn_fusion_type": "",
}
"""XLA's options for a small program that is called again and again."""

QUICKLY: dict[str, str | bool | int] = {"xla_backend_optimization_level": 1}
"""XLA's options for what is compiled while somebody waits: on a CPU it takes two thirds of the time,
and the program is as fast. Measured: docs/performance.md."""

_CACHE_HIT = "/jax/compilation_cache/cache_hits"


class _Hits(threading.local):
    """What this thread read from the persistent cache: several compile at the same time."""

    count = 0


_hits = _Hits()


def _count_hit(event: str, **_: Any) -> None:
    if event == _CACHE_HIT:
        _hits.count += 1


monitoring.register_event_listener(_count_hit)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompileFigures:
    """What one compilation cost and what the program needs. Sizes in bytes, times in seconds."""

    trace_s: float
    lower_s: float
    compile_s: float
    cache_hit: bool
    flops: float
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    donated_bytes: int

    @property
    def total_s(self) -> float:
        return self.trace_s + self.lower_s + self.compile_s


class Program:
    """`fn` jitted, compiled on the first call of each signature.

    Args:
        name: For messages and the compile report.
        fn: A pure function.
        donate: Numbers of the arguments whose memory the result takes over.
        max_retraces: Compilations beyond the first that are allowed; None for any number.
        out_shardings: Where the results live; None leaves it to JAX.
        waited_for: Somebody waits for every call, on a CPU: a program of few operations is compiled
            for the time of a call, in the calling thread alone.
        kept: Where the executable is looked for before `fn` is traced, and kept; None for nowhere.
        enabled: False calls `fn` without jit, for stepping through it in a debugger.
    """

    def __init__(
        self,
        name: str,
        fn: Callable[..., Any],
        *,
        donate: tuple[int, ...] = (),
        max_retraces: int | None = None,
        out_shardings: Any = None,
        waited_for: bool = False,
        kept: KeptPrograms | None = None,
        enabled: bool = True,
    ) -> None:
        self.name = name
        self.figures: list[CompileFigures] = []
        self._fn = fn
        self._enabled = enabled
        self._max_retraces = max_retraces
        self._waited_for = waited_for
        self._kept = kept
        self._place = "" if kept is None else repr(out_shardings)
        kwargs = {} if out_shardings is None else {"out_shardings": out_shardings}
        named = fn if kept is None else _named(f"kept_{name}", fn)
        self._jitted = jax.jit(named, donate_argnums=donate, **kwargs)
        self._compiled: dict[Any, Any] = {}
        self._last_signature: Any = None

    def __call__(self, *args: Any) -> Any:
        return self.compiled_for(*args)(*args)

    def compiled_for(self, *args: Any) -> Callable[..., Any]:
        """What to call with arguments of this signature: the executable, compiled if it is new."""
        if not self._enabled:
            return self._interpret
        signature = _signature(args)
        compiled = self._compiled.get(signature)
        if compiled is None:
            self._check_retrace(signature)
            compiled = self._read(signature) or self._compile(signature, *args)
            self._compiled[signature] = compiled
            self._last_signature = signature
        return compiled

    def _interpret(self, *args: Any) -> Any:
        with jax.disable_jit():
            return self._fn(*args)

    def _check_retrace(self, signature: Any) -> None:
        if self._max_retraces is None or len(self._compiled) <= self._max_retraces:
            return
        changed = _first_difference(self._last_signature, signature)
        raise RetraceError(
            f"max_retraces={self._max_retraces}: the program '{self.name}' would be compiled for "
            f"the {len(self._compiled) + 1}. time, because {changed}"
        )

    def _read(self, signature: Any) -> Any:
        """The executable as another process compiled it; None where none was kept."""
        if self._kept is None:
            return None
        started = time.perf_counter()
        found = self._kept.executable(self.name, self._place, signature)
        if found is None:
            return None
        executable, figures = found
        seconds = time.perf_counter() - started
        times: dict[str, Any] = {"trace_s": 0.0, "lower_s": 0.0, "compile_s": seconds}
        self.figures.append(CompileFigures(**{**figures, **times, "cache_hit": True}))
        self._log(self.figures[-1])
        return executable

    def _compile(self, signature: Any, *args: Any) -> Any:
        hits, kept, what = _hits.count, self._kept, (self.name, self._place, signature)
        t0 = time.perf_counter()
        traced = self._jitted.trace(*args)
        t1 = time.perf_counter()
        lowered = traced.lower()
        lower_s = time.perf_counter() - t1
        flops = count_flops(traced.jaxpr)
        small = self._waited_for and flops <= SMALL_FLOPS
        t2 = time.perf_counter()
        on_cpu = jax.default_backend() == "cpu"
        options = FOR_SMALL if small else QUICKLY if on_cpu and not self._waited_for else {}
        entry = None if kept is None else kept.entry_of(lowered, *what)
        known = None if kept is None or entry is None else kept.compiled_before(entry, lowered)
        compiled = compiled_with(options, lowered) if known is None else known
        t3 = time.perf_counter()
        memory = compiled.memory_analysis()
        figures = CompileFigures(
            trace_s=t1 - t0,
            lower_s=lower_s,
            compile_s=t3 - t2,
            cache_hit=known is not None or _hits.count > hits,
            flops=flops,
            argument_bytes=_bytes(memory, "argument_size_in_bytes"),
            output_bytes=_bytes(memory, "output_size_in_bytes"),
            temp_bytes=_bytes(memory, "temp_size_in_bytes"),
            donated_bytes=_bytes(memory, "alias_size_in_bytes"),
        )
        self.figures.append(figures)
        self._log(figures)
        self._log_shapes(args)
        if kept is not None and entry is not None:
            new = None if figures.cache_hit else compiled  # what was read cannot be written again
            keep = partial(kept.keep, entry, lowered, new, dataclasses.asdict(figures), *what)
            threading.Thread(target=keep, name="jaxrl-keep").start()
        return compiled

    def _log(self, figures: CompileFigures) -> None:
        logger.info(
            "compiled %s in %.2f s (traced %.2f, lowered %.2f, %s %.2f)",
            self.name,
            figures.total_s,
            figures.trace_s,
            figures.lower_s,
            "from the cache" if figures.cache_hit else "XLA",
            figures.compile_s,
        )

    def _log_shapes(self, args: tuple[Any, ...]) -> None:
        if logger.isEnabledFor(logging.DEBUG):
            for path, leaf in jax.tree_util.tree_flatten_with_path(args)[0]:
                described = jax.typeof(leaf) if isinstance(leaf, jax.Array) else type(leaf).__name__
                logger.debug("%s: args%s is %s", self.name, jax.tree_util.keystr(path), described)


def _named(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function by another name, which its program has then in JAX's cache.

    What JAX reads from its cache cannot be written again, so a program that is kept must not be read
    from there before it was kept.
    """

    def function(*args: Any) -> Any:
        return fn(*args)

    function.__name__ = name
    return function


def compiled_with(options: dict[str, Any], lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compile with options, where this XLA has them: they are no stable interface."""
    if not options:
        return lowered.compile()
    try:
        return lowered.compile(compiler_options=options)
    except jax.errors.JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        logger.info("this XLA does not have the options %s: %s", options, error)
        return lowered.compile()


def compile_report(programs: Iterable[Program]) -> dict[str, dict[str, Any]]:
    """The latest compilation of each program that was compiled: seconds, operations, bytes."""
    return {
        program.name: {
            **vars(program.figures[-1]),
            "total_s": program.figures[-1].total_s,
            "num_compilations": len(program.figures),
        }
        for program in programs
        if program.figures
    }


def compile_seconds(programs: Iterable[Program]) -> float:
    """Seconds spent on compiling so far, tracing included."""
    return sum(figures.total_s for program in programs for figures in program.figures)


def _bytes(memory: Any, name: str) -> int:
    """A figure of XLA's memory analysis, 0 where the backend gives none."""
    return 0 if memory is None else int(getattr(memory, name))


def _signature(args: tuple[Any, ...]) -> tuple[Any, ...]:
    leaves, structure = jax.tree.flatten(args)
    return structure, tuple(map(_described, leaves))


def _described(leaf: Any) -> tuple[Any, ...]:
    if isinstance(leaf, jax.Array):
        aval = leaf.aval
        return aval.shape, aval.dtype, aval.weak_type, leaf.sharding
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf.shape, leaf.dtype, leaf.weak_type, leaf.sharding
    if isinstance(leaf, np.ndarray):
        return leaf.shape, leaf.dtype, False, None
    return type(leaf), None, None, None


def shapes_of(args: Any) -> Any:
    """What stands for arrays where a program is compiled and not called: it keeps none of them."""

    def shape_of(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf
        aval = leaf.aval
        return jax.ShapeDtypeStruct(
            aval.shape, aval.dtype, sharding=leaf.sharding, weak_type=aval.weak_type
        )

    return jax.tree.map(shape_of, args)


def _first_difference(old: Any, new: Any) -> str:
    (old_structure, old_leaves), (new_structure, new_leaves) = old, new
    if old_structure != new_structure:
        return "the structure of its arguments changed"
    paths = jax.tree_util.tree_flatten_with_path(
        jax.tree.unflatten(new_structure, range(len(new_leaves)))
    )[0]
    for (path, _), before, after in zip(paths, old_leaves, new_leaves, strict=True):
        if before != after:
            what = [
                f"{word} {x} became {y}"
                for word, x, y in zip(
                    ("shape", "dtype", "weak type", "sharding"), before, after, strict=True
                )
                if x != y
            ]
            return f"{jax.tree_util.keystr(path)} changed: {', '.join(what)}"
    return "its arguments changed"
