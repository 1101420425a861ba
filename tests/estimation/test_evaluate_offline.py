"""`Algorithm.evaluate_offline`: a policy on its own data, on others', and what is refused."""

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import Algorithm, BCConfig, DQNConfig, EpisodeWriter, PPOConfig, TD3Config
from jaxrl.connectors import PrevActionsPrevRewards
from jaxrl.connectors.pipelines import ActionPipeline
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import ConfigError, DataError
from jaxrl.estimation.target import read_whole_episodes
from jaxrl.offline.recorded import open_data
from tests.recorded_data import ACTION_SPACE, OBS_SPACE, make_part, write_data

FQE = {"num_updates": 50, "batch_size": 16}


def make_run(output: Path, env: str = "CartPole-v1", **settings: Any) -> Algorithm:
    """Make a run whose policy stays the same."""
    config = PPOConfig().environment(env, max_episode_steps=20)
    config.env_runners(num_envs_per_env_runner=4, rollout_fragment_length=50)
    config.training(num_epochs=1, minibatch_size=200, lr=0.0, gamma=0.9)
    config.rl_module(model_config={"fcnet_hiddens": [8]}).debugging(seed=5)
    config.update_from_dict(settings)
    return config.offline_data(output=str(output)).build()


CASES = {
    "plain": {},
    "memory": {"model_config": {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 8}},
    "previous": {"env_to_module_connector": lambda env, spaces, device: PrevActionsPrevRewards()},
    "box": {"env": "Pendulum-v1"},
    "masks": {"env": "minefield-v0"},
}


@pytest.mark.representatives("memory")
@pytest.mark.parametrize("case", CASES)
def test_on_its_own_data_all_estimates_are_the_mean_return(tmp_path: Path, case: str) -> None:
    """Weights are 1 if the policy sees what it saw while it recorded."""
    with make_run(tmp_path / "data", **CASES[case]) as algorithm:
        for _ in range(2):
            algorithm.train()
    methods = ["is", "pdis", "wis", "wpdis"]
    with make_run(tmp_path / "unused", **CASES[case]) as algorithm:
        report = algorithm.evaluate_offline(str(tmp_path / "data"), methods)
    assert report.num_episodes >= 4
    assert report.gamma == 0.9
    assert report.effective_size == pytest.approx(report.num_episodes, rel=1e-4)
    for name in methods:
        assert report.estimates[name].value == pytest.approx(report.behavior.value, rel=1e-3), name


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded") / "data"
    with make_run(folder) as algorithm:
        algorithm.train()
        algorithm.train()
    return folder


@pytest.fixture(scope="module")
def other() -> Algorithm:
    """Another policy for the same environment."""
    config = PPOConfig().environment("CartPole-v1").debugging(seed=77)
    return config.rl_module(model_config={"fcnet_hiddens": [8]}).build()


def rewrite(
    source: Path, folder: Path, change: Any, action_space: Any = None, **arguments: Any
) -> str:
    """Write the whole episodes of a folder again, changed."""
    data = open_data(str(source))
    writer = EpisodeWriter(
        folder, data.observation_space, action_space or data.action_space, **arguments
    )
    with writer:
        changed = (change(part) for part in data.iter_parts())
        writer.add_parts([part for part in changed if part is not None])
    return str(folder)


def test_shifted_probabilities_shift_the_weights(
    recorded: Path, other: Algorithm, tmp_path: Path
) -> None:
    def shift(part: EpisodePart) -> EpisodePart:
        log_prob = part.extras["action_logp"] + np.float32(0.1)
        return dataclasses.replace(part, extras={**part.extras, "action_logp": log_prob})

    shifted = rewrite(recorded, tmp_path / "shifted", shift, has_density=True)
    lengths: dict[str, int] = {}
    for part in open_data(str(recorded)).iter_parts():
        lengths[part.episode_id] = lengths.get(part.episode_id, 0) + len(part)
    one = other.evaluate_offline(str(recorded), ["is", "wis"], gamma=1.0)
    two = other.evaluate_offline(shifted, ["is", "wis"], gamma=1.0)
    assert two.estimates["is"].value < one.estimates["is"].value * np.exp(-0.1 * 8)
    assert one.estimates["wis"].value != two.estimates["wis"].value
    longest = max(lengths.values())
    assert two.estimates["is"].value > one.estimates["is"].value * np.exp(-0.1 * longest)


