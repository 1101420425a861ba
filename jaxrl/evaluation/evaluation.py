"""Evaluation: compiled, by a runner in this process, or by Ray actors, as configured."""

import dataclasses
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gymnasium import spaces

from jaxrl.assembly.assemble import Assembly, format_space, make_env
from jaxrl.assembly.multi_agent import make_multi_agent_env
from jaxrl.assembly.offline import find_reference
from jaxrl.assembly.search import add_planner
from jaxrl.config.modules import resolve_default_model_config
from jaxrl.config.settings.run import count_evaluation_arguments
from jaxrl.core.spaces import without_parts
from jaxrl.core.types import PyTree
from jaxrl.envs.multi.made import MadeMultiEnv
from jaxrl.envs.registry import AnyMadeEnv, MadeEnv
from jaxrl.errors import ConfigError, JaxrlError, summarize_exception
from jaxrl.evaluation.compiled import CompiledEvaluation, JaxEvaluation, OwnCompiledEvaluation
from jaxrl.evaluation.host import EvaluationRunners, HostEvaluationPlan, LocalEvaluation
from jaxrl.evaluation.pairings import PairingEvaluations
from jaxrl.evaluation.recording import VideoRecorder
from jaxrl.runners.fragment import Weights
from jaxrl.runners.hooks import NoHooks, RunnerHooks
from jaxrl.runners.metrics_logger import MetricsLogger
from jaxrl.runtime.program import Program
from jaxrl.training.evaluate import EvaluationInputs
from jaxrl.training.report import check_fault, compute_evaluation_metrics, to_host
from jaxrl.training.rollout import PolicyStep

if TYPE_CHECKING:
    from jaxrl.config.config import Config
    from jaxrl.evaluation.on_ray import RayEvaluation

ENV_SETTINGS = ("env", "env_config", "max_episode_steps")
"""Settings of `evaluation_config` that require a separate evaluation environment."""


