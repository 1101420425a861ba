"""`jaxrl train` and `resume`, of runs and of sweeps: display, signals, hints and final output."""

import contextlib
import functools
import itertools
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from jaxrl.cli import terminal
from jaxrl.cli.evaluation import format_evaluation
from jaxrl.cli.experiments import check_steps_option, parse_stop_options
from jaxrl.cli.records import find_run, resolve_checkpoint
from jaxrl.cli.terminal import Interrupts, format_command
from jaxrl.config.batch_plan import BatchPlan, MultiAgentPlan, ReplayPlan
from jaxrl.config.config import Config
from jaxrl.config.datasets import iter_sources
from jaxrl.config.load import Experiment, load_experiment
from jaxrl.config.registry import find_shipped_configs
from jaxrl.config.serialize import deserialize_config
from jaxrl.config.settings.run import WITHOUT_CALLBACKS
from jaxrl.config.settings.training import Training
from jaxrl.config.stop import find_reached_criterion
from jaxrl.errors import ConfigError, JaxrlError, RunFolderError
from jaxrl.loggers import text
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
from jaxrl.runs.exploits import SCHEDULE_FILE
from jaxrl.runs.host_state import check_metadata, check_missing_settings, resolve_trust
from jaxrl.runs.run_folder import (
    RESULT_FILE,
    RunFolder,
    check_name,
    is_run_folder,
    parse_iteration,
)
from jaxrl.sweeps.state import is_sweep_folder, list_lanes, read_sweep

if TYPE_CHECKING:
    from jaxrl.algorithm import Algorithm
    from jaxrl.sweeps.points import SweepPoint
    from jaxrl.sweeps.population import Population
    from jaxrl.sweeps.trials import Trials

logger = logging.getLogger("jaxrl")

MAX_SAMPLE_REUSE = 10.0
"""Number of times that each environment step is learned from above which a hint is given.

Learning from a row takes about three times as long as acting for it, so at this number acting is a
thirtieth of the work.
"""


def train(experiment: Experiment, overrides: Mapping[str, Any]) -> int:
    """Train from the beginning and return the exit code.

    Data sets of jaxrl's own that the config learns from are made first, if they are missing.

    Args:
        experiment: Config and stop criterion.
        overrides: Settings from -v.
    """
    config, stop = experiment.config, experiment.stop
    if any(iter_sources(config.offline_data_settings.input_)):
        from jaxrl.datasets.make import make_missing

        config.copy(copy_frozen=False).validate()
        make_missing(config, typer.echo)
    if config.debugging_settings.run_name is not None:
        check_name(config.debugging_settings.run_name)
    config.debugging(loggers=_without_console(config.debugging_settings.loggers))
    config.update_from_dict(dict(overrides))
    title = f"{config.algo_name} on {config.environment_settings.env}"
    return _run(title, stop, config.build)


def resume(
    run: str,
    overrides: Mapping[str, Any],
    *,
    stop: str | None,
    steps: str | None,
    trust: Sequence[str] | None,
    without_callbacks: bool,
) -> int:
    """Resume a run in its own folder and return the exit code.

    Args:
        run: Run folder or its name, for its newest checkpoint, or a checkpoint.
        overrides: Settings from -v.
        stop: Stop criterion as JSON; without it and `steps`, that of the run applies.
        steps: Environment steps after which to stop.
        trust: Packages that the checkpoint may import.
        without_callbacks: Whether to leave out the callbacks of the run.
    """
    given = parse_stop_options(stop, steps)
    if without_callbacks:
        overrides = {**WITHOUT_CALLBACKS, **overrides}
    path, chosen = _find_run_and_checkpoint(find_run(run))
    with RunFolder.open(path) as folder:
        check_steps_option(steps, is_offline=_is_offline(folder.path))
        criterion = _get_stop_criterion(folder, given)
        if is_sweep_folder(folder.path):
            return _resume_sweep(folder, criterion, overrides, trust)
        checkpoint = chosen or resolve_checkpoint(folder.path)
        iteration = parse_iteration(checkpoint)
        raise_if_reached(folder, _find_reached(folder.result_file, iteration, criterion), iteration)
        loggers = _read_loggers(checkpoint, trust, overrides)
        settings = {"loggers": _without_console(loggers), **overrides}
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
    reached: list[str | None] = []
    for path in list_lanes(folder.path):
        if str(int(path.name[5:])) in saved["diverged"]:
            continue
        checkpoints = list_checkpoints(path / "checkpoints") if trials else ()
        newest = parse_iteration(checkpoints[-1]) if checkpoints else 0
        last = newest if trials else iteration
        reached.append(_find_reached(path / RESULT_FILE, last, stop))
    if reached and all(reached):
        raise_if_reached(folder, reached[0], iteration)
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


