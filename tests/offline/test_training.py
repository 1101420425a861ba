"""Training on recorded data: exact resumption, devices, connectors, spaces, and wrong input."""

import dataclasses
import itertools
import logging
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
import yaml
from gymnasium import spaces
from typer.testing import CliRunner

from jaxrl import Algorithm, DQNConfig, EpisodeWriter, PPOConfig, SACConfig, import_weights
from jaxrl.assembly.offline import open_sources, transform_parts
from jaxrl.cli.app import app
from jaxrl.connectors import FrameStacking, MeanStdFilter, PrevActionsPrevRewards
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import CheckpointError, ConfigError, DataError
from jaxrl.runtime import kept_programs
from tests.recorded_data import make_part, make_parts, write_data

SMALL = {"fcnet_hiddens": [8]}


def make_config(data: str | list[str], **settings: Any) -> DQNConfig:
    config = DQNConfig().offline_data(input_=data, num_updates_per_iteration=20)
    config.training(train_batch_size=16, target_network_update_freq=64)
    config.rl_module(model_config=SMALL).debugging(seed=3)
    return config.update_from_dict(settings)


@pytest.fixture(name="data")
def make_data(tmp_path: Path) -> str:
    return write_data(tmp_path / "data")


def stack_two(*_: Any) -> FrameStacking:
    return FrameStacking(num_frames=2)


def add_past(*_: Any) -> PrevActionsPrevRewards:
    return PrevActionsPrevRewards()


def get_learner(algorithm: Algorithm) -> Any:
    return jax.tree.map(np.asarray, algorithm.state.learner)


