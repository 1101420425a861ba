"""QMIX and VDN: mixers, losses against plain loops, masks, deaths, memory, and what a run can do."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import QMIXConfig
from jaxrl.algorithms.qmix import QMIXLearner
from jaxrl.core.types import (
    Columns,
    ObsSequence,
    ObsWithCarry,
    Progress,
    SuccessorObs,
    Transition,
)
from jaxrl.modules.teams import GroupQModule, MonotonicMixer

ROWS, LENGTH, SIZE, ACTIONS, WIDTH, STATE = 12, 5, 3, 4, 2, 3
OWN = spaces.Dict(
    {
        "global_state": spaces.Box(-1.0, 1.0, (STATE,), np.float32),
        "member_mask": spaces.MultiBinary((SIZE,)),
        "obs": spaces.Box(-1.0, 1.0, (SIZE, WIDTH), np.float32),
    }
)
SPACE = spaces.Dict({"action_mask": spaces.MultiBinary(SIZE * ACTIONS), "observations": OWN})
ACTION_SPACE = spaces.MultiDiscrete([ACTIONS] * SIZE)
MIXERS = ("qmix", "vdn", None)
LSTM = {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": LENGTH}


def learner_of(model: dict[str, Any] | None = None, **training: Any) -> QMIXLearner:
    """The learner of a small team with masks."""
    config = QMIXConfig().training(**training)
    config.rl_module(model_config={"fcnet_hiddens": [8], **(model or {})})
    module: Any = config.get_rl_module_spec(SPACE, ACTION_SPACE).build()
    return QMIXLearner(module=module, settings=config.training_settings)


def state_of(learner: QMIXLearner) -> Any:
    """A state whose networks differ from one another."""
    state = jax.jit(learner.init)(jax.random.key(0))
    rng = np.random.default_rng(1)
    moved = [
        x + jnp.asarray(rng.normal(size=x.shape) * 0.5, jnp.float32)
        for x in jax.tree.leaves(state.target.params)
    ]
    params = jax.tree.structure(state.target.params).unflatten(moved)
    return replace(state, target=replace(state.target, params=params))


def observed(rng: Any, *batch: int) -> dict[str, Any]:
    """Observations of a team of which a third does not act, with an illegal action for each."""
    illegal = rng.integers(0, ACTIONS, (*batch, SIZE))
    mask = (np.arange(ACTIONS) != illegal[..., None]).astype(np.int8)
    return {
        "action_mask": jnp.asarray(mask.reshape(*batch, -1)),
        "observations": {
            "global_state": jnp.asarray(rng.normal(size=(*batch, STATE)), jnp.float32),
            "member_mask": jnp.asarray(rng.random((*batch, SIZE)) < 0.7, jnp.int8),
            "obs": jnp.asarray(rng.normal(size=(*batch, SIZE, WIDTH)), jnp.float32),
        },
    }


def batch_of(*batch: int) -> Transition:
    """Rows of which some end and some weigh nothing."""
    rng = np.random.default_rng(2)
    return Transition(
        obs=observed(rng, *batch),
        action=jnp.asarray(rng.integers(0, ACTIONS, (*batch, SIZE)), jnp.int32),
        reward=jnp.asarray(rng.normal(size=batch), jnp.float32),
        discount=jnp.asarray(0.9 * (rng.random(batch) < 0.8), jnp.float32),
        next_obs=observed(rng, *batch),
        weight=jnp.asarray(rng.choice([0.0, 0.5, 1.0], batch), jnp.float32),
    )


# --- the mixer ---


@pytest.mark.parametrize("hypernet_embed", [None, 6])
def test_the_mixture_grows_with_every_value(hypernet_embed: int | None) -> None:
    mixer = MonotonicMixer(embed_dim=5, hypernet_embed=hypernet_embed)
    values_key, state_key, init_key = jax.random.split(jax.random.key(0), 3)
    values = jax.random.normal(values_key, (500, SIZE))
    state = 3.0 * jax.random.normal(state_key, (500, STATE))
    variables = mixer.init(init_key, values, state)
    apply: Any = lambda v, s: mixer.apply(variables, v, s)  # noqa: E731
    slopes = jax.jit(jax.vmap(jax.grad(apply)))(values, state)
    assert np.all(slopes >= 0.0)
    assert np.mean(slopes > 1e-3) > 0.9
    by_state = jax.jit(jax.vmap(jax.grad(apply, argnums=1)))(values, state)
    assert np.any(by_state > 0.1)  # in the state, anything goes
    assert np.any(by_state < -0.1)
    np.testing.assert_allclose(
        jax.jit(apply)(values[:40], state[:40]),
        [
            mix_by_loops(jax.device_get(variables["params"]), v, s)
            for v, s in zip(*map(np.asarray, (values[:40], state[:40])), strict=True)
        ],
        rtol=2e-4,
        atol=1e-4,
    )


def mix_by_loops(params: Any, values: Any, state: Any) -> float:
    """QMIX's mixer for one row (Rashid et al. 2018, figure 2 and appendix C)."""

    def dense(name: str, x: Any) -> Any:
        return np.asarray(x) @ np.asarray(params[name]["kernel"]) + np.asarray(params[name]["bias"])

    def weights(name: str) -> Any:
        hidden = (
            state
            if f"{name}_hidden" not in params
            else np.maximum(dense(f"{name}_hidden", state), 0)
        )
        return np.abs(dense(name, hidden))

    shift = dense("first_bias", state)
    first, last = weights("first").reshape(len(values), len(shift)), weights("last")
    total = dense("last_bias", np.maximum(dense("last_bias_hidden", state), 0.0))[0]
    for unit in range(len(shift)):
        x = shift[unit] + sum(values[i] * first[i, unit] for i in range(len(values)))
        total += last[unit] * (x if x > 0 else np.expm1(x))
    return float(total)


