"""Fitted Q evaluation against the linear solution of small decision problems."""

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.config.offline import make_fqe_settings
from jaxrl.config.settings.offline import FQESettings
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import ConfigError
from jaxrl.estimation.estimate import _fit_values  # pyright: ignore[reportPrivateUsage]
from jaxrl.estimation.target import FittedQ, FQERows, TargetRows, WholeEpisodes
from jaxrl.modules.actor_critic import ActorCriticModule

GAMMA = 0.8


def make_module(action_space: spaces.Space) -> ActorCriticModule:
    obs_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    return ActorCriticModule(observation_space=obs_space, action_space=action_space)


def test_values_solve_the_equations_of_a_chain() -> None:
    """Three states in a ring; action 1 moves on, action 0 stays, and state 2 ends at action 1."""
    policy = np.array([[0.2, 0.8], [0.6, 0.4], [0.5, 0.5]])
    reward = np.array([[0.0, 1.0], [-1.0, 0.5], [2.0, 3.0]])
    state, action = (x.ravel() for x in np.meshgrid(np.arange(3), np.arange(2), indexing="ij"))
    after = np.where(action == 1, np.minimum(state + 1, 2), state)
    ends = (state == 2) & (action == 1)
    rows = FQERows(
        obs=np.eye(3, dtype=np.float32)[np.stack([state, after], axis=1).ravel()],
        target=policy[np.stack([state, after], axis=1).ravel()].astype(np.float32),
        index=np.arange(0, 12, 2, dtype=np.int32),
        action=action.astype(np.int32),
        reward=reward[state, action].astype(np.float32),
        terminated=ends,
    )
    move = np.zeros((3, 2, 3))
    move[state, action, after] = ~ends
    step = np.einsum("sa,sat->st", policy, move)
    value = np.linalg.solve(np.eye(3) - GAMMA * step, (policy * reward).sum(axis=1))
    q_value = reward + GAMMA * move @ value

    model = FittedQ(make_module(spaces.Discrete(2)), FQESettings(num_updates=3000, batch_size=32))
    critic = model.fit(rows, np.arange(6), GAMMA, jax.random.key(0))
    got_q, got_v = model.compute(critic, rows)
    np.testing.assert_allclose(got_q, q_value[state, action], atol=0.1)
    np.testing.assert_allclose(got_v[::2], value[state], atol=0.1)


@pytest.mark.slow
def test_values_of_a_box_are_means_over_the_actions_of_the_target() -> None:
    """Reward is twice the action, which the episode ends with."""
    rng = np.random.default_rng(0)
    action = rng.uniform(-1.0, 1.0, (500, 1)).astype(np.float32)
    own = np.full((1000, 4, 1), 0.5, np.float32) + np.array([-0.2, -0.1, 0.1, 0.2])[:, None]
    rows = FQERows(
        obs=np.zeros((1000, 3), np.float32),
        target=own.astype(np.float32),
        index=np.arange(0, 1000, 2, dtype=np.int32),
        action=action,
        reward=2.0 * action[:, 0],
        terminated=np.ones(500, np.bool_),
    )
    space = spaces.Box(-2.0, 2.0, (1,), np.float32)
    model = FittedQ(make_module(space), FQESettings(num_updates=2000, batch_size=64))
    critic = model.fit(rows, np.arange(500), 0.9, jax.random.key(0))
    q_value, value = model.compute(critic, rows)
    np.testing.assert_allclose(q_value, 2.0 * action[:, 0], atol=0.1)
    np.testing.assert_allclose(value, 1.0, atol=0.1)


def test_only_the_chosen_rows_are_learned_from() -> None:
    rows = FQERows(
        obs=np.zeros((4, 3), np.float32),
        target=np.full((4, 2), 0.5, np.float32),
        index=np.array([0, 2], np.int32),
        action=np.zeros(2, np.int32),
        reward=np.array([1.0, 5.0], np.float32),
        terminated=np.ones(2, np.bool_),
    )
    model = FittedQ(make_module(spaces.Discrete(2)), FQESettings(num_updates=500, batch_size=8))
    for chosen, want in ((0, 1.0), (1, 5.0)):
        critic = model.fit(rows, np.array([chosen]), 0.9, jax.random.key(0))
        np.testing.assert_allclose(model.compute(critic, rows)[0], want, atol=0.05)


