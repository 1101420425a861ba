"""Hooks of the user's: a class, several of them, or single functions."""

import os
import resource
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl.config.legacy import HOOKS_REFUSED
from jaxrl.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from jaxrl.algorithm import Algorithm
    from jaxrl.config.run_groups import Callbacks as CallbackSettings
    from jaxrl.runners.results import EndedEpisode

HOOKS = (
    "on_algorithm_init",
    "on_train_result",
    "on_evaluate_start",
    "on_evaluate_end",
    "on_episode_end",
    "on_sample_end",
    "on_checkpoint_loaded",
)


class Callbacks:
    """Subclass and override what you need; every argument is passed by name.

    Hooks run on the host between dispatches of the compiled program, never inside it: those of
    episodes and samples are called after the dispatch in which they happened.
    """

    def on_algorithm_init(self, *, algorithm: "Algorithm") -> None:
        """Called once the Algorithm has been built."""

    def on_train_result(self, *, algorithm: "Algorithm", result: dict[str, Any]) -> None:
        """Called with each result before it is logged; what it adds is logged too."""

    def on_evaluate_start(self, *, algorithm: "Algorithm") -> None:
        """Called before each evaluation."""

    def on_evaluate_end(
        self, *, algorithm: "Algorithm", evaluation_metrics: dict[str, Any]
    ) -> None:
        """Called with what an evaluation returned."""

    def on_episode_end(self, *, algorithm: "Algorithm", episode: "EndedEpisode") -> None:
        """Called for each episode that ended, in order of time.

        An iteration with more episodes than the state's ring holds passes the latest of them;
        `env_runners/num_episodes_not_reported` counts the others.
        """

    def on_sample_end(self, *, algorithm: "Algorithm", samples: dict[str, Any]) -> None:
        """Called when a dispatch has gathered its samples, with their counts."""

    def on_checkpoint_loaded(self, *, algorithm: "Algorithm") -> None:
        """Called after a checkpoint was restored."""


class MemoryTrackingCallbacks(Callbacks):
    """Puts the memory of the process into each result, below `custom_metrics/memory`, in bytes.

    For finding a leak on the host: tracemalloc sees what Python and NumPy allocate and slows Python
    down. What the devices hold is in `compile/` and `system/`.
    """

    num_largest = 5
    """How many lines of code `largest_allocations` names."""

    def on_algorithm_init(self, *, algorithm: "Algorithm") -> None:
        if not tracemalloc.is_tracing():
            tracemalloc.start()

    def on_train_result(self, *, algorithm: "Algorithm", result: dict[str, Any]) -> None:
        current, peak = tracemalloc.get_traced_memory()
        largest = tracemalloc.take_snapshot().statistics("lineno")[: self.num_largest]
        result.setdefault("custom_metrics", {})["memory"] = {
            "tracemalloc_current_bytes": current,
            "tracemalloc_peak_bytes": peak,
            **_resident_bytes(),
            "largest_allocations": ", ".join(_in_words(statistic) for statistic in largest),
        }


def _resident_bytes() -> dict[str, int]:
    """What the process holds in memory, now (where /proc tells it) and at most."""
    unit = 1 if sys.platform == "darwin" else 1024
    sizes = {"rss_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    statm = Path("/proc/self/statm")
    if statm.exists():
        sizes["rss_bytes"] = int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return sizes


def _in_words(statistic: tracemalloc.Statistic) -> str:
    frame = statistic.traceback[0]
    return f"{Path(frame.filename).name}:{frame.lineno} {statistic.size}"


class CallbackList:
    """Everything that the settings name, called in order: classes first, then functions."""

    def __init__(self, settings: "CallbackSettings") -> None:
        classes = settings.callbacks_class
        chosen: Sequence[Any] = (
            [] if classes is None else classes if isinstance(classes, (list, tuple)) else [classes]
        )
        self._objects = [_instance(item) for item in chosen]
        self._functions: dict[str, list[Callable[..., Any]]] = {}
        for hook in HOOKS:
            value = vars(settings)[hook]
            self._functions[hook] = (
                []
                if value is None
                else list(value)
                if isinstance(value, (list, tuple))
                else [value]
            )

    def wants(self, hook: str) -> bool:
        """Whether anything listens to a hook."""
        return bool(self._functions[hook]) or any(
            vars(Callbacks)[hook] is not _method(type(item), hook) for item in self._objects
        )

    def call(self, hook: str, **kwargs: Any) -> None:
        """Call every listener of a hook; what it raises is the user's and passes through."""
        for item in self._objects:
            getattr(item, hook)(**kwargs)
        for function in self._functions[hook]:
            function(**kwargs)


def _method(cls: type, hook: str) -> Any:
    return next(vars(base)[hook] for base in cls.__mro__ if hook in vars(base))


def _instance(item: Any) -> Any:
    instance = item() if isinstance(item, type) else item
    if not isinstance(instance, Callbacks):
        raise ConfigError(
            f"callbacks_class must be a subclass of jaxrl.callbacks.Callbacks, got {item!r}."
        )
    for name in dir(instance):
        if name.startswith("on_") and name not in HOOKS:
            raise ConfigError(f"{type(instance).__name__}.{name} {_why_not(name)}")
    return instance


def _why_not(hook: str) -> str:
    if hook in HOOKS_REFUSED:
        return f"would never be called: {HOOKS_REFUSED[hook]}."
    return f"is no hook.{did_you_mean(hook, HOOKS)} The hooks are {', '.join(HOOKS)}."