# --- losses against loops ---


def mixed(learner: QMIXLearner, params: Any, chosen: Any, obs: Any) -> list[float]:
    """The values that the loss compares with targets for one row: one, or one for each member."""
    own = obs["observations"]
    acts = np.asarray(own["member_mask"]).astype(bool)
    values = [float(q) if here else 0.0 for q, here in zip(chosen, acts, strict=True)]
    match learner.settings.mixer:
        case "vdn":
            return [sum(values)]
        case "qmix":
            return [mix_by_loops(params["mixer"], values, np.asarray(own["global_state"]))]
        case _:
            return values


def loss_by_loops(learner: QMIXLearner, state: Any, batch: Transition) -> tuple[float, list[float]]:
    """The loss and the rows' errors of the definition, member by member."""
    settings = learner.settings
    online, target = jax.device_get((state.sgd.params, state.target.params))
    forward = jax.jit(learner.module.forward_train)

    def q(params: Any, obs: Any) -> Any:
        out = forward(params, {Columns.OBS: obs})[Columns.ACTION_DIST_INPUTS]
        return np.asarray(out).reshape(*out.shape[:-1], SIZE, ACTIONS)

    now, later_online = q(online, batch.obs), q(online, batch.next_obs)
    later_target = q(target, batch.next_obs)
    total, errors = 0.0, []
    rows = jax.device_get(batch)
    for n in range(len(rows.reward)):
        obs, after = (jax.tree.map(lambda x, n=n: x[n], o) for o in (rows.obs, rows.next_obs))
        best: list[float] = []
        for i in range(SIZE):
            legal = [a for a in range(ACTIONS) if after["action_mask"].reshape(SIZE, -1)[i, a]]
            select = later_online if settings.double_q else later_target
            best.append(later_target[n, i, max(legal, key=lambda a, i=i, n=n: select[n, i, a])])
        taken = [now[n, i, rows.action[n, i]] for i in range(SIZE)]
        values = mixed(learner, online, taken, obs)
        following = mixed(learner, target, best, after)
        differences = [
            v - float(references_target(rows.reward[n], rows.discount[n], f))
            for v, f in zip(values, following, strict=True)
        ]
        if settings.mixer is None:
            acts = obs["observations"]["member_mask"].astype(bool)
            differences = [e for e, here in zip(differences, acts, strict=True) if here]
        number = max(len(differences), 1)
        errors.append(sum(map(abs, differences)) / number)
        if settings.td_error_loss_fn == "huber":
            losses = [0.5 * e * e if abs(e) <= 1 else abs(e) - 0.5 for e in differences]
        else:
            losses = [e * e for e in differences]
        total += float(rows.weight[n]) * sum(losses) / number
    return total / len(rows.reward), errors


