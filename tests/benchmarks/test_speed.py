"""Suites of `benchmarks.speed`, and training of several agents, with peers of known rates."""

import json
from pathlib import Path

import pytest

from benchmarks import figure, in_graph, multi_host, speed
from benchmarks.machine import ROOT
from benchmarks.settings import (
    HOST_PEERS,
    IMPALA,
    LIMITS,
    OURS,
    RECOMMENDATIONS,
)
from tests.benchmarks.fakes import start_fakes

RATES = {
    "jaxrl": 400_000.0,
    "rejax": 200_000.0,
    "sb3": 15_000.0,
    "rllib-2x16": 10_000.0,
    "jaxrl-local": 60_000.0,
    "jaxrl-2x4": 30_000.0,
    "jaxrl-impala": 50_000.0,
    "gymnasium": 120_000.0,
    "rllib-local": 6_000.0,
    "rllib-2x4": 8_000.0,
    "rllib-2x8": 15_000.0,
    "jaxrl-replay": 30_000.0,
    "sb3-replay": 1_000.0,
    "sb3-replay-threads": 1_500.0,
    "sbx": 2_500.0,
    "rejax-replay": 20_000.0,
    "products": 50_000.0,
    "feedforward": 100_000.0,
    "feedforward-512": 30_000.0,
    "lstm": 40_000.0,
    "gru": 50_000.0,
    "lru": 80_000.0,
    "jaxrl-local-lstm": 6_000.0,
    "rllib-local-lstm": 1_000.0,
    "jaxrl-agents": 6_000.0,
    "rllib-agents": 1_000.0,
    "sb3-pettingzoo": 2_000.0,
}
ROWS = {
    "in_graph": (
        "| 64x32 | jaxrl / rejax | 2.00 | 2.00 - 2.00 | 3 | at least 1.9: yes |",
        "| geometric mean | jaxrl / rejax | 2.00 | 2.00 - 2.00 | 9 | at least 1.8: yes |",
        "| 1.020 | 1.020 - 1.020 | at most 1.05: yes |",
        "| empty cache | 2.00 | 2.50 | 3 | at most 5.0 s: yes |",
        "do not divide these rates by one another",
        "cartpole_ppo.py) | 32 x 125 |",
    ),
    "host": (
        "| jaxrl-local / gymnasium | 0.50 | 0.50 - 0.50 | 3 | at least 0.4: yes |",
        "| jaxrl-local / rllib-2x8 | 4.00 | 4.00 - 4.00 | 3 | at least 5.0: no |",
        "| environment steps/s | 50,000 (50,000 - 50,000) |",
        "| fraction of time the actors wait | 0.25 |",
        "| maximum staleness | 4 |",
        "| 8x256 | jaxrl-local | 1.0 | 2,000,000 | 120,000 | stepping | 0.500 |",
    ),
    "replay": (
        "| dqn | jaxrl-replay / sb3-replay | 30.00 | 30.00 - 30.00 | 3 | at least 15.0: yes |",
        "| sac | jaxrl-replay / products | 0.60 | 0.60 - 0.60 | 3 | at least 0.5: yes |",
        "| dqn | sb3-replay | 4.000 | 2,000 | 2.00 |",
        "| sac | products | 1.0 | 2,000,000 | - | arithmetic | 0.025 | 0.025 - 0.025 |",
    ),
    "recurrent": (
        "| in_graph | lstm / feedforward | 0.40 | 0.40 - 0.40 | 3 | at least 0.5: no |",
        "| host | jaxrl-local-lstm / rllib-local-lstm | 6.00 | 6.00 - 6.00 | 3 | at least 5.0: yes |",
    ),
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Record the requests to peers, none of which is started."""
    seconds = {name: [1.0, 1.1, 1.2] for name in in_graph.IMPORT_STATEMENTS}
    monkeypatch.setattr(in_graph, "_measure_import_times", lambda rounds: seconds)
    return start_fakes(monkeypatch, RATES)


@pytest.mark.parametrize("name", ROWS)
def test_a_suite_writes_json_and_the_tables_it_prints(
    name: str,
    asked: list[tuple[str, str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert speed.main(["--suite", name, "--pairs", "3", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for row in ROWS[name]:
        assert row in printed
    suite = speed.SUITES[name]
    assert (tmp_path / f"{suite.stem}.md").read_text().strip() == printed.strip()
    results = json.loads((tmp_path / f"{suite.stem}.json").read_text())
    assert suite.render(results).strip() == printed.strip()
    if name == "host":  # IMPALA is alone on the machine
        assert max(asked.index((peer, "end")) for peer in HOST_PEERS) < asked.index(
            (IMPALA, "info")
        )
    if name == "in_graph":
        assert list(results["recommended"]["peers"]) == list(RECOMMENDATIONS)
        theirs, ours = ([c for n, c in asked if n == x] for x in ("rllib-2x16", LIMITS))
        assert theirs == ["info", "recommend", *["run"] * 4, "evaluate", "end"]
        assert "evaluate" not in ours


def test_all_suites_share_one_command(asked: list[tuple[str, str]], tmp_path: Path) -> None:
    options = ["--peers", "jaxrl", "--parts", "throughput", "--settings", "64x32"]
    assert speed.main(["--suite", "all", *options, "--pairs", "1", "--out", str(tmp_path)]) == 0
    names = {f"{s.stem}.{kind}" for s in speed.SUITES.values() for kind in ("json", "md")}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert {name for name, _ in asked} == {OURS}
    assert json.loads((tmp_path / "host.json").read_text())["throughput"] == {}


def test_committed_results_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(figure, "main", lambda argv: calls.append(argv) or 0)
    monkeypatch.setattr(figure, "RESULTS", tmp_path)
    nothing = ["--parts", "dqn", "--peers", "limits", "--suite", "replay"]
    for folder, drawn in (("elsewhere/machine", []), ("machine", [[]])):
        assert speed.main([*nothing, "--out", str(tmp_path / folder)]) == 0
        assert calls == drawn


def test_ratios_of_agents_are_of_ours_to_each_peer(
    asked: list[tuple[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert multi_host.main(["--pairs", "2", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "| 8 policies | rllib-agents | 1,000 (2 runs) | 6.00 (2 runs) |" in printed
    assert "| simple_spread | sb3-pettingzoo | 2,000 (2 runs) | 3.00 (2 runs) |" in printed
    assert asked.count(("rllib-agents", "run")) == 2 * 3  # two settings, a round to warm up and two


def test_sources_of_recommendations_can_be_looked_up() -> None:
    for name, own in RECOMMENDATIONS.items():
        if name == OURS:
            assert (ROOT / "benchmarks" / "results" / own.source).resolve().is_file()
        else:
            assert own.source.startswith("https://github.com/")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suite", "peers"),
    [
        ("in_graph", "jaxrl,handwritten,handwritten-tuned"),
        ("host", "jaxrl-local,jaxrl-2x4,gymnasium"),
        ("replay", "jaxrl-replay,products"),
        ("recurrent", "feedforward,feedforward-512,lstm,gru,lru,jaxrl-local-lstm"),
    ],
)
def test_a_quick_run_measures_everything_of_ours(suite: str, peers: str, tmp_path: Path) -> None:
    options = ["--suite", suite, "--quick", "--settings", "8x16", "--peers", peers]
    assert speed.main([*options, "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / f"{speed.SUITES[suite].stem}.json").read_text())
    for measured in results["throughput"].values():
        assert all(ratio["median"] > 0 for ratio in measured["ratios"].values())
    if suite == "host":
        assert results["impala"]["steps_per_s"]["median"] > 0
