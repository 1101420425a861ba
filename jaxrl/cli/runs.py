"""Implementation of `jaxrl train` and `resume`: display, signals, final output."""

import contextlib
import functools
import itertools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from jaxrl.cli import terminal
from jaxrl.cli.command import format_command
from jaxrl.cli.errors import get_notes, make_log_level_override
from jaxrl.cli.evaluation import format_evaluation
from jaxrl.cli.experiments import check_steps_option
from jaxrl.cli.interrupts import Interrupts
from jaxrl.cli.records import find_run, resolve_checkpoint
from jaxrl.config.datasets import iter_sources
from jaxrl.config.serialize import deserialize_config
from jaxrl.config.settings.run import WITHOUT_CALLBACKS
from jaxrl.config.stop import find_reached_criterion
from jaxrl.errors import ConfigError, JaxrlError, RunFolderError
from jaxrl.loggers.display import Display, open_display
from jaxrl.loggers.sinks import read_results
from jaxrl.runs import results
from jaxrl.runs.checkpoint import (
    describe_previous,
    is_checkpoint,
    list_checkpoints,
    read_metadata,
    set_aside_later_checkpoints,
)
from jaxrl.runs.host_state import check_metadata, check_missing_settings, resolve_trust
from jaxrl.runs.run_folder import (
    RESULT_FILE,
    RunFolder,
    check_name,
    is_run_folder,
    parse_iteration,
)
from jaxrl.sweeps.state import is_sweep_folder, list_lanes, read_sweep

logger = logging.getLogger("jaxrl")

if TYPE_CHECKING:
    from jaxrl.algorithm import Algorithm
    from jaxrl.config.base import AlgorithmConfig
    from jaxrl.config.load import Experiment
    from jaxrl.sweeps.population import Population
    from jaxrl.sweeps.trials import Trials


def train(experiment: "Experiment", log_level: int | None = None) -> int:
    """Train from the beginning and return the exit code.

    Data sets of jaxrl's own that the config learns from are made first, if they are missing.
    """
    config, stop = experiment.config, experiment.stop
    _make_datasets(config)
    if config.debugging_settings.run_name is not None:
        check_name(config.debugging_settings.run_name)
    config.debugging(loggers=_without_console(config.debugging_settings.loggers))
    config.update_from_dict(make_log_level_override(log_level))
    title = f"{config.algo_name} on {config.environment_settings.env}"
    return _run(title, stop, config.build)


def _make_datasets(config: "AlgorithmConfig") -> None:
    """Make the data sets that a valid config learns from, if they are missing."""
    if not any(iter_sources(config.offline_data_settings.input_)):
        return
    from jaxrl.datasets.make import make_missing

    config.copy(copy_frozen=False).validate()
    make_missing(config, typer.echo)


def resume(
    run: str,
    stop: Mapping[str, float] | None,
    log_level: int | None = None,
    *,
    steps: str | None = None,
    trust: Sequence[str] | None = None,
    without_callbacks: bool = False,
) -> int:
    """Resume a run in its own folder, from its newest checkpoint or from a named one.

    Args:
        run: Run folder, its name, or a checkpoint.
        stop: Stop criterion; None for that of the run.
        log_level: Level of messages; None for that of the run.
        steps: The part of the criterion that was given as a number of environment steps.
        trust: Packages that the checkpoint may import.
        without_callbacks: Whether to leave out the callbacks of the run.

    Returns:
        Exit code.
    """
    overrides: Mapping[str, Any] = {
        **(WITHOUT_CALLBACKS if without_callbacks else {}),
        **make_log_level_override(log_level),
    }
    path, chosen = _find_run_and_checkpoint(find_run(run))
    with RunFolder.open(path) as folder:
        check_steps_option(steps, is_offline=_is_offline(folder.path))
        criterion = _get_stop_criterion(folder, stop)
        if is_sweep_folder(folder.path):
            return _resume_sweep(folder, criterion, overrides, trust)
        checkpoint = chosen or resolve_checkpoint(folder.path)
        iteration = parse_iteration(checkpoint)
        _raise_if_reached(
            folder, _find_reached(folder.result_file, iteration, criterion), iteration
        )
        settings = {
            **_quiet_loggers_override(checkpoint, trust, overrides),
            **overrides,
        }
        build = functools.partial(_restore, folder, checkpoint, trust=trust, **settings)
        return _run(f"{folder.name}, from {checkpoint.name}", criterion, build)


