"""Files of other libraries, written by these libraries themselves (see `data/make_*.py`)."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import EpisodeWriter
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import DataError
from jaxrl.offline.held_out import hash_episode
from jaxrl.offline.recorded import RecordedData, open_data
from jaxrl.offline.stitch import merge_parts
from tests.offline.parts import RLLIB_ROWS, make_part

DATA = Path(__file__).parent / "data"
CARTPOLE = gymnasium.make("CartPole-v1")
OBS, ACTION = CARTPOLE.observation_space, CARTPOLE.action_space
BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)


def open_cartpole(name: str, **settings: Any) -> RecordedData:
    return open_data(str(DATA / name), observation_space=OBS, action_space=ACTION, **settings)


def open_plain(path: Path, **settings: Any) -> RecordedData:
    return open_data(str(path), observation_space=BOX, action_space=spaces.Discrete(3), **settings)


def read_error(path: Path, **settings: Any) -> str:
    with pytest.raises(DataError) as caught:
        list(open_plain(path, **settings).iter_parts())
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("rllib_columns", "rllib_columns"),
        ("rllib_packed", "rllib_columns"),
        ("rllib_episodes", "rllib_episodes"),
    ],
)
def test_rllibs_files_have_the_episodes_that_it_wrote(name: str, kind: str) -> None:
    expected = json.loads((DATA / name / "metadata.json").read_text())
    data = open_cartpole(f"{name}/0.parquet")
    assert data.kind == kind
    assert data.has_past
    parts = {part.episode_id: part for part in data.iter_parts()}
    assert len(parts) == len(expected)
    for episode in expected:
        part = parts[episode["id"]]
        np.testing.assert_allclose(part.obs, np.float32(episode["obs"]), rtol=1e-6)
        np.testing.assert_array_equal(part.action, episode["actions"])
        np.testing.assert_array_equal(part.reward, episode["rewards"])
        assert part.terminated == episode["terminated"]
        assert part.truncated == (episode["truncated"] and not episode["terminated"])


def play_alternating() -> list[EpisodePart]:
    """Return the episodes that `make_rllib.py` writes as lines of JSON."""
    parts: list[EpisodePart] = []
    number = 0
    for seed in range(2):
        obs, _ = CARTPOLE.reset(seed=seed)
        seen, actions = [obs], []
        ended = terminated = False
        while not ended:
            actions.append(number % 2)
            number += 1
            obs, _, terminated, truncated, _ = CARTPOLE.step(actions[-1])
            seen.append(obs)
            ended = terminated or truncated
        parts.append(
            EpisodePart(
                episode_id=str(seed),
                t_started=0,
                obs=np.asarray(seen),
                action=np.asarray(actions),
                reward=np.ones(len(actions), np.float32),
                extras={},
                version=np.zeros(len(actions), np.int64),
                terminated=terminated,
            )
        )
    return parts


@pytest.mark.parametrize("name", ["rllib_json.json", "rllib_json_packed.json"])
def test_lines_of_json_have_the_episodes(name: str) -> None:
    data = open_cartpole(name)
    assert data.kind == "rllib_json"
    for part, played in zip(data.iter_parts(), play_alternating(), strict=True):
        np.testing.assert_allclose(part.obs, played.obs, rtol=1e-6)
        np.testing.assert_array_equal(part.action, played.action)
        assert (part.terminated, part.truncated) == (True, False)


def test_minaris_datasets_say_their_spaces() -> None:
    data = open_data(str(DATA / "minari_cartpole"))
    assert data.kind == "minari"
    assert (data.observation_space, data.action_space) == (OBS, ACTION)
    assert data.origin.env == "CartPole-v1"
    parts = list(data.iter_parts())
    assert len(parts) == 2
    for part in parts:
        assert len(part.obs) == len(part) + 1
        assert part.terminated
        assert abs(part.obs[-1, 2]) > 0.2 or abs(part.obs[-1, 0]) > 2.4


def test_nested_observations_keep_their_parts() -> None:
    (part,) = open_data(str(DATA / "minari_nested")).iter_parts()
    assert part.obs["camera"][:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(part.obs["speed"][:, 0], np.arange(4) / 8)
    assert part.reward.tolist() == [1.0, 2.0, 3.0]
    assert part.truncated
    assert len(part.action) == 2


# --- files made here ---


def write_npz(path: Path, **changes: Any) -> Path:
    """Write two episodes of two steps as D4RL's arrays."""
    arrays = {
        "observations": np.arange(8, dtype=np.float32).reshape(4, 2),
        "actions": np.asarray([0, 1, 2, 0]),
        "rewards": np.arange(4.0),
        "terminals": np.asarray([False, True, False, False]),
        "timeouts": np.asarray([False, False, False, True]),
        "next_observations": 100 + np.arange(8, dtype=np.float32).reshape(4, 2),
    }
    arrays["next_observations"][[0, 2]] = arrays["observations"][[1, 3]]
    arrays |= changes
    np.savez(path, **{name: x for name, x in arrays.items() if x is not None})
    return path


