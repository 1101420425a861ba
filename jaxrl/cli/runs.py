"""What `jaxrl train`, `resume` and `evaluate` do: display, signals, and the words at the end."""

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from jaxrl import metrics
from jaxrl.cli import terminal
from jaxrl.cli.command import command
from jaxrl.cli.errors import notes_of
from jaxrl.cli.interrupts import Interrupts, Raised
from jaxrl.config.deserialize import config_from_serializable
from jaxrl.config.stop import stop_reached
from jaxrl.errors import ConfigError, JaxrlError, RunFolderError, did_you_mean
from jaxrl.loggers import text
from jaxrl.loggers.display import Display, open_display
from jaxrl.loggers.json_sink import read_results
from jaxrl.runs import results
from jaxrl.runs.checkpoint import (
    complete_checkpoints,
    find_checkpoint,
    is_checkpoint,
    read_metadata,
    set_aside_later,
)
from jaxrl.runs.host_state import check_metadata, trust_in
from jaxrl.runs.run_folder import (
    RunFolder,
    check_name,
    is_run_folder,
    iteration_of,
    results_root,
)
from jaxrl.sweeps.state import is_sweep_folder, read_sweep

logger = logging.getLogger("jaxrl")

if TYPE_CHECKING:
    from jaxrl.algorithm import Algorithm
    from jaxrl.config.load import Experiment


def train(experiment: "Experiment", log_level: int | None = None) -> int:
    """Trains from the beginning; returns the exit code."""
    config, stop = experiment.config, experiment.stop
    if config.debugging_settings.run_name is not None:
        check_name(config.debugging_settings.run_name)
    config.debugging(loggers=_without_console(config.debugging_settings.loggers))
    config.update_from_dict(_level(log_level))
    title = f"{config.algo_name} on {config.environment_settings.env}"
    return _run(title, stop, config.build)


def resume(
    run: str,
    stop: Mapping[str, float] | None,
    log_level: int | None = None,
    *,
    trust: Sequence[str] | None = None,
) -> int:
    """Goes on with a run in its own folder, from its newest checkpoint or one that is named.

    Returns:
        The exit code.
    """
    path, chosen = _run_of(find_run(run))
    with RunFolder.open(path) as folder:
        criterion = _criterion(folder, stop)
        if is_sweep_folder(folder.path):
            return _resume_sweep(folder, criterion, log_level, trust)
        checkpoint = chosen or checkpoint_of(folder.path)
        iteration = iteration_of(checkpoint)
        _refuse_reached(folder, _reached(folder.result_file, iteration, criterion), iteration)
        settings = {**_quiet_loggers(checkpoint, trust), **_level(log_level)}
        build = functools.partial(_restored, folder, checkpoint, trust=trust, **settings)
        return _run(f"{folder.name}, from {checkpoint.name}", criterion, build)


def _restored(folder: RunFolder, checkpoint: Path, **settings: Any) -> "Algorithm":
    """The run at a checkpoint; later ones, of which it goes on otherwise, are put aside."""
    from jaxrl.algorithm import Algorithm

    algorithm = Algorithm.from_checkpoint(checkpoint, run_folder=folder, **settings)
    for path in set_aside_later(folder.checkpoints, iteration_of(checkpoint)):
        logger.warning("A later checkpoint of the run was renamed, to %s.", path)
    return algorithm


def _run_of(given: Path) -> tuple[Path, Path | None]:
    """The run folder that a path means, and its checkpoint where the path is one of these."""
    path = given.expanduser()
    if is_run_folder(path) or not is_checkpoint(path):
        return path, None
    run = path.resolve().parent.parent
    if path.resolve().parent != run / "checkpoints" or not is_run_folder(run):
        raise RunFolderError(
            f"{path} is a checkpoint in no run folder, so there is no run to go on with: "
            "Algorithm.from_checkpoint goes on from it in a run of its own."
        )
    return run, path.resolve()


def _resume_sweep(
    folder: RunFolder,
    stop: Mapping[str, float],
    log_level: int | None,
    trust: Sequence[str] | None,
) -> int:
    from jaxrl.sweeps.population import Population
    from jaxrl.sweeps.trials import Trials

    saved = read_sweep(folder.path)
    iteration, trials = saved["training_iteration"], bool(saved.get("trials"))
    lanes = [path for path in folder.path.glob("lane_*") if is_run_folder(path)]
    going_on = [path for path in lanes if str(int(path.name[5:])) not in saved["diverged"]]
    reached = [
        _reached(path / "result.json", _newest(path) if trials else iteration, stop)
        for path in going_on
    ]
    if reached and all(reached):
        _refuse_reached(folder, reached[0], iteration)
    kind: Any = Trials if trials else Population
    build = functools.partial(
        kind.from_checkpoint, folder.path, run_folder=folder, trust=trust, **_level(log_level)
    )
    return _run(f"{folder.name}, from iteration {iteration}", stop, build)


