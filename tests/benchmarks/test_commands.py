"""Every command runs in its quick form, and refuses names that it does not know."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import external, golden, machine, measure, offline, soak, user
from benchmarks.commands import Benchmark
from benchmarks.settings import EPISODE_LENGTH, RLLIB_OFFLINE
from jaxrl.bench.peers import PeerError
from tests.helpers import need_package

pytestmark = [
    pytest.mark.allow_key_reuse,  # of vmapped environments
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Brax System"),
]

QUICK: dict[str, tuple[list[str], list[str]]] = {
    "dreamer": ([], ["| jaxrl-dreamer |", "| handwritten-dreamer |"]),
    "envs": (["--games", "Breakout"], ["| Breakout |"]),
    "export": ([], ["| Pendulum, SAC, 2 x 256 |"]),
    "external": ([], [f"| {name} |" for name in external.CASES]),
    "multi": (
        ["--peers", "jaxrl-multi", "--tasks", "spread"],
        ["| spread | jaxrl-multi |"],
    ),
    "multi_training": (
        ["--peers", "jaxrl-teams", "--settings", "VDN, 32 envs;one agent"],
        ["| VDN, 32 envs | jaxrl-teams |", "| one agent / single |"],
    ),
    "offline": (
        ["--peers", "jaxrl-offline,handwritten-offline"],
        ["| IQL, 2 x 64, 64 rows | handwritten-offline |", "## Reading"],
    ),
    "packages": ([], ["| brax:inverted_pendulum |", "| craftax:Craftax-Classic-Symbolic-v1 |"]),
    "recording": ([], ["| in-graph 4x128 |", "| host 8x256 |"]),
    "serve": ([], ["| 32 clients |"]),
    "training_step": (["--settings", "4x128"], ["| 4x128 |"]),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "envs" else [pytest.mark.slow]) for n in QUICK]
)
def test_a_quick_run_prints_the_table_that_it_writes(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    for env in module.ENVS if name == "packages" else ():
        need_package(env)
    arguments, rows = QUICK[name]
    assert module.main(["--quick", *arguments, "--out", str(tmp_path)]) == 0
    text = (tmp_path / f"{name}.md").read_text()
    assert capsys.readouterr().out.endswith(text + "\n")
    assert "Quick run" in text
    for row in rows:
        assert row in text
    benchmark: Benchmark = module.BENCHMARK
    assert benchmark.render(json.loads((tmp_path / f"{name}.json").read_text())) == text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        (
            "accelerator",
            ["--quick", "--widths", "4x16,8x16", "--levers", "rbg keys"],
            "| 8x16 | rbg keys |",
        ),
        (
            "serve_soak",
            ["--minutes", "0.1", "--interval", "2", "--clients", "2"],
            "| requests | failed | checkpoints |",
        ),
    ],
)
def test_a_short_run_draws_its_figures(
    name: str, arguments: list[str], words: str, tmp_path: Path
) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    assert module.main([*arguments, "--out", str(tmp_path)]) == 0
    assert words in (tmp_path / f"{name}.md").read_text()
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_what_does_not_fit_in_the_time_is_said(tmp_path: Path) -> None:
    accelerator = importlib.import_module("benchmarks.accelerator")
    options = ["--quick", "--widths", "4x16", "--levers", "", "--minutes", "0"]
    assert accelerator.main([*options, "--out", str(tmp_path)]) == 0
    assert "no time was left" in (tmp_path / "accelerator.md").read_text()


WRONG = [
    ("accelerator", ["--levers", "magic"], "'magic' is not one of rbg keys"),
    ("accelerator", ["--widths", "wide"], "ENVSxSTEPS"),
    ("envs", ["--games", "Pong"], "'Pong' is not one of Breakout"),
    ("multi", ["--peers", "jaxmarl,somebody"], "'somebody' is not one of"),
    ("multi_host", ["--settings", "3 policies"], "'3 policies' is not one of"),
    ("multi_training", ["--settings", "IPPO, 17 envs"], "'IPPO, 17 envs' is not one of"),
    ("offline", ["--rows", "-1"], "--rows: -1 is less than 0"),
    ("soak", ["--runs", "sb3"], "not one of jaxrl-local, jaxrl-2x4"),
    ("soak", ["--minutes", "1", "--interval", "5"], "at least 20 readings"),
    ("soak", ["--interval", "0"], "at least 20 readings"),
    ("speed", ["--peers", "rejaxx"], "rejaxx"),
    ("speed", ["--settings", "64"], "64"),
    ("speed", ["--parts", "x"], "'x' is not one of"),
    ("speed", ["--peers", "gymnasium"], "gymnasium"),
    ("speed", ["--suite", "host", "--peers", "rejax"], "rejax"),
    ("speed", ["--suite", "hosts"], "hosts"),
]


@pytest.mark.parametrize(("name", "arguments", "words"), WRONG)
def test_a_wrong_option_ends_with_2(
    name: str, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        importlib.import_module(f"benchmarks.{name}").main(arguments)
    assert error.value.code == 2
    assert words in capsys.readouterr().err


def test_a_narrowed_run_leaves_the_committed_results_alone() -> None:
    envs: Benchmark = importlib.import_module("benchmarks.envs").BENCHMARK
    assert envs.parse([]).out.parent == machine.RESULTS
    for options in (["--quick"], ["--games", "Asterix"]):
        assert envs.parse(options).out.name == ".benchmarks"
    intel = {"cpu": "Intel(R) Xeon(R) Processor @ 2.50GHz", "cores": 2}
    assert machine.make_folder_name(intel) == "intel-xeon-2-50ghz-2-cores"


def test_a_peer_without_its_checkout_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("JAX_CORL", raising=False)
    with pytest.raises(SystemExit, match="jax-corl needs a checkout of JAX-CORL, JAX_CORL=FOLDER"):
        offline.main(["--quick", "--peers", "jaxrl-offline,jax-corl"])


def test_functions_take_turns_and_the_first_round_is_not_counted() -> None:
    log: list[str] = []
    functions = {name: lambda name=name: log.append(name) or 2.0 for name in "abc"}
    rates = measure.measure_rates(functions, 3, 10.0)
    assert log == [*"abc", *"bca", *"cab", *"abc"]
    assert rates == {name: [5.0] * 3 for name in "abc"}


class Reader:
    """Reader that takes 0.5 or 20 seconds, and may lose rows."""

    def __init__(self, seconds: float, lost: int) -> None:
        self.seconds, self.lost = seconds, lost

    def ask(self, command: str, data: str) -> dict[str, Any]:
        num_rows = EPISODE_LENGTH if Path(data).stem == "few" else 2 * EPISODE_LENGTH
        return {"seconds": self.seconds, "num_rows": num_rows - self.lost}


def test_readers_read_all_rows(tmp_path: Path) -> None:
    readers: dict[str, Any] = {offline.OURS: Reader(0.5, 0), RLLIB_OFFLINE: Reader(20.0, 0)}
    reading = offline.measure_reading(readers, tmp_path, 2 * EPISODE_LENGTH, 2)
    assert reading is not None
    assert reading["ratio"][RLLIB_OFFLINE]["median"] == 40.0
    assert offline.measure_reading(readers, tmp_path, 0, 2) is None
    readers[RLLIB_OFFLINE].lost = 1
    with pytest.raises(PeerError, match=f"{RLLIB_OFFLINE} has read 1999 rows of 2000"):
        offline.measure_reading(readers, tmp_path, 2 * EPISODE_LENGTH, 2)


@pytest.mark.slow
def test_equal_runs_have_equal_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (golden.run_case("classic/cartpole-ppo") for _ in range(2))
    assert first["state"] == second["state"]
    monkeypatch.setattr(golden, "ITERATIONS", 2)
    assert golden.run_case("classic/cartpole-ppo")["state"] != first["state"]


def test_digests_are_of_configs_that_do_not_depend_on_speed() -> None:
    names = golden.list_shipped()
    assert "classic/cartpole-ppo" in names
    assert "gymnasium/cartpole-impala" not in names
    assert not [name for name in names if name.startswith("sweeps/")]


def test_commands_have_a_home_steps_and_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(user, "run_process", lambda line, cwd, env: calls.append((line, env)))
    for name in (user.OURS, user.OURS, user.COLD, user.COLD, user.CACHED):
        user.time_command(name, 100, tmp_path)
    homes = [env["HOME"] for _, env in calls]
    assert homes[0] == homes[1]
    assert len(set(homes[2:4])) == 2
    assert calls[4][0][-1] == "100"
    assert calls[4][1]["JAX_COMPILATION_CACHE_DIR"].startswith(homes[4])
    assert "num_env_steps_sampled_lifetime" in calls[0][0][-1]  # not the file's number of steps


class Training:
    """Run in no time, whose second actor leaks after a minute."""

    def __init__(self, mb_per_minute: float) -> None:
        self.now, self.leak = 100.0, mb_per_minute

    def ask(self, command: str, seconds: float) -> dict[str, Any]:
        self.now += seconds + 0.1
        return {"env_steps": 2048, "driver": 1, "runners": [2, 3]}

    def read(self, reply: object) -> soak.MemoryUsage:
        minutes = (self.now - 100.0) / 60
        return {"driver": (300.0, 200.0), "actor 2": (100.0 + 50.0 * min(minutes, 1.0) + self.leak * minutes, 50.0)}  # fmt: skip


@pytest.mark.parametrize("leak", [0.0, 1.5])
def test_the_slope_of_memory_is_that_of_the_time_after_the_warm_up(leak: float) -> None:
    run: Any = Training(leak)
    times = {"warmup_s": 60.0, "length_s": 300.0, "interval_s": 5.0}
    trace = soak.watch(run, **times, read=run.read, clock=lambda: run.now)
    result = soak.summarize(trace, 60.0)
    slopes = result["slopes"]["resident"]
    assert slopes["actor 2"]["slope"] == pytest.approx(leak, abs=1e-9)
    assert slopes["driver"]["slope"] == pytest.approx(0.0, abs=1e-9)
    assert result["env_steps"] == 2048 * len(result["seconds"])
