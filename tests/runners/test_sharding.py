"""State of connectors per environment, where a train batch has several of its fragments."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.connectors.base import LearnerConnector
from jaxrl.connectors.learning import NormalizeRewards
from jaxrl.core.struct import replace
from jaxrl.core.types import Rollout
from jaxrl.runners.fragment import Fragment, as_rollout_batch
from tests.helpers import assert_close, small

pytestmark = pytest.mark.allow_key_reuse

NUM_ENVS, NUM_FRAGMENTS = 4, 4


@dataclasses.dataclass(frozen=True)
class Before(LearnerConnector):
    """Adds to each reward half the sum of all that came before it in the environment's life."""

    def init_per_env(self, num_envs: int) -> Any:
        return jnp.zeros((num_envs,))

    def __call__(self, state: Any, per_env: Any, rollout: Rollout, axis_name: str | None) -> Any:
        del axis_name
        sums = per_env[None] + jnp.cumsum(rollout.reward, axis=0)
        return state, sums[-1], replace(rollout, reward=rollout.reward + sums / 2)


def config_of(num_envs: int, batch: int) -> Any:
    config = small("PPO", num_epochs=1, minibatch_size=None).training(train_batch_size=batch)
    config.env_runners(placement="host", num_envs_per_env_runner=num_envs, normalize_rewards=True)
    return config.learners(learner_connector=Before)


def fragments_of_four_environments() -> list[Fragment]:
    with config_of(NUM_ENVS, 8 * NUM_ENVS).build() as algorithm:
        group: Any = algorithm.env_runner_group
        group.sync_weights(algorithm.learner_group.get_weights(0))
        return [group.next_batch()[0] for _ in range(NUM_FRAGMENTS)]


@pytest.mark.slow
@pytest.mark.parametrize("num_devices", [1, 4])
def test_fragments_of_an_environment_are_chained_in_order_of_time(num_devices: int) -> None:
    fragments = fragments_of_four_environments()
    rollouts = [as_rollout_batch(fragment).rollout for fragment in fragments]
    long = jax.tree.map(
        lambda *leaves: np.concatenate(leaves), *[replace(r, carry_in=None) for r in rollouts]
    )
    assert long.is_first[1:].any()
    connectors = NormalizeRewards(0.99), Before()
    state, running, scaled = connectors[0](
        connectors[0].init(jax.random.key(0)), connectors[0].init_per_env(NUM_ENVS), long, None
    )
    sums = connectors[1](
        connectors[1].init(jax.random.key(0)), connectors[1].init_per_env(NUM_ENVS), scaled, None
    )
    config = config_of(NUM_ENVS * NUM_FRAGMENTS, 8 * NUM_ENVS * NUM_FRAGMENTS)
    with config.learners(num_devices=num_devices, num_shards=4).build() as algorithm:
        arrived = [fragments[place] for place in (2, 0, 3, 1)]
        algorithm.learner_group.update(arrived, lambda phase: None)
        got = jax.device_get(algorithm.state.connectors)
    assert_close(got.learner[0], state, rtol=1e-4)
    others = np.zeros(NUM_ENVS * (NUM_FRAGMENTS - 1))
    np.testing.assert_allclose(got.per_env[0], np.append(running, others), rtol=1e-5)
    np.testing.assert_allclose(got.per_env[1], np.append(sums[1], others), rtol=1e-4)
