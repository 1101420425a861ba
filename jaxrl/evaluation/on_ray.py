"""Evaluation by actors of its own, in turns with training or beside it."""

import dataclasses
import logging
import math
import threading
import time
from typing import TYPE_CHECKING, Any

from jaxrl.assembly.assemble import Assembly
from jaxrl.errors import EnvRunnerError
from jaxrl.evaluation.host import HostPlan, host_result
from jaxrl.runners.fragment import Weights
from jaxrl.runners.hooks import RunnerHooks
from jaxrl.runners.metrics_logger import MetricsLogger
from jaxrl.runners.quotas import CHUNK, Played, Share
from jaxrl.runners.ray.group import GroupShape, RayEnvRunnerGroup
from jaxrl.runners.ray.rounds import EvaluationRound

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

logger = logging.getLogger("jaxrl")

_GRACE_S = 10.0
"""Runners end by themselves when the time is over; so much later none is waited for."""
_LOOK_S = 0.2
"""The longest wait before it is looked whether everything is to end."""
_AIM_S = 0.5
"""How long one request beside training is aimed to take: so much longer it may last at the end."""


class RayEvaluation:
    """Evaluates with a group of actors.

    Args:
        config: The evaluation's.
        assembly: Of the evaluation's environment.
        hooks: Told of runners that were started again; those of episodes are called in the actors.

    Raises:
        ConfigError: The settings do not fit, or Ray has not the resources.
        EnvRunnerError: A runner cannot start.
    """

    def __init__(self, config: "AlgorithmConfig", assembly: Assembly, hooks: RunnerHooks) -> None:
        self._settings = config.evaluation_settings
        self._plan = HostPlan.of(config, assembly.made)
        timeout_s = self._plan.timeout_s
        self._grace_s = min(_GRACE_S, timeout_s)
        shape = GroupShape(
            num_env_runners=self._plan.num_runners,
            num_envs=self._plan.num_envs,
            seed=config.debugging_settings.seed,
            count_setting="evaluation_num_env_runners",
            sample_timeout_s=timeout_s + self._grace_s,
        )
        self.runners = RayEnvRunnerGroup(config, assembly, hooks, shape)
        self._logged = MetricsLogger()
        self._skips = 0
        self._stopping = threading.Event()

    # --- one evaluation ---

    def run(self, weights: Weights, seed: int, num_episodes: int | None) -> dict[str, Any]:
        """One evaluation; see `Evaluation.run`."""
        plan = self._plan.of_episodes(num_episodes)
        shares = plan.shares(seed)
        parts = self._collect(self._begin(weights, shares), plan.timeout_s)
        heard = self._heard_of(parts)
        missing = 0
        if not plan.by_steps:
            asked = sum(sum(share.episodes or ()) for share in shares)
            missing = asked - sum(len(part.episode_return) + part.num_cut for part in parts)
        late = len(shares) - len(parts) if heard else 0
        return self._with_health(host_result(parts, plan, self._logged, missing, late))

    def run_beside(
        self, weights: Weights, seed: int, training_is_done: threading.Event
    ) -> dict[str, Any]:
        """Evaluate for as long as training takes, each runner going on with its episodes."""
        parts: list[Played] = []
        latest: list[Played] = []
        steps, goes_on = self._steps_per_env(None), False
        while not goes_on or not (training_is_done.is_set() or self._stopping.is_set()):
            share = self._timed_share(seed, steps, goes_on)
            shares = [
                dataclasses.replace(share, first_index=runner * self._plan.num_envs)
                for runner in range(self._plan.num_runners)
            ]
            begin = time.perf_counter()
            latest = self._collect(self._begin(weights, shares), self._plan.timeout_s)
            if not latest:
                break
            # Episodes that are cut now may end in the next part.
            parts += [dataclasses.replace(part, num_cut=0) for part in latest]
            rate = sum(part.env_steps for part in latest) / (time.perf_counter() - begin)
            steps, goes_on = self._steps_per_env(rate), True
        self._heard_of(parts)
        plan = dataclasses.replace(
            self._plan, by_steps=True, total=sum(part.env_steps for part in parts)
        )
        num_cut = sum(part.num_cut for part in latest)
        return self._with_health(host_result(parts, plan, self._logged, num_cut))

    def _timed_share(self, seed: int, steps: int, goes_on: bool) -> Share:
        return Share(
            seed=seed,
            first_index=0,
            episodes=None,
            steps=(steps,) * self._plan.num_envs,
            timeout_s=self._plan.timeout_s,
            goes_on=goes_on,
        )

    def _steps_per_env(self, rate: float | None) -> int:
        """Of one request: as many as take half a second at a rate of steps, within the settings."""
        least = self._settings.evaluation_auto_duration_min_env_steps_per_sample
        most = self._settings.evaluation_auto_duration_max_env_steps_per_sample
        envs = self._plan.num_envs
        wanted = least if rate is None else _AIM_S * rate / self._plan.num_runners
        steps = math.ceil(min(max(wanted, least), most) / envs)
        high = max(1, most // envs)
        # Whole chunks, because every other length would be compiled for.
        return min(-(-steps // CHUNK), high // CHUNK) * CHUNK or min(steps, high)

    # --- the round trip ---

    def _begin(self, weights: Weights, shares: list[Share]) -> EvaluationRound:
        requests = [{"share": share} for share in shares]
        return self.runners.evaluate_async(weights, "run_episodes", requests)

    def _collect(self, asked: EvaluationRound, timeout_s: float) -> list[Played]:
        """What comes in time; a share whose runner fails is played by another."""
        begin = time.perf_counter()
        healthy = self.runners.num_healthy_env_runners > 0
        limit = timeout_s + self._grace_s
        if not healthy:
            limit = self._settings.evaluation_unhealthy_workers_timeout_s
        while True:
            left = limit - (time.perf_counter() - begin)
            parts = asked.collect(min(max(left, 0.0), _LOOK_S))
            if asked.is_done or self._stopping.is_set():
                return parts
            if not healthy and self.runners.num_healthy_env_runners > 0:
                healthy, limit = True, limit + timeout_s + self._grace_s
            if left <= 0:
                return parts

    def _heard_of(self, parts: list[Played]) -> bool:
        """Whether anything was done; evaluations in a row without that are counted.

        Raises:
            EnvRunnerError: They are as many as evaluation_error_after_n_consecutive_skips.
        """
        if parts or self.runners.num_healthy_env_runners > 0:
            self._skips = 0
            return True
        self._skips += 1
        most = self._settings.evaluation_error_after_n_consecutive_skips
        sentence = (
            f"No evaluation runner is healthy, so evaluation is skipped for the {self._skips}. "
            "time in a row"
        )
        if most is not None and self._skips >= most:
            raise EnvRunnerError(
                f"{sentence}, which evaluation_error_after_n_consecutive_skips={most} does not "
                "allow; wait longer with evaluation_unhealthy_workers_timeout_s, or see why they "
                "fail in evaluation/fault_tolerance/restarts."
            )
        logger.warning("%s.", sentence)
        return False

    def _with_health(self, result: dict[str, Any]) -> dict[str, Any]:
        health = self.runners.metrics()["fault_tolerance"]
        names = ("num_healthy_env_runners", "num_env_runner_restarts", "restarts")
        faults = {
            **result["fault_tolerance"],
            **{name: health[name] for name in names},
            "num_consecutive_skips": self._skips,
        }
        return {**result, "fault_tolerance": faults}

    def stop(self) -> None:
        """End the actors; may be called twice."""
        self._stopping.set()
        self.runners.stop()