def _read_loggers(
    checkpoint: Path, trust: Sequence[str] | None, overrides: Mapping[str, Any]
) -> Sequence[Any]:
    """Return the sinks of results of a run, after the checks of its checkpoint."""
    saved = read_metadata(checkpoint)
    check_metadata(saved, checkpoint)
    check_missing_settings(saved, overrides, checkpoint)
    trusted = resolve_trust(checkpoint, trust, quietly=True)
    config = deserialize_config(saved["config"], overrides, trust=trusted)
    return config.debugging_settings.loggers


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
            lines = [f"error: {error}", *getattr(error, "__notes__", ())]
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
    from jaxrl.sweeps.base import SweepRuns

    with display:
        display.set_phase("building")
        with build() as algo:
            if not stop:
                display.print_message("no stop criterion was given: training until Ctrl-C")
            device.devices = algo.devices
            display.resume_from(algo.last_result)
            for note in algo.notes:
                display.print_message(note)
            if isinstance(algo, SweepRuns):
                return _train_sweep(algo, stop, display, interrupts)
            return _train_run(algo, stop, display, interrupts)


def _train_run(
    algo: "Algorithm", stop: Mapping[str, float], display: Display, interrupts: Interrupts
) -> list[str]:
    """Train, save, evaluate and plot; return the lines to print once the display is closed."""
    algo.on_phase = display.set_phase
    folder = algo.run_folder
    folder.save_stop_criterion(stop)
    display.print_message(f"run folder  {folder.path}")
    on_iteration = _make_iteration_callback(display, algo.config, algo.devices, algo.iteration)
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


def raise_if_reached(folder: RunFolder, sentence: str | None, iteration: int) -> None:
    """Raise ConfigError if a criterion was reached, of which a sentence tells."""
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


# --- sweeps ---


def _train_sweep(
    sweep: "Population | Trials",
    stop: Mapping[str, float],
    display: Display,
    interrupts: Interrupts,
) -> list[str]:
    """Train and save every lane; return the lines to print once the display is closed."""
    from jaxrl.sweeps.plot import draw_sweep
    from jaxrl.sweeps.points import judge_first

    display.print_message(f"sweep folder  {sweep.folder.path}, {sweep.num_lanes} lanes")
    on_iteration = _make_iteration_callback(
        display, sweep.lanes[0].config, sweep.devices, sweep.iteration
    )
    sweep.fit(stop, on_iteration=on_iteration, should_stop=lambda: interrupts.requested)
    folder = sweep.folder.path
    if not is_sweep_folder(folder) or read_sweep(folder)[results.ITERATION] != sweep.iteration:
        sweep.save()
    points = sweep.points()
    lines = format_points(points)
    lines += [f"lane {i} was stopped: {why}" for i, why in sweep.diverged.items()]
    best = points[0]
    if not math.isnan(best.score):
        lane = max(best.lanes, key=lambda i: (i in sweep.active_indices, -i))
        lines.append(f"best point        {_format_point(best)}")
        if verdict := judge_first(points):
            lines.append(f"                  {verdict}")
        lines.append(f"one of its lanes  {folder / sweep.format_lane_name(lane)}")
    if sweep.schedule:
        lines.append(f"schedule          {folder / SCHEDULE_FILE}")
    picture = draw_sweep(sweep)
    if picture is not None:
        lines.append(f"picture           {picture}")
    lines.append(f"sweep folder      {folder}")
    if interrupts.requested and not sweep.has_reached(stop):
        lines.append(f"resume with       {format_command('resume', folder)}")
    return lines


def _format_point(point: "SweepPoint") -> str:
    """Format the values of a point and its score with the interval."""
    values = ", ".join(
        f"{name}={text.format_number(x) if isinstance(x, float) else x}"
        for name, x in point.values.items()
    )
    score = text.format_number(point.score)
    if point.estimate.is_bounded:
        score += " [{}, {}]".format(*map(text.format_number, point.interval))
    return f"{values or 'only point'}: {score}, {point.estimate.size}"


def format_points(points: Sequence["SweepPoint"]) -> list[str]:
    """Format the points as a table, best first."""
    names = ("point", *points[0].values, "lanes", "return (IQM)", "95 % interval")
    table = Table(*(Column(escape(name), overflow="fold") for name in names), box=None)
    for point in points:
        low, high = map(text.format_number, point.interval)
        table.add_row(
            str(point.number),
            *(
                f"{x:.4g}" if isinstance(x, float) else escape(str(x))
                for x in point.values.values()
            ),
            str(len(point.lanes)),
            text.format_number(point.score),
            f"{low} - {high}" if point.estimate.is_bounded else "-",
        )
    return terminal.format_table(table)


