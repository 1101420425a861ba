"""Function compiled ahead of time, with compile statistics and a guard against recompiles."""

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import monitoring

from jaxrl.core.jit import is_jit_disabled
from jaxrl.core.types import PyTree
from jaxrl.errors import RetraceError
from jaxrl.runtime.compilation_cache import use_temporary_cache
from jaxrl.runtime.flops import count_flops
from jaxrl.runtime.kept_programs import ProgramCache

logger = logging.getLogger(__name__)

SMALL_FLOPS = 4e6
"""Maximum number of operations per call of a small program.

Below it, a CPU's cost of threads and of setting up library calls for products exceeds their gain.
Measured: docs/performance.md.
"""
SMALL_PROGRAM_OPTIONS: dict[str, str | bool] = {
    "xla_cpu_multi_thread_eigen": False,
    "xla_cpu_experimental_ynn_fusion_type": "",
}
"""XLA's options for small programs that are called repeatedly."""

FAST_COMPILE_OPTIONS: dict[str, str | bool | int] = {"xla_backend_optimization_level": 1}
"""XLA's options that reduce compile time on a CPU by a third at equal program speed.

Measured: docs/performance.md.
"""

SINGLE_CALL_OPTIONS: dict[str, str | bool | int] = {
    **FAST_COMPILE_OPTIONS,
    "xla_cpu_use_fusion_emitters": False,
}
"""XLA's options for programs that run once: compiled in half the time, and slower.

Measured: docs/performance.md.
"""

_CACHE_HIT = "/jax/compilation_cache/cache_hits"


Signature: TypeAlias = tuple[object, tuple[tuple[object, ...], ...]]
"""Structure of the arguments of a call, and the shape, dtype, weak type and sharding of each leaf."""


class _Hits(threading.local):
    """Persistent cache hits of this thread; several threads may compile at the same time."""

    count = 0


_hits = _Hits()


def _count_hit(event: str, **_: object) -> None:
    if event == _CACHE_HIT:
        _hits.count += 1