def check_equal(one: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_counts_rows_and_samples_nothing(data: str) -> None:
    algorithm = make_config(data).build()
    result = algorithm.train()
    assert result["num_env_steps_sampled_lifetime"] == 0
    assert result["num_env_steps_trained_lifetime"] == 20 * 16
    assert result["learners"]["default_policy"]["num_updates_lifetime"] == 20
    assert algorithm.train()["num_env_steps_trained_lifetime"] == 2 * 20 * 16
    assert "replay_buffer" not in result


def test_steps_of_environments_do_not_end_a_run(data: str) -> None:
    algorithm = make_config(data).build()
    steps = {"num_env_steps_sampled_lifetime": 100}
    wanted = r"=100 is never reached .* stop=\{'num_env_steps_trained_lifetime': 100\} counts recorded rows"
    with pytest.raises(ConfigError, match=wanted):
        algorithm.fit(steps, should_stop=lambda: algorithm.iteration > 0)
    assert algorithm.iteration == 0
    algorithm.fit({**steps, "training_iteration": 1})
    assert algorithm.iteration == 1


@pytest.mark.representatives("epochs")
@pytest.mark.parametrize("sampling", ["uniform", "epochs"])
def test_a_restored_run_goes_on_to_the_bit(data: str, tmp_path: Path, sampling: str) -> None:
    config = make_config(data, dataset_sampling=sampling, num_updates_per_iteration=7)
    algorithm = config.build()
    algorithm.train()
    path = algorithm.save(tmp_path / "checkpoint")
    algorithm.train()
    restored = Algorithm.from_checkpoint(path)
    restored.train()
    check_equal(get_learner(algorithm), get_learner(restored))


def test_the_division_into_dispatches_changes_nothing(data: str) -> None:
    one = make_config(data, num_updates_per_iteration=250).build()
    one.train()
    other = make_config(data, num_updates_per_iteration=125).build()
    other.train()
    other.train()
    check_equal(get_learner(one), get_learner(other))


def test_devices_change_no_rows(data: str) -> None:
    one, eight = (make_config(data, num_devices=n, num_shards=8).build() for n in (1, 8))
    one.train()
    eight.train()
    close = jax.tree.map(
        lambda x, y: np.allclose(x, y, atol=1e-5), get_learner(one), get_learner(eight)
    )
    assert jax.tree.all(close)


def test_schedules_are_over_rows_trained_on(data: str) -> None:
    algorithm = make_config(data, lr=[[0, 0.1], [640, 0.0]]).build()
    algorithm.train()
    lr = algorithm.train()["learners"]["default_policy"]["curr_lr"]
    rows = np.arange(320, 640, 16)
    np.testing.assert_allclose(lr, np.mean(0.1 * (1 - rows / 640)), rtol=1e-5)


def test_programs_do_not_depend_on_the_place_of_their_data() -> None:
    """Only on the shares of their sources, which are in the order of their names."""

    def describe(data: Any) -> Any:
        config = DQNConfig().environment("CartPole-v1").offline_data(input_=data)
        description = kept_programs._describe_config(config)
        assert description is not None
        return description["shares"]

    assert describe("a") == describe("b") == describe(["c", "d"])
    assert describe({"sampler": 0.5, "a": 0.5}) == describe({"b": 0.5, "sampler": 0.5})
    assert describe({"a": 0.25, "b": 0.75}) != describe({"a": 0.75, "b": 0.25})
    shares = [{"sampler": 0.5, "a": 0.5}, {"a": 0.5, "b": 0.5}, {"a": 1.0}]
    assert len({repr(describe(data)) for data in ("sampler", "a", *shares)}) == 5


def test_a_target_network_is_copied_after_so_many_rows(data: str) -> None:
    algorithm = make_config(
        data, target_network_update_freq=64, num_updates_per_iteration=7
    ).build()
    algorithm.train()
    assert int(algorithm.state.learner.target.renewed) == 64


def test_the_filter_has_the_statistics_of_all_rows_and_keeps_them(data: str) -> None:
    algorithm = make_config(data, observation_filter="MeanStdFilter").build()
    seen = np.concatenate([part.obs[:-1] for part in make_parts()])
    before = jax.tree.map(np.asarray, algorithm.state.connectors.obs)
    algorithm.train()
    check_equal(before, jax.tree.map(np.asarray, algorithm.state.connectors.obs))
    found = [leaf for leaf in jax.tree.leaves(before) if leaf.shape == (2,)]
    assert any(np.allclose(leaf, seen.mean(axis=0), atol=1e-5) for leaf in found)


def test_a_second_filter_has_the_statistics_of_what_the_first_returns(data: str) -> None:
    def add_filter(*_: Any) -> MeanStdFilter:
        return MeanStdFilter()

    settings = {"observation_filter": "MeanStdFilter", "env_to_module_connector": add_filter}
    algorithm = make_config(data, **settings).build()
    first, second = algorithm.state.connectors.obs
    seen = np.concatenate([part.obs[:-1] for part in make_parts()])
    np.testing.assert_allclose(first.mean, seen.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(second.mean, 0.0, atol=1e-3)
    np.testing.assert_allclose(second.m2 / len(seen), 1.0, rtol=0.1)


def test_statistics_that_stacked_rows_have_passed_are_not_imported(data: str) -> None:
    settings = {"observation_filter": "MeanStdFilter", "env_to_module_connector": stack_two}
    algorithm = make_config(data, **settings).build()
    moments = {"mean": np.zeros(2), "var": np.ones(2), "count": np.full((), 10.0)}
    source = {f"obs_rms.{name}": value for name, value in moments.items()}
    with pytest.raises(ConfigError, match="statistics of the observation filter cannot be replac"):
        import_weights(algorithm, source, {}, strict=False)


def test_stacked_frames_are_those_of_the_episode(data: str) -> None:
    stacks = np.asarray(
        make_config(data, env_to_module_connector=stack_two).build().learner_group.dataset.obs
    )
    first = 0
    for part in make_parts():
        shifted = np.concatenate([np.zeros((1, 2), np.float32), part.obs[:-1]])
        expected = np.concatenate([shifted, part.obs], axis=1)
        np.testing.assert_array_equal(stacks[first : first + len(part.obs)], expected)
        first += len(part.obs)
    assert first == len(stacks)


def test_previous_rewards_are_those_of_the_environment(data: str) -> None:
    """Learner connectors change what is learned from, not what was observed."""
    config = make_config(data, env_to_module_connector=add_past, clip_rewards=0.5)
    dataset = config.build().learner_group.dataset
    past = np.asarray(dataset.obs)[:, -1]
    first = 0
    for part in make_parts():
        rewards = np.concatenate([[0.0], part.reward]).astype(np.float32)
        np.testing.assert_array_equal(past[first : first + len(part.obs)], rewards)
        first += len(part.obs)
    assert np.abs(past).max() > 1.0
    assert np.abs(dataset.reward).max() <= 0.5


def test_environment_actions_become_the_modules(tmp_path: Path) -> None:
    box = spaces.Box(-2.0, 6.0, (1,), np.float32)
    parts = make_parts(action_space=box)
    config = SACConfig().offline_data(input_=write_data(tmp_path / "a", parts, box))
    config.training(train_batch_size=16).rl_module(model_config=SMALL)
    recorded = np.concatenate([part.action for part in parts])
    actions = np.asarray(config.build().learner_group.dataset.action)
    np.testing.assert_allclose(actions, (recorded - 2.0) / 4.0, atol=1e-6)


def test_normalized_actions_stay(tmp_path: Path) -> None:
    box = spaces.Box(-2.0, 6.0, (1,), np.float32)
    parts = [
        dataclasses.replace(part, action=(part.action - 2.0) / 4.0)
        for part in make_parts(action_space=box)
    ]
    data = write_data(tmp_path / "a", parts, box, actions_are_normalized=True)
    config = SACConfig().offline_data(input_=data)
    config.training(train_batch_size=16).rl_module(model_config=SMALL)
    actions = np.asarray(config.build().learner_group.dataset.action)
    np.testing.assert_array_equal(actions, np.concatenate([part.action for part in parts]))


def test_a_statement_on_actions_that_contradicts_the_data_is_refused(data: str) -> None:
    message = refused(make_config(data, actions_in_input_normalized=True))
    assert "actions_are_normalized=True contradicts" in message


def test_clipped_rewards_are_learned_from(data: str) -> None:
    algorithm = make_config(data, clip_rewards=0.5).build()
    rewards = np.concatenate([part.reward for part in make_parts()])
    learned = np.asarray(algorithm.learner_group.dataset.reward)
    np.testing.assert_allclose(learned, np.clip(rewards, -0.5, 0.5))


def test_normalized_rewards_have_the_scale_of_all_returns(data: str) -> None:
    algorithm = make_config(data, normalize_rewards=True, gamma=0.9).build()
    returns = []
    for part in make_parts():
        running = itertools.accumulate(part.reward.tolist(), lambda total, x: 0.9 * total + x)
        returns += list(running)
    rewards = np.concatenate([part.reward for part in make_parts()])
    learned = np.asarray(algorithm.learner_group.dataset.reward)
    np.testing.assert_allclose(learned, rewards / np.std(returns, ddof=1), rtol=1e-4, atol=1e-5)


def test_rows_without_a_final_observation_can_be_left_out(data: str) -> None:
    whole = make_config(data).build().learner_group.dataset
    without = make_config(data, ignore_final_observation=True).build().learner_group.dataset
    assert whole.num_rows - without.num_rows == sum(not part.terminated for part in make_parts())


def drop_short(part: EpisodePart) -> EpisodePart | None:
    """Leave out short episodes, and double the rewards of others."""
    return None if len(part) < 22 else dataclasses.replace(part, reward=2.0 * part.reward)


def test_a_function_may_change_and_drop_parts(data: str) -> None:
    dataset = make_config(data, input_transform=drop_short).build().learner_group.dataset
    kept = [part for part in make_parts() if len(part) >= 22]
    np.testing.assert_allclose(dataset.reward, 2 * np.concatenate([p.reward for p in kept]))
    with pytest.raises(ConfigError, match=r"input_transform must return .* got a list"):
        make_config(data, input_transform=list_of_one).build()


def list_of_one(part: EpisodePart) -> Any:
    return [part]


def forget_observations(part: EpisodePart) -> EpisodePart:
    return dataclasses.replace(
        part, action=part.action[:9], reward=part.reward[:9], version=part.version[:9]
    )


def spoil_a_reward(part: EpisodePart) -> EpisodePart:
    return dataclasses.replace(part, reward=np.where(np.arange(len(part)) == 3, np.nan, 0.0))


def add_extras(part: EpisodePart) -> EpisodePart:
    return dataclasses.replace(part, extras={"weight": np.ones(len(part) + 1)})


def choose_nothing(part: EpisodePart) -> EpisodePart:
    return dataclasses.replace(part, action=part.action + 3)


def sum_rewards(part: EpisodePart) -> EpisodePart:
    return dataclasses.replace(part, reward=part.reward.sum())


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (forget_observations, r"episode '0': obs must have the shape \(10, 2\), got \(21, 2\)"),
        (spoil_a_reward, r"episode '0': rewards is nan at t=3, which is not finite"),
        (add_extras, r"episode '0': weight must have 20 rows, got the shape \(21,\)"),
        (choose_nothing, r"episode '0': actions is \d at t=0, outside of the space's \[0, 2\]"),
        (sum_rewards, r"episode '0': rewards must be one number a step, got float32 of shape \(\)"),
    ],
)
def test_what_a_function_returns_is_checked(data: str, function: Any, said: str) -> None:
    config = make_config(data)
    (source,) = open_sources(config.offline_data_settings, config.environment_settings)
    with pytest.raises(ConfigError, match="input_transform, " + said):
        list(transform_parts(function, source, source.iter_parts()))


