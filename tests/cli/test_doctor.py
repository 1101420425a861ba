"""`jaxrl doctor`: what is found, what is wrong, and that nothing stops it."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest
from packaging.requirements import Requirement
from typer.testing import CliRunner

from jaxrl import __version__
from jaxrl.cli import doctor
from jaxrl.cli.app import app
from jaxrl.cli.doctor import Installed, find_extra, find_requirements, list_extras
from jaxrl.runtime import devices
from jaxrl.runtime.compilation_cache import get_cache_contents, use_temporary_cache
from jaxrl.runtime.program import can_reuse_programs

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _options_are_restored() -> Any:
    """The examination sets JAX's cache, as a run does."""
    with use_temporary_cache():
        yield


def run() -> tuple[int, dict[str, str], list[str]]:
    """Exit code, findings and problems."""
    done = CliRunner().invoke(app, ["doctor"], prog_name="jaxrl", catch_exceptions=False)
    text, _, problems = done.stdout.partition("\n\n")
    found = dict(re.split(r"  +", line, maxsplit=1) for line in text.splitlines())
    return done.exit_code, found, problems.splitlines()


def test_what_there_is_is_found() -> None:
    code, found, problems = run()
    assert (code, problems) == (0, ["no problems found"])
    assert found["jaxrl"] == __version__
    assert found["jax"].startswith(f"{jax.__version__} (supported: >=0.10, tested: ")
    assert found["jaxlib"].startswith(importlib.metadata.version("jaxlib"))
    assert found["devices"].startswith(f"{jax.local_device_count()} x {jax.default_backend()}, ")
    assert found["cores"] == f"{devices.count_usable_cores()} usable of {os.cpu_count()}"
    assert re.match(r"[\d.]+ GiB", found["memory"])
    assert found["results"] == os.environ["JAXRL_RESULTS_DIR"]
    assert found["Ray"].startswith(importlib.metadata.version("ray"))
    assert "ale-py" in found["jaxrl[atari]"]
    packages = found["jaxrl[offline]"].split(", ")
    assert len(packages) == len(set(packages))
    assert found["XLA_FLAGS"] == os.environ["XLA_FLAGS"]
    assert "hits possible" in found["compilation cache"]


def test_the_tested_versions_are_those_of_the_constraints() -> None:
    lines = (ROOT / "constraints.txt").read_text()
    pinned = re.findall(r"^jax==(\d+\.\d+)", lines, re.MULTILINE)
    assert sorted(pinned) == list(doctor.TESTED_JAX)


