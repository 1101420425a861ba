"""Devices and lanes change nothing: the same minibatches, and updates that differ by rounding.

One update is compared at rtol 1e-5. Several amplify the rounding (Adam divides by a small root of
squares), so they are compared loosely, and for PPO alone: the others differ from it by the loss.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.assembly.assemble import Assembly, assemble
from jaxrl.training.sharding import make_runner_programs
from tests.contract.test_algorithms import started
from tests.helpers import (
    RELATIVES,
    REPLAYS,
    assert_close,
    assert_equal,
    every_algorithm,
    small,
)

pytestmark = pytest.mark.allow_key_reuse

ONE = {"num_epochs": 1, "minibatch_size": None}
MANY = {"num_epochs": 2, "minibatch_size": 32}
TOLERANCE = {"one": {"rtol": 1e-5, "atol": 1e-6}, "many": {"rtol": 1e-4, "atol": 2e-5}}
BUFFER = {"circular_buffer_num_batches": 2, "circular_buffer_iterations_per_batch": 1}
FIRST_UPDATE = {"APPO": 2}
"""Train batches until the first update, where it is not in the first one: a buffer is filled."""


def one_update(slow: tuple[str, ...] = RELATIVES) -> list[Any]:
    """Every algorithm, for one update."""
    return [
        pytest.param(*param.values, "one", marks=param.marks)
        for param in every_algorithm(slow=slow)
    ]


def config_of(algo: str, updates: str) -> Any:
    training = {**(ONE if updates == "one" else MANY), **(BUFFER if algo in FIRST_UPDATE else {})}
    if algo in REPLAYS:  # one update of 128 rows
        training = {}
    return small(algo, **training).learners(num_shards=8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "updates"),
    [*one_update(slow=(*REPLAYS, *RELATIVES)), pytest.param("PPO", "many", marks=pytest.mark.slow)],
)
def test_a_vmapped_pair_equals_two_runs(algo: str, updates: str) -> None:
    assembly = assemble(config_of(algo, updates))
    batches = FIRST_UPDATE.get(algo, 1)

    def step(state: Any) -> Any:
        return functools.reduce(lambda s, _: assembly.run.step(s)[0], range(batches), state)

    states = [started(assembly, seed) for seed in (0, 1)]
    pair = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    together = jax.jit(jax.vmap(step))(pair)
    alone_step = jax.jit(step)
    for lane, state in enumerate(states):
        alone = alone_step(state)
        lane_state = jax.tree.map(lambda leaf, i=lane: leaf[i], together)
        assert_close(lane_state.env.obs, alone.env.obs)
        np.testing.assert_array_equal(
            np.asarray(lane_state.ring.count), np.asarray(alone.ring.count)
        )
        assert_close(lane_state.learner, alone.learner, **TOLERANCE[updates])


@pytest.mark.representatives("PPO-many")
@pytest.mark.parametrize(
    ("algo", "updates"), [*one_update(slow=(*RELATIVES, "APPO", "DDPG", "PQN")), ("PPO", "many")]
)
def test_one_device_equals_eight(algo: str, updates: str) -> None:
    assembly = assemble(config_of(algo, updates))
    batches = FIRST_UPDATE.get(algo, 1)
    alone = compiled_states(assembly, jax.devices()[:1], batches)
    shared = compiled_states(assembly, jax.devices()[:8], batches)
    assert_equal(alone[0], shared[0])
    np.testing.assert_array_equal(np.asarray(alone[1].env.count), np.asarray(shared[1].env.count))
    assert_close(alone[1].env, shared[1].env)
    assert_equal(alone[1].ring, shared[1].ring)
    assert_close(alone[1].learner, shared[1].learner, **TOLERANCE[updates])


def compiled_states(assembly: Assembly, devices: list[jax.Device], batches: int) -> tuple[Any, Any]:
    """On the host: the first state, and the state after so many train batches."""
    key, params = jax.random.key(0), assembly.made.params
    shapes = jax.eval_shape(assembly.run.init, key, params)
    programs = make_runner_programs(assembly.run, shapes, devices, max_retraces=None, jit=True)
    state = programs.init(key, params)
    if len(devices) > 1:
        assert len(state.env.obs.sharding.device_set) == len(devices)
    before = jax.device_get(state)
    state, _ = programs.run(state, np.int32(1), np.int32(batches))
    return before, jax.device_get(state)


def test_minibatches_have_the_same_members_on_any_number_of_devices() -> None:
    """Every update's rows, exactly; their order, which only sums see, may differ."""
    runner = assemble(config_of("PPO", "many")).train_step
    experience, steps = runner.experience, runner.num_steps

    def rows_of(key: Any, here: Any) -> Any:
        """Return the rows of every update, where the shards `here` of two environments each are held."""
        envs = 2 * here.shape[0]
        orders = experience.sample_orders(key, here)
        updates = jnp.arange(experience.num_updates, dtype=jnp.int32)
        return jax.vmap(lambda i: experience.minibatch_rows(i, orders, steps, envs))(updates)

    compiled, everywhere = jax.jit(rows_of), jnp.arange(8, dtype=jnp.int32)
    alone = np.asarray(compiled(jax.random.key(0), everywhere))
    assert alone.shape == (8, 32)
    parts = []
    for device in range(8):
        rows = np.asarray(compiled(jax.random.key(0), everywhere[device : device + 1]))
        parts.append(rows // 2 * 16 + rows % 2 + 2 * device)
    np.testing.assert_array_equal(np.sort(alone), np.sort(np.concatenate(parts, axis=1)))
    assert set(alone[:4].flat) == set(alone[4:].flat) == set(range(128))

    keys = jnp.stack([jax.random.key(0), jax.random.key(1)])
    lanes = np.asarray(jax.jit(jax.vmap(rows_of, (0, None)))(keys, everywhere))
    np.testing.assert_array_equal(lanes[0], alone)
    np.testing.assert_array_equal(lanes[1], compiled(jax.random.key(1), everywhere))
    assert not np.array_equal(lanes[0], lanes[1])
