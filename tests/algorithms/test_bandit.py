"""LinUCB and LinTS against ridges of NumPy in double precision; regret on bandits; bad input."""

from dataclasses import replace
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import BanditLinTSConfig, BanditLinUCBConfig
from jaxrl.algorithms.bandit import BanditLearner, LinearModels, solve_models
from jaxrl.assembly.assemble import assemble
from jaxrl.core.types import Columns, Progress
from jaxrl.envs import make
from jaxrl.envs.bandits import LinearBandit, WheelBandit
from jaxrl.errors import ConfigError, EnvError, SpaceError
from jaxrl.testing import check_env
from tests.helpers import assert_close, assert_equal

CONFIGS: dict[str, Any] = {"LinUCB": BanditLinUCBConfig, "LinTS": BanditLinTSConfig}
VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
ITEMS = spaces.Dict({"item": spaces.Box(-1.0, 1.0, (4, 3), np.float32)})


def config_of(algo: str, env: Any = "LinearBandit-v0", rounds: int = 1, **training: Any) -> Any:
    config = CONFIGS[algo]().environment(env).training(train_batch_size=rounds, **training)
    config.env_runners(rollout_fragment_length=rounds)
    return config.learners(num_devices=1).debugging(loggers=[], seed=0)


def play(config: Any, batches: int) -> tuple[Any, Any, Any]:
    """Train batches, one after the other in one program; the rows of all, and the final state."""
    assembly = assemble(config)
    run = assembly.run

    def train(state: Any, _: Any) -> tuple[Any, Any]:
        state, _, (data,) = run.train_batch(state)
        return state, data.rollout

    state = jax.jit(run.init)(jax.random.key(0), assembly.jax_env.params)
    state, rows = jax.jit(lambda s: jax.lax.scan(train, s, length=batches))(state)
    return assembly, state, jax.tree.map(lambda x: np.asarray(x).reshape(-1, *x.shape[3:]), rows)


def ridge(x: np.ndarray, action: np.ndarray, reward: np.ndarray, arms: int) -> np.ndarray:
    """The coefficients of each arm, in double precision."""
    found = []
    for arm in range(arms):
        own = x[action == arm].astype(np.float64)
        precision = np.eye(x.shape[1]) + own.T @ own
        found.append(np.linalg.solve(precision, own.T @ reward[action == arm].astype(np.float64)))
    return np.asarray(found)


def regrets(env: LinearBandit, rows: Any) -> np.ndarray:
    expected = rows.obs @ np.asarray(env.default_params.theta).T
    return expected.max(axis=-1) - np.take_along_axis(expected, rows.action[:, None], 1)[:, 0]


@pytest.mark.allow_key_reuse
def test_coefficients_are_those_of_a_ridge_after_many_rounds() -> None:
    _, state, rows = play(config_of("LinUCB", rounds=10), 1000)
    want = ridge(rows.obs, rows.action, rows.reward, 10)
    np.testing.assert_allclose(solve_models(state.learner.sgd.params).mean, want, atol=1e-5)


@pytest.mark.parametrize("form", ["vector", "items", "choice"])
def test_statistics_are_sums_of_the_chosen_arms(form: str) -> None:
    space: Any = {"vector": VECTOR, "items": ITEMS, "choice": spaces.Discrete(3, start=2)}[form]
    config = BanditLinUCBConfig().training(lambda_=0.5)
    module: Any = config.get_rl_module_spec(space, spaces.Discrete(4)).build()
    learner = BanditLearner(module=module, settings=config.training_settings)
    state = learner.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    action, reward = rng.integers(0, 4, 20), rng.normal(size=20).astype(np.float32)
    weight = (rng.random(20) < 0.8).astype(np.float32)
    if form == "choice":
        obs: Any = jnp.asarray(rng.integers(2, 5, 20), jnp.int32)
        contexts = np.eye(3)[np.asarray(obs) - 2]
    elif form == "vector":
        contexts = rng.normal(size=(20, 3)).astype(np.float32)
        obs = jnp.asarray(contexts)
    else:
        obs = {"item": jnp.asarray(rng.normal(size=(20, 4, 3)), jnp.float32)}
        contexts = np.asarray(obs["item"])[np.arange(20), action]
    from jaxrl.algorithms.bandit import BanditBatch

    batch = BanditBatch(
        obs=obs,
        action=jnp.asarray(action, jnp.int32),
        reward=jnp.asarray(reward),
        weight=jnp.asarray(weight),
    )
    after, metrics = learner.update(state, batch, Progress.zeros(), jax.random.key(0))
    models = after.sgd.params
    for model in range(1 if form == "items" else 4):
        own = weight * ((action == model) if form != "items" else 1.0)
        want = 0.5 * np.eye(3) + np.einsum("n,ni,nj->ij", own, contexts, contexts)
        np.testing.assert_allclose(models.precision[model], want, atol=1e-5)
        want = np.einsum("n,ni,n->i", own, contexts, reward)
        np.testing.assert_allclose(models.reward_sum[model], want, atol=1e-5)
    squares = np.average(np.square(reward), weights=weight)  # nothing is known before
    assert metrics["total_loss"] == pytest.approx(squares, rel=1e-5)


