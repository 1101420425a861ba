"""Episodes that a runner plays on request, for functions of the user's own."""

import dataclasses
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import gymnasium
import jax
import numpy as np
from gymnasium.vector.utils import batch_space
from jaxtyping import Bool, UInt32

from jaxrl.compat.lookup import RLlibNames
from jaxrl.connectors.pipelines import ActionPipeline
from jaxrl.core.types import Device, PyTree
from jaxrl.episodes import MultiAgentEpisode, SingleAgentEpisode
from jaxrl.errors import ConfigError, EnvError
from jaxrl.runners.episode_tracker import TrackerBase
from jaxrl.runners.fragment import Fragment
from jaxrl.runners.metrics_logger import LoggedMetrics, MetricsLogger
from jaxrl.runners.quotas import CHUNK_STEPS, split_evenly

if TYPE_CHECKING:
    from jaxrl.config.config import Config
    from jaxrl.policy.policy import Policy

MAX_EPISODE_STEPS = 100_000
"""Maximum steps to wait for the end of an episode if the environment has no time limit."""

Episode = TypeVar("Episode", SingleAgentEpisode, MultiAgentEpisode)
Tracker = TypeVar("Tracker", bound=TrackerBase[Any, Any])


class RandomActions:
    """Random actions of one module for rows of agents, as its action space draws them.

    Args:
        pipeline: Connectors from the module's actions to the environment's.
        num_rows: Number of agents.
        seed: Seed of the draws.
        device: Device on which connectors are computed.
    """

    def __init__(self, pipeline: ActionPipeline, num_rows: int, seed: int, device: Device) -> None:
        self._pipeline, self._device = pipeline, device
        self._space: gymnasium.Space[Any] = batch_space(pipeline.module_space, num_rows)
        self._space.seed(seed)

    def draw(self) -> tuple[PyTree, PyTree]:
        """Return actions of the environment and of the module, `[rows, ...]`."""
        action = self._space.sample()
        with jax.default_device(self._device):
            return jax.tree.map(np.array, self._pipeline(action)), action


@dataclasses.dataclass(kw_only=True)
class _Played:
    """Sums of an episode, or of its chunks so far."""

    total: float = 0.0
    length: int = 0
    seconds: float = 0.0
    agents: dict[tuple[str, str], float] = dataclasses.field(
        default_factory=dict[tuple[str, str], float]
    )
    """Returns by agent and module."""


