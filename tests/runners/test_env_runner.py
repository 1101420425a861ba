"""The host EnvRunner: its fragments are those of the compiled loop, and go on exactly."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.types import Progress
from jaxrl.runners.assemble import assemble
from jaxrl.runners.env_runner import EnvRunner, make_env_runner
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.rollout import Actor
from tests.helpers import small

pytestmark = pytest.mark.allow_key_reuse

SEED = 3


def actor_of(acting: Any, seed: int = 0) -> Actor:
    return Actor(
        params=acting.module.init(jax.random.key(seed)),
        obs_state=acting.obs_pipeline.init(),
        hparams={},
        progress=Progress.zero(),
    )


def weights_of(acting: Any, version: int = 0) -> Weights:
    return Weights(version=version, actor=jax.tree.map(np.asarray, actor_of(acting, version)))


def in_graph(config: Any, num_envs: int, num_steps: int, fragments: int) -> list[Any]:
    """Rollouts and records of the compiled loop."""
    assembly = assemble(config)
    sampler: Any = assembly.sampler
    made: Any = assembly.made

    actor = actor_of(sampler)
    env_key = jax.random.split(jax.random.key(SEED), 3)[1]
    state = jax.jit(sampler.env.reset)(env_key, jnp.arange(num_envs), made.params)
    carry = sampler.initial_carry(num_envs)
    rollout = jax.jit(lambda *a: sampler.rollout(actor, *a, made.params, num_steps))
    got: list[Any] = []
    for _ in range(fragments):
        state, carry, *data = rollout(state, carry)
        got.append(jax.tree.map(np.asarray, data))
    return got


def host_runner(config: Any, num_envs: int, first: int = 0) -> EnvRunner:
    runner = make_env_runner(config, num_envs=num_envs, first_env_index=first)
    runner.set_weights(weights_of(runner.acting))
    return runner


def assert_same(fragment: Fragment, rollout: Any, record: Any) -> None:
    for got, want in ((fragment.rollout, rollout), (fragment.record, record)):
        for name, value in vars(want).items():
            leaves = jax.tree.leaves(vars(got)[name])
            for leaf, wanted in zip(leaves, jax.tree.leaves(value), strict=True):
                assert leaf.dtype == wanted.dtype, name
                assert leaf.shape == wanted.shape, name
                if leaf.dtype == np.float32:  # two programs round differently
                    np.testing.assert_allclose(leaf, wanted, rtol=1e-5, atol=1e-6, err_msg=name)
                else:
                    np.testing.assert_array_equal(leaf, wanted, err_msg=name)


def test_a_jax_environment_gives_the_transitions_of_the_compiled_loop() -> None:
    config = small().environment(max_episode_steps=13).debugging(seed=SEED)
    wanted = in_graph(config, 6, 20, 3)
    runner = host_runner(config, 6)
    ends = 0
    for rollout, record in wanted:
        fragment = runner.sample(20)
        assert_same(fragment, rollout, record)
        ends += int(record.ended.sum())
    assert ends > 20
    half = host_runner(config, 3, first=3)
    rollout, record = (jax.tree.map(lambda x: x[:, 3:], part) for part in wanted[0])
    assert_same(half.sample(20), rollout, record)
