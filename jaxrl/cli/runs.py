"""What `jaxrl train`, `resume` and `evaluate` do: display, signals, and the words at the end."""

import functools
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import typer
from rich.console import Console

from jaxrl import metrics
from jaxrl.checkpoint import find_checkpoint
from jaxrl.cli.experiments import json_object
from jaxrl.cli.interrupts import Interrupts
from jaxrl.config.stop import parse_stop
from jaxrl.errors import RunFolderError, did_you_mean
from jaxrl.logging import results, text
from jaxrl.logging.display import Display, open_display
from jaxrl.logging.plots import draw_learning_curve
from jaxrl.logging.run_folder import RunFolder, is_run_folder, results_root

if TYPE_CHECKING:
    from jaxrl.algorithm import Algorithm
    from jaxrl.config.load import Experiment


def train(experiment: "Experiment") -> int:
    """Trains from the beginning; returns the exit code."""
    config, stop = experiment.config, experiment.stop
    # The display takes the place of the sink that prints.
    loggers = config.debugging_settings.loggers
    config.debugging(loggers=[sink for sink in loggers if sink != "console"])
    title = f"{config.algo_name} on {config.environment_settings.env}"
    return _run(title, stop, config.build)


def resume(run: str, stop: str | None) -> int:
    """Goes on with a run in its own folder; returns the exit code."""
    from jaxrl.algorithm import Algorithm

    folder = RunFolder.open(_find(run))
    criterion = folder.stop_criterion if stop is None else parse_stop(json_object("--stop", stop))
    checkpoint = find_checkpoint(folder.path)
    build = functools.partial(Algorithm.from_checkpoint, str(checkpoint), run_folder=folder)
    return _run(f"{folder.name}, from {checkpoint.name}", criterion, build)


def evaluate(checkpoint: str, episodes: int | None) -> None:
    """Prints the returns of a saved policy."""
    from jaxrl.algorithm import Algorithm

    console = Console()
    path = find_checkpoint(_find(checkpoint))
    waiting = console.status(f"loading {path.name} and compiling its evaluation")
    with waiting, Algorithm.from_checkpoint(str(path)) as algo:
        found = algo.evaluate(num_episodes=episodes)
    for line in [*_evaluation_lines(found), f"checkpoint        {path}"]:
        typer.echo(line)


def _run(title: str, stop: Mapping[str, float], build: Callable[[], "Algorithm"]) -> int:
    console = Console()
    device = _Device()
    display = open_display(title, stop, console=console, device=device)
    interrupts = Interrupts(
        on_first=lambda name: display.message(
            f"{name}: saving after this iteration; once more ends at once, without saving"
        ),
        before_abort=lambda: console.print("\naborted"),
    )
    with interrupts, display:
        if not stop:
            display.message("no stop criterion was given: training until Ctrl-C")
        display.phase("building")
        with build() as algo:
            device.devices = algo.devices
            lines = _train_to_the_end(algo, stop, display, interrupts)
    for line in lines:
        typer.echo(line)
    return interrupts.exit_code


def _train_to_the_end(
    algo: "Algorithm", stop: Mapping[str, float], display: Display, interrupts: Interrupts
) -> list[str]:
    """Trains, saves, evaluates and draws; returns what to print when the display is gone."""
    algo.on_phase = display.phase
    folder = algo.run_folder
    folder.save_stop_criterion(stop)
    display.message(f"run folder  {folder.path}")
    algo.fit(stop, on_iteration=display.iteration, should_stop=lambda: interrupts.requested)
    display.phase("saving")
    checkpoint = algo.save()
    curve = draw_learning_curve(folder)
    lines = [f"run folder        {folder.path}"]
    if curve is not None:
        lines.append(f"learning curve    {curve}")
    lines.append(f"checkpoint        {checkpoint}")
    if interrupts.requested:
        return [*lines, f"go on with        {_command('resume', folder.path)}"]
    display.phase("evaluating")
    evaluated = _evaluation_lines(algo.evaluate())
    return [*evaluated, *lines, f"evaluate it with  {_command('evaluate', checkpoint)}"]


def _command(verb: str, path: str | Path) -> str:
    return f"jaxrl {verb} {shlex.quote(str(path))}"


def _evaluation_lines(result: results.Result) -> list[str]:
    stats = metrics.lookup(result, metrics.ENV_RUNNERS)
    stats = stats if isinstance(stats, Mapping) else {}
    episodes = results.number(stats, metrics.NUM_EPISODES) or 0
    mean = results.number(stats, metrics.EPISODE_RETURN_MEAN)
    if mean is None:
        return ["evaluated return  no episode ended within the evaluation"]
    parts = [f"{text.number(mean)} on average"]
    for name in ("std", "min", "max"):
        value = results.number(stats, f"episode_return_{name}")
        if value is not None:
            parts.append(f"{name} {text.number(value)}")
    length = results.number(stats, metrics.EPISODE_LEN_MEAN)
    steps = "" if length is None else f" of {text.number(length)} steps on average"
    return [
        f"evaluated return  {'  '.join(parts)}",
        f"                  over {text.number(episodes)} episodes{steps}",
    ]


def _find(given: str) -> Path:
    """A path as it is, or the run of this name in the results folder."""
    path = Path(given).expanduser()
    root = results_root()
    if path.exists() or not (root.is_dir() and path.name == given):
        return path
    runs = [entry.name for entry in root.iterdir() if is_run_folder(entry)]
    if given not in runs:
        raise RunFolderError(
            f"There is no run '{given}', here or in {root}.{did_you_mean(given, runs)}"
        )
    return root / given


class _Device:
    """Says what the run computes on, once that is decided: asking earlier would decide it."""

    def __init__(self) -> None:
        self.devices: list[jax.Device] = []

    def __call__(self) -> str:
        if not self.devices:
            return ""
        stats = [device.memory_stats() for device in self.devices]
        used = sum(memory["bytes_in_use"] for memory in stats if memory)
        shown = f", {used / 2**30:.1f} GiB in use" if used else ""
        return f"{len(self.devices)} x {self.devices[0].device_kind}{shown}"
