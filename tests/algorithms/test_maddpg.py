"""MADDPG and MATD3: losses and gradients against loops over members, and what their critics see."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import JaxrlError, MADDPGConfig, MATD3Config
from jaxrl.algorithms.maddpg import MADDPGLearner
from jaxrl.core.types import Columns, Progress, Transition
from tests.multi_agent.teams import MixedMotives, Risky

ROWS, SIZE, WIDTH, STATE = 6, 3, 2, 2
SPACE = spaces.Dict(
    {
        "global_state": spaces.Box(-1.0, 1.0, (STATE,), np.float32),
        "member_mask": spaces.MultiBinary((SIZE,)),
        "member_rewards": spaces.Box(-np.inf, np.inf, (SIZE,), np.float32),
        "obs": spaces.Box(-1.0, 1.0, (SIZE, WIDTH), np.float32),
    }
)
ACTION_SPACE = spaces.Box(-2.0, 2.0, (SIZE, 1), np.float32)


def learner_of(cls: Any, **training: Any) -> MADDPGLearner:
    """The learner of a small team."""
    config = cls().training(**training).rl_module(model_config={"fcnet_hiddens": [5]})
    module: Any = config.get_rl_module_spec(SPACE, ACTION_SPACE).build()
    return MADDPGLearner(module=module, settings=config.training_settings)


def observed(rng: Any) -> dict[str, Any]:
    return {
        "global_state": jnp.asarray(rng.normal(size=(ROWS, STATE)), jnp.float32),
        "member_mask": jnp.asarray(rng.random((ROWS, SIZE)) < 0.7, jnp.int8),
        "member_rewards": jnp.asarray(rng.normal(size=(ROWS, SIZE)), jnp.float32),
        "obs": jnp.asarray(rng.normal(size=(ROWS, SIZE, WIDTH)), jnp.float32),
    }


def batch_of() -> Transition:
    """Rows of which some end and some weigh nothing."""
    rng = np.random.default_rng(2)
    return Transition(
        obs=observed(rng),
        action=jnp.asarray(rng.uniform(-2, 2, (ROWS, SIZE, 1)), jnp.float32),
        reward=jnp.asarray(rng.normal(size=ROWS), jnp.float32),
        discount=jnp.asarray(0.9 * (rng.random(ROWS) < 0.8), jnp.float32),
        next_obs=observed(rng),
        weight=jnp.asarray(rng.choice([0.0, 0.5, 1.0], ROWS), jnp.float32),
    )


def dense(params: Any, x: Any) -> Any:
    return x @ params["kernel"] + params["bias"]


def act(policy: Any, i: int, own: Any) -> Any:
    """Member i's action of its own network."""
    p = jax.tree.map(lambda x: np.asarray(x)[i], policy)
    hidden = np.maximum(dense(p["encoder"]["mlp"]["dense_0"], own), 0.0)
    return 2.0 * np.tanh(dense(p["head"]["out"], hidden))


def value(critic: Any, i: int, k: int, obs: Any, n: int, actions: Any) -> float:
    """Critic k of member i, for row n: of all observations, the state, and the actions of who acts."""
    p = jax.tree.map(lambda x: np.asarray(x)[i], critic)[f"critics_{k}"]
    acts = np.asarray(obs["member_mask"])[n].astype(bool)
    chosen = [float(a) if here else 0.0 for a, here in zip(actions, acts, strict=True)]
    seen = np.concatenate([np.ravel(obs["obs"][n]), obs["global_state"][n], chosen])
    hidden = np.maximum(dense(p["joint"]["dense_0"], seen), 0.0)
    return float(dense(p["head"]["out"], hidden)[0])


def targets_of(learner: Any, target: Any, batch: Any, values: Any) -> Any:
    """The targets of all members by the parameters of a target network."""
    key = jax.random.key(0)
    action = learner.compute_next_action(target["policy"], batch.next_obs, values, key)
    out = learner.module.compute_critic_outputs(target["critic"], batch.next_obs, action)
    return learner.compute_td_targets(out, batch)[0]


