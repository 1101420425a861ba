"""Bonuses and losses of ICM, RND and RE3 against NumPy; what they add, learn and report."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import DQNConfig, PPOConfig
from jaxrl.assembly.assemble import assemble
from jaxrl.connectors.curiosity import (
    INTRINSIC_REWARDS,
    IntrinsicReward,
    make_intrinsic_reward,
)
from jaxrl.core.types import Rollout
from jaxrl.envs.deep_sea import DeepSea
from jaxrl.errors import ConfigError, EnvError
from jaxrl.testing import check_env
from tests.helpers import assert_equal, small

STEPS, ENVS, SIZE = 6, 4, 3
OBS = spaces.Box(-1.0, 1.0, (SIZE,), np.float32)
DISCRETE = spaces.Discrete(2)


def make_bonus(kind: str, action_space: Any = DISCRETE, **arguments: Any) -> IntrinsicReward:
    """A bonus with small networks, at a discount of 0.9 and a scale of 0.5."""
    nets = {
        "icm": {"feature_net_config": {"fcnet_hiddens": [5]}, "feature_dim": 4},
        "rnd": {"feature_net_config": {"fcnet_hiddens": [5]}, "feature_dim": 4},
        "re3": {"encoder_net_config": {"fcnet_hiddens": [5]}, "embeds_dim": 4, "k_nn": 3},
    }[kind]
    made = make_intrinsic_reward({"type": kind, **nets, **arguments}, OBS, action_space)
    return made.at({"gamma": jnp.float32(0.9), "intrinsic_reward_coeff": jnp.float32(0.5)})


def recorded(seed: int = 0) -> Rollout:
    rng, shape = np.random.default_rng(seed), (STEPS, ENVS)
    mask = rng.random(shape) < 0.9
    return Rollout(
        obs=jnp.asarray(rng.normal(size=(*shape, SIZE)), jnp.float32),
        action=jnp.asarray(rng.integers(0, 2, shape), jnp.int32),
        reward=jnp.asarray(rng.normal(size=shape), jnp.float32),
        terminated=jnp.asarray(rng.random(shape) < 0.2),
        truncated=jnp.zeros(shape, bool),
        final_obs=jnp.asarray(rng.normal(size=(*shape, SIZE)), jnp.float32),
        is_first=jnp.zeros(shape, bool),
        mask=jnp.asarray(mask),
        extras={},
    )


def dense(params: Any, x: np.ndarray, *, last: bool = False) -> np.ndarray:
    y = x @ np.asarray(params["kernel"]) + np.asarray(params["bias"])
    return y if last else np.maximum(y, 0.0)


def features(params: Any, x: np.ndarray) -> np.ndarray:
    """One hidden layer of tanh, the default activation, and a linear output."""
    hidden = params["encoder"]["mlp"]["dense_0"]
    y = np.tanh(x @ np.asarray(hidden["kernel"]) + np.asarray(hidden["bias"]))
    return dense(params["head"]["out"], y, last=True)


def net(params: Any, x: np.ndarray) -> np.ndarray:
    return dense(params["out"], dense(params["hidden"]["dense_0"], x), last=True)


def rows_of(rollout: Rollout) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Flat observations, actions and successors."""
    number = STEPS * ENVS
    obs, after = (np.asarray(x).reshape(number, SIZE) for x in (rollout.obs, rollout.final_obs))
    return obs, np.asarray(rollout.action).reshape(number), after


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def test_icm_predicts_features_and_actions() -> None:
    bonus = make_bonus("icm", inverse_net_hiddens=(6,), forward_net_hiddens=(7,), beta=0.3)
    params = bonus.init_params(jax.random.key(0))
    obs, action, after = rows_of(recorded())
    hot = np.eye(2)[action]
    first, second = (features(params["features"], x) for x in (obs, after))
    predicted = net(params["forward"], np.concatenate([first, hot], axis=1))
    error = 0.5 * np.square(predicted - second).sum(axis=1)
    logits = net(params["inverse"], np.concatenate([first, second], axis=1))
    inverse = -(hot * log_softmax(logits)).sum(axis=1)
    given = (params, jnp.asarray(obs), jnp.asarray(action), jnp.asarray(after))
    np.testing.assert_allclose(bonus.compute_bonus(*given), error, rtol=1e-4, atol=1e-5)
    want = 0.7 * inverse + 0.3 * error
    np.testing.assert_allclose(bonus.compute_losses(*given), want, rtol=1e-4, atol=1e-5)

    def forward_alone(params: Any) -> Any:
        return bonus.compute_bonus(params, *given[1:]).mean()

    gradients = jax.grad(forward_alone)(params)
    assert not jnp.any(gradients["features"]["head"]["out"]["kernel"])  # else features collapse
    assert jnp.any(gradients["forward"]["out"]["kernel"])