class EpisodeSampler(RLlibNames, Generic[Episode, Tracker]):
    """Base class of runners, whose `sample` plays episodes by RLlib's arguments.

    Attributes:
        config: Config of the run or of its evaluation.
        num_envs: Number of environments.
        metrics: Logger of the values that callbacks log.
        tracker: Builder of the episodes that callbacks need; None without such callbacks.
    """

    _rllib_kind = "env_runner"

    config: "Config"
    num_envs: int
    metrics: MetricsLogger
    tracker: Tracker | None
    _transition_count: UInt32[np.ndarray, " B"]
    _next_number: int
    _max_episode_steps: int | None = None
    _needs_reset = False
    _samples_randomly = False
    """True if the actions of ongoing episodes are random."""

    def __init__(self) -> None:
        self._kept_tracker: tuple[Tracker, np.ndarray] | None = None
        self._sampled = MetricsLogger()
        self._unfinished: dict[str, _Played] = {}

    def sample_fragment(self, num_steps: int) -> Fragment:
        """Sample the next `num_steps` steps of every environment."""
        raise NotImplementedError

    @property
    def policy_map(self) -> "Mapping[str, Policy]":
        """Policies by id with the weights to act with, to read.

        Raises:
            ConfigError: If the runner has no weights yet.
        """
        raise NotImplementedError

    def get_weights(self) -> dict[str, PyTree]:
        """Return the parameters to act with as NumPy copies, by module, as RLlib's runners do."""
        return {m: policy.get_weights() for m, policy in self.policy_map.items()}

    def pause(self, paused: Bool[np.ndarray, " B"]) -> None:
        """Pause the marked environments and resume all others."""
        raise NotImplementedError

    def _begin_episodes_if_due(self) -> None:
        """Reset the environments if they are new, or were left behind by `sample`."""
        raise NotImplementedError

    @property
    def _can_pause(self) -> bool:
        """Ability to pause single environments."""
        return True

    def _make_tracker(self) -> Tracker:
        """Make a tracker without hooks, of the episodes that go on."""
        raise NotImplementedError

    def _set_acting(self, explore: bool | None, random_actions: bool) -> None:
        """Set how to act: as configured if both are None and False."""
        raise NotImplementedError

    def sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool | None = None,
        random_actions: bool = False,
        force_reset: bool = False,
    ) -> list[Episode]:
        """Play timesteps or episodes with the current weights and return them as episodes.

        Without a number, as many steps as in a fragment of `rollout_fragment_length` are played in
        every environment, or an episode in each with batch_mode="complete_episodes".

        Args:
            num_timesteps: Number of steps of all environments together, rounded up to a multiple
                of the number of environments. The last episodes may be chunks, which the next call
                continues.
            num_episodes: Number of episodes, from new resets, divided evenly among the
                environments.
            explore: Whether to explore; None for the config's value.
            random_actions: Whether to draw actions from the action space instead.
            force_reset: Whether to begin new episodes in all environments first, as after a change
                of `random_actions`.

        Raises:
            ConfigError: If both numbers are given, or one is negative.
            EnvError: If an episode does not end.
        """
        if num_timesteps is not None and num_episodes is not None:
            raise ConfigError(
                f"sample() plays timesteps or episodes, got num_timesteps={num_timesteps} and "
                f"num_episodes={num_episodes}; leave one of them out."
            )
        for name, value in (("num_timesteps", num_timesteps), ("num_episodes", num_episodes)):
            if value is not None and value < 0:
                raise ConfigError(f"{name} of sample() must be at least 0, got {value}.")
        if num_timesteps is None and num_episodes is None:
            if self.config.env_runners_settings.batch_mode == "complete_episodes":
                num_episodes = self.num_envs
            else:
                num_timesteps = self.config.get_rollout_fragment_length() * self.num_envs
        if force_reset or num_episodes is not None or random_actions != self._samples_randomly:
            self._needs_reset = True
        self._samples_randomly = random_actions
        number = self._next_number
        self._set_acting(explore, random_actions)
        try:
            with self._tracking() as tracker:
                episodes = self._play(tracker, num_timesteps, num_episodes)
        finally:
            self._set_acting(None, False)
            self._next_number = number  # its fragments are not delivered
        self._needs_reset = num_episodes is not None
        self._log(episodes)
        return episodes

    @contextmanager
    def _tracking(self) -> Generator[Tracker]:
        """Keep episodes as objects, also if no callback needs them."""
        if self.tracker is not None:
            yield self.tracker
            return
        kept = self._kept_tracker
        if kept is not None and np.array_equal(kept[1], self._transition_count):
            self.tracker = kept[0]
        else:
            self.tracker = self._make_tracker()
        try:
            yield self.tracker
            self._kept_tracker = self.tracker, self._transition_count.copy()
        finally:
            self.tracker = None

    def _play(
        self,
        tracker: Tracker,
        num_timesteps: int | None,
        num_episodes: int | None,
    ) -> list[Episode]:
        quota = None if num_episodes is None else split_evenly(num_episodes, self.num_envs)
        tracker.begin_share(quota)
        num_taken = 0
        try:
            self._begin_episodes_if_due()
            if num_timesteps is not None:
                while num_taken < num_timesteps:
                    left = -(-(num_timesteps - num_taken) // self.num_envs)
                    num_taken += self._play_chunk(min(left, CHUNK_STEPS))
            else:
                self._play_quota(tracker)
            episodes = tracker.finish_share()
            self._sampled.aggregate([self.metrics.take()])
            return episodes
        finally:
            if self._can_pause:
                self.pause(np.zeros(self.num_envs, np.bool_))
            tracker.end_share()

    def _play_quota(self, tracker: Tracker) -> None:
        """Play until every environment has ended its number of episodes."""
        limit = self._max_episode_steps or MAX_EPISODE_STEPS
        before, num_waited = tracker.num_left, 0
        while any(before):
            if self._can_pause:
                self.pause(np.array(before) == 0)
            self._play_chunk(CHUNK_STEPS)
            num_waited = num_waited + CHUNK_STEPS if tracker.num_left == before else 0
            before = tracker.num_left
            if num_waited > limit + CHUNK_STEPS:
                raise EnvError(
                    f"sample(num_episodes=...): no episode has ended after {num_waited} steps; set "
                    "max_episode_steps, or sample num_timesteps."
                )

    def _play_chunk(self, num_steps: int) -> int:
        """Play steps in every environment and return the number of transitions."""
        fragment = self.sample_fragment(num_steps)
        self._sampled.aggregate([fragment.metrics])
        return fragment.num_env_steps

    def _log(self, episodes: list[Episode]) -> None:
        """Add episodes to what `get_metrics` returns."""
        for episode in episodes:
            played = self._unfinished.pop(episode.id_, None) or _Played()
            _add_chunk(played, episode)
            self._sampled.log_value("num_env_steps_sampled", len(episode), reduce="sum")
            self._sampled.log_value("num_episodes", int(episode.is_done), reduce="sum")
            if episode.is_done:
                _log_played(self._sampled, played)
            else:
                self._unfinished[episode.id_] = played

    def get_metrics(self) -> LoggedMetrics:
        """Return means, minima and maxima of the episodes of `sample` since the last call.

        Values that callbacks logged meanwhile are among them. `algorithm.metrics.aggregate` merges
        those of several runners.
        """
        return self._sampled.take_reduced()


def _add_chunk(played: _Played, episode: SingleAgentEpisode | MultiAgentEpisode) -> None:
    played.total += episode.get_return()
    played.length += len(episode)
    played.seconds += episode.get_duration_s()
    if isinstance(episode, MultiAgentEpisode):
        for agent, own in episode.agent_episodes.items():
            name = str(agent), str(own.module_id)
            played.agents[name] = played.agents.get(name, 0.0) + own.get_return()


def _log_played(logger: MetricsLogger, played: _Played) -> None:
    for name, value in (("return", played.total), ("len", played.length)):
        logger.log_value(f"episode_{name}", value, reduce=("mean", "min", "max"))
    logger.log_value("episode_duration_sec_mean", played.seconds)
    for (agent, module), total in played.agents.items():
        logger.log_value(("agent_episode_returns_mean", agent), total)
        logger.log_value(("module_episode_returns_mean", module), total)
