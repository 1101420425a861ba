"""What a user sees while a run goes on: a live panel, or plain lines where there is no terminal."""

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
from jaxrl.loggers import text
from jaxrl.loggers.status import RunStatus
from jaxrl.runs import results

_PLAIN_EVERY_S = 2.0
_COLOURS = {
    "building": "cyan",
    "compiling": "yellow",
    "training": "green",
    "evaluating": "magenta",
    "saving": "blue",
}


class Display(Protocol):
    """Follows a run from `with` to its end."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def phase(self, name: str) -> None:
        """The run is now building, compiling, training, evaluating or saving."""
        ...

    def goes_on_from(self, result: results.Result) -> None:
        """A run that was restored has this result already; empty for a new one."""
        ...

    def iteration(self, result: results.Result) -> None:
        """An iteration ended."""
        ...

    def message(self, words: str) -> None:
        """A line that stays."""
        ...


def open_display(
    title: str,
    stop: Mapping[str, Any],
    *,
    console: Console | None = None,
    device: Callable[[], str] = str,
) -> Display:
    """The live panel on a terminal, plain lines elsewhere.

    Args:
        title: What is trained, on what.
        stop: The stop criterion, for the progress bar.
        console: Where to draw; standard output by default.
        device: Says on what the run computes; asked at every drawing.
    """
    console = console or Console()
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveDisplay(title, stop, console=console, device=device)
    return PlainDisplay(title, stop, console=console, device=device)


class PlainDisplay:
    """At most one line every two seconds, plus one per evaluation and a last one."""

    def __init__(
        self,
        title: str,
        stop: Mapping[str, Any],
        *,
        console: Console,
        device: Callable[[], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.status = RunStatus(stop, clock)
        self._title, self._console, self._device, self._clock = title, console, device, clock
        self._printed_at = float("-inf")
        self._is_waiting = False
        self._announced = False

    def __enter__(self) -> Self:
        self.message(self._title)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.flush()

    def phase(self, name: str) -> None:
        if self.status.phase == "compiling" and name != "compiling":
            self.message(f"compiled in {text.duration(self.status.phase_s)}")
        if name == "compiling" and self.status.phase != "compiling":
            device = self._device()
            self.message("compiling" + (f" for {device}" if device else "") + " ...")
        self.status.enter(name)

    def goes_on_from(self, result: results.Result) -> None:
        self.status.goes_on_from(result)

    def iteration(self, result: results.Result) -> None:
        self.status.update(result)
        self._is_waiting = True
        if results.new_evaluation(result) or self._is_due():
            self._printed_at = self._clock()
            self.flush()

    def flush(self) -> None:
        """Print the latest iteration if its line was held back."""
        if self._is_waiting:
            self._is_waiting = False
            line = text.line(self.status.result, self.status.steps_per_s)
            self.message(line + self._remaining())

    def message(self, words: str) -> None:
        self._console.print(words, markup=False, highlight=False, soft_wrap=True)

    def _is_due(self) -> bool:
        return self._clock() - self._printed_at >= _PLAIN_EVERY_S

    def _remaining(self) -> str:
        progress = self.status.progress()
        if progress is None or progress.fraction is None:
            return ""
        left = (
            f", {text.duration(progress.eta_s)} left"
            if progress.eta_s and progress.fraction < 1.0
            else ""
        )
        return f"  {progress.fraction:.0%}{left}"


class LiveDisplay:
    """A panel redrawn four times a second, also while XLA compiles."""

    def __init__(
        self,
        title: str,
        stop: Mapping[str, Any],
        *,
        console: Console,
        device: Callable[[], str] = str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.status = RunStatus(stop, clock)
        self._title, self._console, self._device = title, console, device
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

    def phase(self, name: str) -> None:
        self.status.enter(name)

    def goes_on_from(self, result: results.Result) -> None:
        self.status.goes_on_from(result)

    def iteration(self, result: results.Result) -> None:
        self.status.update(result)

    def message(self, words: str) -> None:
        self._console.print(words, markup=False, highlight=False)

    def render(self) -> RenderableType:
        """The panel as it is now."""
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(style="dim", no_wrap=True)
        table.add_column(ratio=1)
        for label, value in self._rows():
            table.add_row(label, value)
        return Panel(
            Group(self._headline(), *self._bar(), table),
            title=Text(self._title, style="bold"),
            title_align="left",
            border_style="dim",
            # The terminal writes ^C behind the last character: on a full line it would break it.
            width=max(self._console.width - 3, 20),
        )

    def _headline(self) -> RenderableType:
        status = self.status
        if self._ended:
            return Text(f"ended after {text.duration(status.elapsed_s)}", style="bold")
        words = Text(status.phase, style=f"bold {_COLOURS.get(status.phase, 'white')}")
        if status.phase in ("building", "compiling"):
            words.append(f"  {text.duration(status.phase_s)}", style="not bold")
        words.append(f"   {text.duration(status.elapsed_s)} elapsed", style="dim not bold")
        self._spinner.update(text=words)
        return self._spinner

    def _bar(self) -> list[RenderableType]:
        progress = self.status.progress()
        if progress is None:
            return []
        words = f"{progress.name} {text.number(progress.value)} of {text.number(progress.target)}"
        if progress.fraction is None:
            return [Text(words, style="dim")]
        eta = (
            f"  {text.duration(progress.eta_s)} left"
            if progress.eta_s and progress.fraction < 1.0
            else ""
        )
        grid = Table.grid(padding=(0, 2))
        grid.add_column(width=24)
        grid.add_column()
        bar = ProgressBar(total=1.0, completed=progress.fraction, width=24)
        grid.add_row(bar, Text(f"{progress.fraction:4.0%}{eta}"))
        return [grid, Text(words, style="dim")]

    def _rows(self) -> list[tuple[str, RenderableType]]:
        status, result = self.status, self.status.result
        rows: list[tuple[str, RenderableType]] = [
            ("steps", self._steps()),
            ("return", self._return()),
        ]
        evaluated = text.returns(status.evaluation)
        if evaluated:
            words = f"{evaluated}   at iteration {text.number(status.evaluated_at)}"
            rows.append(("evaluated", Text(words, style="magenta")))
        stats = [f"{name} {text.number(value)}" for name, value in text.learner_stats(result)]
        if stats:
            rows.append(("learner", Text("   ".join(stats))))
        troubles = [f"{text.number(value)} {name}" for name, value in text.troubles(result)]
        if troubles:
            rows.append(("trouble", Text("   ".join(troubles), style="bold red")))
        compiled = status.seconds_in("compiling")
        if compiled:
            rows.append(("compile", Text(text.duration(compiled))))
        device = self._device()
        if device:
            rows.append(("device", Text(device)))
        return rows

    def _steps(self) -> Text:
        status = self.status
        iteration = text.number(results.number(status.result, results.ITERATION) or 0)
        words = Text(f"{text.number(results.env_steps(status.result))}   iteration {iteration}")
        if status.steps_per_s:
            words.append(f"   {text.rate(status.steps_per_s)} steps/s", style="bold")
        return words

    def _return(self) -> Text:
        stats = metrics.lookup(self.status.result, "env_runners")
        shown = text.returns(stats) if isinstance(stats, Mapping) else None
        if shown is None:
            return Text("no episode has ended yet", style="dim")
        words = Text(shown, style="bold")
        words.append(f"   {text.sparkline(self.status.returns)}", style="green not bold")
        length = results.number(self.status.result, results.LEN_MEAN)
        if length is not None:
            words.append(f"   length {text.number(length)}", style="not bold")
        return words