def test_what_a_function_returns_is_typed_as_in_a_program(data: str) -> None:
    config = make_config(data)
    (source,) = open_sources(config.offline_data_settings, config.environment_settings)

    def widen(part: EpisodePart) -> EpisodePart:
        return dataclasses.replace(part, obs=2.0 * part.obs.astype(np.float64), extras={})

    part = next(transform_parts(widen, source, source.iter_parts()))
    assert (part.obs.dtype, part.reward.dtype) == (np.float32, np.float32)
    np.testing.assert_array_equal(part.obs, 2.0 * next(source.iter_parts()).obs)


def test_a_module_with_memory_learns_from_sequences(data: str) -> None:
    model = {**SMALL, "use_lstm": True, "max_seq_len": 4, "lstm_cell_size": 4}
    config = make_config(data, model_config=model, burn_in_len=2)
    result = config.build().train()
    assert np.isfinite(result["learners"]["default_policy"]["total_loss"])


def test_evaluates_in_the_environment_of_the_data(tmp_path: Path) -> None:
    env = gymnasium.make("CartPole-v1")
    with EpisodeWriter(tmp_path / "d", env.observation_space, env.action_space) as writer:
        part = make_part(0, 30, terminated=True, action_space=spaces.Discrete(2))
        obs = np.random.default_rng(0).uniform(-0.1, 0.1, (31, 4)).astype(np.float32)
        writer.add_parts([dataclasses.replace(part, obs=obs)])
    config = make_config(str(tmp_path / "d")).environment("CartPole-v1")
    config.evaluation(evaluation_interval=1, evaluation_duration=2)
    result = config.build().train()
    assert result["evaluation"]["env_runners"]["num_episodes"] == 2


