import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxrl import PPOConfig
from jaxrl.errors import ConfigError, RunFolderError
from jaxrl.loggers import RunFolder
from jaxrl.runs import run_folder


def test_a_new_folder_holds_the_config_and_a_run_id(tmp_path: Path) -> None:
    folder = RunFolder.make("first", {"lr": np.float32(0.5), "inf": np.inf}, results_dir=tmp_path)
    assert folder.path == tmp_path / "first"
    assert json.loads(folder.params_file.read_text()) == {"lr": 0.5, "inf": None}
    assert folder.checkpoints.is_dir()
    assert folder.stop_criterion is None
    assert len(folder.run_id) == 12
    folder.close()


def test_two_runs_of_one_name_get_folders_of_their_own(tmp_path: Path) -> None:
    made = [RunFolder.make("same", {}, results_dir=tmp_path) for _ in range(3)]
    assert [folder.name for folder in made] == ["same", "same_2", "same_3"]
    assert len({folder.run_id for folder in made}) == 3


def test_the_default_place_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXRL_RESULTS_DIR", str(tmp_path / "elsewhere"))
    assert RunFolder.make("run", {}).path == tmp_path / "elsewhere" / "run"
    monkeypatch.delenv("JAXRL_RESULTS_DIR")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert run_folder.resolve_results_dir() == tmp_path / "home" / "jaxrl_results"


@pytest.mark.parametrize("name", ["", " ", "a/b", "..", ".hidden", "a\\b", "a\nb", "a" * 300])
def test_a_name_that_is_no_folder_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid folder name"):
        RunFolder.make(name, {}, results_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.touch()
    with pytest.raises(RunFolderError, match=r"Cannot create a run folder in .*file") as caught:
        RunFolder.make("run", {}, results_dir=blocker)
    assert "results_dir" in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(RunFolderError, match="Cannot create"):
        RunFolder.make("run", {}, results_dir="/proc/jaxrl")


def test_a_folder_that_cannot_be_filled_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_folder, "_write_json", full)
    with pytest.raises(RunFolderError, match="No space left on device"):
        RunFolder.make("run", {}, results_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_open_finds_the_same_run_again(tmp_path: Path) -> None:
    folder = RunFolder.make("run", {}, results_dir=tmp_path)
    folder.save_stop_criterion({"training_iteration": 3, "env_runners/episode_return_mean": 450.0})
    folder.close()
    folder.close()
    again = RunFolder.open(folder.path)
    assert again.run_id == folder.run_id
    assert again.stop_criterion == {
        "training_iteration": 3,
        "env_runners/episode_return_mean": 450.0,
    }


def test_a_folder_in_use_is_refused_until_it_is_closed(tmp_path: Path) -> None:
    folder = RunFolder.make("run", {}, results_dir=tmp_path)
    code = (
        "from jaxrl.runs.run_folder import RunFolder; import sys\n"
        "try:\n    RunFolder.open(sys.argv[1])\n"
        "except OSError as error:\n    print(error); sys.exit(7)\n"
    )
    command = [sys.executable, "-c", code, str(folder.path)]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 7, refused.stderr
    assert "is in use by process" in refused.stdout
    with pytest.raises(RunFolderError, match=r"call stop\(\)"):
        RunFolder.open(folder.path)
    folder.close()
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_what_is_no_run_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"is not a run folder.*params\.json"):
        RunFolder.open(tmp_path)
    with pytest.raises(RunFolderError, match="is not a run folder"):
        RunFolder.open(tmp_path / "nothing")


def test_a_damaged_run_file_is_named(tmp_path: Path) -> None:
    folder = RunFolder.make("run", {}, results_dir=tmp_path)
    folder.run_file.write_text("{")
    with pytest.raises(RunFolderError, match=r"run\.json"):
        _ = folder.stop_criterion


class MyEnv:
    pass


@pytest.mark.parametrize(
    ("env", "label"),
    [
        ("CartPole-v1", "CartPole-v1"),
        ("gymnax:Breakout-MinAtar", "gymnax-Breakout-MinAtar"),
        ("my_package.envs:Corridor", "Corridor"),
        ("my_package.envs.Corridor", "Corridor"),
        (MyEnv, "MyEnv"),
        (MyEnv(), "MyEnv"),
        (None, "no-env"),
    ],
)
def test_default_names_say_what_runs(env: object, label: str) -> None:
    name = run_folder.make_default_name("PPO", env, 3)
    assert name.startswith(f"PPO_{label}_20")
    assert name.endswith("_seed3")
    assert not run_folder.make_default_name("PPO", env, None).endswith("None")


@pytest.mark.parametrize("removed", ["", "params.json", "run.json"])
def test_a_folder_that_was_removed_is_made_again(
    removed: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = PPOConfig().debugging(results_dir=str(tmp_path), run_name="run")
    with RunFolder.create(config) as folder:
        folder.save_stop_criterion({"training_iteration": 7})
        run_id, params = folder.run_id, folder.params_file.read_bytes()
        assert not folder.recreate(config)
        if removed:
            (folder.path / removed).unlink()
        else:
            shutil.rmtree(folder.path)
        assert folder.recreate(config)
        assert (folder.run_id, folder.stop_criterion) == (run_id, {"training_iteration": 7})
        assert folder.params_file.read_bytes() == params
        assert folder.checkpoints.is_dir()
        with pytest.raises(RunFolderError, match="is in use by process"):
            RunFolder.open(folder.path)
    assert "was removed during the run: it was created again" in caplog.text
    assert not folder.recreate(config)  # a folder that was let go is nobody's to make


def test_a_folder_that_another_run_took_is_left_to_it(tmp_path: Path) -> None:
    config = PPOConfig().debugging(results_dir=str(tmp_path), run_name="run")
    with RunFolder.create(config) as folder:
        shutil.rmtree(folder.path)
        with (
            RunFolder.create(config),
            pytest.raises(RunFolderError, match="run is in use by process"),
        ):
            folder.recreate(config)
