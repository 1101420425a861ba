"""Modules with a policy and critics: shapes, spaces, images, warm-up, noise."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import RLModuleSpec
from jaxrl.core.types import Columns, Progress
from jaxrl.modules.policy_and_critics import (
    CRITIC,
    POLICY,
    DeterministicPolicyModule,
    StochasticPolicyModule,
)
from tests import actor_critics as ac
from tests.core.modules import moment

MATRIX = spaces.Box(np.float32([[-1.0], [0.0]]), np.float32([[1.0], [3.0]]))
IMAGE = spaces.Box(0, 255, (10, 10, 2), np.uint8)


def module_of(module_class: Any, action_space: Any, obs_space: Any = ac.OBSERVED, **given: Any):
    spec = RLModuleSpec(
        module_class=module_class,
        observation_space=obs_space,
        action_space=action_space,
        model_config={"fcnet_hiddens": [8], "fcnet_activation": "relu"},
        algorithm_config=given,
    )
    return spec.build()


def explored(module: Any, params: Any, obs: Any, steps: int, **hparams: float) -> dict[str, Any]:
    """The output for one observation each, after so many environment steps."""
    rows = jax.tree.leaves(obs)[0].shape[0]
    values = {"initial_random_timesteps": 100.0, **hparams}
    progress = replace(Progress.zeros(), env_steps=Progress.zeros().env_steps.add(steps))
    draws = module.draw(jax.random.split(jax.random.key(7), rows))
    carry, index = module.initial_carry(rows), jnp.arange(rows, dtype=jnp.int32)
    return module.forward_exploration(params, obs, carry, values, progress, index, draws)


@pytest.mark.parametrize("num_critics", [1, 3])
@pytest.mark.parametrize("num_quantiles", [None, 5])
def test_critics_take_actions_of_any_shape(num_critics: int, num_quantiles: int | None) -> None:
    given = {"num_critics": num_critics}
    given |= {"num_quantiles": num_quantiles} if num_quantiles else {}
    module: Any = module_of(StochasticPolicyModule, MATRIX, **given)
    params = module.init(jax.random.key(0))
    assert set(params) == {POLICY, CRITIC}
    obs, action = jnp.ones((4, 4)), jnp.ones((4, 2, 1))
    q = module.compute_q_values(params[CRITIC], obs, action)
    tail = (num_quantiles,) if num_quantiles else ()
    assert q.shape == (num_critics, 4, *tail)
    np.testing.assert_array_equal(module.compute_first_q_values(params[CRITIC], obs, action), q[0])
    other = module.compute_q_values(params[CRITIC], obs, action.at[2, 1].set(-1.0))
    changed = np.any(np.asarray(other != q).reshape(num_critics, 4, -1), axis=(0, 2))
    np.testing.assert_array_equal(changed, [False, False, True, False])
    if num_critics > 1:
        assert not np.array_equal(q[0], q[1])


@pytest.mark.slow
def test_images_go_through_convolutions_before_actions_join() -> None:
    module: Any = module_of(StochasticPolicyModule, MATRIX, IMAGE)
    params = module.init(jax.random.key(0))
    assert params[CRITIC]["critics_0"]["encoder"]["cnn"]["conv_0"]["kernel"].ndim == 4
    joint = params[CRITIC]["critics_0"]["joint"]["dense_0"]["kernel"]
    assert joint.shape == (8 * 8 * 16 + 2, 8)
    obs = jnp.full((3, 10, 10, 2), 255, jnp.uint8)
    q = module.compute_q_values(params[CRITIC], obs, jnp.zeros((3, 2, 1)))
    assert q.shape == (2, 3)
    assert jnp.abs(q).max() < 10.0  # pixels are scaled to 1
    assert module.policy_dist(params[POLICY], obs).mode().shape == (3, 2, 1)


def test_discrete_critics_value_all_actions_and_the_policy_sees_the_mask() -> None:
    module: Any = module_of(StochasticPolicyModule, spaces.Discrete(3), ac.MASKED)
    params = module.init(jax.random.key(0))
    mask = jnp.asarray([[1, 0, 1], [0, 1, 0]], jnp.int8)
    obs = {"action_mask": mask, "obs": jnp.ones((2, 4))}
    assert module.compute_q_values(params[CRITIC], obs).shape == (2, 2, 3)
    probs = module.policy_dist(params[POLICY], obs).probs()
    np.testing.assert_array_equal(np.asarray(probs) > 0, mask > 0)


@pytest.mark.parametrize("module_class", [StochasticPolicyModule, DeterministicPolicyModule])
def test_actions_are_uniform_in_the_box_until_the_warm_up_ends(module_class: Any) -> None:
    module: Any = module_of(module_class, MATRIX)
    params = module.init(jax.random.key(0))
    obs, noise = jnp.ones((2000, 4)), {"exploration_sigma": 0.01}
    random = explored(module, params, obs, 99, **noise)
    actions = np.asarray(random[Columns.ACTIONS], np.float64)
    assert all(MATRIX.contains(np.float32(action)) for action in actions[:50])
    np.testing.assert_allclose(actions.mean(axis=0), [[0.0], [1.5]], atol=0.1)
    np.testing.assert_allclose(actions.std(axis=0), [[2 / 12**0.5], [3 / 12**0.5]], rtol=0.05)
    np.testing.assert_allclose(random[Columns.ACTION_LOGP], -np.log(2.0 * 3.0), rtol=1e-6)
    after = np.asarray(explored(module, params, obs, 100, **noise)[Columns.ACTIONS])
    assert np.abs(after - actions).max() > 0.1


def test_a_deterministic_policy_reaches_and_keeps_the_bounds() -> None:
    module: Any = module_of(DeterministicPolicyModule, MATRIX)
    params = module.init(jax.random.key(0))
    for sign, bound in ((-1.0, MATRIX.low), (1.0, MATRIX.high)):
        far = jax.tree.map(lambda x: 100.0 * jnp.abs(x) + 1.0, params[POLICY])
        pushed = {**far, "head": jax.tree.map(lambda x, s=sign: s * x, far["head"])}
        action = module.compute_policy_action(pushed, jnp.ones((1, 4)))
        np.testing.assert_array_equal(action[0], bound)
    out = module.forward_inference(params, jnp.ones((5, 4)))
    np.testing.assert_array_equal(
        out[Columns.ACTIONS], module.compute_policy_action(params[POLICY], jnp.ones((5, 4)))
    )
    noise = jnp.broadcast_to(jnp.asarray([[[9.0]], [[0.5]], [[-9.0]]]), (3, 2, 1))
    noisy = module.perturb(jnp.zeros((3, 2, 1)), noise)
    np.testing.assert_allclose(noisy[:, :, 0], [[1.0, 3.0], [0.5, 0.75], [-1.0, 0.0]])


def test_deviations_are_spread_over_the_environments() -> None:
    module: Any = module_of(DeterministicPolicyModule, MATRIX, num_envs=5)
    hparams = {"exploration_sigma": 0.1, "exploration_sigma_max": 0.5}
    sigmas = module.compute_sigmas(moment(hparams, 7))
    # An evaluation may have more environments than training has.
    expected = np.float32([0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5])
    np.testing.assert_allclose(sigmas, expected[:, None, None], rtol=1e-6)
    del hparams["exploration_sigma_max"]
    np.testing.assert_allclose(module.compute_sigmas(moment(hparams, 2)), 0.1, rtol=1e-6)


@pytest.mark.allow_key_reuse
def test_noise_has_its_deviation_and_its_memory() -> None:
    """σ in halves of the range; x' = x + σ ε − θ x of the process, which has σ / sqrt(θ (2 − θ))."""
    wide = spaces.Box(-50.0, 50.0, (1,))
    hparams = {"initial_random_timesteps": 0.0, "exploration_sigma": 0.02, "ou_theta": 0.2}
    obs, index = jnp.ones((500, 4)), jnp.arange(500, dtype=jnp.int32)
    keys = jax.vmap(lambda key: jax.random.split(key, 500))(jax.random.split(jax.random.key(1), 60))
    for kind, std, memory in (("gaussian", 0.02, 0.0), ("ou", 0.02 / (0.2 * 1.8) ** 0.5, 0.8)):
        module: Any = module_of(DeterministicPolicyModule, wide, exploration_noise=kind)
        params = module.init(jax.random.key(0))
        carry = module.initial_carry(500)
        act = functools.partial(module.forward_exploration, params, obs)

        def step(carry: Any, keys: Any, act: Any = act, module: Any = module) -> Any:
            out = act(carry, hparams, Progress.zeros(), index, module.draw(keys))
            return out[Columns.STATE_OUT], out[Columns.ACTIONS]

        _, actions = jax.lax.scan(step, carry, keys)
        greedy = module.compute_policy_action(params[POLICY], obs)
        noise = np.asarray((actions - greedy[None]) / 50.0, np.float64)[30:, :, 0]
        np.testing.assert_allclose(noise.std(), std, rtol=0.05)
        correlation = np.corrcoef(noise[:-1].ravel(), noise[1:].ravel())[0, 1]
        np.testing.assert_allclose(correlation, memory, atol=0.03)
        assert (carry is None) == (kind == "gaussian")
