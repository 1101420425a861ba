"""Vectorization of an environment: key streams, auto-reset, faults and episode statistics.

Auto-reset is exact in both modes (every episode starts from a fresh draw of its own key):

- `every_step` computes a first state for every copy and step, in bulk before the rollout, and uses
  it where an episode ended. Best if a reset costs no more than a step (CartPole).
- `on_demand` resets only the copies whose episode ended, a sixteenth of the batch at a time. Best
  if a reset is expensive (image games, procedural levels).

Optimistic resets and pools of reset states, as offered by other libraries, share starting states
between episodes and are therefore left out.
"""

import dataclasses
from typing import Any, Protocol

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxrl.core.spaces import get_at_path, get_leaf_spaces
from jaxrl.core.struct import pytree, replace, where_rows
from jaxrl.core.types import Key, Keys, PyTree, TimeStep
from jaxrl.envs.base import JaxEnv, ResetMode
from jaxrl.ops.search import searchsorted


@pytree
class VectorState:
    """State of `B` running copies.

    `index` is a copy's index among all copies of the run. `faulty` marks a copy that was reset to a
    non-finite observation: such entries are zero in `obs`, and its next step is no transition.
    """

    env: PyTree
    obs: PyTree
    key: Keys
    index: Int[Array, " B"]
    count: UInt32[Array, " B"]
    is_first: Bool[Array, " B"]
    faulty: Bool[Array, " B"]
    episode_return: Float[Array, " B"]
    episode_length: Int[Array, " B"]


@pytree
class VectorStep:
    """One transition of each copy; `episode_*` belong to the episode that this step ended."""

    reward: Float[Array, " B"]
    terminated: Bool[Array, " B"]
    truncated: Bool[Array, " B"]
    final_obs: PyTree
    mask: Bool[Array, " B"]
    ended: Bool[Array, " B"]
    episode_return: Float[Array, " B"]
    episode_length: Int[Array, " B"]
    fault: Int[Array, " B"]


@pytree
class InitialStates:
    """First states and observations of new episodes."""

    env: PyTree
    obs: PyTree


@pytree
class StepInputs:
    """Keys and first states that transitions consume, `[B]` or `[T, B]`.

    They are computed for many steps at once, before the loop over them: hashing keys in bulk costs
    a fraction of hashing them step by step. The first states are None if resets are made on demand.
    """

    action_key: Keys
    step_key: Keys
    reset_key: Keys
    initial_states: InitialStates | None


NO_FAULT, REWARD_FAULT, OBS_FAULT = 0, 1, 2
FAULT_NAMES = {NO_FAULT: "none", REWARD_FAULT: "reward", OBS_FAULT: "observation"}

WAITING, CROWD, CUT_AND_ACTS, NO_CHOICE, NOT_ZERO_SUM = 3, 4, 5, 6, 7
BREACHES = {
    WAITING: "an agent is present and does not act, and acting='all' declares that all do: leave "
    "acting out, set acting='some', or end the agent",
    CROWD: "more agents act than max_acting declares: raise it, or leave it out",
    CUT_AND_ACTS: "an agent was truncated and acts on its last observation: it may come again one "
    "step later",
    NO_CHOICE: "an observation is outside of its Discrete or MultiDiscrete space, so that a network "
    "would see none of its values: correct the space, with its start, or the observation",
    NOT_ZERO_SUM: "the rewards of the two players do not sum to 0, and search takes what one wins for "
    "the other's loss: correct them, or use PPO without a planner",
}
"""Sentences on declarations of environments that turned out wrong, by the number in the place of a
fault. What was learned from such steps is wrong, so that the run ends."""


