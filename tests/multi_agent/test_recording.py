"""Recording of several agents: each agent's own steps, in a folder for each module."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl import Algorithm
from jaxrl.algorithms.mappo import MAPPOConfig
from jaxrl.algorithms.marwil import BCConfig
from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.algorithms.qmix import QMIXConfig
from jaxrl.core.types import Rollout
from jaxrl.envs.multi.host_env import MultiAgentEnv
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import ConfigError, DataError
from jaxrl.offline.recorded import open_data
from jaxrl.offline.stitch import AgentRollout, AgentStitcher
from jaxrl.offline.writer import EpisodeWriter
from jaxrl.runners.recording import split_rollout
from jaxrl.training.episode_stats import EpisodeRecord
from jaxrl.training.multi_rollout import MultiRollout
from tests.multi_agent.agent_envs import Targets, Torture
from tests.multi_agent.host_envs import Streams
from tests.multi_agent.test_league import make_config as make_league_config
from tests.multi_agent.test_training import make_config
from tests.offline.parts import BOX, DISCRETE, make_part

MAPPING = {"a": "p0", "b": "p1", "c": "p0"}
AGENTS = ("a", "b", "c")
SMALL = {"fcnet_hiddens": [4]}


def make(output: Path | None = None, env: Any = Torture, **settings: Any) -> Any:
    config = make_config(env=env, **{"mapping": MAPPING, **settings})
    config.env_runners(num_envs_per_env_runner=4)
    config.training(train_batch_size=128, minibatch_size=64, num_epochs=1)
    config.rl_module(model_config=SMALL)
    return config if output is None else config.offline_data(output=str(output))


def train(config: Any, times: int = 2) -> Algorithm:
    algorithm = config.build()
    for _ in range(times):
        algorithm.train()
    algorithm.stop()
    return algorithm


def read(folder: Path) -> dict[str, list[EpisodePart]]:
    """Return the parts of each episode in a module's folder."""
    found: dict[str, list[EpisodePart]] = {}
    for part in open_data(folder).iter_parts():
        found.setdefault(part.episode_id, []).append(part)
    return found


def assert_same_weights(one: Algorithm, other: Algorithm) -> None:
    jax.tree.map(np.testing.assert_array_equal, one.get_weights(), other.get_weights())


def check_torture(output: Path, lifetime: dict[str, int], least: int = 10) -> None:
    """Check what each row says about where it is from."""
    counts = dict.fromkeys(AGENTS, 0)
    together: dict[str, set[float]] = {}
    ends = []
    for module in ("p0", "p1"):
        data = open_data(output / module)
        assert data.origin.module_id == module
        assert data.has_density
        for parts in read(output / module).values():
            for part in parts:
                assert part.agent_id is not None
                assert part.multi_agent_episode_id is not None
                assert MAPPING[part.agent_id] == part.module_id == module
                episode, agent, time = np.asarray(part.obs).T
                assert set(agent) == {AGENTS.index(part.agent_id)}
                assert len(set(episode)) == 1
                together.setdefault(part.multi_agent_episode_id, set()).add(episode[0])
                assert (np.diff(time) > 0).all()  # own time, up to the final observation
                clock = np.arange(time[0], time[-1])
                paid = (1.0 + AGENTS.index(part.agent_id)) * 0.1 + np.sin(clock)
                assert part.reward.sum() == pytest.approx(paid.sum(), abs=1e-3)
                counts[part.agent_id] += len(part)
            ends.append((parts[-1].terminated, parts[-1].truncated))
    assert counts == lifetime
    assert all(len(numbers) == 1 for numbers in together.values())
    assert len({*map(min, together.values())}) == len(together) > least
    assert {(True, False), (False, True)} <= set(ends)


