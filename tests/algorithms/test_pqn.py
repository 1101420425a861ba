"""PQN's targets and loss against plain loops; what it learns on probes, in the program and beside it."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import PQNConfig
from jaxrl.algorithms import pqn
from jaxrl.algorithms.pqn import PQNLearner
from jaxrl.assembly.assemble import assemble
from jaxrl.core.types import Columns, Progress, Rollout
from jaxrl.envs import make
from jaxrl.errors import SpaceError
from jaxrl.learners.bootstrap import compute_successor_values
from jaxrl.ops import returns
from jaxrl.testing import references
from tests.helpers import small

STEPS, ENVS, ACTIONS, GAMMA = 12, 4, 3, 0.9
SPACE = spaces.Dict(
    {"action_mask": spaces.MultiBinary(ACTIONS), "obs": spaces.Box(-1.0, 1.0, (4,))}
)


@functools.cache
def learner_and_state() -> tuple[PQNLearner, Any]:
    """A learner of masked observations, whose steps are the gradients, and a state."""
    config = PQNConfig().training(optimizer="sgd", lr=1.0, gamma=GAMMA, grad_clip=None)
    config.rl_module(model_config={"fcnet_hiddens": [8]})
    module = config.get_rl_module_spec(SPACE, spaces.Discrete(ACTIONS)).build()
    learner = PQNLearner(module=module, settings=config.training_settings)
    state = jax.jit(learner.init)(jax.random.key(0))
    rng = np.random.default_rng(1)
    params = jax.tree.map(
        lambda x: x + jnp.asarray(rng.normal(size=x.shape) * 0.4, jnp.float32), state.sgd.params
    )
    return learner, replace(state, sgd=replace(state.sgd, params=params))


def recorded(seed: int = 0) -> Rollout:
    """Twelve steps of four environments, with ends of both kinds, and rows that are none.

    Successors and next observations differ everywhere, as they do after a reset. Nobody acted in
    rows that are none, so that what they have of the module means nothing.
    """
    learner, state = learner_and_state()
    rng = np.random.default_rng(seed)
    shape = (STEPS, ENVS)

    def observed() -> dict[str, Any]:
        illegal = rng.integers(0, ACTIONS, shape)
        mask = (np.arange(ACTIONS)[None, None] != illegal[..., None]).astype(np.int8)
        obs = rng.normal(size=(*shape, 4)).astype(np.float32)
        return {"action_mask": jnp.asarray(mask), "obs": jnp.asarray(obs)}

    def flags(rate: float) -> Any:
        return jnp.asarray(rng.random(shape) < rate)

    obs, terminated, mask = observed(), flags(0.15), ~flags(0.1)
    acting_values = action_values(learner, state.sgd.params, obs)
    return Rollout(
        obs=obs,
        action=jnp.asarray(rng.integers(0, ACTIONS, shape), jnp.int32),
        reward=jnp.asarray(rng.normal(size=shape), jnp.float32),
        terminated=terminated,
        truncated=flags(0.15) & ~terminated,
        final_obs=observed(),
        is_first=jnp.zeros(shape, bool),
        mask=mask,
        extras={
            Columns.ACTION_DIST_INPUTS: jnp.where(mask[..., None], acting_values, 1e3),
            Columns.ACTION_LOGP: jnp.zeros(shape),
        },
    )


def action_values(learner: PQNLearner, params: Any, obs: Any) -> Any:
    """Q(s, ·), `[*batch, actions]`."""
    out = jax.jit(learner.module.forward_train)(params, {Columns.OBS: obs})
    return out[Columns.ACTION_DIST_INPUTS]


def best_legal(learner: PQNLearner, params: Any, obs: Any) -> np.ndarray:
    """The largest value of a legal action, by a loop."""
    values = np.asarray(action_values(learner, params, obs))
    mask = np.asarray(obs["action_mask"])
    best = np.zeros(mask.shape[:2])
    for t, b in np.ndindex(*best.shape):
        best[t, b] = max(values[t, b, a] for a in range(ACTIONS) if mask[t, b, a])
    return best


def targets_by_loop(rollout: Rollout, lambda_: float) -> np.ndarray:
    """The weighted sum of all n-step returns, column by column.

    They bootstrap from `final_obs` where an episode ends, and where no row follows.
    """
    learner, state = learner_and_state()
    params = state.sgd.params
    values = best_legal(learner, params, rollout.obs)
    finals = best_legal(learner, params, rollout.final_obs)
    host: Any = jax.device_get(rollout)
    following = np.concatenate([values[1:], finals[-1:]])
    is_followed = np.concatenate([host.mask[1:], np.zeros_like(host.mask[:1])])
    is_last = host.truncated | ~is_followed
    following[is_last] = finals[is_last]
    columns = [
        references.lambda_returns(
            host.reward[:, b],
            following[:, b],
            *(x[:, b] for x in (host.terminated, host.truncated, host.mask)),
            GAMMA,
            lambda_,
        )
        for b in range(ENVS)
    ]
    return np.stack(columns, axis=1)


@functools.cache
def compiled_prepare() -> Any:
    return jax.jit(learner_and_state()[0].prepare)


def prepared(state: Any, rollout: Rollout) -> tuple[Any, Any]:
    return compiled_prepare()(state, rollout, Progress.zeros())


@pytest.mark.parametrize("lambda_", [0.0, 0.65, 1.0])
def test_targets_are_lambda_returns(lambda_: float) -> None:
    _, state = learner_and_state()
    state = replace(state, hparams={**state.hparams, "lambda_": jnp.float32(lambda_)})
    rollout = recorded()
    assert rollout.truncated.any()
    assert rollout.terminated.any()
    batch, metrics = prepared(state, rollout)
    wanted, mask = targets_by_loop(rollout, lambda_), np.asarray(rollout.mask)
    np.testing.assert_allclose(batch.targets, wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(batch.weight, mask / mask.mean(), rtol=1e-6)
    np.testing.assert_allclose(metrics["qf_target_mean"], wanted[mask].mean(), rtol=1e-4)


def _from_the_reset(value_fn: Any, rollout: Rollout, values: Any, mask: Any) -> Any:
    """The next row's value after a truncation too, which is that of the reset observation."""
    del value_fn, rollout, mask
    return jnp.concatenate([values[1:], values[-1:]])


