"""Devices and lanes change nothing: the same minibatches, and updates that differ by rounding.

One update is compared at rtol 1e-5. Several amplify the rounding (Adam divides by a small root of
squares), so they are compared loosely, and for PPO alone: the others differ from it by the loss.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.runners.assemble import Assembly, assemble
from jaxrl.runners.sharding import compile_runner
from tests.contract.test_algorithms import started
from tests.helpers import ALGORITHMS, assert_close, assert_equal, small

pytestmark = pytest.mark.allow_key_reuse

ONE = {"num_epochs": 1, "minibatch_size": None}
MANY = {"num_epochs": 2, "minibatch_size": 32}
TOLERANCE = {"one": {"rtol": 1e-5, "atol": 1e-6}, "many": {"rtol": 1e-4, "atol": 2e-5}}
CASES = [*((algo, "one") for algo in sorted(ALGORITHMS)), ("PPO", "many")]


def config_of(algo: str, updates: str) -> Any:
    return small(algo, **(ONE if updates == "one" else MANY)).learners(num_shards=8)


@pytest.mark.parametrize(("algo", "updates"), CASES)
def test_a_vmapped_pair_equals_two_runs(algo: str, updates: str) -> None:
    assembly = assemble(config_of(algo, updates))
    step = assembly.runner.step
    states = [started(assembly, seed) for seed in (0, 1)]
    pair = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    together, _ = jax.jit(jax.vmap(step))(pair)
    alone_step = jax.jit(step)
    for lane, state in enumerate(states):
        alone, _ = alone_step(state)
        lane_state = jax.tree.map(lambda leaf, i=lane: leaf[i], together)
        assert_close(lane_state.env.obs, alone.env.obs)
        np.testing.assert_array_equal(
            np.asarray(lane_state.ring.count), np.asarray(alone.ring.count)
        )
        assert_close(lane_state.learner, alone.learner, **TOLERANCE[updates])


@pytest.mark.parametrize(("algo", "updates"), CASES)
def test_one_device_equals_eight(algo: str, updates: str) -> None:
    assembly = assemble(config_of(algo, updates))
    alone = compiled_states(assembly, jax.devices()[:1])
    shared = compiled_states(assembly, jax.devices()[:8])
    assert_equal(alone[0], shared[0])
    np.testing.assert_array_equal(np.asarray(alone[1].env.count), np.asarray(shared[1].env.count))
    assert_close(alone[1].env, shared[1].env)
    assert_equal(alone[1].ring, shared[1].ring)
    assert_close(alone[1].learner, shared[1].learner, **TOLERANCE[updates])


def compiled_states(assembly: Assembly, devices: list[jax.Device]) -> tuple[Any, Any]:
    """On the host: the first state, and the state after one train batch."""
    key, params = jax.random.key(0), assembly.made.params
    shapes = jax.eval_shape(assembly.runner.init, key, params)
    programs = compile_runner(assembly.runner, shapes, devices, max_retraces=None, jit=True)
    state = programs.init(key, params)
    if len(devices) > 1:
        assert len(state.env.obs.sharding.device_set) == len(devices)
    before = jax.device_get(state)
    state, _ = programs.run(state, np.int32(1))
    return before, jax.device_get(state)


@pytest.mark.parametrize("updates", ["one", "many"])
def test_minibatches_have_the_same_members_on_any_number_of_devices(updates: str) -> None:
    """Every update's rows, exactly; their order, which only sums see, may differ."""
    runner = assemble(config_of("PPO", updates)).runner
    experience, steps = runner.experience, runner.num_steps

    def members(seed: int, first: int, shards: int) -> list[np.ndarray]:
        """Step and environment of each update's rows, where `shards` shards are held."""
        here, envs = jnp.arange(first, first + shards, dtype=jnp.int32), 2 * shards
        orders = experience.orders(jax.random.key(seed), here)
        updates = jnp.arange(experience.num_updates, dtype=jnp.int32)
        rows = np.asarray(jax.vmap(lambda i: experience.rows(i, orders, steps, envs))(updates))
        return list(rows // envs * 100 + rows % envs + 2 * first)

    alone = members(0, 0, 8)
    assert [len(rows) for rows in alone] == [128] if updates == "one" else [32] * 8
    for devices in (2, 8):
        held = 8 // devices
        parts = [members(0, device * held, held) for device in range(devices)]
        for update, rows in enumerate(alone):
            shared = np.concatenate([part[update] for part in parts])
            np.testing.assert_array_equal(np.sort(rows), np.sort(shared))

    def lane(key: Any) -> Any:
        orders = experience.orders(key, jnp.arange(8, dtype=jnp.int32))
        return experience.rows(jnp.int32(0), orders, steps, 16)

    keys = jnp.stack([jax.random.key(0), jax.random.key(1)])
    lanes = np.asarray(jax.vmap(lane)(keys))
    for seed, rows in enumerate(lanes):
        np.testing.assert_array_equal(rows // 16 * 100 + rows % 16, members(seed, 0, 8)[0])