def references_target(reward: Any, discount: Any, value: float) -> float:
    return reward + discount * value


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize(("double_q", "loss"), [(True, "mse"), (False, "huber")])
def test_loss_is_that_of_loops(mixer: Any, double_q: bool, loss: Any) -> None:
    learner = learner_of(mixer=mixer, double_q=double_q, td_error_loss_fn=loss, dueling=double_q)
    state, batch = state_of(learner), batch_of(ROWS)

    def compute(state: Any, batch: Any) -> Any:
        params, key = state.sgd.params, jax.random.key(3)
        targets = learner.compute_td_targets(params, state.target.params, batch, key)
        return learner.compute_loss(params, batch, targets, key)

    actual, metrics = jax.jit(compute)(state, batch)
    expected, errors = loss_by_loops(learner, state, batch)
    np.testing.assert_allclose(actual, expected, rtol=1e-4)
    np.testing.assert_allclose(metrics[Columns.TD_ERROR], errors, rtol=1e-4, atol=1e-5)
    learned = [e for e, weight in zip(errors, batch.weight, strict=True) if weight > 0]
    np.testing.assert_allclose(metrics["td_error_mean"], np.mean(learned), rtol=1e-4)


@pytest.mark.parametrize("mixer", MIXERS)
def test_what_an_absent_member_saw_and_did_has_no_effect(mixer: Any) -> None:
    learner = learner_of(mixer=mixer)
    state, batch = state_of(learner), batch_of(ROWS)

    def compute(params: Any, batch: Any) -> Any:
        targets = learner.compute_td_targets(params, state.target.params, batch, jax.random.key(3))
        return learner.compute_loss(params, batch, targets, jax.random.key(3))[0]

    value_and_grad = jax.jit(jax.value_and_grad(compute))
    loss, gradient = value_and_grad(state.sgd.params, batch)

    def change(obs: Any) -> Any:
        own = obs["observations"]
        absent = (own["member_mask"] == 0)[..., None]
        return {**obs, "observations": {**own, "obs": jnp.where(absent, 7.0, own["obs"])}}

    absent = batch.obs["observations"]["member_mask"] == 0
    other = replace(
        batch,
        obs=change(batch.obs),
        next_obs=change(batch.next_obs),
        action=jnp.where(absent, (batch.action + 1) % ACTIONS, batch.action),
    )
    changed, other_gradient = value_and_grad(state.sgd.params, other)
    assert bool(absent.any())
    np.testing.assert_allclose(changed, loss, rtol=1e-6)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6),
        other_gradient,
        gradient,
    )


def test_members_are_valued_by_one_network_and_told_apart_by_their_number() -> None:
    rng = np.random.default_rng(0)
    obs = observed(rng, ROWS)
    alike = jnp.broadcast_to(obs["observations"]["obs"][:, :1], (ROWS, SIZE, WIDTH))
    obs["observations"]["obs"] = alike
    for told in (True, False):
        module = learner_of(obs_agent_id=told).module
        params = module.init(jax.random.key(0))
        values = module.compute_member_values(params, obs)
        assert values.shape == (ROWS, SIZE, ACTIONS)
        assert np.allclose(values[:, 0], values[:, 1]) != told
        kernel = params["encoder"]["mlp"]["dense_0"]["kernel"]
        assert kernel.shape == (WIDTH + SIZE * told, 8)


# --- memory ---