def _ends_never(honest: Callable[..., Any]) -> Callable[..., Any]:
    """λ-returns that run on from one episode into the next."""

    def broken(
        reward: Any, v_t: Any, terminated: Any, truncated: Any, mask: Any, *rest: Any
    ) -> Any:
        del truncated
        nowhere = jnp.zeros_like(terminated)
        return honest(reward, v_t, nowhere, nowhere, mask, *rest)

    return broken


def _cut_is_end(honest: Callable[..., Any]) -> Callable[..., Any]:
    """λ-returns that take truncation for termination, as the authors' code does."""

    def broken(
        reward: Any, v_t: Any, terminated: Any, truncated: Any, mask: Any, *rest: Any
    ) -> Any:
        return honest(reward, v_t, terminated | truncated, truncated, mask, *rest)

    return broken


def _from_behind(value_fn: Any, rollout: Rollout, values: Any, mask: Any) -> Any:
    """The next row's value where none follows, too."""
    del mask
    return compute_successor_values(value_fn, rollout, values)


def _next_but_one(value_fn: Any, rollout: Rollout, values: Any, mask: Any) -> Any:
    """The values of the states one step later than they should be."""
    later = compute_successor_values(value_fn, rollout, values, mask)
    return jnp.concatenate([later[1:], later[-1:]])


def _worst(self: PQNLearner, values: Any, obs: Any) -> Any:
    """The smallest value of a legal action."""
    return jnp.where(obs["action_mask"] == 1, values, jnp.inf).min(-1)


@pytest.mark.parametrize("fault", ["reset", "behind", "late", "worst", "not cut", "cut is end"])
def test_wrong_targets_are_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    match fault:
        case "reset":
            monkeypatch.setattr(pqn, "compute_successor_values", _from_the_reset)
        case "behind":
            monkeypatch.setattr(pqn, "compute_successor_values", _from_behind)
        case "late":
            monkeypatch.setattr(pqn, "compute_successor_values", _next_but_one)
        case "worst":
            monkeypatch.setattr(PQNLearner, "_max_over_legal", _worst)
        case "not cut":
            monkeypatch.setattr(returns, "lambda_returns", _ends_never(returns.lambda_returns))
        case _:
            monkeypatch.setattr(returns, "lambda_returns", _cut_is_end(returns.lambda_returns))
    compiled_prepare.cache_clear()
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        test_targets_are_lambda_returns(0.65)
    compiled_prepare.cache_clear()