class MeanReward:
    """A model of one number, the mean reward of the rows that it was fitted to."""

    def __init__(self) -> None:
        self.fitted: list[list[int]] = []

    def fit(self, rows: Any, chosen: Any, gamma: float, key: Any) -> float:
        self.fitted.append(chosen.tolist())
        return float(rows.reward[chosen].mean())

    def compute(self, critic: float, rows: Any) -> Any:
        return np.full(len(rows.reward), critic), np.full(len(rows.obs), 2.0 * critic)


@pytest.mark.parametrize("number", [1, 2, 7])
def test_an_episodes_values_are_of_a_model_of_the_other_half(number: int) -> None:
    """Every row has another reward, so that values tell which rows a model has seen."""
    lengths = [1 + episode % 3 for episode in range(number)]
    ends = np.cumsum(lengths)
    reward = 2.0 ** np.arange(ends[-1])
    parts = [
        EpisodePart(
            episode_id=str(episode),
            t_started=0,
            obs=np.zeros((length + 1, 3), np.float32),
            action=np.zeros(length, np.int32),
            reward=reward[end - length : end].astype(np.float32),
            terminated=episode % 2 == 0,
            truncated=episode % 2 == 1,
            extras={},
            version=np.zeros(length, np.int32),
        )
        for episode, (length, end) in enumerate(zip(lengths, ends, strict=True))
    ]
    episodes = WholeEpisodes(source="", parts=parts, behavior_log_prob=None, num_dropped=0)
    rows = [
        TargetRows(  # pyright: ignore
            obs=part.obs, log_prob=np.zeros(len(part)), action=np.full((len(part) + 1, 2), 0.5)
        )
        for part in parts
    ]
    model = MeanReward()
    target: Any = SimpleNamespace(get_model=lambda settings: model)
    values = _fit_values(target, episodes, rows, 0.9, FQESettings(), jax.random.key(0))  # pyright: ignore
    owner = np.repeat(np.arange(number), lengths)
    halves = [{int(owner[row]) for row in fitted} for fitted in model.fitted]
    if number > 1:
        assert halves[0] | halves[1] == set(range(number))
        assert not halves[0] & halves[1]
        assert abs(len(halves[0]) - len(halves[1])) <= 1
    for episode, length in enumerate(lengths):
        (others,) = [h for h in halves if episode not in h] if number > 1 else halves[:1]
        mean = reward[np.isin(owner, list(others))].mean()
        np.testing.assert_allclose(values.q_value[episode, :length], mean, rtol=1e-6)
        np.testing.assert_allclose(values.value[episode, :length], 2 * mean, rtol=1e-6)
        last = 0.0 if parts[episode].terminated else 2 * mean
        np.testing.assert_allclose(values.value[episode, length], last, rtol=1e-6)
        assert not values.q_value[episode, length:].any()


@pytest.mark.parametrize(
    ("name", "value", "requirement"),
    [
        ("num_updates", 0, "at least 1"),
        ("num_updates", "x", "a whole number"),
        ("batch_size", 2.5, "a whole number"),
        ("batch_size", True, "a whole number"),
        ("tau", 0.0, "above 0 and at most 1"),
        ("lr", -1.0, "above 0"),
        ("lr", "a", "a number"),
    ],
)
def test_wrong_settings_are_refused(name: str, value: object, requirement: str) -> None:
    with pytest.raises(ConfigError, match=f"^fqe {name} must be {requirement}.*, got"):
        make_fqe_settings({name: value})


def test_a_whole_number_may_be_written_as_a_float() -> None:
    assert make_fqe_settings({"num_updates": 1e2}) == FQESettings(num_updates=100)