def join(output: Path) -> dict[str, dict[str, np.ndarray]]:
    """Return the rows of each episode of all modules, however they are divided into parts."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for module in ("p0", "p1"):
        for name, parts in read(output / module).items():
            found[name] = {
                "obs": np.concatenate([*(p.obs[:-1] for p in parts), parts[-1].obs[-1:]]),
                "action": np.concatenate([p.action for p in parts]),
                "reward": np.concatenate([p.reward for p in parts]),
                "version": np.concatenate([p.version for p in parts]),
                "end": np.asarray([parts[-1].terminated, parts[-1].truncated]),
            }
    return found


@dataclasses.dataclass
class Saved:
    """A run that was recorded for two iterations, and its checkpoint after one."""

    algorithm: Algorithm
    output: Path
    checkpoint: Path


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    folder = tmp_path_factory.mktemp("saved")
    with make(folder / "out").build() as algorithm:
        algorithm.train()
        path = algorithm.save(folder / "checkpoint")
        algorithm.train()
    return Saved(algorithm, folder / "out", Path(str(path)))


def test_rows_are_those_of_each_agent_and_training_is_the_same(saved: Saved) -> None:
    plain = train(make())
    assert_same_weights(plain, saved.algorithm)
    runners = plain.last_result["env_runners"]
    check_torture(saved.output, runners["num_agent_steps_sampled_lifetime"])
    ended = sum(
        part.terminated or part.truncated
        for module in ("p0", "p1")
        for parts in read(saved.output / module).values()
        for part in parts
    )
    assert ended > 20


def test_a_resumed_run_records_as_if_it_had_not_stopped(saved: Saved, tmp_path: Path) -> None:
    output, checkpoint = saved.output, saved.checkpoint
    whole = join(output)
    with Algorithm.from_checkpoint(checkpoint) as restored:
        data = restored.record(tmp_path / "played", num_steps=64, num_envs=4, seed=1)
        restored.train()
        assert_same_weights(restored, saved.algorithm)
    again = join(output)
    assert whole.keys() == again.keys()
    for name, rows in whole.items():
        for key, value in rows.items():
            np.testing.assert_array_equal(value, again[name][key], err_msg=f"{name} {key}")
    assert isinstance(data, dict)
    played = {m: own.counts.num_steps for m, own in data.items() if own.counts is not None}
    assert min(played.values()) > 20
    check_torture(tmp_path / "played", count_rows(tmp_path / "played"), least=4)


def count_rows(output: Path) -> dict[str, int]:
    counts = dict.fromkeys(AGENTS, 0)
    for module in ("p0", "p1"):
        for part in open_data(output / module).iter_parts():
            counts[str(part.agent_id)] += len(part)
    return counts


def test_a_module_is_learned_from_and_all_of_them_are_not_one_module(saved: Saved) -> None:
    output = saved.output
    config = BCConfig().offline_data(input_=str(output / "p0"))
    config.training(train_batch_size=32).rl_module(model_config=SMALL)
    config.offline_data(num_updates_per_iteration=1).debugging(loggers=[])
    with config.build() as algorithm:
        assert np.isfinite(algorithm.train()["learners"]["default_policy"]["total_loss"])
    with pytest.raises(
        DataError, match=r"2 modules, p0, p1: give the folder of one, such as .*p0'"
    ):
        open_data(output)
    both = open_data([output / "p0", output / "p1"])
    assert both.counts is not None
    assert both.counts.num_steps == sum(count_rows(output).values())
    assert both.origin.module_id is None


def test_a_folder_of_other_data_is_refused(saved: Saved) -> None:
    output = saved.output
    with pytest.raises(DataError, match=r"has data of a single agent"):
        make(output / "p0").build()
    single = PPOConfig().environment("CartPole-v1").offline_data(output=str(output))
    with pytest.raises(DataError, match=r"record into an empty or a new folder"):
        single.build()
    spaces = open_data(output / "p0").observation_space, open_data(output / "p0").action_space
    for module, said in (("p1", "the module 'p1'"), (None, "a single agent")):
        with pytest.raises(DataError, match=rf"of the module 'p0', not of {said}"):
            EpisodeWriter(output / "p0", *spaces, module_id=module, actions_are_normalized=True)


@pytest.mark.parametrize("file_format", ["parquet", "npz"])
def test_files_say_whose_a_part_is(tmp_path: Path, file_format: str) -> None:
    writer = EpisodeWriter(tmp_path, BOX, DISCRETE, module_id="p0", file_format=file_format)
    own = {"agent_id": "a", "module_id": "p0", "multi_agent_episode_id": "e"}
    parts = [dataclasses.replace(make_part(2), **own), make_part(2, episode_id="other")]
    with writer:
        writer.add_parts(parts)
        with pytest.raises(
            DataError, match=r"of the module 'p9', and the writer of module_id='p0'"
        ):
            writer.add_parts([dataclasses.replace(make_part(2), module_id="p9")])
    found = list(open_data(tmp_path).iter_parts())
    assert [part.agent_id for part in found] == ["a", None]
    assert [part.multi_agent_episode_id for part in found] == ["e", None]
    assert found[0].module_id == "p0"


def test_an_episode_whose_last_step_failed_is_cut() -> None:
    """Steps 0 to 3 complete rows but 1, which failed; packed, row 0 looks truncated."""
    flags = np.asarray([[True], [False], [True], [True]])
    packed = np.asarray([[True], [True], [True], [False]])
    numbers = np.arange(4, dtype=np.float32)[:, None]
    no = np.zeros_like(packed)
    make_rows: Any = Rollout
    rollout = make_rows(
        obs=numbers,
        action=numbers,
        reward=numbers,
        terminated=no,
        truncated=np.asarray([[True], [False], [True], [False]]),
        final_obs=numbers + 1,
        is_first=np.asarray([[True], [True], [False], [False]]),
        mask=packed,
        extras={},
    )
    rows = AgentRollout(
        rollout=rollout,
        completed=flags,
        cells=np.asarray([[0, 1]]),
        env_ended=np.asarray([[False], [True], [False], [True]]),
        agent_ended=np.asarray([False, False, False, True])[:, None, None].repeat(2, 2),
    )
    stitcher = AgentStitcher("run", "p0", ("a", "b"))
    first, second = stitcher.add(rows, np.asarray([7]))
    assert (first.is_cut, first.truncated, len(first)) == (True, False, 1)
    assert (second.is_cut, second.truncated, len(second)) == (False, True, 2)
    assert [p.episode_id for p in (first, second)] == ["run-7-0-b-0", "run-7-1-b-1"]
    assert second.agent_id == "b"


class Failing(MultiAgentEnv):
    """The same, whose steps raise at times, and whose state cannot be saved."""

    possible_agents = Streams.possible_agents
    observation_spaces, action_spaces = Streams.observation_spaces, Streams.action_spaces

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self.streams = Streams(config)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        return self.streams.reset(seed=seed, options=options)

    def step(self, action_dict: dict[Any, Any]) -> Any:
        inner = self.streams
        if inner.number > 1 and np.random.default_rng([inner.number, inner.time]).random() < 0.1:
            raise RuntimeError("the simulator is gone")
        return inner.step(action_dict)


def find_episodes(output: Path) -> dict[str, set[tuple[float, float]]]:
    """Return the seeds and numbers of the episodes of `Streams` by the id of all agents' episode."""
    found: dict[str, set[tuple[float, float]]] = {}
    for module in ("p0", "p1"):
        for part in open_data(output / module).iter_parts():
            for origin, number, *_ in np.asarray(part.obs):
                found.setdefault(str(part.multi_agent_episode_id), set()).add((origin, number))
    return found


