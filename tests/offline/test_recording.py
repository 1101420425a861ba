"""Recording of runs: nothing changes, every placement writes the same, and resumed runs go on."""

import contextlib
import dataclasses
import types
from pathlib import Path
from typing import Any, cast

import gymnasium
import jax
import numpy as np
import pytest

from jaxrl import Algorithm, BCConfig, DQNConfig, EpisodeWriter, PPOConfig, TD3Config
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import ConfigError, DataError
from jaxrl.offline.recorded import RecordedData, open_data
from jaxrl.runners.recording import WriterThread, sort_by_time
from tests.offline.parts import BOX, DISCRETE, make_part

SMALL = {"fcnet_hiddens": [8]}


def make_ppo(output: Path | None = None, **settings: Any) -> PPOConfig:
    config = PPOConfig().environment("CartPole-v1", max_episode_steps=40)
    config.env_runners(num_envs_per_env_runner=4, rollout_fragment_length=16)
    config.training(num_epochs=1, minibatch_size=32).rl_module(model_config=SMALL)
    config.debugging(seed=5).update_from_dict(settings)
    return config if output is None else config.offline_data(output=str(output))


def make_dqn(output: Path | None = None, **settings: Any) -> DQNConfig:
    config = DQNConfig().environment("CartPole-v1", max_episode_steps=40)
    config.env_runners(num_envs_per_env_runner=2)
    config.training(num_steps_sampled_before_learning_starts=50, **settings)
    config.reporting(min_sample_timesteps_per_iteration=200)
    config.rl_module(model_config=SMALL).debugging(seed=5)
    return config if output is None else config.offline_data(output=str(output))


def read(folder: Path) -> dict[tuple[str, int], EpisodePart]:
    """Return the parts of a folder by episode and time step."""
    parts = open_data(str(folder)).iter_parts()
    return {(part.episode_id, part.t_started): part for part in parts}