def test_densities_of_the_environments_actions_are_converted(tmp_path: Path) -> None:
    """Pendulum's torque is in [-2, 2] and the module's action in [-1, 1]: a factor of 2."""
    with make_run(tmp_path / "data", "Pendulum-v1", max_episode_steps=2) as algorithm:
        algorithm.train()
    with make_run(tmp_path / "unused", "Pendulum-v1", max_episode_steps=2) as algorithm:
        convert = algorithm.get_policy().inference.policy_step.action_pipeline

        def select(part: EpisodePart) -> EpisodePart | None:
            """Leave out actions beyond the bounds, which the environment never saw."""
            is_inside = np.abs(part.action).max() < 1.0 and len(part) == 2
            return dataclasses.replace(part) if is_inside else None

        def to_env(part: EpisodePart) -> EpisodePart | None:
            log_prob = part.extras["action_logp"] - np.float32(np.log(2.0))
            extras = {**part.extras, "action_logp": log_prob}
            kept = select(part)
            return kept and dataclasses.replace(
                kept, action=np.asarray(convert(part.action)), extras=extras
            )

        density = {"has_density": True}
        own = rewrite(
            tmp_path / "data", tmp_path / "own", select, actions_are_normalized=True, **density
        )
        same = rewrite(
            tmp_path / "data", tmp_path / "env", to_env, actions_are_normalized=False, **density
        )
        one, two = (algorithm.evaluate_offline(folder, ["is"]) for folder in (own, same))
    assert one.num_episodes == two.num_episodes > 10
    for report in (one, two):
        assert report.effective_size == pytest.approx(report.num_episodes, rel=1e-3)
        assert report.estimates["is"].value == pytest.approx(report.behavior.value, rel=1e-3)


def test_default_methods_follow_the_data_and_the_policy(
    recorded: Path, other: Algorithm, tmp_path: Path
) -> None:
    assert list(other.evaluate_offline(str(recorded), fqe=FQE).estimates) == ["wis", "dr"]
    plain = rewrite(recorded, tmp_path / "plain", lambda p: dataclasses.replace(p, extras={}))
    report = other.evaluate_offline(plain, fqe=FQE)
    assert list(report.estimates) == ["dm"]
    assert report.effective_size is None


def test_estimates_follow_their_seed(recorded: Path, other: Algorithm) -> None:
    one, same, third = (
        other.evaluate_offline(str(recorded), ["wis", "dr", "fqe"], fqe=FQE, seed=seed)
        for seed in (1, 1, 2)
    )
    assert one == same
    assert one.estimates["dr"] != third.estimates["dr"]
    assert one.estimates["wis"].value == third.estimates["wis"].value


def test_a_policy_without_exploration_takes_one_action(recorded: Path) -> None:
    config = DQNConfig().environment("CartPole-v1")
    with config.rl_module(model_config={"fcnet_hiddens": [8]}).build() as algorithm:
        report = algorithm.evaluate_offline(str(recorded), ["pdis", "dm"], fqe=FQE)
        assert not report.explore
        with pytest.raises(ConfigError, match="explore=True has no known probabilities for Q"):
            algorithm.evaluate_offline(str(recorded), ["pdis"], explore=True)


@pytest.mark.parametrize("ignore", [False, True])
def test_incomplete_episodes_are_counted(tmp_path: Path, ignore: bool) -> None:
    """Truncated ones end a step earlier without their final observation."""
    extras = {"action_logp": np.zeros(4, np.float32)}
    parts = [
        make_part(0, 4, terminated=True, extras=extras),
        make_part(1, 4, truncated=True, extras=extras),
        make_part(2, 4, extras=extras),
        make_part(3, 4, terminated=True, t_started=7, extras=extras),
    ]
    folder = write_data(tmp_path / "data", parts, has_density=True)
    config = BCConfig().environment(observation_space=OBS_SPACE, action_space=ACTION_SPACE)
    config.offline_data(input_=folder, ignore_final_observation=ignore)
    config.training(train_batch_size=4)
    with config.build() as algorithm:
        report = algorithm.evaluate_offline(methods=["wis"])
    steps = 7 if ignore else 8
    assert (report.num_episodes, report.num_steps, report.num_dropped) == (2, steps, 2)
    share = "53%" if ignore else "50%"
    assert (
        f"{share} of the steps are in episodes without a recorded start or end"
        in report.warnings[0]
    )


def test_no_value_is_of_an_observation_that_was_not_recorded(tmp_path: Path) -> None:
    """D4RL's rows before a timeout repeat their own observation as the successor, which is left out."""
    np.savez(
        tmp_path / "d4rl.npz",
        observations=np.arange(8.0, dtype=np.float32).reshape(4, 2),
        actions=np.zeros(4, np.int64),
        rewards=np.ones(4, np.float32),
        terminals=np.zeros(4, np.bool_),
        timeouts=np.array([False, False, False, True]),
    )
    data = open_data(
        str(tmp_path / "d4rl.npz"),
        observation_space=OBS_SPACE,
        action_space=ACTION_SPACE,
        ignore_final_observation=True,
    )
    pipeline = ActionPipeline((), ACTION_SPACE)
    (part,) = read_whole_episodes(data, pipeline, ignore_final_observation=True).parts
    np.testing.assert_array_equal(part.obs, np.arange(8.0).reshape(4, 2))
    assert part.truncated
    assert len(part) == 3
    rows = read_whole_episodes(
        data, pipeline, split_by_episode=False, ignore_final_observation=True
    )
    assert len(rows.parts) == 4  # nothing follows a row that is an episode


