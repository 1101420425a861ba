"""The suite of whole commands: turns, ratios, failures, and its tables."""

from pathlib import Path

import pytest

from benchmarks import user, user_report
from jaxrl.bench.markdown import render_document
from jaxrl.bench.peers import PeerError

SLEEPS = {user.OURS: 0.02, user.HANDWRITTEN: 0.06, user.SB3: 0.02}


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        name: user.Command(arguments=("-c", f"import time; time.sleep({seconds})"))
        for name, seconds in SLEEPS.items()
    }
    monkeypatch.setattr(user, "COMMANDS", found)


@pytest.mark.usefixtures("commands")
def test_commands_take_turns_and_slow_ones_have_one_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []

    def timed(name: str, steps: int, folder: Path) -> float:
        log.append(name)
        return {user.OURS: 3.0, user.HANDWRITTEN: 4.0, user.SB3: 60.0}[name]

    monkeypatch.setattr(user, "time_command", timed)
    measured = user.measure_commands(list(SLEEPS), 100, 2, tmp_path)
    fast = [user.OURS, user.HANDWRITTEN]
    assert log == [*fast, *fast, user.SB3, *fast]  # the first round fills caches
    assert measured["ratios"][user.HANDWRITTEN]["median"] == pytest.approx(0.75)
    assert measured["ratios"][user.SB3]["count"] == 1


@pytest.mark.usefixtures("commands")
def test_a_command_is_timed_from_start_to_end(tmp_path: Path) -> None:
    assert user.time_command(user.HANDWRITTEN, user.STEPS, tmp_path) >= SLEEPS[user.HANDWRITTEN]


def test_a_command_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = user.Command(arguments=("-c", "raise SystemExit('no such thing')"))
    monkeypatch.setattr(user, "COMMANDS", {user.CACHED: bad})
    with pytest.raises(PeerError, match="no such thing"):
        user.time_command(user.CACHED, user.STEPS, tmp_path)


def test_what_commands_are_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home folder that stays or is new, steps in the words, and a cache where one is asked for."""
    show = "import os; print(os.environ['HOME'], os.environ.get('JAX_COMPILATION_CACHE_DIR'))"
    seen: list[tuple[list[str], dict[str, str]]] = []

    def run(line: list[str], cwd: Path, env: dict[str, str]) -> str:
        seen.append((line, env))
        return ""

    monkeypatch.setattr(user, "run_process", run)
    found = {
        user.OURS: user.Command(arguments=("-c", show)),
        user.COLD: user.Command(arguments=("-c", show), has_new_home=True),
        user.CACHED: user.Command(arguments=("-c", show, "{steps}"), uses_jax_cache=True),
    }
    monkeypatch.setattr(user, "COMMANDS", found)
    for name in (user.OURS, user.OURS, user.COLD, user.COLD, user.CACHED):
        user.time_command(name, 100, tmp_path)
    homes = [env["HOME"] for _, env in seen]
    assert homes[0] == homes[1]
    assert len(set(homes[2:4])) == 2
    assert seen[4][0][-1] == "100"
    assert seen[4][1]["JAX_COMPILATION_CACHE_DIR"].startswith(homes[4])
    assert "num_env_steps_sampled_lifetime" in seen[0][0][-1]  # not the file's own number of steps


def estimate(median: float) -> dict[str, float]:
    return {"median": median, "low": 0.9 * median, "high": 1.1 * median, "count": 7}


def test_the_tables_say_what_was_reached() -> None:
    peers = {
        name: {"median": estimate(seconds), "seconds": [seconds]}
        for name, seconds in ((user.OURS, 8.0), (user.HANDWRITTEN, 12.0))
    }
    results = {
        "machine": {"cpu": "a", "cores": 2, "memory_gib": 1.0, "system": "s", "python": "3"},
        "date": "2026-01-02",
        "command": "python -m benchmarks.speed --suite user",
        "quick": False,
        "load": {"before": 0.1, "after": 0.2},
        "env_steps": 500_000,
        "commands": {"peers": peers, "ratios": {user.HANDWRITTEN: estimate(0.6)}},
        "iterations": {
            "medians": {"whole": estimate(100_000.0), "single": estimate(80_000.0)},
            "ratio": {"median": 0.8, "low": 0.79, "high": 0.81, "count": 7},
        },
        "latency": {"compute_single_action": {"p10": 1e-4, "p50": 1.2e-4, "p99": 1e-3}},
    }
    results["machine"] |= {"environment": {}}
    text = user_report.render_markdown(results)
    assert "at most 0.75: yes" in text
    assert "aim: at least 0.85; reached: no" in text
    assert "Aim: at most 0.15 at p50; reached: yes" in text
    readme = render_document(user_report.build_readme_table(results))
    assert "| 8.0 s |" in readme
    assert "| 80,000 steps/s |" in readme
    assert "| 0.12 ms |" in readme