@pytest.mark.representatives("MATD3Config-2")
@pytest.mark.parametrize(("cls", "critics"), [(MADDPGConfig, 1), (MATD3Config, 2)])
def test_losses_are_those_of_loops_over_members(cls: Any, critics: int) -> None:
    learner = learner_of(cls, smooth_target_policy=False)
    online, target = (learner.module.init(jax.random.key(seed)) for seed in (0, 1))
    batch, values = batch_of(), {"target_noise": jnp.zeros(()), "target_noise_clip": jnp.zeros(())}
    after, discount = batch.next_obs, np.asarray(batch.discount)
    targets = targets_of(learner, target, batch, values)
    out = learner.module.compute_critic_outputs(online["critic"], batch.obs, batch.action)
    loss, metrics = learner.critic_loss(out, batch, targets)
    actor_loss, _ = learner.actor_loss(online["policy"], online["critic"], batch)
    total, actor_total, errors = 0.0, 0.0, []
    for n in range(ROWS):
        following = [
            act(target["policy"], i, np.asarray(after["obs"])[n, i])[0] for i in range(SIZE)
        ]
        taken, weight = np.asarray(batch.action)[n, :, 0], float(batch.weight[n])
        row: list[float] = []
        for i in range(SIZE):
            y = float(after["member_rewards"][n, i])
            if after["member_mask"][n, i]:
                next_values = [
                    value(target["critic"], i, k, after, n, following) for k in range(critics)
                ]
                y += discount[n] * min(next_values)
            np.testing.assert_allclose(targets[n, i], y, rtol=1e-4, atol=1e-5)
            if not batch.obs["member_mask"][n, i]:
                continue
            differences = [
                value(online["critic"], i, k, batch.obs, n, taken) - y for k in range(critics)
            ]
            total += weight * sum(e * e for e in differences)
            row.append(float(np.mean(np.abs(differences))))
            own = taken.copy()
            own[i] = act(online["policy"], i, np.asarray(batch.obs["obs"])[n, i])[0]
            actor_total -= weight * value(online["critic"], i, 0, batch.obs, n, own)
        errors.append(sum(row) / max(len(row), 1))
    np.testing.assert_allclose(loss, total / ROWS, rtol=1e-4)
    np.testing.assert_allclose(actor_loss, actor_total / ROWS, rtol=1e-4)
    np.testing.assert_allclose(metrics[Columns.TD_ERROR], errors, rtol=1e-4, atol=1e-5)


