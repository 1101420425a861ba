import csv
import json
import math
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from jaxrl.config.settings.run import LOGGERS
from jaxrl.errors import ConfigError, RunFolderError, UnknownNameError
from jaxrl.loggers import RunFolder, Sink
from jaxrl.loggers.sinks import (
    NAMED_SINKS,
    CsvSink,
    JsonSink,
    TensorBoardSink,
    open_all,
    read_results,
)


def result(iteration: int, **more: Any) -> dict[str, Any]:
    return {
        "training_iteration": iteration,
        "num_env_steps_sampled_lifetime": iteration * 100,
        "env_runners": {"episode_return_mean": np.float32(iteration) / 2},
        **more,
    }


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    folder = RunFolder.make("run", {"lr": 0.1}, results_dir=tmp_path)
    yield folder
    folder.close()


class TestJson:
    def test_a_line_per_result_that_any_parser_reads(self, tmp_path: Path) -> None:
        sink = JsonSink(tmp_path / "result.json")
        sink.write(result(1, loss=np.nan, list=np.arange(2)))
        first = (tmp_path / "result.json").read_text()  # on disk before close
        sink.write(result(2, loss=np.inf, none=None))
        sink.close()
        lines = (tmp_path / "result.json").read_text().splitlines()
        assert first.endswith("\n")
        assert len(lines) == 2
        row = json.loads(lines[0], parse_constant=pytest.fail)
        assert row["loss"] is None
        assert row["list"] == [0, 1]
        assert row["env_runners"] == {"episode_return_mean": 0.5}

    def test_resume_goes_on_exactly_where_the_run_was(self, tmp_path: Path) -> None:
        path = tmp_path / "result.json"
        sink = JsonSink(path)
        for i in range(1, 6):
            sink.write(result(i))
        sink.close()
        whole = path.read_text()
        with path.open("a") as file:
            file.write('{"training_iteration": 6, "env_ru')  # killed while writing
        sink = JsonSink(path, start_iteration=3)
        assert [row["training_iteration"] for row in read_results(path)] == [1, 2, 3]
        assert [*read_results(path, containing='"training_iteration": 2,')] == [
            json.loads(whole.splitlines()[1])
        ]
        for i in (4, 5):
            sink.write(result(i))
        sink.close()
        assert path.read_text() == whole

    def test_nothing_is_lost_when_nothing_is_too_late(self, tmp_path: Path) -> None:
        path = tmp_path / "result.json"
        JsonSink(path).close()
        path.write_text('{"training_iteration": 1}\n')
        inode = path.stat().st_ino
        JsonSink(path, start_iteration=1).close()
        assert path.read_text() == '{"training_iteration": 1}\n'
        assert path.stat().st_ino == inode  # not even rewritten


