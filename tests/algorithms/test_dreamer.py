"""DreamerV3: its losses against plain loops, what it learns of probes, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import DreamerV3Config, RandomAgentConfig, grid
from jaxrl.algorithms.dreamer import DreamerV3Learner, ImaginationDraws, ImaginedTrajectories
from jaxrl.assembly.assemble import assemble
from jaxrl.core.struct import where_rows
from jaxrl.core.types import Columns, ObsSequence, Progress, Transition
from jaxrl.errors import ConfigError, JaxrlError, SpaceError
from jaxrl.modules.world_model import (
    ACTOR,
    BINS,
    CRITIC,
    WORLD_MODEL,
    ImageDecoder,
    Latents,
    get_filters,
)
from tests.helpers import assert_close, assert_equal, without_times

N, L, H, OBS, ACTIONS, GAMMA = 4, 6, 5, 3, 3, 0.9
VECTOR = spaces.Box(-9.0, 9.0, (OBS,), np.float32)


def learner_of(space: Any = VECTOR, actions: Any = None, **training: Any) -> DreamerV3Learner:
    """The learner of a nano model, whose steps are the gradients."""
    rates = dict.fromkeys(DreamerV3Learner.lr_names.values(), 1.0)
    clips = {f"{part}_grad_clip_by_global_norm": None for part in DreamerV3Learner.lr_names}
    settings: Any = {"optimizer": "sgd", "model_size": "nano", **rates, **clips, **training}
    settings = {"batch_length_T": L, "horizon_H": H, "gamma": GAMMA, **settings}
    config = DreamerV3Config().training(**settings)
    module: Any = config.get_rl_module_spec(space, actions or spaces.Discrete(ACTIONS)).build()
    return DreamerV3Learner(module=module, settings=config.training_settings)


def state_of(learner: DreamerV3Learner, scale: float = 0.3) -> Any:
    """A state whose parameters are all different from 0, and whose slow critic is another."""
    state = jax.jit(learner.init)(jax.random.key(0))
    rng = np.random.default_rng(1)

    def move(params: Any) -> Any:
        return jax.tree.map(
            lambda x: x + jnp.asarray(rng.normal(size=x.shape) * scale, jnp.float32), params
        )

    params, slow = move(state.sgd.params), move(state.slow.params)
    return replace(
        state,
        sgd=replace(state.sgd, params=params),
        slow=replace(state.slow, params=slow),
        scale=jnp.float32(1.4),
    )


def batch_of(seed: int = 2) -> Transition:
    """Sequences in which the first ends after row 1, the second is cut after row 2; a row is none."""
    rng = np.random.default_rng(seed)
    discount = np.full((N, L), GAMMA, np.float32)
    discount[0, 1] = 0.0
    is_first = np.zeros((N, L), bool)
    is_first[0, 2] = is_first[1, 3] = is_first[2, 0] = True
    weight = rng.uniform(0.5, 1.5, (N, L)).astype(np.float32)
    weight[3, 4] = 0.0
    obs = rng.normal(size=(N, L, OBS)).astype(np.float32) * 3.0
    sequence = ObsSequence(obs=jnp.asarray(obs), carry=None, is_first=jnp.asarray(is_first))
    return Transition(
        obs=sequence,
        action=jnp.asarray(rng.integers(0, ACTIONS, (N, L)), jnp.int32),
        reward=jnp.asarray(rng.normal(size=(N, L)) * 5.0, jnp.float32),
        discount=jnp.asarray(discount),
        next_obs=None,
        weight=jnp.asarray(weight),
    )


def uniform_of(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).uniform(size=shape).astype(np.float32)


# --- the model by plain loops, one row at a time ---


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-np.float64(x)))


def normalize(params: Any, x: np.ndarray) -> np.ndarray:
    x = (x - x.mean()) / np.sqrt(x.var() + 1e-6)
    return x * params["scale"] + params["bias"]


def mlp(params: Any, x: np.ndarray) -> np.ndarray:
    """Dense layers, each normalized, and SiLU."""
    for i in range(len(params) // 2):
        x = normalize(
            params[f"norm_{i}"], x @ params[f"dense_{i}"]["kernel"] + params[f"dense_{i}"]["bias"]
        )
        x = x * sigmoid(x)
    return x


def head(params: Any, x: np.ndarray) -> np.ndarray:
    return mlp(params["hidden"], x) @ params["out"]["kernel"] + params["out"]["bias"]


def latent_probs(logits: np.ndarray) -> np.ndarray:
    """99 % of a softmax and 1 % of the uniform distribution, of 4 latents of 4 classes."""
    return 0.99 * softmax(logits.reshape(4, 4)) + 0.01 / 4


def draw(probs: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """One-hot latents: the class in whose part of [0, 1) the number lies."""
    z = np.zeros(probs.shape)
    for row, (p, u) in enumerate(zip(probs, uniform, strict=True)):
        place = 0
        while place < len(p) - 1 and u >= p[: place + 1].sum():
            place += 1
        z[row, place] = 1.0
    return z.reshape(-1)


def advance(world: Any, h: np.ndarray, z: np.ndarray, action: int) -> np.ndarray:
    x = mlp(world["dynamics_in"], np.concatenate([z, np.eye(ACTIONS)[action]]))
    gru = world["gru"]
    gates = normalize(gru["norm"], np.concatenate([h, x]) @ gru["gates"]["kernel"])
    reset, candidate, update = np.split(gates, 3)
    update = sigmoid(update - 1.0)
    return update * np.tanh(sigmoid(reset) * candidate) + (1.0 - update) * h


def two_hot(x: float) -> np.ndarray:
    below = int(np.searchsorted(BINS, x, side="right")) - 1
    share = (x - BINS[below]) / (np.float64(BINS[below + 1]) - BINS[below])
    weights = np.zeros(len(BINS))
    weights[below], weights[below + 1] = 1.0 - share, share
    return weights


def cross_entropy(logits: np.ndarray, x: float) -> float:
    return float(-(two_hot(x) @ np.log(softmax(logits))))


def mean_of(logits: np.ndarray) -> float:
    return float(softmax(logits) @ np.float64(BINS))


def world_by_loop(
    params: Any, batch: Any, uniform: np.ndarray
) -> tuple[np.ndarray, dict[str, float], Any]:
    """Losses of rows `[N, L]`, their weighted means, and states."""
    world = jax.tree.map(np.float64, jax.device_get(params[WORLD_MODEL]))
    obs, is_first = np.float64(batch.obs.obs), np.asarray(batch.obs.is_first)
    names = "decoder", "reward", "continue", "dynamics", "representation"
    losses = {name: np.zeros((N, L)) for name in names}
    states = np.zeros((N, L, 16 + 16))
    for n in range(N):
        after = np.zeros(0)
        for t in range(L):
            h = np.tanh(world["initial_h"]) if t == 0 or is_first[n, t] else after
            x = np.sign(obs[n, t]) * np.log(1.0 + np.abs(obs[n, t]))
            encoded = mlp(world["encoder"], x)
            posterior = latent_probs(head(world["posterior_head"], np.concatenate([h, encoded])))
            prior = latent_probs(head(world["prior_head"], h))
            z = draw(posterior, uniform[n, t])
            states[n, t] = np.concatenate([h, z])
            after = advance(world, h, z, int(batch.action[n, t]))
            losses["decoder"][n, t] = np.sum((head(world["decoder"], states[n, t]) - x) ** 2)
            losses["reward"][n, t] = cross_entropy(
                head(world["reward_head"], after), float(batch.reward[n, t])
            )
            goes_on = sigmoid(head(world["continue_head"], after)[0])
            ends = batch.discount[n, t] == 0.0
            losses["continue"][n, t] = -np.log(1.0 - goes_on if ends else goes_on)
            kl = np.sum(posterior * (np.log(posterior) - np.log(prior)))
            losses["dynamics"][n, t] = max(1.0, kl)
            losses["representation"][n, t] = 0.1 * max(1.0, kl)
    means = {f"{k}_loss": float(np.mean(np.asarray(batch.weight) * v)) for k, v in losses.items()}
    return sum(losses.values(), start=np.zeros((N, L))), means, states


def test_the_world_models_loss_is_that_of_plain_loops() -> None:
    learner = learner_of()
    state, batch, uniform = state_of(learner), batch_of(), uniform_of(N, L, 4)
    compute = jax.jit(learner.compute_world_model_loss)
    losses, seen, metrics = compute(state.sgd.params, batch, jnp.asarray(uniform))
    expected, means, states = world_by_loop(state.sgd.params, batch, uniform)
    np.testing.assert_allclose(losses.T, expected, rtol=2e-3)
    np.testing.assert_allclose(seen.latents.features.swapaxes(0, 1), states, atol=1e-3)
    for name, mean in means.items():
        np.testing.assert_allclose(metrics[name], mean, rtol=2e-3, err_msg=name)
    assert means["dynamics_loss"] > 1.1  # some rows are above the free bits


def test_free_bits_stop_the_gradient_of_what_is_predicted_well_enough() -> None:
    """Uniform heads have no divergence, and the prior learns nothing from it."""
    learner = learner_of()
    batch, params = batch_of(), state_of(learner).sgd.params

    @jax.jit
    def prior_gradient(params: Any) -> Any:
        def loss(params: Any) -> Any:
            uniform = jnp.asarray(uniform_of(N, L, 4))
            return jnp.mean(learner.compute_world_model_loss(params, batch, uniform)[0])

        return jax.grad(loss)(params)[WORLD_MODEL]["prior_head"]

    assert all(np.any(x) for x in jax.tree.leaves(prior_gradient(params)))
    flat = dict(params[WORLD_MODEL])
    for name in ("prior_head", "posterior_head"):
        flat[name] = {**flat[name], "out": jax.tree.map(jnp.zeros_like, flat[name]["out"])}
    gradient = prior_gradient({**params, WORLD_MODEL: flat})
    assert not any(np.any(x) for x in jax.tree.leaves(gradient))


# --- imagination ---


def start_of(learner: DreamerV3Learner) -> Latents:
    """States of which each latent is one-hot."""
    rng = np.random.default_rng(3)
    z = np.eye(4, dtype=np.float32)[rng.integers(0, 4, (N, 4))].reshape(N, 16)
    h = rng.normal(size=(N, learner.module.config.num_gru_units)).astype(np.float32)
    return Latents(h=jnp.asarray(h), z=jnp.asarray(z))


def policy_by_loop(params: Any, features: np.ndarray) -> np.ndarray:
    """Probabilities of the actions."""
    actor = jax.tree.map(np.float64, jax.device_get(params[ACTOR]))
    return 0.99 * softmax(head(actor, features)) + 0.01 / ACTIONS


def test_trajectories_are_imagined_as_by_plain_loops() -> None:
    learner = learner_of()
    params, start, rng = state_of(learner).sgd.params, start_of(learner), np.random.default_rng(4)
    noise = rng.gumbel(size=(H, N, ACTIONS)).astype(np.float32)
    uniform = uniform_of(H, N, 4)
    draws = ImaginationDraws(latents=jnp.asarray(uniform), action=jnp.asarray(noise))
    imagined = jax.jit(learner.imagine)(params, start, draws, jnp.float32(GAMMA))
    world = jax.tree.map(np.float64, jax.device_get(params[WORLD_MODEL]))
    assert imagined.features.shape == (H + 1, N, 32)
    for n in range(N):
        h, z = np.float64(start.h[n]), np.float64(start.z[n])
        for t in range(H):
            features = np.concatenate([h, z])
            np.testing.assert_allclose(imagined.features[t, n], features, atol=1e-3)
            action = int(np.argmax(np.log(policy_by_loop(params, features)) + noise[t, n]))
            assert imagined.action[t, n] == action
            h = advance(world, h, z, action)
            z = draw(latent_probs(head(world["prior_head"], h)), uniform[t, n])
            reward = mean_of(head(world["reward_head"], h))
            np.testing.assert_allclose(imagined.reward[t, n], reward, rtol=1e-2)
            goes_on = sigmoid(head(world["continue_head"], h)[0])
            np.testing.assert_allclose(imagined.discount[t, n], GAMMA * goes_on, rtol=2e-3)
        np.testing.assert_allclose(imagined.features[H, n], np.concatenate([h, z]), atol=1e-3)


def imagined_of(seed: int = 5) -> ImaginedTrajectories:
    """Trajectories of which one ends at once."""
    rng = np.random.default_rng(seed)
    discount = rng.uniform(0.5, 0.95, (H, N)).astype(np.float32)
    discount[0, 1] = 0.01
    return ImaginedTrajectories(
        features=jnp.asarray(rng.normal(size=(H + 1, N, 32)), jnp.float32),
        action=jnp.asarray(rng.integers(0, ACTIONS, (H, N)), jnp.int32),
        reward=jnp.asarray(rng.normal(size=(H, N)) * 9.0, jnp.float32),
        discount=jnp.asarray(discount),
    )


@pytest.mark.parametrize("spread", [9.0, 1e-3])
def test_the_losses_of_actor_and_critic_are_those_of_plain_loops(spread: float) -> None:
    """Returns that differ much are divided by their range; others are left as they are."""
    learner = learner_of(gae_lambda=0.8, entropy_scale=0.1, return_normalization_decay=0.75)
    state, imagined, weight = state_of(learner), imagined_of(), uniform_of(N)
    small = {} if spread > 1.0 else {"scale": jnp.float32(0.0)}
    state = replace(state, **small)
    imagined = replace(imagined, reward=imagined.reward / 9.0 * spread)
    if spread < 1.0:
        flat = jax.tree.map(jnp.zeros_like, state.sgd.params[CRITIC])
        state = replace(state, sgd=replace(state.sgd, params={**state.sgd.params, CRITIC: flat}))
    values = learner.settings.at(state.hparams, Progress.zeros())
    loss, metrics = jax.jit(
        lambda params: learner.compute_behavior_loss(
            params, state, imagined, jnp.asarray(weight), values
        )
    )(state.sgd.params)

    critic, slow = (
        jax.tree.map(np.float64, jax.device_get(p))
        for p in (state.sgd.params[CRITIC], state.slow.params)
    )
    features, reward = np.float64(imagined.features), np.float64(imagined.reward)
    discount = np.float64(imagined.discount)
    value = np.array([[mean_of(head(critic, x)) for x in row] for row in features])
    returns = np.zeros((H, N))
    for n in range(N):
        later = value[H, n]
        for t in reversed(range(H)):
            mixed = 0.2 * value[t + 1, n] + 0.8 * later
            later = returns[t, n] = reward[t, n] + discount[t, n] * mixed
    spread_of_returns = np.percentile(returns, 95) - np.percentile(returns, 5)
    scale = 0.75 * float(state.scale) + 0.25 * spread_of_returns
    np.testing.assert_allclose(metrics["return_scale"], scale, rtol=1e-3)
    assert (scale > 1.0) == (spread > 1.0)
    actor_loss = critic_loss = 0.0
    for n in range(N):
        reached = float(weight[n])
        for t in range(H):
            probs = policy_by_loop(state.sgd.params, features[t, n])
            entropy = -np.sum(probs * np.log(probs))
            advantage = (returns[t, n] - value[t, n]) / max(1.0, scale)
            log_prob = np.log(probs[int(imagined.action[t, n])])
            actor_loss -= reached * (log_prob * advantage + 0.1 * entropy) / (H * N)
            logits = head(critic, features[t, n])
            errors = cross_entropy(logits, returns[t, n]) + cross_entropy(
                logits, mean_of(head(slow, features[t, n]))
            )
            critic_loss += reached * errors / (H * N)
            reached *= discount[t, n]
    np.testing.assert_allclose(metrics["actor_loss"], actor_loss, rtol=2e-3)
    np.testing.assert_allclose(metrics["critic_loss"], critic_loss, rtol=2e-3)
    np.testing.assert_allclose(loss, actor_loss + critic_loss, rtol=2e-3)


def test_every_part_learns_from_its_own_loss_at_its_own_rate() -> None:
    """With one rate above 0, one part moves; the slow critic follows, and clips are of each part."""
    moved: dict[str, Any] = {}
    for part, name in DreamerV3Learner.lr_names.items():
        others = {other: 0.0 for other in DreamerV3Learner.lr_names.values() if other != name}
        learner = learner_of(**others)
        state, batch = state_of(learner), batch_of()
        update = jax.jit(learner.update)
        after, metrics = update(state, batch, Progress.zeros(), jax.random.key(0))
        assert metrics[f"curr_{name}"] == 1.0
        moved[part] = jax.tree.map(jnp.subtract, after.sgd.params, state.sgd.params)
        for other, change in moved[part].items():
            assert any(np.any(x) for x in jax.tree.leaves(change)) == (other == part)
        assert metrics[Columns.TD_ERROR].shape == (N, L)
        expected = jax.tree.map(
            lambda new, old: 0.02 * new + 0.98 * old, after.sgd.params[CRITIC], state.slow.params
        )
        assert_close(after.slow.params, expected)
        assert after.scale == metrics["return_scale"] != state.scale
    clipped = learner_of(world_model_grad_clip_by_global_norm=0.5)
    state = state_of(clipped)
    after, _ = jax.jit(clipped.update)(state, batch_of(), Progress.zeros(), jax.random.key(0))
    change = jax.tree.map(jnp.subtract, after.sgd.params, state.sgd.params)
    norm = np.sqrt(sum(float(jnp.sum(x**2)) for x in jax.tree.leaves(change[WORLD_MODEL])))
    np.testing.assert_allclose(norm, 0.5, rtol=1e-3)
    assert_close(change[ACTOR], moved[ACTOR][ACTOR])


def test_trajectories_start_from_as_many_rows_as_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[int, ...]] = []
    honest = DreamerV3Learner.imagine

    def watch(self: Any, params: Any, start: Any, *rest: Any) -> Any:
        seen.append(start.h.shape)
        return honest(self, params, start, *rest)

    monkeypatch.setattr(DreamerV3Learner, "imagine", watch)
    for starts, rows in ((None, N * L), (2, N * 2)):
        learner = learner_of(imagination_starts=starts)
        jax.eval_shape(
            learner.update, state_of(learner), batch_of(), Progress.zeros(), jax.random.key(0)
        )
        assert seen[-1] == (rows, 16)


# --- acting ---


def test_acting_and_learning_have_the_same_states() -> None:
    """Latents that are drawn with the same numbers, from zeros where an episode starts."""
    learner = learner_of()
    module: Any = learner.module
    params, batch, uniform = state_of(learner).sgd.params, batch_of(), uniform_of(N, L, 4)
    _, seen, _ = learner.compute_world_model_loss(params, batch, jnp.asarray(uniform))
    carry, blank = module.initial_carry(N), module.initial_carry(N)
    step = jax.jit(module._see)
    for t in range(L):
        carry = where_rows(batch.obs.is_first[:, t], blank, carry)
        latents, _, _ = step(params, batch.obs.obs[:, t], carry, jnp.asarray(uniform[:, t]))
        np.testing.assert_allclose(latents.h, seen.latents.h[t], atol=1e-4)
        np.testing.assert_allclose(latents.z, seen.latents.z[t], atol=1e-4)
        carry = module._remember(latents, batch.action[:, t])


@pytest.mark.parametrize(
    "actions",
    [
        spaces.Box(-1.0, 1.0, (2,), np.float32),
        spaces.MultiDiscrete([3, 2]),
        spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Box(-1.0, 1.0, (1,), np.float32)}),
    ],
    ids=["box", "choices", "parts"],
)
def test_every_kind_of_action_is_learned_and_drawn(actions: Any) -> None:
    learner = learner_of(actions=actions)
    state, module = state_of(learner, 0.0), learner.module
    keys = jax.random.split(jax.random.key(1), (N, L))
    draws = jax.vmap(module.distribution.sample_noise)(keys.reshape(-1))
    inputs = jnp.zeros((N * L, module.distribution.input_dim), jnp.float32)
    flat = module.action_dist(inputs).from_noise(draws)
    batch = replace(batch_of(), action=jax.tree.map(lambda x: x.reshape(N, L, *x.shape[1:]), flat))
    after, metrics = jax.jit(learner.update)(state, batch, Progress.zeros(), jax.random.key(0))
    assert np.isfinite(metrics["total_loss"])
    out = module.forward_inference(after.sgd.params, batch.obs.obs[:, 0], module.initial_carry(N))
    assert jax.tree.structure(out[Columns.ACTIONS]) == jax.tree.structure(flat)


def test_a_box_is_acted_in_within_bounds_and_with_some_spread() -> None:
    learner = learner_of(actions=spaces.Box(-1.0, 1.0, (2,), np.float32))
    module, params = learner.module, state_of(learner, 3.0).sgd.params
    features = jnp.asarray(np.random.default_rng(0).normal(size=(50, 32)), jnp.float32)
    dist: Any = module.action_dist(module.compute_dist_inputs(params, features))
    assert np.abs(dist.mean).max() <= 1.0
    std = np.exp(dist.log_std)
    assert 0.0999 <= std.min() < 0.2 < 0.9 < std.max() <= 1.0001


# --- images ---

IMAGE = spaces.Box(0, 255, (10, 7, 2), np.uint8)


@pytest.mark.parametrize(
    "shape", [(3, 3, 1), (10, 10, 4), (21, 33, 2), (64, 64, 3), (84, 84, 1)], ids=str
)
def test_images_of_all_sizes_are_decoded_to_their_size(shape: tuple[int, int, int]) -> None:
    """The smallest output of the convolutions is about 4 x 4."""
    filters = get_filters(shape, 2)
    decoder = ImageDecoder(shape, filters)
    features = jnp.zeros((2, 3, 5))
    params = jax.eval_shape(decoder.init, jax.random.key(0), features)
    decoded = jax.eval_shape(decoder.apply, params, features)
    assert decoded.shape == (2, 3, *shape)
    smallest = min(shape[:2]) / 2 ** len(filters)
    assert 1.5 <= smallest < 8


@pytest.mark.slow
def test_images_are_learned_beside_vectors_and_choices() -> None:
    """A few images are told apart by the model, which reconstructs them and predicts their rewards."""
    space = spaces.Dict({"eye": IMAGE, "arm": VECTOR, "mode": spaces.Discrete(4)})
    rates = {"world_model_lr": 3e-3, "optimizer": "adam"}
    learner = learner_of(space, **rates)
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 3, (N, L))
    images = rng.integers(0, 256, (3, *IMAGE.shape)).astype(np.uint8)
    obs = {
        "eye": jnp.asarray(images[kinds]),
        "arm": jnp.zeros((N, L, OBS)),
        "mode": jnp.asarray(kinds, jnp.int32),
    }
    batch = batch_of()
    batch = replace(batch, obs=replace(batch.obs, obs=obs), reward=jnp.asarray(kinds, jnp.float32))
    vector, (image,) = learner.module.split_obs(obs)
    assert vector.shape == (N, L, OBS + 4)
    np.testing.assert_allclose(image, images[kinds] / 255.0, rtol=1e-5)
    state = jax.jit(learner.init)(jax.random.key(0))

    def step(state: Any, key: Any) -> Any:
        state, metrics = learner.update(state, batch, Progress.zeros(), key)
        return state, metrics["decoder_loss"]

    keys = jax.random.split(jax.random.key(1), 1000)
    _, losses = jax.jit(lambda state: jax.lax.scan(step, state, keys))(state)
    assert losses[-50:].mean() < 0.2 * losses[0]


# --- runs ---


def on_probe(env: str, **training: Any) -> Any:
    """A run of a probe by a tiny model that learns fast."""
    rates = {"world_model_lr": 3e-3, "actor_lr": 1e-3, "critic_lr": 3e-3}
    given: dict[str, Any] = {
        "model_size": "nano",
        "train_batch_size": 256,
        "batch_length_T": 16,
        "horizon_H": 5,
        "imagination_starts": 8,
        "training_intensity": 32.0,
        "gamma": 0.8,
        "num_steps_sampled_before_learning_starts": 512,
        "replay_buffer_config": {"capacity": 8192},
        **rates,
        **training,
    }
    return (
        DreamerV3Config()
        .environment(f"jaxrl:{env}")
        .env_runners(num_envs_per_env_runner=16)
        .training(**given)
        .reporting(min_sample_timesteps_per_iteration=6000)
        .evaluation(evaluation_duration=20, evaluation_config={"explore": False})
        .learners(num_devices=1)
        .debugging(seed=0, loggers=[])
    )


def value_at_start(algorithm: Any, obs: Any) -> np.ndarray:
    module, params = algorithm.get_module(), algorithm.get_weights()["default_policy"]
    out = module._forward_step(params, obs, module.initial_carry(len(obs)))
    return np.asarray(out[Columns.VF_PREDS])


def check_truncation() -> None:
    """Reward 1 for ever, cut every ten steps: the value is 1 / (1 - gamma)."""
    with on_probe("probe-truncation-v0").build() as algorithm:
        algorithm.train()
        value = value_at_start(algorithm, np.zeros((1, 1), np.float32))
    np.testing.assert_allclose(value, 5.0, rtol=0.1)


def test_values_look_beyond_a_truncation() -> None:
    check_truncation()


@pytest.mark.slow
@pytest.mark.usefixtures("truncation_is_termination")
def test_a_runner_that_takes_truncation_for_termination_is_noticed() -> None:
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check_truncation()


@pytest.mark.slow
def test_values_end_with_a_termination() -> None:
    """A reward of 1 at the second and last step."""
    with on_probe("probe-discount-v0").build() as algorithm:
        algorithm.train()
        value = value_at_start(algorithm, np.zeros((1, 1), np.float32))
    np.testing.assert_allclose(value, 0.8, atol=0.1)


@pytest.mark.slow
def test_actions_depend_on_what_was_seen_before() -> None:
    """The first observation says which action earns a reward after the next, which is always 0."""
    config = on_probe("probe-recall-v0", model_size="micro", actor_lr=3e-3, gamma=0.9)
    config.environment(env_config={"delay": 1}).reporting(min_sample_timesteps_per_iteration=14_000)
    with config.build() as algorithm:
        algorithm.train()
        assert algorithm.evaluate()["env_runners"]["episode_return_mean"] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["", "-continuous"])
def test_actions_follow_observations(kind: str) -> None:
    with on_probe(f"probe-obs-action{kind}-v0", gamma=0.5, actor_lr=3e-3).build() as algorithm:
        algorithm.train()
        assert algorithm.evaluate()["env_runners"]["episode_return_mean"] > 0.95


def tiny(**training: Any) -> Any:
    """A run of few updates on CartPole."""
    given: dict[str, Any] = {
        "model_size": "nano",
        "train_batch_size": 64,
        "batch_length_T": 8,
        "horizon_H": 3,
        "training_intensity": 8.0,
        "num_steps_sampled_before_learning_starts": 64,
        "replay_buffer_config": {"capacity": 512},
        **training,
    }
    return (
        DreamerV3Config()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=8, rollout_fragment_length=2)
        .training(**given)
        .reporting(min_sample_timesteps_per_iteration=128)
        .debugging(seed=0, loggers=[])
    )


@pytest.mark.parametrize(
    "training",
    [
        {},
        pytest.param(
            {"replay_buffer_config": {"type": "prioritized", "capacity": 512}},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_resuming_is_exact(training: dict[str, Any], tmp_path: Path) -> None:
    with tiny(**training).learners(num_devices=1).build() as algorithm:
        for _ in range(2):
            algorithm.train()
        path = algorithm.save(tmp_path / "checkpoint")
        wanted = [algorithm.train() for _ in range(2)]
        state = algorithm.learner_group.state
    with type(algorithm).from_checkpoint(path) as again:
        got = [again.train() for _ in range(2)]
        assert_equal(again.learner_group.state, state)
    for one, other in zip(wanted, got, strict=True):
        for part in ("env_runners", "replay_buffer"):
            assert without_times(one[part]) == without_times(other[part])
    learned = wanted[-1]["learners"]["default_policy"]
    assert 0.0 < learned["decoder_loss"] < 5.0
    assert learned["return_scale"] > 0.0


@pytest.mark.slow
def test_eight_devices_make_the_same_update() -> None:
    """Draws belong to sequences, and the range of returns is that of all devices."""
    states: list[Any] = []
    for number in (1, 8):
        config = tiny(
            num_steps_sampled_before_learning_starts=256, optimizer="sgd", imagination_starts=4
        )
        config.learners(num_devices=number, num_shards=8)
        config.reporting(min_sample_timesteps_per_iteration=256)
        with config.build() as algorithm:
            result = algorithm.train()
            assert result["learners"]["default_policy"]["return_scale"] >= 0.0
            states.append(jax.device_get(algorithm.state.learner))
    assert_close(*(state.sgd.params for state in states), rtol=1e-4, atol=1e-5)
    assert_close(*(state.scale for state in states), rtol=1e-4)
    assert states[0].scale > 0.0


@pytest.mark.slow
def test_lanes_of_rates_and_of_entropy() -> None:
    with tiny(world_model_lr=grid([0.0, 1e-3]), entropy_scale=grid([0.0, 1.0])).build() as lanes:
        results = [r["learners"]["default_policy"] for r in lanes.train()["lanes"].values()]
    rates = [result["curr_world_model_lr"] for result in results]
    np.testing.assert_allclose(rates, [0.0, 1e-3, 0.0, 1e-3], rtol=1e-6)
    assert results[0]["decoder_loss"] > results[1]["decoder_loss"]
    assert results[0]["actor_loss"] > results[2]["actor_loss"] + 0.2  # less the entropy


@pytest.mark.slow
def test_environments_on_the_host_train_alike() -> None:
    config = tiny().environment("gymnasium:CartPole-v1").evaluation(evaluation_duration=2)
    with config.build() as algorithm:
        result = algorithm.train()
        assert algorithm.evaluate()["env_runners"]["episode_return_mean"] > 5.0
    assert 0.0 < result["learners"]["default_policy"]["decoder_loss"] < 50.0


def recorded(folder: Path, steps: int) -> str:
    """Random play of CartPole."""
    config = RandomAgentConfig().environment("CartPole-v1").offline_data(output=str(folder))
    config.env_runners(num_envs_per_env_runner=8, rollout_fragment_length=16)
    config.debugging(seed=0, loggers=[])
    with config.build() as algorithm:
        while int(algorithm.state.progress.env_steps) < steps:
            algorithm.train()
    return str(folder)


@pytest.mark.slow
def test_a_policy_is_learned_from_recorded_data_alone(tmp_path: Path) -> None:
    """Random play lasts 22 steps; what it taught the model lets a policy play for longer."""
    rates = {"world_model_lr": 1e-3, "actor_lr": 1e-3, "critic_lr": 1e-3}
    config = (
        DreamerV3Config()
        .environment("CartPole-v1")
        .offline_data(input_=recorded(tmp_path / "data", 10_000))
        .training(
            model_size="micro",
            train_batch_size=512,
            batch_length_T=32,
            imagination_starts=8,
            gamma=0.99,
            **rates,
        )
        .evaluation(evaluation_duration=50, evaluation_config={"explore": False})
        .learners(num_devices=1)
        .debugging(seed=0, loggers=[])
    )
    with config.build() as algorithm:
        while int(algorithm.state.progress.updates) < 1200:
            result = algorithm.train()
        assert result["learners"]["default_policy"]["decoder_loss"] < 0.1
        assert algorithm.evaluate()["env_runners"]["episode_return_mean"] > 60.0


@pytest.mark.slow
def test_a_policy_keeps_its_state_between_actions() -> None:
    """Actions of a policy, one by one, are those of the module."""
    with tiny().learners(num_devices=1).build() as algorithm:
        algorithm.train()
        policy: Any = algorithm.get_policy(explore=False)
        rng = np.random.default_rng(0)
        module, params = algorithm.get_module(), algorithm.get_weights()["default_policy"]
        carry = module.initial_carry(1)
        infer = jax.jit(module.forward_inference)
        for _ in range(6):
            obs = rng.uniform(-0.2, 0.2, size=4).astype(np.float32)
            out = infer(params, jnp.asarray(obs[None]), carry)
            carry = out[Columns.STATE_OUT]
            assert policy.act(obs) == out[Columns.ACTIONS][0]


# --- what is refused ---


def with_training(**training: Any) -> Callable[[], Any]:
    return lambda: tiny(**training).build()


def with_model(**settings: Any) -> Callable[[], Any]:
    return lambda: assemble(tiny().rl_module(model_config=settings))


REFUSED: dict[str, tuple[Callable[[], Any], type[JaxrlError], list[str]]] = {
    "starts": (
        with_training(imagination_starts=9),
        ConfigError,
        ["imagination_starts=9", "batch_length_T=8", "None for all"],
    ),
    "n_step": (with_training(n_step=3), ConfigError, ["n_step=3", "gae_lambda"]),
    "burn-in": (with_training(burn_in_len=2), ConfigError, ["burn_in_len=2", "batch_length_T"]),
    "random steps": (
        with_training(initial_random_timesteps=10),
        ConfigError,
        ["initial_random_timesteps=10", "num_steps_sampled_before_learning_starts"],
    ),
    "states": (
        with_training(zero_init_states=False),
        ConfigError,
        ["zero_init_states=False", "learned first state"],
    ),
    "clip": (
        with_training(grad_clip=1.0),
        ConfigError,
        ["grad_clip=1.0", "world_model_grad_clip_by_global_norm"],
    ),
    "lr": (with_training(lr=1e-3), ConfigError, ["lr must be None"]),
    "batch": (
        with_training(train_batch_size=60, training_intensity=7.5),
        JaxrlError,
        ["train_batch_size=60 must be whole sequences of batch_length_T=8"],
    ),
    "short buffer": (
        with_training(batch_length_T=64, train_batch_size=512, training_intensity=32.0),
        ConfigError,
        ["batch_length_T=64", "replay_buffer_config['capacity'] to at least 1024"],
    ),
    "size": (with_training(model_size="tiny"), ConfigError, ["model_size", "'nano'", "'tiny'"]),
    "actor": (with_training(train_actor=False), ConfigError, ["train_actor", "learning rate of 0"]),
    "sequences": (
        lambda: DreamerV3Config().training(batch_size_B=4),
        ConfigError,
        ["batch_size_B", "give batch_length_T in the same call"],
    ),
    "memory": (
        with_model(use_lstm=True),
        ConfigError,
        ["model_config['use_lstm']=True", "num_gru_units"],
    ),
    "hidden layers": (
        with_model(fcnet_hiddens=[64]),
        ConfigError,
        ["model_config has 'fcnet_hiddens'", "dense_hidden_units"],
    ),
    "a letter": (
        with_model(num_gru_unit=64),
        ConfigError,
        ["model_config has 'num_gru_unit'", "Did you mean 'num_gru_units'?"],
    ),
    "no units": (
        with_model(dense_hidden_units=0),
        ConfigError,
        ["model_config['dense_hidden_units'] must be a whole number of at least 1, got 0"],
    ),
    "search": (
        lambda: tiny().build().evaluate(planner={"num_simulations": 4}),
        JaxrlError,
        ["DreamerModule has a memory", "leave planner out"],
    ),
    "masks": (
        lambda: assemble(tiny().environment("jaxrl:probe-mask-v0")),
        SpaceError,
        ["action_mask", "action_mask_key=None"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(case: str) -> None:
    build, error, words = REFUSED[case]
    with pytest.raises(error) as raised:
        build()
    for word in words:
        assert word in str(raised.value)
    assert str(raised.value).count("\n") == 0


def test_the_defaults_and_names_are_rllibs() -> None:
    config = DreamerV3Config().environment("CartPole-v1")
    training = config.training_settings
    assert training.train_batch_size == 16 * training.batch_length_T == 1024
    assert (training.horizon_H, training.gamma, training.training_intensity) == (15, 0.997, 1024)
    config.update_from_dict(
        {
            "batch_size_B": 8,
            "batch_length_T": 32,
            "training_ratio": 64,
            "train_batch_size": None,
            "train_actor": True,
            "symlog_obs": "auto",
            "use_float16": False,
            "intrinsic_rewards_scale": 0.1,
            "gc_frequency_train_steps": 100,
        }
    )
    training = config.training_settings
    assert (training.train_batch_size, training.training_intensity) == (256, 64.0)
    settings = config.get_module_settings()
    assert settings["model_size"] == "XS"
