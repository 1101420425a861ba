"""Files whose form is valid and whose values are not, of every format: one sentence each."""

import functools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.assembly.offline import concatenate_sources
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import DataError
from jaxrl.offline.held_out import is_held_out
from jaxrl.offline.recorded import open_data
from tests.offline.damage import (
    BOX,
    DISCRETE,
    FORMATS,
    damage,
    make_arrays,
    make_minari,
    make_own_npz,
    make_rllib_episodes,
    make_rllib_json,
    write_arrays_hdf5,
    write_arrays_npz,
    write_minari,
    write_own_npz,
    write_rllib_episodes,
    write_rllib_json,
)

CANNOT_SAY = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    OSError,
    RuntimeError,
)
"""Errors of libraries that write: what a format cannot say, no file of it says."""
WITH_SPACES = ("own npz", "own Parquet", "manifest", "Minari")


@pytest.fixture(autouse=True)
def no_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no process for each of many files whose form is valid."""
    monkeypatch.setattr("jaxrl.offline.recorded.find_fatal", lambda paths: None)


def check_part(part: EpisodePart) -> None:
    """Check all that programs rely on."""
    length = len(part)
    assert part.reward.dtype == np.float32
    assert np.isfinite(part.reward).all()
    assert type(part.episode_id) is str
    assert type(part.t_started) is int
    assert part.t_started >= 0
    assert not (part.terminated and part.truncated)
    assert part.version.shape == part.reward.shape == (length,)
    for leaf in jax.tree.leaves(part.obs):
        assert len(leaf) == length + 1
        assert leaf.dtype.kind != "f" or np.isfinite(leaf).all()
    for leaf in jax.tree.leaves((part.action, part.extras)):
        assert len(leaf) == length


def read(source: Path, *, has_spaces: bool = False) -> list[EpisodePart]:
    given = {} if has_spaces else {"observation_space": BOX, "action_space": DISCRETE}
    data = open_data(source, max_group_bytes=2**24, **given)
    data.get_fingerprint()
    parts = list(data.iter_parts())
    for part in parts:
        check_part(part)
        is_held_out(part.episode_id, 0.5)
    if parts:
        concatenate_sources([parts])
    return parts


def iter_damaged(
    folder: Path, name: str, number: int, rng: np.random.Generator
) -> Iterator[tuple[Path, Any]]:
    """Folders of damaged files, each until the next one, with what was written."""
    make, write = FORMATS[name]
    (folder / "example").mkdir()
    content = make(folder / "example")
    (folder / "whole").mkdir()
    write(folder / "whole", content)
    assert read(folder / "whole", has_spaces=name in WITH_SPACES)
    for _ in range(number):
        place = folder / "damaged"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        damaged = damage(content, rng)
        try:
            write(place, damaged)
        except CANNOT_SAY:
            continue
        yield place, damaged


def check_damaged(folder: Path, name: str, number: int, seed: int) -> None:
    counts = {True: 0, False: 0}
    for place, damaged in iter_damaged(folder, name, number, np.random.default_rng(seed)):
        try:
            read(place, has_spaces=name in WITH_SPACES)
        except DataError as error:
            sentence = str(error)
            assert sentence.endswith("."), sentence
            assert "\n" not in sentence
            assert len(sentence) < 600, sentence
            counts[True] += 1
        except Exception as error:
            error.add_note(f"{str(damaged)[:2000]}")
            raise
        else:
            counts[False] += 1
    assert counts[True] > number // 3, counts


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_values_are_refused_or_read(tmp_path: Path, name: str) -> None:
    check_damaged(tmp_path, name, 100, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_many_damaged_values_are_refused_or_read(tmp_path: Path, name: str) -> None:
    check_damaged(tmp_path, name, 1000, 1)


# --- single faults ---


def refused(source: Path, said: str, *, has_spaces: bool = False) -> None:
    with pytest.raises(DataError, match=said) as caught:
        read(source, has_spaces=has_spaces)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rewards": np.asarray(["a"] * 6)}, "rewards is <U1 of shape"),
        ({"episode_id": np.asarray([0, 1, 2])}, "episode_id is int64 of shape"),
        ({"t_started": np.asarray([-1, 0, 0])}, "a part starts at t=-1, and time steps count from"),
        ({"t_started": np.asarray([0.5, 0, 0])}, "t_started is float64"),
        ({"terminated": np.asarray(["", "x", ""])}, "terminated is <U1"),
        ({"rewards": np.full(6, 1e300)}, "rewards is inf at t=0, which is not finite"),
        ({"rewards": np.asarray(1.0)}, "no valid lengths"),
        ({"length": np.asarray([2**62, 2**62, 2])}, "no valid lengths"),
    ],
)
def test_arrays_of_own_files(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    content = make_own_npz(tmp_path / "example")
    content["arrays"].update(changes)
    write_own_npz(tmp_path, content)
    refused(tmp_path / "a.npz", said, has_spaces=True)


def test_negative_sizes_do_not_hide_large_ones(tmp_path: Path) -> None:
    import io
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for name, size in (("observations", 2**40), ("actions", -(2**40))):
            text = io.BytesIO()
            header = {"descr": "<f4", "fortran_order": False, "shape": (size,)}
            np.lib.format.write_array_header_1_0(text, header)
            archive.writestr(f"{name}.npy", text.getvalue())
    refused(tmp_path, r"the array 'actions' declares the shape \(-1099511627776,\)")


def make_buffer(encoded: Any) -> dict[str, Any]:
    return {"data": encoded, "lookback": 0, "finalized": True}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rewards": make_buffer({b"nd": True, b"type": "<f4", b"kind": b""})}, "is damaged"),
        ({"rewards": make_buffer({b"nd": False, b"type": "<f4", b"data": b""})}, "is damaged"),
        ({"rewards": make_buffer({b"nd": True, b"type": "(1,", b"data": b""})}, "is damaged"),
        ({"t": float("inf")}, "t must be a whole number of at least 0"),
        ({"t_started": -1}, "t_started must be a whole number of at least 0"),
        ({"is_terminated": "no"}, "is_terminated must be a boolean"),
    ],
)
def test_rllibs_episodes(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    episode = make_rllib_episodes(tmp_path)[0]
    write_rllib_episodes(tmp_path, [{**episode, **changes}])
    refused(tmp_path, said)


@pytest.mark.parametrize(
    ("number", "changes", "said"),
    [
        (0, {"eps_id": 5}, "line 1: eps_id must be texts or numbers"),
        (0, {"eps_id": ["a", [], "b"]}, "eps_id must be texts or numbers"),
        (0, {"eps_id": ["x" * 2**21, "a", "b"]}, "ids of up to 2097152 characters"),
        (1, {"policy_batches": [1]}, "line 2 has batches of 0 policies"),
        (1, {"policy_batches": {"a": 5}}, "line 2 has batches of 0 policies"),
        (0, {"t": [0.5, 1.5, 0]}, "t has the value 0.5, and time steps count from 0"),
        (0, {"terminateds": [0, 2, 0]}, "terminateds has the value 2, and flags are 0 or 1"),
        (2, {"new_obs": None}, "has the column 'new_obs' in some rows and not in others"),
        (2, {"action_logp": None}, "has the column 'action_logp' in some rows and not in others"),
    ],
)
def test_rllibs_lines(tmp_path: Path, number: int, changes: dict[str, Any], said: str) -> None:
    lines = make_rllib_json(tmp_path)
    changed = {**lines[number], **changes}
    lines[number] = {name: value for name, value in changed.items() if value is not None}
    write_rllib_json(tmp_path, lines)
    refused(tmp_path, said)


BOX_DATA = {"type": "Box", "dtype": "float32", "shape": [2], "low": -9.0, "high": 9.0}


@pytest.mark.parametrize(
    "space",
    [
        functools.reduce(lambda x, _: {"type": "Tuple", "subspaces": [x]}, range(320), BOX_DATA),
        {**BOX_DATA, "shape": [10**6, 10**7]},
        {"type": "MultiBinary", "n": [10**6, 10**7]},
        {**BOX_DATA, "dtype": "(1,"},
        {"type": "Discrete", "n": 10**30},
    ],
)
def test_minaris_spaces(tmp_path: Path, space: Any) -> None:
    content = make_minari(tmp_path)
    content["metadata"]["observation_space"] = space
    write_minari(tmp_path, content)
    refused(tmp_path, "observation_space is no space that is read", has_spaces=True)


@pytest.mark.parametrize("name", ["observation_space", "env_spec"])
def test_minaris_texts_are_not_nested_beyond_measure(tmp_path: Path, name: str) -> None:
    write_minari(tmp_path, make_minari(tmp_path))
    metadata = json.loads((tmp_path / "metadata.json").read_text())
    metadata[name] = "[" * 10**5
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    if name == "env_spec":  # nothing but the name of the environment is read of it
        assert open_data(tmp_path).origin.env is None
    else:
        refused(tmp_path, "is no space that is read", has_spaces=True)


def test_links_to_other_files_are_refused_whichever_way_they_lead(tmp_path: Path) -> None:
    import h5py

    (tmp_path / "other").mkdir()
    write_arrays_hdf5(tmp_path / "other", make_arrays(tmp_path))
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["ext"] = h5py.ExternalLink("other/a.hdf5", "/")
        for name in make_arrays(tmp_path):
            file[name] = h5py.SoftLink(f"/ext/{name}")
    refused(tmp_path / "a.hdf5", "is a link to another file, which is not read")


def test_groups_that_hold_themselves_are_refused(tmp_path: Path) -> None:
    import h5py

    write_arrays_hdf5(tmp_path, make_arrays(tmp_path))
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        del file["observations"]
        group = file.create_group("observations")
        for i in range(4):
            group[f"{i}"] = group
    refused(tmp_path, "is nested too deep, or has too many members")


@pytest.mark.parametrize("changes", [{"low": 5.0}, {"shape": [3], "low": -1.0, "high": 1.0}])
def test_headers_whose_columns_are_not_those_of_the_space(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    content = make_own_npz(tmp_path / "example")
    content["header"]["observation_space"].update(changes)
    write_own_npz(tmp_path, content)
    if "shape" in changes:
        refused(tmp_path / "a.npz", "its columns of obs are not those of its space")
    else:
        refused(tmp_path / "a.npz", "observation_space")


# --- shapes, spaces and schemas ---


def test_a_table_of_one_row_is_one_step(tmp_path: Path) -> None:
    lines = make_rllib_json(tmp_path)[:1]
    lines[0] = {k: v[:1] if isinstance(v, list) else v for k, v in lines[0].items()}
    write_rllib_json(tmp_path, lines)
    (part,) = read(tmp_path / "a.json")
    assert part.obs[:, 0].tolist() == [0.0, 1.0]
    write_arrays_npz(tmp_path, {name: x[:1] for name, x in make_arrays(tmp_path).items()})
    (part,) = read(tmp_path / "a.npz")
    assert part.obs[:, 0].tolist() == [0.0, 2.0]


@pytest.mark.parametrize(
    ("shape", "space", "fits"),
    [
        ((4, 3, 2), (4, 3, 2), True),
        ((24,), (4, 3, 2), True),
        ((4, 1, 3, 2), (4, 3, 2), True),
        ((1,), (), True),
        ((), (1,), True),
        ((2, 4, 3), (4, 3, 2), False),
        ((3, 4, 2), (4, 3, 2), False),
        ((12, 2), (4, 3, 2), False),
    ],
)
def test_rows_have_the_shape_of_the_space_or_are_flat(
    tmp_path: Path, shape: tuple[int, ...], space: tuple[int, ...], fits: bool
) -> None:
    arrays = make_arrays(tmp_path)
    obs = np.arange(4 * np.prod(shape), dtype=np.float32).reshape(4, *shape)
    write_arrays_npz(tmp_path, {**arrays, "observations": obs, "next_observations": obs})
    box = spaces.Box(-np.inf, np.inf, space)
    given: dict[str, Any] = {"observation_space": box, "action_space": DISCRETE}
    if fits:
        part = next(open_data(tmp_path, **given).iter_parts())
        np.testing.assert_array_equal(part.obs[0].ravel(), obs[0].ravel())
    else:
        with pytest.raises(DataError, match=r"has rows of shape .*, and its space has"):
            open_data(tmp_path, **given)


@pytest.mark.parametrize("name", ["own npz", "own Parquet", "RLlib's episodes", "Minari"])
def test_a_schema_of_files_with_fixed_names_is_refused(tmp_path: Path, name: str) -> None:
    make, write = FORMATS[name]
    (tmp_path / "x").mkdir()
    write(tmp_path / "x", make(tmp_path / "example"))
    spaces_of = {} if name in WITH_SPACES else {"observation_space": BOX, "action_space": DISCRETE}
    with pytest.raises(DataError, match=r"schema=.* has no effect on .* fixed names"):
        open_data(tmp_path / "x", schema={"nonsense": "x"}, **spaces_of)
