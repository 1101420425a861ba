"""Previous actions and rewards: against a plain loop, and where nothing else tells what is right."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import Algorithm
from jaxrl.assembly.assemble import assemble
from jaxrl.connectors import ActionConnector, Before, FrameStacking, PrevActionsPrevRewards
from jaxrl.connectors.checks import check_observation_pipeline
from jaxrl.connectors.observations import fit_observation_pipeline
from jaxrl.core.types import Columns
from jaxrl.errors import ConfigError, SpaceError
from jaxrl.policy.inference import set_previous_action
from jaxrl.training.rollout import ActorCarry
from tests.connectors.memory_probes import STEPS, HiddenCoin, play
from tests.helpers import (
    action_pipeline,
    assert_close,
    assert_equal,
    observation_pipeline,
    small,
)

pytestmark = pytest.mark.allow_key_reuse

VECTOR = spaces.Box(-1.0, 1.0, (2,), np.float32)
ACTIONS: dict[str, tuple[spaces.Space[Any], int]] = {
    "discrete": (spaces.Discrete(3), 3),
    "several": (spaces.MultiDiscrete([2, 3]), 5),
    "continuous": (spaces.Box(-1.0, 1.0, (2,), np.float32), 2),
}


# --- values ---


def encoded(space: spaces.Space[Any], action: np.ndarray) -> np.ndarray:
    """One-hot where discrete."""
    if isinstance(space, spaces.Discrete):
        return np.eye(int(space.n))[action]
    if isinstance(space, spaces.MultiDiscrete):
        return np.concatenate([np.eye(n)[a] for n, a in zip(space.nvec, action, strict=True)])
    return action


@pytest.mark.parametrize("kind", list(ACTIONS))
@pytest.mark.parametrize(("num_actions", "num_rewards"), [(1, 1), (3, 2), (0, 1), (2, 0)])
def test_the_latest_of_the_episode_stand_beside_the_observation(
    kind: str, num_actions: int, num_rewards: int
) -> None:
    """In a rollout with episodes of several lengths, replayed from the carry at its start."""
    action_space, size = ACTIONS[kind]
    rng = np.random.default_rng(1)
    num_steps, num_envs = 10, 4
    is_first = rng.random((num_steps, num_envs)) < 0.25
    is_first[0] = True
    shape = (num_steps, num_envs)
    obs = rng.normal(size=(*shape, 2)).astype(np.float32)
    reward = rng.normal(size=shape).astype(np.float32)
    action_space.seed(0)
    action = np.array([[action_space.sample() for _ in range(num_envs)] for _ in range(num_steps)])
    connector = PrevActionsPrevRewards(n_prev_actions=num_actions, n_prev_rewards=num_rewards)
    pipeline = observation_pipeline(VECTOR, extra=(connector,), action_space=action_space)
    assert pipeline.spaces[-1].shape == (2 + num_actions * size + num_rewards,)
    check_observation_pipeline(pipeline, action_space)

    seen = _seen(pipeline, obs, action, reward, is_first)
    for t in range(num_steps):
        for b in range(num_envs):
            start = max(s for s in range(t + 1) if is_first[s, b])
            actions = [encoded(action_space, action[s, b]) for s in range(start, t)]
            rewards = [reward[s, b] for s in range(start, t)]
            actions = [np.zeros(size)] * num_actions + actions
            rewards = [0.0] * num_rewards + rewards
            want = np.concatenate(
                [
                    obs[t, b],
                    *actions[len(actions) - num_actions :],
                    rewards[len(rewards) - num_rewards :],
                ]
            )
            np.testing.assert_allclose(seen[t][b], want, rtol=1e-6)


def _seen(pipeline: Any, obs: Any, action: Any, reward: Any, is_first: Any) -> list[Any]:
    """Return the module's observation at each step."""
    num_steps, num_envs = reward.shape
    carry, rows = pipeline.init_carry(num_envs), []
    last = jnp.asarray(action[-1]), jnp.asarray(reward[-1])  # of another episode: not to be seen
    for t in range(num_steps):
        before = Before(is_first=jnp.asarray(is_first[t]), action=last[0], reward=last[1])
        now = jax.tree.map(lambda leaf, t=t: jnp.asarray(leaf[t]), obs)
        carry, out = pipeline.step(pipeline.init(), carry, now, before)
        rows.append(jax.device_get(out))
        last = jnp.asarray(action[t]), jnp.asarray(reward[t])
    return rows


