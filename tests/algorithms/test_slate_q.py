"""SlateQ: slates and losses against plain loops, what is learned of patience, and what is refused."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import SlateQConfig, grid
from jaxrl.algorithms import slate_q
from jaxrl.algorithms.slate_q import SlateQLearner
from jaxrl.assembly.assemble import assemble
from jaxrl.core.struct import pytree
from jaxrl.core.types import Columns, Progress, TimeStep, Transition
from jaxrl.envs import JaxEnv
from jaxrl.errors import ConfigError, JaxrlError, SpaceError
from jaxrl.modules.rl_module import Moment
from jaxrl.modules.slate import CHOICE, CHOICE_SCORES, ITEM_VALUES, VALUES, SlateModule
from jaxrl.ops import slates
from tests.helpers import assert_equal, without_times

ROWS, ITEMS, SIZE, USER, DOC, GAMMA = 12, 5, 2, 3, 2, 0.9
Obs = dict[str, Any]


# --- slates by themselves ---


def value_by_loop(scores: np.ndarray, values: np.ndarray, slate: Any) -> float:
    """The mean value by the probabilities of a choice among a slate and the null item."""
    shown = [*slate, len(scores) - 1]
    weights = [np.exp(np.float64(scores[i])) for i in shown]
    return sum(w * values[i] for w, i in zip(weights, shown, strict=True)) / sum(weights)


def best_by_search(scores: np.ndarray, values: np.ndarray, size: int) -> float:
    """The largest value of all slates of distinct items."""
    items = range(len(scores) - 1)
    return max(value_by_loop(scores, values, s) for s in itertools.combinations(items, size))


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("scale", [0.3, 4.0])
def test_the_best_slate_is_found_without_a_search(size: int, scale: float) -> None:
    rng = np.random.default_rng(size)
    scores = rng.normal(size=(40, 8)).astype(np.float32) * scale
    values = rng.normal(size=(40, 8)).astype(np.float32) + rng.normal(size=(40, 1)).astype("f4")
    values[5], scores[6], values[7, -1], values[8, -1] = 1.0, 0.0, 9.0, -9.0
    best = np.asarray(jax.jit(slates.choose_best_slates, static_argnums=2)(scores, values, size))
    found = slates.compute_slate_values(jnp.asarray(scores), jnp.asarray(values), jnp.asarray(best))
    for row in range(40):
        assert len(set(best[row])) == size
        expected = value_by_loop(scores[row], values[row], best[row])
        np.testing.assert_allclose(found[row], expected, rtol=1e-4, atol=1e-5)
        searched = best_by_search(scores[row], values[row], size)
        np.testing.assert_allclose(found[row], searched, rtol=1e-4, atol=1e-5)


def test_the_items_that_are_best_by_themselves_are_not_the_best_slate() -> None:
    """The first slate, of the largest v(i) (Q(s, i) - Q(s, null)), is not the last everywhere."""
    rng = np.random.default_rng(0)
    scores, values = (rng.normal(size=(200, 8)).astype(np.float32) * 2.0 for _ in range(2))
    gains = np.exp(scores[:, :-1]) * (values[:, :-1] - values[:, -1:])
    of_top = [np.argsort(-row)[:2] for row in gains]
    best = np.asarray(slates.choose_best_slates(jnp.asarray(scores), jnp.asarray(values), 2))
    worse = [
        value_by_loop(s, v, top) < value_by_loop(s, v, chosen) - 1e-3
        for s, v, top, chosen in zip(scores, values, of_top, best, strict=True)
    ]
    assert 0 < sum(worse) < 100


def test_scores_of_any_size_are_possible() -> None:
    scores = jnp.asarray([[500.0, -500.0, 100.0, 0.0], [-500.0, -600.0, -700.0, 0.0]])
    values = jnp.asarray([[1.0, 5.0, 3.0, 2.0], [1.0, 5.0, 3.0, 2.0]])
    best = slates.choose_best_slates(scores, values, 2)
    np.testing.assert_array_equal(np.sort(best[0]), [1, 2])
    np.testing.assert_allclose(slates.compute_slate_values(scores, values, best), [3.0, 2.0])


# --- the learner ---


def space_of(docs: Any = None, response: Any = None) -> spaces.Dict:
    return spaces.Dict(
        {
            "user": spaces.Box(-1.0, 1.0, (USER,), np.float32),
            "doc": docs or spaces.Box(-1.0, 1.0, (ITEMS, DOC), np.float32),
            "response": response or spaces.MultiBinary(SIZE),
        }
    )


def learner_of(space: Any = None, **training: Any) -> SlateQLearner:
    """The learner of a small network, whose steps are the gradients."""
    settings: Any = {"optimizer": "sgd", "lr": 1.0, "lr_choice_model": 1.0, **training}
    config = SlateQConfig().training(fcnet_hiddens_per_candidate=[8], **settings)
    actions = spaces.MultiDiscrete([ITEMS] * SIZE)
    module: Any = config.get_rl_module_spec(space or space_of(), actions).build()
    return SlateQLearner(module=module, settings=config.training_settings)


def state_of(learner: SlateQLearner) -> Any:
    """A state with a choice model and networks that differ from one another."""
    state = jax.jit(learner.init)(jax.random.key(0))
    rng = np.random.default_rng(1)

    def move(params: Any) -> Any:
        return jax.tree.map(
            lambda x: x + jnp.asarray(rng.normal(size=x.shape) * 0.7, jnp.float32), params
        )

    params, target = move(state.sgd.params), move(state.target.params)
    return replace(
        state,
        sgd=replace(state.sgd, params=params),
        target=replace(state.target, params=target),
    )


def observed(rng: Any, rows: int = ROWS) -> Obs:
    """Observations of which a third follows no click."""
    clicked = rng.integers(0, SIZE + 1, rows)
    return {
        "user": jnp.asarray(rng.normal(size=(rows, USER)), jnp.float32),
        "doc": jnp.asarray(rng.normal(size=(rows, ITEMS, DOC)), jnp.float32),
        "response": jnp.asarray(clicked[:, None] == np.arange(SIZE), jnp.int8),
    }


def batch_of(seed: int = 2) -> Transition:
    """Rows of which the first is a termination, the second cut, and the third no transition."""
    rng = np.random.default_rng(seed)
    discount = np.full(ROWS, GAMMA, np.float32)
    discount[0] = 0.0
    weight = rng.uniform(0.5, 1.5, ROWS).astype(np.float32)
    weight[2] = 0.0
    order = np.argsort(rng.random((ROWS, ITEMS)), -1)
    return Transition(
        obs=observed(rng),
        action=jnp.asarray(order[:, :SIZE], jnp.int32),
        reward=jnp.asarray(rng.normal(size=ROWS), jnp.float32),
        discount=jnp.asarray(discount),
        next_obs=observed(rng),
        weight=jnp.asarray(weight),
    )


def mlp(params: Any, x: np.ndarray) -> float:
    """One hidden layer of rectified units, and the output."""
    hidden, out = params["hidden"]["dense_0"], params["out"]
    h = np.maximum(x @ hidden["kernel"] + hidden["bias"], 0.0)
    return float((h @ out["kernel"] + out["bias"])[0])


def items_by_loop(params: Any, obs: Obs, row: int) -> tuple[np.ndarray, np.ndarray]:
    """Values and scores of all items and the null item of a row."""
    params, user = jax.device_get(params), np.asarray(obs["user"][row], np.float64)
    docs = np.asarray(obs["doc"][row], np.float64)
    of_items = [mlp(params["values"]["items"], np.concatenate([user, doc])) for doc in docs]
    weights = params["choice"]["weights"]
    linear = user @ weights["kernel"] + weights["bias"]
    scores = [float(linear[:-1] @ doc) for doc in docs]
    return (
        np.array([*of_items, mlp(params["values"]["null"], user)]),
        np.array([*scores, linear[-1]]),
    )


def targets_by_loop(state: Any, batch: Transition, *, double_q: bool) -> np.ndarray:
    """r + γ of the best slate's value at the successor, by a search over all slates."""
    targets = np.zeros(ROWS)
    for row in range(ROWS):
        online, scores = items_by_loop(state.sgd.params, batch.next_obs, row)
        target, _ = items_by_loop(state.target.params, batch.next_obs, row)
        chosen_by = online if double_q else target
        slate = max(
            itertools.combinations(range(ITEMS), SIZE),
            key=lambda s: value_by_loop(scores, chosen_by, s),
        )
        follows = value_by_loop(scores, target, slate)
        targets[row] = batch.reward[row] + batch.discount[row] * follows
    return targets