def models_and_rows() -> tuple[LinearModels, np.ndarray]:
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(4, 6, 3))
    models = LinearModels(
        precision=jnp.asarray(np.eye(3) + np.einsum("mni,mnj->mij", rows, rows), jnp.float32),
        reward_sum=jnp.asarray(rng.normal(size=(4, 3)), jnp.float32),
    )
    return models, rng.normal(size=(5, 3)).astype(np.float32)


@pytest.mark.parametrize("alpha", [0.0, 1.5])
def test_bounds_are_means_plus_widths(alpha: float) -> None:
    models, obs = models_and_rows()
    module = BanditLinUCBConfig().get_rl_module_spec(VECTOR, spaces.Discrete(4)).build()
    inputs = (jnp.asarray(obs), None, {"alpha": jnp.float32(alpha)}, Progress.zeros())
    out = module.forward_exploration(models, *inputs, jnp.arange(5), jnp.zeros(5))
    inverse = np.linalg.inv(np.asarray(models.precision, np.float64))
    theta = np.einsum("mij,mj->mi", inverse, models.reward_sum)
    width = np.sqrt(np.einsum("bi,mij,bj->bm", obs, inverse, obs))
    want = obs @ theta.T + alpha * width
    np.testing.assert_allclose(out[Columns.ACTION_DIST_INPUTS], want, atol=1e-5)
    np.testing.assert_array_equal(out[Columns.ACTIONS], want.argmax(axis=1))
    greedy = module.forward_inference(models, jnp.asarray(obs))[Columns.ACTIONS]
    np.testing.assert_array_equal(greedy, (obs @ theta.T).argmax(axis=1))


def test_samples_have_the_posteriors_moments() -> None:
    models, obs = models_and_rows()
    module = BanditLinTSConfig().get_rl_module_spec(VECTOR, spaces.Discrete(4)).build()
    number = 20_000
    rows = jnp.tile(jnp.asarray(obs[:1]), (number, 1))
    draws = module.draw(jax.random.split(jax.random.key(0), number))
    inputs = (rows, None, {"noise_scale": jnp.float32(0.5)}, Progress.zeros(), jnp.arange(number))
    out = module.forward_exploration(models, *inputs, draws)
    scores = np.asarray(out[Columns.ACTION_DIST_INPUTS])
    inverse = np.linalg.inv(np.asarray(models.precision, np.float64))
    theta = np.einsum("mij,mj->mi", inverse, models.reward_sum)
    deviation = 0.5 * np.sqrt(np.einsum("i,mij,j->m", obs[0], inverse, obs[0]))
    np.testing.assert_allclose(scores.mean(axis=0), theta @ obs[0], atol=0.02)
    np.testing.assert_allclose(scores.std(axis=0), deviation, rtol=0.03)


# --- regret ---


@pytest.mark.allow_key_reuse
@pytest.mark.parametrize(("algo", "most"), [("LinUCB", 70), ("LinTS", 150)])
def test_regret_flattens(algo: str, most: float) -> None:
    assembly, _, rows = play(config_of(algo), 10_000)
    found = regrets(assembly.jax_env.env, rows)
    assert found.sum() <= most
    assert found[5000:].sum() <= found[:1000].sum() / 3


@pytest.mark.allow_key_reuse
def test_rewards_of_the_round_before_teach_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = BanditLearner.prepare

    def shifted(self: Any, state: Any, rollout: Any, progress: Any) -> Any:
        late = replace(rollout, reward=jnp.roll(rollout.reward, 1, axis=0))
        return honest(self, state, late, progress)

    found = []
    for broken in (False, True):
        if broken:
            monkeypatch.setattr(BanditLearner, "prepare", shifted)
        assembly, _, rows = play(config_of("LinUCB", rounds=10), 300)
        found.append(regrets(assembly.jax_env.env, rows).sum())
    assert found[1] > 5 * found[0]


@pytest.mark.allow_key_reuse
def test_wheel_is_played_as_a_reference_of_numpy_plays_it() -> None:
    """LinUCB with an intercept; the reference has the same contexts and the same noise."""
    rounds = 2000
    _, _, rows = play(config_of("LinUCB", "WheelBandit-v0"), rounds)
    precision, sums = np.tile(np.eye(2), (5, 1, 1)), np.zeros((5, 2))
    agree = 0
    for x, action, reward in zip(rows.obs, rows.action, rows.reward, strict=True):
        inverse = np.linalg.inv(precision)
        theta = np.einsum("mij,mj->mi", inverse, sums)
        bound = theta @ x + np.sqrt(np.einsum("i,mij,j->m", x, inverse, x))
        agree += int(np.argmax(bound) == action)
        precision[action] += np.outer(x, x)
        sums[action] += reward * x
    assert agree >= 0.99 * rounds


