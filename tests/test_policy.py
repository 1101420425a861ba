"""A Policy plays as training and evaluation do: memory, filter, mask and previous rewards included."""

from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

from jaxrl import Algorithm, Policy
from jaxrl.cli.app import app
from jaxrl.errors import CheckpointError, ConfigError, SpaceError, UnknownNameError
from tests.recurrent import remembering

LENGTH, NUM_ACTIONS = 7, 4


class Corridors(gymnasium.Env[Any, Any]):
    """No randomness but the mask's; what was seen and done is written down in `played`."""

    played: list[tuple[Any, Any, int]] = []
    observation_space = spaces.Dict(
        {
            "action_mask": spaces.MultiBinary(NUM_ACTIONS),
            "x": spaces.Box(-np.inf, np.inf, (3,), np.float32),
        }
    )
    action_space = spaces.Discrete(NUM_ACTIONS)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.t, self.x = 0, np.zeros(3, np.float32)
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        Corridors.played.append((self, self.obs, int(action)))
        self.t += 1
        self.x = (0.5 * self.x + np.float32(action) - np.arange(3)).astype(np.float32)
        reward = float(np.sin(3.0 * action + self.t))
        return self._obs(), reward, self.t == LENGTH, False, {}

    def _obs(self) -> dict[str, Any]:
        mask = (self.np_random.random(NUM_ACTIONS) < 0.6).astype(np.int8)
        mask[self.t % NUM_ACTIONS] = 1
        self.obs = {"action_mask": mask, "x": 5.0 + 3.0 * self.x}
        return self.obs


def corridors(context: Any) -> gymnasium.Env[Any, Any]:
    return Corridors()


def remembering_all(model: Any = None, **runners: Any) -> Any:
    """Recurrent, masked and filtered, on one environment of the host, by the most likely action."""
    config = remembering("PPO", corridors, model=model)
    config.env_runners(
        placement="host",
        num_envs_per_env_runner=1,
        rollout_fragment_length=32,
        observation_filter="MeanStdFilter",
        explore=False,
        **runners,
    )
    config.training(train_batch_size=32, minibatch_size=32, num_epochs=4, lr=0.05)
    config.reporting(min_sample_timesteps_per_iteration=32)
    config.evaluation(evaluation_num_env_runners=0)
    config.environment(disable_env_checking=True)  # its random actions are no policy's
    return config.debugging(loggers=[]).checkpointing(checkpoint_at_end=False)


def whole_episodes(skip: int = 0) -> list[list[tuple[Any, int]]]:
    """Return what was seen and done, episode for episode, from row `skip` of each copy on."""
    copies: dict[int, list[tuple[Any, int]]] = {}
    for copy, obs, action in Corridors.played:
        assert obs["action_mask"][action]
        copies.setdefault(id(copy), []).append((obs, action))
    rows = [copy[skip:] for copy in copies.values()]
    starts = [(copy, i) for copy in rows for i in range(0, len(copy) - LENGTH + 1, LENGTH)]
    return [copy[i : i + LENGTH] for copy, i in starts]


def taken(episodes: list[list[tuple[Any, int]]]) -> list[int]:
    return [action for episode in episodes for _, action in episode]


def replayed(
    policy: Policy, episodes: list[list[tuple[Any, int]]], *, forgets: bool = False
) -> list[int]:
    """The policy's actions for what was seen."""
    actions = []
    for episode in episodes:
        policy.reset()
        for obs, _ in episode:
            if forgets:
                policy.reset()
            actions.append(int(policy.act(obs)))
    return actions


def test_a_restored_policy_acts_as_training_did(tmp_path: Path) -> None:
    with remembering_all().build() as algorithm:
        for _ in range(2):
            algorithm.train()
        path = algorithm.save(tmp_path / "checkpoint")
        Corridors.played.clear()
        algorithm.train()
    # Training went on in the middle of an episode; the policy plays those after it.
    trained = whole_episodes(skip=-(2 * 32) % LENGTH)
    assert len(trained) > 2
    Corridors.played.clear()
    done = CliRunner().invoke(app, ["evaluate", str(path), "--episodes", "3"])
    assert done.exit_code == 0, done.output
    evaluated = whole_episodes()
    assert len(evaluated) >= 3
    with Algorithm.from_checkpoint(path) as restored:
        policy = restored.get_policy()
    assert replayed(policy, trained) == taken(trained)
    assert replayed(policy, evaluated) == taken(evaluated)
    assert replayed(policy, trained, forgets=True) != taken(trained)