@pytest.mark.parametrize("double_q", [True, False])
def test_targets_are_of_the_best_slate(double_q: bool) -> None:
    learner = learner_of(double_q=double_q)
    state, batch = state_of(learner), batch_of()
    params, target = state.sgd.params, state.target.params
    targets = jax.jit(learner.compute_td_targets)(params, target, batch, jax.random.key(0))
    expected = targets_by_loop(state, batch, double_q=double_q)
    np.testing.assert_allclose(targets, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(targets[0], batch.reward[0], rtol=1e-6)
    other = targets_by_loop(state, batch, double_q=not double_q)
    assert np.abs(other - expected).max() > 1e-2


def losses_by_loop(
    params: Any, batch: Transition, targets: np.ndarray, threshold: float | None
) -> tuple[float, float, np.ndarray]:
    """The weighted means of both losses, and the errors."""
    value_loss, choice_loss, errors = 0.0, 0.0, np.zeros(ROWS)
    for row in range(ROWS):
        values, scores = items_by_loop(params, batch.obs, row)
        shown = [*np.asarray(batch.action[row]), ITEMS]
        clicks = np.flatnonzero(np.asarray(batch.next_obs["response"][row]))
        at = int(clicks[0]) if len(clicks) else SIZE
        error = errors[row] = values[shown[at]] - targets[row]
        size = abs(error)
        if threshold is None:
            loss = error**2
        elif size <= threshold:
            loss = 0.5 * error**2
        else:
            loss = threshold * (size - 0.5 * threshold)
        total = sum(np.exp(scores[i]) for i in shown)
        value_loss += float(batch.weight[row]) * loss / ROWS
        choice_loss -= float(batch.weight[row]) * np.log(np.exp(scores[shown[at]]) / total) / ROWS
    return value_loss, choice_loss, errors


@pytest.mark.parametrize("threshold", [None, 1.0, 0.5])
def test_losses_are_of_what_was_chosen(threshold: float | None) -> None:
    settings = {} if threshold is None else {"use_huber": True, "huber_threshold": threshold}
    learner = learner_of(**settings)
    state, batch = state_of(learner), batch_of()
    targets = np.random.default_rng(3).normal(size=ROWS)
    loss, metrics = jax.jit(learner.compute_loss)(
        state.sgd.params, batch, jnp.asarray(targets, jnp.float32), jax.random.key(0)
    )
    of_values, of_choices, errors = losses_by_loop(state.sgd.params, batch, targets, threshold)
    np.testing.assert_allclose(loss, of_values + of_choices, rtol=1e-4)
    np.testing.assert_allclose(metrics[Columns.TD_ERROR], errors, rtol=1e-3, atol=1e-4)
    counted = np.asarray(batch.weight) > 0.0
    clicks = np.asarray(batch.next_obs["response"]).sum(-1)
    np.testing.assert_allclose(metrics["click_rate"], clicks[counted].mean(), rtol=1e-5)
    assert 0.0 < clicks.mean() < 1.0
    np.testing.assert_allclose(metrics["td_error_mean"], np.abs(errors)[counted].mean(), rtol=1e-3)


def test_values_and_choices_have_learning_rates_of_their_own() -> None:
    """Steps of plain gradient descent; the values get no gradient of the choices, nor they theirs."""
    moved: dict[tuple[float, float], Any] = {}
    for rates in ((1.0, 0.0), (0.0, 1.0), (0.5, 0.25)):
        learner = learner_of(lr=rates[0], lr_choice_model=rates[1])
        state, batch = state_of(learner), batch_of()
        update = jax.jit(learner.update)
        after, metrics = update(state, batch, Progress.zeros(), jax.random.key(0))
        assert (metrics["curr_lr"], metrics["curr_lr_choice_model"]) == rates
        moved[rates] = jax.tree.map(jnp.subtract, after.sgd.params, state.sgd.params)

    def norm(tree: Any) -> float:
        return float(sum(jnp.abs(x).sum() for x in jax.tree.leaves(tree)))

    assert norm(moved[1.0, 0.0][CHOICE]) == norm(moved[0.0, 1.0][VALUES]) == 0.0
    for part, rates, share in ((VALUES, (1.0, 0.0), 0.5), (CHOICE, (0.0, 1.0), 0.25)):
        assert norm(moved[rates][part]) > 0.1
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, share * y, rtol=1e-3, atol=1e-6),  # noqa: B023
            moved[0.5, 0.25][part],
            moved[rates][part],
        )