def test_a_step_that_raised_ends_the_episode() -> None:
    make_record: Any = EpisodeRecord
    make_rollout: Any = MultiRollout
    no = np.zeros((3, 1), np.bool_)
    numbers = np.zeros((3, 1), np.int32)
    record = make_record(
        ended=no, episode_return=numbers, episode_length=numbers, env_step=numbers, fault=numbers
    )
    agents = jax.tree.map(lambda leaf: leaf[..., None], record)
    rows: Any = Rollout
    own = rows(
        obs=numbers,
        action=numbers,
        reward=numbers,
        terminated=no,
        truncated=no,
        final_obs=numbers,
        is_first=no,
        mask=~no,
        extras={},
    )
    rollout = make_rollout(
        rollouts={"p0": own},
        record=record,
        agents=agents,
        mask=np.asarray([[True], [False], [True]]),
        completed={"p0": ~no},
    )
    cells: Any = SimpleNamespace(get_cells=lambda *_: np.zeros((1, 2), np.int64))
    found = split_rollout(rollout, cells)["p0"]
    assert found.env_ended[:, 0].tolist() == [False, True, False]


@pytest.mark.slow
@pytest.mark.parametrize("env", [Failing, Streams])
def test_episodes_of_python_environments_have_ids_of_their_own(tmp_path: Path, env: Any) -> None:
    config = make(tmp_path / "out", env=env).environment(disable_env_checking=True)
    config.fault_tolerance(restart_failed_sub_environments=env is Failing)
    with config.build() as algorithm:
        algorithm.train()
        checkpoint = algorithm.save(tmp_path / "checkpoint")
        if env is Streams:
            algorithm.train()
    whole = find_episodes(tmp_path / "out")
    with Algorithm.from_checkpoint(checkpoint, env=env) as restored:
        restored.train()
    episodes = find_episodes(tmp_path / "out")
    assert len(episodes) > 10
    assert all(len(own) == 1 for own in episodes.values())
    if env is Streams:
        assert episodes == whole  # they go on, with their ids