def test_illegal_actions_are_worth_nothing() -> None:
    """Neither in the states that were acted in nor in those after the last rows."""
    _, state = learner_and_state()
    rollout = recorded(1)
    batch, _ = prepared(state, rollout)
    tempting = jnp.where(rollout.obs["action_mask"] == 0, 1e3, 0.0)
    seen = rollout.extras[Columns.ACTION_DIST_INPUTS]
    other = replace(rollout, extras={**rollout.extras, Columns.ACTION_DIST_INPUTS: seen + tempting})
    np.testing.assert_array_equal(prepared(state, other)[0].targets, batch.targets)

    head = state.sgd.params["q_head"]["out"]
    params = {**state.sgd.params, "q_head": {"out": {**head, "bias": jnp.array([1e3, 0.0, 0.0])}}}
    legal = jnp.broadcast_to(jnp.array([0, 1, 1], jnp.int8), (STEPS, ENVS, ACTIONS))
    masked = replace(rollout, final_obs={**rollout.final_obs, "action_mask": legal})
    changed = replace(state, sgd=replace(state.sgd, params=params))
    assert np.abs(np.asarray(prepared(changed, masked)[0].targets)).max() < 50.0
    assert np.abs(np.asarray(prepared(changed, rollout)[0].targets)).max() > 200.0


def test_one_update_is_the_squared_errors_gradient() -> None:
    """∇ ½ (Q(s, a) − G)², over the rows that are transitions; G is held fixed."""
    learner, state = learner_and_state()
    rollout = recorded(2)
    batch, _ = prepared(state, rollout)
    targets, host = targets_by_loop(rollout, 0.65), jax.device_get(rollout)
    params = state.sgd.params

    def loss(params: Any) -> Any:
        values = learner.module.forward_train(params, {Columns.OBS: rollout.obs})
        q = jnp.take_along_axis(
            values[Columns.ACTION_DIST_INPUTS], rollout.action[..., None], axis=-1
        )[..., 0]
        rows = 0.5 * jnp.square(q - jnp.asarray(targets, jnp.float32))
        return jnp.where(rollout.mask, rows, 0.0).sum() / rollout.mask.sum()

    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
    after, metrics = jax.jit(learner.update)(state, flat, Progress.zeros(), jax.random.key(0))
    moved = jax.tree.map(jnp.subtract, params, after.sgd.params)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5),
        moved,
        jax.jit(jax.grad(loss))(params),
    )
    values, total, mean = np.asarray(action_values(learner, params, rollout.obs)), 0.0, 0.0
    for t, b in np.argwhere(host.mask):
        q = values[t, b, host.action[t, b]]
        total += 0.5 * (q - targets[t, b]) ** 2 / host.mask.sum()
        mean += q / host.mask.sum()
    np.testing.assert_allclose(metrics["qf_loss"], total, rtol=1e-4)
    np.testing.assert_allclose(metrics["total_loss"], total, rtol=1e-4)
    np.testing.assert_allclose(metrics["qf_mean"], mean, rtol=1e-3, atol=1e-5)


def test_a_fit_explains_all_variance() -> None:
    _, state = learner_and_state()
    rollout = recorded(3)
    assert prepared(state, rollout)[1]["qf_explained_var"] < 0.5
    fit = rollout.reward[..., None] * jax.nn.one_hot(rollout.action, ACTIONS)
    ended = replace(
        rollout,
        terminated=jnp.ones_like(rollout.terminated),
        extras={**rollout.extras, Columns.ACTION_DIST_INPUTS: fit},
    )
    np.testing.assert_allclose(prepared(state, ended)[1]["qf_explained_var"], 1.0, atol=1e-5)


