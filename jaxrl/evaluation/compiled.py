"""Compiled evaluation: its programs, and how a run with programs of its own compiles them."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from jaxrl.assembly.assemble import Assembly, make_vector_env
from jaxrl.assembly.multi_agent import make_multi_vector_env
from jaxrl.core.types import PyTree
from jaxrl.envs.multi.made import MadeMultiEnv
from jaxrl.envs.registry import MadeEnv
from jaxrl.envs.wrappers import HasTimeLimit
from jaxrl.runtime.program import Program, to_shape_structs
from jaxrl.training.evaluate import (
    DEFAULT_MAX_EPISODE_STEPS,
    MIN_EPISODES_PER_ENV,
    EvaluationInputs,
    EvaluationResult,
    Evaluator,
)
from jaxrl.training.multi_rollout import MultiRolloutWorker
from jaxrl.training.report import to_host
from jaxrl.training.rollout import RolloutWorker

if TYPE_CHECKING:
    from jaxrl.config.config import Config
    from jaxrl.config.settings.run import EvaluationSettings

MAX_EVALUATION_ENVS = 64
"""Maximum number of environments of a compiled evaluation with `evaluation_num_envs="auto"`."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class JaxEvaluation:
    """Evaluation environment in JAX, with the functions and settings of its evaluation.

    Args:
        config: Config of the evaluation.
        assembly: Functions of the run, with the evaluation environment.
        made: Evaluation environment.
        trained_limit: Time limit of the training environment; None for no limit.
        is_same_env: Whether it has the current parameters of the training environment.
    """

    config: "Config"
    assembly: Assembly
    made: MadeEnv | MadeMultiEnv
    trained_limit: int | None
    is_same_env: bool

    def get_params(self, trained: PyTree) -> PyTree:
        """Return the environment's parameters, given those of the training environment."""
        env, limit = self.made.env, self.made.max_episode_steps
        if not self.is_same_env:
            return self.made.params
        if isinstance(env, HasTimeLimit) and limit is not None and limit != self.trained_limit:
            return env.with_time_limit(trained, limit)
        return trained

    def make_program(
        self,
        num_episodes: int | None,
        make_function: Callable[[Evaluator], Callable[..., EvaluationResult]],
    ) -> Program:
        """Make the program of an evaluation.

        Args:
            num_episodes: Number of episodes; None for `evaluation_duration`.
            make_function: Function from the evaluator of one policy to the function to compile.
        """
        name, config, made = "evaluate", self.config, self.made
        if num_episodes is not None:
            name = f"evaluate_{num_episodes}_episodes"
            config = config.copy().evaluation(
                evaluation_duration=num_episodes,
                evaluation_duration_unit="episodes",
                evaluation_num_envs="auto",
            )
        vector: Any = (
            make_multi_vector_env(config.environment_settings, made)
            if isinstance(made, MadeMultiEnv)
            else make_vector_env(config.environment_settings, made)
        )
        rollout_worker = self.assembly.policy_step.with_envs(vector)
        return Program(
            name,
            make_function(
                make_evaluator(
                    config.evaluation_settings,
                    rollout_worker,
                    made.max_episode_steps,
                    explore=config.env_runners_settings.explore,
                )
            ),
            max_retraces=config.debugging_settings.max_retraces,
            program_cache=self.assembly.program_cache,
            enabled=config.debugging_settings.compiles,
        )


class CompiledEvaluation(Protocol):
    """Runner of a compiled evaluation."""

    @property
    def programs(self) -> list[Program]:
        """Compiled programs, one per requested number of episodes."""
        ...

    def run(self, policy: EvaluationInputs, num_episodes: int | None) -> EvaluationResult:
        """Play the episodes of a policy.

        Args:
            policy: Policy to evaluate.
            num_episodes: Number of episodes; None for `evaluation_duration`.
        """
        ...

    def compile(self, policy: EvaluationInputs) -> None:
        """Compile the program for `evaluation_duration` without running it."""
        ...

    def get_deferred_tasks(
        self, policy: Callable[[], EvaluationInputs]
    ) -> list[Callable[[], None]]:
        """Return functions to call once training runs; see `Evaluation.get_deferred_tasks`."""
        ...

    def stop(self) -> None:
        """Release all resources; safe to call more than once."""
        ...


