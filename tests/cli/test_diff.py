"""`jaxrl diff`: two runs compared, to the last bit of the first result that differs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxrl.cli.comparison import (
    compare_result,
    compare_results,
    compare_sessions,
    compare_settings,
)
from tests.cli.command import edit, jaxrl
from tests.helpers import small


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three iterations; tests copy it."""
    root = tmp_path_factory.mktemp("results")
    with small().debugging(results_dir=str(root), run_name="one").build() as algo:
        for _ in range(3):
            algo.train()
        algo.save()
    return root / "one"


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "two"))


def edit_result(run: Path, iteration: int, change: Callable[[Any], None]) -> None:
    lines = (run / "result.json").read_text().splitlines()
    row = json.loads(lines[iteration - 1])
    change(row)
    lines[iteration - 1] = json.dumps(row)
    (run / "result.json").write_text("".join(f"{line}\n" for line in lines))


def test_equal_runs_are_equal_whenever_and_wherever_they_were_trained(
    trained: Path, tmp_path: Path
) -> None:
    elsewhere = {"results_dir": str(tmp_path), "run_name": "another", "log_level": "ERROR"}
    with small().debugging(**elsewhere).build() as algo:
        for _ in range(3):
            algo.train()
    code, out, err = jaxrl("diff", trained, tmp_path / "another")
    assert (code, err) == (0, ""), out
    assert out.startswith("equal: settings and manifests, and ")
    assert out.endswith(" values of 3 iterations\n")
    assert int(out.split()[-5]) > 60


def test_all_that_differs_is_shown(trained: Path, copy: Path) -> None:
    edit(copy / "params.json", lambda d: d["settings"].update(gamma=0.5, results_dir="elsewhere"))

    def change(document: Any) -> None:
        session = document["sessions"][0]
        session["versions"]["jax"] = "0.9.1"
        session["xla_flags"] += " --xla_more"
        session["devices"]["count"] = 4
        session["git"] = {"commit": "abc", "dirty": True, "diff_sha256": "def"}

    edit(copy / "manifest.json", change)
    edit_result(copy, 2, lambda row: row["learners"]["default_policy"].update(total_loss=0.125))
    code, out, _ = jaxrl("diff", trained, copy)
    assert code == 1
    lines = {line.strip().split("  ")[0]: line for line in out.splitlines()}
    assert lines["gamma"].split() == ["gamma", "0.99", "0.5"]
    assert lines["jax version"].split()[-1] == "0.9.1"
    assert lines["devices: count"].split()[-2:] == ["1", "4"]
    assert "--xla_more" in out
    assert lines["git"].endswith("abc, changes def")
    assert "results, iteration 2" in out
    assert lines["learners/default_policy/total_loss"].split()[-1] == "0.125"
    assert "results_dir" not in out
    assert out.startswith(f"A  {trained}\nB  {copy}\n")


def test_one_bit_of_one_number_is_a_difference(trained: Path, copy: Path) -> None:
    def flip(row: Any) -> None:
        learned = row["learners"]["default_policy"]
        learned["entropy"] += 2**-50

    edit_result(copy, 3, flip)
    code, out, _ = jaxrl("diff", trained, copy)
    assert code == 1
    assert "results, iteration 3" in out
    assert len([line for line in out.splitlines() if "learners/" in line]) == 1


def test_iterations_that_only_one_run_has_are_counted(trained: Path, copy: Path) -> None:
    lines = (copy / "result.json").read_text().splitlines()
    (copy / "result.json").write_text(lines[0] + "\n" + lines[1][:20])  # killed in the second line
    code, out, _ = jaxrl("diff", trained, copy)
    assert code == 1
    assert out.splitlines()[-1].split() == ["number", "3", "1"]
    (copy / "result.json").unlink()
    code, out, _ = jaxrl("diff", copy, trained)
    assert code == 1
    assert out.splitlines()[-1].split() == ["number", "not", "recorded", "3"]


def test_a_run_from_before_manifests_is_read_from_its_checkpoint(
    trained: Path, copy: Path, tmp_path: Path
) -> None:
    (copy / "manifest.json").unlink()
    assert jaxrl("diff", copy, copy)[0] == 0
    assert jaxrl("diff", trained, copy)[0] == 0  # the checkpoint has the whole session
    shutil.rmtree(copy / "checkpoints")
    code, out, _ = jaxrl("diff", trained, copy)
    assert code == 1
    jax_line = next(line for line in out.splitlines() if "jax version" in line)
    assert jax_line.endswith("not recorded")
    code, out, _ = jaxrl("diff", copy, copy)
    assert code == 0
    assert "manifest" not in out