class Evaluation:
    """Evaluator of the trained module under the evaluation's settings.

    Args:
        config: Config of the run; `evaluation_config` overrides are applied to a copy.
        assembly: Functions of the run, whose module and connectors are used.
        hooks: Callbacks of host runners.
        make_compiled: Function that makes what runs the compiled evaluation, if there is one.
        planner: Search by which the policies of the run act; None for their own.

    Raises:
        JaxrlError: If the environment of `evaluation_config` cannot be made or has different
            spaces, or videos are requested and it cannot be rendered.
    """

    def __init__(
        self,
        config: "Config",
        assembly: Assembly,
        hooks: RunnerHooks | None = None,
        make_compiled: Callable[[JaxEvaluation], CompiledEvaluation] = OwnCompiledEvaluation,
        planner: Mapping[str, Any] | None = None,
    ) -> None:
        changed = config.get_evaluation_config_object()
        assert changed is not None
        self._config = changed
        made = make_evaluation_env(config, changed, assembly.made)
        policy_step = assembly.policy_step
        if isinstance(policy_step, PolicyStep):
            policy_step = policy_step.fit(made.spaces[0])
        self._assembly = dataclasses.replace(assembly, made=made, policy_step=policy_step)
        if planner is not None:
            if changed.evaluation_settings.evaluation_num_env_runners:
                raise ConfigError(
                    "evaluate(planner=...) searches in the compiled program, and "
                    "evaluation_num_env_runners evaluates in actors: leave one of them out."
                )
            if changed.evaluation_settings.record_video:
                raise ConfigError(
                    "evaluate(planner=...) records no videos, which show the policy by itself: leave "
                    "record_video out."
                )
        # A policy that searches does so in the environment that it is evaluated in.
        has_other_model = made is not assembly.made and getattr(made, "model", None) is not None
        if planner is not None or has_other_model:
            self._assembly = add_planner(self._assembly, planner)
            made = self._assembly.made
        self._hooks = NoHooks() if hooks is None else hooks
        trained = assembly.made
        is_jax = isinstance(trained, MadeEnv | MadeMultiEnv)
        self._first_params = trained.params if is_jax else None
        self._has_own_task = _has_overrides(config, ("env", "env_config"))
        has_data = (config.is_offline or config.is_mixed) and not self._has_own_task
        self._reference = find_reference(config.offline_data_settings) if has_data else None
        self._num_versions = 0
        self._metrics_logger = MetricsLogger()
        self._on_host: LocalEvaluation | RayEvaluation | None = None
        self._parallel: _ParallelEvaluation | None = None
        self._jax: JaxEvaluation | None = None
        self._compiled: CompiledEvaluation | None = None
        self._pairings: PairingEvaluations | None = None
        settings = changed.evaluation_settings
        has_actors = settings.evaluation_num_env_runners > 0
        if isinstance(made, MadeEnv | MadeMultiEnv):
            self._jax = JaxEvaluation(
                config=changed,
                assembly=self._assembly,
                made=made,
                trained_limit=assembly.made.max_episode_steps,
                is_same_env=not self._has_own_task,
            )
        if self._jax is not None and not has_actors:
            self._compiled = make_compiled(self._jax)
        else:  # checks the settings early; actors start later
            HostEvaluationPlan.from_settings(settings, made.max_episode_steps)
        self._recorder = (
            VideoRecorder(changed, cast("AnyMadeEnv", made), policy_step)
            if settings.record_video
            else None
        )

    @property
    def programs(self) -> list[Program]:
        """Compiled programs, one per requested number of episodes."""
        compiled = [] if self._compiled is None else self._compiled.programs
        return compiled if self._pairings is None else [*compiled, *self._pairings.programs]

    def get_pairings(self) -> PairingEvaluations:
        """Return the evaluations of several agents against opponents."""
        if self._pairings is None:
            assert self._jax is not None
            self._pairings = PairingEvaluations(self._jax)
        return self._pairings

    def log_to(self, metrics_logger: MetricsLogger) -> None:
        """Set the logger of the values that hooks log during evaluations."""
        self._metrics_logger = metrics_logger
        if self._on_host is not None:
            self._on_host.metrics_logger = metrics_logger

    def start(self) -> None:
        """Start the actors, if there are any, so that their errors are raised early."""
        self._get_on_host()

    def _get_on_host(self) -> "LocalEvaluation | RayEvaluation | None":
        """Return the evaluation by runners, created on first use; None if it is compiled."""
        if self._on_host is None and self._compiled is None:
            if self._config.evaluation_settings.evaluation_num_env_runners:
                from jaxrl.evaluation.on_ray import RayEvaluation

                self._on_host = RayEvaluation(self._config, self._assembly, self._hooks)
            else:
                self._on_host = LocalEvaluation(self._config, self._assembly.made, self._hooks)
            self._on_host.metrics_logger = self._metrics_logger
        return self._on_host

    def run(
        self, policy: EvaluationInputs, num_episodes: int | None = None, folder: Path | None = None
    ) -> dict[str, Any]:
        """Run one evaluation and return its result.

        If the recorded data of the run say the returns of a random policy and of an expert, the
        result has `episode_return_normalized`, which is 0 and 1 for these.

        Args:
            policy: Policy to evaluate, with the parameters of the training environment, which are
                used unless the evaluation has a different environment.
            num_episodes: Number of episodes, instead of `evaluation_duration`.
            folder: Folder for videos, if the config requests some; None records none.
        """
        self._join_parallel()
        policy = self._with_task(policy)
        on_host = self._get_on_host()
        if on_host is not None:
            result = on_host.run(self._make_weights(policy), policy.seed, num_episodes)
        else:
            assert self._compiled is not None
            played = self._compiled.run(policy, num_episodes)
            check_fault(played.fault, self._assembly.made.id)
            metrics = compute_evaluation_metrics(played, self._assembly.patterns)
            result = {"env_runners": metrics}
        return self._add_videos(self._normalize(result), policy, folder)

    def _normalize(self, result: dict[str, Any]) -> dict[str, Any]:
        if self._reference is None:
            return result
        played = result["env_runners"]
        score = self._reference.normalize(played["episode_return_mean"])
        return {**result, "env_runners": {**played, "episode_return_normalized": score}}

    def add_videos(
        self, result: dict[str, Any], policy: EvaluationInputs, folder: Path | None
    ) -> dict[str, Any]:
        """Return a result with the paths of the videos that the config requests."""
        return self._add_videos(result, self._with_task(policy), folder)

    def _add_videos(
        self, result: dict[str, Any], policy: EvaluationInputs, folder: Path | None
    ) -> dict[str, Any]:
        if self._recorder is None or folder is None:
            return result
        policy = dataclasses.replace(policy, env_params=self._get_params(policy.env_params))
        return {**result, "videos": self._recorder.record(policy, folder)}

    # --- several agents in Python ---

    @property
    def mapping_fn(self) -> Callable[..., object] | None:
        """Function that chooses modules, as configured or set on the runners; None for none."""
        config = self._config if self._on_host is None else self._on_host.runners.local_config
        return config.multi_agent_settings.policy_mapping_fn

    def set_mapping_fn(self, function: Callable[..., object]) -> None:
        """Choose modules by another function, before the first evaluation."""
        self._config.multi_agent(policy_mapping_fn=function)

    # --- parallel to training ---

    def start_parallel(self, policy: EvaluationInputs) -> None:
        """Start an evaluation by actors in the background; `finish` returns its result."""
        self._join_parallel()
        remote = self._get_on_host()
        assert remote is not None
        assert not isinstance(remote, LocalEvaluation)
        policy = self._with_task(policy)
        policy = dataclasses.replace(
            policy, actor=to_host(policy.actor), env_params=to_host(policy.env_params)
        )
        weights = self._make_weights(policy)
        is_auto = self._config.evaluation_settings.evaluation_duration == "auto"
        self._parallel = _ParallelEvaluation(remote, weights, policy, lasts_as_training=is_auto)

    @property
    def is_parallel_running(self) -> bool:
        """Return whether `begin` was called without `finish`."""
        return self._parallel is not None

    def finish_parallel(self, folder: Path | None = None) -> dict[str, Any]:
        """Wait for the evaluation that `begin` started and return its result."""
        parallel, self._parallel = self._parallel, None
        assert parallel is not None
        return self._add_videos(self._normalize(parallel.result()), parallel.policy, folder)

    def _join_parallel(self) -> None:
        """Wait for a parallel evaluation, because actors handle one evaluation at a time."""
        if self._parallel is not None:
            self._parallel.join()

    # --- custom evaluation functions ---

    def get_runners(self, policy: EvaluationInputs) -> EvaluationRunners | None:
        """Return the runners with the weights of a policy; None if evaluation is compiled."""
        self._join_parallel()
        on_host = self._get_on_host()
        if on_host is None:
            return None
        on_host.runners.sync_weights(self._make_weights(self._with_task(policy)))
        return on_host.runners

    def _make_weights(self, policy: EvaluationInputs) -> Weights:
        """Return the weights of a policy, and the task or parameters of its environment."""
        self._num_versions += 1
        task = policy.task
        if self._jax is not None and not self._has_own_task:
            task = to_host(self._jax.get_params(policy.env_params))
        return Weights(version=self._num_versions, actor=to_host(policy.actor), task=task)

    def _with_task(self, policy: EvaluationInputs) -> EvaluationInputs:
        """Return the inputs with the task that applies to the evaluation environment.

        An environment named by `evaluation_config` keeps its own. The parameters of a JAX
        environment that is trained on the host are those of the task.
        """
        if self._has_own_task:
            return dataclasses.replace(policy, task=None)
        if self._jax is None or self._assembly.is_in_graph:
            return policy
        params = self._first_params if policy.task is None else policy.task
        return dataclasses.replace(policy, env_params=params)

    def stop(self) -> None:
        """Release environments and actors; idempotent."""
        if self._on_host is not None:
            self._on_host.stop()
        self._join_parallel()
        if self._compiled is not None:
            self._compiled.stop()
        if self._recorder is not None:
            self._recorder.close()

    # --- compiled evaluation ---

    def compile(self, policy: EvaluationInputs) -> None:
        """Compile the evaluation program, if there is one, without running it."""
        if self._compiled is not None:
            self._compiled.compile(self._with_task(policy))

    def get_deferred_tasks(
        self, policy: Callable[[], EvaluationInputs]
    ) -> list[Callable[[], None]]:
        """Return functions to call once training runs.

        If evaluations are due at intervals and compiled, this is a function that starts compiling
        their program in a thread, for which the first evaluation waits.

        Args:
            policy: Function that returns a policy to evaluate, of which only shapes are kept.
        """
        settings, learners = self._config.evaluation_settings, self._config.learners_settings
        is_ours = settings.custom_evaluation_function is None and not learners.num_learners
        if self._compiled is None or not self._assembly.is_in_graph:
            return []
        if not settings.evaluation_interval or not is_ours:
            return []
        return self._compiled.get_deferred_tasks(policy)

    def _get_params(self, trained: PyTree) -> PyTree:
        """Return the evaluation environment's parameters; empty if it is stepped on the host."""
        return () if self._jax is None else self._jax.get_params(trained)