NO, YES = np.zeros((1, 1), np.bool_), np.ones((1, 1), np.bool_)


def make_row(number: int, agent: int, *, is_first: bool, acts: bool = True, **more: Any) -> Any:
    """A row of an agent in one environment."""
    make_rows: Any = Rollout
    value, mask = np.full((1, 1), number, np.float32), YES if acts else NO
    rollout = make_rows(
        obs=value,
        action=value,
        reward=value,
        terminated=NO,
        truncated=NO,
        final_obs=value,
        is_first=YES if is_first else NO,
        mask=mask,
        extras={},
    )
    return AgentRollout(
        rollout=rollout,
        completed=mask,
        cells=np.asarray([[0, agent]]),
        env_ended=NO,
        agent_ended=NO[:, :, None].repeat(2, 2),
        **more,
    )


def test_episodes_of_which_rows_were_lost_are_cut() -> None:
    """Environment 1 has a row in each call, and one is lost before the third."""
    stitcher, parts = AgentStitcher("run", "p0", ("a", "b")), []
    for step, is_first in ((4, True), (5, False), (7, False), (8, True), (9, False)):
        row = make_row(step, 0, is_first=is_first, env_step=np.asarray([step], np.uint32))
        parts += stitcher.add(row, np.asarray([1]))
    parts += stitcher.leave_episodes()
    found = [(part.multi_agent_episode_id, part.action.tolist(), part.is_cut) for part in parts]
    assert found == [("run-1-0", [4.0, 5.0], True), ("run-1-1", [8.0, 9.0], True)]
    assert stitcher.num_dropped == 1


