"""An EnvRunner: it steps environments on the host and returns what a compiled rollout would."""

import dataclasses
import time
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from jaxrl.assembly.assemble import make_acting, make_env
from jaxrl.callbacks import CallbackList
from jaxrl.core.types import PyTree
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import HostFault, HostVector, MadeHostEnv
from jaxrl.envs.host_vector import make_vector
from jaxrl.envs.registry import MadeEnv
from jaxrl.errors import EnvError
from jaxrl.runners.env_keys import episode_seeds, stream_keys
from jaxrl.runners.episode_tracker import EPISODE_HOOKS, EnvsView, EpisodeTracker
from jaxrl.runners.fragment import Fragment, RunnerFault, Weights
from jaxrl.runners.hooks import RunnerHooks
from jaxrl.runners.host_policy import HostActing, Last
from jaxrl.runners.metrics_logger import MetricsLogger
from jaxrl.runners.quotas import Played, Share, play
from jaxrl.runners.rows import Part, Rows
from jaxrl.runtime.program import Program
from jaxrl.training.rollout import Acting

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

MAX_EPISODE_STEPS = 100_000
"""So many steps an episode is waited for, unless the environment has a limit."""


class EnvRunner:
    """Steps its environments with one compiled call for each vector step.

    Fragments go on where the last one ended, also within an episode. For the same seed, index and
    weights a JAX environment gives the same transitions as in the compiled loop.

    Args:
        config: The run's.
        vector: The environments; closed with the runner.
        acting: The module and the connectors around it.
        env_index: The environments' places among all of the run.
        worker_index: 0 for the runner of the main process, from 1 on for actors.
        num_workers: How many actors there are.
        seed: Of the run; with `env_index` it determines every draw.
        explore: Sample actions, or take the mode; None leaves it to the config.
        max_episode_steps: The environments' time limit, None for none.
        hooks: What to call on the way, None for nothing.
    """

    def __init__(
        self,
        *,
        config: "AlgorithmConfig",
        vector: HostVector,
        acting: Acting,
        env_index: Int[np.ndarray, " B"],
        worker_index: int = 0,
        num_workers: int = 0,
        seed: int | None = None,
        explore: bool | None = None,
        max_episode_steps: int | None = None,
        hooks: RunnerHooks | None = None,
    ) -> None:
        debugging = config.debugging_settings
        self.config = config
        self.vector = vector
        self.env_index = np.asarray(env_index, np.int32)
        self.worker_index, self.num_workers = worker_index, num_workers
        self.num_envs = len(self.env_index)
        self.seed = debugging.seed if seed is None else seed
        self.acting, self.module = acting, acting.module
        self.weights_version = -1
        self._limit = max_episode_steps
        self._acting = HostActing(
            acting,
            self.env_index,
            explore=config.env_runners_settings.explore if explore is None else explore,
            max_retraces=debugging.max_retraces,
            jit=debugging.jit,
        )
        self._key = stream_keys(self.seed, self.env_index, self._acting.device)
        self._obs: list[np.ndarray] | None = None
        self._number = 0
        self._env_seconds = 0.0
        self._faults: list[RunnerFault] = []
        self._forget()
        self.metrics = MetricsLogger()
        self.env = EnvsView(vector)
        self._tracker: EpisodeTracker | None = None
        if hooks is not None:
            self._listen(hooks)

    def _listen(self, hooks: RunnerHooks) -> None:
        if any(hooks.wants(hook) for hook in EPISODE_HOOKS):
            lookback = self.config.env_runners_settings.episode_lookback_horizon
            self._tracker = EpisodeTracker(self, hooks, lookback)
        context = EnvContext(
            self.config.environment_settings.env_config,
            worker_index=self.worker_index,
            num_workers=self.num_workers,
        )
        hooks.call(
            "on_environment_created",
            env_runner=self,
            metrics_logger=self.metrics,
            env=self.env,
            env_context=context,
        )

    @property
    def programs(self) -> list[Program]:
        """What the runner compiled."""
        return self._acting.programs

    def set_weights(self, weights: Weights) -> None:
        """Act with these from now on."""
        self._acting.set_actor(weights.actor)
        self.weights_version = weights.version

    def sample(self, num_steps: int) -> Fragment:
        """The next `num_steps` steps of every environment."""
        part = self._begin(num_steps)
        for _ in range(num_steps):
            self._step(part.rows)
        return self._fragment(part, np.where(self._last.held, 0, num_steps))

    def sample_complete(self, num_steps: int) -> Fragment:
        """At least `num_steps` steps of every environment, up to the end of its episode.

        An environment that is done waits at the start of its next episode for the others. The
        length is `num_steps` times a power of two; rows past an environment's end are none.

        Raises:
            EnvError: An episode does not end, or the environments can only be stepped together.
        """
        part = self._begin(num_steps)
        rows = part.rows
        taken = np.zeros(self.num_envs, np.int64)
        while not self._last.held.all():
            if rows.length == rows.capacity:
                self._check_length(rows.length - num_steps)
                count = self._count + np.uint32(rows.length)
                self._acting.begin(self._key, count, num_steps, self._last)
                rows.grow(num_steps)
            self._step(rows)
            done = self._last.starts & ~self._last.held & (rows.length >= num_steps)
            if done.any():
                taken[done] = rows.length
                self.hold(self._last.held | done)
        self.hold(np.zeros(self.num_envs, np.bool_))
        fragments = -(-rows.length // num_steps)
        rows.pad(num_steps << (fragments - 1).bit_length())
        return self._fragment(part, taken)

    def hold(self, held: Bool[np.ndarray, " B"]) -> None:
        """Neither act in nor step these environments, until told otherwise.

        Raises:
            EnvError: The environments can only be stepped together.
        """
        self.vector.hold(held)
        self._last = dataclasses.replace(self._last, held=held)

    def _check_length(self, waited: int) -> None:
        """Refuse to wait for ever: without a limit of the environment's, for so many steps."""
        if waited <= (self._limit or MAX_EPISODE_STEPS):
            return
        index = self.env_index[int(np.argmin(self._last.held))]
        raise EnvError(
            f"batch_mode='complete_episodes': an episode of the environment {index} has not ended "
            f"after {waited} steps; set max_episode_steps, or batch_mode='truncate_episodes'."
        )

    def _begin(self, num_steps: int) -> Part:
        """Get ready for so many steps."""
        begin = time.perf_counter()
        if self._obs is None:
            self._reset(None)
        assert self._obs is not None
        carry = self._acting.begin(self._key, self._count, num_steps, self._last)
        self._env_seconds, self._faults = 0.0, []
        rows = Rows(num_steps, self._obs, self._acting.width, self._acting.leaves)
        return Part(rows=rows, carry_in=carry, starts=self._last.starts, begin=begin)

    def _step(self, rows: Rows) -> None:
        """Act once in every environment and add what came of it to `rows`."""
        last = self._last
        words = self._acting.act(rows.current(), last)
        action = self._acting.env_action(words)
        begin = time.perf_counter()
        step = self.vector.step(action)
        self._env_seconds += time.perf_counter() - begin
        rows.add(words, step)
        self._last = self._came(rows, last)
        if step.faults:
            self._faults += [self._runner_fault(fault) for fault in step.faults]
        if self._tracker is not None:
            self._tracker.step(self._acting.recorded(words), step, last.held)

    def _came(self, rows: Rows, before: Last) -> Last:
        """What came with the latest observations; with those of held environments nothing did."""
        now, held = rows.length - 1, before.held
        reward, starts = rows.reward[now], rows.starts[now]
        if np.count_nonzero(held):
            reward = np.where(held, before.reward, reward)
            starts = np.where(held, before.starts, starts)
        return Last(reward=reward, starts=starts, held=held)

    def _runner_fault(self, fault: HostFault) -> RunnerFault:
        return RunnerFault(
            worker_index=self.worker_index,
            env_index=int(self.env_index[fault.row]),
            what=fault.what,
            detail=fault.detail,
            silent=fault.silent,
        )

    def _fragment(self, part: Part, taken: Int[np.ndarray, " B"]) -> Fragment:
        """What was gathered, of which each environment has `taken` rows; it goes on from there."""
        rows = part.rows
        recorded = self._acting.recorded(rows.words[: rows.length])
        recorded = jax.tree.map(np.ascontiguousarray, recorded)
        rollout = rows.rollout(self._acting.tree, recorded, part.starts, part.carry_in)
        record = rows.record(self._count, self._return, self._length)
        self._obs = rows.latest_obs()
        self._count = self._count + taken.astype(np.uint32)
        self._last = jax.tree.map(np.copy, self._last)
        if self._tracker is not None:
            self._tracker.finish()
        self._number += 1
        return Fragment(
            worker_index=self.worker_index,
            number=self._number - 1,
            weights_version=self.weights_version,
            rollout=rollout,
            record=record,
            env_index=self.env_index,
            num_env_steps=int(rollout.mask.sum()),
            seconds=time.perf_counter() - part.begin,
            env_seconds=self._env_seconds,
            faults=tuple(self._faults),
            metrics=self.metrics.take(),
        )

    def _reset(self, seeds: list[int] | None) -> None:
        if self._tracker is not None:
            self._tracker.create()
        obs = self.vector.reset(seeds)
        self._obs = self._as_leaves(obs)
        if self._tracker is not None:
            self._tracker.start(self._acting.tree(self._obs))

    def _as_leaves(self, obs: PyTree) -> list[np.ndarray]:
        """Observations in the types that modules see."""
        leaves = zip(self._acting.leaves(obs), self._acting.obs_shapes, strict=True)
        return [np.array(leaf, shape.dtype) for leaf, shape in leaves]

    def get_state(self) -> dict[str, PyTree]:
        """Where the environments are and what they draw next, with a leading axis B, NumPy.

        `env` is None where the environments themselves cannot tell.
        """
        if self._obs is None:
            self._reset(None)
        assert self._obs is not None
        return {
            "key": np.asarray(jax.random.key_data(self._key)),
            "count": self._count.copy(),
            "starts": self._last.starts.copy(),
            "reward": self._last.reward.copy(),
            "episode_return": self._return.copy(),
            "episode_length": self._length.copy(),
            "obs": self._acting.tree(self._obs),
            "carry": self._acting.carry,
            "env": self.vector.get_state(),
        }

    def set_state(self, state: dict[str, PyTree] | None) -> None:
        """Go on from what `get_state` returned; from None as from the start.

        Those that cannot be restored start new episodes, seeded by the run, their index and count.
        """
        if state is None:
            self._key = stream_keys(self.seed, self.env_index, self._acting.device)
            self._forget()
            self._reset(None)
            return
        key = jax.random.wrap_key_data(jnp.asarray(state["key"], jnp.uint32))
        self._key = jax.device_put(key, self._acting.device)
        self._forget()
        self._count = np.array(state["count"], np.uint32)
        if state["env"] is None:
            self._reset(episode_seeds(self.seed, self.env_index, self._count))
            return
        self.vector.reset()
        self.vector.set_state(state["env"])
        self._obs = self._as_leaves(state["obs"])
        self._last = Last(
            reward=np.array(state["reward"], np.float32),
            starts=np.array(state["starts"], np.bool_),
            held=self._last.held,
        )
        self._return = np.array(state["episode_return"], np.float32)
        self._length = np.array(state["episode_length"], np.int32)
        self._acting.set_carry(state["carry"])
        if self._tracker is not None:
            self._tracker.go_on(self._acting.tree(self._obs), self._length)

    def restart(self, seed: int, env_index: Int[np.ndarray, " B"]) -> None:
        """Start new episodes in all environments, with the draws of these places of another run."""
        self._key = stream_keys(seed, env_index, self._acting.device)
        self._forget()
        self._reset(episode_seeds(seed, env_index))

    def run_episodes(self, share: Share) -> Played:
        """Play a share of an evaluation, in environments that start anew."""
        mode = self.config.env_runners_settings.gym_env_vectorize_mode
        return play(self, share, can_hold=mode != "vector_entry_point")

    def _forget(self) -> None:
        """Every environment is at the start of its first episode."""
        self._count = np.zeros(self.num_envs, np.uint32)
        self._return = np.zeros(self.num_envs, np.float32)
        self._length = np.zeros(self.num_envs, np.int32)
        self._last = Last(
            reward=np.zeros(self.num_envs, np.float32),
            starts=np.ones(self.num_envs, np.bool_),
            held=np.zeros(self.num_envs, np.bool_),
        )
        self._acting.set_carry(None)

    def close(self) -> None:
        """Close the environments; may be called twice."""
        self.vector.close()


def make_env_runner(
    config: "AlgorithmConfig",
    *,
    worker_index: int = 0,
    num_workers: int = 0,
    num_envs: int,
    first_env_index: int,
    seed: int | None = None,
    explore: bool | None = None,
    made: MadeEnv | MadeHostEnv | None = None,
    hooks: RunnerHooks | None = None,
) -> EnvRunner:
    """A runner with everything that the config asks for, in this process or in an actor.

    Args:
        config: The run's, or its evaluation's.
        worker_index: 0 for the runner of the main process, from 1 on for actors.
        num_workers: How many actors there are.
        num_envs: Environments of this runner.
        first_env_index: Place of the first of them among all of the run.
        seed: Of the draws; None takes the config's.
        explore: Sample actions, or take the mode; None leaves it to the config.
        made: The environment, if it is at hand.
        hooks: What to call; None takes the config's callbacks.

    Raises:
        JaxrlError: The environment or the module cannot be made, in one sentence.
    """
    made = make_env(config) if made is None else made
    environment = config.environment_settings
    vector = make_vector(
        made,
        num_envs=num_envs,
        first_index=first_env_index,
        worker_index=worker_index,
        num_workers=num_workers,
        seed=config.debugging_settings.seed if seed is None else seed,
        mode=config.env_runners_settings.gym_env_vectorize_mode,
        restart_failed=config.fault_tolerance_settings.restart_failed_sub_environments,
        check=not environment.disable_env_checking,
        validate_env=environment.validate_env,
        reset_mode=None if environment.reset_mode == "auto" else environment.reset_mode,
        timeout_s=config.env_runners_settings.sample_timeout_s,
    )
    runner_class = config.env_runners_settings.env_runner_cls or EnvRunner
    return runner_class(
        config=config,
        vector=vector,
        acting=make_acting(config, made),
        env_index=np.arange(first_env_index, first_env_index + num_envs, dtype=np.int32),
        worker_index=worker_index,
        num_workers=num_workers,
        seed=seed,
        explore=explore,
        max_episode_steps=made.max_episode_steps,
        hooks=CallbackList(config.callbacks_settings) if hooks is None else hooks,
    )
