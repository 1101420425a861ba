"""Types shared by the whole library.

Shapes: `[T, B, ...]` in rollouts, `[B, ...]` in batches, no batch axis in `ops`. Keys are typed
(`jax.random.key`), split once into named keys and passed last.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Integer, PRNGKeyArray, Real, UInt32
from jaxtyping import Key as _Keys

from jaxrl.core.struct import pytree, replace, static

Key: TypeAlias = PRNGKeyArray
Keys: TypeAlias = _Keys[Array, "..."]
"""Typed keys of any shape."""
ActionMask: TypeAlias = Bool[Array, "*batch n"] | Real[Array, "*batch n"]
"""Mask of n choices, of the observation space's dtype: 0 or False where one is illegal."""
Params: TypeAlias = Any
PyTree: TypeAlias = Any
Device: TypeAlias = Any
"""A `jax.Device`, which type checkers do not accept as a class."""
Metrics: TypeAlias = dict[str, Array]


class TreeStructure(Protocol):
    """Structure of a pytree: a `jax.tree_util.PyTreeDef`, which type checkers do not know."""

    def unflatten(self, leaves: Iterable[PyTree], /) -> PyTree:
        """Return the tree with these leaves."""
        ...

    def flatten_up_to(self, tree: PyTree, /) -> list[PyTree]:
        """Return the parts of a tree at the places of the leaves."""
        ...


def strip_weak_types(tree: PyTree) -> PyTree:
    """Convert weakly typed leaves to strongly typed ones.

    Arrays read from a file are strongly typed, and a program traced for a weak type would have to
    be compiled again for them.
    """

    def strengthen(leaf: Array) -> Array:
        return jnp.asarray(leaf, leaf.dtype) if jax.typeof(leaf).weak_type else leaf

    return jax.tree.map(strengthen, tree)


class Columns:
    """RLlib's column names, as used in module outputs and batches, and a search's value of its root."""

    OBS = "obs"
    ACTIONS = "actions"
    REWARDS = "rewards"
    TERMINATEDS = "terminateds"
    TRUNCATEDS = "truncateds"
    ACTION_DIST_INPUTS = "action_dist_inputs"
    ACTION_LOGP = "action_logp"
    VF_PREDS = "vf_preds"
    SEARCH_VALUE = "search_value"
    STATE_IN = "state_in"
    STATE_OUT = "state_out"
    EMBEDDINGS = "embeddings"
    TD_ERROR = "td_error"
    ADVANTAGES = "advantages"
    VALUE_TARGETS = "value_targets"
    LOSS_MASK = "loss_mask"


def _make_false() -> Any:
    """Return NumPy's False, a constant that does not start JAX's backend."""
    return np.False_


@pytree
class TimeStep:
    """Result of one step of one environment, before any reset.

    `obs` is the successor of the state that was acted on, also at an episode's end. There is no
    `done`: `terminated` ends the task (nothing follows), `truncated` only ends the recording, which
    an environment leaves to its time limit unless it truncates for a reason of its own.
    """

    obs: PyTree
    reward: Float[Array, "*batch"]
    terminated: Bool[Array, "*batch"]
    truncated: Bool[Array, "*batch"] = dataclasses.field(default_factory=_make_false)
    info: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])


@pytree
class Rollout:
    """Consecutive transitions of `B` environments, `[T, B, ...]`.

    `final_obs[t]` is the successor of `obs[t]` before auto-reset: at an episode's end it differs
    from `obs[t + 1]`, elsewhere it is equal. `mask` is False where a row is not a transition (a
    host environment's reset row, padding, an environment that returned a non-finite value); losses,
    targets and statistics are masked means. `carry_in` is the module's recurrent state at `t = 0`.
    """

    obs: PyTree
    action: PyTree
    reward: Float[Array, "T B"]
    terminated: Bool[Array, "T B"]
    truncated: Bool[Array, "T B"]
    final_obs: PyTree
    is_first: Bool[Array, "T B"]
    mask: Bool[Array, "T B"]
    extras: dict[str, PyTree]
    carry_in: PyTree = None


@pytree
class Transition:
    """Rows for one gradient step of an algorithm with replay, `[N, ...]`, as the module sees them.

    `reward` is the sum of the discounted rewards of up to n steps and `discount` the factor of the
    value of `next_obs`, `gamma ** steps * (1 - terminated)`. `next_obs` comes after the last of
    these steps, before any reset, so that truncated episodes bootstrap. `weight` is the row's
    importance weight, 0 where a row is not a transition. `extras` has what only some learners ask
    for, by name (see `ReturnColumns`).

    For a recurrent module, rows come in sequences, `[N, L]`; `obs` is then a `Sequence` and
    `next_obs` are `SuccessorObs`.
    """

    obs: PyTree
    action: PyTree
    reward: Float[Array, " N"]
    discount: Float[Array, " N"]
    next_obs: PyTree
    weight: Float[Array, " N"]
    extras: dict[str, PyTree] = dataclasses.field(default_factory=dict[str, PyTree])