class _ParallelEvaluation:
    """Evaluation in a thread that only sends requests to actors and waits for them."""

    def __init__(
        self,
        remote: "RayEvaluation",
        weights: Weights,
        policy: EvaluationInputs,
        *,
        lasts_as_training: bool,
    ) -> None:
        self.policy = policy
        self._training_is_done = threading.Event()
        self._outcome: dict[str, Any] | BaseException | None = None
        seed = policy.seed

        def evaluate() -> None:
            try:
                self._outcome = (
                    remote.run_parallel(weights, seed, self._training_is_done)
                    if lasts_as_training
                    else remote.run(weights, seed, None)
                )
            except BaseException as error:  # noqa: BLE001  (raised again by `result`)
                self._outcome = error

        self._thread = threading.Thread(target=evaluate, name="jaxrl-evaluation", daemon=True)
        self._thread.start()

    def result(self) -> dict[str, Any]:
        """Wait for the evaluation and return its result, or raise its error."""
        self.join()
        assert self._outcome is not None
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    def join(self) -> None:
        """Wait for the thread, ignoring its outcome."""
        self._training_is_done.set()
        self._thread.join()


def _has_overrides(config: "Config", names: tuple[str, ...]) -> bool:
    overrides = config.resolve(config.evaluation_settings.evaluation_config or {})
    return any(name in overrides for name in names)