def evaluate(
    checkpoint: str,
    episodes: int | None,
    log_level: int | None = None,
    *,
    video: bool = False,
    trust: Sequence[str] | None = None,
) -> None:
    """Prints the returns of a saved policy."""
    from jaxrl.algorithm import Algorithm

    console = Console()
    path = checkpoint_of(find_run(checkpoint))
    overrides: dict[str, Any] = {"trust": trust, **_level(log_level)}
    if video:
        overrides["record_video"] = True
    waiting = console.status(f"loading {path.name} and compiling its evaluation")
    with (
        Raised(),
        terminal.held(console),
        waiting,
        Algorithm.from_checkpoint(str(path), **overrides) as algo,
    ):
        found = algo.evaluate(num_episodes=episodes, video_folder=_video_folder(path))
    for line in [*_evaluation_lines(found), f"checkpoint        {path}"]:
        typer.echo(line)


def checkpoint_of(path: Path) -> Path:
    """The checkpoint that a path means, or the newest of a run.

    Raises:
        RunFolderError: The run ended before it had one.
        CheckpointError: The path is neither.
    """
    if is_run_folder(path) and not complete_checkpoints(path / "checkpoints"):
        raise RunFolderError(
            f"{path} has no checkpoint yet: the run ended before the first was saved. Train it anew."
        )
    return find_checkpoint(path)


def _without_console(loggers: Sequence[Any]) -> list[Any]:
    """The display takes the place of the sink that prints."""
    return [sink for sink in loggers if sink != "console"]


def _quiet_loggers(checkpoint: Path, trust: Sequence[str] | None) -> dict[str, Any]:
    """The override that keeps a resumed run from printing beside the display."""
    saved = read_metadata(checkpoint)
    check_metadata(saved, checkpoint)
    if "loggers" in saved["not_saved"]:
        return {}  # objects, which only the user has; restoring says so
    trusted = trust_in(checkpoint, trust, quietly=True)
    config = config_from_serializable(saved["config"], trust=trusted)
    return {"loggers": _without_console(config.debugging_settings.loggers)}


def _run(title: str, stop: Mapping[str, float], build: Callable[[], "Algorithm"]) -> int:
    console = Console()
    device = _Device()
    display = open_display(title, stop, console=console, device=device)
    interrupts = Interrupts(
        on_first=lambda name: display.message(
            f"{name}: saving after this iteration; once more ends at once, without saving"
        ),
        before_abort=functools.partial(_put_terminal_in_order, console),
    )
    with interrupts:
        try:
            with terminal.held(console):
                lines = _built_and_trained(build, stop, display, device, interrupts)
        except JaxrlError as error:
            if not interrupts.requested:
                raise
            # The signal may have reached processes of environments too: it is what ended the run.
            lines = [f"error: {error}", *notes_of(error)]
        with contextlib.suppress(OSError):  # a terminal or pipe that is gone
            for line in lines:
                typer.echo(line)
    return interrupts.exit_code


def _built_and_trained(
    build: Callable[[], "Algorithm"],
    stop: Mapping[str, float],
    display: Display,
    device: "_Device",
    interrupts: Interrupts,
) -> list[str]:
    with display:
        display.phase("building")
        with build() as algo:
            if not stop:
                display.message("no stop criterion was given: training until Ctrl-C")
            device.devices = algo.devices
            display.goes_on_from(algo.last_result)
            for note in algo.notes:
                display.message(note)
            return _end_of(algo, stop, display, interrupts)


def _end_of(
    algo: "Algorithm", stop: Mapping[str, float], display: Display, interrupts: Interrupts
) -> list[str]:
    from jaxrl.sweeps.base import SweepRuns

    sweep: Any = algo
    if isinstance(sweep, SweepRuns):
        from jaxrl.cli import sweeps

        return sweeps.train_to_the_end(sweep, stop, display, interrupts)
    return _train_to_the_end(algo, stop, display, interrupts)