def test_rows_without_transitions_count_for_nothing() -> None:
    learner, state = learner_and_state()
    rollout = recorded(4)
    hidden = ~rollout.mask
    assert bool(hidden.any())
    other = replace(
        rollout,
        reward=jnp.where(hidden, 1e6, rollout.reward),
        action=jnp.where(hidden, 0, rollout.action),
    )
    update, after = jax.jit(learner.update), []
    for rows in (rollout, other):
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), prepared(state, rows)[0])
        after.append(update(state, flat, Progress.zeros(), jax.random.key(0))[0].sgd.params)
    jax.tree.map(np.testing.assert_array_equal, *after)


# --- in the compiled program ---


@functools.cache
def acting() -> Any:
    """Return a rollout of a learner's state, and Q of its observations."""
    config = small("PQN", env="jaxrl:probe-obs-action-v0")
    assembly = assemble(config.env_runners(num_envs_per_env_runner=128))
    runner = assembly.run

    def acted(epsilon: Any) -> Any:
        state = runner.init(jax.random.key(0), assembly.made.params)
        learner = replace(state.learner, hparams={**state.learner.hparams, "epsilon": epsilon})
        actor = runner.make_actor_state(replace(state, learner=learner))
        rollout = assembly.rollout_worker.rollout(
            actor, state.env, state.carry, state.env_params, 16
        )[2]
        out = assembly.module.forward_train(learner.sgd.params, {Columns.OBS: rollout.obs})
        return rollout, out[Columns.ACTION_DIST_INPUTS]

    return jax.jit(acted)


@pytest.mark.allow_key_reuse
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 0.25])
def test_epsilon_is_the_share_of_random_actions(epsilon: float) -> None:
    rollout, values = acting()(jnp.float32(epsilon))
    greedy = float((np.asarray(rollout.action) == np.asarray(values).argmax(-1)).mean())
    assert greedy == pytest.approx(1.0 - epsilon / 2.0, abs=0.05 if epsilon else 0.0)


@pytest.mark.allow_key_reuse
def test_targets_take_the_values_that_acting_computed() -> None:
    """These values are those of the parameters that prepare() gets."""
    rollout, anew = acting()(jnp.float32(0.5))
    acted = rollout.extras[Columns.ACTION_DIST_INPUTS]
    np.testing.assert_allclose(acted, anew, rtol=1e-5, atol=1e-6)
    assert np.asarray(acted).std() > 0.01


def test_schedules_are_of_environment_steps() -> None:
    config = small("PQN", epsilon=[[0, 1.0], [512, 0.2]], lr=[[0, 1e-3], [1024, 0.0]])
    assembly = assemble(config)
    runner = assembly.run
    state = jax.jit(runner.init)(jax.random.key(0), assembly.made.params)
    step, rows = jax.jit(runner.step), []
    for _ in range(5):
        state, metrics = step(state)
        rows.append((metrics["curr_epsilon"], metrics["curr_lr"]))
    epsilons, rates = np.asarray(rows).T
    np.testing.assert_allclose(epsilons, [0.8, 0.6, 0.4, 0.2, 0.2], rtol=1e-5)
    np.testing.assert_allclose(rates, 1e-3 * (1.0 - np.arange(1, 6) / 8.0), rtol=1e-5)


# --- settings ---


def test_layer_norm_follows_every_layer_by_default() -> None:
    config = PQNConfig().rl_module(model_config={"head_fcnet_hiddens": [5]})
    image = spaces.Box(0.0, 1.0, (10, 10, 4))
    module = config.get_rl_module_spec(image, spaces.Discrete(3)).build()
    params: Any = jax.eval_shape(module.init, jax.random.key(0))
    assert sorted(params["encoder"]["cnn"]) == ["conv_0", "norm_0"]
    assert sorted(params["encoder"]["mlp"]) == ["dense_0", "dense_1", "norm_0", "norm_1"]
    assert sorted(params["q_head"]["hidden"]) == ["dense_0", "norm_0"]
    plain = PQNConfig().rl_module(model_config={"conv_use_layernorm": False})
    module = plain.get_rl_module_spec(image, spaces.Discrete(3)).build()
    params = jax.eval_shape(module.init, jax.random.key(0))
    assert sorted(params["encoder"]["cnn"]) == ["conv_0"]


