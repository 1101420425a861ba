import fcntl
import io
import os
import pty
import shlex
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from jaxrl.core.wrapping import wrap_line
from jaxrl.loggers import text
from jaxrl.loggers.display import LiveDisplay, PlainDisplay, RunStatus, open_display
from jaxrl.loggers.sinks import ConsoleSink

STOP = {"num_env_steps_sampled_lifetime": 1000.0, "env_runners/episode_return_mean": 450.0}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def result(iteration: int, **more: Any) -> dict[str, Any]:
    return {
        "training_iteration": iteration,
        "num_env_steps_sampled_lifetime": iteration * 100,
        "time_total_s": 2.0 * iteration,
        "time_this_iter_s": 2.0,
        "env_runners": {
            "episode_return_mean": 20.5 * iteration,
            "episode_return_min": 9.0,
            "episode_return_max": 500.0,
            "episode_len_mean": 33.25,
            "num_env_steps_sampled": 100,
        },
        "learners": {
            "default_policy": {
                "policy_loss": -0.01234,
                "vf_loss": 12.5,
                "mean_kl_loss": 0.0021,
                "entropy": 0.69,
                "curr_lr": 3e-4,
            }
        },
        "fault_tolerance": {"num_nonfinite_updates": 0},
        **more,
    }


def evaluated(iteration: int, mean: float, *, new: bool = True) -> dict[str, Any]:
    """A result with an evaluation, its own or an earlier one repeated."""
    stats = {"episode_return_mean": mean, "num_episodes": 10}
    timers = {"evaluation_s": 0.5} if new else {}
    return result(iteration, evaluation={"env_runners": stats}, timers=timers)


class TestStatus:
    def test_without_phases_the_rate_is_that_of_the_results(self) -> None:
        status = RunStatus()
        for iteration, total in ((1, 10.0), (2, 10.2), (3, 11.0)):
            status.update(
                {
                    "env_runners": {"num_env_steps_sampled": 100},
                    "num_env_steps_sampled_lifetime": 100 * iteration,
                    "time_this_iter_s": 10.0,
                    "time_total_s": total,
                }
            )
        assert status.steps_per_s == pytest.approx(200.0)  # over the second that followed the first

    def test_progress_is_the_count_that_is_nearest(self) -> None:
        clock = Clock()
        status = RunStatus({"training_iteration": 100.0, **STOP}, clock)
        status.update(result(1))
        clock.now += 6.0
        status.update(result(4))
        progress = status.compute_progress()
        assert progress is not None
        assert progress.name == "num_env_steps_sampled_lifetime"
        assert progress.fraction == pytest.approx(0.4)
        assert progress.eta_s == pytest.approx(12.0)  # 300 steps took 6 s, 600 are left

    def test_a_resumed_run_estimates_from_its_own_pace(self) -> None:
        clock = Clock()
        status = RunStatus(STOP, clock)
        status.update(result(8))
        clock.now += 1.0
        status.update(result(9))
        progress = status.compute_progress()
        assert progress is not None
        assert progress.eta_s == pytest.approx(1.0)

    def test_a_restored_run_begins_with_its_figures(self) -> None:
        clock = Clock()
        status = RunStatus(STOP, clock)
        status.resume_from({})
        assert status.result == {}
        status.resume_from(result(8))
        progress = status.compute_progress()
        assert progress is not None
        assert (progress.fraction, progress.eta_s) == (pytest.approx(0.8), None)
        status.set_phase("training")
        clock.now += 2.0
        status.update(result(9))
        assert status.steps_per_s == pytest.approx(50.0)

    def test_a_return_alone_has_no_fraction(self) -> None:
        status = RunStatus({"env_runners/episode_return_mean": 450.0})
        assert status.compute_progress() is None
        status.update(result(3))
        progress = status.compute_progress()
        assert progress is not None
        assert (progress.fraction, progress.value, progress.target) == (None, 61.5, 450.0)

    def test_throughput_counts_training_and_nothing_else(self) -> None:
        clock = Clock()
        status = RunStatus({}, clock)
        for phase, seconds in (("compiling", 5.0), ("training", 2.0), ("evaluating", 3.0)):
            status.set_phase(phase)
            clock.now += seconds
        status.set_phase("training")
        status.update(result(1))
        assert status.steps_per_s == pytest.approx(50.0)
        clock.now += 4.0
        status.update(result(3))
        assert status.steps_per_s == pytest.approx(50.0)
        assert status.seconds_in("compiling") == pytest.approx(5.0)

    @pytest.mark.parametrize(("compile_s", "rate"), [(0.0, 50.0), (1.5, 200.0)])
    def test_throughput_without_phases_is_the_iterations_own(
        self, compile_s: float, rate: float
    ) -> None:
        status = RunStatus({}, Clock())
        status.update(result(1, timers={"compile_s": compile_s}))
        assert status.steps_per_s == pytest.approx(rate)
        status.update(result(2))
        assert status.steps_per_s == pytest.approx(50.0)

    def test_the_history_stays_short_and_spans_the_whole_run(self) -> None:
        status = RunStatus()
        for i in range(5000):
            status.update(result(i))
        assert 60 <= len(status.returns) <= 240
        assert status.returns[0] == 0.0
        assert status.returns[-1] > 20.5 * 4800