# --- the module ---


def test_rllibs_form_of_observations_is_read_alike() -> None:
    """Candidates by number, "10" after "9", and responses as dictionaries with other parts."""
    items, size = 11, 3
    doc = spaces.Box(-1.0, 1.0, (DOC,), np.float32)
    click = spaces.Dict({"click": spaces.Discrete(2), "watch_time": spaces.Box(0.0, 9.0, ())})
    user = spaces.Box(-1.0, 1.0, (USER,), np.float32)
    dicts = spaces.Dict(
        {
            "user": user,
            "doc": spaces.Dict({str(i): doc for i in range(items)}),
            "response": spaces.Tuple([click] * size),
        }
    )
    arrays = spaces.Dict(
        {
            "user": user,
            "doc": spaces.Box(-1.0, 1.0, (items, DOC), np.float32),
            "response": spaces.MultiBinary(size),
        }
    )
    actions = spaces.MultiDiscrete([items] * size)
    config = SlateQConfig()
    modules: list[Any] = [config.get_rl_module_spec(s, actions).build() for s in (dicts, arrays)]
    params = modules[0].init(jax.random.key(0))
    rng = np.random.default_rng(0)
    docs = rng.normal(size=(4, items, DOC)).astype(np.float32)
    clicks = np.eye(size + 1, dtype=np.int32)[[0, 2, 3, 1]][:, :size]
    one = {"user": rng.normal(size=(4, USER)).astype(np.float32)}
    other = dict(one)
    one["doc"] = {str(i): docs[:, i] for i in range(items)}  # pyright: ignore[reportArgumentType]
    watched = np.ones(4, np.float32)
    one["response"] = tuple(  # pyright: ignore[reportArgumentType]
        {"click": clicks[:, j], "watch_time": watched} for j in range(size)
    )
    other |= {"doc": docs, "response": clicks.astype(np.int8)}
    of_both = [m._forward(params, obs) for m, obs in zip(modules, (one, other), strict=True)]
    jax.tree.map(np.testing.assert_array_equal, *of_both)
    read = [m.read_choices(obs) for m, obs in zip(modules, (one, other), strict=True)]
    np.testing.assert_array_equal(*read)
    np.testing.assert_array_equal(read[0], np.eye(size + 1)[[0, 2, 3, 1]])