@pytest.mark.parametrize(
    ("space", "want"),
    [
        (
            spaces.Dict({"place": VECTOR, "bits": spaces.MultiBinary(2)}),
            {"place", "bits", "prev_n_actions", "prev_n_rewards"},
        ),
        (spaces.MultiBinary(4), {"_orig_obs", "prev_n_actions", "prev_n_rewards"}),
        (
            spaces.Box(0, 255, (4, 4, 1), np.uint8),
            {"_orig_obs", "prev_n_actions", "prev_n_rewards"},
        ),
        (
            spaces.Tuple([VECTOR, spaces.Discrete(2)]),
            {"_orig_obs", "prev_n_actions", "prev_n_rewards"},
        ),
    ],
    ids=["dict", "bits", "image", "tuple"],
)
def test_what_is_no_vector_becomes_a_dict_with_rllibs_names(space: Any, want: set[str]) -> None:
    pipeline = observation_pipeline(space, extra=(PrevActionsPrevRewards(),), flatten=True)
    inner = pipeline.spaces[1]
    assert isinstance(inner, spaces.Dict)
    assert set(inner.spaces) == want
    assert pipeline.names == ("PrevActionsPrevRewards", "FlattenObservations")
    check_observation_pipeline(pipeline, spaces.Discrete(2))


def test_beside_a_mask() -> None:
    space = spaces.Dict({"action_mask": spaces.MultiBinary(2), "obs": VECTOR})
    pipeline = observation_pipeline(space)
    connectors = [*pipeline, PrevActionsPrevRewards()]
    late = fit_observation_pipeline(connectors, space, spaces.Discrete(2))
    assert late.names == ("SeparateMask", "PrevActionsPrevRewards")
    assert late["PrevActionsPrevRewards"] is not connectors[-1]
    last = late.spaces[-1]
    assert isinstance(last, spaces.Dict)
    assert last["obs"].shape == (2 + 2 + 1,)
    assert last["action_mask"] == space["action_mask"]
    check_observation_pipeline(late, spaces.Discrete(2))
    seen = _seen(
        late,
        {"action_mask": np.ones((2, 1, 2), np.int8), "obs": np.ones((2, 1, 2), np.float32)},
        np.array([[1], [0]]),
        np.array([[2.5], [0.0]], np.float32),
        np.array([[True], [False]]),
    )
    np.testing.assert_array_equal(seen[0]["obs"], [[1, 1, 0, 0, 0]])
    np.testing.assert_array_equal(seen[1]["obs"], [[1, 1, 0, 1, 2.5]])
    np.testing.assert_array_equal(seen[1]["action_mask"], [[1, 1]])


# --- a task that needs them ---


def past() -> Any:
    return PrevActionsPrevRewards()


class Swap(ActionConnector):
    """The other of two actions."""

    def __call__(self, action: Any) -> Any:
        return 1 - action


class SwapBack(Swap):
    """With its inverse."""

    def inverse(self, action: Any) -> Any:
        return 1 - action


def coin(**settings: Any) -> Any:
    config = small("PPO", HiddenCoin, lr=1e-2, gamma=0.0, entropy_coeff=0.02)
    config.env_runners(env_to_module_connector=past, **settings)
    config.reporting(min_sample_timesteps_per_iteration=128 * 120)
    config.checkpointing(checkpoint_at_end=False)
    return config.evaluation(evaluation_config={"explore": False}, evaluation_duration=32)


def test_past_actions_and_rewards_tell_what_is_right_everywhere() -> None:
    """Only the first of six steps is a guess."""
    with coin(module_to_env_connector=lambda: SwapBack()).build() as algorithm:
        assert algorithm.get_module().observation_space.shape == (4,)
        algorithm.train()
        before = algorithm.get_state()["train_state"]
        evaluated = algorithm.evaluate()["env_runners"]
        assert_equal(before, algorithm.get_state()["train_state"])
        assert evaluated["episode_return_min"] >= STEPS - 2
        for total in play(algorithm, HiddenCoin(), 4, reads=True):
            assert total >= STEPS - 2
        _takes_rllibs_arguments(algorithm)


def _takes_rllibs_arguments(algorithm: Any) -> None:
    obs = np.zeros(1, np.float32)
    first, memory, out = algorithm.compute_single_action(obs, explore=False, full_fetch=True)
    assert first == 1 - out[Columns.ACTIONS]
    for given, reward in ((None, 1.0), (first, 1.0), (None, -1.0), (first, -1.0)):
        then, _, _ = algorithm.compute_single_action(
            obs, memory, prev_action=given, prev_reward=reward, explore=False
        )
        assert then == (first if reward > 0 else 1 - first)
    # told that the environment was given the other action, the same reward says the opposite
    then, _, _ = algorithm.compute_single_action(
        obs, memory, prev_action=1 - first, prev_reward=1.0, explore=False
    )
    assert then == 1 - first
    many, _, _ = algorithm.compute_actions(
        {"a": obs, "b": obs},
        {"a": memory, "b": memory},
        prev_reward={"a": 1.0, "b": -1.0},
        explore=False,
    )
    assert many == {"a": first, "b": 1 - first}
    with pytest.raises(ConfigError, match="the previous step: pass prev_reward along"):
        algorithm.compute_single_action(obs, memory)
    with pytest.raises(ConfigError, match="prev_reward has no effect without a state"):
        algorithm.compute_single_action(obs, prev_reward=1.0, full_fetch=True)
    with pytest.raises(SpaceError, match="prev_action is 5"):
        algorithm.compute_single_action(obs, memory, prev_action=5, prev_reward=1.0)
    with pytest.raises(SpaceError, match="one number per observation"):
        algorithm.compute_single_action(obs, memory, prev_reward=np.ones(3))