monitoring.register_event_listener(_count_hit)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompileStats:
    """Cost of a compilation and resources of its program. Sizes in bytes, times in seconds."""

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
    """Jitted function, compiled on the first call of each signature.

    Args:
        name: Name in messages and the compile report.
        fn: Pure function.
        donate_argnums: Indices of the arguments whose memory is donated to the result.
        max_retraces: Maximum number of compilations beyond the first; None for no limit.
        out_shardings: Shardings of the results; None leaves them to JAX.
        low_latency: Whether the caller waits for every call, so that on a CPU a program of few
            operations is compiled to run in the calling thread alone.
        single_call: Whether it is called once, so that it is compiled fast rather than fast itself.
        program_cache: Cache to load the executable from before tracing, and to store it in; None
            for no cache.
        enabled: Whether to compile; False calls `fn` without jit, for stepping through it in a
            debugger.
    """

    def __init__(
        self,
        name: str,
        fn: Callable[..., Any],
        *,
        donate_argnums: tuple[int, ...] = (),
        max_retraces: int | None = None,
        out_shardings: PyTree = None,
        low_latency: bool = False,
        single_call: bool = False,
        program_cache: ProgramCache | None = None,
        enabled: bool = True,
    ) -> None:
        self.name = name
        self.compile_stats: list[CompileStats] = []
        self._fn = fn
        self._enabled = enabled
        self._max_retraces = max_retraces
        self._low_latency = low_latency
        self._fast_options = SINGLE_CALL_OPTIONS if single_call else FAST_COMPILE_OPTIONS
        self._program_cache = program_cache
        self._sharding_key = "" if program_cache is None else repr(out_shardings)
        kwargs = {} if out_shardings is None else {"out_shardings": out_shardings}
        if program_cache is not None:
            # An executable that JAX loaded from its own cache cannot be serialized again, so a program
            # that is to be stored here has another name there, under which nothing else is found.
            fn = partial(fn)
            setattr(fn, "__name__", f"kept_{name}")  # noqa: B010
        self._jitted = jax.jit(fn, donate_argnums=donate_argnums, **kwargs)
        self._compiled: dict[Signature, jax.stages.Compiled] = {}
        self._last_signature: Signature | None = None

    def __call__(self, *args: PyTree) -> PyTree:
        return self.get_executable(*args)(*args)

    def get_executable(self, *args: PyTree) -> Callable[..., Any]:
        """Return the executable for arguments of this signature, compiling it if necessary."""
        if not self._enabled or is_jit_disabled():
            return self._interpret
        signature = _signature(args)
        compiled = self._compiled.get(signature)
        if compiled is None:
            self._check_retrace(signature)
            compiled = self._load(signature) or self._compile(signature, *args)
            self._compiled[signature] = compiled
            self._last_signature = signature
        return compiled

    def _interpret(self, *args: PyTree) -> PyTree:
        with jax.disable_jit():
            return self._fn(*args)

    def _check_retrace(self, signature: Signature) -> None:
        if self._max_retraces is None or len(self._compiled) <= self._max_retraces:
            return
        assert self._last_signature is not None
        changed = _first_difference(self._last_signature, signature)
        raise RetraceError(
            f"max_retraces={self._max_retraces}: the program '{self.name}' would be compiled "
            f"{len(self._compiled) + 1} times, because {changed}"
        )

    def _load(self, signature: Signature) -> jax.stages.Compiled | None:
        """Load the executable compiled by another process; None if there is none."""
        if self._program_cache is None:
            return None
        started = time.perf_counter()
        found = self._program_cache.load_executable(self.name, self._sharding_key, signature)
        if found is None:
            return None
        executable, figures = found
        seconds = time.perf_counter() - started
        times: dict[str, Any] = {"trace_s": 0.0, "lower_s": 0.0, "compile_s": seconds}
        self.compile_stats.append(CompileStats(**{**figures, **times, "cache_hit": True}))
        self._log(self.compile_stats[-1])
        return executable

    def _compile(self, signature: Signature, *args: PyTree) -> jax.stages.Compiled:
        hits, cache, key = (
            _hits.count,
            self._program_cache,
            (self.name, self._sharding_key, signature),
        )
        t0 = time.perf_counter()
        traced = self._jitted.trace(*args)
        t1 = time.perf_counter()
        lowered = traced.lower()
        lower_s = time.perf_counter() - t1
        flops = count_flops(traced.jaxpr)
        small = self._low_latency and flops <= SMALL_FLOPS
        t2 = time.perf_counter()
        on_cpu = jax.default_backend() == "cpu"
        options = (
            SMALL_PROGRAM_OPTIONS
            if small
            else self._fast_options
            if on_cpu and not self._low_latency
            else {}
        )
        entry = None if cache is None else cache.get_entry(lowered, *key)
        cached = None if cache is None or entry is None else cache.load_compiled(entry, lowered)
        compiled = compile_with_options(options, lowered) if cached is None else cached
        t3 = time.perf_counter()
        memory = compiled.memory_analysis()
        figures = CompileStats(
            trace_s=t1 - t0,
            lower_s=lower_s,
            compile_s=t3 - t2,
            cache_hit=cached is not None or _hits.count > hits,
            flops=flops,
            argument_bytes=_bytes(memory, "argument_size_in_bytes"),
            output_bytes=_bytes(memory, "output_size_in_bytes"),
            temp_bytes=_bytes(memory, "temp_size_in_bytes"),
            donated_bytes=_bytes(memory, "alias_size_in_bytes"),
        )
        self.compile_stats.append(figures)
        self._log(figures)
        self._log_shapes(args)
        if cache is not None:
            cache.share(compiled, dataclasses.asdict(figures), *key)
        if cache is not None and entry is not None:
            new = None if figures.cache_hit else compiled  # a loaded one cannot be serialized
            store = partial(cache.store, entry, lowered, new, dataclasses.asdict(figures), *key)
            threading.Thread(target=store, name="jaxrl-keep").start()
        return compiled

    def _log(self, figures: CompileStats) -> None:
        logger.info(
            "compiled %s in %.2f s (traced %.2f, lowered %.2f, %s %.2f)",
            self.name,
            figures.total_s,
            figures.trace_s,
            figures.lower_s,
            "from the cache" if figures.cache_hit else "XLA",
            figures.compile_s,
        )

    def _log_shapes(self, args: tuple[PyTree, ...]) -> None:
        if logger.isEnabledFor(logging.DEBUG):
            for path, leaf in jax.tree_util.tree_flatten_with_path(args)[0]:
                described = jax.typeof(leaf) if isinstance(leaf, jax.Array) else type(leaf).__name__
                logger.debug("%s: args%s is %s", self.name, jax.tree_util.keystr(path), described)


