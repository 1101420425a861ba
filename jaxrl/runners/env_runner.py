"""`EnvRunner`, which steps environments on the host and returns rollouts of the compiled form."""

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int, UInt32

from jaxrl.assembly.assemble import make_env, make_policy_step
from jaxrl.assembly.env import Spaces, get_rllib_spaces
from jaxrl.assembly.multi_agent import make_multi_host_env
from jaxrl.callbacks import CallbackList
from jaxrl.core.types import Columns, PyTree
from jaxrl.envs.host import HostFault, HostStep, HostVector, MadeHostEnv
from jaxrl.envs.host_vector import make_vector
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.envs.registry import MadeEnv
from jaxrl.episodes import SingleAgentEpisode
from jaxrl.errors import ConfigError, EnvError
from jaxrl.metrics import DEFAULT_MODULE
from jaxrl.runners.env_keys import make_env_keys, make_episode_seeds
from jaxrl.runners.episode_sampling import MAX_EPISODE_STEPS, EpisodeSampler, RandomActions
from jaxrl.runners.episode_tracker import (
    EnvsView,
    EpisodeTracker,
    announce_envs,
    is_tracking,
)
from jaxrl.runners.fragment import Fragment, RunnerFault, Weights
from jaxrl.runners.hooks import NoHooks, RunnerHooks
from jaxrl.runners.host_policy import ONE_AGENT, HostPolicy, PrevStep
from jaxrl.runners.metrics_logger import MetricsLogger
from jaxrl.runners.multi.env_runner import make_multi_env_runner
from jaxrl.runners.protocols import make_policies
from jaxrl.runners.quotas import EvalEpisodes, EvalShare, play_share
from jaxrl.runners.rows import FragmentBuilder, PartialFragment
from jaxrl.runtime.program import Program
from jaxrl.training.rollout import PolicyStep

if TYPE_CHECKING:
    from jaxrl.config.config import Config
    from jaxrl.policy.policy import Policy, RunnerPolicies


