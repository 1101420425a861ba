"""`EnvRunner`, which steps environments on the host and returns rollouts of the compiled form."""

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np
from jaxtyping import UInt32

from jaxrl.assembly.assemble import make_env, make_policy_step
from jaxrl.assembly.env import Spaces, get_rllib_spaces
from jaxrl.assembly.multi_agent import make_multi_policy_step
from jaxrl.callbacks import CallbackList
from jaxrl.config.multi_agent import make_agents_env
from jaxrl.core.types import Columns, PyTree, Rollout
from jaxrl.envs.host import HostStep, HostVector, MadeHostEnv
from jaxrl.envs.host_vector import make_vector
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.envs.registry import MadeEnv
from jaxrl.episodes import SingleAgentEpisode
from jaxrl.errors import ConfigError, EnvError
from jaxrl.metrics import DEFAULT_MODULE
from jaxrl.runners.episode_tracker import EpisodeTracker
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.hooks import RunnerHooks
from jaxrl.runners.host_policy import ONE_AGENT, Carries, HostPolicy, PrevStep
from jaxrl.runners.host_runner import MAX_EPISODE_STEPS, HostRunner
from jaxrl.runners.multi.env_runner import MultiEnvRunner
from jaxrl.runners.rows import FragmentBuilder
from jaxrl.training.episode_stats import EpisodeRecord
from jaxrl.training.rollout import ActorState, PolicyStep

if TYPE_CHECKING:
    from jaxrl.config.config import Config