def test_rnd_predicts_a_fixed_network() -> None:
    bonus = make_bonus("rnd")
    params = bonus.init_params(jax.random.key(0))
    obs, action, after = rows_of(recorded())
    gap = features(params["predictor"], after) - features(params["target"], after)
    given = (params, jnp.asarray(obs), jnp.asarray(action), jnp.asarray(after))
    want = np.square(gap).mean(axis=1)
    np.testing.assert_allclose(bonus.compute_bonus(*given), want, rtol=1e-4, atol=1e-6)
    gradients = jax.grad(lambda p: bonus.compute_losses(p, *given[1:]).mean())(params)
    assert not any(jnp.any(leaf) for leaf in jax.tree.leaves(gradients["target"]))


def test_re3_measures_the_distance_to_its_neighbors() -> None:
    bonus = make_bonus("re3")
    params = bonus.init_params(jax.random.key(0))
    obs, action, after = rows_of(recorded())
    y = features(params, after)
    distances = np.linalg.norm(y[:, None] - y[None], axis=-1)
    want = np.log1p(np.sort(distances, axis=1)[:, 3])  # the nearest is the row itself
    given = (params, jnp.asarray(obs), jnp.asarray(action), jnp.asarray(after))
    np.testing.assert_allclose(bonus.compute_bonus(*given), want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", list(INTRINSIC_REWARDS))
def test_the_bonus_is_in_units_of_its_endless_sum(kind: str) -> None:
    bonus, rollout = make_bonus(kind), recorded()
    state, per_env = bonus.init(jax.random.key(0)), bonus.init_per_env(ENVS)
    after, running, learned = bonus(state, per_env, rollout, None)
    mask = np.asarray(rollout.mask)
    valid = np.asarray(rollout.final_obs)[mask]
    mean, deviation = valid.mean(axis=0), valid.std(axis=0, ddof=1)

    def seen(x: Any) -> Any:
        return jnp.asarray(np.clip((np.asarray(x) - mean) / deviation, -5, 5), jnp.float32)

    obs, action, final = rows_of(
        replace(rollout, obs=seen(rollout.obs), final_obs=seen(rollout.final_obs))
    )
    raw = bonus.compute_bonus(
        state.params, jnp.asarray(obs), jnp.asarray(action), jnp.asarray(final)
    )
    raw = np.asarray(raw).reshape(STEPS, ENVS)
    sums, total = [], np.zeros(ENVS)
    for t in range(STEPS):  # episodes do not end it
        total = np.where(mask[t], 0.9 * total + raw[t], total)
        sums.append(total)
    scale = np.asarray(sums)[mask].std(ddof=1)
    want = np.asarray(rollout.reward) + 0.5 * np.where(mask, np.clip(raw / scale, -10, 10), 0)
    np.testing.assert_allclose(learned.reward, want, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(running, total, rtol=1e-3, atol=1e-3)
    metrics = bonus.compute_metrics(after)
    assert metrics["intrinsic_reward_mean"] == pytest.approx(raw[mask].mean(), rel=1e-3)
    assert ("intrinsic_reward_loss" in metrics) == (kind != "re3")


@pytest.mark.parametrize("kind", ["icm", "rnd"])
def test_what_is_seen_again_pays_less(kind: str) -> None:
    bonus, rollout = make_bonus(kind, lr=1e-2), recorded()
    call = jax.jit(lambda s, e: bonus(s, e, rollout, None)[:2])
    state, per_env = bonus.init(jax.random.key(0)), bonus.init_per_env(ENVS)
    paid = []
    for _ in range(200):
        state, per_env = call(state, per_env)
        paid.append(float(state.bonus))
    assert paid[-1] < 0.3 * paid[1]


def test_rows_that_are_none_teach_and_earn_nothing() -> None:
    bonus, rollout = make_bonus("icm"), recorded()
    mask = rollout.mask[..., None]
    other = replace(
        rollout,
        obs=jnp.where(mask, rollout.obs, 1e3),
        final_obs=jnp.where(mask, rollout.final_obs, -1e3),
        action=jnp.where(rollout.mask, rollout.action, 1 - rollout.action),
    )
    start = bonus.init(jax.random.key(0)), bonus.init_per_env(ENVS)
    assert_equal(bonus(*start, rollout, None)[:2], bonus(*start, other, None)[:2])


def test_dictionaries_images_and_choices_are_seen() -> None:
    space = spaces.Dict(
        {"image": spaces.Box(0, 255, (8, 8, 3), np.uint8), "choice": spaces.Discrete(4, start=1)}
    )
    bonus = make_intrinsic_reward("icm", space, spaces.MultiDiscrete([2, 3])).at(
        {"gamma": jnp.float32(0.9)}
    )
    shape = (STEPS, ENVS)
    rng = np.random.default_rng(0)
    obs = {
        "image": jnp.asarray(rng.integers(0, 256, (*shape, 8, 8, 3)), jnp.uint8),
        "choice": jnp.asarray(rng.integers(1, 5, shape), jnp.int32),
    }
    action = jnp.asarray(rng.integers(0, 2, (*shape, 2)), jnp.int32)
    rollout = replace(recorded(), obs=obs, final_obs=obs, action=action)
    state = bonus.init(jax.random.key(0))
    learned = jax.jit(lambda s: bonus(s, bonus.init_per_env(ENVS), rollout, None)[2])(state)
    assert np.isfinite(learned.reward).all()


# --- runs ---


def config_of(algo: Any = PPOConfig, setting: Any = "rnd", **training: Any) -> Any:
    name = algo.algo_name
    config = small(name, "DeepSea-v0", intrinsic_reward=setting, **training)
    return config.environment(env_config={"size": 4})


@pytest.mark.allow_key_reuse
@pytest.mark.parametrize(
    ("algo", "kind"),
    [
        (PPOConfig, "rnd"),
        (DQNConfig, "icm"),
        pytest.param(PPOConfig, "re3", marks=pytest.mark.slow),
    ],
)
def test_a_resumed_run_is_the_run(algo: Any, kind: str, tmp_path: Any) -> None:
    config = config_of(algo, {"type": kind, **({"k_nn": 5} if kind == "re3" else {})})
    with config.build() as algorithm:
        result = algorithm.train()
        metrics = result["learners"]["default_policy"]
        assert metrics["intrinsic_reward_mean"] > 0
        assert result["env_runners"]["episode_return_mean"] < 0.5  # the environment's
        algorithm.save(tmp_path / "checkpoint")
        algorithm.train()
        want = algorithm.get_state()["train_state"]
    with type(algorithm).from_checkpoint(tmp_path / "checkpoint") as resumed:
        resumed.train()
        assert_equal(resumed.get_state()["train_state"], want)


@pytest.mark.allow_key_reuse
def test_lanes_have_scales_and_targets_of_their_own() -> None:
    from jaxrl import grid

    config = config_of(intrinsic_reward_coeff=grid([0.1, 2.0])).sweep(seeds=2)
    with config.build() as sweep:
        sweep.train()
        states = [run.algorithm.state for run in sweep._runs]
    targets = [
        np.asarray(s.connectors.learner[0].params["target"]["head"]["out"]["kernel"])
        for s in states
    ]
    seeds = [lane.seed for lane in sweep.lanes]
    for i in range(4):
        for j in range(i):
            assert np.array_equal(targets[i], targets[j]) == (seeds[i] == seeds[j])
    kernels = [
        np.concatenate([np.ravel(x) for x in jax.tree.leaves(s.learner.sgd.params)]) for s in states
    ]
    assert not np.array_equal(kernels[0], kernels[1])


@pytest.mark.allow_key_reuse
@pytest.mark.parametrize("placement", ["host", "in_graph"])
def test_the_bonus_is_after_other_connectors_of_rewards(placement: str) -> None:
    config = config_of(intrinsic_reward_coeff=3.0).environment(clip_rewards=0.001)
    config.env_runners(placement=placement)
    pipeline = assemble(config).train_step.learner_pipeline
    assert [type(c).__name__ for c in pipeline.connectors] == ["ClipRewards", "RND"]


BAD: dict[str, tuple[Any, str]] = {
    "type": (lambda: config_of(setting="rdn"), "Its type is 'rdn'; known are 'icm', 'rnd', 're3'"),
    "argument": (
        lambda: config_of(setting={"type": "rnd", "feature_dims": 3}),
        "'rnd' has no argument 'feature_dims'",
    ),
    "number": (
        lambda: config_of(setting={"type": "re3", "k_nn": 0}),
        "k_nn of 're3' must be a whole number above 0, got 0",
    ),
    "sizes": (
        lambda: config_of(setting={"type": "icm", "inverse_net_hiddens": 5}),
        "inverse_net_hiddens of 'icm' must be a list of sizes",
    ),
    "eta": (
        lambda: config_of(setting={"type": "icm", "eta": 0.0}),
        "the setting intrinsic_reward_coeff",
    ),
    "zero": (lambda: config_of(intrinsic_reward_coeff=0.0), "must be above 0"),
    "alone": (
        lambda: config_of(setting=None, intrinsic_reward_coeff=1.0),
        "scales a bonus, and intrinsic_reward=None has none",
    ),
    "box": (
        lambda: small("PPO", "Pendulum-v1", intrinsic_reward="icm"),
        "'icm' predicts which action was chosen",
    ),
    "neighbors": (
        lambda: config_of(setting={"type": "re3", "k_nn": 1000}),
        "k_nn=1000 nearest",
    ),
    "recorded": (
        lambda: DQNConfig().training(intrinsic_reward="rnd").offline_data(input_="nowhere"),
        "recorded rows",
    ),
    "agents": (
        lambda: small("PPO", "TicTacToe-v0", intrinsic_reward="rnd"),
        "is for a single agent",
    ),
}


@pytest.mark.parametrize("case", list(BAD))
def test_bad_input_is_answered(case: str) -> None:
    make, message = BAD[case]
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        make().build()


def test_rllibs_curiosity_is_understood() -> None:
    config: Any = PPOConfig().exploration(
        exploration_config={
            "type": "Curiosity",
            "eta": 0.2,
            "lr": 1e-4,
            "feature_dim": 32,
            "sub_exploration": {"type": "StochasticSampling"},
        }
    )
    assert config.intrinsic_reward == {"type": "icm", "lr": 1e-4, "feature_dim": 32}
    assert config.intrinsic_reward_coeff == 0.2
    dqn: Any = DQNConfig().exploration(
        exploration_config={
            "type": "RE3",
            "k_nn": 10,
            "sub_exploration": {"type": "EpsilonGreedy", "epsilon_timesteps": 500},
        }
    )
    assert dqn.intrinsic_reward == {"type": "re3", "k_nn": 10}
    assert dqn.epsilon[-1][0] == 500
    with pytest.raises(ConfigError, match="a bonus that decays is intrinsic_reward_coeff"):
        PPOConfig().exploration(exploration_config={"type": "RE3", "beta_schedule": "linear_decay"})


# --- deep sea ---


def test_only_the_diagonal_finds_the_treasure() -> None:
    env = DeepSea(size=4, mapping_seed=1)
    params, step = env.default_params, jax.jit(env.step)
    right = np.random.default_rng(1).integers(0, 2, (4, 4))

    def dive(moves: str) -> tuple[float, int]:
        state, obs = env.reset(jax.random.key(0), params)
        total = 0.0
        for t, move in enumerate(moves):
            assert obs.argmax() == int(state.row) * 4 + int(state.column)
            goes = right[int(state.row), int(state.column)]
            action = goes if move == "r" else 1 - goes
            state, ts = step(jax.random.key(0), state, jnp.int32(action), params)
            total, obs = total + float(ts.reward), ts.obs
            assert bool(ts.terminated) == (t == 3)
        return round(total, 4), int(state.column)

    assert dive("rrrr") == (0.99, 3)
    assert dive("lrrr") == (-0.0075, 3)  # at the last column, but too late
    assert dive("llll") == (0.0, 0)
    with pytest.warns(UserWarning, match="does not depend on the key"):
        check_env("DeepSea-v0", num_steps=20, num_envs=2)
    with pytest.raises(EnvError, match="size=1 must be at least 2"):
        DeepSea(size=1)


def final_return(setting: Any, batches: int, **training: Any) -> float:
    config: Any = PPOConfig().environment("DeepSea-v0", env_config={"size": 15})
    config.env_runners(num_envs_per_env_runner=64, rollout_fragment_length=60)
    config.training(
        train_batch_size=3840,
        minibatch_size=480,
        num_epochs=4,
        lr=1e-3,
        entropy_coeff=0.01,
        lambda_=0.95,
        use_kl_loss=False,
        clip_param=0.2,
        vf_clip_param=float("inf"),
        intrinsic_reward=setting,
        **training,
    )
    config.rl_module(model_config={"fcnet_hiddens": [64, 64]}).reporting(
        min_sample_timesteps_per_iteration=3840 * batches
    )
    with config.learners(num_devices=1).debugging(loggers=[], seed=0).build() as algorithm:
        return algorithm.train()["env_runners"]["episode_return_mean"]


@pytest.mark.slow
@pytest.mark.allow_key_reuse
def test_a_bonus_finds_what_chance_does_not() -> None:
    assert final_return("rnd", 180) >= 0.9
    assert final_return(None, 180) <= 0.1