@pytest.mark.parametrize("name", ["LinearBandit-v0", "WheelBandit-v0"])
def test_bandits_keep_the_contract(name: str) -> None:
    check_env(name, num_steps=8, num_envs=2)
    regret: Any = make(name, env_config={"reward": "regret"})
    state, _ = regret.env.reset(jax.random.key(0), regret.params)
    step = jax.jit(regret.env.step)
    rewards = [
        float(step(jax.random.key(1), state, jnp.int32(arm), regret.params)[1].reward)
        for arm in range(5)
    ]
    assert max(rewards) <= 0.0


def test_the_wheel_pays_by_quadrant_outside_of_its_radius() -> None:
    env = WheelBandit()
    params = env.default_params
    for context, best in (
        ((0.7, 0.7), 1),
        ((0.7, -0.7), 2),
        ((-0.7, 0.7), 3),
        ((-0.7, -0.7), 4),
        ((0.1, 0.1), 0),
    ):
        rewards = [
            env.step(jax.random.key(0), jnp.asarray(context), jnp.int32(arm), params)[1].reward
            for arm in range(5)
        ]
        assert int(np.argmax(rewards)) == best


# --- runs ---


@pytest.mark.allow_key_reuse
@pytest.mark.parametrize("algo", list(CONFIGS))
def test_a_resumed_run_is_the_run(algo: str, tmp_path: Any) -> None:
    with config_of(algo).build() as algorithm:
        result = algorithm.train()
        assert result["learners"]["default_policy"]["unfinished_episodes"] == 0
        algorithm.save(tmp_path / "checkpoint")
        algorithm.train()
        want = algorithm.get_state()["train_state"]
    with type(algorithm).from_checkpoint(tmp_path / "checkpoint") as resumed:
        resumed.train()
        assert_equal(resumed.get_state()["train_state"], want)


@pytest.mark.allow_key_reuse
def test_devices_share_the_sums() -> None:
    states = []
    for num_devices in (1, 2):
        config = config_of("LinUCB", rounds=4).env_runners(num_envs_per_env_runner=4)
        config.training(train_batch_size=16).learners(num_devices=num_devices)
        with config.build() as algorithm:
            algorithm.train()
            states.append(jax.device_get(algorithm.state.learner.sgd))
    assert_close(states[1], states[0], rtol=1e-4, atol=1e-5)


class HostBandit(gymnasium.Env[Any, Any]):
    """Three arms, of which the third pays most, in Python."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def reset(self, **kwargs: Any) -> Any:
        super().reset(seed=kwargs.get("seed"))
        return np.ones(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.ones(2, np.float32), float(action), True, False, {}


@pytest.mark.allow_key_reuse
def test_it_plays_in_python_too() -> None:
    config = config_of("LinUCB", lambda context: HostBandit(), rounds=4)
    with config.build() as algorithm:
        algorithm.train()
        result = algorithm.train()
        assert algorithm.compute_single_action(np.ones(2, np.float32), explore=False) == 2
    assert result["env_runners"]["episode_return_mean"] > 1.8


# --- bad input ---


def one_step_of(env: str) -> BanditLinUCBConfig:
    """Return a config of an environment whose episodes are cut after their first step."""
    return config_of("LinUCB", env).environment(max_episode_steps=1)


BAD: dict[str, tuple[Any, str]] = {
    "lr": (lambda: config_of("LinUCB", lr=0.1), "lr=0.1 has no effect on BanditLinUCB"),
    "network": (
        lambda: config_of("LinTS").rl_module(model_config={"fcnet_hiddens": [4]}),
        "has no effect on bandits, whose models are linear",
    ),
    "continuous": (lambda: one_step_of("Pendulum-v1"), "a Discrete action space"),
    "episodes": (
        lambda: config_of("LinUCB", "CartPole-v1"),
        "ignores the steps after the first, and an episode of CartPole-v1 has up to 500: use DQN",
    ),
    "image": (lambda: one_step_of("Breakout-MinAtar"), "Bandits observe one vector"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_bad_input_is_answered(case: str) -> None:
    make_config, message = BAD[case]
    with pytest.raises((ConfigError, SpaceError), match=message):
        make_config().build()


def test_arms_and_their_features_fit() -> None:
    with pytest.raises(SpaceError, match="features of 4 arms"):
        BanditLinUCBConfig().get_rl_module_spec(ITEMS, spaces.Discrete(5)).build()
    with pytest.raises(EnvError, match="reward='gain' must be one of 'reward', 'regret'"):
        LinearBandit(reward="gain")
