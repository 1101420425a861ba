"""Hindsight experience replay: goals of drawn transitions replaced by goals achieved later."""

import dataclasses
from typing import Literal, Protocol, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxrl.core.struct import replace
from jaxrl.core.types import Key, PyTree, Rollout, Transition

OBSERVATION, ACHIEVED_GOAL, DESIRED_GOAL = "observation", "achieved_goal", "desired_goal"
"""Parts of the observations of an environment with goals, named as in gymnasium-robotics."""

Strategy: TypeAlias = Literal["future", "final"]


class ComputeReward(Protocol):
    """Reward of a step by the goal that it achieved and the desired one, of a single environment."""

    def __call__(
        self, achieved_goal: PyTree, desired_goal: PyTree, params: PyTree, /
    ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
        """Return the reward, and whether the episode terminates.

        Args:
            achieved_goal: Goal achieved after the step.
            desired_goal: Goal of the episode.
            params: Parameters of the environment.
        """
        ...


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Hindsight:
    """Replacement of goals in drawn transitions (Andrychowicz et al. 2017, section 3.3).

    Args:
        compute_reward: Function that recomputes reward and termination.
        env_params: Parameters of the environment.
        goal_fraction: Probability that a row's goal is replaced; 0.8 is the paper's k = 4.
        horizon: Number of rows, from the drawn one on, that a goal is searched in.
        strategy: Row whose achieved goal replaces the desired one: a random one of the drawn row and
            those that follow it in its episode ("future"), or the last of them ("final").
    """

    compute_reward: ComputeReward
    env_params: PyTree
    goal_fraction: float
    horizon: int
    strategy: Strategy

    def relabel(
        self,
        rows: Rollout,
        transition: Transition,
        env: Int[Array, " N"],
        time: Int[Array, " N"],
        num_following: Int[Array, " N"],
        gamma: Float[Array, ""],
        shards: Int[Array, " S"],
        key: Key,
    ) -> Transition:
        """Replace the goals of some transitions, and recompute their rewards and discounts.

        Args:
            rows: Ring of rows, `[B, L]`.
            transition: Transitions of one step.
            env: Columns of the transitions.
            time: Positions of the transitions.
            num_following: Number of rows that are stored after each.
            gamma: Discount factor.
            shards: Logical shards, each with an equal part of the transitions.
            key: Key of the draws. Consumed.
        """
        length = rows.reward.shape[1]
        horizon = min(self.horizon, length)
        count = count_episode_rows(rows, env, time, num_following, horizon)
        chosen, offset = self._draw(count, shards, key)
        chosen = chosen & rows.mask[env, time]
        achieved = rows.final_obs[ACHIEVED_GOAL]
        place = (time + offset) % length

        def choose(new: Array, old: Array) -> Array:
            return jnp.where(chosen.reshape(-1, *(1,) * (old.ndim - 1)), new, old)

        goal = jax.tree.map(
            lambda later, old: choose(later[env, place].astype(old.dtype), old),
            achieved,
            transition.obs[DESIRED_GOAL],
        )
        reward, terminated = jax.vmap(self.compute_reward, (0, 0, None))(
            transition.next_obs[ACHIEVED_GOAL], goal, self.env_params
        )
        return replace(
            transition,
            obs={**transition.obs, DESIRED_GOAL: goal},
            next_obs={**transition.next_obs, DESIRED_GOAL: goal},
            reward=choose(reward.astype(jnp.float32), transition.reward),
            discount=choose(gamma * (1.0 - terminated.astype(jnp.float32)), transition.discount),
        )

    def _draw(
        self, count: Int[Array, " N"], shards: Int[Array, " S"], key: Key
    ) -> tuple[Bool[Array, " N"], Int[Array, " N"]]:
        """Draw the transitions whose goal is replaced, and how many rows later it was achieved.

        Args:
            count: Number of rows that each goal may be of.
            shards: Logical shards.
            key: Key. Consumed.
        """

        def draw(shard: Int[Array, ""], count: Int[Array, " n"]) -> tuple[Array, Array]:
            goal_key, row_key = jax.random.split(jax.random.fold_in(key, shard))
            fraction = jnp.float32(self.goal_fraction)
            offset = jax.random.randint(row_key, count.shape, 0, count, jnp.int32)
            return jax.random.bernoulli(goal_key, fraction, count.shape), offset

        chosen, offset = jax.vmap(draw)(shards, count.reshape(shards.shape[0], -1))
        return chosen.reshape(-1), count - 1 if self.strategy == "final" else offset.reshape(-1)


def count_episode_rows(
    rows: Rollout,
    env: Int[Array, " N"],
    time: Int[Array, " N"],
    num_following: Int[Array, " N"],
    horizon: int,
) -> Int[Array, " N"]:
    """Count rows from each given one on, up to its episode's end, a gap, or the newest row.

    Args:
        rows: Ring of rows, `[B, L]`.
        env: Columns of the first rows.
        time: Positions of the first rows.
        num_following: Number of rows that are stored after each first row.
        horizon: Largest count.
    """
    ahead = jnp.arange(horizon, dtype=jnp.int32)[None]
    place = (time[:, None] + ahead) % rows.reward.shape[1]

    def at(flags: Bool[Array, "B L"]) -> Bool[Array, "N h"]:
        return flags[env[:, None], place]

    has_ended = at(rows.terminated) | at(rows.truncated)
    is_stored = ahead[:, 1:] <= num_following[:, None]
    goes_on = ~has_ended[:, :-1] & at(rows.mask)[:, 1:] & ~at(rows.is_first)[:, 1:] & is_stored
    stops = jnp.concatenate([~goes_on, jnp.ones((time.shape[0], 1), bool)], axis=1)
    return jnp.argmax(stops, axis=1).astype(jnp.int32) + 1
