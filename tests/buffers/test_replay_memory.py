"""A buffer of a million images is added to and sampled from in place."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxrl import DQNConfig, ReplayBuffer
from jaxrl.assembly.assemble import assemble
from jaxrl.buffers.replay import Prioritization, ReplayState
from jaxrl.core.struct import replace
from jaxrl.core.types import Rollout
from jaxrl.ops.schedules import Schedule

CAPACITY = 1_000_000
IMAGE = (10, 10, 4)


def images(num_steps: int, num_envs: int) -> Rollout:
    """The shapes of a rollout."""

    def of(*shape: int, dtype: Any) -> Any:
        return jax.ShapeDtypeStruct((num_steps, num_envs, *shape), dtype)

    flag = of(dtype=jnp.bool_)
    return Rollout(
        obs=of(*IMAGE, dtype=jnp.uint8),
        action=of(dtype=jnp.int32),
        reward=of(dtype=jnp.float32),
        terminated=flag,
        truncated=flag,
        final_obs=of(*IMAGE, dtype=jnp.uint8),
        is_first=flag,
        mask=flag,
        extras={},
    )


def bytes_of(tree: Any) -> int:
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


@pytest.mark.parametrize("is_prioritized", [False, True])
@pytest.mark.parametrize(("num_envs", "num_steps", "num_shards"), [(1, 4, 1), (64, 8, 8)])
def test_no_copy_of_the_buffer(
    num_envs: int, num_steps: int, num_shards: int, is_prioritized: bool
) -> None:
    """Compiled, not run: temporaries are far smaller than the buffer, which is given away."""
    beta = Schedule.from_setting([[0, 0.4], [1000, 1.0]])
    replay = ReplayBuffer(
        length=CAPACITY // num_envs // num_steps * num_steps,
        num_envs=num_envs,
        num_shards=num_shards,
        batch_size=32,
        num_updates=4,
        n_step=(1, 3),
        learning_starts=1000,
        prioritization=Prioritization(alpha=0.6, beta=beta) if is_prioritized else None,
    )
    rollout = images(num_steps, num_envs)
    shards = jnp.arange(num_shards)

    def iteration(state: ReplayState, rollout: Rollout, seed: Any) -> tuple[ReplayState, Any]:
        env_index = jnp.arange(num_envs)
        state = replay.add(state, rollout, env_index, jnp.zeros((num_steps, num_envs), jnp.uint32))

        def update(i: Any, carry: Any) -> Any:
            priorities, sums = carry
            keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), i))
            drawn = replay.sample(state, priorities, keys[0], shards, jnp.float32(0.0))
            batch = replay.gather_transitions(state, drawn, jnp.float32(0.99), shards, keys[1])
            value = (batch.obs ^ batch.next_obs).astype(jnp.float32).mean(axis=(1, 2, 3))
            if priorities is not None:
                priorities = replay.update_priorities(priorities, drawn, value)
            return priorities, sums + jnp.mean(value + batch.discount * batch.reward)

        number = jnp.where(replay.can_learn(state), replay.num_updates, 0)
        priorities, sums = jax.lax.fori_loop(0, number, update, (state.priorities, jnp.zeros(())))
        return replace(state, priorities=priorities), sums

    state = jax.eval_shape(lambda: replay.init(rollout))
    seed = jax.ShapeDtypeStruct((), jnp.int32)
    compiled = jax.jit(iteration, donate_argnums=0).lower(state, rollout, seed).compile()
    memory = compiled.memory_analysis()
    size = bytes_of(state)
    assert size > 800_000_000
    assert memory.alias_size_in_bytes >= size
    assert memory.temp_size_in_bytes < size / 500
    assert memory.output_size_in_bytes - memory.alias_size_in_bytes < 1000


def test_no_copy_of_the_buffer_in_the_program_of_a_run() -> None:
    """Environments, rollouts and updates included: prioritised DQN on Breakout."""
    config: Any = DQNConfig().environment("gymnax:Breakout-MinAtar")
    config.env_runners(num_envs_per_env_runner=8, rollout_fragment_length=4)
    config.training(train_batch_size=32, training_intensity=4.0, n_step=3, max_buffer_bytes=10**9)
    config.training(replay_buffer_config={"type": "prioritized", "capacity": CAPACITY})
    config.rl_module(model_config={"conv_filters": [[4, 3, 1, "valid"]], "fcnet_hiddens": [8]})
    assembly = assemble(config)
    runner, number = assembly.run, jax.ShapeDtypeStruct((), jnp.int32)
    state = jax.eval_shape(runner.init, jax.random.key(0), assembly.made.params)
    assert state.buffer.rows.experience.obs.dtype == jnp.uint8
    memory = (
        jax.jit(runner.run_batches, donate_argnums=0)
        .lower(state, number)
        .compile()
        .memory_analysis()
    )
    assert bytes_of(state.buffer) > 800_000_000
    assert memory.alias_size_in_bytes >= bytes_of(state.buffer)
    assert memory.temp_size_in_bytes < bytes_of(state.buffer) / 500


def test_a_buffer_that_is_not_given_away_is_seen_to_be_copied() -> None:
    """The measure of the test above tells."""
    replay = ReplayBuffer(
        length=CAPACITY,
        num_envs=1,
        num_shards=1,
        batch_size=32,
        num_updates=1,
        n_step=(1, 1),
        learning_starts=0,
    )
    rollout = images(4, 1)
    state = jax.eval_shape(lambda: replay.init(rollout))
    numbers = jax.ShapeDtypeStruct((1,), jnp.int32), jax.ShapeDtypeStruct((4, 1), jnp.uint32)
    memory = jax.jit(replay.add).lower(state, rollout, *numbers).compile().memory_analysis()
    assert memory.alias_size_in_bytes == 0
    assert memory.output_size_in_bytes > 800_000_000