def test_whole_episodes_are_required(tmp_path: Path) -> None:
    folder = write_data(tmp_path / "data", [make_part(0, 4)])
    config = BCConfig().offline_data(input_=folder).training(train_batch_size=4)
    with config.build() as algorithm, pytest.raises(DataError, match="has no whole episode"):
        algorithm.evaluate_offline(methods=["dm"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"methods": []}, "methods is empty; choose from is, pdis"),
        ({"methods": ["wiss"]}, "methods has the unknown 'wiss'\\. Did you mean 'wis'"),
        ({"gamma": 1.5}, "gamma must be between 0 and 1, got 1.5"),
        ({"gamma": "x"}, "gamma must be between 0 and 1, got 'x'"),
        ({"confidence": 1.0}, "confidence must be above 0 and below 1, got 1.0"),
        ({"seed": -1}, "seed must be a whole number of at least 0 and below 2\\*\\*64, got -1"),
        ({"fqe": {"num_update": 3}}, "fqe has no setting 'num_update'.*num_updates"),
        ({"fqe": {"tau": 0.0}, "methods": ["dm"]}, "fqe tau must be above 0"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    recorded: Path, other: Algorithm, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        other.evaluate_offline(str(recorded), **arguments)
    assert "\n" not in str(caught.value)


def test_data_are_required(other: Algorithm) -> None:
    with pytest.raises(ConfigError, match="evaluate_offline needs recorded data: name a folder"):
        other.evaluate_offline()


def test_data_of_other_spaces_are_refused(other: Algorithm, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="observation"):
        other.evaluate_offline(write_data(tmp_path / "data"))


def test_missing_probabilities_are_refused(
    recorded: Path, other: Algorithm, tmp_path: Path
) -> None:
    plain = rewrite(recorded, tmp_path / "plain", lambda p: dataclasses.replace(p, extras={}))
    with pytest.raises(DataError, match=r"no probabilities of the recorded actions.*wis"):
        other.evaluate_offline(plain, ["wis", "dm"])


@pytest.mark.parametrize("value", [np.nan, -np.inf, 0.7])
def test_probabilities_that_are_no_logarithms_are_refused(
    value: float, recorded: Path, tmp_path: Path, other: Algorithm
) -> None:
    def change(part: EpisodePart) -> EpisodePart:
        log_prob = part.extras["action_logp"].copy()
        log_prob[-1] = value
        return dataclasses.replace(part, extras={**part.extras, "action_logp": log_prob})

    folder = rewrite(recorded, tmp_path / "data", change)
    with pytest.raises(DataError, match=rf"action_logp is {value:g} at t=\d+, and must be the log"):
        other.evaluate_offline(folder, ["wis"])


@pytest.mark.slow
def test_a_deterministic_policy_in_a_box_has_no_density(tmp_path: Path) -> None:
    with make_run(tmp_path / "data", "Pendulum-v1") as algorithm:
        algorithm.train()
    config = TD3Config().environment("Pendulum-v1")
    with config.rl_module(model_config={"fcnet_hiddens": [8]}).build() as algorithm:
        with pytest.raises(ConfigError, match="without exploration has no density"):
            algorithm.evaluate_offline(str(tmp_path / "data"), ["wis"])
        report = algorithm.evaluate_offline(str(tmp_path / "data"), fqe=FQE)
    assert list(report.estimates) == ["dm"]


def test_models_need_simple_actions(tmp_path: Path) -> None:
    space = spaces.MultiDiscrete([2, 3])
    env = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    config = BCConfig().environment(observation_space=env, action_space=space)
    part = make_part(0, 4, terminated=True)
    extras = {"action_logp": np.full(4, -np.log(6.0), np.float32)}
    part = dataclasses.replace(part, obs=np.tanh(part.obs), reward=np.ones(4), extras=extras)
    part = dataclasses.replace(part, action=np.zeros((4, 2), np.int32))
    with EpisodeWriter(tmp_path / "data", env, space) as writer:
        writer.add_parts([part])
    config.offline_data(input_=str(tmp_path / "data")).training(train_batch_size=4)
    with config.build() as algorithm:
        with pytest.raises(ConfigError, match="need Discrete or Box actions, got MultiDiscrete"):
            algorithm.evaluate_offline(methods=["dm"])
        assert list(algorithm.evaluate_offline().estimates) == ["wis"]
