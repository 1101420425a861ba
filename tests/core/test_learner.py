"""Clipping against NumPy, optimisers by every kind of name, and the step that refuses NaN."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

from jaxrl import PPOConfig
from jaxrl.algorithms.ppo import PPOTraining
from jaxrl.core.hparams import build_hparams
from jaxrl.core.types import Progress
from jaxrl.errors import ConfigError
from jaxrl.learners import gradients
from jaxrl.learners.gradients import NUM_NONFINITE_UPDATES, SgdState, select, sgd_step
from jaxrl.learners.optimizers import build_optimizer, clip_gradients

BOTH_LAYOUTS = pytest.mark.usefixtures("max_raveled")
LR = 0.1
SHAPES = {"kernel": (4, 3), "bias": (3,), "scale": ()}


@pytest.fixture(params=[gradients.MAX_RAVELED, 0], ids=["vector", "tensors"])
def max_raveled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters as one vector, and each tensor by itself."""
    monkeypatch.setattr(gradients, "MAX_RAVELED", request.param)


def tree(seed: int, size: float = 1.0) -> dict[str, jax.Array]:
    rng = np.random.default_rng(seed)
    return {
        name: jnp.asarray(size * rng.normal(size=shape), jnp.float32)
        for name, shape in SHAPES.items()
    }


def l2(x: Any) -> float:
    return float(np.sqrt(sum((np.asarray(leaf, np.float64) ** 2).sum() for leaf in x)))


def by_value(grads: dict[str, Any], limit: float) -> dict[str, Any]:
    return {name: np.clip(g, -limit, limit) for name, g in grads.items()}


def by_norm(grads: dict[str, Any], limit: float) -> dict[str, Any]:
    return {name: g * min(1.0, limit / l2([g])) for name, g in grads.items()}


def by_global_norm(grads: dict[str, Any], limit: float) -> dict[str, Any]:
    return {name: g * min(1.0, limit / l2(grads.values())) for name, g in grads.items()}


CLIPPING = {"value": by_value, "norm": by_norm, "global_norm": by_global_norm}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("limit", [0.3, 1.2, 100.0])
@pytest.mark.parametrize("by", CLIPPING)
def test_clipping_is_what_its_name_says(by: str, limit: float, jit: bool) -> None:
    def clip(grads: Any, limit: Any) -> Any:
        tx = clip_gradients(by, limit)
        return tx.update(grads, tx.init(grads))[0]

    grads = tree(0)
    got = (jax.jit(clip) if jit else clip)(grads, jnp.float32(limit))
    want = CLIPPING[by](jax.device_get(grads), limit)
    for name, g in want.items():
        np.testing.assert_allclose(got[name], g, rtol=1e-5, atol=1e-7)
        if limit == 100.0:
            np.testing.assert_array_equal(got[name], grads[name])


def test_the_three_kinds_differ_and_none_clips_nothing() -> None:
    grads = jax.device_get(tree(0))
    clipped = [CLIPPING[by](grads, 0.3)["kernel"] for by in CLIPPING]
    assert not np.allclose(clipped[0], clipped[1])
    assert not np.allclose(clipped[1], clipped[2])
    tx = clip_gradients("value", None)
    assert tx.update(grads, tx.init(grads))[0] is grads


def optimizer_of(settings: PPOTraining, **changes: Any) -> optax.GradientTransformation:
    """The optimizer of settings at a run's start."""
    values = settings.at(build_hparams(settings), Progress.zeros())
    return build_optimizer(values, changes.pop("lr", values.lr), **changes)


def two_steps(tx: optax.GradientTransformation) -> Any:
    """Parameters after two different gradients."""
    params = tree(1)
    state = tx.init(params)
    for seed in (2, 3):
        updates, state = tx.update(tree(seed), state, params)
        params = optax.apply_updates(params, updates)
    return params


def my_optimizer(lr: Any) -> optax.GradientTransformation:
    return optax.chain(optax.add_decayed_weights(0.1), optax.sgd(lr, momentum=0.5))


OPTIMIZERS: list[tuple[Any, Callable[[float], optax.GradientTransformation]]] = [
    ("adam", optax.adam),
    ("sgd", optax.sgd),
    ("lamb", optax.lamb),  # scales each tensor by its own norm
    ("muon", optax.contrib.muon),  # orthogonalizes matrices, and is Adam elsewhere
    (
        {"name": "muon", "adam_learning_rate": 0.01},
        partial(optax.contrib.muon, adam_learning_rate=0.01),
    ),
    ({"name": "adam", "eps": 1e-2}, partial(optax.adam, eps=1e-2)),
    ({"name": "sgd", "momentum": 0.9}, partial(optax.sgd, momentum=0.9)),
    ({"name": "adamw", "weight_decay": 0.3}, partial(optax.adamw, weight_decay=0.3)),
    (my_optimizer, my_optimizer),
]


