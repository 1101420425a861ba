"""Evaluation in host environments: division among runners, and aggregation of their results."""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.registry import MadeEnv
from jaxrl.errors import ConfigError
from jaxrl.evaluation.compiled import choose_num_envs
from jaxrl.runners.fragment import Weights
from jaxrl.runners.hooks import RunnerHooks
from jaxrl.runners.metrics_logger import MetricsLogger
from jaxrl.runners.multi.tally import compute_agent_returns
from jaxrl.runners.protocols import call_runner
from jaxrl.runners.quotas import (
    EvalEpisodes,
    EvalShare,
    slice_for_runner,
    split_evenly,
    to_evaluation_result,
)
from jaxrl.training.evaluate import DEFAULT_MAX_EPISODE_STEPS, MIN_EPISODES_PER_ENV
from jaxrl.training.report import compute_evaluation_metrics

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig
    from jaxrl.config.settings.run import EvaluationSettings
    from jaxrl.runners.env_runner import EnvRunner

logger = logging.getLogger("jaxrl")

MAX_HOST_ENVS = 8
"""Maximum number of environments per runner by default; each is an object that may be large."""
DEFAULT_EPISODES = 10
"""Number of episodes of a separate evaluation if the configured duration is that of training."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostEvaluationPlan:
    """Duration of an evaluation and its division among runners and environments.

    Args:
        duration: Number of episodes or steps.
        by_steps: Whether `duration` counts steps.
        max_episode_steps: Maximum number of steps of an episode.
        num_runners: Number of runners.
        num_envs: Number of environments per runner.
        timeout_s: Time limit of the whole evaluation in seconds.
    """

    duration: int
    by_steps: bool
    max_episode_steps: int
    num_runners: int
    num_envs: int
    timeout_s: float

    @staticmethod
    def from_settings(
        settings: "EvaluationSettings", max_episode_steps: int | None
    ) -> "HostEvaluationPlan":
        """Return the plan of an evaluation's settings.

        Args:
            settings: Settings of the evaluation.
            max_episode_steps: Time limit of the environment; None for no limit.

        Raises:
            ConfigError: If the environments cannot be divided equally among the runners.
        """
        runners, duration = (
            max(1, settings.evaluation_num_env_runners),
            settings.evaluation_duration,
        )
        if duration == "auto":
            duration = DEFAULT_EPISODES
        limit = max_episode_steps or DEFAULT_MAX_EPISODE_STEPS
        by_steps = settings.evaluation_duration_unit == "timesteps"
        envs = settings.evaluation_num_envs
        if envs == "auto":
            # By timesteps, each environment needs room for several episodes, or short ones would
            # be overrepresented.
            min_duration = MIN_EPISODES_PER_ENV * limit if by_steps else 1
            num_envs = choose_num_envs(-(-duration // runners), min_duration, MAX_HOST_ENVS)
        elif envs % runners:
            raise ConfigError(
                f"evaluation_num_envs={envs} must be a multiple of "
                f"evaluation_num_env_runners={runners}; use {-(-envs // runners) * runners}, or "
                "'auto'."
            )
        else:
            num_envs = envs // runners
        return HostEvaluationPlan(
            duration=duration,
            by_steps=by_steps,
            max_episode_steps=limit,
            num_runners=runners,
            num_envs=num_envs,
            timeout_s=settings.evaluation_sample_timeout_s,
        )

    def with_num_episodes(self, num_episodes: int | None) -> "HostEvaluationPlan":
        """Return the plan with another number of episodes; None changes nothing."""
        if num_episodes is None:
            return self
        return dataclasses.replace(self, duration=num_episodes, by_steps=False)

    def make_shares(self, seed: int) -> list[EvalShare]:
        """Divide the evaluation among the runners; runners without any work are omitted.

        Args:
            seed: Seed of the evaluation.
        """
        env_quotas = split_evenly(self.duration, self.num_runners * self.num_envs)
        shares: list[EvalShare] = []
        for runner in range(self.num_runners):
            quota = slice_for_runner(env_quotas, runner, self.num_envs)
            if not any(quota):
                continue
            shares.append(
                EvalShare(
                    seed=seed,
                    first_index=runner * self.num_envs,
                    episodes=None if self.by_steps else quota,
                    steps=quota
                    if self.by_steps
                    else tuple(n * self.max_episode_steps for n in quota),
                    timeout_s=self.timeout_s,
                )
            )
        return shares


class EvaluationRunners(Protocol):
    """Runners of an evaluation, as passed to a `custom_evaluation_function`."""

    @property
    def num_healthy_env_runners(self) -> int:
        """Number of runners that respond in time."""
        ...

    def foreach_env_runner(
        self, func: Callable[[Any], Any] | str, *, kwargs: dict[str, Any] | None = None
    ) -> list[Any]:
        """Call a function, or the method of a name, on each runner and return the results."""
        ...


class LocalEvaluationRunners:
    """Single evaluation runner in this process, created on first use.

    Args:
        config: Config of the evaluation.
        made: Evaluation environment.
        num_envs: Number of copies of the environment.
        hooks: Callbacks of the runner.
    """

    num_healthy_env_runners = 1

    def __init__(
        self,
        config: "AlgorithmConfig",
        made: MadeEnv | MadeHostEnv,
        num_envs: int,
        hooks: RunnerHooks,
    ) -> None:
        self._config, self._made, self._num_envs, self._hooks = config, made, num_envs, hooks
        self._runner: EnvRunner | None = None
        self._weights: Weights | None = None

    @property
    def runner(self) -> "EnvRunner":
        """Runner with the latest published weights."""
        from jaxrl.runners.env_runner import make_env_runner

        if self._runner is None:
            self._runner = make_env_runner(
                self._config,
                made=self._made,
                num_envs=self._num_envs,
                first_env_index=0,
                hooks=self._hooks,
            )
            if self._weights is not None:
                self._runner.set_weights(self._weights)
        return self._runner

    @property
    def local_config(self) -> "AlgorithmConfig":
        """Config of the runner, or the one that it will have."""
        return self._config if self._runner is None else self._runner.config

    def sync_weights(self, weights: Weights) -> None:
        """Set the weights of the runner."""
        self._weights = weights
        if self._runner is not None:
            self._runner.set_weights(weights)

    def foreach_env_runner(
        self,
        func: Callable[[Any], Any] | str,
        *,
        kwargs: dict[str, Any] | None = None,
        local_env_runner: bool = True,
    ) -> list[Any]:
        """Call a function, or the method of a name, on the only runner, which is a local one."""
        return [call_runner(self.runner, func, kwargs)] if local_env_runner else []

    def stop(self) -> None:
        """Close the environments; idempotent. The next use creates them again."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()


