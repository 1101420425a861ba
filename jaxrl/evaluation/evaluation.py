"""Evaluation as the config asks for it: compiled, by a runner in this process, or by actors."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from jaxrl.assembly.assemble import Assembly, in_one_line, make_env, spaces_of
from jaxrl.config.fields import evaluation_arguments
from jaxrl.core.types import PyTree
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.registry import MadeEnv
from jaxrl.envs.vector import VectorEnv
from jaxrl.envs.wrappers import OwnTimeLimit
from jaxrl.errors import ConfigError, JaxrlError
from jaxrl.evaluation.host import EvaluationRunners, HostPlan, LocalEvaluation
from jaxrl.evaluation.recording import Camera
from jaxrl.runners.fragment import Weights
from jaxrl.runners.hooks import NoHooks, RunnerHooks
from jaxrl.runtime.program import Program, shapes_of
from jaxrl.training.evaluate import DEFAULT_STEP_CAP, EPISODES_BY_STEPS, Evaluated, Evaluator
from jaxrl.training.report import evaluation_metrics, to_host
from jaxrl.training.rollout import Sampler

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig
    from jaxrl.evaluation.on_ray import RayEvaluation

MAX_EVALUATION_ENVS = 64
MAX_RECORDED = 1024
ENV_SETTINGS = ("env", "env_config", "max_episode_steps")
"""What makes another environment of the evaluation's."""


