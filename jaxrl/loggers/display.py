"""Displays of a running experiment: a live panel on a terminal or in a notebook, plain lines elsewhere."""

import abc
import dataclasses
import functools
import importlib
import io
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from jaxrl.core.wrapping import wrap_line
from jaxrl.loggers import text
from jaxrl.metrics import lookup
from jaxrl.runs import results

PHASES: tuple[str, ...] = ("building", "compiling", "training", "evaluating", "saving")
_MIN_RATE_WINDOW_S = 0.5  # of training per rate estimate; several iterations may arrive at once
_MAX_HISTORY = 240  # points of the sparkline; halved when full, so that it spans the whole run
_PLAIN_INTERVAL_S = 2.0
_COLORS = {
    "building": "cyan",
    "compiling": "yellow",
    "training": "green",
    "evaluating": "magenta",
    "saving": "blue",
}
REDRAW_INTERVAL_S = 0.25
WIDTH = 88
HTML_TEMPLATE = '<pre style="line-height: 1.2; white-space: pre">{code}</pre>'


# --- status of a run: phase, progress toward the stop criterion, throughput ---


@dataclasses.dataclass(frozen=True, kw_only=True)
class StopProgress:
    """Progress toward the stop criterion that is closest to being met.

    Attributes:
        name: Result key of the criterion.
        value: Current value.
        target: Value at which the run stops.
        fraction: `value / target`, clipped to [0, 1]; None if it is not a count (a return).
        eta_s: Estimated seconds until the target is reached, or None if unknown.
    """

    name: str
    value: float
    target: float
    fraction: float | None
    eta_s: float | None

    def format_time_left(self) -> str:
        """Format the time left: `1:05 left`; empty if it is unknown or the target is reached."""
        if not self.eta_s or self.fraction is None or self.fraction >= 1.0:
            return ""
        return f"{text.format_duration(self.eta_s)} left"


