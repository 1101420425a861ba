"""Recorded data of modules of several agents: which folders and files are of one module."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from jaxrl import EpisodeWriter
from jaxrl.errors import DataError
from jaxrl.offline.manifest import find_module_folders
from jaxrl.offline.recorded import open_data
from tests.offline.parts import BOX, DISCRETE, assert_same, make_part

FORMATS = ["parquet", "npz"]


def write(folder: Path, module_id: str | None = None, file_format: str = "npz") -> None:
    """Write an episode of two steps, whose id is the folder's name."""
    part = make_part(2, episode_id=folder.name, terminated=True)
    with EpisodeWriter(
        folder, BOX, DISCRETE, module_id=module_id, file_format=file_format
    ) as writer:
        writer.add_parts([part])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of two runs, each with the modules p0 and p1."""
    for run in ("s1", "s2"):
        for module in ("p0", "p1"):
            write(tmp_path / run / module, module)
    return tmp_path


@pytest.mark.parametrize("source", ["", "s1", "s1/../s1", "s1/*", "*", "**/*.npz", "s?/p[01]/*"])
def test_modules_are_not_mixed_unawares(folder: Path, source: str) -> None:
    said = r"2 modules, p0, p1: give the folder of one, such as .*p0', .*input_=\['.*p0', '.*p1'\]"
    with pytest.raises(DataError, match=said):
        open_data(folder / source)
    with pytest.raises(DataError, match=said):
        open_data([folder / source])


def test_one_module_of_all_runs_and_a_list_of_modules_are_read(folder: Path) -> None:
    data = open_data(folder / "*" / "p0")
    assert data.origin.module_id == "p0"
    assert len(data.files) == 2
    assert len(open_data([folder / "s1" / "p0", folder / "s1" / "p1"]).files) == 2


@pytest.mark.parametrize(
    "text", ['{"name": "app"}', "[]", "no JSON", '{"format": "other", "module_id": "x"}']
)
def test_manifests_of_others_are_left_alone(tmp_path: Path, text: str) -> None:
    write(tmp_path / "runs" / "p0", "p0")
    (tmp_path / "runs" / "web").mkdir()
    (tmp_path / "runs" / "web" / "manifest.json").write_text(text)
    assert find_module_folders(tmp_path / "runs") == {"p0": tmp_path / "runs" / "p0"}
    assert len(open_data(tmp_path / "runs").files) == 1
    write(tmp_path / "single")
    (tmp_path / "single" / "web").mkdir()
    (tmp_path / "single" / "web" / "manifest.json").write_text(text)
    assert find_module_folders(tmp_path / "single") == {}
    assert len(open_data(tmp_path / "single").files) == 1


def test_a_damaged_manifest_of_a_module_is_named(folder: Path) -> None:
    path = folder / "s1" / "p1" / "manifest.json"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(DataError, match=r"p1.manifest\.json is damaged"):
        open_data(folder / "s1")


@pytest.mark.parametrize("file_format", FORMATS)
def test_extras_may_have_the_names_of_columns_of_agents(tmp_path: Path, file_format: str) -> None:
    names = ("agent_id", "module_id", "multi_agent_episode_id")
    for number in (1, 3):
        extras = {name: np.arange(2, dtype=np.int32) for name in names[:number]}
        part, own = make_part(2, extras=extras), tmp_path / str(number)
        with EpisodeWriter(own, BOX, DISCRETE, file_format=file_format) as writer:
            writer.add_parts([part])
        (found,) = open_data(own).iter_parts()
        assert_same(part, found)
        assert found.agent_id is None
        with pytest.raises(DataError, match=r"the name 'agent_id', which says whose a part is"):
            EpisodeWriter(tmp_path / f"p{number}", BOX, DISCRETE, module_id="p0").add_parts([part])


@pytest.mark.parametrize("file_format", FORMATS)
def test_a_part_without_a_module_is_of_that_of_its_writer(tmp_path: Path, file_format: str) -> None:
    write(tmp_path, "p0", file_format)
    (found,) = open_data(tmp_path).iter_parts()
    assert (found.module_id, found.agent_id) == ("p0", None)


def test_a_run_does_not_go_on_without_its_files(tmp_path: Path) -> None:
    with EpisodeWriter(tmp_path, BOX, DISCRETE, file_format="npz") as writer:
        writer.add_parts([dataclasses.replace(make_part(2), terminated=True)])
        state = writer.get_state()
        writer.check_state(state)
        (tmp_path / "part-00000.npz").unlink()
        with pytest.raises(DataError, match=r"part-00000\.npz is not the file that the run had"):
            writer.check_state(state)
