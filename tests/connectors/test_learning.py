"""Reward normalisation against a plain loop; learner connectors of the user's own."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.assembly.assemble import assemble
from jaxrl.connectors import LearnerConnector, NormalizeRewards, ObservationConnector
from jaxrl.connectors.learning import default_learner_connectors
from jaxrl.core.struct import replace
from jaxrl.core.types import Key, Rollout
from jaxrl.errors import ConfigError
from tests.helpers import small

STEPS, ENVS, GAMMA = 12, 8, 0.9


def rollout_of(seed: int = 0) -> Rollout:
    """Rewards with ends of both kinds, and rows that are no transitions."""
    rng = np.random.default_rng(seed)
    shape = (STEPS, ENVS)
    draw = rng.random(shape)
    mask = rng.random(shape) < 0.85
    return Rollout(
        obs=jnp.zeros((*shape, 1)),
        action=jnp.zeros(shape, jnp.int32),
        reward=jnp.asarray(rng.normal(2.0, 30.0, shape) * mask, jnp.float32),
        terminated=jnp.asarray((draw < 0.15) & mask),
        truncated=jnp.asarray((draw > 0.9) | ~mask),
        final_obs=jnp.zeros((*shape, 1)),
        is_first=jnp.zeros(shape, bool),
        mask=jnp.asarray(mask),
        extras={},
    )


def normalized_by_a_loop(rollouts: list[Rollout], clip: float) -> list[np.ndarray]:
    """Each rollout is scaled by all returns so far, its own included."""
    running, seen, results = np.zeros(ENVS), [], []
    for rollout in rollouts:
        host: Any = jax.device_get(rollout)
        for t in range(host.reward.shape[0]):
            for b in range(ENVS):
                running[b] = GAMMA * running[b] + host.reward[t, b]
                if host.mask[t, b]:
                    seen.append(running[b])
                if host.terminated[t, b] or host.truncated[t, b]:
                    running[b] = 0.0
        results.append(np.clip(host.reward / np.std(seen, ddof=1), -clip, clip))
    return results


def split(rollout: Rollout, at: int) -> list[Rollout]:
    parts = (slice(None, at), slice(at, None))
    return [jax.tree.map(lambda leaf, part=part: leaf[part], rollout) for part in parts]


@pytest.mark.parametrize("clip", [10.0, 0.5])
def test_rewards_are_divided_by_the_deviation_of_running_returns(clip: float) -> None:
    connector = NormalizeRewards(GAMMA, clip)
    rollouts = [rollout_of(0), rollout_of(1)]
    state, per_env = connector.init(jax.random.key(0)), connector.init_per_env(ENVS)
    for rollout, want in zip(rollouts, normalized_by_a_loop(rollouts, clip), strict=True):
        state, per_env, got = jax.jit(connector, static_argnums=3)(state, per_env, rollout, None)
        np.testing.assert_allclose(got.reward, want, rtol=1e-4, atol=1e-6)
        assert (np.abs(got.reward) == clip).any() == (clip == 0.5)
        np.testing.assert_array_equal(got.mask, rollout.mask)
    assert state.count == sum(int(rollout.mask.sum()) for rollout in rollouts)


@pytest.mark.parametrize("at", [1, 5])
def test_a_split_rollout_carries_its_running_returns_over(at: int) -> None:
    connector = NormalizeRewards(GAMMA)
    whole = connector(
        connector.init(jax.random.key(0)), connector.init_per_env(ENVS), rollout_of(), None
    )
    state, per_env = connector.init(jax.random.key(0)), connector.init_per_env(ENVS)
    for part in split(rollout_of(), at):
        state, per_env, _ = connector(state, per_env, part, None)
    for got, want in zip(
        jax.tree.leaves((state, per_env)), jax.tree.leaves(whole[:2]), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_an_episode_that_begins_unannounced_leaves_the_one_before_behind() -> None:
    """After a resume or a restart the row before an episode's first one is no end."""
    rollout = replace(
        rollout_of(),
        reward=jnp.ones((STEPS, ENVS)),
        terminated=jnp.zeros((STEPS, ENVS), bool),
        truncated=jnp.zeros((STEPS, ENVS), bool),
        is_first=jnp.zeros((STEPS, ENVS), bool).at[0, 1].set(True).at[7, 2].set(True),
        mask=jnp.ones((STEPS, ENVS), bool),
    )
    connector = NormalizeRewards(GAMMA)
    _, running, _ = connector(
        connector.init(jax.random.key(0)), jnp.full(ENVS, 100.0), rollout, None
    )
    whole, part = ((1 - GAMMA**n) / (1 - GAMMA) for n in (STEPS, STEPS - 7))
    assert running[0] == pytest.approx(whole + 100 * GAMMA**STEPS)
    assert running[1:3].tolist() == pytest.approx([whole, part])