class RunStatus:
    """Phases and results of a run as they arrive, independent of any terminal.

    Args:
        stop: Stop criterion, `{"num_env_steps_sampled_lifetime": 500_000, ...}`.
        clock: Function that returns seconds since an arbitrary origin.
    """

    def __init__(
        self, stop: Mapping[str, Any] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.stop = dict(stop or {})
        self.result: results.Result = {}
        self.evaluation: Mapping[str, Any] = {}
        self.evaluated_at = 0
        self.returns: list[float] = []
        self.steps_per_s: float | None = None
        self.phase = PHASES[0]
        self._clock = clock
        self._started = self._phase_started = clock()
        self._seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self._stride, self._num_returns = 1, 0
        self._first: tuple[float, results.Result] | None = None
        self._last_steps: int | None = None
        self._last_trained = 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the display began."""
        return self._clock() - self._started

    @property
    def phase_s(self) -> float:
        """Seconds since the current phase began."""
        return self._clock() - self._phase_started

    def seconds_in(self, phase: str) -> float:
        """Return the seconds spent in a phase, including the current one."""
        return self._seconds.get(phase, 0.0) + (self.phase_s if phase == self.phase else 0.0)

    def set_phase(self, phase: str) -> None:
        """Set the current phase."""
        self._seconds[self.phase] = self.seconds_in(self.phase)
        self.phase, self._phase_started = phase, self._clock()
        self._seconds.setdefault(phase, 0.0)

    def resume_from(self, result: results.Result) -> None:
        """Start from the result of a restored run, without a rate or a remaining time."""
        if result:
            self.result = result
            self._last_steps = results.get_steps(result)

    def update(self, result: results.Result) -> None:
        """Record the result of an iteration."""
        self.result = result
        if self._first is None:
            self._first = (self._clock(), result)
        evaluation = results.get_new_evaluation(result)
        if evaluation:
            self.evaluation = evaluation
            self.evaluated_at = int(results.get_number(result, results.ITERATION) or 0)
        value = results.get_number(result, results.RETURN_MEAN)
        if value is not None:
            self._append_return(value)
        self._update_rate(result)

    def compute_progress(self) -> StopProgress | None:
        """Return progress toward the criterion closest to being met; counts precede returns."""
        known = [self._progress_toward(name, target) for name, target in self.stop.items()]
        counts = [item for item in known if item is not None and item.fraction is not None]
        if counts:
            return max(counts, key=lambda item: item.fraction or 0.0)
        return next((item for item in known if item is not None), None)

    def _progress_toward(self, name: str, target: object) -> StopProgress | None:
        value = results.get_number(self.result, name)
        if not isinstance(target, int | float):
            return None
        if not _is_count(name):
            if value is None:
                return None
            return StopProgress(name=name, value=value, target=target, fraction=None, eta_s=None)
        value = value or 0.0
        fraction = min(max(value / target, 0.0), 1.0) if target > 0 else 1.0
        eta = self._estimate_eta_s(name, value, target)
        return StopProgress(name=name, value=value, target=target, fraction=fraction, eta_s=eta)

    def _estimate_eta_s(self, name: str, value: float, target: float) -> float | None:
        if self._first is None:
            return None
        since, first = self._first
        gain = value - (results.get_number(first, name) or 0.0)
        elapsed = self._clock() - since
        return max(target - value, 0.0) * elapsed / gain if gain > 0 else None

    def _update_rate(self, result: results.Result) -> None:
        """Update the steps per second of training, excluding other phases."""
        steps, trained = results.get_steps(result), self.seconds_in("training")
        if trained <= 0.0:  # no phases are set, as in a script
            trained = results.get_number(result, results.TIME_TOTAL) or 0.0
        if self._last_steps is None:  # a resumed run has sampled earlier steps
            sampled = results.get_number(result, "env_runners/num_env_steps_sampled") or 0.0
            seconds = self.seconds_in("training") or (
                (results.get_number(result, "time_this_iter_s") or 0.0)
                - (results.get_number(result, results.COMPILE_SECONDS) or 0.0)
            )
        else:
            sampled, seconds = float(steps - self._last_steps), trained - self._last_trained
            if self.steps_per_s is not None and seconds < _MIN_RATE_WINDOW_S:
                return
        if sampled and seconds and seconds > 0.0:
            self.steps_per_s = sampled / seconds
        self._last_steps, self._last_trained = steps, trained

    def _append_return(self, value: float) -> None:
        if self._num_returns % self._stride == 0:
            self.returns.append(value)
        self._num_returns += 1
        if len(self.returns) > _MAX_HISTORY:
            self.returns = self.returns[::2]
            self._stride *= 2


def _is_count(name: str) -> bool:
    last = name.rsplit("/", maxsplit=1)[-1]
    return last in (results.ITERATION, results.TIME_TOTAL) or last.startswith("num_")


# --- displays ---


class Display(abc.ABC):
    """Display of a run, entered as a context manager for the duration of the run.

    Args:
        title: Title, such as "PPO on CartPole-v1".
        stop: Stop criterion, for the progress bar.
        console: Console to draw on.
        describe_devices: Function that describes the devices in use; called at every redraw.
        clock: Function that returns seconds since an arbitrary origin.
    """

    def __init__(
        self,
        title: str,
        stop: Mapping[str, Any],
        *,
        console: Console,
        describe_devices: Callable[[], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.status = RunStatus(stop, clock)
        self._title, self._console = title, console
        self._device, self._clock = describe_devices, clock

    @abc.abstractmethod
    def __enter__(self) -> Self: ...

    @abc.abstractmethod
    def __exit__(self, *error: object) -> None: ...

    def set_phase(self, name: str) -> None:
        """Set the current phase: building, compiling, training, evaluating or saving."""
        self.status.set_phase(name)

    def resume_from(self, result: results.Result) -> None:
        """Show the latest result of a restored run; it is empty for a new run."""
        self.status.resume_from(result)

    def update(self, result: results.Result) -> None:
        """Show the result of an iteration."""
        self.status.update(result)

    def print_message(self, message: str) -> None:
        """Print a line that stays on screen, on a terminal without a break within a word."""
        console = self._console
        rows = wrap_line(message, console.width) if console.is_terminal else [message]
        console.print("\n".join(rows), markup=False, highlight=False, soft_wrap=True)


def open_display(
    title: str,
    stop: Mapping[str, Any],
    *,
    console: Console | None = None,
    describe_devices: Callable[[], str] = str,
) -> Display:
    """Return a live panel on a terminal, or a display of plain lines elsewhere.

    Args:
        title: Title, such as "PPO on CartPole-v1".
        stop: Stop criterion, for the progress bar.
        console: Console to draw on; standard output by default.
        describe_devices: Function that describes the devices in use; called at every redraw.
    """
    console = console or Console()
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveDisplay(title, stop, console=console, describe_devices=describe_devices)
    return PlainDisplay(title, stop, console=console, describe_devices=describe_devices)


class PlainDisplay(Display):
    """Display of at most one line every two seconds, plus one per evaluation and a final one."""

    _printed_at = float("-inf")
    _is_waiting = False

    def __enter__(self) -> Self:
        self.print_message(self._title)
        return self

    def __exit__(self, *error: object) -> None:
        self.flush()

    def set_phase(self, name: str) -> None:
        if self.status.phase == "compiling" and name != "compiling":
            self.print_message(f"compiled in {text.format_duration(self.status.phase_s)}")
        if name == "compiling" and self.status.phase != "compiling":
            device = self._device()
            self.print_message("compiling" + (f" for {device}" if device else "") + " ...")
        super().set_phase(name)

    def update(self, result: results.Result) -> None:
        super().update(result)
        self._is_waiting = True
        is_due = self._clock() - self._printed_at >= _PLAIN_INTERVAL_S
        if results.get_new_evaluation(result) or is_due:
            self._printed_at = self._clock()
            self.flush()

    def flush(self) -> None:
        """Print the latest iteration if its line was held back."""
        if self._is_waiting:
            self._is_waiting = False
            line = text.format_line(self.status.result, self.status.steps_per_s)
            self.print_message(line + self._format_remaining())

    def _format_remaining(self) -> str:
        progress = self.status.compute_progress()
        if progress is None or progress.fraction is None:
            return ""
        left = progress.format_time_left()
        return f"  {progress.fraction:.0%}" + (f", {left}" if left else "")


class LiveDisplay(Display):
    """Panel that is redrawn four times a second, even while XLA compiles."""

    _ended = False

    @functools.cached_property
    def _spinner(self) -> Spinner:
        return Spinner("dots")

    @functools.cached_property
    def _live(self) -> Live:
        return Live(console=self._console, get_renderable=self.render, refresh_per_second=4)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended = True
        self._live.stop()

    def render(self) -> RenderableType:
        """Render the panel in its current state."""
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(style="dim", no_wrap=True)
        table.add_column(ratio=1)
        for label, value in self._render_rows():
            table.add_row(label, value)
        return Panel(
            Group(self._render_headline(), *self._render_progress(), table),
            title=Text(self._title, style="bold"),
            title_align="left",
            border_style="dim",
            # The terminal echoes ^C after the last character, which would wrap a full line.
            width=max(self._console.width - 3, 20),
        )

    def _render_headline(self) -> RenderableType:
        status = self.status
        if self._ended:
            return Text(f"ended after {text.format_duration(status.elapsed_s)}", style="bold")
        headline = Text(status.phase, style=f"bold {_COLORS.get(status.phase, 'white')}")
        if status.phase in ("building", "compiling"):
            headline.append(f"  {text.format_duration(status.phase_s)}", style="not bold")
        headline.append(
            f"   {text.format_duration(status.elapsed_s)} elapsed", style="dim not bold"
        )
        self._spinner.update(text=headline)
        return self._spinner

    def _render_progress(self) -> list[RenderableType]:
        progress = self.status.compute_progress()
        if progress is None:
            return []
        label = f"{progress.name} {text.format_number(progress.value)} of {text.format_number(progress.target)}"
        if progress.fraction is None:
            return [Text(label, style="dim")]
        grid = Table.grid(padding=(0, 2))
        grid.add_column(width=24)
        grid.add_column()
        bar = ProgressBar(total=1.0, completed=progress.fraction, width=24)
        left = progress.format_time_left()
        grid.add_row(bar, Text(f"{progress.fraction:4.0%}" + (f"  {left}" if left else "")))
        return [grid, Text(label, style="dim")]

    def _render_rows(self) -> list[tuple[str, RenderableType]]:
        status, result = self.status, self.status.result
        rows: list[tuple[str, RenderableType]] = [(self._unit, self._render_steps())]
        if not results.is_offline(result):
            rows.append(("return", self._render_return()))
        evaluated = text.format_returns(status.evaluation)
        if evaluated:
            summary = f"{evaluated}   at iteration {text.format_number(status.evaluated_at)}"
            rows.append(("evaluated", Text(summary, style="magenta")))
        stats = [
            f"{name} {text.format_number(value)}" for name, value in text.learner_stats(result)
        ]
        if stats:
            rows.append(("learner", Text("   ".join(stats))))
        faults = [
            f"{text.format_number(value)} {name}" for name, value in text.fault_counts(result)
        ]
        if faults:
            rows.append(("trouble", Text("   ".join(faults), style="bold red")))
        compiled = status.seconds_in("compiling")
        if compiled:
            rows.append(("compile", Text(text.format_duration(compiled))))
        device = self._device()
        if device:
            rows.append(("device", Text(device)))
        return rows

    @property
    def _unit(self) -> str:
        """Unit of progress: environment steps, or recorded rows."""
        return "rows" if results.is_offline(self.status.result) else "steps"

    def _render_steps(self) -> Text:
        status = self.status
        iteration = text.format_number(results.get_number(status.result, results.ITERATION) or 0)
        content = Text(
            f"{text.format_number(results.get_steps(status.result))}   iteration {iteration}"
        )
        stage = text.format_stage(status.result)
        if stage:
            content.append(f"   {stage}")
        if status.steps_per_s:
            content.append(
                f"   {text.format_rate(status.steps_per_s)} {self._unit}/s", style="bold"
            )
        return content

    def _render_return(self) -> Text:
        stats = lookup(self.status.result, "env_runners")
        returns = text.format_returns(stats) if isinstance(stats, Mapping) else None
        if returns is None:
            return Text("no episode has ended yet", style="dim")
        content = Text(returns, style="bold")
        content.append(f"   {text.format_sparkline(self.status.returns)}", style="green not bold")
        length = results.get_number(self.status.result, results.LEN_MEAN)
        if length is not None:
            content.append(f"   length {text.format_number(length)}", style="not bold")
        return content


class NotebookDisplay:
    """Panel of results in the output of a notebook cell, like the terminal's live panel.

    It needs no widgets, and the last drawing stays in the saved notebook. A run that is continued
    in another cell is shown there.

    Args:
        title: Title of the panel.
        stop: Stop criterion, for the progress bar.
        clock: Function that returns seconds since an arbitrary origin.
    """

    def __init__(
        self, title: str, stop: Mapping[str, Any], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = Console(
            file=io.StringIO(),
            record=True,
            width=WIDTH,
            force_jupyter=False,
            force_terminal=True,
            color_system="truecolor",
        )
        self._panel = LiveDisplay(title, stop, console=self._console, clock=clock)
        self._clock = clock
        self._last_drawn_at = float("-inf")
        self._output: tuple[Any, str] | None = None

    def update(self, result: results.Result) -> None:
        """Show the result of an iteration; skip the redraw if the last one was just now."""
        if self._panel.status.phase != "training":
            self._panel.set_phase("training")
        self._panel.update(result)
        progress = self._panel.status.compute_progress()
        is_done = progress is not None and progress.fraction == 1.0
        if is_done or self._clock() - self._last_drawn_at >= REDRAW_INTERVAL_S:
            self._draw()

    def flush(self) -> None:
        """Redraw the panel with the final result of the run."""
        if self._output is not None:
            self._panel.__exit__(None, None, None)
            self._draw(in_place=True)

    def _draw(self, *, in_place: bool = False) -> None:
        self._last_drawn_at = self._clock()
        self._console.print(self._panel.render())
        page = {
            "text/html": self._console.export_html(
                inline_styles=True, code_format=HTML_TEMPLATE, clear=False
            ),
            "text/plain": self._console.export_text(),
        }
        ipython = importlib.import_module("IPython.display")
        cell = importlib.import_module("IPython").get_ipython().execution_count
        if self._output is None or (self._output[0] != cell and not in_place):
            self._output = (cell, uuid.uuid4().hex)
            ipython.display(page, raw=True, display_id=self._output[1])
        else:
            ipython.update_display(page, raw=True, display_id=self._output[1])