def test_a_name_in_the_results_folder_is_enough(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXRL_RESULTS_DIR", str(trained.parent))
    assert jaxrl("diff", "one", trained)[0] == 0


def test_bad_input_is_one_sentence_and_exit_code_2(
    trained: Path, copy: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    for wrong, words in (
        (tmp_path / "empty", "There is no run folder"),
        ("no_such_run", "There is no run 'no_such_run'"),
        (trained / "checkpoints" / "checkpoint_000003", "There is no run folder"),
    ):
        code, out, err = jaxrl("diff", trained, wrong)
        assert (code, out) == (2, "")
        assert words in err
        assert err.count("\n") == 1
    for name, text in (("manifest.json", "[]"), ("params.json", "[]"), ("params.json", "{")):
        broken = Path(shutil.copytree(copy, tmp_path / f"broken_{len(text)}_{name}"))
        (broken / name).write_text(text)
        code, _, err = jaxrl("diff", trained, broken)
        assert code == 2
        assert name in err
        assert err.count("\n") == 1
    (copy / "sweep.json").write_text("{}")
    assert "is a sweep of several runs: name one of its lanes" in jaxrl("diff", trained, copy)[2]
    code, _, err = jaxrl("replay", copy)
    assert code == 2
    assert "is a sweep of several runs: replay single runs." in err


class TestComparison:
    def test_nested_settings_are_named_and_numbers_are_numbers(self) -> None:
        one = {"algo": "PPO", "settings": {"model_config": {"a": 1, "b": [1.0]}, "lr": 1}}
        other = {"algo": "DQN", "settings": {"model_config": {"a": 2, "b": [1]}, "lr": 1.0, "n": 3}}
        found = {d.name: (d.first, d.second) for d in compare_settings(one, other)}
        assert found == {
            "algorithm": ("PPO", "DQN"), "model_config.a": ("1", "2"), "n": ("-", "3"),
        }  # fmt: skip

    def test_times_and_places_are_no_results(self) -> None:
        one = {"training_iteration": 1, "pid": 3, "timers": {"x": 1}, "env_runners": {"a": 0.0}}
        other = {"training_iteration": 1, "date": "now", "env_runners": {"a": -0.0}}
        found, rounded = compare_result(one, other)
        assert [(d.name, d.first, d.second) for d in found] == [("env_runners/a", "0.0", "-0.0")]
        assert rounded == 0

    def test_means_over_several_train_batches_may_be_rounded(self) -> None:
        def row(loss: float, batches: int, steps: int = 8) -> dict[str, Any]:
            calls = {"num_training_step_calls_per_iteration": batches}
            return {"training_iteration": 1, "loss": loss, "steps": steps, **calls}

        assert len(compare_result(row(1.0, 1), row(1.0001, 1))[0]) == 1
        assert compare_result(row(1.0, 2), row(1.0001, 2)) == ([], 1)
        assert len(compare_result(row(1.0, 2), row(1.01, 2))[0]) == 1
        assert len(compare_result(row(1.0, 2, 8), row(1.0, 2, 9))[0]) == 1  # counts are exact
        assert len(compare_result(row(1.0, 1), row(1.0001, 2))[0]) == 2

    def test_iterations_are_aligned(self) -> None:
        def rows(*iterations: int) -> list[dict[str, Any]]:
            return [{"training_iteration": i, "x": i} for i in iterations]

        found = compare_results(rows(1, 3, 4), rows(2, 3, 4, 5, 6))
        assert (found.num_iterations, found.only_first, found.only_second) == (2, 1, 3)
        assert found.iteration is None
        changed = [*rows(1, 2), {"training_iteration": 3, "x": 7, "y": 1}]
        found = compare_results(rows(1, 2, 3), changed)
        assert found.iteration == 3
        assert [d.name for d in found.differences] == ["x", "y"]


def test_a_whole_number_is_the_same_as_a_float() -> None:
    """A manifest that was read has integers where one that is made has floats."""
    sessions = [[{"iteration": 0, "compile_options": {"limit": x}}] for x in (4, 4.0, 4.5)]
    assert compare_sessions(sessions[0], sessions[1]) == []
    assert len(compare_sessions(sessions[0], sessions[2])) == 1
