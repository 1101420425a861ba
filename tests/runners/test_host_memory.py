"""A replay buffer in host memory: what is drawn and learned is what a buffer on the device gives."""

from typing import Any

import jax
import numpy as np
import pytest

from jaxrl.algorithm import Algorithm
from tests.helpers import assert_close, assert_equal
from tests.replays import PRIORITIZED, replaying

pytestmark = pytest.mark.allow_key_reuse


def after_a_few_updates(
    buffer: dict[str, Any], num_devices: int = 1, **training: Any
) -> tuple[Any, list[str]]:
    """The state on the host, and the names of the programs."""
    config = replaying(buffer=buffer, **training).env_runners(placement="host")
    config.learners(num_devices=num_devices, num_shards=4)
    config.reporting(min_sample_timesteps_per_iteration=40)
    with config.build() as algorithm:
        algorithm.train()
        if "storage" in buffer:
            home = jax.local_devices(backend="cpu")[0]
            devices = {
                d for leaf in jax.tree.leaves(algorithm.state.buffer) for d in leaf.devices()
            }
            assert devices == {home}
            assert len(algorithm.state.progress.env_steps.low.devices()) == num_devices
            assert "in host memory" in algorithm.explain()
        return jax.device_get(algorithm.state), [p.name for p in algorithm._programs]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("buffer", "training", "num_devices"),
    [
        pytest.param({}, {"n_step": (1, 3), "training_intensity": 8.0}, 1, marks=pytest.mark.slow),
        # One update for each rollout sees the priorities of all before it.
        (PRIORITIZED, {"training_intensity": 2.0}, 1),
        (PRIORITIZED, {"training_intensity": 2.0}, 4),
    ],
    ids=["uniform", "prioritized", "prioritized-4-devices"],
)
def test_it_is_learned_from_as_if_it_were_on_the_device(
    buffer: dict[str, Any], training: dict[str, Any], num_devices: int
) -> None:
    config = {**training, "num_steps_sampled_before_learning_starts": 24}
    on_device, _ = after_a_few_updates(buffer, **config)
    on_host, programs = after_a_few_updates({**buffer, "storage": "host"}, num_devices, **config)
    assert int(on_host.progress.updates.low) == 3 * training["training_intensity"] // 2
    assert_close(on_device.buffer, on_host.buffer, rtol=1e-4)
    assert_close(on_device.learner, on_host.learner, rtol=1e-4, atol=1e-5)
    assert_equal(on_device.ring, on_host.ring)
    assert {"receive", "add", "sample_rows", "update"} <= set(programs)
    assert ("update_priorities" in programs) == bool(buffer)


@pytest.mark.slow
def test_updates_of_one_rollout_renew_priorities_together() -> None:
    config = replaying(buffer={**PRIORITIZED, "storage": "host"}).env_runners(placement="host")
    with config.learners(local_device_idx=1).build() as algorithm:
        assert algorithm.devices == [jax.local_devices()[1]]
        algorithm.train()
        result = algorithm.train()
        assert result["compile"]["sample_rows"]["num_compilations"] == 1
        assert result["compile"]["add"]["donated_bytes"] > 80 * 44
        assert result["learners"]["default_policy"]["num_updates_lifetime"] == 2 * (24 - 3)
        buffer = jax.device_get(algorithm.state.buffer)
        nodes = np.asarray(buffer.priorities.tree.nodes)
        leaves = nodes[:, nodes.shape[1] // 2 :].reshape(-1)
        assert len(np.unique(leaves)) > 20
        np.testing.assert_allclose(nodes[:, 1], nodes[:, nodes.shape[1] // 2 :].sum(axis=1), 1e-5)
        # What else there is of an Algorithm does not mind where the buffer is.
        algorithm.evaluate(num_episodes=2)
        assert algorithm.compute_single_action(np.zeros(4, np.float32)) in (0, 1)
        weights = jax.tree.map(lambda x: x * 0.5, algorithm.get_weights())
        algorithm.set_weights(weights)
        algorithm.train()


@pytest.mark.slow
def test_it_may_be_left_out_of_checkpoints(tmp_path: Any) -> None:
    config = replaying(buffer={"storage": "host"}, store_buffer_in_checkpoints=False)
    with config.env_runners(placement="host").build() as algorithm:
        algorithm.train()
        path = algorithm.save(tmp_path)
        with Algorithm.from_checkpoint(path) as resumed:
            resumed.train()
            algorithm.restore(path)
            algorithm.train()
            assert_equal(resumed.state, algorithm.state)