# --- hints on settings that make a run slow, derived from counts rather than timings ---


def _make_iteration_callback(
    display: Display, config: Config, devices: Sequence[Any], iteration: int
) -> Callable[[results.Result], None]:
    """Return an iteration callback that updates a display and prints a hint after the first one."""
    pending = [] if iteration > 0 else [find_update_hint(config, devices)]

    def on_iteration(result: results.Result) -> None:
        display.update(result)
        for hint in pending:
            if hint:
                display.print_message(hint)
        pending.clear()

    return on_iteration


def find_update_hint(config: Config, devices: Sequence[Any]) -> str | None:
    """Return a hint on the settings behind the updates that dominate a run on a CPU.

    It is None if updates do not dominate, if the user chose the settings, or on an accelerator.
    """
    plan = _get_deciding_plan(config.plan())
    if config.is_offline:  # there is no environment step to compare updates with
        return None
    deciding, others = _get_settings(config.training_settings, plan)
    on_cpu = bool(devices) and all(device.platform == "cpu" for device in devices)
    if (
        not on_cpu
        or compute_sample_reuse(plan) <= MAX_SAMPLE_REUSE
        or config.explicit & set(deciding)
    ):
        return None
    *first, last = (*deciding, *others)
    hint = (
        f"most of the time goes into updates: {_format_counts(plan)} "
        f"({', '.join(first)} and {last} set their number and size, "
        "model_config's fcnet_hiddens the cost of each row)"
    )
    task = config.algo_name, config.environment_settings.env
    alternative = _find_shipped(task, compute_sample_reuse(plan))
    if alternative is None:
        return f"{hint}."
    name, other = alternative
    return f"{hint}; the shipped file makes {_format_counts(other)}: {format_command('train', 'file', name)}"


def _get_deciding_plan(plan: BatchPlan) -> BatchPlan:
    """Return a plan or, of several modules, that of the one that learns most often."""
    if not isinstance(plan, MultiAgentPlan):
        return plan
    return max((plan.modules[m] for m in sorted(plan.agents.trained)), key=compute_sample_reuse)


def compute_sample_reuse(plan: BatchPlan) -> float:
    """Return how often each environment step is learned from: rows of all updates per step.

    A step of several agents is a row of each of a module's.
    """
    return plan.updates_per_iteration * plan.minibatch_size / _count_steps(plan)


def _count_steps(plan: BatchPlan) -> int:
    return plan.num_envs * plan.rollout_fragment_length


def _format_counts(plan: BatchPlan) -> str:
    updates, steps = plan.updates_per_iteration, _count_steps(plan)
    every = (
        "each environment step"
        if steps == 1
        else f"every {text.format_number(steps)} environment steps"
    )
    return (
        f"{text.format_number(updates)} of {text.format_number(plan.minibatch_size)} rows for {every}, "
        f"so each step is learned from {text.format_number(compute_sample_reuse(plan))} times"
    )


def _get_settings(training: Training, plan: BatchPlan) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the settings that decide how often a step is used, and those for the update size."""
    if isinstance(plan, ReplayPlan):
        return ("training_intensity", "train_batch_size"), ("num_envs_per_env_runner",)
    own = "circular_buffer_iterations_per_batch"
    repeats = (own,) if hasattr(training, own) else ()
    return (*repeats, "num_epochs"), ("minibatch_size", "train_batch_size")


def _find_shipped(task: tuple[str, Any], times: float) -> tuple[str, BatchPlan] | None:
    """Return the shipped file of a task that learns least often from each step, if it is less.

    A task is the name of an algorithm and an environment.

    Files of variants, such as `pendulum-c51-sac`, do not match.
    """
    plans: dict[str, BatchPlan] = {}
    for name, path in find_shipped_configs().items():
        body: Mapping[str, Any] = next(iter(yaml.safe_load(path.read_text("utf-8")).values()))
        is_match = (body["run"], body.get("env")) == task
        if is_match and "sweep" not in body and path.stem.count("-") == 1:
            plans[name] = _get_deciding_plan(load_experiment(path).config.plan())
    least = min(plans, key=lambda name: compute_sample_reuse(plans[name]), default=None)
    if least is None or compute_sample_reuse(plans[least]) >= times:
        return None
    return least, plans[least]
