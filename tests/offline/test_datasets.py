"""Data sets that are made from shipped configs: names, folders, returns, and how they are made."""

import dataclasses
import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from typer.testing import CliRunner

from jaxrl import BCConfig, DQNConfig, EpisodeWriter, load_config
from jaxrl.cli.app import app
from jaxrl.cli.evaluation import format_mean_return
from jaxrl.config.datasets import (
    QUALITIES,
    RECORD,
    TASKS,
    DatasetTask,
    find_dataset,
    list_datasets,
    resolve_datasets_dir,
)
from jaxrl.datasets import make
from jaxrl.errors import DataError, RunFolderError, UnknownNameError
from jaxrl.offline.manifest import ReferenceReturns, read_manifest, record_reference
from jaxrl.offline.recorded import open_data
from tests.recorded_data import make_part, write_data

REFERENCE = ReferenceReturns(random=20.0, expert=500.0)


@pytest.fixture(name="root")
def choose_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JAXRL_DATASETS_DIR", str(tmp_path / "sets"))
    return tmp_path / "sets"


def fake(recipe: Any, folder: Path, num_rows: int, *_: Any) -> dict[str, Any]:
    """Write data of every quality by hand, in the place of a trained policy's."""
    for quality in QUALITIES:
        parts = [make_part(0, num_rows, terminated=True)]
        write_data(folder / quality, parts, env="CartPole-v1")
        record_reference(folder / quality, REFERENCE)
    described = {name: make._describe(open_data(folder / name), 1.0) for name in QUALITIES}
    return {"reference_returns": dataclasses.asdict(REFERENCE), "datasets": described}


def test_the_folder_is_in_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAXRL_DATASETS_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert resolve_datasets_dir() == Path("/cache/jaxrl/datasets")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert resolve_datasets_dir() == Path.home() / ".cache/jaxrl/datasets"
    assert resolve_datasets_dir("/mine") == Path("/mine")


def test_a_missing_data_set_names_the_command_that_makes_it(root: Path) -> None:
    wanted = (
        f"The data set 'cartpole-expert' is not in {root} yet: 'jaxrl datasets make "
        "cartpole-expert' makes it."
    )
    with pytest.raises(DataError) as caught:
        open_data("dataset:cartpole-expert")
    assert str(caught.value) == wanted
    with pytest.raises(DataError) as caught:
        load_config("offline/cartpole-bc").debugging(loggers=[]).build()
    assert str(caught.value) == wanted


@pytest.mark.parametrize(
    "given", ["dataset:cartpole-exprt", {"sampler": 0.5, "dataset:cartpole-exprt": 0.5}]
)
def test_an_unknown_data_set_is_refused_with_the_config(given: Any) -> None:
    config = DQNConfig().environment("CartPole-v1").offline_data(input_=given)
    with pytest.raises(UnknownNameError, match="Did you mean 'cartpole-expert'"):
        config.validate()


def test_a_complete_data_set_is_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "_make", fake)
    said: list[str] = []
    made = make.make_datasets("cartpole", num_rows=30, seed=3)
    record = json.loads((root / "cartpole" / RECORD).read_text())
    assert record == made
    assert (record["config"], record["num_rows"], record["seed"]) == (
        "classic/cartpole-ppo",
        30,
        3,
    )
    before = (root / "cartpole" / RECORD).stat().st_mtime_ns
    again = make.make_datasets("cartpole", num_rows=30, seed=3, on_progress=said.append)
    assert again == made
    assert said == [f"{root / 'cartpole'} is complete"]
    assert (root / "cartpole" / RECORD).stat().st_mtime_ns == before
    with pytest.raises(DataError, match=r"has data of 30 rows by seed 3 .* not of 30 rows by seed"):
        make.make_datasets("cartpole", num_rows=30, seed=4)
    assert find_dataset("dataset:cartpole-mixed") == root / "cartpole" / "mixed"
    data = open_data("dataset:cartpole-mixed")
    assert data.counts is not None
    assert (data.counts.num_steps, data.reference) == (30, REFERENCE)


def test_an_interrupted_task_leaves_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(recipe: Any, folder: Path, *_: Any) -> dict[str, Any]:
        write_data(folder / "random")
        raise KeyboardInterrupt

    monkeypatch.setattr(make, "_make", interrupt)
    with pytest.raises(KeyboardInterrupt):
        make.make_datasets("pendulum")
    assert [path.name for path in root.iterdir()] == [".pendulum.lock"]