class TestText:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (1234567.0, "1,234,567"),
            (12345.6, "12,346"),
            (123.456, "123.5"),
            (0.0123456, "0.0123"),
            (3e-4, "0.0003"),
            (-2.5e-7, "-2.5e-07"),
            (0.0, "0"),
            (1.5e20, "1.5e+20"),
        ],
    )
    def test_number(self, value: float, expected: str) -> None:
        assert text.format_number(value) == expected

    @pytest.mark.parametrize(
        ("seconds", "expected"), [(3.21, "3.2 s"), (65, "1:05"), (7384, "2:03:04")]
    )
    def test_duration(self, seconds: float, expected: str) -> None:
        assert text.format_duration(seconds) == expected

    @pytest.mark.parametrize(
        ("value", "expected"), [(812.0, "812"), (45123.0, "45.1k"), (3.2e6, "3.2M")]
    )
    def test_rate(self, value: float, expected: str) -> None:
        assert text.format_rate(value) == expected

    def test_sparkline(self) -> None:
        assert text.format_sparkline([]) == ""
        assert text.format_sparkline([5.0, 5.0]) == "▁▁"
        assert text.format_sparkline([0.0, 3.5, 7.0]) == "▁▅█"
        assert text.format_sparkline([float(i) for i in range(100)], width=8) == "▁▂▃▄▅▆▇█"

    def test_a_line_says_what_happened(self) -> None:
        trouble = {"num_nonfinite_updates": 3, "num_nonfinite_updates_in_a_row": 2}
        line = text.format_line(result(2, fault_tolerance=trouble), steps_per_s=54321.0)
        assert line == (
            "iteration 2  steps 200  return 41 (9 to 500)  length 33.25  policy loss -0.0123  "
            "vf loss 12.5  kl 0.0021  entropy 0.69  lr 0.0003  54.3k steps/s  4.0 s  "
            "NONFINITE UPDATES 3"
        )

    def test_the_stage_of_a_curriculum_is_that_of_the_result(self) -> None:
        row = result(2, curriculum={"stage": 1, "task": {"size": 8}})
        assert "steps 200  stage 1  return 41" in text.format_line(row)
        for without in ({}, {"curriculum": {"task": {"size": 8}}}):  # of env_task_fn
            assert "stage" not in text.format_line(result(2, **without))

    def test_a_run_in_which_no_episode_ended(self) -> None:
        assert "no episode has ended yet" in text.format_line(
            {"training_iteration": 1, "env_runners": {}}
        )

    def test_several_modules_are_told_apart(self) -> None:
        learners = {"a": {"policy_loss": 1.0}, "b": {"policy_loss": 2.0}, "count": 3}
        assert list(text.learner_stats({"learners": learners})) == [
            ("a policy loss", 1.0),
            ("b policy loss", 2.0),
        ]


class TestPlain:
    def open(self, clock: Callable[[], float]) -> tuple[PlainDisplay, io.StringIO]:
        out = io.StringIO()
        console = Console(file=out, width=40)
        display = PlainDisplay(
            "PPO on X", STOP, console=console, clock=clock, describe_devices=lambda: "cpu"
        )
        return display, out

    def test_few_lines_and_the_last_one_always(self) -> None:
        clock = Clock()
        display, out = self.open(clock)
        with display:
            display.set_phase("compiling")
            clock.now += 3.2
            for i in range(1, 8):
                display.set_phase("training")
                clock.now += 0.5
                display.update(result(i))
        lines = out.getvalue().splitlines()
        assert lines[:3] == ["PPO on X", "compiling for cpu ...", "compiled in 3.2 s"]
        assert [line.split()[1] for line in lines[3:]] == ["1", "5", "7"]
        assert lines[4].endswith("50%, 2.5 s left")
        assert "\x1b" not in out.getvalue()

    def test_a_new_evaluation_is_shown_at_once_and_an_old_one_is_not_repeated(self) -> None:
        clock = Clock()
        display, out = self.open(clock)
        with display:
            display.update(result(1))
            display.update(evaluated(2, 77.5))
            display.update(evaluated(3, 77.5, new=False))
            display.update(evaluated(4, 77.5))
            display.update(result(5))
            display.update(result(6))
        lines = out.getvalue().splitlines()[1:]
        assert [line.split()[1] for line in lines] == ["1", "2", "4", "6"]
        assert ["evaluated return 77.5" in line for line in lines] == [False, True, True, False]


