"""User callbacks, given as classes or as single functions."""

import inspect
import os
import resource
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from jaxrl.compat import lookup
from jaxrl.config.placement import HOST_ONLY_SETTINGS, HOST_REMEDIES
from jaxrl.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from jaxrl.config.settings.run import CallbacksSettings as CallbackSettings
    from jaxrl.envs.context import EnvContext
    from jaxrl.episodes import SingleAgentEpisode
    from jaxrl.modules.rl_module import RLModule

HOOKS = (
    "on_algorithm_init",
    "on_train_result",
    "on_evaluate_start",
    "on_evaluate_end",
    "on_evaluate_offline_start",
    "on_evaluate_offline_end",
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
    "on_episode_created",
    "on_episode_start",
    "on_episode_step",
)
"""Hooks that are only called if environments are stepped on the host."""

# Classes that runs are made of, of which callbacks import none.
AnyAlgorithm: TypeAlias = Any
"""The run, a `jaxrl.Algorithm`."""
AnyEnvRunner: TypeAlias = Any
"""The `EnvRunner` of environments, or between dispatches the `CompiledEnvRunner` in its place."""
AnyEnvRunnerGroup: TypeAlias = Any
"""The group of runners, a `RayEnvRunnerGroup`."""
AnyVectorEnv: TypeAlias = Any
"""The vector environment of a runner."""
AnyMetricsLogger: TypeAlias = Any
"""The `MetricsLogger` of a runner."""
AnyEpisode: TypeAlias = Any
"""A `SingleAgentEpisode` or `MultiAgentEpisode` on the host, else an `EndedEpisode`."""


class Callbacks:
    """Base class of callbacks: subclass it and override the hooks you need.

    All arguments are passed by keyword. A method receives those of the keywords listed here that
    its signature accepts, and `metrics_logger` where one is available. Former names of RLlib's are
    passed where a signature requires them: `worker`, `base_env`, `policies`, `trainer`,
    `worker_set`, and `worker_ids`. Host runners call the hooks
    of environments, episodes and samples in their own process, on their own instance of the class.
    If environments are part of the compiled program, hooks run between dispatches; those of
    episodes and samples run after the dispatch that produced them.
    """

    def on_algorithm_init(self, *, algorithm: AnyAlgorithm) -> None:
        """Run after the Algorithm has been built."""

    def on_train_result(self, *, algorithm: AnyAlgorithm, result: dict[str, Any]) -> None:
        """Run on each result before it is logged; entries added here are logged as well."""

    def on_evaluate_start(self, *, algorithm: AnyAlgorithm) -> None:
        """Run before each evaluation."""

    def on_evaluate_end(
        self, *, algorithm: AnyAlgorithm, evaluation_metrics: dict[str, Any]
    ) -> None:
        """Run after each evaluation, with its result."""

    def on_evaluate_offline_start(self, *, algorithm: AnyAlgorithm) -> None:
        """Run before each evaluation on held-out episodes of recorded data."""

    def on_evaluate_offline_end(
        self, *, algorithm: AnyAlgorithm, evaluation_metrics: dict[str, Any]
    ) -> None:
        """Run after each evaluation on held-out episodes, with its result, which it may extend."""

    def on_environment_created(
        self,
        *,
        env_runner: AnyEnvRunner,
        metrics_logger: AnyMetricsLogger,
        env: AnyVectorEnv,
        env_context: "EnvContext",
    ) -> None:
        """Run after a runner created its environments; `env.envs` holds those in its process.

        Environments in the compiled program count as created when the run is ready to train; each
        of `env.envs` is the same object.
        """

    def on_episode_created(
        self,
        *,
        episode: "SingleAgentEpisode",
        env_runner: AnyEnvRunner,
        metrics_logger: AnyMetricsLogger,
        env: AnyVectorEnv,
        env_index: int,
        rl_module: "RLModule",
    ) -> None:
        """Run on each new, still empty episode; on the host only, as all hooks of single steps."""

    def on_episode_start(
        self,
        *,
        episode: "SingleAgentEpisode",
        env_runner: AnyEnvRunner,
        metrics_logger: AnyMetricsLogger,
        env: AnyVectorEnv,
        env_index: int,
        rl_module: "RLModule",
    ) -> None:
        """Run when the episode has its first observation."""

    def on_episode_step(
        self,
        *,
        episode: "SingleAgentEpisode",
        env_runner: AnyEnvRunner,
        metrics_logger: AnyMetricsLogger,
        env: AnyVectorEnv,
        env_index: int,
        rl_module: "RLModule",
    ) -> None:
        """Run after each step."""

    def on_episode_end(self, *, episode: AnyEpisode, **kwargs: Any) -> None:
        """Run on each episode that ended.

        On the host, the arguments are those of `on_episode_step`, with `episode` being the chunk
        since the last fragment, and `prev_episode_chunks`, the earlier chunks.

        Between dispatches, `episode` is an `EndedEpisode`, `env_runner` a `CompiledEnvRunner`, and
        `prev_episode_chunks` is empty; `algorithm` is passed as well. Episodes come in chronological
        order. If an iteration has more episodes than the ring buffer of the state holds, only the
        latest ones are passed and `env_runners/num_episodes_not_reported` counts the others.
        """

    def on_sample_end(
        self, *, samples: "list[SingleAgentEpisode] | dict[str, int]", **kwargs: Any
    ) -> None:
        """Run when samples have been collected.

        On the host, the arguments are `env_runner`, `metrics_logger` and the episodes of the
        fragment; between dispatches, the counts of the dispatch, and `algorithm`.
        """

    def on_env_runners_recreated(
        self,
        *,
        algorithm: AnyAlgorithm,
        env_runner_group: AnyEnvRunnerGroup,
        env_runner_indices: list[int],
        is_evaluation: bool,
    ) -> None:
        """Run after failed runners have been restarted."""

    def on_checkpoint_loaded(self, *, algorithm: AnyAlgorithm) -> None:
        """Run after a checkpoint has been restored."""