def test_episodes_that_were_left_have_other_ids_than_the_next_ones() -> None:
    """Environment 1 has a row in each call, and begins anew with the third one."""
    stitchers = {m: AgentStitcher("run", m, ("a", "b")) for m in ("p0", "p1")}
    ids: dict[str, list[str | None]] = {m: [] for m in stitchers}
    for call, (acts, begins) in enumerate(
        [("p0", True), ("p0", False), ("p0", True), ("p1", False)]
    ):
        for i, (m, stitcher) in enumerate(stitchers.items()):
            rows = make_row(call, i, is_first=call != 1, acts=m == acts, begins_episodes=begins)
            parts = [*stitcher.add(rows, np.asarray([1])), *stitcher.flush()]
            ids[m] += [part.multi_agent_episode_id for part in parts]
            state = stitcher.get_state()
            stitchers[m] = AgentStitcher("run", m, ("a", "b"))
            stitchers[m].set_state(state)
    assert ids == {"p0": ["run-1-0", "run-1-0", "run-1-1"], "p1": ["run-1-1"]}


@pytest.mark.slow
def test_python_environments_are_recorded_and_training_is_the_same(tmp_path: Path) -> None:
    plain, recorded = (train(make(output, env=Streams)) for output in (None, tmp_path / "out"))
    assert_same_weights(plain, recorded)
    sampled = plain.last_result["env_runners"]["num_agent_steps_sampled_lifetime"]
    assert count_rows(tmp_path / "out") == sampled
    ends = 0
    for module in ("p0", "p1"):
        for parts in read(tmp_path / "out" / module).values():
            for part in parts:
                _, number, agent, time = np.asarray(part.obs).T
                assert set(agent) == {AGENTS.index(str(part.agent_id))}
                assert len(set(number)) == 1
                assert (np.diff(time) > 0).all()
            ends += parts[-1].terminated or parts[-1].truncated
    assert ends > 10
    with Algorithm.from_checkpoint(recorded.save(tmp_path / "checkpoint")) as restored:
        data = restored.record(tmp_path / "played", num_steps=32, num_envs=4, explore=False)
    assert isinstance(data, dict)
    assert not any(own.has_density for own in data.values())


@pytest.mark.slow
def test_what_critics_see_is_not_recorded(tmp_path: Path) -> None:
    config = make_config(MAPPOConfig(), mapping={"a": "p0", "b": "p0"}, env=Targets)
    config.training(critic_input="joint").rl_module(model_config=SMALL)
    train(config.multi_agent(observe_agent_id=True).offline_data(output=str(tmp_path / "out")), 1)
    (part, *_) = open_data(tmp_path / "out" / "p0").iter_parts()
    assert part.obs.shape == (len(part) + 1, 2 + 2)  # its own, and who it is


@pytest.mark.slow
def test_devices_record_the_same(tmp_path: Path) -> None:
    for number in (1, 2):
        config = make(tmp_path / str(number)).training(optimizer="sgd", lr=0.0)
        train(config.learners(num_devices=number, num_shards=2), 2)
    one, other = (join(tmp_path / str(number)) for number in (1, 2))
    assert one.keys() == other.keys()
    for name, rows in one.items():
        for key, value in rows.items():
            np.testing.assert_array_equal(value, other[name][key], err_msg=f"{name} {key}")


@pytest.mark.slow
def test_seats_are_recorded_and_opponents_that_are_drawn_are_not(tmp_path: Path) -> None:
    config = make_league_config(league=None).offline_data(output=str(tmp_path / "out"))
    train(config, 2)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["main"]
    lengths = {"a": 0, "b": 0}
    for part in open_data(tmp_path / "out" / "main").iter_parts():
        assert part.agent_id is not None
        lengths[part.agent_id] += len(part)
        env = int(str(part.multi_agent_episode_id).split("-")[2])
        assert part.agent_id == "ab"[env % 2]  # a copy's learner has the same seat in all episodes
    assert lengths == {"a": 80, "b": 80}


# --- wrong input ---


def test_teams_are_refused(tmp_path: Path) -> None:
    config = QMIXConfig().environment(Targets).offline_data(output=str(tmp_path / "out"))
    with pytest.raises(ConfigError, match=r"output=.*a team's steps are those of all its members"):
        config.validate()