@BOTH_LAYOUTS
@pytest.mark.parametrize("grad_clip_by", [None, *CLIPPING])
@pytest.mark.parametrize(("setting", "reference"), OPTIMIZERS)
def test_the_optimizer_is_the_one_that_is_named(
    setting: Any, reference: Callable[[float], Any], grad_clip_by: Any
) -> None:
    clipping = {} if grad_clip_by is None else {"grad_clip": 0.5, "grad_clip_by": grad_clip_by}
    settings = PPOTraining(optimizer=setting, lr=LR, **clipping)
    clip = optax.identity() if grad_clip_by is None else clip_gradients(grad_clip_by, 0.5)  # pyright: ignore
    want = two_steps(optax.chain(clip, reference(LR)))
    got = two_steps(optimizer_of(settings))
    for name, leaf in want.items():
        np.testing.assert_allclose(got[name], leaf, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("adma", ["optimizer", "'adma'", "Did you mean 'adam'?"]),
        ({"name": "rmsporp"}, ["rmsporp", "Did you mean 'rmsprop'?"]),
        ({"name": "sgd", "momentun": 0.9}, ["momentun", "Did you mean 'momentum'?"]),
        ({"name": "muon", "ns_step": 3}, ["ns_step", "Did you mean 'ns_steps'?"]),
        ("moun", ["'moun'", "Did you mean 'muon'?"]),
        ({"name": "adam", "learning_rate": 1.0}, ["no argument 'learning_rate'", "is lr"]),
        ({"eps": 1e-5}, ["Known are adam,"]),
        (3, ["optimizer", "3"]),
    ],
)
def test_unknown_optimizers_are_refused_when_they_are_set(setting: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        PPOConfig().training(optimizer=setting)
    for word in words:
        assert word in str(caught.value)


def muon_in_numpy(grads: list[np.ndarray], steps: int = 5) -> np.ndarray:
    """The sum of Muon's directions (Jordan et al. 2024) for successive gradients of a matrix."""
    momentum, moved = np.zeros(grads[0].shape), np.zeros(grads[0].shape)
    for t, grad in enumerate(np.asarray(grads, np.float64), 1):
        momentum = 0.95 * momentum + 0.05 * grad
        ahead = 0.95 * momentum / (1 - 0.95 ** (t + 1)) + 0.05 * grad / (1 - 0.95**t)
        x = ahead / np.linalg.norm(ahead)
        for _ in range(steps):
            gram = x.T @ x
            x = 3.4445 * x + x @ (-4.7750 * gram + 2.0315 * gram @ gram)
        moved += max(1.0, x.shape[1] / x.shape[0]) ** 0.5 * x
    return moved


def test_muon_orthogonalizes_matrices_and_is_nadam_for_the_rest() -> None:
    settings = PPOTraining(optimizer="muon", lr=LR)
    start, got = tree(1), two_steps(optimizer_of(settings))
    nadam = two_steps(optax.nadam(LR))
    for name in ("bias", "scale"):
        np.testing.assert_allclose(got[name], nadam[name], rtol=1e-5)
    moved = (start["kernel"] - got["kernel"]) / LR
    wanted = muon_in_numpy([np.asarray(tree(seed)["kernel"]) for seed in (2, 3)])
    np.testing.assert_allclose(moved, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["muon", "lamb"])
def test_stacked_networks_are_optimized_each_by_itself(name: str) -> None:
    """Stacked biases are no matrices, and the norm of each network is its own."""
    settings = PPOTraining(optimizer=name, lr=LR)

    def steps(params: Any, grads: Any, *, is_stacked: bool) -> Any:
        tx = optimizer_of(settings, is_stacked=is_stacked)
        updates, _ = tx.update(grads, tx.init(params), params)
        return optax.apply_updates(params, updates)

    networks, grads = [tree(seed) for seed in range(3)], [tree(seed) for seed in range(3, 6)]
    stack = partial(jax.tree.map, lambda *leaves: jnp.stack(leaves))
    got = steps(stack(*networks), stack(*grads), is_stacked=True)
    pairs = zip(networks, grads, strict=True)
    wanted = stack(*[steps(params, grad, is_stacked=False) for params, grad in pairs])
    for leaf, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(leaf, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["adam", "muon"])
def test_learning_rates_of_a_sweep_are_one_after_another(name: str) -> None:
    settings, rates = PPOTraining(optimizer=name, lr=LR), jnp.array([0.003, 0.1])

    def optimized(lr: Any) -> Any:
        return two_steps(optimizer_of(settings, lr=lr))

    together, alone = jax.vmap(optimized)(rates), [optimized(lr) for lr in rates]
    for leaf, other in zip(jax.tree.leaves(together), jax.tree.leaves(alone[1]), strict=True):
        np.testing.assert_allclose(leaf[1], other, rtol=1e-5, atol=1e-6)
        assert np.abs(leaf[0] - leaf[1]).max() > 0.05


def test_parameters_are_a_vector_if_they_are_few() -> None:
    settings = PPOTraining(lr=LR)
    tx = optimizer_of(settings)
    few, many = jnp.zeros((2, 2**13)), jnp.zeros((2, 2**13 + 1))
    assert jax.tree.leaves(tx.init(few))[1].shape == (2**14,)
    assert jax.tree.leaves(tx.init(many))[1].shape == many.shape


# --- the step ---


def quadratic(params: Any, factor: Any = 1.0) -> tuple[Any, Any]:
    loss = sum((jnp.square(leaf)).sum() for leaf in jax.tree.leaves(params)) * factor
    return loss, {"size": loss}


def started() -> tuple[optax.GradientTransformation, SgdState]:
    settings = PPOTraining(lr=LR)
    tx = optimizer_of(settings)
    return tx, SgdState(params=tree(4), opt_state=tx.init(tree(4)))


@BOTH_LAYOUTS
def test_a_step_goes_down_and_reports_the_gradient() -> None:
    tx, state = started()
    after, metrics = jax.jit(partial(sgd_step, quadratic, tx, log_gradients=True))(state)
    assert quadratic(after.params)[0] < quadratic(state.params)[0]
    loss = quadratic(state.params)[0]
    np.testing.assert_allclose(metrics["total_loss"], loss, rtol=1e-6)
    np.testing.assert_allclose(metrics["size"], loss, rtol=1e-6)
    np.testing.assert_allclose(
        metrics["grad_norm"], 2 * l2(jax.tree.leaves(state.params)), rtol=1e-5
    )
    for name, leaf in state.params.items():
        np.testing.assert_allclose(metrics[f"grad_norm/{name}"], 2 * l2([leaf]), rtol=1e-5)
    assert metrics[NUM_NONFINITE_UPDATES] == 0.0


def nan_loss(params: Any) -> tuple[Any, Any]:
    """A NaN that no parameter enters: the gradient is finite."""
    loss, metrics = quadratic(params)
    return loss + jnp.nan, metrics


def nan_gradient(params: Any) -> tuple[Any, Any]:
    """A finite loss whose gradient is 0 times infinity."""
    loss, metrics = quadratic(params)
    return loss + jnp.where(True, 0.0, jnp.sqrt(params["scale"] * 0.0)), metrics


def infinite(params: Any) -> tuple[Any, Any]:
    return quadratic(params, jnp.inf)


@BOTH_LAYOUTS
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("loss_fn", [nan_loss, nan_gradient, infinite])
def test_what_is_not_finite_changes_nothing_and_is_counted(loss_fn: Any, jit: bool) -> None:
    tx, state = started()
    state, _ = sgd_step(quadratic, tx, state)  # momenta that are not zero
    step = partial(sgd_step, loss_fn, tx)
    after, metrics = (jax.jit(step) if jit else step)(state)
    jax.tree.map(np.testing.assert_array_equal, after, state)
    assert metrics[NUM_NONFINITE_UPDATES] == 1.0


@BOTH_LAYOUTS
def test_the_gradient_is_the_mean_over_an_axis_and_one_bad_part_stops_all() -> None:
    tx, state = started()
    factors = jnp.array([0.5, 1.0, 3.0, 1.5])

    def part(factor: Any) -> Any:
        return sgd_step(partial(quadratic, factor=factor), tx, state, "parts")

    after, metrics = jax.jit(jax.vmap(part, axis_name="parts"))(factors)
    alone, want = sgd_step(partial(quadratic, factor=factors.mean()), tx, state)
    np.testing.assert_allclose(metrics["grad_norm"], np.full(4, want["grad_norm"]), rtol=1e-5)
    for got, leaf in zip(jax.tree.leaves(after), jax.tree.leaves(alone), strict=True):
        for row in got:
            np.testing.assert_allclose(row, leaf, rtol=1e-5, atol=1e-7)
    after, metrics = jax.jit(jax.vmap(part, axis_name="parts"))(factors.at[2].set(jnp.nan))
    np.testing.assert_array_equal(metrics[NUM_NONFINITE_UPDATES], np.ones(4))
    for got, leaf in zip(jax.tree.leaves(after), jax.tree.leaves(state), strict=True):
        for row in got:
            np.testing.assert_array_equal(row, leaf)


@pytest.mark.parametrize("condition", [False, True])
def test_select(condition: bool) -> None:
    new, old = tree(5), tree(6)
    got = select(jnp.asarray(condition), new, old)
    jax.tree.map(np.testing.assert_array_equal, got, new if condition else old)
    bad = jax.tree.map(lambda leaf: leaf * jnp.nan, new)
    jax.tree.map(np.testing.assert_array_equal, select(jnp.asarray(False), bad, old), old)