def join(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """Return the rows of each episode, however they are divided into parts."""
    episodes: dict[str, list[EpisodePart]] = {}
    for (name, _), part in sorted(read(folder).items()):
        episodes.setdefault(name, []).append(part)
    return {
        name: {
            "obs": np.concatenate([*(p.obs[:-1] for p in parts), parts[-1].obs[-1:]]),
            "action": np.concatenate([p.action for p in parts]),
            "reward": np.concatenate([p.reward for p in parts]),
            "version": np.concatenate([p.version for p in parts]),
            "log_prob": np.concatenate([p.extras["action_logp"] for p in parts]),
            "end": np.asarray([parts[-1].terminated, parts[-1].truncated]),
        }
        for name, parts in episodes.items()
    }


def check_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, rows in one.items():
        for key, value in rows.items():
            np.testing.assert_array_equal(value, other[name][key], err_msg=f"{name} {key}")


def train(config: Any, iterations: int = 3) -> Algorithm:
    algorithm = config.build()
    for _ in range(iterations):
        algorithm.train()
    algorithm.stop()
    return algorithm


@pytest.mark.parametrize("has_agents", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_iterations_of_any_length_write_the_same_files(tmp_path: Path, has_agents: bool) -> None:
    digests: list[str] = []
    for i, (number, size) in enumerate([(1, 6), (6, 1), (2, 3)]):
        config = make_ppo(tmp_path / f"{i}", train_batch_size=64)
        config.reporting(min_sample_timesteps_per_iteration=64 * size)
        if has_agents:
            config.environment("MultiAgentCartPole-v0")
        with config.build() as algorithm:
            for _ in range(number):
                algorithm.train()
            assert int(algorithm.state.progress.env_steps) == 6 * 64
        (folder,) = {path.parent for path in (tmp_path / f"{i}").rglob("*.parquet")}
        digests.append(open_data(folder).get_fingerprint())
    assert len(set(digests)) == 1


@pytest.mark.slow
def test_a_policy_with_memory_is_recorded_on_after_a_checkpoint(tmp_path: Path) -> None:
    model = {**SMALL, "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 16}
    algorithm = make_ppo(tmp_path / "out", model_config=model, placement="host").build()
    algorithm.train()
    algorithm.save(tmp_path / "checkpoint")
    algorithm.train()
    algorithm.stop()
    rows = sum(len(part) for part in read(tmp_path / "out").values())
    assert rows == algorithm.last_result["num_env_steps_sampled_lifetime"]


def test_a_run_that_cannot_be_built_leaves_the_folder_to_others(tmp_path: Path) -> None:
    def refuse(**kwargs: Any) -> None:
        raise RuntimeError("not today")

    config = make_ppo(tmp_path / "out", placement="host").callbacks(on_algorithm_init=refuse)
    with pytest.raises(RuntimeError, match="not today") as caught:
        config.build()
    # The error holds everything that was built, as the last one of a notebook does.
    make_ppo(tmp_path / "out", placement="host").build().stop()
    assert caught.value.__traceback__ is not None


@pytest.mark.representatives("make_ppo-in_graph", "make_dqn-host")
@pytest.mark.parametrize("placement", ["in_graph", "host"])
@pytest.mark.parametrize("make", [make_ppo, make_dqn])
def test_a_recorded_run_is_the_same_to_the_bit(tmp_path: Path, make: Any, placement: str) -> None:
    plain, recorded = (
        train(make(output).env_runners(placement=placement), 2)
        for output in (None, tmp_path / "out")
    )
    for one, other in zip(
        *(jax.tree.leaves(run.state.learner) for run in (plain, recorded)), strict=True
    ):
        if not jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(one, other)
    rows = sum(len(part) for part in read(tmp_path / "out").values())
    assert rows == plain.last_result["num_env_steps_sampled_lifetime"]


def test_rows_are_consecutive_and_end_where_episodes_do(tmp_path: Path) -> None:
    train(make_ppo(tmp_path / "out"), 4)
    episodes = join(tmp_path / "out")
    whole = [rows for rows in episodes.values() if rows["end"].any()]
    assert len(whole) > 4
    for rows in whole:
        length = len(rows["reward"])
        assert len(rows["obs"]) == length + 1
        terminated, truncated = rows["end"]
        assert truncated == (length == 40)
        is_out = abs(rows["obs"][-1, 2]) > 0.2095 or abs(rows["obs"][-1, 0]) > 2.4
        assert terminated == is_out  # the final observation, not the one after the reset
    assert {0, 1, 2, 3} == {int(v) for rows in whole for v in rows["version"]} | {3}


def test_placements_record_the_same(tmp_path: Path) -> None:
    for placement in ("in_graph", "host"):
        train(make_ppo(tmp_path / placement, num_epochs=1).env_runners(placement=placement), 1)
    one, other = (join(tmp_path / placement) for placement in ("in_graph", "host"))
    assert one.keys() == other.keys()
    for name, rows in one.items():
        for key, value in rows.items():
            np.testing.assert_allclose(value, other[name][key], atol=1e-5, err_msg=f"{name} {key}")


@pytest.mark.slow
@pytest.mark.ray
def test_actors_record_the_same(tmp_path: Path) -> None:
    train(make_ppo(tmp_path / "host").env_runners(placement="host"), 1)
    config = make_ppo(tmp_path / "ray")
    config.env_runners(num_env_runners=2, num_envs_per_env_runner=2)
    train(config, 1)
    one, other = (join(tmp_path / placement) for placement in ("host", "ray"))
    assert one.keys() == other.keys()
    for name, rows in one.items():
        np.testing.assert_allclose(rows["obs"], other[name]["obs"], atol=1e-5)


@pytest.mark.representatives("make_dqn")
@pytest.mark.parametrize("make", [make_ppo, make_dqn])
def test_a_resumed_run_records_as_if_it_had_not_stopped(tmp_path: Path, make: Any) -> None:
    train(make(tmp_path / "whole"))
    algorithm = make(tmp_path / "cut").build()
    algorithm.train()
    path = algorithm.save(tmp_path / "checkpoint")
    algorithm.train()
    algorithm.stop()
    before = sorted(file.name for file in (tmp_path / "cut").iterdir())
    restored = Algorithm.from_checkpoint(path)
    restored.compute_single_action(np.zeros(4, np.float32))
    assert sorted(file.name for file in (tmp_path / "cut").iterdir()) == before
    restored.train()
    restored.train()
    restored.stop()
    check_same(join(tmp_path / "whole"), join(tmp_path / "cut"))


@pytest.mark.parametrize(
    ("make", "has_density"),
    [(make_ppo, True), (make_dqn, True), (lambda path: make_dqn(path, noisy=True), False)],
)
def test_the_manifest_says_whether_there_is_a_density(
    tmp_path: Path, make: Any, has_density: bool
) -> None:
    train(make(tmp_path / "out"), 1)
    data: RecordedData = open_data(str(tmp_path / "out"))
    assert data.has_density == has_density
    assert data.actions_are_normalized
    assert data.origin.env == "CartPole-v1"


@pytest.mark.slow
def test_deterministic_policies_have_no_density(tmp_path: Path) -> None:
    config = TD3Config().environment("Pendulum-v1").rl_module(model_config=SMALL)
    config.offline_data(output=str(tmp_path / "out"))
    config.reporting(min_sample_timesteps_per_iteration=50)
    train(config, 1)
    assert not open_data(str(tmp_path / "out")).has_density


def test_what_was_recorded_is_learned_from(tmp_path: Path) -> None:
    train(make_ppo(tmp_path / "out"))
    config = BCConfig().environment("CartPole-v1").offline_data(input_=str(tmp_path / "out"))
    config.training(train_batch_size=32).rl_module(model_config=SMALL)
    result = config.build().train()
    assert np.isfinite(result["learners"]["default_policy"]["total_loss"])


def test_a_second_run_is_appended_with_other_ids(tmp_path: Path) -> None:
    train(make_ppo(tmp_path / "out"), 1)
    first = join(tmp_path / "out").keys()
    train(make_ppo(tmp_path / "out"), 1)
    assert first < join(tmp_path / "out").keys()


def test_a_resumed_run_leaves_what_another_one_recorded(tmp_path: Path) -> None:
    algorithm = make_ppo(tmp_path / "out").build()
    algorithm.train()
    path = algorithm.save(tmp_path / "checkpoint")
    algorithm.stop()
    train(make_ppo(tmp_path / "out"), 1)
    both = join(tmp_path / "out")
    restored = Algorithm.from_checkpoint(path)
    restored.train()
    restored.stop()
    after = join(tmp_path / "out")
    assert both.keys() < after.keys()
    others = [name for name in both if name.count("-") == 4]  # PPO-5-1-<environment>-<number>
    assert len(others) >= 4
    check_same({name: both[name] for name in others}, {name: after[name] for name in others})


def check_motion(folder: Path) -> int:
    """Check that each cart moves by its speed from row to row; return the number of episodes."""
    episodes = join(folder)
    for name, rows in episodes.items():
        position, speed = rows["obs"][:, 0], rows["obs"][:, 1]
        moved = position[:-1] + 0.02 * speed[:-1]
        np.testing.assert_allclose(position[1:], moved, atol=1e-5, err_msg=name)
    return len(episodes)


@pytest.mark.parametrize("placement", ["in_graph", "host"])
def test_a_run_that_goes_back_to_a_state_without_a_recording_leaves_its_episodes(
    tmp_path: Path, placement: str
) -> None:
    plain = make_ppo().env_runners(placement=placement).build()
    plain.train()
    path = plain.save(tmp_path / "checkpoint")
    plain.stop()
    recorded = make_ppo(tmp_path / "out", seed=6).env_runners(placement=placement).build()
    recorded.train()
    recorded.restore(path)
    recorded.train()
    recorded.stop()
    assert check_motion(tmp_path / "out") > 8


def test_fragments_of_an_environment_are_added_in_order_of_time() -> None:
    def make(env: int, step: int) -> Any:
        record = types.SimpleNamespace(env_step=np.asarray([[step], [step + 1]], np.uint32))
        return types.SimpleNamespace(env_index=np.asarray([env]), record=record)

    given = [(1, 6), (0, 2), (1, 4), (2, 8), (1, 2)]
    ordered = sort_by_time([make(*one) for one in given])
    found = [(int(f.env_index[0]), int(f.record.env_step[0, 0])) for f in ordered]
    assert found == [(1, 2), (0, 2), (1, 4), (2, 8), (1, 6)]


def test_any_error_of_the_thread_ends_the_run_and_not_the_files(tmp_path: Path) -> None:
    class Converter:
        def add(self, number: int) -> list[EpisodePart]:
            if number:
                raise MemoryError
            return [make_part(2)]

        def flush(self) -> list[EpisodePart]:
            return []

        get_state = set_state = dict

    writer = EpisodeWriter(tmp_path, BOX, DISCRETE)
    thread = WriterThread(writer, cast("Any", Converter()))
    thread.put((0,))
    for _ in range(10):  # more than the queue has room for
        with contextlib.suppress(MemoryError):
            thread.put((1,))
    with pytest.raises(MemoryError):
        thread.get_state()
    thread.close()
    assert [len(part) for part in open_data(tmp_path).iter_parts()] == [2]
    EpisodeWriter(tmp_path, BOX, DISCRETE).close()


def test_waiting_is_timed(tmp_path: Path) -> None:
    result = make_ppo(tmp_path / "out").build().train()
    assert result["timers"]["output_s"] >= 0.0


# --- wrong input ---


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"seeds": [0, 1]}, "lanes of a sweep are not recorded"),
        ({"input_": "data"}, "nothing is sampled"),
        ({"num_learners": 1}, "set num_learners=0"),
    ],
)
def test_runs_that_cannot_be_recorded_are_refused(
    tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    config = make_ppo(tmp_path / "out").update_from_dict(settings)
    with pytest.raises(ConfigError, match=said):
        config.validate()


def test_settings_of_a_recording_without_one_are_refused() -> None:
    config = make_ppo().offline_data(output_max_file_size=1000)
    with pytest.raises(ConfigError, match=r"'output_max_file_size' \(got 1000\) has no effect"):
        config.validate()


def test_a_folder_of_other_files_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "letter.txt").write_text("Dear reader")
    with pytest.raises(DataError, match=r"'letter.txt' among them"):
        make_ppo(tmp_path / "out").build()


def test_data_of_other_distributions_are_not_mixed(tmp_path: Path) -> None:
    extras = {"action_logp": np.zeros(2, np.float32), "action_dist_inputs": np.zeros((2, 3))}
    env = gymnasium.make("CartPole-v1")
    spaces = env.observation_space, env.action_space
    part = make_part(2, observation_space=spaces[0], action_space=spaces[1], extras=extras)
    with EpisodeWriter(tmp_path / "out", *spaces, actions_are_normalized=True) as writer:
        writer.add_parts([dataclasses.replace(part, obs=np.zeros((3, 4), np.float32))])
    with pytest.raises(DataError, match=r"action_dist_inputs has the shape \(3,\) in the data"):
        make_ppo(tmp_path / "out").build()
    with (
        make_ppo().build() as algorithm,
        pytest.raises(DataError, match=r"action_dist_inputs has the shape \(3,\) in the data"),
    ):
        algorithm.record(tmp_path / "out", num_steps=8)


def test_data_of_another_environment_are_not_mixed(tmp_path: Path) -> None:
    train(make_ppo(tmp_path / "out"), 1)
    config = make_ppo(tmp_path / "out").environment("Acrobot-v1")
    with pytest.raises(DataError, match="has other data"):
        config.build()