def test_a_policy_learns_from_its_own_critic_alone() -> None:
    learner = learner_of(MADDPGConfig)
    params, batch = learner.module.init(jax.random.key(0)), batch_of()
    mask = jnp.ones((ROWS, SIZE), jnp.int8)
    batch = replace(batch, obs={**batch.obs, "member_mask": mask}, weight=jnp.ones(ROWS))

    def gradient(scale: Any) -> Any:
        critic = jax.tree.map(
            lambda x: x * scale.reshape(-1, *(1,) * (x.ndim - 1)), params["critic"]
        )
        loss = lambda policy: learner.actor_loss(policy, critic, batch)[0]  # noqa: E731
        return jax.grad(loss)(params["policy"])

    gradient = jax.jit(gradient)
    plain, other = gradient(jnp.ones(SIZE)), gradient(jnp.array([1.0, 0.0, 1.0]))
    for x, y in zip(jax.tree.leaves(plain), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(x[0], y[0], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(x[2], y[2], rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(y[1], 0.0)
    assert all(np.any(x[1] != 0.0) for x in jax.tree.leaves(plain))


CLIP = 0.5


def clip_by(by: str) -> dict[str, Any]:
    """Settings of clipping; those by tensor are the defaults."""
    assert MADDPGConfig()["grad_clip"] == CLIP
    return {} if by == MADDPGConfig()["grad_clip_by"] else {"grad_clip_by": by}


@pytest.mark.representatives("norm")
@pytest.mark.parametrize("by", ["norm", "global_norm"])
def test_gradients_are_clipped_by_member(by: str) -> None:
    """A step of SGD is minus the gradient, clipped by loops over members and tensors."""
    learner = learner_of(MADDPGConfig, optimizer="sgd", critic_lr=1.0, actor_lr=1.0, **clip_by(by))
    batch, key = batch_of(), jax.random.key(0)
    scale = jnp.array([[1.0, 100.0, 0.01]])  # members whose gradients are of different sizes
    rewards = batch.next_obs["member_rewards"] * scale
    batch = replace(batch, next_obs={**batch.next_obs, "member_rewards": rewards})
    state = learner.init(key)
    after, _ = jax.jit(learner.update)(state, batch, Progress.zeros(), key)
    before, stepped = state.sgd.params, after.sgd.params
    targets = targets_of(learner, state.target.params, batch, {})

    def critic_loss(critic: Any) -> Any:
        out = learner.module.compute_critic_outputs(critic, batch.obs, batch.action)
        return learner.critic_loss(out, batch, targets)[0]

    gradients = {
        "critic": jax.grad(critic_loss)(before["critic"]),
        "policy": jax.grad(lambda policy: learner.actor_loss(policy, stepped["critic"], batch)[0])(
            before["policy"]
        ),
    }
    ratios: list[float] = []
    for part, gradient in gradients.items():
        tensors = [np.asarray(x, np.float64) for x in jax.tree.leaves(gradient)]
        moved = zip(jax.tree.leaves(before[part]), jax.tree.leaves(stepped[part]), strict=True)
        differences = [np.asarray(x, np.float64) - np.asarray(y) for x, y in moved]
        for i in range(SIZE):
            norms = [np.sqrt(np.sum(np.square(x[i]))) for x in tensors]
            if by == "global_norm":
                norms = [np.sqrt(np.sum(np.square(norms)))] * len(norms)
            ratios += [min(1.0, CLIP / max(norm, 1e-9)) for norm in norms]
            for x, difference, norm in zip(tensors, differences, norms, strict=True):
                expected = x[i] * min(1.0, CLIP / max(norm, 1e-9))
                np.testing.assert_allclose(difference[i], expected, rtol=1e-3, atol=2e-6)
    assert min(ratios) < 0.6
    assert max(ratios) == 1.0


def small(cls: Any = MADDPGConfig) -> Any:
    return (
        cls()
        .environment(MixedMotives)
        .env_runners(num_envs_per_env_runner=8, rollout_fragment_length=4)
        .training(
            actor_lr=1e-3,
            critic_lr=3e-3,
            train_batch_size=128,
            initial_random_timesteps=2000,
            num_steps_sampled_before_learning_starts=500,
            exploration_sigma=0.3,
        )
        .rl_module(model_config={"fcnet_hiddens": [32, 32]})
        .reporting(min_sample_timesteps_per_iteration=32_000)
        .debugging(seed=0, loggers=[])
    )


@pytest.mark.slow
@pytest.mark.parametrize("cls", [MADDPGConfig, MATD3Config])
def test_members_learn_from_their_own_rewards(cls: Any) -> None:
    obs = np.zeros(1, np.float32)
    config = small(cls)
    if cls is MATD3Config:
        config.training(policy_delay=1)
    with config.build() as algorithm:
        algorithm.train()
        actions = algorithm.compute_actions({"a": obs, "b": obs}, explore=False)
    assert actions["a"] == pytest.approx(0.5, abs=0.12)
    assert actions["b"] == pytest.approx(-0.5, abs=0.12)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda c: c.training(n_step=3), "n_step=3 is not supported by MADDPG"),
        (lambda c: c.training(bc_coeff=2.5), "bc_coeff=2.5 is not supported by MADDPG"),
        (
            lambda c: c.training(exploration_sigma_max=0.05),
            "at least exploration_sigma=0.3, got 0.05",
        ),
        (lambda c: c.environment(clip_rewards=True), "clip_rewards=True is not supported"),
        (lambda c: c.env_runners(observation_filter="MeanStdFilter"), "members' rewards"),
        (lambda c: c.rl_module(model_config={"use_lstm": True}), "use_lstm and use_attention"),
        (lambda c: c.environment(Risky), "actions of a Box.*: use QMIX or VDN"),
        (lambda c: c.environment("SpeakerListener-v0"), "networks of one shape"),
        (lambda c: c.training(use_local_critic=True), "DDPG with a policy for each agent"),
        (lambda c: c.training(good_policy="ddpg"), "opponents are part of the environment's rules"),
        (lambda c: c.training(actor_feature_reg=0.001), "no penalty of large outputs"),
    ],
)
def test_bad_input(change: Any, sentence: str) -> None:
    with pytest.raises(JaxrlError, match=sentence):
        change(small()).build()