def can_reuse_programs() -> bool:
    """Return whether JAX finds a program again in a persistent cache, by trying it."""
    with use_temporary_cache():
        hits = _hits.count
        for _ in range(2):
            jax.jit(lambda x: 2 * x + 1).lower(np.float32(0)).compile()
        return _hits.count > hits


def get_compile_options() -> dict[str, str | int | float]:
    """Return XLA's options of jaxrl's programs on a CPU, and below how many operations which."""
    fast = {f"fast.{name}": value for name, value in FAST_COMPILE_OPTIONS.items()}
    small = {f"small.{name}": value for name, value in SMALL_PROGRAM_OPTIONS.items()}
    once = {f"single_call.{name}": value for name, value in SINGLE_CALL_OPTIONS.items()}
    return {**fast, **small, **once, "small.max_flops": SMALL_FLOPS}


def compile_with_options(
    options: dict[str, Any], lowered: jax.stages.Lowered
) -> jax.stages.Compiled:
    """Compile with options, leaving out those that `XLA_FLAGS` sets, and those that XLA rejects.

    XLA's compile options are not a stable interface.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    options = {name: value for name, value in options.items() if f"--{name}=" not in flags}
    if not options:
        return lowered.compile()
    try:
        return lowered.compile(compiler_options=options)
    except jax.errors.JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        known = {name: value for name, value in options.items() if f"'{name}'" not in str(error)}
        logger.info("this XLA does not support the options %s: %s", options, error)
        return compile_with_options(known if len(known) < len(options) else {}, lowered)


def make_compile_report(programs: Iterable[Program]) -> dict[str, dict[str, Any]]:
    """Return the latest compilation of each program: seconds, operations, bytes."""
    return {
        program.name: {
            **vars(program.compile_stats[-1]),
            "total_s": program.compile_stats[-1].total_s,
            "num_compilations": len(program.compile_stats),
        }
        for program in programs
        if program.compile_stats
    }


def total_compile_seconds(programs: Iterable[Program]) -> float:
    """Return the seconds spent on compiling so far, including tracing."""
    return sum(figures.total_s for program in programs for figures in program.compile_stats)


def _bytes(memory: object, name: str) -> int:
    """Return a figure of XLA's memory analysis, 0 if the backend gives none."""
    return 0 if memory is None else int(getattr(memory, name))


def _signature(args: tuple[PyTree, ...]) -> Signature:
    leaves, structure = jax.tree.flatten(args)
    return structure, tuple(map(_describe_leaf, leaves))


def _describe_leaf(leaf: object) -> tuple[object, ...]:
    if isinstance(leaf, jax.Array):
        aval = leaf.aval
        return aval.shape, aval.dtype, aval.weak_type, leaf.sharding
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf.shape, leaf.dtype, leaf.weak_type, leaf.sharding
    if isinstance(leaf, np.ndarray):
        return leaf.shape, leaf.dtype, False, None
    return type(leaf), None, None, None


def to_shape_structs(args: PyTree) -> PyTree:
    """Replace arrays by their shapes, to compile a program without calling it or retaining them."""

    def shape_of(leaf: object) -> object:
        if not isinstance(leaf, jax.Array):
            return leaf
        aval = leaf.aval
        return jax.ShapeDtypeStruct(
            aval.shape, aval.dtype, sharding=leaf.sharding, weak_type=aval.weak_type
        )

    return jax.tree.map(shape_of, args)


def _first_difference(old: Signature, new: Signature) -> str:
    (old_structure, old_leaves), (new_structure, new_leaves) = old, new
    if old_structure != new_structure:
        return "the structure of its arguments changed"
    paths = jax.tree_util.tree_flatten_with_path(
        jax.tree.unflatten(new_structure, range(len(new_leaves)))
    )[0]
    for (path, _), before, after in zip(paths, old_leaves, new_leaves, strict=True):
        if before != after:
            changes = [
                f"{word} {x} became {y}"
                for word, x, y in zip(
                    ("shape", "dtype", "weak type", "sharding"), before, after, strict=True
                )
                if x != y
            ]
            return f"{jax.tree_util.keystr(path)} changed: {', '.join(changes)}"
    return "its arguments changed"
