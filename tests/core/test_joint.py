"""Distributions of nested actions: sums over their parts, exact sums over all actions, masks."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import RLModuleSpec
from jaxrl.distributions.from_space import make_action_distribution, split_mask
from jaxrl.errors import ConfigError, SpaceError
from jaxrl.modules.autoregressive import make_autoregressive_distribution
from tests.nested import contained

PARTS: dict[str, Any] = {
    "box": spaces.Box(-1.0, 1.0, (2, 1)),
    "one": spaces.Discrete(3),
    "rest": spaces.Tuple([spaces.MultiDiscrete([[2, 3]]), spaces.MultiBinary((2, 1))]),
}
MIXED = spaces.Dict(PARTS)
CHOICES = spaces.Dict({"b": PARTS["one"], "a": spaces.MultiDiscrete([2, 3])})
BATCH = 4


def inputs_for(distribution: Any, seed: int = 0) -> Any:
    return jax.random.normal(jax.random.key(seed), (BATCH, distribution.input_dim))


def actions_of(space: Any) -> list[Any]:
    """All actions of a space of choices."""
    match space:
        case spaces.Dict():
            parts = [actions_of(part) for part in space.spaces.values()]
            return [
                dict(zip(space.spaces, values, strict=True)) for values in itertools.product(*parts)
            ]
        case spaces.MultiDiscrete():
            ranges = [range(n) for n in space.nvec.ravel()]
            return [np.array(v, np.int32).reshape(space.shape) for v in itertools.product(*ranges)]
        case _:
            return [np.int32(n) for n in range(space.n)]


def repeated(action: Any) -> Any:
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (BATCH, *np.shape(x))), action)


KINDS = {
    "independent": make_action_distribution,
    "autoregressive": make_autoregressive_distribution,
}
both = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


@pytest.mark.representatives("independent")
@both
def test_draws_and_the_mode_lie_in_the_space(make: Any) -> None:
    described = make(MIXED)

    @jax.jit
    def run(inputs: Any, key: Any) -> Any:
        dist = described.from_inputs(inputs * 0.2)
        keys = jax.random.split(key, 3)
        noise = jax.vmap(described.sample_noise)(jax.random.split(keys[0], BATCH))
        actions = [dist.from_noise(noise), dist.mode(), dist.sample(keys[1])]
        clipped = [{**action, "box": jnp.clip(action["box"], -1.0, 1.0)} for action in actions]
        inside = [jax.vmap(lambda a: contained(MIXED, a))(action) for action in clipped]
        log_probs = [dist.log_prob(action) for action in actions]
        return clipped, inside, log_probs, dist.entropy(), dist.kl(dist)

    actions, inside, log_probs, entropy, kl = run(inputs_for(described), jax.random.key(1))
    for action in actions:
        assert jax.tree.structure(action) == jax.tree.structure(MIXED.sample())
        assert MIXED.contains(numpy_row(action))
    assert np.all(inside)
    assert np.isfinite(log_probs).all()
    assert np.shape(log_probs) == (3, BATCH)
    assert entropy.shape == kl.shape == (BATCH,)
    np.testing.assert_allclose(kl, 0.0, atol=1e-5)


def numpy_row(action: Any) -> Any:
    row = jax.tree.map(lambda x: np.asarray(x[0]), action)
    first, bits = row["rest"]
    return {**row, "one": int(row["one"]), "rest": (first.astype(np.int64), bits)}


def test_independent_parts_add_up() -> None:
    described = make_action_distribution(MIXED)
    assert described.input_dim == 4 + 3 + 5 + 4
    inputs = inputs_for(described)
    others = inputs_for(described, 1)

    @jax.jit
    def run(inputs: Any, others: Any, key: Any) -> Any:
        whole, other = described.from_inputs(inputs), described.from_inputs(others)
        action = whole.sample(key)
        sums = whole.log_prob(action), whole.entropy(), whole.kl(other)
        return sums, split_sums(inputs, others, jax.tree.leaves(action))

    for got, want in zip(*run(inputs, others, jax.random.key(3)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def split_sums(inputs: Any, others: Any, leaves: list[Any]) -> Any:
    """Return the sums of each part by itself, in the order of the leaves."""
    pieces = [PARTS["box"], PARTS["one"], *PARTS["rest"].spaces]
    start, log_prob, entropy, kl = 0, 0.0, 0.0, 0.0
    for piece, leaf in zip(pieces, leaves, strict=True):
        alone = make_action_distribution(piece)
        stop = start + alone.input_dim
        dist = alone.from_inputs(inputs[:, start:stop])
        log_prob += dist.log_prob(leaf)
        entropy += dist.entropy()
        kl += dist.kl(alone.from_inputs(others[:, start:stop]))
        start = stop
    return log_prob, entropy, kl


@both
def test_sums_over_all_actions(make: Any) -> None:
    """Probabilities add to 1; entropy and KL are what their definitions say."""
    described = make(CHOICES)

    @jax.jit
    def run(*inputs: Any) -> Any:
        p, q = (described.from_inputs(x) for x in inputs)
        logs = [jnp.stack([d.log_prob(repeated(a)) for a in actions_of(CHOICES)]) for d in (p, q)]
        return *logs, p.entropy(), p.kl(q)

    log_p, log_q, entropy, kl = map(
        np.asarray, run(inputs_for(described), inputs_for(described, 1))
    )
    np.testing.assert_allclose(np.exp(log_p).sum(axis=0), 1.0, rtol=1e-5)
    np.testing.assert_allclose(entropy, -(np.exp(log_p) * log_p).sum(axis=0), rtol=1e-4)
    np.testing.assert_allclose(kl, (np.exp(log_p) * (log_p - log_q)).sum(axis=0), rtol=1e-4)


def test_later_components_know_earlier_ones() -> None:
    described = make_autoregressive_distribution(CHOICES)

    @jax.jit
    def run(inputs: Any) -> Any:
        dist = described.from_inputs(inputs)
        return [dist.log_prob(repeated(a)) for a in actions_of(CHOICES)], dist.mode()

    log_probs, mode = run(inputs_for(described))
    table = {
        (*map(int, a["a"]), int(a["b"])): np.asarray(log_prob)
        for a, log_prob in zip(actions_of(CHOICES), log_probs, strict=True)
    }
    joint = np.exp(np.stack([table[key] for key in sorted(table)])).reshape(2, 3, 3, BATCH)
    first = joint.sum(axis=(1, 2))
    second = joint.sum(axis=2) / first[:, None]
    third = joint / joint.sum(axis=2, keepdims=True)
    assert not np.allclose(second[0], second[1], atol=1e-2)
    assert not np.allclose(third[0, 0], third[1, 0], atol=1e-2)
    assert not np.allclose(third[0, 0], third[0, 1], atol=1e-2)
    for row in range(BATCH):  # the mode is the best of each, after the best of those before it
        a = int(first[:, row].argmax())
        b = int(second[a, :, row].argmax())
        assert mode["a"][row].tolist() == [a, b]
        assert int(mode["b"][row]) == int(third[a, b, :, row].argmax())


def test_samples_are_as_frequent_as_they_are_probable() -> None:
    described = make_autoregressive_distribution(CHOICES)

    @jax.jit
    def run(rows: Any, key: Any) -> Any:
        wanted = [
            described.from_inputs(rows[0]).log_prob(jax.tree.map(jnp.asarray, action))
            for action in actions_of(CHOICES)
        ]
        return described.from_inputs(rows).sample(key), wanted

    rows = np.repeat(np.asarray(inputs_for(described)[:1]), 20_000, axis=0)
    drawn, wanted = run(rows, jax.random.key(0))
    rows = np.concatenate([np.asarray(drawn["b"])[:, None], np.asarray(drawn["a"])], axis=1)
    for action, log_prob in zip(actions_of(CHOICES), wanted, strict=True):
        same = (rows == [action["b"], *action["a"]]).all(axis=1)
        assert same.mean() == pytest.approx(float(jnp.exp(log_prob)), abs=0.015)


def test_a_box_is_last_so_that_entropy_is_exact_with_one() -> None:
    assert make_autoregressive_distribution(MIXED).is_exact
    assert not make_autoregressive_distribution(spaces.Tuple([PARTS["box"], PARTS["box"]])).is_exact
    many = make_autoregressive_distribution(spaces.MultiBinary(12))
    assert not many.is_exact


def test_where_nothing_is_exact_metrics_are_finite() -> None:
    many = make_autoregressive_distribution(spaces.Tuple([PARTS["box"], PARTS["box"]]))

    @jax.jit
    def run(inputs: Any) -> Any:
        dist = many.from_inputs(inputs)
        return dist.entropy(), dist.kl(dist)

    entropy, kl = run(inputs_for(many))
    assert np.isfinite(entropy).all()
    np.testing.assert_allclose(kl, 0.0, atol=1e-5)


@both
def test_masks_of_parts(make: Any) -> None:
    space = spaces.Dict(
        {"a": spaces.MultiDiscrete([2, 3]), "b": spaces.Discrete(3), "c": PARTS["box"]}
    )
    described = make(space)
    legal = jnp.array([[0, 1, 1, 0, 1]] * BATCH, jnp.int8)

    @jax.jit
    def run(inputs: Any, key: Any) -> Any:
        dist = described.from_inputs(inputs, {"a": legal})
        noise = jax.vmap(described.sample_noise)(jax.random.split(key, BATCH))
        actions = [dist.from_noise(noise), dist.mode()]
        bad = {**actions[1], "a": jnp.array([[1, 1]] * BATCH)}
        return actions, jnp.exp(dist.log_prob(bad)), dist.entropy(), dist.kl(dist)

    actions, probability, entropy, kl = run(inputs_for(described), jax.random.key(1))
    for action in actions:
        assert (np.asarray(action["a"])[:, 0] == 1).all()
        assert (np.asarray(action["a"])[:, 1] != 1).all()
    assert (np.asarray(probability) == 0.0).all()
    assert np.isfinite(entropy).all()
    assert np.isfinite(kl).all()
    assert split_mask(space, {"a": legal})[1:] == [None, None]


def masked(mask: Any, actions: Any) -> Any:
    space = spaces.Dict({"action_mask": mask, "obs": spaces.Box(0, 1, (2,))})
    settings = {"fcnet_hiddens": [4]}
    return RLModuleSpec(
        observation_space=space, action_space=actions, model_config=settings
    ).build()


BITS = spaces.MultiBinary


@pytest.mark.parametrize(
    ("mask", "actions"),
    [
        (spaces.Dict({"one": BITS(3)}), MIXED),
        (spaces.Dict({"rest": spaces.Tuple([BITS(5), BITS(4)])}), MIXED),
        (BITS(4), BITS(2)),
    ],
)
def test_masks_that_fit(mask: Any, actions: Any) -> None:
    masked(mask, actions)


@pytest.mark.parametrize(
    ("mask", "actions", "words"),
    [
        (BITS(3), MIXED, "must have the structure"),
        (spaces.Dict({"box": BITS(2)}), MIXED, "cannot mask the action space Box"),
        (spaces.Dict({"rest": spaces.Tuple([BITS(5)])}), MIXED, "must have the structure"),
        (spaces.Dict({"one": BITS(4)}), MIXED, r"has the shape \(4,\).*needs \(3,\)"),
        (spaces.Dict({"none": BITS(3)}), MIXED, "must have the structure"),
        (BITS(2), BITS(2), r"has the shape \(2,\).*needs \(4,\)"),
    ],
)
def test_masks_that_do_not(mask: Any, actions: Any, words: str) -> None:
    with pytest.raises(SpaceError, match=words):
        masked(mask, actions)


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.Box(-1, 1, (4,)), BITS(1)])
def test_a_single_component_has_nothing_to_follow(space: Any) -> None:
    with pytest.raises(ConfigError, match=r"autoregressive_actions=True.*single one"):
        make_autoregressive_distribution(space)
