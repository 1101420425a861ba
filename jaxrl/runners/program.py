"""A function compiled ahead of time, with its figures and a guard against silent recompiles."""

import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax import monitoring

from jaxrl.errors import RetraceError
from jaxrl.runners.flops import count_flops

_CACHE_HIT = "/jax/compilation_cache/cache_hits"
_hits = {"count": 0}


def _count_hit(event: str, **_: Any) -> None:
    if event == _CACHE_HIT:
        _hits["count"] += 1


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


def enable_compilation_cache(setting: str | None) -> Path | None:
    """Keep compiled programs in a private folder of the user, unless JAX was told another.

    Args:
        setting: A folder, "off", or None for the default `~/.cache/jaxrl/xla`. The cache holds
            machine code that is trusted when loaded, so the folder is made with mode 700.
    """
    if setting == "off":
        jax.config.update("jax_enable_compilation_cache", False)
        return None
    configured = jax.config.values["jax_compilation_cache_dir"]
    if setting is None and configured:
        return Path(configured)
    cache_home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(setting).expanduser() if setting else Path(cache_home) / "jaxrl" / "xla"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return None
    if not os.access(folder, os.W_OK):
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    return folder


class Program:
    """`fn` jitted, compiled on the first call of each signature.

    Args:
        name: For messages and the compile report.
        fn: A pure function.
        donate: Numbers of the arguments whose memory the result takes over.
        max_retraces: Compilations beyond the first that are allowed; None for any number.
        out_shardings: Where the results live; None leaves it to JAX.
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
        enabled: bool = True,
    ) -> None:
        self.name = name
        self.figures: list[CompileFigures] = []
        self._fn = fn
        self._enabled = enabled
        self._max_retraces = max_retraces
        kwargs = {} if out_shardings is None else {"out_shardings": out_shardings}
        self._jitted = jax.jit(fn, donate_argnums=donate, **kwargs)
        self._compiled: dict[Any, Any] = {}
        self._last_signature: Any = None

    def __call__(self, *args: Any) -> Any:
        if not self._enabled:
            with jax.disable_jit():
                return self._fn(*args)
        return self.compiled_for(*args)(*args)

    def compiled_for(self, *args: Any) -> Any:
        """The executable for arguments of this signature, compiled if it is new."""
        signature = _signature(args)
        compiled = self._compiled.get(signature)
        if compiled is None:
            self._check_retrace(signature)
            compiled = self._compile(*args)
            self._compiled[signature] = compiled
            self._last_signature = signature
        return compiled

    def _check_retrace(self, signature: Any) -> None:
        if self._max_retraces is None or len(self._compiled) <= self._max_retraces:
            return
        changed = _first_difference(self._last_signature, signature)
        raise RetraceError(
            f"max_retraces={self._max_retraces}: the program '{self.name}' would be compiled for "
            f"the {len(self._compiled) + 1}. time, because {changed}"
        )

    def _compile(self, *args: Any) -> Any:
        hits = _hits["count"]
        t0 = time.perf_counter()
        traced = self._jitted.trace(*args)
        t1 = time.perf_counter()
        lowered = traced.lower()
        t2 = time.perf_counter()
        compiled = lowered.compile()
        t3 = time.perf_counter()
        memory = compiled.memory_analysis()
        self.figures.append(
            CompileFigures(
                trace_s=t1 - t0,
                lower_s=t2 - t1,
                compile_s=t3 - t2,
                cache_hit=_hits["count"] > hits,
                flops=count_flops(traced.jaxpr),
                argument_bytes=_bytes(memory, "argument_size_in_bytes"),
                output_bytes=_bytes(memory, "output_size_in_bytes"),
                temp_bytes=_bytes(memory, "temp_size_in_bytes"),
                donated_bytes=_bytes(memory, "alias_size_in_bytes"),
            )
        )
        return compiled


def _bytes(memory: Any, name: str) -> int:
    """A figure of XLA's memory analysis, 0 where the backend gives none."""
    return 0 if memory is None else int(getattr(memory, name))


def _signature(args: tuple[Any, ...]) -> tuple[Any, ...]:
    leaves, structure = jax.tree.flatten(args)
    described = tuple(
        (leaf.shape, leaf.dtype, leaf.aval.weak_type, leaf.sharding)
        if isinstance(leaf, jax.Array)
        else (type(leaf), None, None, None)
        for leaf in leaves
    )
    return structure, described


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