@pytest.mark.representatives("gru")
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_sequence_of_a_team_is_the_steps_of_its_members(kind: str) -> None:
    learner = learner_of({**LSTM, "recurrent_layer_type": kind})
    module, rng = learner.module, np.random.default_rng(4)
    params = jax.jit(module.init)(jax.random.key(0))
    obs = observed(rng, ROWS, LENGTH)
    is_first = jnp.asarray(rng.random((ROWS, LENGTH)) < 0.3)
    blank = module.initial_carry(ROWS)
    start = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), blank)

    def forward_step(params: Any, obs: Any, carry: Any) -> Any:
        return module.forward_train(params, {Columns.OBS: ObsWithCarry(obs=obs, carry=carry)})

    assert all(leaf.shape[:2] == (ROWS, SIZE) for leaf in jax.tree.leaves(blank))
    sequence = ObsSequence(obs=obs, carry=start, is_first=is_first)
    out = jax.jit(module.unroll)(params, sequence)
    after = jnp.asarray(rng.integers(0, LENGTH, (ROWS, LENGTH)))
    successor = observed(rng, ROWS, LENGTH)
    following = module.compute_member_values(
        params, SuccessorObs(obs=successor, after=after, sequence=sequence)
    )
    step, carry, carries = jax.jit(forward_step), start, []
    for t in range(LENGTH):
        first = np.asarray(is_first[:, t])
        carry = jax.tree.map(
            lambda x, y, f=first: jnp.where(f.reshape(-1, *[1] * (x.ndim - 1)), y, x), carry, blank
        )
        one = step(params, jax.tree.map(lambda x, t=t: x[:, t], obs), carry)
        carry = one[Columns.STATE_OUT]
        carries.append(carry)
        for name in (Columns.ACTION_DIST_INPUTS, Columns.STATE_OUT):
            jax.tree.map(
                lambda x, y, t=t: np.testing.assert_allclose(x[:, t], y, rtol=1e-4, atol=1e-6),
                out[name],
                one[name],
            )
    for n in range(ROWS):
        own = jax.tree.map(lambda *x, n=n: x[int(after[n, 2])][n : n + 1], *carries)
        one = step(params, jax.tree.map(lambda x, n=n: x[n : n + 1, 2], successor), own)
        flat = np.asarray(one[Columns.ACTION_DIST_INPUTS]).reshape(SIZE, ACTIONS)
        np.testing.assert_allclose(following[n, 2], flat, rtol=1e-4, atol=1e-6)


# --- exploration ---


def test_members_explore_by_themselves_within_their_masks() -> None:
    module: GroupQModule = learner_of().module
    params, rows, epsilon = module.init(jax.random.key(0)), 4000, 0.4
    one = observed(np.random.default_rng(5), 1)
    obs = jax.tree.map(lambda x: jnp.broadcast_to(x, (rows, *x.shape[1:])), one)
    draws = module.draw(jax.random.split(jax.random.key(1), rows))
    out = module.forward_exploration(
        params,
        obs,
        None,
        {"epsilon": jnp.float32(epsilon)},
        Progress.zeros(),
        jnp.arange(rows),
        draws,
    )
    actions = np.asarray(out[Columns.ACTIONS])
    mask = np.asarray(one["action_mask"]).reshape(SIZE, ACTIONS).astype(bool)
    best = np.asarray(module.forward_inference(params, one)[Columns.ACTIONS])[0]
    legal = ACTIONS - 1
    for i in range(SIZE):
        assert mask[i][actions[:, i]].all()
        share = np.bincount(actions[:, i], minlength=ACTIONS) / rows
        expected = np.where(mask[i], epsilon / legal, 0.0)
        expected[best[i]] += 1 - epsilon
        np.testing.assert_allclose(share, expected, atol=0.03)
    apart = (actions != best).astype(float)
    assert abs(np.corrcoef(apart.T)[0, 1]) < 0.06  # each throws its own coin
    acts = np.asarray(one["observations"]["member_mask"])[0].astype(bool)
    expected = np.where(actions == best, 1 - epsilon + epsilon / legal, epsilon / legal)
    np.testing.assert_allclose(
        out[Columns.ACTION_LOGP], np.log(expected)[:, acts].sum(axis=1), rtol=1e-4, atol=1e-5
    )