class OwnCompiledEvaluation:
    """Compiled evaluation of a run with programs of its own.

    Args:
        evaluation: Environment and functions of the evaluation.
    """

    def __init__(self, evaluation: JaxEvaluation) -> None:
        self._evaluation = evaluation
        self._programs: dict[int | None, Program] = {}
        self._compile_thread: threading.Thread | None = None

    @property
    def programs(self) -> list[Program]:
        return list(self._programs.values())

    def run(self, policy: EvaluationInputs, num_episodes: int | None) -> EvaluationResult:
        self._join_compile_thread()
        program = self._get_program(num_episodes)
        return to_host(program(*self._get_traced_args(policy)))

    def compile(self, policy: EvaluationInputs) -> None:
        self._join_compile_thread()
        self._get_program(None).get_executable(*self._get_traced_args(policy))

    def get_deferred_tasks(
        self, policy: Callable[[], EvaluationInputs]
    ) -> list[Callable[[], None]]:
        shapes = to_shape_structs(self._get_traced_args(policy()))

        def compile_program() -> None:
            with contextlib.suppress(Exception):  # raised again when the evaluation compiles
                self._get_program(None).get_executable(*shapes)

        def start_thread() -> None:
            thread = threading.Thread(target=compile_program, name="jaxrl-compile")
            self._compile_thread = thread
            thread.start()

        return [start_thread]

    def stop(self) -> None:
        self._join_compile_thread()

    def _join_compile_thread(self) -> None:
        thread, self._compile_thread = self._compile_thread, None
        if thread is not None:
            thread.join()

    def _get_traced_args(self, policy: EvaluationInputs) -> tuple[Any, ...]:
        return policy.actor, self._evaluation.get_params(policy.env_params), policy.key

    def _get_program(self, num_episodes: int | None) -> Program:
        if num_episodes not in self._programs:
            made = self._evaluation.make_program(num_episodes, lambda evaluator: evaluator)
            self._programs[num_episodes] = made
        return self._programs[num_episodes]


def make_evaluator(
    settings: "EvaluationSettings",
    rollout_worker: RolloutWorker | MultiRolloutWorker,
    max_episode_steps: int | None,
    *,
    explore: bool,
) -> Evaluator:
    """Return the compiled evaluation's function.

    Args:
        settings: Settings of the evaluation.
        rollout_worker: Functions that step the evaluation environments.
        max_episode_steps: Time limit of the environment; None for no limit.
        explore: Whether actions are sampled.
    """
    duration = settings.evaluation_duration
    assert duration != "auto"
    limit = max_episode_steps or DEFAULT_MAX_EPISODE_STEPS
    by_steps = settings.evaluation_duration_unit == "timesteps"
    # By timesteps, every environment must have room for several episodes, or short ones would be
    # overrepresented.
    min_duration = MIN_EPISODES_PER_ENV * limit if by_steps else 1
    num_envs = settings.evaluation_num_envs
    if num_envs == "auto":
        num_envs = choose_num_envs(duration, min_duration)
    env_duration = -(-duration // num_envs)
    if isinstance(rollout_worker, MultiRolloutWorker):
        least = _count_copies(rollout_worker, num_envs)
        if least > num_envs:  # then each plays as if it was the only one of its mapping
            num_envs, env_duration = least, max(min_duration, -(-duration // least))
    return Evaluator(
        rollout_worker=rollout_worker,
        num_envs=num_envs,
        episodes_per_env=None if by_steps else env_duration,
        max_steps=env_duration if by_steps else env_duration * limit,
        explore=explore,
    )


def _count_copies(worker: MultiRolloutWorker, num_envs: int) -> int:
    """Return the number of environments in which every module plays, at least the one given."""
    rows = worker.rows
    is_complete = all(rows.count_rows(m, num_envs) for m in rows.modules)
    return num_envs if is_complete else len(rows.patterns)


def choose_num_envs(duration: int, min_duration: int, most: int = MAX_EVALUATION_ENVS) -> int:
    """Return the largest divisor of a duration that leaves each environment enough, or else 1.

    Args:
        duration: Number of episodes or steps.
        min_duration: Smallest number of them for each environment.
        most: Maximum number of environments.
    """
    candidates = (n for n in range(2, most + 1) if duration % n == 0)
    return max((n for n in candidates if duration // n >= min_duration), default=1)
