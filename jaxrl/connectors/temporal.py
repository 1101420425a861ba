"""Temporal observation connectors: frame stacking, previous actions and rewards."""

import dataclasses
from typing import Any, ClassVar, Literal

import gymnasium
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float

from jaxrl.connectors.base import Before, TemporalConnector, take_rllib_arguments
from jaxrl.core.space_arrays import flatten, get_flat_size
from jaxrl.core.spaces import (
    ACTION_SPACE,
    OBSERVATION_SPACE,
    check_supported,
    map_leaves,
    map_spaces,
)
from jaxrl.core.struct import pytree, where_rows
from jaxrl.core.types import PyTree
from jaxrl.errors import ConfigError, SpaceError
from jaxrl.modules.rl_module import ORIG_OBS, PREV_ACTIONS, PREV_REWARDS, make_zeros


@take_rllib_arguments()
@dataclasses.dataclass(frozen=True, eq=False)
class FrameStacking(TemporalConnector):
    """Stacks the latest `num_frames` observations along the last axis, the newest last.

    A vector of n numbers becomes one of `num_frames * n`, an image's channels are multiplied, a
    Discrete becomes a MultiDiscrete; in a Dict or Tuple every part is stacked. Frames before the
    first of an episode are zeros (as in RLlib) or copies of the first. For discrete spaces that
    start above 0, the first choice takes the place of zero.

    Args:
        num_frames: Number of observations per stack.
        padding: Frames before the first of an episode, "zero" or "first".
        space: Input space, set by `bind`.
    """

    num_frames: int
    padding: Literal["zero", "first"] = "zero"
    space: gymnasium.Space[Any] | None = None

    reads_action = False
    reads_reward = False

    def __post_init__(self) -> None:
        """Raise ConfigError for fewer than 1 frames and for unknown paddings."""
        _check_count("FrameStacking", "num_frames", self.num_frames, least=1)
        if self.padding not in ("zero", "first"):
            raise ConfigError(
                f"FrameStacking(padding={self.padding!r}) must be 'zero' or 'first', the frames "
                "before an episode's first."
            )

    def bind(
        self, space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> "FrameStacking | None":
        """Return None for a single frame."""
        check_supported(space, OBSERVATION_SPACE)
        return None if self.num_frames == 1 else dataclasses.replace(self, space=space)

    def output_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        return map_spaces(self._stack_space, space)

    def _stack_space(self, space: Any) -> gymnasium.Space[Any]:
        match space:
            case spaces.Box():
                return self._stack_box(space)
            case spaces.MultiBinary():
                return spaces.MultiBinary((*space.shape[:-1], self.num_frames * space.shape[-1]))
            case spaces.Discrete():
                nvec, start = np.array([space.n]), np.array([space.start])
            case _:
                nvec, start = space.nvec, space.start
        times = [1] * (nvec.ndim - 1) + [self.num_frames]
        return spaces.MultiDiscrete(np.tile(nvec, times), start=np.tile(start, times))

    def _stack_box(self, space: spaces.Box) -> spaces.Box:
        low, high = (np.atleast_1d(bound) for bound in _bounds(space))
        older_low, older_high = low, high
        if self.padding == "zero":
            older_low, older_high = np.minimum(low, 0), np.maximum(high, 0)
        older = self.num_frames - 1
        return spaces.Box(
            np.concatenate([older_low] * older + [low], axis=-1),
            np.concatenate([older_high] * older + [high], axis=-1),
            dtype=low.dtype.type,
        )

    def init_carry(self, space: gymnasium.Space[Any], num_envs: int) -> PyTree:
        """Return the older frames, `[num_envs, ..., (num_frames - 1) * n]` for every part."""

        def older(leaf: gymnasium.Space[Any]) -> Array:
            frame = _with_axis(leaf, _zero_frame(leaf, num_envs))
            return jnp.concatenate([frame] * (self.num_frames - 1), axis=-1)

        return map_leaves(older, space)

    def step(
        self, state: PyTree, carry: PyTree, obs: PyTree, before: Before
    ) -> tuple[PyTree, PyTree]:
        del state
        assert self.space is not None, "bind() has not been called"

        def stack(leaf: gymnasium.Space[Any], older: Array, x: Array) -> Array:
            x = _with_axis(leaf, x).astype(older.dtype)
            if self.padding == "first":
                repeated = jnp.concatenate([x] * (self.num_frames - 1), axis=-1)
                older = where_rows(before.is_first, repeated, older)
            return jnp.concatenate([older, x], axis=-1)

        def keep_latest(leaf: gymnasium.Space[Any], x: Array, frames: Array) -> Array:
            return frames[..., _with_axis(leaf, x).shape[-1] :]

        frames = map_leaves(stack, self.space, carry, obs)
        return map_leaves(keep_latest, self.space, obs, frames), frames


def _with_axis(space: gymnasium.Space[Any], value: Array) -> Array:
    """Return the value with an axis to stack along, which is added for scalar spaces."""
    return value if space.shape else value[..., None]


def _zero_frame(space: gymnasium.Space[Any], num_envs: int) -> Array:
    """Return a frame of zeros, or of the first choice for discrete spaces without 0."""
    zeros = make_zeros(space, (num_envs,))
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return zeros
    number = space.n if isinstance(space, spaces.Discrete) else space.nvec
    first = np.where((space.start > 0) | (space.start + number <= 0), space.start, 0)
    return zeros + jnp.asarray(first, zeros.dtype)[None]


@pytree
class PastCarry:
    """Actions and rewards before the previous step, oldest first, `[B, n]`; None for none."""

    actions: Float[Array, "B n"] | None
    rewards: Float[Array, "B m"] | None


@take_rllib_arguments()
@dataclasses.dataclass(frozen=True)
class PrevActionsPrevRewards(TemporalConnector):
    """Adds the latest actions and rewards of the episode to the observation, oldest first.

    Actions are the module's, flattened to one vector with discrete ones one-hot; rewards are the
    environment's, unclipped. Before the first step of an episode both are zeros. They are appended
    to a vector and added to a Dict as `"prev_n_actions"` and `"prev_n_rewards"` (RLlib's names);
    any other observation becomes the part `"_orig_obs"` of such a Dict.

    Args:
        n_prev_actions: Number of actions; 0 for none.
        n_prev_rewards: Number of rewards; 0 for none.
        space: Input space, set by `bind`.
        action_space: Action space of the module, set by `bind`.
    """

    n_prev_actions: int = 1
    n_prev_rewards: int = 1
    space: gymnasium.Space[Any] | None = None
    action_space: gymnasium.Space[Any] | None = None

    ORIG_OBS_KEY: ClassVar[str] = ORIG_OBS
    PREV_ACTIONS_KEY: ClassVar[str] = PREV_ACTIONS
    PREV_REWARDS_KEY: ClassVar[str] = PREV_REWARDS

    def __post_init__(self) -> None:
        """Raise ConfigError for negative numbers, and if both are zero."""
        _check_count("PrevActionsPrevRewards", "n_prev_actions", self.n_prev_actions, least=0)
        _check_count("PrevActionsPrevRewards", "n_prev_rewards", self.n_prev_rewards, least=0)
        if self.n_prev_actions == self.n_prev_rewards == 0:
            raise ConfigError(
                "PrevActionsPrevRewards(n_prev_actions=0, n_prev_rewards=0) adds nothing; leave it "
                "out."
            )
        object.__setattr__(self, "reads_action", self.n_prev_actions > 0)
        object.__setattr__(self, "reads_reward", self.n_prev_rewards > 0)

    def bind(
        self, space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> "PrevActionsPrevRewards":
        if isinstance(space, spaces.Dict):
            taken = [name for name in self._added_spaces(action_space) if name in space.spaces]
            if taken:
                raise SpaceError(
                    f"PrevActionsPrevRewards adds {taken[0]!r}, but the observation space {space} "
                    "has a part of this name already."
                )
        return dataclasses.replace(self, space=space, action_space=action_space)

    def _added_spaces(self, action_space: gymnasium.Space[Any] | None) -> dict[str, spaces.Box]:
        """Return the spaces of the added parts by name."""
        assert action_space is not None, "bind() has not been called"
        infinite = isinstance(action_space, spaces.Box | spaces.Dict | spaces.Tuple)
        low, high = (-np.inf, np.inf) if infinite else (0.0, 1.0)
        added: dict[str, spaces.Box] = {}
        if self.n_prev_actions:
            size = self.n_prev_actions * get_flat_size(action_space, ACTION_SPACE)
            added[self.PREV_ACTIONS_KEY] = spaces.Box(low, high, (size,), np.float32)
        if self.n_prev_rewards:
            shape = (self.n_prev_rewards,)
            added[self.PREV_REWARDS_KEY] = spaces.Box(-np.inf, np.inf, shape, np.float32)
        return added

    def output_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        added = self._added_spaces(self.action_space)
        if isinstance(space, spaces.Dict):
            return spaces.Dict({**space.spaces, **added})
        if not _is_vector(space):
            return spaces.Dict({self.ORIG_OBS_KEY: space, **added})
        assert isinstance(space, spaces.Box)
        parts = [space, *added.values()]
        return spaces.Box(
            np.concatenate([part.low.astype(np.float32) for part in parts]),
            np.concatenate([part.high.astype(np.float32) for part in parts]),
            dtype=np.float32,
        )

    def init_carry(self, space: gymnasium.Space[Any], num_envs: int) -> PastCarry:
        assert self.action_space is not None
        size = get_flat_size(self.action_space, ACTION_SPACE)

        def blank(number: int, width: int) -> Array | None:
            return jnp.zeros((num_envs, (number - 1) * width), jnp.float32) if number > 1 else None

        return PastCarry(
            actions=blank(self.n_prev_actions, size), rewards=blank(self.n_prev_rewards, 1)
        )

    def step(
        self, state: PyTree, carry: PastCarry, obs: PyTree, before: Before
    ) -> tuple[PyTree, PyTree]:
        del state
        assert self.action_space is not None
        added: dict[str, Array] = {}
        if self.n_prev_actions:
            latest = _zero_where_first(before.is_first, flatten(self.action_space, before.action))
            actions, added[self.PREV_ACTIONS_KEY] = _push(carry.actions, latest)
            carry = dataclasses.replace(carry, actions=actions)
        if self.n_prev_rewards:
            latest = _zero_where_first(before.is_first, before.reward[..., None])
            rewards, added[self.PREV_REWARDS_KEY] = _push(carry.rewards, latest)
            carry = dataclasses.replace(carry, rewards=rewards)
        if isinstance(self.space, spaces.Dict):
            return carry, {**obs, **added}
        if not _is_vector(self.space):
            return carry, {self.ORIG_OBS_KEY: obs, **added}
        return carry, jnp.concatenate([obs.astype(jnp.float32), *added.values()], axis=-1)


def _push(
    older: Float[Array, "B n"] | None, latest: Float[Array, "B m"]
) -> tuple[Float[Array, "B n"] | None, Float[Array, "B k"]]:
    """Append the latest rows.

    Returns:
        The rows to carry, and all rows including the latest.
    """
    if older is None:
        return None, latest
    both = jnp.concatenate([older, latest], axis=-1)
    return both[..., latest.shape[-1] :], both


def _zero_where_first(
    is_first: Bool[Array, " B"], value: Float[Array, "B n"]
) -> Float[Array, "B n"]:
    """Return the value, with zeros where an episode begins."""
    return where_rows(is_first, jnp.zeros_like(value), value)


def _is_vector(space: gymnasium.Space[Any] | None) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) == 1


def _bounds(space: spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds in the dtype that values of the space have inside a program."""
    dtype = np.dtype(make_zeros(space, ()).dtype)
    low, high = space.low, space.high
    if dtype.kind in "iu":
        range_ = np.iinfo(dtype)
        low, high = np.clip(low, range_.min, range_.max), np.clip(high, range_.min, range_.max)
    return low.astype(dtype), high.astype(dtype)


def _check_count(connector: str, name: str, value: object, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{connector}({name}={value!r}) must be a whole number from {least} on.")