def test_the_distribution_is_certain_of_the_best_slate() -> None:
    module: Any = learner_of().module
    params, obs = state_of(learner_of()).sgd.params, observed(np.random.default_rng(5), 64)
    out = module._forward(params, obs)
    inferred = module.forward_inference(params, obs)
    np.testing.assert_array_equal(inferred[Columns.ACTIONS], out[Columns.ACTIONS])
    dist = module.action_dist(out[Columns.ACTION_DIST_INPUTS], obs)
    np.testing.assert_array_equal(dist.mode(), out[Columns.ACTIONS])
    np.testing.assert_allclose(dist.log_prob(out[Columns.ACTIONS]), 0.0, atol=1e-6)
    best = [
        best_by_search(np.asarray(s), np.asarray(v), SIZE)
        for s, v in zip(out[CHOICE_SCORES], out[ITEM_VALUES], strict=True)
    ]
    np.testing.assert_allclose(module.compute_values(params, obs), best, rtol=1e-4, atol=1e-5)


def test_random_slates_are_of_distinct_items_in_every_order() -> None:
    module: Any = learner_of().module
    number = 8000
    params = state_of(learner_of()).sgd.params
    obs = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (number, *x.shape[1:])), observed(np.random.default_rng(0), 1)
    )
    module.algorithm_config = {**module.algorithm_config, "num_envs": number}
    moment = Moment(
        hparams={"epsilon": jnp.float32(0.5)},
        progress=Progress.zeros(),
        env_index=jnp.arange(number, dtype=jnp.int32),
    )
    draws = module.draw(jax.random.split(jax.random.key(0), number))
    out = module._explore(params, obs, None, draws, moment)
    actions = np.asarray(out[Columns.ACTIONS])
    assert (actions[:, 0] != actions[:, 1]).all()
    greedy = np.asarray(module.forward_inference(params, obs)[Columns.ACTIONS])[0]
    for slate in itertools.permutations(range(ITEMS), SIZE):
        is_slate = (actions == slate).all(-1)
        probability = 0.5 / (ITEMS * (ITEMS - 1)) + 0.5 * (slate == tuple(greedy))
        assert is_slate.mean() == pytest.approx(probability, abs=0.02)
        log_prob = np.asarray(out[Columns.ACTION_LOGP])[is_slate]
        np.testing.assert_allclose(np.exp(log_prob), probability, rtol=1e-5)


