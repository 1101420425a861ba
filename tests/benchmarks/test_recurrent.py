"""The suite of recurrent modules: what peers are asked for, and what the tables say."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import recurrent as peers
from benchmarks import speed
from benchmarks.machine import ROOT
from benchmarks.peers import jaxrl_host_worker, jaxrl_worker
from benchmarks.settings import Setting
from tests.benchmarks.fake_workers import start_fakes

RATES = {
    peers.FEEDFORWARD: 100_000.0,
    peers.WIDE: 30_000,
    peers.LSTM: 40_000.0,
    peers.GRU: 50_000.0,
    peers.LRU: 80_000.0,
    peers.HOST_LSTM: 6_000.0,
    peers.RLLIB_LSTM: 1_000.0,
}


def test_a_run_writes_json_and_the_table_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start_fakes(monkeypatch, RATES)
    assert speed.main(["--suite", "recurrent", "--pairs", "3", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for row in (
        "| in_graph | lstm / feedforward | 0.40 | 0.40 - 0.40 | 3 | at least 0.5: no |",
        "| in_graph | lstm / lru | 0.50 | 0.50 - 0.50 | 3 | - |",
        "| in_graph | lstm | 1.0 | 2,000,000 | 120,000 | stepping | 0.333 | 0.333 - 0.333 |",
        "| host | jaxrl-local-lstm / rllib-local-lstm | 6.00 | 6.00 - 6.00 | 3 | at least 5.0: yes |",
    ):
        assert row in printed
    assert (tmp_path / "recurrent.md").read_text().strip() == printed.strip()
    results = json.loads((tmp_path / "recurrent.json").read_text())["throughput"]
    assert {part: set(measured["peers"]) for part, measured in results.items()} == {
        "in_graph": set(peers.IN_GRAPH),
        "images": set(peers.IMAGES),
        "host": set(peers.HOST),
    }


def test_networks_differ_in_their_second_layer_alone() -> None:
    settings = peers.make_settings("in_graph")
    plain = jaxrl_worker.make_config(settings[peers.FEEDFORWARD])
    lstm = jaxrl_worker.make_config(settings[peers.LSTM])
    assert replace(lstm.plan(), sequence_length=None) == plain.plan()
    assert lstm.plan().sequence_length == 16
    assert plain.rl_module_settings.model_config["fcnet_hiddens"] == [64, 64]
    model = lstm.rl_module_settings.model_config
    assert (model["fcnet_hiddens"], model["lstm_cell_size"]) == ([64], 64)
    assert (model["use_lstm"], model["recurrent_layer_type"]) == (True, "lstm")


def test_images_go_through_a_convolution_before_the_second_layer() -> None:
    settings = peers.make_settings("images")
    for name in peers.IMAGES:
        setting = settings[name]
        assert Setting.from_dict(json.loads(json.dumps(setting.to_dict()))) == setting
        config = jaxrl_worker.make_config(setting)
        assert config.env == "Breakout-MinAtar"
        assert config.rl_module_settings.model_config["conv_filters"] == [[16, 3, 1]]


def test_both_peers_on_the_host_are_asked_for_the_same() -> None:
    settings = peers.make_settings("host")
    assert len(set(settings.values())) == 1
    plan = jaxrl_host_worker.make_ppo_config(settings[peers.HOST_LSTM]).plan()
    assert (plan.num_envs, plan.minibatch_size) == (8, 128)
    assert Setting.from_dict(settings[peers.HOST_LSTM].to_dict()) == settings[peers.RLLIB_LSTM]


@pytest.mark.slow
def test_a_quick_run_measures_everything_of_ours(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.speed", "--suite", "recurrent", "--quick"]
    names = ["--peers", ",".join([*peers.IN_GRAPH, peers.HOST_LSTM]), "--out", str(tmp_path)]
    subprocess.run([*command, *names], cwd=ROOT, check=True, timeout=500)
    results = json.loads((tmp_path / "recurrent.json").read_text())
    assert results["throughput"]["in_graph"]["ratios"][peers.FEEDFORWARD]["median"] > 0