def finite_rows(tree: PyTree, num_axes: int = 1) -> Bool[Array, "*rows"]:
    """Return whether every floating-point entry of a row is finite; rows have `num_axes` axes."""
    checks = [
        jnp.isfinite(leaf).all(axis=tuple(range(num_axes, leaf.ndim)))
        for leaf in jax.tree.leaves(tree)
        if jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    rows = jax.tree.leaves(tree)[0].shape[:num_axes]
    result = jnp.ones(rows, bool)
    for check in checks:
        result = result & check
    return result


def choices_fit(
    space: gymnasium.Space[Any] | None, tree: PyTree, num_axes: int = 1
) -> Bool[Array, "*rows"]:
    """Return whether a row's integers are values of its Discrete and MultiDiscrete spaces.

    Args:
        space: Space of a row; None for one that is not to be checked.
        tree: Values, whose rows have `num_axes` axes.
        num_axes: Number of these axes.
    """
    result = jnp.ones(jax.tree.leaves(tree)[0].shape[:num_axes], bool)
    for path, leaf in [] if space is None else get_leaf_spaces(space):
        value = get_at_path(tree, path)
        if isinstance(leaf, spaces.Discrete):
            first, number = np.asarray(leaf.start), np.asarray(leaf.n)
        elif isinstance(leaf, spaces.MultiDiscrete):
            axes = (1,) * num_axes
            first, number = (x.reshape(*axes, *x.shape) for x in (leaf.start, leaf.nvec))
        else:
            continue
        first, last = first.astype(np.int32), (first + number - 1).astype(np.int32)
        fits = (value >= first) & (value <= last)
        result &= fits.all(axis=tuple(range(num_axes, value.ndim)))
    return result


def derive_env_keys(key: Key, index: Int[Array, " B"]) -> tuple[Keys, Keys]:
    """Return each copy's key of the first reset, and the base key of its later draws."""
    folded = jax.vmap(jax.random.fold_in, (None, 0))(key, index)
    split = jax.vmap(lambda key: jax.random.split(key, 2))(folded)
    return split[:, 0], split[:, 1]


def derive_transition_keys(
    key: Keys, count: UInt32[Array, " B"], steps: UInt32[Array, " T"]
) -> tuple[Keys, Keys, Keys]:
    """Return keys `[T, B]` of the actions, steps and resets at the transitions `count + steps`."""
    counts = count[None, :] + steps[:, None]
    folded = jax.vmap(jax.vmap(jax.random.fold_in), (None, 0))(key, counts)
    split = jax.vmap(jax.vmap(lambda key: jax.random.split(key, 3)))(folded)
    return split[:, :, 0], split[:, :, 1], split[:, :, 2]


def zero_non_finite(tree: PyTree) -> PyTree:
    """Replace infinite and NaN entries by zeros."""

    def clean(leaf: Array) -> Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return jnp.where(jnp.isfinite(leaf), leaf, jnp.zeros((), leaf.dtype))

    return jax.tree.map(clean, tree)


class HasStreams(Protocol):
    """State of copies that have a key and a transition count each."""

    @property
    def key(self) -> Keys:
        """Base keys of the copies' draws."""
        ...

    @property
    def count(self) -> UInt32[Array, " B"]:
        """Numbers of transitions made."""
        ...


class Resettable(Protocol):
    """Environment with a pure reset; what it observes at first may be any tree."""

    def reset(self, key: Key, params: PyTree, /) -> tuple[PyTree, PyTree]:
        """Return an initial state and what is observed of it."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class AutoReset:
    """Exact auto-reset of many copies, with what transitions consume.

    Every draw is `fold_in(key of the copy, its transition count)`, so data depend neither on the
    number of devices nor on the runner.
    """

    env: Resettable
    reset_mode: ResetMode = "every_step"

    def make_step_inputs(self, state: HasStreams, num_steps: int, params: PyTree) -> StepInputs:
        """Return the keys and first states of each copy's next transitions, `[num_steps, B]`."""
        steps = jnp.arange(num_steps, dtype=jnp.uint32)
        action_key, step_key, reset_key = derive_transition_keys(state.key, state.count, steps)
        fresh = None
        if self.reset_mode == "every_step":
            env_state, obs = jax.vmap(jax.vmap(self.env.reset, (0, None)), (0, None))(
                reset_key, params
            )
            fresh = InitialStates(env=env_state, obs=obs)
        return StepInputs(
            action_key=action_key, step_key=step_key, reset_key=reset_key, initial_states=fresh
        )

    def reset_ended(
        self,
        inputs: StepInputs,
        ended: Bool[Array, " B"],
        env_state: PyTree,
        obs: PyTree,
        params: PyTree,
    ) -> tuple[PyTree, PyTree]:
        """Return states and observations, fresh ones where an episode ended."""
        if inputs.initial_states is None:
            return self._reset_on_demand(inputs.reset_key, ended, env_state, obs, params)
        return where_rows(
            ended, (inputs.initial_states.env, inputs.initial_states.obs), (env_state, obs)
        )

    def _reset_on_demand(
        self, keys: Keys, ended: Bool[Array, " B"], env_state: PyTree, obs: PyTree, params: PyTree
    ) -> tuple[PyTree, PyTree]:
        rows = ended.shape[0]
        chunk = max(1, rows // 16)
        ordinal = jnp.cumsum(ended.astype(jnp.int32))
        total = ordinal[-1]

        def body(carry: _ResetLoop) -> _ResetLoop:
            wanted = carry.done + jnp.arange(1, chunk + 1, dtype=jnp.int32)
            row = searchsorted(ordinal, wanted)  # past the last one: `rows`, which is dropped
            fresh = jax.vmap(self.env.reset, (0, None))(keys[jnp.minimum(row, rows - 1)], params)
            current = jax.tree.map(
                lambda old, new: old.at[row].set(new, mode="drop"), carry.current, fresh
            )
            return _ResetLoop(done=carry.done + chunk, current=current)

        start = _ResetLoop(done=jnp.zeros((), jnp.int32), current=(env_state, obs))
        return jax.lax.while_loop(lambda c: c.done < total, body, start).current


@pytree
class _ResetLoop:
    done: Int[Array, ""]
    current: PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class VectorEnv(AutoReset):
    """Pure `reset` and `step` of many copies; the batch size is that of the keys and states given.

    A copy that returns a non-finite reward or observation is
    reset; that row is no transition (`mask` False), its episode is dropped, and `fault` holds the
    cause. It also holds the number of a breach of the contract.

    Attributes:
        obs_space: Observation space, if its choices are checked.
    """

    env: JaxEnv[Any, Any]
    obs_space: gymnasium.Space[Any] | None = None

    def reset(self, key: Key, index: Int[Array, " B"], params: PyTree) -> VectorState:
        """Return first states of the copies with indices `index`. Consumes the key."""
        reset_keys, streams = derive_env_keys(key, index)
        env_state, obs = jax.vmap(self.env.reset, (0, None))(reset_keys, params)
        rows = index.shape[0]
        return VectorState(
            env=env_state,
            obs=zero_non_finite(obs),
            faulty=~finite_rows(obs),
            key=streams,
            index=index.astype(jnp.int32),
            count=jnp.zeros((rows,), jnp.uint32),
            is_first=jnp.ones((rows,), bool),
            episode_return=jnp.zeros((rows,), jnp.float32),
            episode_length=jnp.zeros((rows,), jnp.int32),
        )

    def step(
        self, state: VectorState, action: PyTree, inputs: StepInputs, params: PyTree
    ) -> tuple[VectorState, VectorStep]:
        """Step every copy, and reset those whose episode ended."""
        env_state, ts = jax.vmap(self.env.step, (0, 0, 0, None))(
            inputs.step_key, state.env, action, params
        )
        # Rewards may be integers, or weakly typed.
        reward = jnp.asarray(ts.reward).astype(jnp.float32)
        finite_reward, finite_obs = jnp.isfinite(reward), finite_rows(ts.obs) & ~state.faulty
        mask = finite_reward & finite_obs
        reward = jnp.where(mask, reward, 0.0)
        terminated = ts.terminated & mask
        truncated = ts.truncated | ~mask
        ended = terminated | truncated
        episode_return = state.episode_return + reward
        episode_length = state.episode_length + mask
        env_state, obs = self.reset_ended(inputs, ended, env_state, ts.obs, params)
        step = VectorStep(
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            final_obs=where_rows(mask, ts.obs, state.obs),
            mask=mask,
            ended=ended & mask,
            episode_return=episode_return,
            episode_length=episode_length,
            fault=jnp.where(
                mask,
                self._find_breach(state, ts),
                jnp.where(finite_obs, REWARD_FAULT, OBS_FAULT),
            ),
        )
        return replace(
            state,
            env=env_state,
            obs=zero_non_finite(obs),
            faulty=~finite_rows(obs),
            count=state.count + 1,
            is_first=ended,
            episode_return=jnp.where(ended, 0.0, episode_return),
            episode_length=jnp.where(ended, 0, episode_length),
        ), step

    def _find_breach(self, state: VectorState, ts: TimeStep) -> Int[Array, " B"]:
        """Return `NO_CHOICE` where an observation that was acted on or is the last one does not fit.

        Nothing is learned from the observation after a termination.
        """
        fits = choices_fit(self.obs_space, state.obs)
        fits &= choices_fit(self.obs_space, ts.obs) | ts.terminated | ~ts.truncated
        return jnp.where(fits, NO_FAULT, NO_CHOICE)