# --- what is learned ---


@pytree
class ShelfState:
    """Kinds of the candidates."""

    is_gem: Any


class Shelf(JaxEnv[ShelfState, None]):
    """Two trinkets, which are bought and end the visit, and two gems, for which patience is needed.

    A purchase pays 1. A trinket on the slate is e times as attractive as to buy nothing, a gem a
    third. The visit of whoever buys no trinket goes on, and its recording ends after ten steps.
    """

    name = "Shelf"
    max_episode_steps = 10
    scores = (float(np.log(1.0 / 3.0)), 1.0)

    def observation_space(self, params: None) -> spaces.Dict:
        return spaces.Dict(
            {
                "user": spaces.Box(0.0, 1.0, (1,), np.float32),
                "doc": spaces.Box(0.0, 1.0, (4, 2), np.float32),
                "response": spaces.MultiBinary(2),
            }
        )

    def action_space(self, params: None) -> spaces.MultiDiscrete:
        return spaces.MultiDiscrete([4, 4])

    def observe(self, state: ShelfState, response: Any) -> Obs:
        doc = jnp.stack([state.is_gem, 1.0 - state.is_gem], axis=-1)
        return {"user": jnp.ones((1,), jnp.float32), "doc": doc, "response": response}

    def fill(self, key: Any) -> ShelfState:
        return ShelfState(is_gem=jax.random.permutation(key, jnp.asarray([1.0, 1.0, 0.0, 0.0])))

    def reset(self, key: Any, params: None) -> tuple[ShelfState, Obs]:
        state = self.fill(key)
        return state, self.observe(state, jnp.zeros((2,), jnp.int8))

    def step(
        self, key: Any, state: ShelfState, action: Any, params: None
    ) -> tuple[ShelfState, TimeStep]:
        choice_key, key = jax.random.split(key)
        is_gem = state.is_gem[action]
        scores = jnp.where(is_gem > 0.0, *self.scores)
        choice = jax.random.categorical(choice_key, jnp.append(scores, 0.0))
        response = (jnp.arange(2, dtype=jnp.int32) == choice).astype(jnp.int8)
        after = self.fill(key)
        return after, TimeStep(
            obs=self.observe(after, response),
            reward=response.sum().astype(jnp.float32),
            terminated=jnp.sum(response * (1.0 - is_gem)) > 0.5,
        )


SHELF_GAMMA = 0.8
BOUGHT = 2.0 / 5.0
"""Probability that one of two gems is bought: two thirds against one and two thirds."""


def check_patience(**training: Any) -> None:
    """Gems are shown, although trinkets are bought, and all values are those of doing so."""
    config = (
        SlateQConfig()
        .environment(Shelf)
        .env_runners(num_envs_per_env_runner=16, rollout_fragment_length=8)
        .training(
            lr=3e-3,
            lr_choice_model=1e-2,
            gamma=SHELF_GAMMA,
            epsilon=0.3,
            fcnet_hiddens_per_candidate=[16],
            train_batch_size=128,
            training_intensity=4.0,
            target_network_update_freq=512,
            num_steps_sampled_before_learning_starts=512,
            **training,
        )
        .learners(num_devices=1)
    )
    assembly: Any = assemble(config)
    state = jax.jit(assembly.run.init)(jax.random.key(0), assembly.made.params)
    state = jax.jit(assembly.run.run_batches)(state, jnp.int32(300))[0]
    obs = {
        "user": jnp.ones((1, 1)),
        "doc": jnp.asarray([[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]]),
        "response": jnp.zeros((1, 2), jnp.int8),
    }
    module: Any = assembly.module
    out = module.forward_inference(state.learner.sgd.params, obs)
    np.testing.assert_array_equal(np.sort(out[Columns.ACTIONS][0]), [0, 2])
    value = BOUGHT / (1.0 - SHELF_GAMMA)
    gem, none = 1.0 + SHELF_GAMMA * value, SHELF_GAMMA * value
    np.testing.assert_allclose(out[ITEM_VALUES][0], [gem, 1.0, gem, 1.0, none], atol=0.2)
    gem_score, trinket_score = Shelf.scores
    scores = out[CHOICE_SCORES][0]
    relative = [gem_score, trinket_score, gem_score, trinket_score]
    np.testing.assert_allclose(scores[:4] - scores[4], relative, atol=0.25)