def test_a_run_is_restored_in_another_folder(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    algorithm = make_config("data").build()
    path = algorithm.save(tmp_path / "checkpoint")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    restored = Algorithm.from_checkpoint(path)
    assert restored.config.input_ == data
    restored.train()


@pytest.mark.parametrize("storage", ["auto", "host", "stream"])
def test_a_policy_is_restored_without_its_data(data: str, tmp_path: Path, storage: str) -> None:
    """Spaces are in the checkpoint; going on needs the data, here in another folder."""
    algorithm = make_config(data, dataset_sampling="epochs", num_updates_per_iteration=5).build()
    algorithm.train()
    path = algorithm.save(tmp_path / "checkpoint")
    obs = np.ones(2, np.float32)
    action = algorithm.compute_single_action(obs, explore=False)
    moved = Path(data).rename(tmp_path / "moved")
    restored = Algorithm.from_checkpoint(path, dataset_storage=storage)
    assert restored.compute_single_action(obs, explore=False) == action
    with pytest.raises(DataError) as caught:
        restored.train()
    assert str(caught.value).startswith(f"No file matches '{data}': give a folder, a file")
    if storage != "stream":
        assert Algorithm.from_checkpoint(path, input_=str(moved)).train()["training_iteration"] == 2


def test_the_command_line_ends_without_an_evaluation(data: str, tmp_path: Path) -> None:
    values = {
        "input_": data,
        "train_batch_size": 16,
        "num_updates_per_iteration": 3,
        "model_config": SMALL,
        "results_dir": str(tmp_path / "results"),
    }
    run = {"run": "BC", "stop": {"training_iteration": 2}, "config": values}
    (tmp_path / "bc.yaml").write_text(yaml.safe_dump({"recorded-bc": run}))
    done = CliRunner().invoke(app, ["train", "file", str(tmp_path / "bc.yaml")])
    assert done.exit_code == 0, done.output
    assert "checkpoint_000002" in done.output.replace("\n", "")
    assert "evaluate" not in done.output


def test_acts_without_an_environment(data: str) -> None:
    algorithm = make_config(data).build()
    assert algorithm.compute_single_action(np.zeros(2, np.float32)) in (0, 1, 2)


# --- wrong input ---


def refused(config: Any) -> str:
    with pytest.raises((ConfigError, DataError)) as caught:
        config.build()
    return str(caught.value)


def test_an_algorithm_for_its_own_steps_is_refused(data: str) -> None:
    message = refused(PPOConfig().offline_data(input_=data))
    assert "PPO learns from the newest steps of its own policy: use BC" in message


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_env_runners": 2}, "'num_env_runners' (got 2) has no effect with input_="),
        ({"replay_buffer_config": {"capacity": 10}}, "not from a replay buffer"),
        ({"placement": "host"}, "placement='host' has no effect with input_="),
        ({"evaluation_interval": 1}, "has no environment to evaluate in: give the one of the data"),
        ({"train_batch_size": 10**6, "dataset_sampling": "epochs"}, "more than the 135 recorded"),
        (
            {"max_dataset_bytes": 1000, "dataset_storage": "device"},
            "max_dataset_bytes=1000 allows 0.00 MiB: name fewer files, raise max_dataset_bytes, or set",
        ),
        (
            {"input_read_schema": {"obs": "o"}},
            "input_read_schema={'obs': 'o'} has no effect on input_=",
        ),
        ({"burn_in_len": 3}, "burn_in_len=3 has no effect on a module without memory"),
        ({"observation_space": spaces.Box(0, 1, (3,), np.float32)}, "has other spaces"),
    ],
)
def test_settings_that_do_not_fit_are_one_sentence(
    data: str, settings: dict[str, Any], said: str
) -> None:
    assert said in refused(make_config(data, **settings))