def test_arrays_end_at_terminals_and_timeouts(tmp_path: Path) -> None:
    data = open_plain(write_npz(tmp_path / "a.npz"))
    assert data.kind == "d4rl"
    first, second = data.iter_parts()
    assert (first.terminated, first.truncated) == (True, False)
    assert (second.terminated, second.truncated) == (False, True)
    assert first.obs[:, 0].tolist() == [0.0, 2.0, 102.0]
    assert second.obs[:, 0].tolist() == [4.0, 6.0, 106.0]


def test_hdf5_of_arrays_is_the_same(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with (
        np.load(write_npz(tmp_path / "a.npz")) as arrays,
        h5py.File(tmp_path / "a.h5", "w") as file,
    ):
        for name in arrays:
            file[name] = arrays[name]
    one, other = (list(open_plain(tmp_path / name).iter_parts()) for name in ("a.npz", "a.h5"))
    for part, same in zip(one, other, strict=True):
        np.testing.assert_array_equal(part.obs, same.obs)
        np.testing.assert_array_equal(part.action, same.action)


def test_a_final_observation_that_is_missing_is_refused_unless_ignored(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", next_observations=None)
    assert "the observation after t=1 is not recorded" in read_error(path)
    parts = list(open_plain(path, ignore_final_observation=True).iter_parts())
    assert [len(part) for part in parts] == [2, 2]


def write_columns(path: Path, **changes: Any) -> Path:
    """Write rows of RLlib's columns."""
    pa, pq = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    columns = {**RLLIB_ROWS, **changes}
    pq.write_table(pa.table({k: v for k, v in columns.items() if v is not None}), path)
    return path


def test_rows_without_episodes_are_single_steps(tmp_path: Path) -> None:
    data = open_plain(write_columns(tmp_path / "a.parquet", eps_id=None, t=None))
    assert not data.has_past
    parts = list(data.iter_parts())
    assert [len(part) for part in parts] == [1, 1, 1]
    assert [part.is_last for part in parts] == [False, True, True]


@pytest.mark.parametrize("has_next", [True, False])
def test_single_steps_are_checked_in_blocks(tmp_path: Path, has_next: bool) -> None:
    number = 1500  # more than a block
    obs = np.arange(2.0 * number).reshape(number, 2)
    columns = {
        "obs": list(obs),
        "new_obs": list(obs + 0.5) if has_next else None,
        "actions": np.arange(number) % 3,
        "rewards": np.arange(number) / 2,
        "terminateds": np.arange(number) % 2 == 1,
        "truncateds": np.arange(number) % 4 == 0,
        **dict.fromkeys(("eps_id", "t")),
    }
    path = write_columns(tmp_path / "a.parquet", **columns)
    parts = list(open_plain(path, ignore_final_observation=not has_next).iter_parts())
    assert len(parts) == len({part.episode_id for part in parts}) == number
    for i in (0, 1, 1023, 1024, number - 1):
        part = parts[i]
        final = obs[i] + (0.5 if has_next else 0.0)
        np.testing.assert_array_equal(part.obs, np.asarray([obs[i], final]))
        assert (part.obs.dtype, part.action.dtype) == (np.float32, np.int32)
        assert (part.action.tolist(), part.reward.tolist()) == ([i % 3], [i / 2])
        assert (part.terminated, part.truncated) == (i % 2 == 1, i % 4 == 0)
    if not has_next:
        columns["terminateds"] = np.arange(number) != 7
        path = write_columns(tmp_path / "b.parquet", **columns)
        assert "episode 'row-7': the observation after t=0 is not recorded" in read_error(path)
        return
    obs[1400, 1] = np.nan
    path = write_columns(tmp_path / "b.parquet", **{**columns, "obs": list(obs)})
    assert "b.parquet, episode 'row-1400': obs is nan at t=0" in read_error(path)


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    path = write_columns(tmp_path / "a.parquet", obs=None, o=[[0.0, 0.0], [1.0, 1.0], [5.0, 5.0]])
    assert "has no column 'obs'" in read_error(path)
    first, second = open_plain(path, schema={"obs": "o"}).iter_parts()
    assert first.obs[:, 0].tolist() == [0.0, 1.0, 2.0]
    assert second.obs[:, 0].tolist() == [5.0, 6.0]
    assert "has no column 'p'" in read_error(path, schema={"obs": "p"})
    assert "Did you mean 'obs'" in read_error(path, schema={"obss": "o"})


def test_a_time_step_that_is_missing_is_refused(tmp_path: Path) -> None:
    path = write_columns(
        tmp_path / "a.parquet", eps_id=["a"] * 3, t=[0, 1, 5], terminateds=[False] * 3
    )
    with pytest.raises(DataError, match=r"misses|step"):
        list(open_plain(path).iter_parts())


SKIPPED = {
    "eps_id": ["a"] * 4,
    "obs": [[2.0 * i, 0.0] for i in range(4)],
    "new_obs": [[2.0 * i + 1.0, 0.0] for i in range(4)],
    "actions": [0, 1, 2, 0],
    "rewards": [0.0] * 4,
    "terminateds": [False, False, False, True],
}
"""Every second step of an episode of eight."""


@pytest.mark.parametrize("kind", ["columns", "json", "arrays"])
def test_a_row_keeps_its_successor_where_the_next_row_is_another(tmp_path: Path, kind: str) -> None:
    if kind == "columns":
        path = write_columns(tmp_path / "a.parquet", **SKIPPED, t=None, truncateds=None)
    elif kind == "json":  # in lines of two rows, which are read one after the other
        path = tmp_path / "a.json"
        lines = [{name: x[i : i + 2] for name, x in SKIPPED.items()} for i in (0, 2)]
        path.write_text("\n".join(json.dumps({"type": "SampleBatch", **x}) for x in lines))
    else:
        names = {"obs": "observations", "new_obs": "next_observations", "terminateds": "terminals"}
        arrays = {array: np.asarray(SKIPPED[name]) for name, array in names.items()}
        path = write_npz(tmp_path / "a.npz", **arrays, rewards=[0.0] * 4, timeouts=None)
    parts = list(merge_parts(open_plain(path).iter_parts()))
    assert [part.obs[:, 0].tolist() for part in parts] == [[2.0 * i, 2.0 * i + 1] for i in range(4)]
    if kind != "arrays":  # an id says that these are of one episode
        assert [part.t_started for part in parts] == [0, 1, 2, 3]
        assert len({hash_episode(part.episode_id) for part in parts}) == 1


def test_observations_of_different_types_are_compared_as_in_a_program(tmp_path: Path) -> None:
    lines = (
        {"obs": [[0.0, 0.1]], "new_obs": [[2, 3]], "terminateds": [False]},
        {"obs": [[2.0, 3.0]], "new_obs": [[4.0, 0.1]], "terminateds": [True]},
    )
    path = tmp_path / "a.json"
    same = {"type": "SampleBatch", "eps_id": ["a"], "actions": [1], "rewards": [1.0]}
    path.write_text("\n".join(json.dumps({**same, **line}) for line in lines))
    (part,) = merge_parts(open_plain(path).iter_parts())
    assert len(part) == 2
    assert part.terminated


@pytest.mark.parametrize("kind", ["columns", "arrays", "own"])
def test_ids_that_begin_again_in_another_folder_are_other_episodes(
    tmp_path: Path, kind: str
) -> None:
    unfinished = {"t": None, "terminateds": [False] * 3, "truncateds": [False] * 3}
    action = spaces.Discrete(3)
    for folder in (tmp_path / "x", tmp_path / "y"):
        folder.mkdir()
        if kind == "columns":
            write_columns(folder / "a.parquet", **unfinished)
        elif kind == "arrays":
            write_npz(folder / "a.npz")
        else:
            with EpisodeWriter(folder, BOX, action) as writer:
                for changes in ({"episode_id": "a"}, {"episode_id": "b", "is_cut": True}):
                    part = make_part(2, observation_space=BOX, action_space=action, **changes)
                    writer.add_parts([part])
    data = open_data([tmp_path / "x", tmp_path / "y"], observation_space=BOX, action_space=action)
    parts = list(data.iter_parts())
    assert [part.t_started for part in parts] == [0] * 4
    assert len({part.episode_id for part in parts}) == 4
    assert len({hash_episode(part.episode_id) for part in parts}) == 2


def test_old_flags_are_terminations(tmp_path: Path) -> None:
    path = write_columns(
        tmp_path / "a.parquet", terminateds=None, truncateds=None, dones=[False, True, True]
    )
    assert [part.terminated for part in open_plain(path).iter_parts()] == [True, True]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rewards": [1.0, np.nan, 3.0]}, "t=1"),
        ({"obs": [[0.0, 0.0], [np.inf, 1.0], [5.0, 5.0]], "new_obs": None}, "obs is inf at t=1"),
        ({"actions": [0, 7, 2]}, "7"),
        ({"obs": [[0.0], [1.0], [5.0]]}, "has rows of shape"),
        ({"rewards": ["x", "y", "z"]}, "rewards"),
    ],
)
def test_wrong_values_are_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    assert said in read_error(write_columns(tmp_path / "a.parquet", **changes))