def test_patience_is_learned() -> None:
    check_patience()


def _without_null(honest: Callable[..., Any]) -> Callable[..., Any]:
    """Values of slates of which no click is worth nothing, as in RLlib."""

    def broken(scores: Any, values: Any, *rest: Any) -> Any:
        return honest(scores, values.at[..., -1].set(0.0), *rest)

    return broken


def _of_all_shown(self: SlateModule, obs: Obs) -> Any:
    """Everything that was shown was chosen."""
    del self
    shown = jnp.ones(obs["response"].shape, jnp.float32)
    return jnp.concatenate([shown, jnp.zeros((*shown.shape[:-1], 1))], axis=-1) / shown.shape[-1]


def _of_the_slate_before(honest: Callable[..., Any]) -> Callable[..., Any]:
    """A loss that reads the response in the observation that was acted on."""

    def broken(self: Any, params: Any, batch: Any, targets: Any, key: Any) -> Any:
        return honest(self, params, replace(batch, next_obs=batch.obs), targets, key)

    return broken


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["no null", "all shown", "response before", "no choice model"])
def test_broken_versions_are_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: dict[str, Any] = {}
    match fault:
        case "no null":
            for name in ("compute_slate_values", "choose_best_slates"):
                monkeypatch.setattr(slate_q, name, _without_null(getattr(slates, name)))
        case "all shown":
            monkeypatch.setattr(SlateModule, "read_choices", _of_all_shown)
        case "response before":
            honest = SlateQLearner.compute_loss
            monkeypatch.setattr(SlateQLearner, "compute_loss", _of_the_slate_before(honest))
        case _:
            settings = {"lr_choice_model": 0.0}
    with pytest.raises((AssertionError, TypeError)):
        check_patience(**settings)


@pytest.mark.slow
@pytest.mark.usefixtures("truncation_is_termination")
def test_a_runner_that_takes_truncation_for_termination_is_noticed() -> None:
    with pytest.raises(AssertionError):
        check_patience()


# --- runs ---


def small(**training: Any) -> Any:
    """A config of few updates."""
    settings: Any = {
        "num_steps_sampled_before_learning_starts": 64,
        "train_batch_size": 32,
        "replay_buffer_config": {"capacity": 512},
        "fcnet_hiddens_per_candidate": [8],
        **training,
    }
    return (
        SlateQConfig()
        .environment("InterestEvolution-v0", env_config={"num_candidates": 4})
        .env_runners(num_envs_per_env_runner=8, rollout_fragment_length=4)
        .training(**settings)
        .reporting(min_sample_timesteps_per_iteration=128)
        .learners(num_shards=1)
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
    with small(**training).build() as algorithm:
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
        assert other["learners"]["default_policy"] == pytest.approx(
            one["learners"]["default_policy"], rel=1e-5
        )
    learned = wanted[-1]["learners"]["default_policy"]
    assert 0.0 < learned["choice_loss"] < 2.0
    assert 0.0 < learned["click_rate"] < 1.0


@pytest.mark.slow
def test_environments_on_the_host_train_alike() -> None:
    config = small().env_runners(placement="host").evaluation(evaluation_duration=4)
    with config.build() as algorithm:
        result = algorithm.train()
        slate = algorithm.compute_single_action(
            {
                "user": np.zeros(6, np.float32),
                "doc": np.eye(5, dtype=np.float32)[:4],
                "response": np.zeros(2, np.int8),
            }
        )
        assert algorithm.evaluate()["env_runners"]["episode_return_mean"] > 0.0
    assert np.isfinite(result["learners"]["default_policy"]["choice_loss"])
    assert len(set(np.asarray(slate).tolist())) == 2


class RecSimForm(gymnasium.Env[Any, Any]):
    """Users in Python who like what resembles them, in the form of RecSim's and RLlib's environments."""

    def __init__(self) -> None:
        vector = spaces.Box(0.0, 1.0, (3,), np.float32)
        watched = spaces.Box(0.0, 9.0, (), np.float32)
        response = spaces.Dict({"click": spaces.Discrete(2), "watch_time": watched})
        self.observation_space = spaces.Dict(
            {
                "user": vector,
                "doc": spaces.Dict({str(i): vector for i in range(4)}),
                "response": spaces.Tuple([response] * 2),
            }
        )
        self.action_space = spaces.MultiDiscrete([4, 4])
        self.seen: Obs = {}
        self.steps = 0

    def observe(self, clicked: int) -> Obs:
        def draw() -> np.ndarray:
            return np.eye(3, dtype=np.float32)[self.np_random.integers(3)]

        responses = [
            {"click": int(j == clicked), "watch_time": np.float32(j == clicked)} for j in range(2)
        ]
        docs = {str(i): draw() for i in range(4)}
        self.seen = {"user": draw(), "doc": docs, "response": tuple(responses)}
        return self.seen

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Obs, Obs]:
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(2), {}

    def step(self, action: Any) -> tuple[Obs, float, bool, bool, Obs]:
        user, docs = self.seen["user"], self.seen["doc"]
        liked = [j for j, i in enumerate(action) if docs[str(i)] @ user > 0.5]
        clicked = liked[0] if liked else 2
        self.steps += 1
        return self.observe(clicked), float(clicked < 2), self.steps == 5, False, {}


