"""Evaluation whose transitions are recorded, stepped by a runner in this process."""

import dataclasses
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Bool, Int

from jaxrl.assembly.assemble import make_env
from jaxrl.core.types import Columns, PyTree
from jaxrl.envs.registry import MadeEnv
from jaxrl.episodes.packing import episodes_from_rollout
from jaxrl.episodes.single_agent import SingleAgentEpisode
from jaxrl.errors import RunFolderError
from jaxrl.evaluation.host import HostEvaluationPlan, aggregate_parts
from jaxrl.runners.env_runner import make_env_runner
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.hooks import NoHooks
from jaxrl.runners.metrics_logger import MetricsLogger
from jaxrl.runners.quotas import EpisodePlayer, EvalShare, play_share

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

EPISODE_ID, TIME = "eps_id", "t"
NEXT_OBS = "new_obs"


def record_rollouts(
    config: "AlgorithmConfig",
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
        recorder = _RecordingPlayer(runner)
        played = play_share(recorder, share, can_pause=runner.vector.can_pause)
    finally:
        runner.close()
    result = aggregate_parts([played], plan, MetricsLogger())
    return result, _select_episodes(recorder.fragments, share)


class _RecordingPlayer:
    """Runner that keeps the fragments it samples."""

    def __init__(self, runner: EpisodePlayer) -> None:
        self._runner = runner
        self.num_envs, self.metrics = runner.num_envs, runner.metrics
        self.tracker = runner.tracker
        self.fragments: list[Fragment] = []

    def restart(self, seed: int, env_index: Int[np.ndarray, " B"]) -> None:
        self._runner.restart(seed, env_index)

    def pause(self, paused: Bool[np.ndarray, " B"]) -> None:
        self._runner.pause(paused)

    def sample_fragment(self, num_steps: int) -> Fragment:
        self.fragments.append(self._runner.sample_fragment(num_steps))
        return self.fragments[-1]


def _select_episodes(fragments: list[Fragment], share: EvalShare) -> list[SingleAgentEpisode]:
    """Return the episodes of a share, without what was sampled beyond it."""
    rollouts = [dataclasses.replace(f.rollout, extras={}, carry_in=None) for f in fragments]
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
