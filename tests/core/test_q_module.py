"""Action values in every form: what the network gives, how it explores, and what it refuses."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import RLModuleSpec
from jaxrl.core.types import Columns, Progress
from jaxrl.errors import SpaceError
from jaxrl.modules.exploration import NOISE, compute_epsilons
from jaxrl.modules.q_network import ATOM_LOGITS, QUANTILES, QModule
from tests.core.modules import SMALL_IMAGE, VECTOR, B, moment, params_of, some_obs

ACTIONS = 3
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dueling": {"dueling": True},
    "c51": {"num_atoms": 11, "v_min": -2.0, "v_max": 3.0},
    "quantiles": {"num_quantiles": 5},
    "noisy": {"noisy": True},
    "all": {"dueling": True, "num_atoms": 11, "noisy": True},
}


def build(obs=VECTOR, action=None, **settings: Any) -> QModule:
    spec = RLModuleSpec(
        module_class=QModule,
        observation_space=obs,
        action_space=spaces.Discrete(ACTIONS) if action is None else action,
        model_config={"fcnet_hiddens": [8], "head_fcnet_hiddens": [6]},
        algorithm_config={"num_envs": B, **settings},
    )
    module = spec.build()
    assert isinstance(module, QModule)
    return module


def explore(module, params, obs, epsilon=0.0, seed=1, steps=0, **hparams):
    num = jax.tree.leaves(obs)[0].shape[0]
    keys = jax.random.split(jax.random.key(seed), num)
    start = Progress.zeros()
    progress = replace(start, env_steps=start.env_steps.add(steps))
    values = {"epsilon": jnp.float32(epsilon), **{k: jnp.float32(v) for k, v in hparams.items()}}

    def act(params, obs, keys):
        index = jnp.arange(num)
        draws = module.draw(keys)
        return module.forward_exploration(params, obs, None, values, progress, index, draws)

    return jax.jit(act)(params, obs, keys)


@pytest.mark.parametrize("form", FORMS)
def test_inference_is_greedy_in_the_expected_values(form):
    module = build(**FORMS[form])
    params, obs = params_of(module), some_obs()
    out = jax.jit(module.forward_train)(params, {Columns.OBS: obs})
    values = out[Columns.ACTION_DIST_INPUTS]
    assert values.shape == (B, ACTIONS)
    played = jax.jit(module.forward_inference)(params, obs)
    np.testing.assert_array_equal(played[Columns.ACTIONS], np.argmax(values, axis=-1))
    np.testing.assert_array_equal(played[Columns.ACTION_LOGP], np.zeros(B))
    np.testing.assert_allclose(module.compute_values(params, obs), values.max(axis=-1), rtol=1e-5)
    stacked = module.forward_train(params, {Columns.OBS: obs.reshape(1, B, 4)})
    np.testing.assert_allclose(stacked[Columns.ACTION_DIST_INPUTS][0], values, rtol=1e-4)


def test_the_expectation_of_atoms_and_of_quantiles():
    module = build(**FORMS["c51"])
    np.testing.assert_allclose(module.support, np.linspace(-2.0, 3.0, 11), atol=1e-6)
    out = module.forward_train(params_of(module), {Columns.OBS: some_obs()})
    logits = np.asarray(out[ATOM_LOGITS], np.float64)
    assert logits.shape == (B, ACTIONS, 11)
    probs = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    expected = (probs * np.linspace(-2.0, 3.0, 11)).sum(axis=-1)
    np.testing.assert_allclose(out[Columns.ACTION_DIST_INPUTS], expected, rtol=1e-4, atol=1e-5)

    module = build(**FORMS["quantiles"])
    out = module.forward_train(params_of(module), {Columns.OBS: some_obs()})
    assert out[QUANTILES].shape == (B, ACTIONS, 5)
    means = np.asarray(out[QUANTILES]).mean(axis=-1)
    np.testing.assert_allclose(out[Columns.ACTION_DIST_INPUTS], means, rtol=1e-4)


def relu(x):
    return np.maximum(x, 0.0)


def test_a_dueling_network_is_value_plus_centred_advantage():
    module = build(**FORMS["dueling"])
    params, obs = params_of(module), some_obs()
    p = jax.device_get(params)

    def dense(x, layer):
        return x @ layer["kernel"] + layer["bias"]

    x = np.tanh(dense(np.asarray(obs), p["encoder"]["mlp"]["dense_0"]))
    value, advantage = (
        dense(relu(dense(x, p[head]["hidden"]["dense_0"])), p[head]["out"])
        for head in ("vf_head", "q_head")
    )
    expected = value + advantage - advantage.mean(axis=-1, keepdims=True)
    out = module.forward_train(params, {Columns.OBS: obs})
    np.testing.assert_allclose(out[Columns.ACTION_DIST_INPUTS], expected, rtol=1e-4, atol=1e-5)


def test_images_are_convolved():
    module = build(obs=SMALL_IMAGE, **FORMS["all"])
    params = params_of(module)
    assert "cnn" in params["encoder"]
    out = explore(module, params, some_obs(SMALL_IMAGE))
    assert out[Columns.ACTION_DIST_INPUTS].shape == (B, ACTIONS)


# --- exploration ---


def test_epsilon_greedy_has_the_probability_that_it_reports():
    module = build()
    params = params_of(module)
    obs = jnp.broadcast_to(some_obs()[:1], (4000, 4))
    out = explore(module, params, obs, epsilon=0.3)
    actions, log_prob = np.asarray(out[Columns.ACTIONS]), np.asarray(out[Columns.ACTION_LOGP])
    greedy = int(np.argmax(out[Columns.ACTION_DIST_INPUTS][0]))
    share = np.bincount(actions, minlength=ACTIONS) / len(actions)
    for action in range(ACTIONS):
        probability = 0.1 + 0.7 * (action == greedy)
        np.testing.assert_allclose(share[action], probability, atol=0.025)
        np.testing.assert_allclose(np.exp(log_prob[actions == action]), probability, rtol=1e-5)


def test_actions_are_random_while_the_run_warms_up():
    module = build()
    params = params_of(module)
    obs = jnp.broadcast_to(some_obs()[:1], (2000, 4))
    for steps, shares in ((99, [1 / 3] * 3), (100, [0.0, 0.0, 1.0])):
        out = explore(module, params, obs, steps=steps, initial_random_timesteps=100)
        share = np.bincount(out[Columns.ACTIONS], minlength=ACTIONS) / 2000
        np.testing.assert_allclose(sorted(share), shares, atol=0.04)


def test_the_ladder_of_epsilons():
    hparams = {"epsilon": jnp.float32(0.4), "epsilon_ladder": jnp.float32(7.0)}
    ladder = compute_epsilons(moment(hparams, 7), {"num_envs": B})
    expected = [0.4 ** (1 + 7 * i / (B - 1)) for i in range(B)]
    # An evaluation may have more environments than training has.
    np.testing.assert_allclose(ladder, [*expected, expected[-1], expected[-1]], rtol=1e-5)
    np.testing.assert_allclose(
        compute_epsilons(moment({"epsilon": 0.4}, 7), {}), [0.4] * 7, rtol=1e-6
    )
    np.testing.assert_allclose(
        compute_epsilons(moment(hparams, 1), {"num_envs": 1}), [0.4], rtol=1e-6
    )


def test_a_masked_action_is_never_taken_nor_valued():
    space = spaces.Dict({"action_mask": spaces.MultiBinary(ACTIONS), "obs": VECTOR})
    module = build(obs=space)
    params, num = params_of(module), 2000
    inner = some_obs(batch=(num,))
    values = module.forward_train(params, {Columns.OBS: {"obs": inner}})[Columns.ACTION_DIST_INPUTS]
    best = np.argmax(values, axis=-1)
    mask = jnp.asarray(np.arange(ACTIONS)[None] != best[:, None], jnp.int8)
    obs = {"action_mask": mask, "obs": inner}
    second = np.sort(values, axis=-1)[:, 1]
    np.testing.assert_allclose(module.compute_values(params, obs), second, rtol=1e-5)
    played = module.forward_inference(params, obs)[Columns.ACTIONS]
    assert not np.any(played == best)
    out = explore(module, params, obs, epsilon=0.5)
    actions = np.asarray(out[Columns.ACTIONS])
    assert not np.any(actions == best)
    probability = np.where(actions == played, 0.75, 0.25)
    np.testing.assert_allclose(np.exp(out[Columns.ACTION_LOGP]), probability, rtol=1e-5)
    np.testing.assert_allclose(np.mean(actions == played), 0.75, atol=0.04)


def test_each_environment_draws_from_its_own_key():
    module = build(**FORMS["all"])
    params = params_of(module)
    obs = some_obs()
    keys = jax.random.split(jax.random.key(3), B)

    @jax.jit
    def act(obs, keys):
        hparams = {"epsilon": jnp.float32(0.5)}
        index = jnp.arange(obs.shape[0])
        draws = module.draw(keys)
        return module.forward_exploration(
            params, obs, None, hparams, Progress.zeros(), index, draws
        )

    with jax.debug_key_reuse(False):
        together, alone = act(obs, keys), act(obs[2:3], keys[2:3])
    for name in (Columns.ACTIONS, Columns.ACTION_DIST_INPUTS):
        np.testing.assert_allclose(together[name][2:3], alone[name], rtol=1e-4, atol=1e-5)


# --- noise ---


def test_noisy_rows_are_layers_with_noisy_weights():
    """Against the definition: a weight matrix of its own for each row."""
    module = build(noisy=True)
    params, obs = params_of(module), some_obs()
    noise = module.draw_noise(jax.random.key(2), B)
    out = jax.jit(module.forward_train)(params, {Columns.OBS: obs, NOISE: noise})
    p, e = jax.device_get(params), jax.device_get(noise)

    def dense(x, layer, noise, row):
        spread = np.outer(noise["inputs"][row], noise["outputs"][row])
        kernel = layer["kernel"] + layer["kernel_sigma"] * spread
        return x @ kernel + layer["bias"] + layer["bias_sigma"] * noise["outputs"][row]

    for row in range(B):
        x = np.asarray(obs[row])
        for path, activation in (
            (("encoder", "mlp", "dense_0"), np.tanh),
            (("q_head", "hidden", "dense_0"), relu),
            (("q_head", "out"), lambda x: x),
        ):
            layer, its_noise = p, e
            for name in path:
                layer, its_noise = layer[name], its_noise[name]
            x = activation(dense(x, layer, its_noise, row))
        np.testing.assert_allclose(out[Columns.ACTION_DIST_INPUTS][row], x, rtol=1e-4, atol=1e-5)


def test_the_noise_starts_as_the_paper_says():
    params = params_of(build(noisy=True, sigma0=0.4))
    layers = [params["encoder"]["mlp"]["dense_0"], params["q_head"]["out"]]
    for layer, inputs in zip(layers, (4, 6), strict=True):
        for name in ("kernel_sigma", "bias_sigma"):
            np.testing.assert_allclose(layer[name], 0.4 / np.sqrt(inputs), rtol=1e-6)


def test_statistics_of_the_noise():
    module = build(noisy=True)
    params, num = params_of(module), 4000
    noise = module.draw_noise(jax.random.key(4), num)
    for epsilon in jax.tree.leaves(noise):
        # f(e) = sign(e) sqrt|e| of a standard normal: mean 0, variance E|e| = sqrt(2 / pi)
        assert epsilon.shape[0] == num
        epsilon = np.asarray(epsilon)
        np.testing.assert_allclose(np.mean(epsilon), 0.0, atol=0.03)
        np.testing.assert_allclose(np.var(epsilon), np.sqrt(2 / np.pi), rtol=0.05)
    flat = np.concatenate([np.asarray(x) for x in jax.tree.leaves(noise)], axis=-1)
    correlation = np.corrcoef(flat.T) - np.eye(flat.shape[-1])
    assert np.abs(correlation).max() < 0.08
    obs = jnp.broadcast_to(some_obs()[:1], (num, 4))
    noisy = jax.jit(module.forward_train)(params, {Columns.OBS: obs, NOISE: noise})
    values = np.asarray(noisy[Columns.ACTION_DIST_INPUTS])
    assert np.all(values.std(axis=0) > 0.05)
    rows = np.unique(values.round(6), axis=0)
    assert len(rows) > 0.99 * num


def test_noise_explores_and_inference_has_none():
    module = build(noisy=True)
    params = params_of(module)
    obs = jnp.broadcast_to(some_obs()[:1], (500, 4))
    first, second = (explore(module, params, obs, seed=seed) for seed in (1, 2))
    assert len(set(np.asarray(first[Columns.ACTIONS]).tolist())) > 1
    values = [np.asarray(out[Columns.ACTION_DIST_INPUTS]) for out in (first, second)]
    assert np.abs(values[0] - values[1]).max() > 0.01
    played = np.asarray(module.forward_inference(params, obs)[Columns.ACTION_DIST_INPUTS])
    assert len(np.unique(played.round(6), axis=0)) == 1


@pytest.mark.parametrize(
    "space", [spaces.Box(-1.0, 1.0, (2,)), spaces.MultiDiscrete([2, 3])], ids=str
)
def test_other_actions_are_refused(space):
    with pytest.raises(
        SpaceError, match=r"need a Discrete action space, but action_space is .*such as PPO"
    ):
        build(action=space)