@pytest.mark.slow
def test_environments_in_python_of_rllibs_form_are_learned() -> None:
    """Whoever is shown a resemblance clicks it; random slates of 2 out of 4 have fewer."""
    config = small(
        lr=3e-3,
        lr_choice_model=3e-2,
        gamma=0.0,
        epsilon=0.5,
        fcnet_hiddens_per_candidate=[16],
        training_intensity=16.0,
        replay_buffer_config={"capacity": 2048},
    ).environment(RecSimForm, env_config={})
    config.evaluation(evaluation_duration=100, evaluation_config={"explore": False})
    with config.build() as algorithm:
        before = algorithm.evaluate()["env_runners"]["episode_return_mean"]
        for _ in range(20):
            algorithm.train()
        after = algorithm.evaluate()["env_runners"]["episode_return_mean"]
    best = 5.0 * (1.0 - (2.0 / 3.0) ** 4)
    assert before < best - 0.5
    assert after == pytest.approx(best, abs=0.35)


@pytest.mark.slow
def test_lanes_of_learning_rates() -> None:
    with small(lr_choice_model=grid([0.0, 1e-2])).build() as lanes:
        results = lanes.train()["lanes"].values()
    rates = [r["learners"]["default_policy"]["curr_lr_choice_model"] for r in results]
    np.testing.assert_allclose(rates, [0.0, 1e-2], rtol=1e-6)


# --- what is refused ---


class Other(Shelf):
    """Observes, and is acted on, in another form."""

    parts: Obs = {}
    actions: Any = spaces.MultiDiscrete([4, 4])

    def observation_space(self, params: None) -> spaces.Dict:
        parts = {**super().observation_space(params).spaces, **self.parts}
        return spaces.Dict({name: part for name, part in parts.items() if part is not None})

    def action_space(self, params: None) -> Any:
        return self.actions

    def reset(self, key: Any, params: None) -> Any:
        state = self.fill(key)
        return state, jax.tree.map(jnp.asarray, zeros(self.observation_space(params)))

    def step(self, key: Any, state: Any, action: Any, params: None) -> Any:
        _, obs = self.reset(key, params)
        return state, TimeStep(obs=obs, reward=jnp.float32(0.0), terminated=jnp.zeros((), bool))


def zeros(space: Any) -> Any:
    from jaxrl.modules.rl_module import make_zeros

    return make_zeros(space, ())


def of_form(parts: Obs | None = None, actions: Any = None) -> Callable[[], Any]:
    """A run of an environment with other parts, or other actions."""

    def build() -> Any:
        given = {"parts": parts or {}} | ({} if actions is None else {"actions": actions})
        return assemble(SlateQConfig().environment(type("Other", (Other,), given)))

    return build


def with_training(**training: Any) -> Callable[[], Any]:
    return lambda: small(**training).build()


