"""Displays of a running experiment: a live panel on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from jaxrl import metrics
from jaxrl.core.wrapping import wrap_line
from jaxrl.loggers import text
from jaxrl.loggers.status import RunStatus
from jaxrl.runs import results

_PLAIN_INTERVAL_S = 2.0
_COLORS = {
    "building": "cyan",
    "compiling": "yellow",
    "training": "green",
    "evaluating": "magenta",
    "saving": "blue",
}


class Display(Protocol):
    """Display of a run, entered as a context manager for the duration of the run."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def set_phase(self, name: str) -> None:
        """Set the current phase: building, compiling, training, evaluating or saving."""
        ...

    def resume_from(self, result: results.Result) -> None:
        """Show the latest result of a restored run; it is empty for a new run."""
        ...

    def update(self, result: results.Result) -> None:
        """Show the result of an iteration."""
        ...

    def print_message(self, message: str) -> None:
        """Print a line that stays on screen."""
        ...


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


class PlainDisplay:
    """Display of at most one line every two seconds, plus one per evaluation and a final one."""

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
        self._title, self._console, self._device, self._clock = (
            title,
            console,
            describe_devices,
            clock,
        )
        self._printed_at = float("-inf")
        self._is_waiting = False

    def __enter__(self) -> Self:
        self.print_message(self._title)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.flush()

    def set_phase(self, name: str) -> None:
        if self.status.phase == "compiling" and name != "compiling":
            self.print_message(f"compiled in {text.format_duration(self.status.phase_s)}")
        if name == "compiling" and self.status.phase != "compiling":
            device = self._device()
            self.print_message("compiling" + (f" for {device}" if device else "") + " ...")
        self.status.set_phase(name)

    def resume_from(self, result: results.Result) -> None:
        self.status.resume_from(result)

    def update(self, result: results.Result) -> None:
        self.status.update(result)
        self._is_waiting = True
        if results.get_new_evaluation(result) or self._is_due():
            self._printed_at = self._clock()
            self.flush()

    def flush(self) -> None:
        """Print the latest iteration if its line was held back."""
        if self._is_waiting:
            self._is_waiting = False
            line = text.format_line(self.status.result, self.status.steps_per_s)
            self.print_message(line + self._format_remaining())

    def print_message(self, message: str) -> None:
        _print(self._console, message)

    def _is_due(self) -> bool:
        return self._clock() - self._printed_at >= _PLAIN_INTERVAL_S

    def _format_remaining(self) -> str:
        progress = self.status.compute_progress()
        if progress is None or progress.fraction is None:
            return ""
        time_left = (
            f", {text.format_duration(progress.eta_s)} left"
            if progress.eta_s and progress.fraction < 1.0
            else ""
        )
        return f"  {progress.fraction:.0%}{time_left}"


class LiveDisplay:
    """Panel that is redrawn four times a second, even while XLA compiles."""

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
        self._title, self._console, self._device = title, console, describe_devices
        self._spinner = Spinner("dots")
        self._ended = False
        self._live = Live(console=console, get_renderable=self.render, refresh_per_second=4)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended = True
        self._live.stop()

    def set_phase(self, name: str) -> None:
        self.status.set_phase(name)

    def resume_from(self, result: results.Result) -> None:
        self.status.resume_from(result)

    def update(self, result: results.Result) -> None:
        self.status.update(result)

    def print_message(self, message: str) -> None:
        _print(self._console, message)

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
        eta = (
            f"  {text.format_duration(progress.eta_s)} left"
            if progress.eta_s and progress.fraction < 1.0
            else ""
        )
        grid = Table.grid(padding=(0, 2))
        grid.add_column(width=24)
        grid.add_column()
        bar = ProgressBar(total=1.0, completed=progress.fraction, width=24)
        grid.add_row(bar, Text(f"{progress.fraction:4.0%}{eta}"))
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
        stats = metrics.lookup(self.status.result, "env_runners")
        returns = text.format_returns(stats) if isinstance(stats, Mapping) else None
        if returns is None:
            return Text("no episode has ended yet", style="dim")
        content = Text(returns, style="bold")
        content.append(f"   {text.format_sparkline(self.status.returns)}", style="green not bold")
        length = results.get_number(self.status.result, results.LEN_MEAN)
        if length is not None:
            content.append(f"   length {text.format_number(length)}", style="not bold")
        return content


def _print(console: Console, line: str) -> None:
    """Print a line, on a terminal without a break within a word."""
    rows = wrap_line(line, console.width) if console.is_terminal else [line]
    console.print("\n".join(rows), markup=False, highlight=False, soft_wrap=True)