class LocalEvaluation:
    """Evaluation with a runner in this process.

    Args:
        config: Config of the evaluation.
        made: Evaluation environment.
        hooks: Callbacks of the runner.
    """

    def __init__(
        self, config: "AlgorithmConfig", made: MadeEnv | MadeHostEnv, hooks: RunnerHooks
    ) -> None:
        self._plan = HostEvaluationPlan.from_settings(
            config.evaluation_settings, made.max_episode_steps
        )
        self.runners = LocalEvaluationRunners(config, made, self._plan.num_envs, hooks)
        self.metrics_logger = MetricsLogger()

    def run(self, weights: Weights, seed: int, num_episodes: int | None) -> dict[str, Any]:
        """Run one evaluation; see `Evaluation.run`."""
        plan = self._plan.with_num_episodes(num_episodes)
        self.runners.sync_weights(weights)
        try:
            parts = [self.runners.runner.run_episodes(share) for share in plan.make_shares(seed)]
        except BaseException:
            self.runners.stop()  # the environments may be in the middle of a step
            raise
        return aggregate_parts(parts, plan, self.metrics_logger)

    def stop(self) -> None:
        """Close the environments; idempotent."""
        self.runners.stop()


def aggregate_parts(
    parts: Sequence[EvalEpisodes],
    plan: HostEvaluationPlan,
    metrics_logger: MetricsLogger,
    num_missing: int = 0,
    num_late: int = 0,
) -> dict[str, Any]:
    """Aggregate the results of a host evaluation; log a warning if it exceeded its time limit.

    Args:
        parts: Results that arrived in time.
        plan: Requested evaluation.
        metrics_logger: Logger that reduces the metrics logged by callbacks.
        num_missing: Number of episodes without a result.
        num_late: Number of runners without a result in time.
    """
    metrics = compute_evaluation_metrics(to_evaluation_result(parts, num_missing))
    late = num_late + sum(part.timed_out for part in parts)
    if late:
        unit = "timesteps" if plan.by_steps else "episodes"
        num_completed = metrics["num_env_steps_sampled" if plan.by_steps else "num_episodes"]
        logger.warning(
            "The evaluation reached evaluation_sample_timeout_s=%g after %d of %d %s and reports "
            "only these: set evaluation_num_env_runners=%d, a shorter evaluation_duration, or a "
            "longer evaluation_sample_timeout_s.",
            plan.timeout_s,
            num_completed,
            plan.duration,
            unit,
            2 * plan.num_runners,
        )
    restarts = sum(part.num_sub_env_restarts for part in parts)
    metrics_logger.aggregate_runners(
        (part.first_index, entry) for part in parts for entry in part.metrics
    )
    agents = compute_agent_returns(part.agents for part in parts)
    return {
        "env_runners": {**metrics_logger.reduce(), **metrics, **agents},
        "fault_tolerance": {"num_env_runners_late": late, "num_sub_env_restarts": restarts},
    }
