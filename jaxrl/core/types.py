"""The shared vocabulary.

Shapes: `[T, B, ...]` in rollouts, `[B, ...]` in batches, no batch axis in `ops`. Keys are typed
(`jax.random.key`), split once into named keys and passed last.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt32

from jaxrl.core.struct import pytree, replace, static

Key: TypeAlias = PRNGKeyArray
Params: TypeAlias = Any
PyTree: TypeAlias = Any
Device: TypeAlias = Any
"""A `jax.Device`, which type checkers do not take for a class."""
Metrics: TypeAlias = dict[str, Array]


def strongly_typed(tree: PyTree) -> PyTree:
    """The tree without weakly typed leaves, which arrays read from a file are not.

    A program that was traced for a weak type is another one, to be compiled again.
    """

    def strong(leaf: Any) -> Any:
        return jnp.asarray(leaf, leaf.dtype) if jax.typeof(leaf).weak_type else leaf

    return jax.tree.map(strong, tree)


class Columns:
    """RLlib's column names, as used in module outputs and batches."""

    OBS = "obs"
    ACTIONS = "actions"
    REWARDS = "rewards"
    TERMINATEDS = "terminateds"
    TRUNCATEDS = "truncateds"
    ACTION_DIST_INPUTS = "action_dist_inputs"
    ACTION_LOGP = "action_logp"
    VF_PREDS = "vf_preds"
    STATE_IN = "state_in"
    STATE_OUT = "state_out"
    EMBEDDINGS = "embeddings"
    TD_ERROR = "td_error"
    ADVANTAGES = "advantages"
    VALUE_TARGETS = "value_targets"
    LOSS_MASK = "loss_mask"


def _never() -> Any:
    """A constant of NumPy's, which does not start JAX's backend."""
    return np.False_


@pytree
class TimeStep:
    """What one step of one environment returns, before any reset.

    `obs` is the successor of the state that was acted on, also at an episode's end. There is no
    `done`: `terminated` ends the task (nothing follows), `truncated` only ends the recording, which
    an environment leaves to its time limit unless it has a reason of its own.
    """

    obs: PyTree
    reward: Float[Array, "*batch"]
    terminated: Bool[Array, "*batch"]
    truncated: Bool[Array, "*batch"] = dataclasses.field(default_factory=_never)
    info: dict[str, Any] = dataclasses.field(default_factory=dict[str, Any])


@pytree
class Rollout:
    """Consecutive transitions of `B` environments, `[T, B, ...]`.

    `final_obs[t]` is the successor of `obs[t]` before auto-reset: at an end it differs from
    `obs[t + 1]`, elsewhere it is equal. `mask` is False where a row is no transition (a host
    environment's reset row, padding, an environment that returned a non-finite value); losses,
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

    `reward` is the sum of the discounted rewards of up to n steps and `discount` what the value of
    `next_obs` is multiplied with, `gamma ** steps * (1 - terminated)`. `next_obs` comes after the
    last of these steps, before any reset, so that truncated episodes bootstrap. `weight` is the
    row's importance weight, 0 where a row is no transition.

    For a module that remembers, every row is one of a sequence's, `[N, L]`; then `obs` is a Sequence
    and `next_obs` are Successors.
    """

    obs: PyTree
    action: PyTree
    reward: Float[Array, " N"]
    discount: Float[Array, " N"]
    next_obs: PyTree
    weight: Float[Array, " N"]


@pytree
class Remembered:
    """Observations `[N, ...]` and what is remembered before each; None is an episode's start.

    Like a Sequence and Successors it stands where modules take bare observations.
    """

    obs: PyTree
    carry: PyTree

    @property
    def rows(self) -> PyTree:
        """The observations that outputs are for."""
        return self.obs


@pytree
class Sequence:
    """Consecutive observations `[N, W, ...]`, whose first rows, the burn-in, give no outputs.

    `carry` `[N, ...]` is what was remembered before the first row; None is an episode's start. It
    starts anew before every row with `is_first`. Outputs are `[N, W - burn_in, ...]`, and no
    gradient goes through the burn-in.
    """

    obs: PyTree
    carry: PyTree
    is_first: Bool[Array, "N W"]
    burn_in: int = static(default=0)

    @property
    def rows(self) -> PyTree:
        """The observations that outputs are for."""
        return jax.tree.map(lambda x: x[:, self.burn_in :], self.obs)


@pytree
class Successors:
    """Observations `[N, L, ...]`, each with what a sequence has left behind after one of its rows.

    `after` counts the rows behind the burn-in.
    """

    obs: PyTree
    after: Int[Array, "N L"]
    sequence: Sequence

    @property
    def rows(self) -> PyTree:
        """The observations that outputs are for."""
        return self.obs


def bare(obs: PyTree) -> PyTree:
    """The observations that outputs are for, with or without a past."""
    return obs.rows if isinstance(obs, Remembered | Sequence | Successors) else obs


def map_obs(function: Callable[[PyTree], PyTree], obs: PyTree) -> PyTree:
    """A function of bare observations, of those inside where they have a past."""
    match obs:
        case Remembered() | Sequence():
            return replace(obs, obs=function(obs.obs))
        case Successors():
            sequence = map_obs(function, obs.sequence)
            return replace(obs, obs=function(obs.obs), sequence=sequence)
        case _:
            return function(obs)


@pytree
class Counter:
    """A lifetime count of 64 bits as two words, exact where JAX has no 64-bit integers."""

    low: UInt32[Array, ""]
    high: UInt32[Array, ""]

    @staticmethod
    def zero() -> "Counter":
        return Counter(low=jnp.zeros((), jnp.uint32), high=jnp.zeros((), jnp.uint32))

    @staticmethod
    def of(number: "int | float | Array") -> "Counter":
        """A whole number below 2**64: of Python's to the last step, of an array's as it holds it."""
        if isinstance(number, int | float | np.number):
            count = int(number)
            return Counter(
                low=jnp.asarray(count % 2**32, jnp.uint32),
                high=jnp.asarray(count >> 32, jnp.uint32),
            )
        high = jnp.floor(number / 2.0**32)
        low = number - high * 2.0**32
        return Counter(low=low.astype(jnp.uint32), high=high.astype(jnp.uint32))

    def is_below(self, other: "Counter") -> Bool[Array, ""]:
        """Whether it counts less than another, to the last step."""
        return (self.high < other.high) | ((self.high == other.high) & (self.low < other.low))

    def add(self, amount: int | Int[Array, ""]) -> "Counter":
        """The count plus a non-negative amount below 2**32."""
        low = self.low + jnp.asarray(amount, jnp.uint32)
        return Counter(low=low, high=self.high + (low < self.low).astype(jnp.uint32))

    def as_float(self) -> Float[Array, ""]:
        """The count in float32 (24 significant bits), for schedules."""
        return self.high.astype(jnp.float32) * 2.0**32 + self.low.astype(jnp.float32)

    def __int__(self) -> int:
        low, high = jax.device_get((self.low, self.high))
        return (int(high) << 32) + int(low)


@pytree
class Progress:
    """How far a run has come; what schedules and exploration read."""

    env_steps: Counter
    updates: Counter
    train_batches: Counter

    @staticmethod
    def zero() -> "Progress":
        return Progress(
            env_steps=Counter.zero(), updates=Counter.zero(), train_batches=Counter.zero()
        )
