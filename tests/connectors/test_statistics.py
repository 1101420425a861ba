"""The filter's statistics: from several runners as from one, with the weights, kept, left alone."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import Algorithm
from jaxrl.assembly.assemble import assemble
from jaxrl.connectors import FrameStacking
from jaxrl.core.types import Columns
from tests.helpers import assert_close, assert_equal, small

pytestmark = pytest.mark.allow_key_reuse


def pairs() -> Any:
    return FrameStacking(2)


def filtered(**settings: Any) -> Any:
    config = small().env_runners(
        observation_filter="MeanStdFilter", env_to_module_connector=pairs, **settings
    )
    return config.debugging(loggers=[])


def columns(rollout: Any, part: slice) -> Any:
    """Some environments of a rollout, as another runner's fragment holds them."""
    cut = jax.tree.map(lambda leaf: leaf[:, part], dataclasses.replace(rollout, carry_in=None))
    return dataclasses.replace(
        cut, carry_in=jax.tree.map(lambda leaf: leaf[part], rollout.carry_in)
    )


def test_the_fragments_of_several_runners_count_as_those_of_one() -> None:
    """Rows that are no transitions count nowhere; the second rollout starts within episodes."""
    assembly = assemble(filtered())
    runner, acting = assembly.run, assembly.policy_step

    def rollouts(key: Any) -> Any:
        state = runner.init(key, assembly.made.params)
        env, carry, found = state.env, state.carry, []
        for _ in range(2):
            env, carry, raw, _ = runner.rollout_worker.rollout(
                runner.make_actor_state(state), env, carry, state.env_params, 12
            )
            found.append(raw)
        return found

    parts = [slice(0, 3), slice(3, 8), slice(8, 16)]

    def compare(key: Any) -> Any:
        first, raw = rollouts(key)
        mask = jax.random.bernoulli(jax.random.key(3), 0.8, raw.mask.shape)
        raw = dataclasses.replace(raw, mask=mask)
        before, _ = acting.update_statistics(acting.obs_pipeline.init(), first, None)
        whole, seen = acting.update_statistics(before, raw, None)
        merged, in_turn, shown = acting.obs_pipeline.init(), before, []
        for part in parts:
            fresh, _ = acting.update_statistics(
                acting.obs_pipeline.init(), columns(raw, part), None
            )
            merged = (merged[0], merged[1].merge(fresh[1]))
            shown.append(acting.preprocess_rollout(before, columns(raw, part)).obs)
            in_turn, _ = acting.update_statistics(in_turn, columns(raw, part), None)
        together = (before[0], before[1].merge(merged[1]))
        return whole, together, in_turn, seen.obs, jnp.concatenate(shown, axis=1), mask

    whole, together, in_turn, seen, shown, mask = jax.jit(compare)(jax.random.key(0))
    np.testing.assert_allclose(seen, shown, rtol=1e-5, atol=1e-5)
    assert whole[1].count == 16 * 12 + mask.sum()
    assert_close(whole, together, rtol=1e-4, atol=1e-4)
    # each of these was filtered by what came before it, but statistics are of what was received
    assert_close(whole, in_turn, rtol=1e-4, atol=1e-4)


def test_over_devices_they_are_those_of_all() -> None:
    """A fragment's statistics reduced over an axis, as devices and learners do it."""
    assembly = assemble(filtered())
    pipeline = assembly.policy_step.obs_pipeline
    rng = np.random.default_rng(0)
    obs = jnp.asarray(rng.normal(5.0, 3.0, (6, 8, 8)), jnp.float32)
    mask = jnp.asarray(rng.random((6, 8)) < 0.7)
    want = pipeline.update(pipeline.init(), (obs[..., :4], obs), mask, None)

    def one(obs: Any, mask: Any) -> Any:
        return pipeline.update(pipeline.init(), (obs[..., :4], obs), mask, "devices")

    halves = (jnp.stack(jnp.split(x, 2, axis=1)) for x in (obs, mask))
    got = jax.vmap(one, axis_name="devices")(*halves)
    for device in (0, 1):
        assert_close(jax.tree.map(lambda leaf, d=device: leaf[d], got), want, rtol=1e-5)


def test_they_go_with_the_weights_survive_a_checkpoint_and_are_not_evaluations(
    tmp_path: Any,
) -> None:
    config = filtered(placement="host").evaluation(evaluation_duration=2)
    config.environment("CartPole-v1", max_episode_steps=10)
    with config.build() as algorithm:
        assert algorithm.state.connectors.obs[1].count == 0
        algorithm.train()
        moments = algorithm.state.connectors.obs[1]
        assert moments.count == 128
        algorithm.evaluate()
        assert_equal(algorithm.state.connectors.obs[1], moments)

        weights = algorithm.learner_group.get_weights(1)
        assert_equal(weights.actor.obs_state[1], moments)
        group: Any = algorithm.env_runner_group
        group.sync_weights(weights)
        fragment = group.next_batch()[0]
        acting = algorithm._assembly.policy_step
        seen = jax.jit(acting.preprocess_rollout)(algorithm.state.connectors.obs, fragment.rollout)
        params = weights.actor.params
        again = acting.module.forward_train(params, {Columns.OBS: seen.obs})
        np.testing.assert_allclose(
            fragment.rollout.extras[Columns.ACTION_DIST_INPUTS],
            again[Columns.ACTION_DIST_INPUTS],
            rtol=1e-4,
            atol=1e-5,
        )
        assert fragment.rollout.is_first[1:].any()
        assert not fragment.rollout.is_first[0].all()
        path = algorithm.save(tmp_path)
        kept = jax.device_get(algorithm.state.connectors.obs)
    with Algorithm.from_checkpoint(path, env_to_module_connector=pairs) as restored:
        assert_equal(restored.state.connectors.obs, kept)
        assert_equal(restored.learner_group.get_weights(2).actor.obs_state, kept)