def _restore(folder: RunFolder, checkpoint: Path, **settings: Any) -> "Algorithm":
    """Restore a run from a checkpoint and set aside later ones, from which it will diverge."""
    from jaxrl.algorithm import Algorithm

    algorithm = Algorithm.from_checkpoint(checkpoint, run_folder=folder, **settings)
    for path in set_aside_later_checkpoints(folder.checkpoints, parse_iteration(checkpoint)):
        logger.warning("A later checkpoint of the run was renamed to %s.", path)
    return algorithm


def _find_run_and_checkpoint(given: Path) -> tuple[Path, Path | None]:
    """Return the run folder of a path, and the checkpoint if the path is one."""
    path = given.expanduser()
    if not path.exists():
        raise RunFolderError(
            f"There is no run or checkpoint {path}: no such file or folder.{describe_previous(path)}"
        )
    if is_run_folder(path) or not is_checkpoint(path):
        return path, None
    run = path.resolve().parent.parent
    if path.resolve().parent != run / "checkpoints" or not is_run_folder(run):
        raise RunFolderError(
            f"{path} is a checkpoint outside of a run folder, so there is no run to resume: "
            "Algorithm.from_checkpoint starts a new run from it."
        )
    return run, path.resolve()


def _resume_sweep(
    folder: RunFolder,
    stop: Mapping[str, float],
    overrides: Mapping[str, Any],
    trust: Sequence[str] | None,
) -> int:
    from jaxrl.sweeps.population import Population
    from jaxrl.sweeps.trials import Trials

    saved = read_sweep(folder.path)
    iteration, trials = saved["training_iteration"], bool(saved.get("trials"))
    lanes = list_lanes(folder.path)
    active = [path for path in lanes if str(int(path.name[5:])) not in saved["diverged"]]
    reached = [
        _find_reached(path / RESULT_FILE, _newest_iteration(path) if trials else iteration, stop)
        for path in active
    ]
    if reached and all(reached):
        _raise_if_reached(folder, reached[0], iteration)
    sweep_class = Trials if trials else Population
    build = functools.partial(
        sweep_class.from_checkpoint,
        folder.path,
        run_folder=folder,
        trust=trust,
        **overrides,
    )
    return _run(f"{folder.name}, from iteration {iteration}", stop, build)


def _without_console(loggers: Sequence[Any]) -> list[Any]:
    """Remove the console sink, which the display replaces."""
    return [sink for sink in loggers if sink != "console"]