# --- hostile files ---


class Bomb:
    """Object whose pickle would run code."""

    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('a file ran code')",)


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", rewards=np.asarray([Bomb()] * 4, object))
    assert "a.npz" in read_error(path)


def test_packed_columns_are_not_unpickled(tmp_path: Path) -> None:
    import base64
    import pickle

    frame = pytest.importorskip("lz4.frame")
    text = base64.b64encode(frame.compress(pickle.dumps(Bomb()))).decode()
    path = write_columns(tmp_path / "a.parquet", obs=[text] * 3)
    assert "packs something else than an array of numbers" in read_error(path)


def test_episodes_with_objects_are_refused(tmp_path: Path) -> None:
    msgpack, pa, pq = (
        pytest.importorskip(name) for name in ("msgpack", "pyarrow", "pyarrow.parquet")
    )
    state = {"observations": {b"nd": True, b"type": "|O", b"kind": b"O", b"data": b"x"}}
    pq.write_table(pa.table({"item": [msgpack.packb(state)]}), tmp_path / "a.parquet")
    assert "an array of Python objects, which would be a pickle" in read_error(
        tmp_path / "a.parquet"
    )


def test_hdf5_of_objects_and_links_is_refused(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    for name, make in (
        ("texts", lambda file: file.create_dataset("rewards", data=[b"a", b"b"])),
        ("links", lambda file: file.__setitem__("rewards", h5py.ExternalLink("other.h5", "/x"))),
    ):
        path = tmp_path / f"{name}.h5"
        with h5py.File(path, "w") as file:
            file["observations"], file["actions"] = np.zeros((2, 2)), np.zeros(2, np.int64)
            file["terminals"] = np.zeros(2, bool)
            make(file)
        assert path.name in read_error(path)


def test_declared_sizes_are_checked_before_anything_is_read(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "big.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("observations", (2**40, 2), np.float32, chunks=(1, 2))
        file["actions"], file["rewards"] = np.zeros(2, np.int64), np.zeros(2)
        file["terminals"] = np.zeros(2, bool)
    assert "declares 8796093022208 bytes" in read_error(path)
