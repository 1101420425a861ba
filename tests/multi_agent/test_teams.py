"""Runs of teams: what QMIX and VDN learn, masks and deaths in rollouts, resuming, and bad input."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl.algorithm import Algorithm
from jaxrl.algorithms.qmix import QMIXConfig, VDNConfig
from jaxrl.config import get_algorithm_config
from jaxrl.config.teams import make_team
from jaxrl.envs import JaxEnv, group_agents
from jaxrl.envs.multi.matrix_games import TwoStepAnd
from jaxrl.errors import JaxrlError
from tests.multi_agent.teams import NoState, Risky, Rivals, Unequal

GREEDY = {"explore": False}
PRIORITIZED = {"type": "prioritized", "capacity": 256}
LSTM = {"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 4}


def small(algo: str = "QMIX", env: Any = Risky, **training: Any) -> Any:
    """A config of few updates."""
    settings = {
        "num_steps_sampled_before_learning_starts": 16,
        "train_batch_size": 16,
        "replay_buffer_config": {"capacity": 256},
        **training,
    }
    base: Any = get_algorithm_config(algo)
    return (
        base.environment(env)
        .env_runners(num_envs_per_env_runner=4, rollout_fragment_length=4)
        .training(**settings)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .learners(num_shards=1)
        .evaluation(evaluation_duration=4, evaluation_config=GREEDY)
        .reporting(min_sample_timesteps_per_iteration=32)
        .debugging(seed=0, loggers=[])
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("algo", "env", "value"),
    [("QMIX", TwoStepAnd, 8.0), ("QMIX", NoState, 8.0), ("VDN", TwoStepAnd, 7.0)],
)
def test_only_a_monotonic_mixture_finds_the_joint_choice(
    algo: str, env: Any, value: float, seed: int
) -> None:
    base: Any = get_algorithm_config(algo)
    config = (
        base.environment(env)
        .env_runners(num_envs_per_env_runner=8, rollout_fragment_length=4)
        .training(
            team_reward="same",
            lr=1e-3,
            gamma=1.0,
            epsilon=1.0,
            train_batch_size=128,
            training_intensity=32.0,
            target_network_update_freq=200,
            num_steps_sampled_before_learning_starts=64,
        )
        .evaluation(evaluation_duration=8, evaluation_config=GREEDY)
        .reporting(min_sample_timesteps_per_iteration=16_000)
        .debugging(seed=seed, loggers=[])
    )
    with config.build() as algorithm:
        algorithm.train()
        assert algorithm.evaluate()["env_runners"]["episode_return_mean"] == value


@pytest.mark.parametrize("model", [{}, pytest.param(LSTM, marks=pytest.mark.slow)])
def test_no_illegal_action_is_taken_and_the_dead_earn_nothing(model: dict[str, Any]) -> None:
    config = small("QMIX", epsilon=0.5).rl_module(model_config={"fcnet_hiddens": [8], **model})
    with config.build() as algorithm:
        result = algorithm.train()["env_runners"]
        # 1, 2 and 3 for each of two steps, then 1 and 2 for three more; an illegal action costs 100.
        assert result["episode_return_mean"] == result["episode_return_min"] == 2 * 6 + 3 * 3
        assert result["episode_len_mean"] == Risky.steps
        assert algorithm.evaluate()["env_runners"]["episode_return_mean"] == 21


@pytest.mark.parametrize(
    ("reward", "total"),
    [("mean", 2 * 2 + 3 * 1.5), pytest.param("same", 5.0, marks=pytest.mark.slow)],
)
def test_team_reward(reward: Any, total: float) -> None:
    with small(team_reward=reward).build() as algorithm:
        assert algorithm.evaluate()["env_runners"]["episode_return_mean"] == pytest.approx(total)


def test_a_cut_episode_ends_with_those_who_would_have_acted() -> None:
    team = group_agents(Risky(), {"team": Risky.possible_agents}, member_mask=True)
    assert isinstance(team, JaxEnv)
    state, _ = team.reset(jax.random.key(0), None)
    step, seen, out = jax.jit(team.step), list[Any](), None
    for time in range(Risky.steps):
        state, out = step(jax.random.key(time), state, np.full(3, (time + 1) % 3, np.int32), None)
        seen.append(np.asarray(out.obs["member_mask"]).tolist())
    assert out is not None
    assert bool(out.truncated)
    assert seen == [[1, 1, 1], [1, 1, 0], [1, 1, 0], [1, 1, 0], [1, 1, 0]]
    last = Risky.steps % 3
    mask = np.arange(3) != last
    np.testing.assert_array_equal(out.obs["action_mask"].reshape(3, 3), [mask, mask, [1, 1, 1]])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "training"),
    [
        (LSTM, {"burn_in_len": 2}),
        pytest.param({}, {"n_step": 3}, marks=pytest.mark.slow),
        pytest.param(
            {}, {"replay_buffer_config": PRIORITIZED, "mixer": None}, marks=pytest.mark.slow
        ),
    ],
)
def test_resuming_is_exact(model: Any, training: Any, tmp_path: Path) -> None:
    config = small(env=Risky, **training)
    config.rl_module(model_config={"fcnet_hiddens": [8], **model})
    with config.build() as algorithm:
        for _ in range(2):
            algorithm.train()
        path = algorithm.save(tmp_path / "checkpoint")
        straight = algorithm.train()
        params = algorithm.get_weights()
    with Algorithm.from_checkpoint(path) as restored:
        resumed = restored.train()
        jax.tree.map(np.testing.assert_array_equal, restored.get_weights(), params)
    runners, learned = (
        [
            r[part] if part == "env_runners" else r[part]["default_policy"]
            for r in (straight, resumed)
        ]
        for part in ("env_runners", "learners")
    )
    for name in ("episode_return_mean", "num_episodes", "num_env_steps_sampled_lifetime"):
        assert runners[0][name] == runners[1][name]
    for name in ("total_loss", "qf_mean", "td_error_mean"):
        assert np.isfinite(learned[0][name])
        assert learned[0][name] == pytest.approx(learned[1][name], rel=1e-5)


def test_actions_for_agents_and_for_the_team() -> None:
    team = group_agents(
        TwoStepAnd(), {"both": ("agent_0", "agent_1")}, member_mask=True, global_state=True
    )
    assert isinstance(team, JaxEnv)
    obs = team.reset(jax.random.key(0), None)[1]
    own = np.eye(3, dtype=np.float32)[0]
    with small(env=TwoStepAnd).build() as algorithm:
        together = algorithm.compute_single_action(jax.device_get(obs), explore=False)
        by_agent = algorithm.compute_actions({"agent_1": own, "agent_0": own}, explore=False)
        assert list(by_agent) == ["agent_1", "agent_0"]
        assert [by_agent["agent_0"], by_agent["agent_1"]] == list(together)
        alone = algorithm.compute_actions({"agent_1": own}, explore=False)
        assert alone == {"agent_1": by_agent["agent_1"]}
        actions, _, outputs = algorithm.compute_actions(
            {"agent_0": own}, explore=True, full_fetch=True
        )
        assert list(actions) == ["agent_0"]
        assert outputs["action_dist_inputs"].shape == (8,)
        seeds = algorithm.compute_actions([jax.device_get(obs)] * 3, explore=False)
        assert np.shape(seeds) == (3, 2)


def test_actions_of_a_team_with_memory() -> None:
    config = small(env=Risky).rl_module(model_config={"fcnet_hiddens": [8], **LSTM})
    seen = {"action_mask": np.array([0, 1, 1], np.int8), "seen": np.zeros(2, np.float32)}
    with config.build() as algorithm:
        obs = dict.fromkeys(("a", "b", "c"), seen)
        first = algorithm.compute_actions(obs, explore=False, full_fetch=True)
        again = algorithm.compute_actions(obs, state=first[1], explore=False)
    assert set(again[0]) == {"a", "b", "c"}
    assert all(action != 0 for action in first[0].values())
    before, after = jax.tree.leaves(first[1]), jax.tree.leaves(again[1])
    assert any(np.any(x != y) for x, y in zip(before, after, strict=True))


def test_explain_tells_who_is_grouped() -> None:
    for config in (QMIXConfig(), VDNConfig()):
        text = config.environment(TwoStepAnd).explain()
        assert "as one team (agent_0, agent_1)" in text
        is_mixed = config["mixer"] == "qmix"
        assert ("what is learned jointly sees its global state" in text) == is_mixed
        assert ("which is all that its values see" in text) != is_mixed
        assert not config.is_multi_agent
    text = QMIXConfig().environment(NoState).explain()
    assert "sees all observations, since it has no global state" in text
    assert "one team" not in QMIXConfig().explain()


@pytest.mark.parametrize(("mixer", "is_kept"), [("qmix", True), ("vdn", False), (None, False)])
def test_the_global_state_is_recorded_for_a_mixer_alone(mixer: Any, is_kept: bool) -> None:
    space: Any = make_team(small(env=TwoStepAnd, mixer=mixer)).spaces[0]
    assert ("global_state" in space.spaces) == is_kept


@pytest.mark.slow
def test_a_time_limit_is_that_of_the_config() -> None:
    config = small(env="MultiAgentCartPole-v0", mixer="vdn").environment(max_episode_steps=3)
    with config.build() as algorithm:
        assert algorithm.train()["env_runners"]["episode_len_max"] == 3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda c: c.environment(Rivals), "QMIX trains one team, and .*Rivals has several"),
        (lambda c: c.environment("TicTacToe-v0"), "TicTacToe-v0 has several .player_0, player_1"),
        (lambda c: c.environment("RockPaperScissors-v0"), "RockPaperScissors-v0 has several"),
        (lambda c: c.environment("CartPole-v1"), "has a single agent: use DQN"),
        (lambda c: c.environment("SimpleSpred-v0"), "Did you mean"),
        (lambda c: c.environment(Unequal), "need equal Discrete action spaces"),
        (lambda c: c.multi_agent(policies={"p0"}), "policies=.* has no effect on QMIX"),
        (lambda c: c.multi_agent(share_rewards="all"), "share_rewards='all' has no effect on QMIX"),
        (lambda c: c.multi_agent(count_steps_by="agent_steps"), "count_steps_by='agent_steps'"),
        (lambda c: c.env_runners(num_env_runners=1), "num_env_runners=1 is not supported"),
        (lambda c: c.training(num_atoms=51), "num_atoms=51 is not supported by QMIX"),
        (lambda c: c.training(noisy=True), "noisy=True is not supported by QMIX"),
        (lambda c: c.training(mixer="sum"), "mixer must be"),
        (lambda c: c.training(mixer="vdn", mixing_embed_dim=8), "no effect with mixer='vdn'"),
        (lambda c: c.environment(action_mask_key=None), "action_mask_key=None"),
        (lambda c: c.env_runners(flatten_observations=True), "A team is observed with the parts"),
    ],
)
def test_bad_input(change: Any, sentence: str) -> None:
    with pytest.raises(JaxrlError, match=sentence):
        change(small()).build()