def test_a_fresh_process_with_an_empty_home_creates_no_folder_of_results(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jaxrl", "doctor"],
        cwd=tmp_path,
        env={"HOME": str(tmp_path / "home"), "JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{tmp_path}/home/.cache/jaxrl/xla, 0 programs" in done.stdout
    assert done.stdout.endswith("no problems found\n")
    assert not (tmp_path / "home" / "jaxrl_results").exists()


def test_a_broken_jax_is_one_problem_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "jax.py").write_text("raise ImportError('no module named libjax')")
    done = subprocess.run(
        [sys.executable, "-m", "jaxrl", "doctor"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "")
    (problem,) = re.findall(r"^- (.*)$", done.stdout, re.MULTILINE)
    assert problem.startswith("JAX: ImportError: no module named libjax. Install it again")
    assert "jaxrl[atari]" in done.stdout


def test_devices_that_do_not_start_are_one_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("Unable to initialize backend 'cuda'")

    monkeypatch.setattr(jax, "local_devices", fail)
    code, found, problems = run()
    assert code == 1
    assert len(problems) == 2
    assert problems[1].startswith("- devices: RuntimeError: Unable to initialize backend")
    assert "JAX_PLATFORMS" in problems[1]
    assert "compilation cache" not in found


def test_an_idle_gpu_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if jax.default_backend() != "cpu":
        pytest.skip("the GPU is in use")
    monkeypatch.setattr(doctor, "NVIDIA_DRIVER", tmp_path)
    before = jax.config.values["jax_platforms"]
    try:
        jax.config.update("jax_platforms", None)
        code, _, problems = run()
        assert code == 1
        assert "pip install 'jaxrl[cuda12]'" in problems[1]
        jax.config.update("jax_platforms", "cpu")
        assert run()[0] == 0  # the CPU was chosen
    finally:
        jax.config.update("jax_platforms", before)


def test_folders_that_cannot_be_written_are_problems(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAXRL_RESULTS_DIR", "/proc/nowhere")
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/elsewhere")
    code, found, problems = run()
    assert code == 1
    assert found["compilation cache"] == "none: every process compiles anew"
    assert any("XDG_CACHE_HOME" in problem for problem in problems)
    assert any("/proc/nowhere" in p and "JAXRL_RESULTS_DIR" in p for p in problems)


def test_a_full_disk_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MIN_FREE_BYTES", 2**80)
    code, _, problems = run()
    assert code == 1
    assert "MiB left" in problems[1]


def test_a_key_that_others_can_read_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    key = tmp_path / "jaxrl" / "signing_key"
    key.parent.mkdir()
    key.write_bytes(b"x" * 32)
    key.chmod(0o644)
    assert any("chmod 600" in problem for problem in run()[2])
    key.chmod(0o600)
    assert run()[0] == 0


def test_versions_outside_of_the_supported_range_are_problems(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = importlib.metadata.version
    others = {"jax": "0.9.9", "numpy": "1.26.0"}

    def version(name: str) -> str:
        if name == "optax":
            raise importlib.metadata.PackageNotFoundError(name)
        return others.get(name, real(name))

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(doctor.platform, "python_version", lambda: "3.10.4")
    code, _, problems = run()
    assert code == 1
    text = "\n".join(problems)
    for words in (
        "Python 3.10.4 is not supported",
        "jax has version 0.9.9, but jaxrl needs jax>=0.10: pip install 'jax>=0.10'",
        "numpy has version 1.26.0",
        "optax is not installed",
    ):
        assert words in text
    others["jax"] = "0.12.1"
    assert "pip install 'jax<0.12'" in "\n".join(run()[2])


def test_a_checkout_that_is_not_installed_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    list_extras.cache_clear()
    for function in ("metadata", "requires"):
        monkeypatch.setattr(importlib.metadata, function, missing)
    code, found, problems = run()
    list_extras.cache_clear()
    assert code == 1
    assert "not installed" in found["jaxrl"]
    assert "pip install -e" in problems[1]


class TestRequirements:
    def test_extras_include_those_of_other_packages(self) -> None:
        names = {found.requirement.name for found in find_extra("jaxrl", "box2d")}
        assert "gymnasium" not in names
        assert {"box2d"} <= names
        assert find_extra("jaxrl", "no-such-extra") == []

    def test_an_extra_of_a_missing_package_is_missing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def version(name: str) -> str:
            raise importlib.metadata.PackageNotFoundError(name)

        monkeypatch.setattr(importlib.metadata, "version", version)
        (found,) = find_extra("jaxrl", "box2d")
        assert (found.requirement.name, found.version) == ("gymnasium", None)
        code, printed, _ = run()
        assert printed["jaxrl[box2d]"] == "not installed: pip install 'jaxrl[box2d]'"
        assert code == 1

    def test_the_extras_for_development_are_left_out(self) -> None:
        assert {"atari", "video", "wandb", "tune"} <= set(list_extras("jaxrl"))
        assert not {"dev", "docs", "test"} & set(list_extras("jaxrl"))
        names = {found.requirement.name for found in find_requirements("jaxrl")}
        assert {"jax", "ray", "typer"} <= names
        assert "wandb" not in names

    @pytest.mark.parametrize(
        ("version", "is_met"), [("0.10.0", True), ("0.9", False), (None, False), ("0.11rc1", True)]
    )
    def test_a_requirement_is_met(self, version: str | None, is_met: bool) -> None:
        assert Installed(requirement=Requirement("jax>=0.10"), version=version).is_met is is_met


def test_a_temporary_cache_leaves_jax_as_it_was(tmp_path: Path) -> None:
    before = json.dumps({n: str(v) for n, v in jax.config.values.items()}, sort_keys=True)
    with use_temporary_cache():
        contents = get_cache_contents()
        assert contents is not None
        assert contents.entries == 0
        assert can_reuse_programs()
    assert not Path(contents.folder).exists()
    assert json.dumps({n: str(v) for n, v in jax.config.values.items()}, sort_keys=True) == before