def _quiet_loggers_override(
    checkpoint: Path, trust: Sequence[str] | None, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the override that keeps a resumed run from printing beside the display."""
    saved = read_metadata(checkpoint)
    check_metadata(saved, checkpoint)
    check_missing_settings(saved, overrides, checkpoint)
    trusted = resolve_trust(checkpoint, trust, quietly=True)
    config = deserialize_config(saved["config"], overrides, trust=trusted)
    return {"loggers": _without_console(config.debugging_settings.loggers)}


def _run(
    title: str, stop: Mapping[str, float], build: Callable[[], "Algorithm | Population | Trials"]
) -> int:
    console = Console()
    device = _DeviceDescription()
    display = open_display(title, stop, console=console, describe_devices=device)
    interrupts = Interrupts(
        on_first=lambda name: display.print_message(
            f"{name}: saving after this iteration; a second signal exits at once, without saving"
        ),
        before_abort=functools.partial(_restore_terminal, console),
    )
    with interrupts:
        try:
            with terminal.redirect_output(console):
                lines = _build_and_train(build, stop, display, device, interrupts)
        except JaxrlError as error:
            if not interrupts.requested:
                raise
            # The signal may also have reached environment processes, whose end then raised this.
            lines = [f"error: {error}", *get_notes(error)]
        with contextlib.suppress(OSError):  # the terminal or pipe is gone
            for line in lines:
                terminal.echo(line)
    return interrupts.exit_code


def _build_and_train(
    build: Callable[[], "Algorithm | Population | Trials"],
    stop: Mapping[str, float],
    display: Display,
    device: "_DeviceDescription",
    interrupts: Interrupts,
) -> list[str]:
    with display:
        display.set_phase("building")
        with build() as algo:
            if not stop:
                display.print_message("no stop criterion was given: training until Ctrl-C")
            device.devices = algo.devices
            display.resume_from(algo.last_result)
            for note in algo.notes:
                display.print_message(note)
            return _train_to_stop(algo, stop, display, interrupts)


def _train_to_stop(
    algo: "Algorithm | Population | Trials",
    stop: Mapping[str, float],
    display: Display,
    interrupts: Interrupts,
) -> list[str]:
    from jaxrl.sweeps.base import SweepRuns

    if isinstance(algo, SweepRuns):
        from jaxrl.cli import sweeps

        return sweeps.train_sweep(algo, stop, display, interrupts)
    return _train_run(algo, stop, display, interrupts)


def _train_run(
    algo: "Algorithm", stop: Mapping[str, float], display: Display, interrupts: Interrupts
) -> list[str]:
    """Train, save, evaluate and plot; return the lines to print once the display is closed."""
    from jaxrl.cli import hints

    algo.on_phase = display.set_phase
    folder = algo.run_folder
    folder.save_stop_criterion(stop)
    display.print_message(f"run folder  {folder.path}")
    on_iteration = hints.make_iteration_callback(display, algo.config, algo.devices, algo.iteration)
    algo.fit(stop, on_iteration=on_iteration, should_stop=lambda: interrupts.requested)
    checkpoint = _ensure_final_checkpoint(algo)
    lines = [f"run folder        {folder.path}"]
    if folder.learning_curve.exists():
        lines.append(f"learning curve    {folder.learning_curve}")
    lines.append(f"checkpoint        {checkpoint}")
    if interrupts.requested and find_reached_criterion(algo.last_result, dict(stop)) is None:
        return [*lines, f"resume with       {format_command('resume', folder.path)}"]
    if not algo.config.has_evaluation_env:
        return lines
    lines.append(f"evaluate it with  {format_command('evaluate', checkpoint)}")
    if interrupts.requested:
        return lines
    display.set_phase("evaluating")
    evaluated = format_evaluation(algo.evaluate())
    return [*evaluated, *lines]


def _ensure_final_checkpoint(algo: "Algorithm") -> Path:
    """Return the checkpoint of the last iteration, saving it if `fit` did not."""
    folder = algo.run_folder.checkpoints
    saved = list_checkpoints(folder)
    if not saved or parse_iteration(saved[-1]) != algo.iteration:
        algo.save()
        saved = list_checkpoints(folder)
    return saved[-1]


def _newest_iteration(run: Path) -> int:
    """Return the iteration of the newest checkpoint of a run; 0 without one."""
    saved = list_checkpoints(run / "checkpoints")
    return parse_iteration(saved[-1]) if saved else 0


def _get_stop_criterion(folder: RunFolder, stop: Mapping[str, float] | None) -> dict[str, float]:
    if stop is not None:
        return dict(stop)
    stored = folder.stop_criterion
    if stored is None:
        raise ConfigError(
            f"{folder.name} has no stop criterion, since it was trained from Python: "
            "give one, as in --steps 100000 or --stop '{\"training_iteration\": 100}'."
        )
    return stored


def _is_offline(run: Path) -> bool:
    """Return whether the results of a run, or of a sweep's first lane, are of recorded data alone."""
    files = (path / RESULT_FILE for path in (*list_lanes(run), run))
    file = next((path for path in files if path.is_file()), None)
    rows = () if file is None else itertools.islice(read_results(file), 1)
    return any(results.is_offline(row) for row in rows)


def _find_reached(result_file: Path, iteration: int, stop: Mapping[str, float]) -> str | None:
    """Return a sentence on the criterion that was reached at an iteration, if any."""
    if not result_file.is_file():
        return None
    rows = read_results(result_file, containing=f'"{results.ITERATION}": {iteration},')
    found = (find_reached_criterion(row, dict(stop)) for row in rows)
    return next((sentence for sentence in found if sentence), None)


def _raise_if_reached(folder: RunFolder, sentence: str | None, iteration: int) -> None:
    if sentence:
        later = f"--stop '{{\"{results.ITERATION}\": {iteration + 100}}}'"
        if sentence.startswith(results.ENV_STEPS):
            reached = sentence.partition(" = ")[2].partition(" ")[0]
            later = f"--steps {2 * float(reached):.0f}"
        raise ConfigError(
            f"{folder.name} is done: {sentence}; give a later criterion, as in {later}."
        )


def _restore_terminal(console: Console) -> None:
    """Show the cursor that the live display hides, and move past the display's last line."""
    console.show_cursor(True)
    terminal.restore_output()
    os.write(2, b"\naborted\n")  # past the display, which has redirected the streams


class _DeviceDescription:
    """Description of the devices once they are chosen; a query before that would choose them."""

    def __init__(self) -> None:
        self.devices: list[Any] = []

    def __call__(self) -> str:
        if not self.devices:
            return ""
        stats = [device.memory_stats() for device in self.devices]
        used = sum(memory["bytes_in_use"] for memory in stats if memory)
        memory_use = f", {used / 2**30:.1f} GiB in use" if used else ""
        return f"{len(self.devices)} x {self.devices[0].device_kind}{memory_use}"