def test_a_data_set_without_a_record_is_found_before_training(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make, "_make", fake)
    write_data(root / "cartpole" / "expert")
    with pytest.raises(
        DataError, match=r"cartpole is not complete, it has no dataset\.json: remove"
    ):
        make.make_datasets("cartpole", num_rows=30)


def test_a_full_disk_is_one_sentence(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: Any) -> dict[str, Any]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(make, "_make", fill)
    wanted = (
        f"Cannot make data sets in {root}: No space left .* place with --out or JAXRL_DATASETS_DIR"
    )
    with pytest.raises(RunFolderError, match=wanted):
        make.make_datasets("cartpole")
    assert [path.name for path in root.iterdir()] == [".cartpole.lock"]


def break_record(record: dict[str, Any], name: str) -> object:
    """Return a damaged copy of a record."""
    described = record["datasets"]
    changes: dict[str, object] = {
        "list": [],
        "no recipe": {"datasets": described},
        "seed": {**record, "seed": "one"},
        "no sizes": {**record, "datasets": {key: {} for key in described}},
        "numbers": {**record, "datasets": dict.fromkeys(described, 1)},
        "infinite": {**record, "num_rows": float("inf")},
    }
    return changes[name]


@pytest.mark.parametrize("name", ["list", "no recipe", "seed", "no sizes", "numbers", "infinite"])
def test_a_damaged_record_is_one_sentence(
    root: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(make, "_make", fake)
    record = make.make_datasets("cartpole", num_rows=30)
    (root / "cartpole" / RECORD).write_text(json.dumps(break_record(record, name)))
    with pytest.raises(DataError, match=rf"is damaged .*: remove {root / 'cartpole'}\.$"):
        make.make_datasets("cartpole", num_rows=30)
    listed = CliRunner().invoke(app, ["datasets", "list"])
    assert listed.exit_code == 2
    assert f"remove {root / 'cartpole'}." in listed.output


def test_listing_imports_nothing_that_trains(root: Path) -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from jaxrl.cli.app import app; "
        "found = CliRunner().invoke(app, ['datasets', 'list']); "
        "assert found.exit_code == 0, found.output; assert 'jaxrl.algorithm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_commands_list_and_make(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "_make", fake)
    run = CliRunner()
    made = run.invoke(app, ["datasets", "make", "cartpole-mixed", "--rows", "30"])
    assert made.exit_code == 0, made.output
    assert "30 steps, 1 episodes, mean return" in made.output
    lines = run.invoke(app, ["datasets", "list"]).output.splitlines()
    assert [line.split()[0] for line in lines] == list_datasets()
    assert [" not made: " in line for line in lines] == [
        name.split("-")[0] != "cartpole" for name in list_datasets()
    ]
    wrong = run.invoke(app, ["datasets", "make", "cartpole"])
    assert wrong.exit_code == 2
    assert "error: There is no data set 'cartpole'" in wrong.output


def test_training_a_file_makes_its_data_set_in_another_process(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    said: list[str] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(make.subprocess, "run", run)
    with pytest.raises(DataError, match=r"'cartpole-expert' could not be made: .* exit code 1"):
        make.make_missing(load_config("offline/cartpole-bc"), said.append)
    assert commands == [[sys.executable, "-m", "jaxrl", "datasets", "make", "cartpole-expert"]]
    assert said == ["the data set cartpole-expert is made first, once, from classic/cartpole-ppo"]
    (root / "cartpole").mkdir(parents=True)
    (root / "cartpole" / RECORD).write_text("{}")
    make.make_missing(load_config("offline/cartpole-bc"), said.append)
    make.make_missing(load_config("classic/cartpole-ppo"), said.append)
    assert len(commands) == len(said) == 1


def test_appending_keeps_the_returns_that_normalize(tmp_path: Path) -> None:
    folder = Path(write_data(tmp_path / "data"))
    assert open_data(folder).reference is None
    record_reference(folder, REFERENCE)
    write_data(folder, [make_part(9, 5)])
    manifest = read_manifest(folder)
    assert manifest is not None
    assert manifest.reference == open_data(folder).reference == REFERENCE
    text = (folder / "manifest.json").read_text().replace('"expert": 500.0', '"expert": 5.0')
    (folder / "manifest.json").write_text(text)
    with pytest.raises(DataError, match=r"reference_returns .* are not finite and in order"):
        open_data(folder)


@pytest.mark.parametrize(
    "given",
    [
        '{"random": -Infinity, "expert": 1}',
        '{"random": NaN, "expert": 1}',
        '{"random": 0, "expert": Infinity}',
        '{"random": 2, "expert": 1}',
        '{"random": 0, "expert": 1' + "0" * 400 + "}",
        '{"random": "low", "expert": 1}',
        '{"random": 0}',
        "[0, 1]",
    ],
)
def test_damaged_returns_are_one_sentence(tmp_path: Path, given: str) -> None:
    folder = Path(write_data(tmp_path / "data"))
    record_reference(folder, REFERENCE)
    path = folder / "manifest.json"
    data = {**json.loads(path.read_text()), "reference_returns": "HERE"}
    path.write_text(json.dumps(data).replace('"HERE"', given))
    with pytest.raises(DataError, match=r"manifest\.json is damaged: its content is invalid"):
        open_data(folder)


def test_evaluations_are_normalized(tmp_path: Path) -> None:
    env = gymnasium.make("CartPole-v1")
    with EpisodeWriter(tmp_path / "data", env.observation_space, env.action_space) as writer:
        part = make_part(0, 40)
        obs = np.zeros((41, 4), np.float32)
        writer.add_parts([dataclasses.replace(part, obs=obs, action=part.action % 2)])
    config = BCConfig().environment("CartPole-v1").offline_data(input_=str(tmp_path / "data"))
    config.training(train_batch_size=8).rl_module(model_config={"fcnet_hiddens": [4]})
    config.debugging(seed=0, loggers=[])
    with config.copy().build() as algorithm:
        played = algorithm.evaluate(num_episodes=2)["env_runners"]
    assert "episode_return_normalized" not in played
    record_reference(tmp_path / "data", REFERENCE)
    with config.build() as algorithm:
        normalized = algorithm.evaluate(num_episodes=2)["env_runners"]
    mean = normalized["episode_return_mean"]
    assert normalized.pop("episode_return_normalized") == (mean - 20.0) / (500.0 - 20.0)
    assert normalized == played


@pytest.mark.slow
def test_the_random_score_is_of_whole_episodes(tmp_path: Path) -> None:
    """Those of Pendulum have 200 steps, more than are recorded in each environment."""
    score = make._record_random(TASKS["pendulum"], tmp_path / "random", 64, 0)
    assert -1500 < score < -900
    described = make._describe(open_data(tmp_path / "random"), score)
    assert described["mean_return"] is None
    assert format_mean_return(described["mean_return"]) == "no whole episode"


RECIPE = DatasetTask("classic/cartpole-ppo", 60_000, 4096)


@pytest.mark.slow
def test_qualities_are_in_order_and_the_seed_decides(tmp_path: Path) -> None:
    record = make.make_datasets("cartpole", tmp_path / "a", num_rows=10_000, recipe=RECIPE)
    means = {name: entry["mean_return"] for name, entry in record["datasets"].items()}
    assert means["random"] < means["mixed"] < means["medium"] <= means["expert"]
    assert means["random"] < means["replay"] < means["expert"]
    reference = record["reference_returns"]
    assert 15 < reference["random"] < 30
    assert reference["expert"] > 400
    for name in ("random", "medium", "expert", "mixed"):
        assert 10_000 <= record["datasets"][name]["num_steps"] <= 10_160
    folder = tmp_path / "a" / "cartpole"
    mixed = list(open_data(folder / "mixed").iter_parts())
    expert = {part.episode_id for part in open_data(folder / "expert").iter_parts()}
    assert sum(len(part) for part in mixed if part.episode_id in expert) == 1000
    assert sum(len(part) for part in mixed) == 10_000
    again = make.make_datasets("cartpole", tmp_path / "b", num_rows=10_000, recipe=RECIPE)
    assert again == record
    other = make.make_datasets("cartpole", tmp_path / "c", num_rows=10_000, seed=1, recipe=RECIPE)
    for name in QUALITIES:
        prints = [made["datasets"][name]["fingerprint"] for made in (record, other)]
        assert prints[0] != prints[1]


def test_tasks_train_shipped_configs() -> None:
    for name, task in TASKS.items():
        env = load_config(task.config).environment_settings.env
        assert isinstance(env, str)
        assert env.lower().startswith(name)