def test_settings_of_data_without_data_are_refused() -> None:
    config = DQNConfig().environment("CartPole-v1").offline_data(num_updates_per_iteration=5)
    message = refused(config)
    assert "'num_updates_per_iteration' (got 5) has no effect without recorded data" in message


def test_parts_without_their_beginning_are_left_out_of_frame_stacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    late = make_part(9, 12, truncated=True, t_started=5)
    data = write_data(tmp_path / "late", [*make_parts(), late])
    config = make_config(data, env_to_module_connector=stack_two)
    with caplog.at_level(logging.WARNING, "jaxrl"):
        dataset = config.build().learner_group.dataset
    assert dataset.num_rows == sum(map(len, make_parts()))
    assert "1 parts of episodes whose beginning was not recorded are left out" in caplog.text


def test_other_data_than_the_checkpoints_are_refused(data: str, tmp_path: Path) -> None:
    algorithm = make_config(data).build()
    algorithm.train()
    path = algorithm.save(tmp_path / "checkpoint")
    parts = make_parts()
    parts[0].reward[0] += 1.0
    for file in Path(data).iterdir():
        file.unlink()
    write_data(Path(data), parts)
    with pytest.raises(CheckpointError, match="other recorded data"):
        Algorithm.from_checkpoint(path)
    other = make_config(data).build()
    before = jax.tree.map(np.asarray, other.get_state()["train_state"])
    with pytest.raises(CheckpointError, match="other recorded data"):
        other.set_state(algorithm.get_state())
    check_equal(before, jax.tree.map(np.asarray, other.get_state()["train_state"]))
