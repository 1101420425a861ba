"""Goals replaced in hindsight, against a plain list of rows with the same draws."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import ReplayBuffer
from jaxrl.buffers.hindsight import Hindsight
from jaxrl.buffers.replay import PackedReplayBuffer
from jaxrl.core.struct import replace
from jaxrl.core.types import Rollout
from tests.buffers.streams import GAMMA, Buffer, Streams, every_place, stored_places

pytestmark = pytest.mark.allow_key_reuse

FRACTION, BONUS = 0.7, 0.25


class GoalStreams(Streams):
    """Rows that achieve their own number and desire that of their environment's first."""

    def rollout(self, num_steps: int) -> Rollout:
        rollout = super().rollout(num_steps)
        number, after = (x["vector"][..., :1] for x in (rollout.obs, rollout.final_obs))
        desired = jnp.floor(number / 100_000) * 100_000

        def with_goals(achieved: jax.Array) -> dict[str, jax.Array]:
            return {"observation": number, "achieved_goal": achieved, "desired_goal": desired}

        return replace(rollout, obs=with_goals(number), final_obs=with_goals(after + 1))


def compute_reward(achieved: Any, desired: Any, params: Any) -> Any:
    """Reward by distance, in whole numbers of float32 but for the bonus; an end at the goal."""
    return params["bonus"] - jnp.abs(achieved - desired)[0], jnp.all(achieved == desired)


def count_rows(rows: list[Any], rank: int, horizon: int) -> int:
    """Rows from one on, until its episode ends, another begins, or one is no transition."""
    count = 1
    for before, row in zip(rows[rank:], rows[rank + 1 :], strict=False):
        is_cut = before.terminated or before.truncated or row.is_first or not row.mask
        if is_cut or count == horizon:
            break
        count += 1
    return count


@pytest.mark.parametrize(
    ("shape", "shards", "rollouts", "horizon", "strategy", "buffer_class"),
    [
        ((2, 24, 6), 2, 3, 4, "future", ReplayBuffer),  # not full
        ((2, 24, 6), 1, 9, 50, "future", ReplayBuffer),  # overwritten
        ((4, 12, 2), 2, 13, 12, "final", ReplayBuffer),
        ((2, 24, 6), 2, 9, 50, "future", PackedReplayBuffer),
    ],
)
def test_goals_rewards_and_discounts_are_those_of_a_list_of_rows(
    shape: Any, shards: int, rollouts: int, horizon: int, strategy: Any, buffer_class: Any
) -> None:
    hindsight = Hindsight(
        compute_reward=compute_reward,
        env_params=None,
        goal_fraction=FRACTION,
        horizon=horizon,
        strategy=strategy,
    )
    num_envs, length, _ = shape
    is_packed = buffer_class is PackedReplayBuffer  # stores transitions alone
    streams = GoalStreams(num_envs, length, 7, ends=0.2, gaps=0.0 if is_packed else 0.3)
    made = Buffer(shape, num_shards=shards, hindsight=hindsight)
    made.replay = buffer_class(**vars(made.replay)).with_env_params({"bonus": jnp.float32(BONUS)})
    made.add = jax.jit(made.replay.add)
    state = made.replay.init(GoalStreams(num_envs, 1, 0).rollout(shape[2]))
    for _ in range(rollouts):
        state = made.put(state, streams)
    key = jax.random.key(3)
    batch = jax.tree.map(
        np.asarray,
        jax.jit(made.replay.gather_transitions)(
            state, every_place(shape), jnp.float32(GAMMA), made.shards, key
        ),
    )
    counts = np.ones(num_envs * length, np.int32)
    for env, place in stored_places(streams):
        rank, _ = streams.slot(env, place)
        counts[env * length + place] = count_rows(streams.held[env], rank, horizon)
    chosen, offsets = [], []
    for shard, count in enumerate(counts.reshape(shards, -1)):
        goal_key, row_key = jax.random.split(jax.random.fold_in(key, shard))
        chosen.append(jax.random.bernoulli(goal_key, FRACTION, count.shape))
        offsets.append(jax.random.randint(row_key, count.shape, 0, count))
    replaced, later = np.concatenate(chosen), np.concatenate(offsets)
    seen = set[tuple[bool, bool]]()
    for env, place in stored_places(streams):
        i = env * length + place
        rank, row = streams.slot(env, place)
        is_replaced = bool(replaced[i]) and row.mask
        offset = counts[i] - 1 if strategy == "final" else later[i]
        goal = np.float64(streams.held[env][rank + offset].number + 1)
        if not is_replaced:
            goal = np.float64(env * 100_000)
        reward = BONUS - abs(row.number + 1 - goal) if is_replaced else row.reward
        ends = goal == row.number + 1 if is_replaced else row.terminated
        for obs in (batch.obs, batch.next_obs):
            assert obs["desired_goal"][i] == goal
        assert batch.obs["achieved_goal"][i] == row.number
        assert batch.next_obs["achieved_goal"][i] == row.number + 1
        assert batch.reward[i] == np.float32(reward)
        assert batch.discount[i] == (0.0 if ends else np.float32(GAMMA))
        seen.add((is_replaced, bool(ends)))
    assert len(seen) == 4  # replaced or not, each with and without an end
