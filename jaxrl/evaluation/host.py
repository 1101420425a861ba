"""Evaluation in environments on the host: how it is shared out, and how it is put together again."""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.registry import MadeEnv
from jaxrl.errors import ConfigError
from jaxrl.runners.fragment import Weights
from jaxrl.runners.hooks import RunnerHooks
from jaxrl.runners.metrics_logger import MetricsLogger
from jaxrl.runners.quotas import Played, Share, as_result, of_runner, quotas
from jaxrl.training.evaluate import DEFAULT_STEP_CAP, EPISODES_BY_STEPS
from jaxrl.training.report import evaluation_metrics

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig
    from jaxrl.runners.env_runner import EnvRunner

logger = logging.getLogger("jaxrl")

MAX_HOST_ENVS = 8
"""Environments of one runner, if nothing is set: each is an object, and may be a large one."""
DEFAULT_EPISODES = 10
"""Of an evaluation that is asked for by itself where the duration is that of training."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostPlan:
    """How much one evaluation is, and over how many environments it is spread.

    Args:
        total: Episodes or steps.
        by_steps: Which of them.
        limit: Steps of the longest episode.
        num_runners: How many runners.
        num_envs: Environments of each.
        timeout_s: Of the whole evaluation.
    """

    total: int
    by_steps: bool
    limit: int
    num_runners: int
    num_envs: int
    timeout_s: float

    @staticmethod
    def of(config: "AlgorithmConfig", made: MadeEnv | MadeHostEnv) -> "HostPlan":
        """What an evaluation config asks for.

        Raises:
            ConfigError: The environments cannot be shared equally among the runners.
        """
        settings = config.evaluation_settings
        runners, duration = max(1, settings.evaluation_num_env_runners), _duration(config)
        limit = made.max_episode_steps or DEFAULT_STEP_CAP
        by_steps = settings.evaluation_duration_unit == "timesteps"
        envs = settings.evaluation_num_envs
        if envs == "auto":
            # By steps each needs room for several episodes, or short ones are favoured.
            least = EPISODES_BY_STEPS * limit if by_steps else 1
            share = -(-duration // runners)
            fitting = (n for n in range(2, MAX_HOST_ENVS + 1) if share % n == 0)
            each = max((n for n in fitting if share // n >= least), default=1)
        elif envs % runners:
            raise ConfigError(
                f"evaluation_num_envs={envs} are spread over evaluation_num_env_runners={runners}, "
                f"which must divide them; use {-(-envs // runners) * runners}, or 'auto'."
            )
        else:
            each = envs // runners
        return HostPlan(
            total=duration,
            by_steps=by_steps,
            limit=limit,
            num_runners=runners,
            num_envs=each,
            timeout_s=settings.evaluation_sample_timeout_s,
        )

    def of_episodes(self, num_episodes: int | None) -> "HostPlan":
        """The same with another number of episodes; None changes nothing."""
        if num_episodes is None:
            return self
        return dataclasses.replace(self, total=num_episodes, by_steps=False)

    def shares(self, seed: int) -> list[Share]:
        """What each runner plays; one that would have nothing to do is left out."""
        every = quotas(self.total, self.num_runners * self.num_envs)
        shares: list[Share] = []
        for runner in range(self.num_runners):
            own = of_runner(every, runner, self.num_envs)
            if not any(own):
                continue
            shares.append(
                Share(
                    seed=seed,
                    first_index=runner * self.num_envs,
                    episodes=None if self.by_steps else own,
                    steps=own if self.by_steps else tuple(n * self.limit for n in own),
                    timeout_s=self.timeout_s,
                )
            )
        return shares


def _duration(config: "AlgorithmConfig") -> int:
    duration = config.evaluation_settings.evaluation_duration
    return DEFAULT_EPISODES if duration == "auto" else duration


class EvaluationRunners(Protocol):
    """The runners of an evaluation, as a `custom_evaluation_function` gets them."""

    @property
    def num_healthy_env_runners(self) -> int:
        """Runners that answer in time."""
        ...

    def foreach_env_runner(self, fn: Callable[[Any], Any]) -> list[Any]:
        """What a function of each runner returns."""
        ...


class LocalRunners:
    """The one runner of an evaluation in this process, made when it is first needed.

    Args:
        config: The evaluation's.
        made: Its environment.
        num_envs: Copies of it.
        hooks: What to call on the way.
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
        """The runner, with the weights that were published last."""
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

    def publish(self, weights: Weights) -> None:
        """The weights to act with from now on."""
        self._weights = weights
        if self._runner is not None:
            self._runner.set_weights(weights)

    def foreach_env_runner(self, fn: Callable[[Any], Any]) -> list[Any]:
        """What a function of the runner returns."""
        return [fn(self.runner)]

    def stop(self) -> None:
        """Close the environments; may be called twice, and the next use makes them anew."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()


class LocalEvaluation:
    """Evaluates with a runner in this process.

    Args:
        config: The evaluation's.
        made: Its environment.
        hooks: What to call on the way.
    """

    def __init__(
        self, config: "AlgorithmConfig", made: MadeEnv | MadeHostEnv, hooks: RunnerHooks
    ) -> None:
        self._plan = HostPlan.of(config, made)
        self.runners = LocalRunners(config, made, self._plan.num_envs, hooks)
        self._logged = MetricsLogger()

    def run(self, weights: Weights, seed: int, num_episodes: int | None) -> dict[str, Any]:
        """One evaluation; see `Evaluation.run`."""
        plan = self._plan.of_episodes(num_episodes)
        self.runners.publish(weights)
        try:
            parts = [self.runners.runner.run_episodes(share) for share in plan.shares(seed)]
        except BaseException:
            self.runners.stop()  # whatever it was in the middle of
            raise
        return host_result(parts, plan, self._logged)

    def stop(self) -> None:
        """Close the environments; may be called twice."""
        self.runners.stop()


def host_result(
    parts: Sequence[Played],
    plan: HostPlan,
    logged: MetricsLogger,
    num_missing: int = 0,
    num_late: int = 0,
) -> dict[str, Any]:
    """The result of an evaluation on the host, with a warning if its time was too short.

    Args:
        parts: What was heard of.
        plan: What was asked for.
        logged: Reduces what callbacks logged.
        num_missing: Episodes that nothing was heard of.
        num_late: Runners that nothing was heard of in time.
    """
    metrics = evaluation_metrics(as_result(parts, num_missing))
    late = num_late + sum(part.timed_out for part in parts)
    if late:
        unit = "timesteps" if plan.by_steps else "episodes"
        done = metrics["num_env_steps_sampled" if plan.by_steps else "num_episodes"]
        logger.warning(
            "evaluation_sample_timeout_s=%g seconds were over after %d of %d %s, which are what "
            "this evaluation reports: set evaluation_num_env_runners=%d, a shorter "
            "evaluation_duration, or a longer evaluation_sample_timeout_s.",
            plan.timeout_s,
            done,
            plan.total,
            unit,
            2 * plan.num_runners,
        )
    restarts = sum(part.num_sub_env_restarts for part in parts)
    logged.merge(entry for part in parts for entry in part.metrics)
    return {
        "env_runners": {**logged.reduce(), **metrics},
        "fault_tolerance": {"num_env_runners_late": late, "num_sub_env_restarts": restarts},
    }
