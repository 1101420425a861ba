"""Our own peer asks jaxrl for what the others are asked for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.machine import ROOT
from benchmarks.peers.jaxrl_worker import make_config
from benchmarks.settings import DEFAULT_SETTINGS, parse_setting


@pytest.mark.parametrize("name", DEFAULT_SETTINGS)
def test_the_config_is_the_setting(name: str) -> None:
    setting = parse_setting(name)
    plan = make_config(setting).plan()
    assert (plan.num_envs, plan.rollout_fragment_length) == (setting.num_envs, setting.num_steps)
    assert (plan.num_epochs, plan.num_minibatches) == (4, 4)
    assert plan.minibatch_size == setting.minibatch_size


@pytest.mark.slow
def test_a_quick_run_measures_everything(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.speed", "--quick", "--settings", "8x16"]
    peers = ["--peers", "jaxrl,handwritten,handwritten-tuned", "--out", str(tmp_path)]
    subprocess.run([*command, *peers], cwd=ROOT, check=True, timeout=500)
    results = json.loads((tmp_path / "speed.json").read_text())
    assert set(results["throughput"]["8x16"]["ratios"]) == {"handwritten", "handwritten-tuned"}
    assert results["overhead"]["8x16"]["ratio"]["median"] > 0
    assert results["compile"]["cold"][0]["program_s"] > 0
