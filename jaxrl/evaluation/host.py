"""Evaluation in host environments: division among runners, and aggregation of their results."""

import dataclasses
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import jax
import numpy as np

from jaxrl.assembly.assemble import make_env
from jaxrl.core.types import Columns, PyTree
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.registry import MadeEnv
from jaxrl.episodes.packing import episodes_from_rollout
from jaxrl.episodes.single_agent import SingleAgentEpisode
from jaxrl.errors import ConfigError, RunFolderError
from jaxrl.evaluation.compiled import choose_num_envs
from jaxrl.runners.env_runner import make_env_runner
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.hooks import NoHooks, RunnerHooks
from jaxrl.runners.metrics_logger import MetricsLogger
from jaxrl.runners.multi.tally import compute_agent_returns
from jaxrl.runners.protocols import call_runner
from jaxrl.runners.quotas import (
    EvalEpisodes,
    EvalShare,
    play_share,
    slice_for_runner,
    split_evenly,
    to_evaluation_result,
)
from jaxrl.training.evaluate import DEFAULT_MAX_EPISODE_STEPS, MIN_EPISODES_PER_ENV
from jaxrl.training.report import compute_evaluation_metrics

if TYPE_CHECKING:
    from jaxrl.config.config import Config
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
        config: "Config",
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
    def local_config(self) -> "Config":
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

    def __init__(self, config: "Config", made: MadeEnv | MadeHostEnv, hooks: RunnerHooks) -> None:
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


EPISODE_ID, TIME = "eps_id", "t"
NEXT_OBS = "new_obs"


def record_rollouts(
    config: "Config",
    weights: Weights,
    num_episodes: int | None = None,
    env_params: PyTree = None,
) -> tuple[dict[str, Any], list[SingleAgentEpisode]]:
    """Evaluate a policy and return the result and the episodes that it counts.

    In an evaluation by timesteps, the last episode of each environment may not be complete.

    Args:
        config: Config of the evaluation; see `get_evaluation_config_object`.
        weights: Weights of the policy.
        num_episodes: Number of episodes; None for the configured duration.
        env_params: Parameters of a JAX environment; None for its defaults.
    """
    made = make_env(config)
    if env_params is not None and isinstance(made, MadeEnv):
        made = dataclasses.replace(made, params=env_params)
    settings, limit = config.evaluation_settings, made.max_episode_steps
    plan = HostEvaluationPlan.from_settings(settings, limit).with_num_episodes(num_episodes)
    plan = dataclasses.replace(plan, num_runners=1)  # in this process
    runner = make_env_runner(
        config, made=made, num_envs=plan.num_envs, first_env_index=0, hooks=NoHooks()
    )
    try:
        runner.set_weights(weights)
        (share,) = plan.make_shares(config.debugging_settings.run_seed)
        fragments: list[Fragment] = []
        played = play_share(runner, share, can_pause=runner.can_pause, keep=fragments.append)
    finally:
        runner.close()
    result = aggregate_parts([played], plan, MetricsLogger())
    return result, _select_episodes(fragments, share)


def _select_episodes(sampled: list[Fragment], share: EvalShare) -> list[SingleAgentEpisode]:
    """Return the episodes of a share, without what was sampled beyond it."""
    rollouts = [dataclasses.replace(f.rollout, extras={}, carry_in=None) for f in sampled]
    whole = jax.tree.map(lambda *parts: np.concatenate(parts), *rollouts)
    selected: list[SingleAgentEpisode] = []
    for column in range(whole.mask.shape[1]):
        own = jax.tree.map(lambda leaf, b=column: leaf[:, b : b + 1], whole)
        episodes = episodes_from_rollout(own)
        if share.episodes is not None:
            done = [episode for episode in episodes if episode.is_done]
            selected += done[: share.episodes[column]]
            continue
        left = share.steps[column]
        for episode in episodes:
            kept = min(left, len(episode))
            if kept:
                selected.append(episode[:kept] if kept < len(episode) else episode)
            left -= kept
    return selected


def write_rollouts(path: Path, episodes: list[SingleAgentEpisode]) -> None:
    """Write the transitions of episodes to an npz file, with a row for each.

    The arrays have RLlib's column names: `obs`, `actions`, `rewards`, `terminateds`, `truncateds`,
    `new_obs`, `eps_id` and `t`. A part of a nested space is an array such as `obs/position`.
    Observations and rewards are those of the environment, actions those of the module, before they
    are unsquashed or clipped.

    Args:
        path: Path of the file, which is replaced.
        episodes: Episodes, at least one.

    Raises:
        RunFolderError: If the file cannot be written.
    """
    columns: dict[str, list[np.ndarray]] = {}
    for number, episode in enumerate(episodes):
        for name, rows in _get_columns(number, episode).items():
            columns.setdefault(name, []).append(rows)
    arrays = {name: np.concatenate(parts) for name, parts in columns.items()}
    try:
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez_compressed(file, allow_pickle=False, **arrays)
            os.chmod(partial, 0o644)
            os.replace(partial, path)
        except BaseException:
            os.unlink(partial)
            raise
    except OSError as error:
        raise RunFolderError(f"Cannot write {path}: {error.strerror or error}.") from error


def _get_columns(number: int, episode: SingleAgentEpisode) -> dict[str, np.ndarray]:
    """Return the transitions of an episode by column."""
    steps = len(episode)
    is_last = np.arange(steps) == steps - 1
    observations = _flatten(Columns.OBS, episode.get_observations())
    return {
        **{name: rows[:-1] for name, rows in observations.items()},
        **_flatten(Columns.ACTIONS, episode.get_actions()),
        Columns.REWARDS: np.asarray(episode.get_rewards(), np.float32),
        Columns.TERMINATEDS: is_last & episode.is_terminated,
        Columns.TRUNCATEDS: is_last & episode.is_truncated,
        **{
            NEXT_OBS + name.removeprefix(Columns.OBS): rows[1:]
            for name, rows in observations.items()
        },
        EPISODE_ID: np.full(steps, number, np.int64),
        TIME: np.arange(steps, dtype=np.int64),
    }


def _flatten(name: str, tree: PyTree) -> dict[str, np.ndarray]:
    """Return the arrays of a tree by path, such as `obs/position`."""
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {
        "/".join(filter(None, (name, jax.tree_util.keystr(path, simple=True, separator="/")))): (
            np.asarray(leaf)
        )
        for path, leaf in paths
    }