class Evaluation:
    """Plays episodes with the trained module under the evaluation's own settings.

    Args:
        config: The run's config; `evaluation_config` overrides are applied to a copy.
        assembly: The run's functions, whose module and connectors are used.
        hooks: What runners on the host call on the way.
        programs: Of evaluations that share them, by their numbers of episodes.

    Raises:
        JaxrlError: The environment of `evaluation_config` cannot be made or has other spaces, or
            it is to be filmed and cannot be.
    """

    def __init__(
        self,
        config: "AlgorithmConfig",
        assembly: Assembly,
        hooks: RunnerHooks | None = None,
        programs: dict[int | None, Program] | None = None,
    ) -> None:
        changed = config.get_evaluation_config_object()
        assert changed is not None
        self._config = changed
        self._made = made = evaluation_env(config, changed, assembly.made)
        self._assembly = dataclasses.replace(assembly, made=made)
        self._hooks = NoHooks() if hooks is None else hooks
        self._trained_limit = assembly.made.max_episode_steps
        # Runners on the host have parameters of their own, which cannot be changed here.
        self._same_env = assembly.in_graph and not _has_overrides(config, ("env", "env_config"))
        self._compiled: dict[int | None, Program] = {} if programs is None else programs
        self._count = 0
        self._local: LocalEvaluation | None = None
        self._remote: RayEvaluation | None = None
        self._beside: _Beside | None = None
        self._compiling: threading.Thread | None = None
        settings = changed.evaluation_settings
        self._num_env_runners = settings.evaluation_num_env_runners
        if self._num_env_runners > 0:
            HostPlan.of(changed, made)  # what does not fit is told now, the actors come later
        elif isinstance(made, MadeHostEnv):
            self._local = LocalEvaluation(changed, made, self._hooks)
        self._camera = Camera(changed, made, assembly.acting) if settings.record_video else None

    @property
    def programs(self) -> list[Program]:
        """One for each duration that was asked for."""
        return list(self._compiled.values())

    def start(self) -> None:
        """Start the actors, if it has any, so that what is wrong with them is told now."""
        self._ray()

    def _ray(self) -> "RayEvaluation | None":
        if self._remote is None and self._num_env_runners > 0:
            from jaxrl.evaluation.on_ray import RayEvaluation

            self._remote = RayEvaluation(self._config, self._assembly, self._hooks)
        return self._remote

    def run(
        self, policy: Evaluated, num_episodes: int | None = None, folder: Path | None = None
    ) -> dict[str, Any]:
        """The result of one evaluation.

        Args:
            policy: What is evaluated; the environment's parameters count here too unless this is
                another environment.
            num_episodes: Instead of `evaluation_duration`.
            folder: Where videos go, if the config asks for some.
        """
        self._wait()
        on_host = self._ray() or self._local
        if on_host is not None:
            result = on_host.run(self._weights(policy), policy.seed, num_episodes)
        else:
            result = {"env_runners": self._run_compiled(policy, num_episodes)}
        return self.filmed(result, policy, folder)

    def filmed(
        self, result: dict[str, Any], policy: Evaluated, folder: Path | None
    ) -> dict[str, Any]:
        """A result with the videos that the config asks for."""
        if self._camera is None or folder is None:
            return result
        seen = dataclasses.replace(policy, env_params=self._params(policy.env_params))
        return {**result, "videos": self._camera.record(seen, folder)}

    # --- beside training ---

    def begin(self, policy: Evaluated) -> None:
        """Begin to evaluate while this process does something else; `finish` ends it."""
        self._wait()
        remote = self._ray()
        assert remote is not None
        still = dataclasses.replace(
            policy, actor=to_host(policy.actor), env_params=to_host(policy.env_params)
        )
        self._beside = _Beside(remote, self._config, self._weights(still), still)

    @property
    def is_under_way(self) -> bool:
        """Whether `begin` was called and `finish` not yet."""
        return self._beside is not None

    def finish(self, folder: Path | None = None) -> dict[str, Any]:
        """The result of what `begin` began, as soon as it is done."""
        beside, self._beside = self._beside, None
        assert beside is not None
        return self.filmed(beside.result(), beside.policy, folder)

    def _wait(self) -> None:
        """Let what is under way come to its end: actors do one thing after another."""
        if self._beside is not None:
            self._beside.end()

    # --- a function of the user's ---

    def runners(self, policy: Evaluated) -> EvaluationRunners | None:
        """The runners with this policy; None where evaluation is compiled."""
        self._wait()
        on_host = self._ray() or self._local
        if on_host is None:
            return None
        on_host.runners.publish(self._weights(policy))
        return on_host.runners

    def _weights(self, policy: Evaluated) -> Weights:
        self._count += 1
        return Weights(version=self._count, actor=to_host(policy.actor))

    def stop(self) -> None:
        """Let environments and actors go; may be called twice."""
        for part in (self._remote, self._local):
            if part is not None:
                part.stop()
        self._wait()
        self._wait_for_compiling()
        if self._camera is not None:
            self._camera.close()

    # --- the compiled evaluation ---

    def _run_compiled(self, policy: Evaluated, num_episodes: int | None) -> dict[str, Any]:
        self._wait_for_compiling()
        program = self._program(num_episodes)
        return evaluation_metrics(to_host(program(*self._traced_with(policy))))

    def compile(self, policy: Evaluated) -> None:
        """Compile the program of the whole evaluation, where there is one, without running it."""
        self._wait_for_compiling()
        if self._num_env_runners == 0 and self._local is None:
            self._program(None).compiled_for(*self._traced_with(policy))

    def needs_later(self, policy: Callable[[], Evaluated]) -> list[Callable[[], None]]:
        """What begins to compile the program of evaluations that are due at intervals, in a thread.

        The first evaluation waits for it. Nothing where none are due, or none is compiled.

        Args:
            policy: What makes one to evaluate, of which only shapes are kept.
        """
        settings, learners = self._config.evaluation_settings, self._config.learners_settings
        is_ours = settings.custom_evaluation_function is None and not learners.num_learners
        on_host = self._num_env_runners > 0 or not self._assembly.in_graph
        if not settings.evaluation_interval or not is_ours or on_host:
            return []
        shapes = shapes_of(self._traced_with(policy()))

        def compile_quietly() -> None:
            with contextlib.suppress(Exception):  # told by the evaluation, which tries again
                self._program(None).compiled_for(*shapes)

        def begin() -> None:
            self._compiling = threading.Thread(target=compile_quietly, name="jaxrl-compile")
            self._compiling.start()

        return [begin]

    def _wait_for_compiling(self) -> None:
        thread, self._compiling = self._compiling, None
        if thread is not None:
            thread.join()

    def _traced_with(self, policy: Evaluated) -> tuple[Any, ...]:
        return policy.actor, self._params(policy.env_params), policy.key

    def _params(self, trained: PyTree) -> PyTree:
        made = self._made
        if not isinstance(made, MadeEnv):
            return ()
        env, limit = made.env, made.max_episode_steps
        if not self._same_env:
            return made.params
        if isinstance(env, OwnTimeLimit) and limit is not None and limit != self._trained_limit:
            return env.with_time_limit(trained, limit)
        return trained

    def _program(self, num_episodes: int | None) -> Program:
        if num_episodes in self._compiled:
            return self._compiled[num_episodes]
        name, config, made = "evaluate", self._config, self._made
        assert isinstance(made, MadeEnv)
        if num_episodes is not None:
            name = f"evaluate_{num_episodes}_episodes"
            config = config.copy().evaluation(
                evaluation_duration=num_episodes,
                evaluation_duration_unit="episodes",
                evaluation_num_envs="auto",
            )
        mode = config.environment_settings.reset_mode
        acting = self._assembly.acting
        sampler = Sampler(
            env=VectorEnv(made.env, made.env.reset_mode if mode == "auto" else mode),
            module=acting.module,
            obs_pipeline=acting.obs_pipeline,
            action_pipeline=acting.action_pipeline,
        )
        program = Program(
            name,
            self._function(make_evaluator(config, sampler, made)),
            max_retraces=config.debugging_settings.max_retraces,
            kept=self._assembly.kept,
            enabled=config.debugging_settings.jit,
        )
        self._compiled[num_episodes] = program
        return program

    def _function(self, evaluator: Evaluator) -> Callable[..., Any]:
        """What is compiled, of `(actor, env_params, key)`."""
        return evaluator