class EnvRunner(
    HostRunner[SingleAgentEpisode, EpisodeTracker, HostVector, PolicyStep, FragmentBuilder]
):
    """Runner of environments of a single agent, whose rows are the vector's own arrays.

    With equal seed, index and weights, a JAX environment produces the same transitions as in the
    compiled loop.
    """

    def _init_rows(self) -> None:
        self.module = self.policy_step.module
        self._obs: list[np.ndarray] = []
        self._clear()

    @property
    def policy_steps(self) -> Mapping[str, PolicyStep]:
        return {DEFAULT_MODULE: self.policy_step}

    def _make_policy(self, explore: bool) -> HostPolicy:
        debugging = self.config.debugging_settings
        return HostPolicy(
            self.policy_steps,
            ONE_AGENT,
            self.env_index,
            explore=explore,
            max_retraces=debugging.max_retraces,
            jit=debugging.compiles,
        )

    def _replace_policy(self, policy: HostPolicy) -> None:
        policy.set_carry(self._policy.carry)
        self._policy = policy

    def _get_actors(self, weights: Weights) -> Mapping[str, ActorState]:
        return {DEFAULT_MODULE: weights.actor}

    @property
    def spaces(self) -> dict[str, Spaces]:
        """Observation and action spaces of the vector environment, an environment and the module."""
        acting = self.policy_step
        single = acting.observation_space, acting.action_pipeline.space
        module = self.module.observation_space, self.module.action_space
        return {**get_rllib_spaces(single, self.num_envs), DEFAULT_MODULE: module}

    def sample_complete_episodes(self, num_steps: int) -> Fragment:
        """Sample at least `num_steps` steps of every environment, up to the end of an episode.

        A finished environment is paused at the start of its next episode until the others have
        finished. The length of the fragment is `num_steps` times a power of two; rows after an
        environment has finished are masked.

        Raises:
            EnvError: If an episode does not end, or environments can only be stepped together.
        """
        rows: FragmentBuilder = self._begin_fragment(num_steps)
        taken = np.zeros(self.num_envs, np.int64)
        while not self._paused.all():
            if rows.length == rows.capacity:
                self._check_episode_length(rows.length - num_steps)
                count = self._transition_count + np.uint32(rows.length)
                self._policy.begin_fragment(self._env_keys, count, num_steps, self._make_prev())
                rows.grow(num_steps)
            self._step(rows)
            done = self._is_first & ~self._paused & (rows.length >= num_steps)
            if done.any():
                taken[done] = rows.length
                self.pause(self._paused | done)
        self.pause(np.zeros(self.num_envs, np.bool_))
        fragments = -(-rows.length // num_steps)
        rows.pad(num_steps << (fragments - 1).bit_length())
        return self._make_fragment(rows, taken)

    def _check_episode_length(self, waited: int) -> None:
        """Raise if an episode exceeds the time limit, `MAX_EPISODE_STEPS` if there is none."""
        if waited <= (self._max_episode_steps or MAX_EPISODE_STEPS):
            return
        index = self.env_index[int(np.argmin(self._paused))]
        raise EnvError(
            f"batch_mode='complete_episodes': an episode of the environment {index} has not ended "
            f"after {waited} steps; set max_episode_steps, or batch_mode='truncate_episodes'."
        )

    def _make_prev(self) -> dict[str, PrevStep]:
        prev = PrevStep(reward=self._reward, is_first=self._is_first, paused=self._paused)
        return {DEFAULT_MODULE: prev}

    def _flatten_obs(self, obs: PyTree) -> list[Any]:
        return self._policy.flatten_obs({DEFAULT_MODULE: obs})

    def _unflatten_obs(self, leaves: Sequence[Any]) -> PyTree:
        return self._policy.unflatten_obs(leaves)[DEFAULT_MODULE]

    def _begin_rows(self, num_steps: int, carry: Carries) -> FragmentBuilder:
        return FragmentBuilder(
            num_steps,
            self._obs,
            self._policy.num_words,
            self._flatten_obs,
            is_first=self._is_first,
            carry=carry[DEFAULT_MODULE],
        )

    def _step(self, part: FragmentBuilder) -> None:
        words = self._policy.act(part.get_current_obs(), self._make_prev())
        if self._random:
            action, chosen = self._random[DEFAULT_MODULE].draw()
        else:
            action, chosen = self._policy.unpack_env_action(words)[DEFAULT_MODULE], None
        track = None
        if self.tracker is not None:
            track = functools.partial(self._add_step, self.tracker, words, chosen)
        step: HostStep = self._step_envs(action, track)
        part.add(words, step)
        reward, starts = part.reward[part.length - 1], part.starts[part.length - 1]
        if np.count_nonzero(self._paused):
            reward = np.where(self._paused, self._reward, reward)
            starts = np.where(self._paused, self._is_first, starts)
        self._reward, self._is_first = reward, starts
        if step.faults:
            self._add_faults(step.faults)
        if self.tracker is not None:
            self.tracker.begin_episodes(step, self._paused)

    def _add_step(
        self,
        tracker: EpisodeTracker,
        words: UInt32[np.ndarray, "B width"],
        chosen: PyTree | None,
        step: HostStep,
    ) -> None:
        outputs = (
            self._policy.unpack_recorded(words)[DEFAULT_MODULE]
            if chosen is None
            else {Columns.ACTIONS: chosen}
        )
        tracker.add_step(outputs, step, self._paused)

    def _build_rollout(self, part: FragmentBuilder) -> tuple[Rollout, EpisodeRecord]:
        recorded = self._policy.unpack_recorded(part.words[: part.length])[DEFAULT_MODULE]
        recorded = jax.tree.map(np.ascontiguousarray, recorded)
        rollout = part.build_rollout(self._unflatten_obs, recorded)
        record = part.build_record(
            self._transition_count, self._episode_return, self._episode_length
        )
        self._obs = part.copy_current_obs()
        self._reward, self._is_first = self._reward.copy(), self._is_first.copy()
        return rollout, record

    def _begin_all(self, seeds: list[int] | None) -> None:
        if self.tracker is not None:
            self.tracker.create_episodes()
        self._obs = self._cast_obs(self.vector.reset(seeds))
        if self.tracker is not None:
            self.tracker.start_episodes(self._unflatten_obs(self._obs))

    def _cast_obs(self, obs: PyTree) -> list[np.ndarray]:
        """Return the leaves of observations, cast to the types of the module's input."""
        leaves = zip(self._flatten_obs(obs), self._policy.obs_shapes, strict=True)
        return [np.array(leaf, shape.dtype) for leaf, shape in leaves]

    def _get_rows_state(self) -> dict[str, PyTree]:
        return {
            "starts": self._is_first.copy(),
            "reward": self._reward.copy(),
            "episode_return": self._episode_return.copy(),
            "episode_length": self._episode_length.copy(),
            "obs": self._unflatten_obs(self._obs),
            "carry": self._policy.carry[DEFAULT_MODULE],
        }

    def _set_rows_state(self, state: dict[str, PyTree]) -> None:
        self._obs = self._cast_obs(state["obs"])
        self._reward = np.array(state["reward"], np.float32)
        self._is_first = np.array(state["starts"], np.bool_)
        self._episode_return = np.array(state["episode_return"], np.float32)
        self._episode_length = np.array(state["episode_length"], np.int32)
        self._policy.set_carry({DEFAULT_MODULE: state["carry"]})

    def _make_tracker(self, hooks: RunnerHooks, lookback: int) -> EpisodeTracker:
        return EpisodeTracker(self, hooks, lookback)

    def _resume_episodes(self, tracker: EpisodeTracker) -> None:
        tracker.resume_episodes(self._unflatten_obs(self._obs), self._episode_length)

    def _clear(self) -> None:
        self._episode_return = np.zeros(self.num_envs, np.float32)
        self._episode_length = np.zeros(self.num_envs, np.int32)
        self._reward = np.zeros(self.num_envs, np.float32)
        self._is_first = np.ones(self.num_envs, np.bool_)
        self._paused = np.zeros(self.num_envs, np.bool_)
        self._policy.set_carry(None)


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
        several = make_agents_env(config.environment_settings, config.multi_agent_settings)
        assert isinstance(several, MadeMultiHostEnv)
        made = several
    made = make_env(config) if made is None else made
    if isinstance(made, MadeMultiHostEnv):
        runner_class, policy_step = MultiEnvRunner, make_multi_policy_step(config, made)
        reads_state = policy_step.reads_state
    else:
        runner_class = config.env_runners_settings.env_runner_cls or EnvRunner
        policy_step, reads_state = make_policy_step(config, made), False
        if runner_class.sample is not EnvRunner.sample:
            raise ConfigError(
                f"env_runner_cls={runner_class.__qualname__} overrides sample(), which training does "
                "not call: override sample_fragment(num_steps), which returns a Fragment."
            )
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
        reads_state=reads_state,
    )
    return cast("Any", runner_class)(
        config=config,
        vector=vector,
        policy_step=policy_step,
        env_index=np.arange(first_env_index, first_env_index + num_envs, dtype=np.int32),
        worker_index=worker_index,
        num_workers=num_workers,
        seed=seed,
        explore=explore,
        max_episode_steps=made.max_episode_steps,
        hooks=CallbackList(config.callbacks_settings) if hooks is None else hooks,
    )
