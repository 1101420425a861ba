"""Evaluation by dedicated Ray actors, alternating with training or parallel to it."""

import dataclasses
import logging
import math
import threading
import time
from typing import TYPE_CHECKING, Any

from jaxrl.assembly.assemble import Assembly
from jaxrl.errors import EnvRunnerError
from jaxrl.evaluation.host import HostEvaluationPlan, aggregate_parts
from jaxrl.runners.fragment import Weights
from jaxrl.runners.hooks import RunnerHooks
from jaxrl.runners.metrics_logger import MetricsLogger
from jaxrl.runners.quotas import CHUNK_STEPS, EvalEpisodes, EvalShare
from jaxrl.runners.ray.fleet import EvaluationRound
from jaxrl.runners.ray.group import GroupShape, RayEnvRunnerGroup

if TYPE_CHECKING:
    from jaxrl.config.config import Config

logger = logging.getLogger("jaxrl")

_GRACE_S = 10.0
"""Seconds to wait for runners after the time limit, at which they end by themselves."""
_POLL_S = 0.2
"""Maximum number of seconds between checks for a stop request."""
_TARGET_REQUEST_S = 0.5
"""Target seconds of a request parallel to training, by which an evaluation may outlast training."""


class RayEvaluation:
    """Evaluation with a group of actors.

    Args:
        config: Config of the evaluation.
        assembly: Functions with the evaluation environment.
        hooks: Callbacks for restarted runners; episode callbacks are called in the actors.

    Raises:
        ConfigError: If the settings are inconsistent, or Ray lacks the resources.
        EnvRunnerError: If a runner cannot start.
    """

    def __init__(self, config: "Config", assembly: Assembly, hooks: RunnerHooks) -> None:
        self._settings = config.evaluation_settings
        self._plan = HostEvaluationPlan.from_settings(
            self._settings, assembly.made.max_episode_steps
        )
        timeout_s = self._plan.timeout_s
        self._grace_s = min(_GRACE_S, timeout_s)
        shape = GroupShape(
            num_env_runners=self._plan.num_runners,
            num_envs=self._plan.num_envs,
            seed=config.debugging_settings.run_seed,
            count_setting="evaluation_num_env_runners",
            sample_timeout_s=timeout_s + self._grace_s,
        )
        self.runners = RayEnvRunnerGroup(config, assembly, hooks, shape)
        self.metrics_logger = MetricsLogger()
        self._num_skips = 0
        self._stopping = threading.Event()

    # --- one evaluation ---

    def run(self, weights: Weights, seed: int, num_episodes: int | None) -> dict[str, Any]:
        """Run one evaluation; see `Evaluation.run`."""
        plan = self._plan.with_num_episodes(num_episodes)
        shares = plan.make_shares(seed)
        parts = self._collect(self._send(weights, shares), plan.timeout_s)
        is_evaluated = self._count_skips(parts)
        num_missing = 0
        if not plan.by_steps:
            requested = sum(sum(share.episodes or ()) for share in shares)
            num_missing = requested - sum(len(p.episode_return) + p.num_cut for p in parts)
        num_late = len(shares) - len(parts) if is_evaluated else 0
        result = aggregate_parts(parts, plan, self.metrics_logger, num_missing, num_late)
        return self._add_health(result)

    def run_parallel(
        self, weights: Weights, seed: int, is_training_done: threading.Event
    ) -> dict[str, Any]:
        """Evaluate for as long as training takes; episodes continue from request to request."""
        parts: list[EvalEpisodes] = []
        latest: list[EvalEpisodes] = []
        steps, continues = self._choose_steps_per_env(None), False
        while not continues or not (is_training_done.is_set() or self._stopping.is_set()):
            share = self._make_share(seed, steps, continues)
            shares = [
                dataclasses.replace(share, first_index=runner * self._plan.num_envs)
                for runner in range(self._plan.num_runners)
            ]
            begin = time.perf_counter()
            latest = self._collect(self._send(weights, shares), self._plan.timeout_s)
            if not latest:
                break
            # Episodes that are unfinished now may end in the next request.
            parts += [dataclasses.replace(part, num_cut=0) for part in latest]
            rate = sum(part.env_steps for part in latest) / (time.perf_counter() - begin)
            steps, continues = self._choose_steps_per_env(rate), True
        self._count_skips(parts)
        plan = dataclasses.replace(
            self._plan, by_steps=True, duration=sum(part.env_steps for part in parts)
        )
        num_cut = sum(part.num_cut for part in latest)
        return self._add_health(aggregate_parts(parts, plan, self.metrics_logger, num_cut))

    def _make_share(self, seed: int, steps: int, continues: bool) -> EvalShare:
        return EvalShare(
            seed=seed,
            first_index=0,
            episodes=None,
            steps=(steps,) * self._plan.num_envs,
            timeout_s=self._plan.timeout_s,
            is_continuation=continues,
        )

    def _choose_steps_per_env(self, rate: float | None) -> int:
        """Return the steps per environment of a request.

        Args:
            rate: Steps per second of all runners; None before the first request.
        """
        min_steps = self._settings.evaluation_auto_duration_min_env_steps_per_sample
        max_steps = self._settings.evaluation_auto_duration_max_env_steps_per_sample
        envs = self._plan.num_envs
        target = min_steps if rate is None else _TARGET_REQUEST_S * rate / self._plan.num_runners
        steps = math.ceil(min(max(target, min_steps), max_steps) / envs)
        upper = max(1, max_steps // envs)
        # Whole chunks, because every other length would compile another program.
        return min(-(-steps // CHUNK_STEPS), upper // CHUNK_STEPS) * CHUNK_STEPS or min(
            steps, upper
        )

    # --- requests ---

    def _send(self, weights: Weights, shares: list[EvalShare]) -> EvaluationRound:
        requests = [{"share": share} for share in shares]
        return self.runners.evaluate_async(weights, "run_episodes", requests)

    def _collect(self, pending: EvaluationRound, timeout_s: float) -> list[EvalEpisodes]:
        """Return the parts that arrive in time; a failed runner's share is played by another."""
        begin = time.perf_counter()
        is_healthy = self.runners.num_healthy_env_runners > 0
        limit = timeout_s + self._grace_s
        if not is_healthy:
            limit = self._settings.evaluation_unhealthy_workers_timeout_s
        while True:
            remaining = limit - (time.perf_counter() - begin)
            parts = pending.collect(min(max(remaining, 0.0), _POLL_S))
            if pending.is_done or self._stopping.is_set():
                return parts
            if not is_healthy and self.runners.num_healthy_env_runners > 0:
                is_healthy, limit = True, limit + timeout_s + self._grace_s
            if remaining <= 0:
                return parts

    def _count_skips(self, parts: list[EvalEpisodes]) -> bool:
        """Return whether the evaluation took place; count consecutive ones that did not.

        Raises:
            EnvRunnerError: If `evaluation_error_after_n_consecutive_skips` is reached.
        """
        if parts or self.runners.num_healthy_env_runners > 0:
            self._num_skips = 0
            return True
        self._num_skips += 1
        max_skips = self._settings.evaluation_error_after_n_consecutive_skips
        message = (
            "No evaluation runner is healthy, so evaluation is skipped "
            f"({self._num_skips} consecutive skips)"
        )
        if max_skips is not None and self._num_skips >= max_skips:
            raise EnvRunnerError(
                f"{message}, which evaluation_error_after_n_consecutive_skips={max_skips} does not "
                "allow; wait longer with evaluation_unhealthy_workers_timeout_s, or see why they "
                "fail in evaluation/fault_tolerance/restarts."
            )
        logger.warning("%s.", message)
        return False

    def _add_health(self, result: dict[str, Any]) -> dict[str, Any]:
        health = self.runners.get_metrics()["fault_tolerance"]
        names = ("num_healthy_env_runners", "num_env_runner_restarts", "restarts")
        faults = {
            **result["fault_tolerance"],
            **{name: health[name] for name in names},
            "num_consecutive_skips": self._num_skips,
        }
        return {**result, "fault_tolerance": faults}

    def stop(self) -> None:
        """Stop the actors; idempotent."""
        self._stopping.set()
        self.runners.stop()