@pytest.mark.parametrize("space", [spaces.Box(-3.0, 5.0, (2,), np.float32)])
def test_an_action_beyond_the_bounds_is_remembered_as_it_was(space: Any) -> None:
    """The environment gets it clipped; what the module learned from is what it drew."""
    pipeline = action_pipeline(space)
    drawn = jnp.array([[1.7, 0.5], [0.1, -0.2]], jnp.float32)
    carry = ActorCarry(module=None, connectors=(), action=drawn, reward=jnp.zeros(2))
    taken = pipeline(drawn)
    np.testing.assert_array_equal(set_previous_action(carry, taken, pipeline).action, drawn)
    other = taken.at[1, 0].set(5.0)
    changed = set_previous_action(carry, other, pipeline).action
    np.testing.assert_allclose(changed, [[1.7, 0.5], [1.0, -0.2]], rtol=1e-5)


def test_an_action_is_not_read_back_through_a_connector_without_an_inverse() -> None:
    config = coin(module_to_env_connector=lambda: Swap())
    config.reporting(min_sample_timesteps_per_iteration=0)
    with config.build() as algorithm:
        obs = np.zeros(1, np.float32)
        action, memory, _ = algorithm.compute_single_action(obs, full_fetch=True)
        algorithm.compute_single_action(obs, memory, prev_reward=0.0)
        with pytest.raises(ConfigError, match=r"converted back by Swap, which has no inverse"):
            algorithm.compute_single_action(obs, memory, prev_action=action, prev_reward=0.0)


def test_the_learner_sees_unclipped_rewards_of_before() -> None:
    """As the module did when it acted: it had no others."""
    config = coin().environment("CartPole-v1", clip_rewards=0.25)
    assembly = assemble(config)
    runner = assembly.run

    @jax.jit
    def run(key: Any) -> Any:
        state = runner.init(key, assembly.made.params)
        actor = runner.make_actor_state(state)
        _, _, raw, _ = runner.rollout_worker.rollout(
            actor, state.env, state.carry, state.env_params, 30
        )
        seen = runner.rollout_worker.preprocess_rollout(actor.obs_state, raw)
        out = runner.rollout_worker.module.forward_train(actor.params, {Columns.OBS: seen.obs})
        return raw, seen, out[Columns.ACTION_DIST_INPUTS]

    raw, seen, again = run(jax.random.key(0))
    np.testing.assert_allclose(raw.extras[Columns.ACTION_DIST_INPUTS], again, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(seen.obs[..., -1], np.where(raw.is_first, 0.0, 1.0))


def everything() -> Any:
    return [FrameStacking(3), PrevActionsPrevRewards(2, 1)]


@pytest.mark.slow
def test_memories_are_divided_over_devices_and_saved(tmp_path: Any) -> None:
    states = []
    for num_devices in (1, 4):
        config = small(num_epochs=1, minibatch_size=128)
        config.env_runners(env_to_module_connector=everything)
        config.learners(num_devices=num_devices, num_shards=4)
        with config.build() as algorithm:
            algorithm.train()
            states.append(jax.device_get(algorithm.state))
            path = algorithm.save(tmp_path / str(num_devices))
    assert_close(states[0].learner.sgd.params, states[1].learner.sgd.params, atol=1e-5)
    assert_close(states[0].carry, states[1].carry, atol=1e-5)
    assert len(jax.tree.leaves(states[0].carry)) == 4  # frames, actions; latest action, reward
    with Algorithm.from_checkpoint(path) as restored:
        assert_equal(restored.state.carry, states[1].carry)


# --- refusals ---


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: PrevActionsPrevRewards(0, 0), ConfigError, ["adds nothing"]),
        (lambda: PrevActionsPrevRewards(-1), ConfigError, ["n_prev_actions=-1", "from 0 on"]),
        (
            lambda: observation_pipeline(
                spaces.Dict({"prev_n_rewards": VECTOR}), extra=(PrevActionsPrevRewards(),)
            ),
            SpaceError,
            ["adds 'prev_n_rewards'", "already"],
        ),
    ],
)
def test_what_cannot_be_added_is_refused(make: Any, error: Any, words: list[str]) -> None:
    with pytest.raises(error) as caught:
        make()
    for word in words:
        assert word in str(caught.value)