class TestLive:
    def screen(self, display: LiveDisplay, console: Console) -> str:
        with console.capture() as capture:
            console.print(display.render())
        return capture.get()

    def test_the_panel_shows_what_happens(self) -> None:
        clock = Clock()
        console = Console(width=100, force_terminal=True, color_system=None, file=io.StringIO())
        display = LiveDisplay(
            "PPO on X", STOP, console=console, clock=clock, describe_devices=lambda: "2 x cpu"
        )
        display.set_phase("compiling")
        clock.now += 3.5
        before = self.screen(display, console)
        assert "compiling  3.5 s" in before
        assert "no episode has ended yet" in before
        for i in range(1, 5):
            display.set_phase("training")
            clock.now += 2.0
            display.update(evaluated(i, 33.0))
        trouble = {"num_nonfinite_env_steps": 4}
        more = {"fault_tolerance": trouble, "curriculum": {"stage": 3, "task": None}}
        display.update({**evaluated(5, 44.0), **more})
        shown = self.screen(display, console)
        for words in (
            "PPO on X",
            "training",
            " 50%",
            "num_env_steps_sampled_lifetime 500 of 1,000",
            "iteration 5   stage 3",
            "50 steps/s",
            "102.5 (9 to 500)",
            "▁▃▅▆█",
            "length 33.25",
            "44   at iteration 5",
            "policy loss -0.0123",
            "kl 0.0021",
            "4 nonfinite env steps",
            "2 x cpu",
        ):
            assert words in shown, f"{words!r} is not in\n{shown}"

    def test_it_is_redrawn_while_the_main_thread_is_busy(self) -> None:
        out = io.StringIO()
        console = Console(width=100, height=30, force_terminal=True, color_system=None, file=out)
        with LiveDisplay("PPO on X", {}, console=console) as display:
            display.set_phase("compiling")
            time.sleep(0.8)
            drawn = out.getvalue()
            display.print_message("a line that stays")
        assert drawn.count("compiling") >= 2
        assert "a line that stays" in out.getvalue()
        assert "ended after" in out.getvalue()
        assert out.getvalue().rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_the_terminal_decides_which_display_opens() -> None:
    terminal = Console(force_terminal=True, file=io.StringIO(), _environ={"TERM": "xterm"})
    dumb = Console(force_terminal=True, file=io.StringIO(), _environ={"TERM": "dumb"})
    assert isinstance(open_display("t", {}, console=terminal), LiveDisplay)
    assert isinstance(open_display("t", {}, console=dumb), PlainDisplay)
    assert isinstance(open_display("t", {}, console=Console(file=io.StringIO())), PlainDisplay)


def test_the_console_sink_prints_few_lines_and_the_last_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sink = ConsoleSink()
    for i in range(1, 6):
        sink.write(result(i))
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == ["iteration 1"]
    sink.close()
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("iteration 5  steps 500")
    assert "50 steps/s" in line


PATH = "/results/of/everything/PPO_CartPole-v1_2026-01-01_08-16-49/checkpoints/checkpoint_000010"
LINES = [
    f"run folder        {PATH}",
    f"evaluate it with  jaxrl evaluate {PATH} --episodes 20",
    "evaluated return  -123.4 on average  std 112.25  min -1,234  max -40.18",
    "                  over 20 episodes of 123.4 steps on average",
    "iteration 5  steps 20,000  return 123.5 (10 to 385)  length 123.5  policy loss -0.00296",
    "error: lr must be a number or a list [[timestep, value], ...] or a function, got '3e-4'.",
    "",
]


@pytest.mark.parametrize("width", [40, 60, 80, 100])
@pytest.mark.parametrize("line", LINES)
def test_a_line_is_broken_between_words(line: str, width: int) -> None:
    rows = wrap_line(line, width)
    for row in rows:
        assert len(row) <= width or row.removesuffix(" \\").strip() == PATH
    assert " ".join(row.removesuffix("\\") for row in rows).split() == line.split()
    if "evaluate it" in line:
        command = "\n".join(rows).removeprefix("evaluate it with").replace("\\\n", "")
        assert shlex.split(command) == ["jaxrl", "evaluate", PATH, "--episodes", "20"]


@pytest.mark.parametrize("width", [40, 60])
def test_the_lines_of_commands_fit_the_terminal(width: int) -> None:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    code = f"from jaxrl.cli.terminal import echo; echo({LINES[2]!r})"
    environ = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    subprocess.run([sys.executable, "-c", code], check=True, stdout=follower, env=environ)
    os.close(follower)
    rows = os.read(leader, 4096).decode().splitlines()
    os.close(leader)
    assert rows == wrap_line(LINES[2], width)


def test_messages_beside_the_panel_are_broken_between_words() -> None:
    console = Console(width=60, force_terminal=True, color_system=None, file=io.StringIO())
    for display in (
        LiveDisplay("PPO on X", {}, console=console),
        PlainDisplay("PPO on X", {}, console=console),
    ):
        with console.capture() as capture:
            display.print_message(LINES[2])
        assert capture.get().splitlines() == wrap_line(LINES[2], 60)


def test_accounts_are_no_troubles() -> None:
    result = {
        "fault_tolerance": {
            "num_env_steps_received_lifetime": 500,
            "num_healthy_env_runners": 2,
            "num_env_runner_restarts": 3,
            "num_sub_env_restarts": 0,
            "num_nonfinite_updates": 1,
        }
    }
    assert dict(text.fault_counts(result)) == {"env runner restarts": 3, "nonfinite updates": 1}
