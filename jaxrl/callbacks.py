"""Hooks of the user's: a class, several of them, or single functions."""

import inspect
import os
import resource
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxrl.config.placement import IN_GRAPH_REFUSED
from jaxrl.config.rllib_names import HOOKS_REFUSED
from jaxrl.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from jaxrl.algorithm import Algorithm
    from jaxrl.config.settings.run import Callbacks as CallbackSettings
    from jaxrl.envs.context import EnvContext

HOOKS = (
    "on_algorithm_init",
    "on_train_result",
    "on_evaluate_start",
    "on_evaluate_end",
    "on_environment_created",
    "on_episode_created",
    "on_episode_start",
    "on_episode_step",
    "on_episode_end",
    "on_sample_end",
    "on_env_runners_recreated",
    "on_checkpoint_loaded",
)
HOST_HOOKS = (
    "on_environment_created",
    "on_episode_created",
    "on_episode_start",
    "on_episode_step",
)
"""Hooks that are called where environments are Python objects, and nowhere else."""


class Callbacks:
    """Subclass and override what you need; every argument is passed by name.

    A method gets those of the keywords named here that its signature takes, and `metrics_logger`
    wherever there is one. Runners on the host call the hooks of environments, episodes and samples
    in their own process, on an object of the class that is theirs. Where environments are part of
    the compiled program, the hooks run between its dispatches: those of episodes and samples after
    the dispatch in which they happened.
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

    def on_environment_created(
        self, *, env_runner: Any, metrics_logger: Any, env: Any, env_context: "EnvContext"
    ) -> None:
        """Called when a runner has its environments: `env.envs`, those in its process."""

    def on_episode_created(
        self,
        *,
        episode: Any,
        env_runner: Any,
        metrics_logger: Any,
        env: Any,
        env_index: int,
        rl_module: Any,
    ) -> None:
        """Called with an empty episode; on the host, as all hooks of single steps."""

    def on_episode_start(
        self,
        *,
        episode: Any,
        env_runner: Any,
        metrics_logger: Any,
        env: Any,
        env_index: int,
        rl_module: Any,
    ) -> None:
        """Called when the episode has its first observation."""

    def on_episode_step(
        self,
        *,
        episode: Any,
        env_runner: Any,
        metrics_logger: Any,
        env: Any,
        env_index: int,
        rl_module: Any,
    ) -> None:
        """Called after each step."""

    def on_episode_end(self, *, episode: Any, **kwargs: Any) -> None:
        """Called for each episode that ended.

        On the host with what `on_episode_step` gets, where `episode` is the part of it since the
        last fragment, and with `prev_episode_chunks`, the parts before.

        Between dispatches with `algorithm` and an `EndedEpisode`, in order of time: an iteration
        with more episodes than the state's ring holds passes the latest of them, and
        `env_runners/num_episodes_not_reported` counts the others.
        """

    def on_sample_end(self, *, samples: Any, **kwargs: Any) -> None:
        """Called when samples have been gathered.

        On the host with `env_runner`, `metrics_logger` and the fragment's episodes; between
        dispatches with `algorithm` and the dispatch's counts.
        """

    def on_env_runners_recreated(
        self,
        *,
        algorithm: "Algorithm",
        env_runner_group: Any,
        env_runner_indices: list[int],
        is_evaluation: bool,
    ) -> None:
        """Called when runners that failed have been started again."""

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
        objects = [_instance(item) for item in chosen]
        self._listeners: dict[str, list[_Listener]] = {}
        for hook in HOOKS:
            value = vars(settings)[hook]
            functions: Sequence[Any] = (
                [] if value is None else value if isinstance(value, (list, tuple)) else [value]
            )
            self._listeners[hook] = [
                *(
                    _listener(type(item).__name__, getattr(item, hook))
                    for item in objects
                    if vars(Callbacks)[hook] is not _method(type(item), hook)
                ),
                *(_listener(_name(function), function) for function in functions),
            ]

    def wants(self, hook: str) -> bool:
        """Whether anything listens to a hook."""
        return bool(self._listeners[hook])

    def call(self, hook: str, **kwargs: Any) -> None:
        """Call every listener of a hook.

        What it raises is the user's and passes through, with a note of the hook.

        Raises:
            ConfigError: A listener needs an argument that there is not.
        """
        for listener in self._listeners[hook]:
            missing = listener.needs - kwargs.keys()
            if missing:
                raise ConfigError(
                    f"{hook} of {listener.name} takes {', '.join(map(repr, sorted(missing)))}, "
                    f"which is not there; it may take {', '.join(map(repr, kwargs))}."
                )
            taken = listener.takes
            given = kwargs if taken is None else {k: v for k, v in kwargs.items() if k in taken}
            try:
                listener.function(**given)
            except Exception as error:
                error.add_note(f"This was raised by {hook} of {listener.name}.")
                raise

    def refuse_host_hooks(self) -> None:
        """Hold the listeners against a run whose environments are in the compiled program.

        Raises:
            ConfigError: One would never be called.
        """
        for hook in HOST_HOOKS:
            if self.wants(hook):
                raise ConfigError(
                    f"{hook} would never be called: {IN_GRAPH_REFUSED[hook]}; set placement='host' "
                    "to step the environment from Python."
                )


class _Listener(NamedTuple):
    """A function, the keywords that it takes (None for any), and those it cannot do without."""

    name: str
    function: Callable[..., Any]
    takes: frozenset[str] | None
    needs: frozenset[str]


def _listener(name: str, function: Callable[..., Any]) -> _Listener:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a builtin without a signature
        return _Listener(name, function, None, frozenset())
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = [parameter for parameter in parameters if parameter.kind in kinds]
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    return _Listener(
        name,
        function,
        None if takes_any else frozenset(p.name for p in named),
        frozenset(p.name for p in named if p.default is inspect.Parameter.empty),
    )


def _method(cls: type, hook: str) -> Any:
    return next(vars(base)[hook] for base in cls.__mro__ if hook in vars(base))


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def _instance(item: Any) -> Any:
    if not (issubclass(item, Callbacks) if isinstance(item, type) else isinstance(item, Callbacks)):
        raise ConfigError(
            f"callbacks_class must be a subclass of jaxrl.callbacks.Callbacks, got {item!r}."
        )
    instance = item() if isinstance(item, type) else item
    for name in dir(instance):
        if name.startswith("on_") and name not in HOOKS:
            raise ConfigError(f"{type(instance).__name__}.{name} {_why_not(name)}")
    return instance


def _why_not(hook: str) -> str:
    if hook in HOOKS_REFUSED:
        return f"would never be called: {HOOKS_REFUSED[hook]}."
    return f"is no hook.{did_you_mean(hook, HOOKS)} The hooks are {', '.join(HOOKS)}."