class _Beside:
    """An evaluation in a thread of its own, which only asks actors and waits for them."""

    def __init__(
        self,
        remote: "RayEvaluation",
        config: "AlgorithmConfig",
        weights: Weights,
        policy: Evaluated,
    ) -> None:
        self.policy = policy
        self._training_is_done = threading.Event()
        self._outcome: dict[str, Any] | BaseException | None = None
        auto = config.evaluation_settings.evaluation_duration == "auto"
        seed = policy.seed

        def evaluate() -> None:
            try:
                self._outcome = (
                    remote.run_beside(weights, seed, self._training_is_done)
                    if auto
                    else remote.run(weights, seed, None)
                )
            except BaseException as error:  # noqa: BLE001  (raised again where it is waited for)
                self._outcome = error

        self._thread = threading.Thread(target=evaluate, name="jaxrl-evaluation", daemon=True)
        self._thread.start()

    def result(self) -> dict[str, Any]:
        """Wait for it; raises what it raised."""
        self.end()
        assert self._outcome is not None
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    def end(self) -> None:
        """Wait for the thread, whatever comes of it."""
        self._training_is_done.set()
        self._thread.join()


def _has_overrides(config: "AlgorithmConfig", names: tuple[str, ...]) -> bool:
    overrides = config.overrides(**(config.evaluation_settings.evaluation_config or {}))
    return any(name in overrides for name in names)


def evaluation_env(
    config: "AlgorithmConfig", changed: "AlgorithmConfig", trained: MadeEnv | MadeHostEnv
) -> MadeEnv | MadeHostEnv:
    """The environment to evaluate in, with the spaces that the module was built for."""
    if not _has_overrides(config, ENV_SETTINGS):
        return trained
    try:
        made = make_env(changed)
    except JaxrlError as error:
        raise type(error)(f"evaluation_config: {error}") from error
    names = ("observation space", "action space")
    for name, own, wanted in zip(names, spaces_of(made), spaces_of(trained), strict=True):
        if own != wanted:
            raise ConfigError(
                f"evaluation_config: {made.id} has the {name} {in_one_line(own)}, but the module "
                f"is trained for {in_one_line(wanted)} of {trained.id}; evaluate in an environment "
                "with the same spaces."
            )
    return made


def custom_evaluation(
    function: Callable[..., Any], algorithm: Any, runners: EvaluationRunners | None = None
) -> dict[str, Any]:
    """What the user's function of `(algorithm)` or `(algorithm, eval_workers)` returns.

    Raises:
        ConfigError: It is no dictionary.
    """
    metrics = function(algorithm, *[runners] * (evaluation_arguments(function) - 1))
    if not isinstance(metrics, Mapping):
        raise ConfigError(
            "custom_evaluation_function must return a dictionary of metrics, such as "
            f"{{'custom_metrics': {{...}}}}, got {metrics!r}."
        )
    return dict(cast(Mapping[str, Any], metrics))


def make_evaluator(config: "AlgorithmConfig", sampler: Sampler, made: MadeEnv) -> Evaluator:
    """The evaluation that an evaluation config asks for."""
    settings = config.evaluation_settings
    explore = config.env_runners_settings.explore
    duration = settings.evaluation_duration
    assert duration != "auto"
    limit = made.max_episode_steps or DEFAULT_STEP_CAP
    by_steps = settings.evaluation_duration_unit == "timesteps"
    # By steps every environment must have room for several episodes, or short ones are favoured.
    least = EPISODES_BY_STEPS * limit if by_steps else 1
    envs = _num_envs(settings.evaluation_num_envs, duration, least)
    share = -(-duration // envs)
    if by_steps:
        return Evaluator(
            sampler=sampler,
            num_envs=envs,
            episodes_per_env=None,
            max_steps=share,
            recorded=min(share, MAX_RECORDED),
            explore=explore,
        )
    return Evaluator(
        sampler=sampler,
        num_envs=envs,
        episodes_per_env=share,
        max_steps=share * limit,
        recorded=share,
        explore=explore,
    )


def _num_envs(setting: Any, duration: int, least: int) -> int:
    """The largest divisor of the duration that leaves each environment its least, else 1."""
    if setting != "auto":
        return setting
    candidates = range(2, min(duration, MAX_EVALUATION_ENVS) + 1)
    fitting = (n for n in candidates if duration % n == 0 and duration // n >= least)
    return max(fitting, default=1)