class MemoryTrackingCallbacks(Callbacks):
    """Callbacks that add the process's memory in bytes to results, at `custom_metrics/memory`.

    Use them to find leaks on the host: tracemalloc records allocations of Python and NumPy, and
    slows Python down. Device memory is reported in `compile/` and `system/`.
    """

    num_largest = 5
    """Number of source lines listed in `largest_allocations`."""

    def on_algorithm_init(self, *, algorithm: AnyAlgorithm) -> None:
        if not tracemalloc.is_tracing():
            tracemalloc.start()

    def on_train_result(self, *, algorithm: AnyAlgorithm, result: dict[str, Any]) -> None:
        current, peak = tracemalloc.get_traced_memory()
        largest = tracemalloc.take_snapshot().statistics("lineno")[: self.num_largest]
        result.setdefault("custom_metrics", {})["memory"] = {
            "tracemalloc_current_bytes": current,
            "tracemalloc_peak_bytes": peak,
            **_get_resident_bytes(),
            "largest_allocations": ", ".join(
                _describe_statistic(statistic) for statistic in largest
            ),
        }


def _get_resident_bytes() -> dict[str, int]:
    """Return the process's peak memory, and its current memory where /proc is available."""
    unit = 1 if sys.platform == "darwin" else 1024
    sizes = {"rss_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    statm = Path("/proc/self/statm")
    if statm.exists():
        sizes["rss_bytes"] = int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return sizes


def _describe_statistic(statistic: tracemalloc.Statistic) -> str:
    frame = statistic.traceback[0]
    return f"{Path(frame.filename).name}:{frame.lineno} {statistic.size}"


class CallbackList:
    """Callbacks of the settings, called in order: classes first, then functions."""

    def __init__(self, settings: "CallbackSettings") -> None:
        classes = settings.callbacks_class
        chosen: Sequence[object] = (
            [] if classes is None else classes if isinstance(classes, (list, tuple)) else [classes]
        )
        self._listeners: dict[str, list[_Listener]] = {hook: [] for hook in HOOKS}
        for item in map(_make_instance, chosen):
            owner = type(item).__name__
            for name in dir(item):
                if name.startswith("on_") and not _is_empty_hook(item, name):
                    listener = _make_listener(owner, getattr(item, name))
                    self._listeners[_find_hook(owner, name)].append(listener)
        for hook in HOOKS:
            value = vars(settings)[hook]
            functions: Sequence[Callable[..., object]] = (
                [] if value is None else value if isinstance(value, (list, tuple)) else [value]
            )
            self._listeners[hook] += [
                _make_listener(_get_name(function), function) for function in functions
            ]

    def has_listeners(self, hook: str) -> bool:
        """Return whether a hook has listeners."""
        return bool(self._listeners[hook])

    def call(self, hook: str, **kwargs: object) -> None:
        """Call every listener of a hook.

        Exceptions raised by listeners propagate with a note that names the hook.

        Raises:
            ConfigError: If a listener requires an argument that is not available.
        """
        for listener in self._listeners[hook]:
            given = kwargs
            missing = listener.required - kwargs.keys()
            if missing:
                rllib = lookup.load("rllib.attributes")
                given = {**kwargs, **rllib.make_hook_arguments(missing, kwargs)}
                missing = missing - given.keys()
            if missing:
                raise ConfigError(
                    f"{hook} of {listener.name} takes {', '.join(map(repr, sorted(missing)))}, "
                    f"which is not available; it may take {', '.join(map(repr, kwargs))}."
                )
            accepted = listener.accepted
            passed = given if accepted is None else {k: given[k] for k in given if k in accepted}
            try:
                listener.function(**passed)
            except Exception as error:
                error.add_note(f"Raised by {hook} of {listener.name}.")
                raise

    def check_no_host_hooks(self, *, has_several_agents: bool = False) -> None:
        """Check the listeners for a run whose environments are in the compiled program.

        Args:
            has_several_agents: Whether they have several agents, and are never stepped on the host.

        Raises:
            ConfigError: If a listener would never be called.
        """
        for hook in HOST_HOOKS:
            if self.has_listeners(hook):
                remedy = HOST_REMEDIES[has_several_agents]
                raise ConfigError(
                    f"{hook} would never be called: {HOST_ONLY_SETTINGS[hook]}; {remedy}."
                )


class _Listener(NamedTuple):
    """Function with the keywords that it accepts (None for any) and those that it requires."""

    name: str
    function: Callable[..., object]
    accepted: frozenset[str] | None
    required: frozenset[str]


def _make_listener(name: str, function: Callable[..., object]) -> _Listener:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a builtin without a signature
        return _Listener(name, function, None, frozenset())
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = [parameter for parameter in parameters if parameter.kind in kinds]
    accepts_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    return _Listener(
        name,
        function,
        None if accepts_any else frozenset(p.name for p in named),
        frozenset(p.name for p in named if p.default is inspect.Parameter.empty),
    )


def _is_empty_hook(item: object, name: str) -> bool:
    """Return whether a method of an object is that of the base class, which does nothing."""
    return name in vars(Callbacks) and getattr(type(item), name, None) is vars(Callbacks)[name]


def _find_hook(owner: str, name: str) -> str:
    """Return the hook of a method, which may have a former name of RLlib's.

    Raises:
        ConfigError: If the method would never be called.
    """
    if name in HOOKS:
        return name
    rllib = lookup.load("rllib.attributes")
    if name in rllib.REFUSED_HOOKS:
        raise ConfigError(f"{owner}.{name} would never be called: {rllib.REFUSED_HOOKS[name]}.")
    if name not in rllib.RENAMED_HOOKS:
        raise ConfigError(
            f"{owner}.{name} is not a hook.{did_you_mean(name, HOOKS)} The hooks are "
            f"{', '.join(HOOKS)}."
        )
    return rllib.RENAMED_HOOKS[name]


def _get_name(function: Callable[..., object]) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def _make_instance(item: object) -> object:
    """Return the object of a class, of a function that makes one, or the object itself."""
    source = item
    if callable(item) and not isinstance(item, type | Callbacks):
        item = _call(item)
    made = (
        ""
        if source is item
        else f", which returns {item!r}; one hook is callbacks(on_train_result=...)"
    )
    if not (issubclass(item, Callbacks) if isinstance(item, type) else isinstance(item, Callbacks)):
        raise ConfigError(
            f"callbacks_class must be a subclass of jaxrl.callbacks.Callbacks, got {source!r}{made}."
        )
    return _call(item) if isinstance(item, type) else item


def _call(make: Callable[..., object]) -> object:
    """Call a class or a function without arguments."""
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        name = _get_name(make)
        raise ConfigError(
            f"callbacks_class={name} is called without arguments ({error}): pass a function that "
            f"gives them, lambda: {name}(...)."
        ) from error
    except ValueError:  # a function of C without a signature
        pass
    return make()