class TestCsv:
    def test_late_columns_leave_every_row_readable(self, tmp_path: Path) -> None:
        path = tmp_path / "progress.csv"
        sink = CsvSink(path)
        sink.write(result(1))
        sink.write(result(2, note='a "quoted", text\nof two lines'))
        sink.write(result(3, evaluation={"env_runners": {"episode_return_mean": 9.5}}))
        sink.write(result(4))
        rows = table(path)
        sink.close()
        assert [row["training_iteration"] for row in rows] == ["1", "2", "3", "4"]
        key = "evaluation/env_runners/episode_return_mean"
        assert [row[key] for row in rows] == ["", "", "9.5", ""]
        assert rows[1]["note"] == 'a "quoted", text\nof two lines'
        assert [row["env_runners/episode_return_mean"] for row in rows] == [
            "0.5",
            "1.0",
            "1.5",
            "2.0",
        ]
        assert [file.name for file in tmp_path.iterdir()] == ["progress.csv"]

    def test_text_with_carriage_returns_stays_in_its_row(self, tmp_path: Path) -> None:
        path = tmp_path / "progress.csv"
        sink = CsvSink(path)
        sink.write({"training_iteration": 1, "note": "a\rb\r\nc"})
        sink.write({"training_iteration": 2, "note": "", "late": 1})
        sink.close()
        assert [row["note"] for row in table(path)] == ["a\nb\nc", ""]

    def test_a_column_that_is_missing_later_is_an_empty_cell(self, tmp_path: Path) -> None:
        sink = CsvSink(tmp_path / "progress.csv")
        sink.write({"training_iteration": 1, "a": 1, "b": 2})
        sink.write({"training_iteration": 2, "b": 3})
        sink.close()
        assert table(tmp_path / "progress.csv")[1] == {"training_iteration": "2", "a": "", "b": "3"}

    @pytest.mark.parametrize("torn", ["", "6,60", "6,600,3.0\n6,6"])
    def test_resume_goes_on_exactly_where_the_run_was(self, tmp_path: Path, torn: str) -> None:
        path = tmp_path / "progress.csv"
        sink = CsvSink(path)
        for i in range(1, 6):
            sink.write(result(i))
        sink.close()
        whole = path.read_text()
        with path.open("a") as file:
            file.write(torn)
        sink = CsvSink(path, start_iteration=3)
        assert [row["training_iteration"] for row in table(path)] == ["1", "2", "3"]
        sink.write(result(4))
        sink.write(result(5))
        sink.close()
        assert path.read_text() == whole
        sink = CsvSink(path, start_iteration=5)
        sink.write(result(6, late=1))
        sink.close()
        assert [row["late"] for row in table(path)] == [""] * 5 + ["1"]

    @pytest.mark.parametrize("content", ["", "training_itera"])
    def test_a_file_cut_within_its_header_starts_anew(self, tmp_path: Path, content: str) -> None:
        path = tmp_path / "progress.csv"
        path.write_text(content)
        sink = CsvSink(path, start_iteration=0)
        sink.write(result(1))
        sink.close()
        assert [row["training_iteration"] for row in table(path)] == ["1"]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The curves that TensorBoard shows for a folder."""
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }


class TestTensorBoard:
    def test_scalars_against_env_steps(self, tmp_path: Path) -> None:
        sink = TensorBoardSink(tmp_path)
        sink.write(result(1, loss=math.nan, text="x", flag=True, timestamp=5))
        sink.write(result(2, loss=0.25))
        read = scalars(tmp_path)  # before close: a killed run loses nothing
        sink.close()
        assert read["env_runners/episode_return_mean"] == [(100, 0.5), (200, 1.0)]
        assert read["loss"] == [(200, 0.25)]
        assert read["flag"] == [(100, 1.0)]
        assert "timestamp" not in read
        assert "text" not in read

    def test_curves_have_no_point_that_was_not_measured(self, tmp_path: Path) -> None:
        sink = TensorBoardSink(tmp_path)
        evaluation = {"env_runners": {"episode_return_mean": 7.0}}
        compiled = {"train": {"flops": 5.0}}
        sink.write(result(1, evaluation=evaluation, timers={"evaluation_s": 1.0}))
        sink.write(result(2, evaluation=evaluation, timers={}, compile=compiled))
        sink.close()
        read = scalars(tmp_path)
        assert read["evaluation/env_runners/episode_return_mean"] == [(100, 7.0)]
        assert "compile/train/flops" not in read

    def test_resume_hides_what_lay_past_the_restored_iteration(self, tmp_path: Path) -> None:
        sink = TensorBoardSink(tmp_path)
        for i in range(1, 6):
            sink.write(result(i))
        sink.close()
        sink = TensorBoardSink(tmp_path, start_iteration=3, start_env_steps=300)
        sink.write(result(4, env_runners={"episode_return_mean": -1.0}))
        sink.close()
        assert len(list(tmp_path.iterdir())) == 2
        expected = [(100, 0.5), (200, 1.0), (300, 1.5), (400, -1.0)]
        assert scalars(tmp_path)["env_runners/episode_return_mean"] == expected


class FakeWandbRun:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.metrics: list[tuple[str, str | None]] = []
        self.logged: list[dict[str, float]] = []
        self.finished = False

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.metrics.append((name, step_metric))

    def log(self, row: dict[str, float]) -> None:
        self.logged.append(row)

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("wandb")
    module.runs = []
    module.online = True

    class Error(Exception):
        pass

    def init(**settings: Any) -> FakeWandbRun:
        if not module.online and settings.get("mode") != "offline":
            raise Error("api_key not configured")
        module.runs.append(FakeWandbRun(settings))
        return module.runs[-1]

    module.Error = Error
    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


class TestWandb:
    def test_results_go_to_a_run_that_a_resume_finds_again(
        self, wandb: types.ModuleType, folder: RunFolder
    ) -> None:
        for _ in range(2):
            (sink,) = open_all(["wandb"], folder, {"lr": np.float32(0.5)})
            sink.write(result(1, text="x"))
            sink.close()
        first, second = wandb.runs
        assert first.settings["config"] == {"lr": 0.5}
        assert first.settings["id"] == second.settings["id"] == folder.run_id
        assert first.settings["name"] == "run"
        assert first.logged == [
            {
                "training_iteration": 1.0,
                "num_env_steps_sampled_lifetime": 100,
                "env_runners/episode_return_mean": 0.5,
            }
        ]
        assert ("*", "num_env_steps_sampled_lifetime") in first.metrics
        assert first.finished

    def test_without_a_login_the_run_is_recorded_offline(
        self, wandb: types.ModuleType, folder: RunFolder, caplog: pytest.LogCaptureFixture
    ) -> None:
        wandb.online = False
        open_all(["wandb"], folder, {})
        assert wandb.runs[0].settings["mode"] == "offline"
        assert "recorded offline" in caplog.text

    def test_a_missing_package_is_answered_with_the_extra(
        self, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "wandb", None)
        with pytest.raises(ConfigError, match=r"jaxrl\[wandb\]"):
            open_all(["wandb"], folder, {})


class Recorder:
    def __init__(self, folder: RunFolder | None = None) -> None:
        self.folder = folder
        self.closed = False
        self.rows: list[Any] = []

    def write(self, result: Any) -> None:
        self.rows.append(result)

    def close(self) -> None:
        self.closed = True


class TestOpenAll:
    def test_every_name_that_a_config_takes_can_be_opened(self) -> None:
        assert set(NAMED_SINKS) == set(LOGGERS)

    def test_names_instances_and_classes(self, folder: RunFolder) -> None:
        mine = Recorder()
        sinks = open_all(["json", "csv", "tensorboard", mine, Recorder], folder, {})
        assert sinks[3] is mine
        assert isinstance(sinks[4], Recorder)
        assert sinks[4].folder is folder
        assert all(isinstance(sink, Sink) for sink in sinks)
        for sink in sinks:
            sink.write(result(1))
            sink.close()
        assert folder.result_file.is_file()
        assert folder.progress_file.is_file()
        assert list(folder.path.glob("events.out.tfevents.*"))

    def test_an_unknown_name_gets_a_suggestion_and_nothing_stays_open(
        self, folder: RunFolder
    ) -> None:
        mine = Recorder()
        with pytest.raises(UnknownNameError, match="Did you mean 'tensorboard'"):
            open_all([mine, "tensorbord"], folder, {})
        assert mine.closed

    def test_what_is_no_sink_is_refused(self, folder: RunFolder) -> None:
        with pytest.raises(ConfigError, match=r"write\(result\) and close\(\)"):
            open_all([object()], folder, {})  # pyright: ignore[reportArgumentType]

    @pytest.mark.parametrize("name", ["json", "csv"])
    def test_a_file_that_cannot_be_written_is_one_sentence(
        self, folder: RunFolder, name: str
    ) -> None:
        path = folder.result_file if name == "json" else folder.progress_file
        path.mkdir()
        with pytest.raises(RunFolderError, match=rf"Cannot write .*{path.name}"):
            open_all([name], folder, {})

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
    @pytest.mark.parametrize("name", ["json", "csv"])
    def test_a_full_disk_is_one_sentence_in_writing_and_in_closing(
        self, folder: RunFolder, name: str
    ) -> None:
        (sink,) = open_all([name], folder, {})
        sink.write(result(1))
        full: Any = sink
        full._file.close()
        full._path = Path("/dev/full")
        if name == "csv":
            full._append()
        else:
            full._file = full._path.open("a")
        with pytest.raises(RunFolderError, match=r"Cannot write .*No space left on device"):
            sink.write(result(2))
        with pytest.raises(RunFolderError, match=r"Cannot write .*No space left on device"):
            sink.close()
