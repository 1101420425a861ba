"""Base class of runners of environments in Python, whether of one agent or of several."""

import abc
import dataclasses
import functools
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector.utils import batch_space
from jaxtyping import Bool, Int

from jaxrl.assembly.env import Spaces
from jaxrl.compat.lookup import RLlibNames
from jaxrl.connectors.pipelines import ActionPipeline
from jaxrl.core.types import Device, PyTree, Rollout
from jaxrl.envs.host import HostFault
from jaxrl.episodes import MultiAgentEpisode, SingleAgentEpisode
from jaxrl.errors import ConfigError, EnvError
from jaxrl.metrics import DEFAULT_MODULE
from jaxrl.runners.env_keys import make_env_keys, make_episode_seeds
from jaxrl.runners.episode_tracker import EnvsView, TrackerBase, announce_envs, is_tracking
from jaxrl.runners.fragment import Fragment, RunnerFault, Weights
from jaxrl.runners.hooks import NoHooks, RunnerHooks
from jaxrl.runners.host_policy import Carries, HostPolicy, PrevSteps
from jaxrl.runners.metrics_logger import LoggedMetrics, MetricsLogger
from jaxrl.runners.multi.tally import AgentTally
from jaxrl.runners.protocols import make_policies
from jaxrl.runners.quotas import CHUNK_STEPS, EvalEpisodes, EvalShare, play_share, split_evenly
from jaxrl.runtime.program import Program
from jaxrl.training.episode_stats import EpisodeRecord
from jaxrl.training.multi_rollout import MultiPolicyStep, MultiRollout
from jaxrl.training.rollout import ActorState, PolicyStep

if TYPE_CHECKING:
    from jaxrl.config.config import Config
    from jaxrl.policy.policy import Policy, RunnerPolicies

MAX_EPISODE_STEPS = 100_000
"""Maximum steps to wait for the end of an episode if the environment has no time limit."""

Episode = TypeVar("Episode", SingleAgentEpisode, MultiAgentEpisode)
Tracker = TypeVar("Tracker", bound=TrackerBase[Any, Any])
Vector = TypeVar("Vector", bound=Any)
Acting = TypeVar("Acting", PolicyStep, MultiPolicyStep)
Part = TypeVar("Part")
"""Unfinished fragment."""


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