IS_RECORDED = "is_recorded"
"""Extra of rows of which some are recorded data: 1 for these, 0 for sampled ones."""


class ReturnColumns:
    """Names of the extras of rows of recorded data with what followed them in their episode.

    The return of a row is `RETURN_TO_GO + END_DISCOUNT * V(END_OBS)`: the discounted sum of the
    rewards up to the end of the recorded part, and the value of the part's final observation,
    discounted by `gamma ** steps` and 0 after a termination.
    """

    RETURN_TO_GO = "return_to_go"
    END_DISCOUNT = "end_discount"
    END_OBS = "end_obs"


@pytree
class ObsWithCarry:
    """Observations `[N, ...]` with the carry before each; None is the carry of an episode's start.

    Like `Sequence` and `SuccessorObs` it is accepted wherever modules take bare observations.
    """

    obs: PyTree
    carry: PyTree

    @property
    def rows(self) -> PyTree:
        """Observations for which outputs are computed."""
        return self.obs


@pytree
class ObsSequence:
    """Consecutive observations `[N, W, ...]`, of which the first `burn_in` rows give no outputs.

    `carry` `[N, ...]` is the carry before the first row; None is that of an episode's start. It is
    reset before every row with `is_first`. Outputs are `[N, W - burn_in, ...]`, and no gradient
    flows through the burn-in.
    """

    obs: PyTree
    carry: PyTree
    is_first: Bool[Array, "N W"]
    burn_in: int = static(default=0)

    @property
    def rows(self) -> PyTree:
        """Observations for which outputs are computed."""
        return jax.tree.map(lambda x: x[:, self.burn_in :], self.obs)


@pytree
class SuccessorObs:
    """Observations `[N, L, ...]`, each with the carry after one row of a sequence.

    `after` is the index of that row, counted from the end of the burn-in.
    """

    obs: PyTree
    after: Int[Array, "N L"]
    sequence: ObsSequence

    @property
    def rows(self) -> PyTree:
        """Observations for which outputs are computed."""
        return self.obs


@pytree
class CentralObs:
    """Observations of an agent, and beside them what its central critic sees; both `[..., n]`.

    Values are computed of `state`, actions of `obs` alone. It stands in for observations wherever
    values are computed, also inside of the containers with carries; an agent acts on bare ones.
    """

    obs: PyTree
    state: Float[Array, "*batch n"]


def obs_only(obs: PyTree) -> PyTree:
    """Return the observations for which outputs are computed, without their carries."""
    return obs.rows if isinstance(obs, ObsWithCarry | ObsSequence | SuccessorObs) else obs


def map_obs(function: Callable[[PyTree], PyTree], obs: PyTree) -> PyTree:
    """Apply a function to bare observations, or to those inside a container with carries."""
    match obs:
        case ObsWithCarry() | ObsSequence():
            return replace(obs, obs=function(obs.obs))
        case SuccessorObs():
            sequence = map_obs(function, obs.sequence)
            return replace(obs, obs=function(obs.obs), sequence=sequence)
        case _:
            return function(obs)


@pytree
class Counter:
    """Lifetime count of 64 bits as two words, exact where JAX has no 64-bit integers."""

    low: UInt32[Array, ""]
    high: UInt32[Array, ""]

    @staticmethod
    def zeros() -> "Counter":
        return Counter(low=jnp.zeros((), jnp.uint32), high=jnp.zeros((), jnp.uint32))

    @staticmethod
    def from_number(number: "int | float | Array") -> "Counter":
        """Convert a whole number below 2**64; one of Python is converted exactly."""
        if isinstance(number, int | float | np.number):
            count = int(number)
            return Counter(
                low=jnp.asarray(count % 2**32, jnp.uint32),
                high=jnp.asarray(count >> 32, jnp.uint32),
            )
        high = jnp.floor(number / 2.0**32)
        low = number - high * 2.0**32
        return Counter(low=low.astype(jnp.uint32), high=high.astype(jnp.uint32))

    def is_below(self, other: "Counter") -> Bool[Array, "*n"]:
        """Return whether this count is strictly less than another."""
        return (self.high < other.high) | ((self.high == other.high) & (self.low < other.low))

    def add(self, amount: int | Integer[Array, "*n"]) -> "Counter":
        """Return the count plus a non-negative amount below 2**32."""
        low = self.low + jnp.asarray(amount, jnp.uint32)
        return Counter(low=low, high=self.high + (low < self.low).astype(jnp.uint32))

    def as_float(self) -> Float[Array, "*n"]:
        """Return the count as float32 (24 significant bits), for schedules."""
        return self.high.astype(jnp.float32) * 2.0**32 + self.low.astype(jnp.float32)

    def __int__(self) -> int:
        low, high = jax.device_get((self.low, self.high))
        return (int(high) << 32) + int(low)


@pytree
class Progress:
    """Progress of a run, read by schedules and exploration."""

    env_steps: Counter
    updates: Counter
    train_batches: Counter

    @staticmethod
    def zeros() -> "Progress":
        return Progress(
            env_steps=Counter.zeros(), updates=Counter.zeros(), train_batches=Counter.zeros()
        )