def test_devices_share_their_statistics() -> None:
    """Two halves of the environments over a mesh axis give what all of them give together."""
    connector = NormalizeRewards(GAMMA)
    state, per_env, rollout = (
        connector.init(jax.random.key(0)),
        connector.init_per_env(ENVS),
        rollout_of(),
    )
    want = connector(state, per_env, rollout, None)

    def halves(x: Any, axis: int) -> Any:
        return jnp.moveaxis(x.reshape(*x.shape[:axis], 2, -1, *x.shape[axis + 1 :]), axis, 0)

    parts = jax.tree.map(lambda leaf: halves(leaf, 1), rollout)
    got = jax.vmap(lambda e, r: connector(state, e, r, "devices"), axis_name="devices")(
        halves(per_env, 0), parts
    )
    for leaf, whole in zip(jax.tree.leaves(got[0]), jax.tree.leaves(want[0]), strict=True):
        np.testing.assert_allclose(leaf, jnp.stack([whole, whole]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got[1].reshape(-1), want[1], rtol=1e-6)
    reward = jnp.concatenate(list(got[2].reward), axis=1)
    np.testing.assert_allclose(reward, want[2].reward, rtol=1e-5)


# --- a connector of the user's own ---


@dataclasses.dataclass(frozen=True)
class Magnify(LearnerConnector):
    """Rewards times eight; remembers the sum of those it got, and each environment's last."""

    def init(self, key: Key) -> Any:
        return jnp.zeros(())

    def init_per_env(self, num_envs: int) -> Any:
        return jnp.zeros((num_envs,))

    def __call__(self, state: Any, per_env: Any, rollout: Rollout, axis_name: str | None) -> Any:
        del axis_name
        magnified = replace(rollout, reward=8.0 * rollout.reward)
        return state + rollout.reward.sum(), rollout.reward[-1], magnified


@pytest.mark.allow_key_reuse
def test_a_learner_connector_comes_after_the_defaults_and_before_the_targets() -> None:
    config = small("A2C", gamma=0.0).environment(clip_rewards=0.25)
    assembly = assemble(config.learners(learner_connector=lambda: [Magnify()]))
    runner = assembly.run
    assert len(assembly.train_step.learner_pipeline.connectors) == 2
    before = jax.jit(runner.init)(jax.random.key(0), assembly.made.params)
    after, metrics = jax.jit(runner.step)(before)
    np.testing.assert_allclose(after.connectors.learner[1], 128 * 0.25)  # CartPole pays 1
    np.testing.assert_array_equal(after.connectors.per_env[1], np.full(16, 0.25, np.float32))
    _, _, rollout, _ = jax.jit(
        lambda s: assembly.rollout_worker.rollout(
            runner.make_actor_state(s), s.env, s.carry, s.env_params, assembly.train_step.num_steps
        )
    )(before)
    values = assembly.module.compute_values(before.learner.sgd.params, rollout.obs)
    want = jnp.square(values - 8.0 * 0.25).mean()  # without a future the reward is the target
    np.testing.assert_allclose(metrics["vf_loss"], want, rtol=1e-4)


@pytest.mark.allow_key_reuse
def test_rewards_are_normalized_by_the_discount_of_the_moment() -> None:
    """Population based training may have changed it since the run was built."""
    config = small("A2C", gamma=0.5).env_runners(normalize_rewards=True)
    assembly = assemble(config)
    state = jax.jit(assembly.run.init)(jax.random.key(0), assembly.made.params)
    learner = state.learner
    hparams = {**learner.hparams, "gamma": jnp.asarray(0.9, jnp.float32)}
    changed = replace(state, learner=replace(learner, hparams=hparams))
    step = jax.jit(assembly.run.step)
    for before, gamma in ((state, 0.5), (changed, 0.9)):
        (running,) = step(before)[0].connectors.per_env
        np.testing.assert_allclose(running.max(), (1 - gamma**8) / (1 - gamma), rtol=1e-5)


@dataclasses.dataclass(frozen=True)
class PaidByRate(LearnerConnector):
    """Rewards times the learning rate of the moment."""

    rate: Any = None

    def at(self, values: Any) -> "PaidByRate":
        return dataclasses.replace(self, rate=values["lr"])

    def __call__(self, state: Any, per_env: Any, rollout: Rollout, axis_name: str | None) -> Any:
        return state, per_env, replace(rollout, reward=self.rate * rollout.reward)


def test_a_connector_of_the_users_own_has_the_hyperparameters_of_the_moment() -> None:
    config = small("A2C", gamma=0.0, lr=[[0, 1.0], [256, 0.0]])
    assembly = assemble(config.learners(learner_connector=PaidByRate))
    state = jax.jit(assembly.run.init)(jax.random.key(0), assembly.made.params)
    params = state.learner.sgd.params
    rollout, metrics = jax.jit(
        lambda s: (
            assembly.rollout_worker.rollout(
                assembly.train_step.make_actor_state(s),
                s.env,
                s.carry,
                s.env_params,
                assembly.train_step.num_steps,
            )[2],
            assembly.run.step(s)[1],
        )
    )(state)
    values = assembly.module.compute_values(params, rollout.obs)
    np.testing.assert_allclose(metrics["vf_loss"], jnp.square(values - 0.5).mean(), rtol=1e-4)


def test_rllibs_place_for_it_is_understood() -> None:
    config: Any = small().training(learner_connector=Magnify)
    assert config.learner_connector is Magnify
    assert any("learners(learner_connector=...)" in note for note in config.notes)


@pytest.mark.parametrize(
    ("connector", "words"),
    [
        (lambda: 3, ["learner_connector", "LearnerConnectors", "got int"]),
        (
            lambda: [Magnify(), ObservationConnector()],
            ["ObservationConnector transforms observations"],
        ),
        (
            lambda first, second, third, fourth: [Magnify()],
            ["a function of no arguments", "(first, second,"],
        ),
    ],
)
def test_what_is_no_learner_connector_is_refused(connector: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        assemble(small().learners(learner_connector=connector))
    for word in words:
        assert word in str(caught.value)


@dataclasses.dataclass(frozen=True)
class _Rewards:
    reward: Any


@pytest.mark.parametrize(
    ("setting", "rewards"),
    [(True, [-1.0, 0.0, 1.0]), (2.0, [-2.0, 0.0, 2.0]), ((-1.0, 3.0), [-1.0, 0.0, 3.0])],
)
def test_rewards_are_clipped_for_learning_only(setting: Any, rewards: list[float]) -> None:
    (connector,) = default_learner_connectors(setting, False)
    rollout: Any = _Rewards(jnp.array([[-5.0, 0.0, 5.0]]))
    _, _, clipped = connector((), (), rollout, None)
    np.testing.assert_array_equal(clipped.reward[0], rewards)


def test_no_time_passes_in_rows_that_are_no_transitions() -> None:
    mask = jnp.ones((STEPS, ENVS), bool).at[3:6, 0].set(False)
    never = jnp.zeros((STEPS, ENVS), bool)
    rollout = replace(
        rollout_of(),
        reward=jnp.ones((STEPS, ENVS)),
        terminated=never,
        truncated=never,
        is_first=never,
        mask=mask,
    )
    connector = NormalizeRewards(GAMMA)
    _, running, _ = connector(connector.init(jax.random.key(0)), jnp.zeros(ENVS), rollout, None)
    wanted = [(1 - GAMMA**n) / (1 - GAMMA) for n in (STEPS - 3, STEPS)]
    np.testing.assert_allclose(running[:2], wanted, rtol=1e-5)