def _train_to_the_end(
    algo: "Algorithm", stop: Mapping[str, float], display: Display, interrupts: Interrupts
) -> list[str]:
    """Trains, saves, evaluates and draws; returns what to print when the display is gone."""
    from jaxrl.cli import hints

    algo.on_phase = display.phase
    folder = algo.run_folder
    folder.save_stop_criterion(stop)
    display.message(f"run folder  {folder.path}")
    follow = hints.following(display, algo.config, algo.devices, algo.iteration)
    algo.fit(stop, on_iteration=follow, should_stop=lambda: interrupts.requested)
    checkpoint = _final_checkpoint(algo)
    lines = [f"run folder        {folder.path}"]
    if folder.learning_curve.exists():
        lines.append(f"learning curve    {folder.learning_curve}")
    lines.append(f"checkpoint        {checkpoint}")
    if interrupts.requested:
        return [*lines, f"go on with        {command('resume', folder.path)}"]
    display.phase("evaluating")
    evaluated = _evaluation_lines(algo.evaluate())
    return [*evaluated, *lines, f"evaluate it with  {command('evaluate', checkpoint)}"]


def _final_checkpoint(algo: "Algorithm") -> Path:
    """The checkpoint of the last iteration, saved now if `fit` did not."""
    folder = algo.run_folder.checkpoints
    saved = complete_checkpoints(folder)
    if not saved or iteration_of(saved[-1]) != algo.iteration:
        algo.save()
        saved = complete_checkpoints(folder)
    return saved[-1]


def _newest(run: Path) -> int:
    """The iteration of a run's newest checkpoint; 0 without one."""
    saved = complete_checkpoints(run / "checkpoints")
    return iteration_of(saved[-1]) if saved else 0


def _criterion(folder: RunFolder, stop: Mapping[str, float] | None) -> dict[str, float]:
    if stop is not None:
        return dict(stop)
    stored = folder.stop_criterion
    if stored is None:
        raise ConfigError(
            f"{folder.name} was never given a stop criterion, since it was trained from Python: "
            "give one, as in --steps 100000 or --stop '{\"training_iteration\": 100}'."
        )
    return stored


def _reached(result_file: Path, iteration: int, stop: Mapping[str, float]) -> str | None:
    """The sentence on a criterion that was reached at an iteration."""
    if not result_file.is_file():
        return None
    rows = read_results(result_file, containing=f'"{results.ITERATION}": {iteration},')
    found = (stop_reached(row, dict(stop)) for row in rows)
    return next((sentence for sentence in found if sentence), None)


def _refuse_reached(folder: RunFolder, sentence: str | None, iteration: int) -> None:
    if sentence:
        raise ConfigError(
            f"{folder.name} is done: {sentence}; give a later criterion, as in "
            f"--stop '{{\"{results.ITERATION}\": {iteration + 100}}}'."
        )


def _evaluation_lines(result: results.Result) -> list[str]:
    stats = metrics.lookup(result, "env_runners")
    stats = stats if isinstance(stats, Mapping) else {}
    episodes = results.number(stats, "num_episodes") or 0
    mean = results.number(stats, "episode_return_mean")
    videos = [f"video             {path}" for path in metrics.lookup(result, "videos") or ()]
    if mean is None:
        return ["evaluated return  no episode ended within the evaluation", *videos]
    parts = [f"{text.number(mean)} on average"]
    for name in ("std", "min", "max"):
        value = results.number(stats, f"episode_return_{name}")
        if value is not None:
            parts.append(f"{name} {text.number(value)}")
    length = results.number(stats, "episode_len_mean")
    steps = "" if length is None else f" of {text.number(length)} steps on average"
    return [
        f"evaluated return  {'  '.join(parts)}",
        f"                  over {text.number(episodes)} episodes{steps}",
        *videos,
    ]


def _video_folder(checkpoint: Path) -> Path:
    """Where videos of a checkpoint's policy go: to its run, or else beside it."""
    folder = checkpoint.resolve().parent
    return (folder.parent if is_run_folder(folder.parent) else folder) / "videos"


def find_run(given: str) -> Path:
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


def _put_terminal_in_order(console: Console) -> None:
    """Shows the cursor that the live display hides, and leaves the display's last line."""
    console.show_cursor(True)
    terminal.give_back()
    os.write(2, b"\naborted\n")  # past the display, which holds the streams


def _level(log_level: int | None) -> dict[str, Any]:
    """The setting that -v stands for, which wins over the config's."""
    return {} if log_level is None else {"log_level": logging.getLevelName(log_level)}


class _Device:
    """Says what the run computes on, once that is decided: asking earlier would decide it."""

    def __init__(self) -> None:
        self.devices: list[Any] = []

    def __call__(self) -> str:
        if not self.devices:
            return ""
        stats = [device.memory_stats() for device in self.devices]
        used = sum(memory["bytes_in_use"] for memory in stats if memory)
        shown = f", {used / 2**30:.1f} GiB in use" if used else ""
        return f"{len(self.devices)} x {self.devices[0].device_kind}{shown}"
