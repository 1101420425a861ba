"""`jaxrl compile-report`: what it compiles, prints and refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxrl import PPOConfig
from jaxrl.runtime.compilation_cache import get_cache_contents
from tests.cli.command import jaxrl as run

SETTINGS = {
    "num_envs_per_env_runner": 8,
    "train_batch_size": 64,
    "minibatch_size": 32,
    "num_epochs": 2,
    "num_devices": 1,
    "model_config": {"fcnet_hiddens": [8]},
    "evaluation_duration": 2,
}


def config_file(folder: Path, **changes: Any) -> str:
    content = {"small": {"run": "PPO", "env": "CartPole-v1", "config": {**SETTINGS, **changes}}}
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


def reported(*source: str) -> dict[str, Any]:
    code, out, error = run("compile-report", *source, "--json")
    assert code == 0, error
    return json.loads(out)


def test_a_config_is_compiled_and_nothing_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXRL_RESULTS_DIR", str(tmp_path / "results"))
    report = reported("file", config_file(tmp_path))
    programs = report["programs"]
    assert list(programs) == ["init", "train", "evaluate", "actor"]
    for figures in programs.values():
        assert figures["trace_s"] > 0
        assert figures["argument_bytes"] > 0
        assert isinstance(figures["cache_hit"], bool)
    train = programs["train"]
    assert train["donated_bytes"] > 0
    assert train["flops_per_env_step"] == train["flops"] / 64 > 0
    assert programs["evaluate"]["flops_per_env_step"] is None
    assert report["env_steps_per_train_batch"] == 64
    contents = get_cache_contents()
    assert contents is not None
    assert report["cache"]["folder"] == contents.folder
    assert not (tmp_path / "results").exists()


def test_the_table_says_the_same(tmp_path: Path) -> None:
    code, out, error = run("compile-report", "file", config_file(tmp_path))
    assert code == 0, error
    first, header, *rows = out.splitlines()
    assert first.startswith("PPO on CartPole-v1, 1 x ")
    assert first.endswith("64 environment steps per train batch")
    assert header.split()[:3] == ["program", "trace", "s"]
    assert [row.split()[0] for row in rows[:4]] == ["init", "train", "evaluate", "actor"]
    assert all(row.split()[4] in ("XLA", "cache") for row in rows[:3])
    assert rows[-1].startswith("compilation cache: ")
    assert "MiB" in rows[-1]


def test_a_run_folder_is_reported_on_as_it_was_trained(tmp_path: Path) -> None:
    config = PPOConfig().environment("CartPole-v1").update_from_dict(SETTINGS)
    config.debugging(results_dir=str(tmp_path), run_name="the_run", loggers=["json"])
    with config.build() as algo:
        algo.train()
    before = sorted(path.name for path in (tmp_path / "the_run").iterdir())
    report = reported(str(tmp_path / "the_run"))
    assert report["env_steps_per_train_batch"] == 64
    assert list(report["programs"]) == ["init", "train", "evaluate", "actor"]
    assert sorted(path.name for path in (tmp_path / "the_run").iterdir()) == before


@pytest.mark.slow
def test_environments_on_the_host_are_stepped_for_one_iteration(tmp_path: Path) -> None:
    path = config_file(tmp_path)
    text = Path(path).read_text().replace("CartPole-v1", "gymnasium:CartPole-v1")
    Path(path).write_text(text)
    programs = reported("file", path)["programs"]
    assert {"init", "learn", "host_act", "host_draw"} <= set(programs)
    assert programs["host_act"]["flops_per_env_step"] == programs["host_act"]["flops"] / 8


WRONG = [
    (("file", "classic/cartpol-ppo"), "Did you mean 'classic/cartpole-ppo'"),
    (("file",), "use 'jaxrl compile-report file CONFIG'"),
    (("classic/cartpole-ppo", "twice", "thrice"), "use 'jaxrl compile-report file CONFIG'"),
    (("/nowhere/at/all",), "There is no run folder '/nowhere/at/all'"),
    (("no_such_run",), "There is no run"),
]


@pytest.mark.parametrize(("source", "expected"), WRONG)
def test_what_is_not_there_is_one_sentence(source: tuple[str, ...], expected: str) -> None:
    code, out, error = run("compile-report", *source)
    assert (code, out) == (2, "")
    assert expected in error
    assert len(error.strip().splitlines()) == 1


def test_a_damaged_run_folder_is_one_sentence(tmp_path: Path) -> None:
    for name in ("params.json", "run.json"):
        (tmp_path / name).write_text("{")
    code, _, error = run("compile-report", str(tmp_path))
    assert code == 2
    assert "Cannot read" in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.slow
def test_a_sweep_and_a_run_without_jit_are_refused(tmp_path: Path) -> None:
    code, _, error = run("compile-report", "file", config_file(tmp_path, seeds=2))
    assert code == 2
    assert "a sweep of several" in error
    code, _, error = run("compile-report", "file", config_file(tmp_path, jit=False))
    assert code == 2
    assert "jit=False compiles nothing" in error