class EnvRunner(EpisodeSampler[SingleAgentEpisode, EpisodeTracker]):
    """Runner that steps its environments with one compiled call per vector step.

    A fragment continues where the previous one ended, possibly within an episode. With equal seed,
    index and weights, a JAX environment produces the same transitions as in the compiled loop.

    Args:
        config: Config of the run.
        vector: Vector environment, closed together with the runner.
        policy_step: Module and its connectors.
        env_index: Indices of the environments among all environments of the run, `[B]`.
        worker_index: 0 for the runner of the main process, 1 and up for actors.
        num_workers: Number of actors.
        seed: Seed of the run, which together with `env_index` determines every random draw.
        explore: Whether to sample actions instead of taking the mode; None for the config's value.
        max_episode_steps: Time limit of the environments; None for no limit.
        hooks: Callbacks; None for none.
    """

    def __init__(
        self,
        *,
        config: "Config",
        vector: HostVector,
        policy_step: PolicyStep,
        env_index: Int[np.ndarray, " B"],
        worker_index: int = 0,
        num_workers: int = 0,
        seed: int | None = None,
        explore: bool | None = None,
        max_episode_steps: int | None = None,
        hooks: RunnerHooks | None = None,
    ) -> None:
        super().__init__()
        debugging = config.debugging_settings
        self.config = config
        self.vector = vector
        self.env_index = np.asarray(env_index, np.int32)
        self.worker_index, self.num_workers = worker_index, num_workers
        self.num_envs = len(self.env_index)
        self.seed = debugging.run_seed if seed is None else seed
        self.policy_step, self.module = policy_step, policy_step.module
        self.weights_version = -1
        self._max_episode_steps = max_episode_steps
        self._explore = config.env_runners_settings.explore if explore is None else explore
        self._policies: dict[bool, HostPolicy] = {}
        self._policy = self._get_policy(self._explore)
        self._weights: Weights | None = None
        self._drawn: RandomActions | None = None
        self._random: RandomActions | None = None
        """Random actions that replace those of the policy, None for none."""
        self._readable: RunnerPolicies | None = None
        self._env_keys = make_env_keys(self.seed, self.env_index, self._policy.device)
        self._obs: list[np.ndarray] | None = None
        self._next_number = 0
        self._env_seconds = 0.0
        self._faults: list[RunnerFault] = []
        self._reset_bookkeeping()
        self.metrics = MetricsLogger()
        self.env = EnvsView(vector)
        self.tracker: EpisodeTracker | None = None
        if hooks is not None:
            if is_tracking(hooks):
                lookback = config.env_runners_settings.episode_lookback_horizon
                self.tracker = EpisodeTracker(self, hooks, lookback)
            announce_envs(self, hooks)

    def _get_policy(self, explore: bool) -> HostPolicy:
        """Return what acts with or without exploring."""
        if explore not in self._policies:
            debugging = self.config.debugging_settings
            self._policies[explore] = HostPolicy(
                {DEFAULT_MODULE: self.policy_step},
                ONE_AGENT,
                self.env_index,
                explore=explore,
                max_retraces=debugging.max_retraces,
                jit=debugging.compiles,
            )
        return self._policies[explore]

    @property
    def programs(self) -> list[Program]:
        """Compiled programs of the runner."""
        return [program for policy in self._policies.values() for program in policy.programs]

    @property
    def spaces(self) -> dict[str, Spaces]:
        """Observation and action spaces of the vector environment, an environment and the module."""
        acting = self.policy_step
        single = acting.observation_space, acting.action_pipeline.space
        module = self.module.observation_space, self.module.action_space
        return {**get_rllib_spaces(single, self.num_envs), DEFAULT_MODULE: module}

    def get_spaces(self) -> dict[str, Spaces]:
        """Return `spaces`."""
        return self.spaces

    def get_policy(self, policy_id: str = DEFAULT_MODULE) -> "Policy | Any":
        """Return the policy with the weights to act with, to read; None for another id.

        Raises:
            ConfigError: If the runner has no weights yet.
        """
        if self._readable is None:
            steps = {DEFAULT_MODULE: self.policy_step}
            self._readable = make_policies(steps, self.config, explore=self._explore)
        return self._readable.read(policy_id, self._policy.get_actor)

    @property
    def policy_map(self) -> "Mapping[str, Policy]":
        """Policies by id, as `get_policy` returns them."""
        return MappingProxyType({DEFAULT_MODULE: self.get_policy()})

    def set_weights(self, weights: Weights) -> None:
        """Set the weights to act with, and the task if they come with one."""
        self._weights = weights
        self._policy.set_actor({DEFAULT_MODULE: weights.actor})
        self.weights_version = weights.version
        if weights.task is not None:
            self.set_task(weights.task)

    def set_task(self, task: PyTree) -> None:
        """Change the task of the environments; see `HostVector.set_task`."""
        self.vector.set_task(task)

    def _set_acting(self, explore: bool | None, random_actions: bool) -> None:
        policy, before = (
            self._get_policy(self._explore if explore is None else explore),
            self._policy,
        )
        if policy is not before:
            if self._weights is not None:
                policy.set_actor({DEFAULT_MODULE: self._weights.actor})
            policy.set_carry(before.carry)
            self._policy = policy
        if random_actions and self._drawn is None:
            seed = make_episode_seeds(self.seed, self.env_index)[0]
            pipeline = self.policy_step.action_pipeline
            self._drawn = RandomActions(pipeline, self.num_envs, seed, policy.device)
        self._random = self._drawn if random_actions else None

    def _make_tracker(self) -> EpisodeTracker:
        lookback = self.config.env_runners_settings.episode_lookback_horizon
        tracker = EpisodeTracker(self, NoHooks(), lookback)
        if self._obs is not None:
            tracker.resume_episodes(self._unflatten_obs(self._obs), self._episode_length)
        return tracker

    def sample_fragment(self, num_steps: int) -> Fragment:
        """Sample the next `num_steps` steps of every environment."""
        part = self._begin_fragment(num_steps)
        for _ in range(num_steps):
            self._step(part.rows)
        return self._make_fragment(part, np.where(self._last.paused, 0, num_steps))

    def sample_complete_episodes(self, num_steps: int) -> Fragment:
        """Sample at least `num_steps` steps of every environment, up to the end of an episode.

        A finished environment is paused at the start of its next episode until the others have
        finished. The length of the fragment is `num_steps` times a power of two; rows after an
        environment has finished are masked.

        Raises:
            EnvError: If an episode does not end, or environments can only be stepped together.
        """
        part = self._begin_fragment(num_steps)
        rows = part.rows
        taken = np.zeros(self.num_envs, np.int64)
        while not self._last.paused.all():
            if rows.length == rows.capacity:
                self._check_episode_length(rows.length - num_steps)
                count = self._transition_count + np.uint32(rows.length)
                self._policy.begin_fragment(self._env_keys, count, num_steps, self._prev)
                rows.grow(num_steps)
            self._step(rows)
            done = self._last.is_first & ~self._last.paused & (rows.length >= num_steps)
            if done.any():
                taken[done] = rows.length
                self.pause(self._last.paused | done)
        self.pause(np.zeros(self.num_envs, np.bool_))
        fragments = -(-rows.length // num_steps)
        rows.pad(num_steps << (fragments - 1).bit_length())
        return self._make_fragment(part, taken)

    @property
    def _can_pause(self) -> bool:
        return self.vector.can_pause

    def pause(self, paused: Bool[np.ndarray, " B"]) -> None:
        """Pause the marked environments and resume all others.

        Args:
            paused: Whether to neither act in nor step each environment, `[B]`.

        Raises:
            EnvError: If environments can only be stepped together.
        """
        self.vector.pause(paused)
        self._last = dataclasses.replace(self._last, paused=paused)

    def _check_episode_length(self, waited: int) -> None:
        """Raise if an episode exceeds the time limit, `MAX_EPISODE_STEPS` if there is none."""
        if waited <= (self._max_episode_steps or MAX_EPISODE_STEPS):
            return
        index = self.env_index[int(np.argmin(self._last.paused))]
        raise EnvError(
            f"batch_mode='complete_episodes': an episode of the environment {index} has not ended "
            f"after {waited} steps; set max_episode_steps, or batch_mode='truncate_episodes'."
        )

    def _begin_fragment(self, num_steps: int) -> PartialFragment:
        """Prepare a fragment of `num_steps` steps."""
        begin = time.perf_counter()
        self._begin_episodes_if_due()
        assert self._obs is not None
        carry = self._policy.begin_fragment(
            self._env_keys, self._transition_count, num_steps, self._prev
        )
        self._env_seconds, self._faults = 0.0, []
        rows = FragmentBuilder(num_steps, self._obs, self._policy.num_words, self._flatten_obs)
        return PartialFragment(
            rows=rows,
            carry_in=carry[DEFAULT_MODULE],
            is_first=self._last.is_first,
            start_time=begin,
        )

    @property
    def _prev(self) -> dict[str, PrevStep]:
        """Reward and flags that the policy takes with an observation."""
        return {DEFAULT_MODULE: self._last}

    def _flatten_obs(self, obs: PyTree) -> list[Any]:
        return self._policy.flatten_obs({DEFAULT_MODULE: obs})

    def _unflatten_obs(self, leaves: Sequence[Any]) -> PyTree:
        return self._policy.unflatten_obs(leaves)[DEFAULT_MODULE]

    def _step(self, rows: FragmentBuilder) -> None:
        """Act once in every environment and add the results to `rows`."""
        last = self._last
        words = self._policy.act(rows.get_current_obs(), self._prev)
        if self._random is None:
            action, chosen = self._policy.unpack_env_action(words)[DEFAULT_MODULE], None
        else:
            action, chosen = self._random.draw()
        track = functools.partial(self._track, words, chosen) if self.tracker is not None else None
        begin = time.perf_counter()
        step = self.vector.step(action, track)
        self._env_seconds += time.perf_counter() - begin
        rows.add(words, step)
        self._last = self._make_last(rows, last)
        if step.faults:
            self._faults += [self._make_runner_fault(fault) for fault in step.faults]
        if self.tracker is not None:
            self.tracker.begin_episodes(step, last.paused)

    def _track(
        self, words: UInt32[np.ndarray, "B width"], chosen: PyTree | None, step: HostStep
    ) -> None:
        """Call the hooks of a step, whose time is not that of the environments."""
        assert self.tracker is not None
        begin = time.perf_counter()
        outputs = (
            self._policy.unpack_recorded(words)[DEFAULT_MODULE]
            if chosen is None
            else {Columns.ACTIONS: chosen}
        )
        self.tracker.add_step(outputs, step, self._last.paused)
        self._env_seconds -= time.perf_counter() - begin

    def _make_last(self, rows: FragmentBuilder, before: PrevStep) -> PrevStep:
        """Return the reward and flags of the latest step, unchanged for paused environments."""
        t, held = rows.length - 1, before.paused
        reward, starts = rows.reward[t], rows.starts[t]
        if np.count_nonzero(held):
            reward = np.where(held, before.reward, reward)
            starts = np.where(held, before.is_first, starts)
        return PrevStep(reward=reward, is_first=starts, paused=held)

    def _make_runner_fault(self, fault: HostFault) -> RunnerFault:
        return RunnerFault(
            worker_index=self.worker_index,
            env_index=int(self.env_index[fault.row]),
            what=fault.what,
            detail=fault.detail,
            silent=fault.silent,
        )

    def _make_fragment(self, part: PartialFragment, taken: Int[np.ndarray, " B"]) -> Fragment:
        """Build the fragment and advance each environment's transition count by `taken`."""
        rows = part.rows
        recorded = self._policy.unpack_recorded(rows.words[: rows.length])[DEFAULT_MODULE]
        recorded = jax.tree.map(np.ascontiguousarray, recorded)
        rollout = rows.build_rollout(self._unflatten_obs, recorded, part.is_first, part.carry_in)
        record = rows.build_record(
            self._transition_count, self._episode_return, self._episode_length
        )
        self._obs = rows.copy_current_obs()
        self._transition_count = self._transition_count + taken.astype(np.uint32)
        self._last = jax.tree.map(np.copy, self._last)
        if self.tracker is not None:
            self.tracker.finish_fragment()
        self._next_number += 1
        return Fragment(
            worker_index=self.worker_index,
            number=self._next_number - 1,
            weights_version=self.weights_version,
            rollout=rollout,
            record=record,
            env_index=self.env_index,
            num_env_steps=int(rollout.mask.sum()),
            seconds=time.perf_counter() - part.start_time,
            env_seconds=self._env_seconds,
            faults=tuple(self._faults),
            metrics=self.metrics.take(),
        )

    def _begin_episodes_if_due(self) -> None:
        """Reset the environments if they are new, or were left behind by `sample`."""
        if self._obs is not None and not self._needs_reset:
            return
        is_new, count = self._obs is None, self._transition_count
        self._reset_bookkeeping()
        self._transition_count = count
        self._reset(None if is_new else make_episode_seeds(self.seed, self.env_index, count))

    def _reset(self, seeds: list[int] | None) -> None:
        self._needs_reset = False
        if self.tracker is not None:
            self.tracker.create_episodes()
        obs = self.vector.reset(seeds)
        self._obs = self._cast_obs(obs)
        if self.tracker is not None:
            self.tracker.start_episodes(self._unflatten_obs(self._obs))

    def _cast_obs(self, obs: PyTree) -> list[np.ndarray]:
        """Return the leaves of observations, cast to the types of the module's input."""
        leaves = zip(self._flatten_obs(obs), self._policy.obs_shapes, strict=True)
        return [np.array(leaf, shape.dtype) for leaf, shape in leaves]

    def get_state(self) -> dict[str, PyTree]:
        """Return the state of the environments and their random keys, in NumPy with leading axis B.

        `env` is None if the environments cannot save their state.
        """
        self._begin_episodes_if_due()
        assert self._obs is not None
        return {
            "key": np.asarray(jax.random.key_data(self._env_keys)),
            "count": self._transition_count.copy(),
            "starts": self._last.is_first.copy(),
            "reward": self._last.reward.copy(),
            "episode_return": self._episode_return.copy(),
            "episode_length": self._episode_length.copy(),
            "obs": self._unflatten_obs(self._obs),
            "carry": self._policy.carry[DEFAULT_MODULE],
            "env": self.vector.get_state(),
        }

    def set_state(self, state: dict[str, PyTree] | None) -> None:
        """Restore a state returned by `get_state`; None restarts the environments.

        Environments that cannot be restored start new episodes, seeded by the seed of the run,
        their index and their transition count.
        """
        if state is None:
            self._env_keys = make_env_keys(self.seed, self.env_index, self._policy.device)
            self._reset_bookkeeping()
            self._reset(None)
            return
        key = jax.random.wrap_key_data(jnp.asarray(state["key"], jnp.uint32))
        self._env_keys = jax.device_put(key, self._policy.device)
        self._reset_bookkeeping()
        self._transition_count = np.array(state["count"], np.uint32)
        if state["env"] is None:
            self._reset(make_episode_seeds(self.seed, self.env_index, self._transition_count))
            return
        self.vector.reset()
        self.vector.set_state(state["env"])
        self._obs = self._cast_obs(state["obs"])
        self._last = PrevStep(
            reward=np.array(state["reward"], np.float32),
            is_first=np.array(state["starts"], np.bool_),
            paused=self._last.paused,
        )
        self._episode_return = np.array(state["episode_return"], np.float32)
        self._episode_length = np.array(state["episode_length"], np.int32)
        self._policy.set_carry({DEFAULT_MODULE: state["carry"]})
        if self.tracker is not None:
            self.tracker.resume_episodes(self._unflatten_obs(self._obs), self._episode_length)

    def restart(self, seed: int, env_index: Int[np.ndarray, " B"]) -> None:
        """Start new episodes in all environments with another seed and other indices."""
        self._env_keys = make_env_keys(seed, env_index, self._policy.device)
        self._reset_bookkeeping()
        self._reset(make_episode_seeds(seed, env_index))

    def run_episodes(self, share: EvalShare) -> EvalEpisodes:
        """Play a share of an evaluation."""
        return play_share(self, share, can_pause=self._can_pause)

    def _reset_bookkeeping(self) -> None:
        """Reset counts, flags and carry to the start of each environment's first episode."""
        self._transition_count = np.zeros(self.num_envs, np.uint32)
        self._episode_return = np.zeros(self.num_envs, np.float32)
        self._episode_length = np.zeros(self.num_envs, np.int32)
        self._last = PrevStep(
            reward=np.zeros(self.num_envs, np.float32),
            is_first=np.ones(self.num_envs, np.bool_),
            paused=np.zeros(self.num_envs, np.bool_),
        )
        self._policy.set_carry(None)

    def close(self) -> None:
        """Close the environments; safe to call more than once."""
        self.vector.close()


def make_env_runner(
    config: "Config",
    *,
    worker_index: int = 0,
    num_workers: int = 0,
    num_envs: int,
    first_env_index: int,
    seed: int | None = None,
    explore: bool | None = None,
    made: MadeEnv | MadeHostEnv | MadeMultiHostEnv | None = None,
    hooks: RunnerHooks | None = None,
) -> EnvRunner:
    """Create the runner that a config specifies, in this process or in an actor.

    Several agents have a MultiEnvRunner, which is used as an EnvRunner is.

    Args:
        config: Config of the run or of its evaluation.
        worker_index: 0 for the runner of the main process, 1 and up for actors.
        num_workers: Number of actors.
        num_envs: Number of environments of this runner.
        first_env_index: Index of its first environment among all environments of the run.
        seed: Seed of all random draws; None for the config's seed.
        explore: Whether to sample actions instead of taking the mode; None for the config's value.
        made: Environment, if it has been made already.
        hooks: Callbacks; None for those of the config.

    Raises:
        JaxrlError: If the environment or the module cannot be created.
    """
    if made is None and config.is_multi_agent:
        made = make_multi_host_env(config)
    if isinstance(made, MadeMultiHostEnv):
        multi = make_multi_env_runner(
            config,
            made,
            worker_index=worker_index,
            num_workers=num_workers,
            num_envs=num_envs,
            first_env_index=first_env_index,
            seed=seed,
            explore=explore,
            hooks=hooks,
        )
        return cast("EnvRunner", multi)
    made = make_env(config) if made is None else made
    environment = config.environment_settings
    vector = make_vector(
        made,
        num_envs=num_envs,
        first_index=first_env_index,
        worker_index=worker_index,
        num_workers=num_workers,
        seed=config.debugging_settings.run_seed if seed is None else seed,
        mode=config.env_runners_settings.gym_env_vectorize_mode,
        restart_failed=config.fault_tolerance_settings.restart_failed_sub_environments,
        check=not environment.disable_env_checking,
        validate_env=environment.validate_env,
        reset_mode=None if environment.reset_mode == "auto" else environment.reset_mode,
        timeout_s=config.env_runners_settings.sample_timeout_s,
    )
    runner_class = config.env_runners_settings.env_runner_cls or EnvRunner
    if runner_class.sample is not EnvRunner.sample:
        raise ConfigError(
            f"env_runner_cls={runner_class.__qualname__} overrides sample(), which training does not "
            "call: override sample_fragment(num_steps), which returns a Fragment."
        )
    return runner_class(
        config=config,
        vector=vector,
        policy_step=make_policy_step(config, made),
        env_index=np.arange(first_env_index, first_env_index + num_envs, dtype=np.int32),
        worker_index=worker_index,
        num_workers=num_workers,
        seed=seed,
        explore=explore,
        max_episode_steps=made.max_episode_steps,
        hooks=CallbackList(config.callbacks_settings) if hooks is None else hooks,
    )