def test_the_defaults_are_the_authors() -> None:
    """128 environments x 32 steps in 32 minibatches, twice."""
    plan = PQNConfig().environment("CartPole-v1").plan()
    assert (plan.num_envs, plan.rollout_fragment_length) == (128, 32)
    assert (plan.num_minibatches, plan.minibatch_size, plan.num_epochs) == (32, 128, 2)
    assert "normalize_advantages" not in PQNConfig()


def test_continuous_actions_are_refused() -> None:
    with pytest.raises(SpaceError, match="Action values need a Discrete action space"):
        assemble(small("PQN", env="Pendulum-v1"))


# --- probes ---


def run_of(env: str, batches: int, **training: Any) -> tuple[Any, Any]:
    """The assembly and the state after so many train batches."""
    steps = 128 * batches
    config = small("PQN", env=f"jaxrl:{env}", epsilon=[[0, 1.0], [steps // 2, 0.1]], **training)
    assembly = assemble(config.rl_module(model_config={"fcnet_hiddens": [16]}))
    runner = assembly.run
    state = jax.jit(runner.init)(jax.random.key(0), assembly.made.params)
    return assembly, jax.jit(runner.run_batches)(state, jnp.int32(batches))[0]


def best_in(assembly: Any, state: Any, obs: Any) -> tuple[np.ndarray, np.ndarray]:
    """The best legal action in each observation, and its value."""
    out = assembly.module.forward_train(state.learner.sgd.params, {Columns.OBS: obs})
    dist = assembly.module.action_dist(out[Columns.ACTION_DIST_INPUTS], obs)
    return np.asarray(dist.mode()), np.asarray(dist.logits).max(-1)


@pytest.mark.slow
def test_values_are_discounted() -> None:
    """A reward of 1 after two steps."""
    table = make("jaxrl:probe-discount-v0").env.value_table(0.8)  # pyright: ignore
    assembly, state = run_of("probe-discount-v0", 400, gamma=0.8, lr=3e-3)
    _, values = best_in(assembly, state, jnp.asarray(table.obs))
    np.testing.assert_allclose(values, table.values, atol=0.1)


def test_masked_actions_are_never_taken_nor_believed() -> None:
    """The illegal action would pay 100; the legal ones are worth 1 at most."""
    table = make("jaxrl:probe-mask-v0").env.value_table(0.99)  # pyright: ignore
    assembly, state = run_of("probe-mask-v0", 400, lr=3e-3)
    mask = jnp.asarray([[1, 1, 0], [0, 1, 1]], jnp.int8)
    actions, values = best_in(assembly, state, {"action_mask": mask, "obs": jnp.asarray(table.obs)})
    np.testing.assert_array_equal(actions, [0, 2])
    np.testing.assert_allclose(values, table.values, atol=0.1)
    assert float(state.ring.episode_return.max()) == 1.0


def test_truncation_is_not_termination() -> None:
    """Reward 1 for ever, cut every ten steps: the value is 1 / (1 - gamma)."""
    assembly, state = run_of("probe-truncation-v0", 400, gamma=0.8, lr=0.02, minibatch_size=32)
    _, value = best_in(assembly, state, jnp.zeros((1, 1)))
    np.testing.assert_allclose(value, 5.0, rtol=0.05)


@pytest.mark.slow
@pytest.mark.usefixtures("truncation_is_termination")
def test_a_runner_that_takes_truncation_for_termination_fails_that_test() -> None:
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        test_truncation_is_not_termination()


def test_it_learns_from_environments_on_the_host() -> None:
    """The same learner, fed by gymnasium's CartPole."""
    config = small("PQN", env="gymnasium:CartPole-v1", lr=1e-3)
    with config.build() as algorithm:
        before = algorithm.get_weights()["default_policy"]
        learned = algorithm.train()["learners"]["default_policy"]
        after = algorithm.get_weights()["default_policy"]
    assert np.isfinite(learned["qf_loss"])
    assert learned["curr_epsilon"] == pytest.approx(1.0, abs=0.01)
    kernels = (tree["q_head"]["out"]["kernel"] for tree in (before, after))
    assert not np.array_equal(*kernels)