def make_evaluation_env(
    config: "Config", changed: "Config", trained: AnyMadeEnv | MadeMultiEnv
) -> AnyMadeEnv | MadeMultiEnv:
    """Return the evaluation environment, whose spaces must be those of the training environment.

    Its observations may lack parts that are for a critic alone; `changed` then declares the whole
    space, for which modules are made.

    Args:
        config: Config of the run.
        changed: Config of the evaluation.
        trained: Training environment, returned unless `evaluation_config` names another one.

    Raises:
        JaxrlError: If the environment cannot be made, or has different spaces.
    """
    if not _has_overrides(config, ENV_SETTINGS):
        return trained
    try:
        settings, several = changed.environment_settings, changed.is_multi_agent
        made: Any = (
            make_multi_agent_env(settings, changed.multi_agent_settings)
            if several
            else make_env(changed)
        )
    except JaxrlError as error:
        raise type(error)(f"evaluation_config: {error}") from error
    names = ("observation space", "action space")
    for name, actual, expected in zip(names, made.spaces, trained.spaces, strict=True):
        if actual == expected:
            continue
        model = None if several else resolve_default_model_config(config)
        given = actual.spaces if isinstance(actual, spaces.Dict) else {}
        hidden = () if model is None else model.critic_only_observations
        if actual == without_parts(expected, [part for part in hidden if part not in given]):
            changed.environment(observation_space=expected)
        else:
            raise ConfigError(
                f"evaluation_config: {made.id} has the {name} {format_space(actual)}, but the "
                f"module is trained for {format_space(expected)} of {trained.id}; use an "
                "evaluation environment with the same spaces."
            )
    return made


def run_custom_evaluation(
    function: Callable[..., Any], algorithm: object, runners: EvaluationRunners | None = None
) -> dict[str, Any]:
    """Call the user's function of `(algorithm)` or `(algorithm, eval_workers)`; return its metrics.

    It may return RLlib's `(metrics, env_steps, agent_steps)`, whose numbers become metrics.

    Raises:
        ConfigError: If it returns neither that nor a dictionary, or uses runners where there are
            none.
    """
    number = count_evaluation_arguments(function)
    try:
        returned = function(algorithm, *[runners] * (number - 1))
    except AttributeError as error:
        if runners is not None or number == 1 or error.obj is not None:
            raise
        raise ConfigError(
            "custom_evaluation_function got None for its runners, because the evaluation is part of "
            f"the compiled program, and {summarize_exception(error)}: set "
            "evaluation_num_env_runners=1 for a runner, or use algorithm alone."
        ) from error
    match returned:
        case (metrics, int(env_steps), int(agent_steps)):
            counts = {
                "num_env_steps_sampled_this_iter": env_steps,
                "num_agent_steps_sampled_this_iter": agent_steps,
            }
        case metrics:
            counts = {}
    if not isinstance(metrics, Mapping):
        raise ConfigError(
            "custom_evaluation_function must return a dictionary of metrics, such as "
            f"{{'custom_metrics': {{...}}}}, or (metrics, env_steps, agent_steps), got {returned!r}."
        )
    return {**counts, **cast(Mapping[str, Any], metrics)}