def test_evaluation_acts_as_the_policy_does() -> None:
    with remembering_all().build() as algorithm:
        algorithm.train()
        seen = evaluated(algorithm)
        assert replayed(algorithm.get_policy(), seen) == taken(seen)


def evaluated(algorithm: Algorithm) -> list[list[tuple[Any, int]]]:
    Corridors.played.clear()
    algorithm.evaluate(num_episodes=3)
    return whole_episodes()


@pytest.mark.slow
def test_a_policy_is_what_was_learned_when_it_was_asked_for() -> None:
    with remembering_all().build() as algorithm:
        algorithm.train()
        policy, seen = algorithm.get_policy(), evaluated(algorithm)
        before = replayed(policy, seen)
        for _ in range(3):
            algorithm.train()
        assert replayed(policy, seen) == before
        assert replayed(algorithm.get_policy(), seen) != before


def test_sampled_actions_follow_the_seed() -> None:
    with remembering_all().build() as algorithm:
        seen = evaluated(algorithm)

        def sampled(seed: int) -> list[int]:
            return replayed(algorithm.get_policy(explore=True, seed=seed), seen)

        assert sampled(0) == sampled(0)
        assert sampled(0) != sampled(1)


def test_state_and_refusals() -> None:
    model = {"lstm_use_prev_reward": True, "lstm_use_prev_action": True}
    with remembering_all(model).build() as algorithm:
        policy = algorithm.get_policy()
        obs = Corridors().reset(seed=0)[0]
        assert policy.state is None
        policy.act(obs)
        start = policy.initial_state()
        assert jax.tree.structure(policy.state) == jax.tree.structure(start)
        assert jax.tree.map(np.shape, policy.state) == jax.tree.map(np.shape, start)
        with pytest.raises(ConfigError, match="reads the reward of the previous step"):
            policy.act(obs)
        policy.act(obs, prev_reward=1.0, prev_action=2)
        policy.reset()
        assert policy.state is None
        with pytest.raises(ConfigError, match="prev_reward has no effect without a state"):
            policy.act(obs, prev_reward=1.0)
        with pytest.raises(SpaceError, match="must be a dict with the keys"):
            policy.act(np.zeros(3))
        assert algorithm.get_policy("other") is None
        with pytest.raises(UnknownNameError, match="There is no module 'other'"):
            algorithm.export("exported", policy_id="other")
    with remembering_all().build() as algorithm:
        with pytest.raises(ConfigError, match=r"ActorCriticModule is stateful: use get_policy\(\)"):
            algorithm.compute_single_action(obs)
        with pytest.raises(ConfigError, match=r"prev_reward=1\.0"):
            algorithm.get_policy().act(obs, prev_reward=1.0)


def test_policies_of_a_checkpoint(tmp_path: Path) -> None:
    with remembering_all().build() as algorithm:
        path = algorithm.save(str(tmp_path))
        obs = Corridors().reset(seed=0)[0]
        policies = Policy.from_checkpoint(path)
        assert list(policies) == ["default_policy"]
        single = Policy.from_checkpoint(f"{path}/policies/default_policy")
        for restored in (policies["default_policy"], single):
            assert restored.act(obs) == algorithm.get_policy().act(obs)
        with pytest.raises(UnknownNameError, match="no module 'p0' in"):
            Policy.from_checkpoint(path, policy_ids=["p0"])
        exported = algorithm.export_policy_checkpoint(str(tmp_path / "exported"))
        with pytest.raises(CheckpointError, match="is an export, which NumpyPolicy"):
            Policy.from_checkpoint(exported)


def test_a_masked_memory_by_rllibs_names() -> None:
    """A recurrent inference loop of RLlib's, and a distribution without the masked actions."""
    with remembering_all().build() as algorithm:
        policy, same = algorithm.get_policy(), algorithm.get_policy()
        env, state = Corridors(), None
        obs, done = env.reset(seed=0)[0], False
        while not done:
            action, state, _ = policy.compute_single_action(obs, state, prev_reward=0.0)
            assert action == same.act(obs)
            obs, _, done, _, _ = env.step(action)
        masked = {"x": np.ones((1, 3)), "action_mask": np.array([[0, 1, 0, 1]], np.int8)}
        logits, state = policy.model({"obs": masked}, [])
        dist = policy.dist_class(logits, policy.model)
        assert np.exp(dist.logp([0])) == 0.0
        assert {int(dist.sample()[0]) for _ in range(20)} <= {1, 3}
        again, _ = policy.model({"obs": masked}, state)
        assert not np.allclose(again, logits)