class HostRunner(RLlibNames, Generic[Episode, Tracker, Vector, Acting, Part], abc.ABC):
    """Base class of runners that step environments with one compiled call per vector step.

    A fragment continues where the previous one ended, possibly within an episode. Subclasses turn
    steps into rows. `sample` plays episodes by RLlib's arguments.

    Attributes:
        config: Config of the run or of its evaluation.
        num_envs: Number of environments.
        module: Module that acts, or those of several agents by id.
        metrics: Logger of the values that callbacks log.
        tracker: Builder of the episodes that callbacks need; None without such callbacks.

    Args:
        config: Config of the run.
        vector: Vector environment, closed together with the runner.
        policy_step: Module and connectors, or those of several agents.
        env_index: Indices of the environments among all environments of the run, `[B]`.
        worker_index: 0 for the runner of the main process, 1 and up for actors.
        num_workers: Number of actors.
        seed: Seed of the run, which together with `env_index` determines every random draw.
        explore: Whether to sample actions instead of taking the mode; None for the config's value.
        max_episode_steps: Time limit of the environments; None for no limit.
        hooks: Callbacks; None for none.
    """

    _rllib_kind = "env_runner"

    module: PyTree
    tracker: Tracker | None = None

    def __init__(
        self,
        *,
        config: "Config",
        vector: Vector,
        policy_step: Acting,
        env_index: Int[np.ndarray, " B"],
        worker_index: int = 0,
        num_workers: int = 0,
        seed: int | None = None,
        explore: bool | None = None,
        max_episode_steps: int | None = None,
        hooks: RunnerHooks | None = None,
    ) -> None:
        self.config, self.vector, self.policy_step = config, vector, policy_step
        self.env_index = np.asarray(env_index, np.int32)
        self.worker_index, self.num_workers = worker_index, num_workers
        self.num_envs = len(self.env_index)
        self.seed = config.debugging_settings.run_seed if seed is None else seed
        self.weights_version = -1
        self.metrics = MetricsLogger()
        self.env = EnvsView(vector)
        self._max_episode_steps = max_episode_steps
        self._explore = config.env_runners_settings.explore if explore is None else explore
        self._policies: dict[bool, HostPolicy] = {}
        self._policy = self._get_policy(self._explore)
        self._weights: Weights | None = None
        self._readable: RunnerPolicies | None = None
        self._random: dict[str, RandomActions] = {}
        """Random actions that replace those of the policy, by group; empty for none."""
        self._env_keys = make_env_keys(self.seed, self.env_index, self._policy.device)
        self._transition_count = np.zeros(self.num_envs, np.uint32)
        self._paused = np.zeros(self.num_envs, np.bool_)
        self._is_reset = self._begins_episodes = self._needs_reset = False
        self._next_number = 0
        self._begin_time = self._env_seconds = 0.0
        self._faults: list[RunnerFault] = []
        self._samples_randomly = False
        """True if the actions of ongoing episodes are random."""
        self._kept_tracker: tuple[Tracker, np.ndarray] | None = None
        self._sampled = MetricsLogger()
        self._unfinished: dict[str, _Played] = {}
        self._init_rows()
        if hooks is not None:
            if is_tracking(hooks):
                self.tracker = self._make_tracker(hooks, self._lookback)
            announce_envs(self, hooks)

    # --- for subclasses ---

    @abc.abstractmethod
    def _init_rows(self) -> None:
        """Set what the subclass has, with modules and the state of new episodes."""

    @property
    @abc.abstractmethod
    def policy_steps(self) -> Mapping[str, PolicyStep]:
        """Modules and their connectors by id."""

    @property
    @abc.abstractmethod
    def spaces(self) -> dict[str, Spaces]:
        """Observation and action spaces by what has them, with those of every module."""

    @abc.abstractmethod
    def _make_policy(self, explore: bool) -> HostPolicy:
        """Make what acts, without weights."""

    @abc.abstractmethod
    def _replace_policy(self, policy: HostPolicy) -> None:
        """Act by another policy of the same modules in ongoing episodes."""

    @abc.abstractmethod
    def _get_actors(self, weights: Weights) -> Mapping[str, ActorState]:
        """Return what modules act with, by id."""

    @abc.abstractmethod
    def _make_prev(self) -> PrevSteps:
        """Return the rewards and flags that come with the observations to act on."""

    @abc.abstractmethod
    def _begin_rows(self, num_steps: int, carry: Carries) -> Part:
        """Return an unfinished fragment, given the carry before its first step."""

    @abc.abstractmethod
    def _step(self, part: Part) -> None:
        """Act once in every environment and add the results to an unfinished fragment."""

    @abc.abstractmethod
    def _build_rollout(self, part: Part) -> tuple[Rollout | MultiRollout, EpisodeRecord]:
        """Return the rows of a fragment and the record of its episodes."""

    def _describe_rows(self, part: Part) -> dict[str, Any]:
        """Return further fields of the fragment."""
        del part
        return {}

    @abc.abstractmethod
    def _begin_all(self, seeds: list[int] | None) -> None:
        """Reset all environments and begin their episodes."""

    @abc.abstractmethod
    def _clear(self) -> None:
        """Forget the ongoing episodes, except for rows that are pending."""

    def _drop_rows(self, state: dict[str, PyTree]) -> None:
        """Forget the rows that are pending, before a state is restored."""

    @abc.abstractmethod
    def _get_rows_state(self) -> dict[str, PyTree]:
        """Return the state of episodes and rows in NumPy, with leading axis B."""

    @abc.abstractmethod
    def _set_rows_state(self, state: dict[str, PyTree]) -> None:
        """Restore what `_get_rows_state` returned."""

    @abc.abstractmethod
    def _make_tracker(self, hooks: RunnerHooks, lookback: int) -> Tracker:
        """Make a builder of episodes."""

    @abc.abstractmethod
    def _resume_episodes(self, tracker: Tracker) -> None:
        """Let a tracker continue the ongoing episodes."""

    def make_tally(self) -> AgentTally | None:
        """Return an accumulator of agent-episodes in evaluations; None for a single agent."""
        return None

    @property
    def can_pause(self) -> bool:
        """Ability to pause single environments."""
        return self.vector.can_pause

    # --- acting ---

    @property
    def _lookback(self) -> int:
        return self.config.env_runners_settings.episode_lookback_horizon

    def _get_policy(self, explore: bool) -> HostPolicy:
        """Return what acts with or without exploring."""
        if explore not in self._policies:
            self._policies[explore] = self._make_policy(explore)
        return self._policies[explore]

    @property
    def programs(self) -> list[Program]:
        """Compiled programs of the runner."""
        return [program for policy in self._policies.values() for program in policy.programs]

    def get_spaces(self) -> dict[str, Spaces]:
        """Return `spaces`."""
        return self.spaces

    def get_policy(self, policy_id: str = DEFAULT_MODULE) -> "Policy | Any":
        """Return a module's policy with the weights to act with, to read; None if there is none.

        Raises:
            ConfigError: If the runner has no weights yet.
        """
        if self._readable is None:
            self._readable = make_policies(self.policy_steps, self.config, explore=self._explore)
        return self._readable.read(policy_id, self._policy.get_actor)

    @property
    def policy_map(self) -> "Mapping[str, Policy]":
        """Policies by id, as `get_policy` returns them."""
        return MappingProxyType({m: self.get_policy(m) for m in self.policy_steps})

    def get_weights(self) -> dict[str, PyTree]:
        """Return the parameters to act with as NumPy copies, by module, as RLlib's runners do."""
        return {m: policy.get_weights() for m, policy in self.policy_map.items()}

    def set_weights(self, weights: Weights) -> None:
        """Set the weights to act with, and the task if they come with one."""
        self._weights = weights
        self._policy.set_actor(self._get_actors(weights))
        self.weights_version = weights.version
        if weights.task is not None:
            self.set_task(weights.task)

    def set_task(self, task: PyTree) -> None:
        """Change the task of the environments; see `HostVector.set_task`."""
        self.vector.set_task(task)

    def _set_acting(self, explore: bool | None, random_actions: bool) -> None:
        """Set how to act: as configured if both are None and False."""
        policy = self._get_policy(self._explore if explore is None else explore)
        if policy is not self._policy:
            if self._weights is not None:
                policy.set_actor(self._get_actors(self._weights))
            self._replace_policy(policy)
        self._random = self._make_random_actions() if random_actions else {}

    def _make_random_actions(self) -> dict[str, RandomActions]:
        """Return the random actions of every group, which are others at another time."""
        seeds = make_episode_seeds(self.seed, self.env_index, self._transition_count)
        return {
            g: RandomActions(
                self.policy_steps[g].action_pipeline,
                group.num_rows,
                seeds[0] + place,
                self._policy.device,
            )
            for place, (g, group) in enumerate(self._policy.groups.items())
        }

    # --- fragments ---

    def sample_fragment(self, num_steps: int) -> Fragment:
        """Sample the next `num_steps` steps of every environment."""
        part = self._begin_fragment(num_steps)
        for _ in range(num_steps):
            self._step(part)
        return self._make_fragment(part, np.where(self._paused, 0, num_steps))

    def _begin_fragment(self, num_steps: int) -> Part:
        """Prepare a fragment of `num_steps` steps."""
        self._begin_time = time.perf_counter()
        self._begin_episodes_if_due()
        carry = self._policy.begin_fragment(
            self._env_keys, self._transition_count, num_steps, self._make_prev()
        )
        self._env_seconds, self._faults = 0.0, []
        return self._begin_rows(num_steps, carry)

    def _step_envs(self, actions: PyTree, add_step: Callable[[Any], None] | None) -> PyTree:
        """Step the environments; the time of `add_step`, which calls hooks, is not theirs."""
        begin = time.perf_counter()
        track = None if add_step is None else functools.partial(self._track, add_step)
        step = self.vector.step(actions, track)
        self._env_seconds += time.perf_counter() - begin
        return step

    def _track(self, add_step: Callable[[Any], None], step: object) -> None:
        begin = time.perf_counter()
        add_step(step)
        self._env_seconds -= time.perf_counter() - begin

    def _add_faults(self, faults: Sequence[HostFault]) -> None:
        self._faults += [
            RunnerFault(
                worker_index=self.worker_index,
                env_index=int(self.env_index[fault.row]),
                what=fault.what,
                detail=fault.detail,
                silent=fault.silent,
            )
            for fault in faults
        ]

    def _make_fragment(self, part: Part, taken: Int[np.ndarray, " B"]) -> Fragment:
        """Build the fragment and advance each environment's transition count by `taken`."""
        rollout, record = self._build_rollout(part)
        self._transition_count = self._transition_count + taken.astype(np.uint32)
        if self.tracker is not None:
            self.tracker.finish_fragment()
        begins, self._begins_episodes = self._begins_episodes, False
        self._next_number += 1
        return Fragment(
            worker_index=self.worker_index,
            number=self._next_number - 1,
            weights_version=self.weights_version,
            rollout=cast("Rollout", rollout),
            record=record,
            env_index=self.env_index,
            begins_episodes=begins,
            num_env_steps=int(rollout.mask.sum()),
            seconds=time.perf_counter() - self._begin_time,
            env_seconds=self._env_seconds,
            faults=tuple(self._faults),
            metrics=self.metrics.take(),
            **self._describe_rows(part),
        )

    def pause(self, paused: Bool[np.ndarray, " B"]) -> None:
        """Pause the marked environments and resume all others.

        Args:
            paused: Whether to neither act in nor step each environment, `[B]`.

        Raises:
            EnvError: If environments can only be stepped together.
        """
        self.vector.pause(paused)
        self._paused = np.array(paused, np.bool_)

    # --- state ---

    def _begin_episodes_if_due(self) -> None:
        """Reset the environments if they are new, or were left behind by `sample`."""
        if self._is_reset and not self._needs_reset:
            return
        count = self._transition_count if self._is_reset else None
        seeds = None if count is None else make_episode_seeds(self.seed, self.env_index, count)
        self._clear()
        self._reset(seeds)

    def _reset(self, seeds: list[int] | None) -> None:
        self._needs_reset = False
        self._is_reset = self._begins_episodes = True
        self._begin_all(seeds)

    def get_state(self) -> dict[str, PyTree]:
        """Return the state of the environments, their rows and random keys, in NumPy.

        Arrays have a leading axis B. `env` is None if the environments cannot save their state.
        """
        self._begin_episodes_if_due()
        return {
            "key": np.asarray(jax.random.key_data(self._env_keys)),
            "count": self._transition_count.copy(),
            **self._get_rows_state(),
            "env": self.vector.get_state(),
        }

    def set_state(self, state: dict[str, PyTree] | None) -> None:
        """Restore a state returned by `get_state`; None restarts the environments.

        Environments that cannot be restored start new episodes, seeded by the seed of the run,
        their index and their transition count; their pending rows are lost.
        """
        self._clear()
        if state is None:
            self._env_keys = make_env_keys(self.seed, self.env_index, self._policy.device)
            self._transition_count = np.zeros(self.num_envs, np.uint32)
            self._reset(None)
            return
        key = jax.random.wrap_key_data(jnp.asarray(state["key"], jnp.uint32))
        self._env_keys = jax.device_put(key, self._policy.device)
        self._transition_count = np.array(state["count"], np.uint32)
        self._drop_rows(state)
        if state["env"] is None:
            self._reset(make_episode_seeds(self.seed, self.env_index, self._transition_count))
            return
        self.vector.reset()
        self._is_reset, self._begins_episodes = True, False
        self.vector.set_state(state["env"])
        self._set_rows_state(state)
        if self.tracker is not None:
            self._resume_episodes(self.tracker)

    def restart(self, seed: int, env_index: Int[np.ndarray, " B"]) -> None:
        """Start new episodes in all environments with another seed and other indices."""
        self._env_keys = make_env_keys(seed, env_index, self._policy.device)
        self._transition_count = np.zeros(self.num_envs, np.uint32)
        self._clear()
        self._reset(make_episode_seeds(seed, env_index))

    def run_episodes(self, share: EvalShare) -> EvalEpisodes:
        """Play a share of an evaluation."""
        return play_share(self, share, can_pause=self.can_pause)

    def close(self) -> None:
        """Close the environments; safe to call more than once."""
        self.vector.close()

    # --- episodes on request ---

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
            self.tracker = self._make_tracker(NoHooks(), self._lookback)
            if self._is_reset:
                self._resume_episodes(self.tracker)
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
            if self.can_pause:
                self.pause(np.zeros(self.num_envs, np.bool_))
            tracker.end_share()

    def _play_quota(self, tracker: Tracker) -> None:
        """Play until every environment has ended its number of episodes."""
        limit = self._max_episode_steps or MAX_EPISODE_STEPS
        before, num_waited = tracker.num_left, 0
        while any(before):
            if self.can_pause:
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


AnyRunner: TypeAlias = HostRunner[Any, Any, Any, Any, Any]


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