def with_model(**settings: Any) -> Callable[[], Any]:
    return lambda: assemble(small().rl_module(model_config=settings))


CLICKS = spaces.Tuple([spaces.Dict({"click": spaces.Discrete(2)})] * 3)
VECTOR = spaces.Box(0.0, 1.0, (2,), np.float32)
REFUSED: dict[str, tuple[Callable[[], Any], type[JaxrlError], list[str]]] = {
    "no response": (
        of_form({"response": None}),
        SpaceError,
        ["a Dict of user, doc and response", "but the space is a Dict of doc, user"],
    ),
    "another part": (
        of_form({"clock": VECTOR}),
        SpaceError,
        ["a Dict of user, doc and response", "clock"],
    ),
    "responses": (
        of_form({"response": spaces.Discrete(3)}),
        SpaceError,
        ["'response'", "MultiBinary(2)", "Tuple of 2 Dicts with a 'click'", "got Discrete(3)"],
    ),
    "three responses": (
        of_form({"response": CLICKS}),
        SpaceError,
        ["a Tuple of 2 Dicts", "got Tuple("],
    ),
    "user": (
        of_form({"user": spaces.Discrete(3)}),
        SpaceError,
        ["'user' of the observation must be a Box [u], got Discrete(3)"],
    ),
    "docs": (
        of_form({"doc": spaces.Box(0.0, 1.0, (5, 2), np.float32)}),
        SpaceError,
        ["'doc'", "a Box [4, d]", "from '0' to '3'", "got Box(0.0, 1.0, (5, 2), float32)"],
    ),
    "docs by name": (
        of_form({"doc": spaces.Dict({str(i): VECTOR for i in range(1, 5)})}),
        SpaceError,
        ["'doc'", "from '0' to '3'"],
    ),
    "one action": (
        of_form(actions=spaces.Discrete(4)),
        SpaceError,
        ["MultiDiscrete([n] * k)", "action_space is Discrete(4)"],
    ),
    "unequal actions": (
        of_form(actions=spaces.MultiDiscrete([4, 5])),
        SpaceError,
        ["MultiDiscrete([n] * k)", "[4 5]"],
    ),
    "long slates": (
        of_form(actions=spaces.MultiDiscrete([2, 2, 2])),
        SpaceError,
        ["distinct candidates", "slates of 3 out of 2"],
    ),
    "n_step": (with_training(n_step=2), ConfigError, ["n_step=2", "set n_step=1"]),
    "n_step range": (with_training(n_step=(1, 3)), ConfigError, ["n_step=(1, 3)"]),
    "huber": (
        with_training(huber_threshold=2.0),
        ConfigError,
        ["huber_threshold=2.0 has no effect", "use_huber=True"],
    ),
    "hiddens": (
        with_training(fcnet_hiddens_per_candidate=[8, 0]),
        ConfigError,
        ["fcnet_hiddens_per_candidate must be a list of numbers of units of at least 1", "[8, 0]"],
    ),
    "dueling": (with_training(dueling=True), JaxrlError, ["dueling"]),
    "rate": (
        with_training(lr_choice_model=-1.0),
        ConfigError,
        ["lr_choice_model must be at least 0"],
    ),
    "burn-in": (with_training(burn_in_len=2), ConfigError, ["burn_in_len"]),
    "memory": (
        with_model(use_lstm=True),
        ConfigError,
        ["model_config has use_lstm", "fcnet_hiddens_per_candidate=...", "without memory"],
    ),
    "hidden layers": (
        with_model(fcnet_hiddens=[64]),
        ConfigError,
        ["model_config has fcnet_hiddens", "leave it out"],
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


def test_the_defaults_are_rllibs() -> None:
    config: Any = SlateQConfig().environment("InterestEvolution-v0")
    training = config.training_settings
    assert training.fcnet_hiddens_per_candidate == [256, 32]
    assert (training.target_network_update_freq, training.tau) == (3200, 1.0)
    assert (training.lr, training.lr_choice_model) == (2.5e-4, 1e-3)
    translated = config.copy().env_runners(
        exploration_config={
            "type": "SlateEpsilonGreedy",
            "warmup_timesteps": 20000,
            "epsilon_timesteps": 250000,
            "final_epsilon": 0.01,
        }
    )
    assert translated.training_settings.epsilon == training.epsilon
