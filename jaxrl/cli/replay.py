"""`jaxrl replay`: trains a run again from its record and compares the two to the bit."""

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from jaxrl import metrics
from jaxrl.cli import terminal
from jaxrl.cli.comparison import (
    GIT,
    Difference,
    compare_result,
    compare_sessions,
    describe_values,
    get_iteration,
    make_table,
    print_table,
    select_repeatable,
    shorten,
)
from jaxrl.cli.records import RunRecord, count_iterations, is_lane, load_record
from jaxrl.config.serialize import hash_config
from jaxrl.config.settings.replay import OffPolicyTraining
from jaxrl.config.sweep import is_sweep
from jaxrl.errors import ConfigError, RunFolderError
from jaxrl.runs import checkpoint as ckpt
from jaxrl.runs import results
from jaxrl.runs.host_state import keep_recorded_choices
from jaxrl.runs.manifest import ITERATION, Session
from jaxrl.runs.run_folder import check_name
from jaxrl.runtime.devices import request_devices

if TYPE_CHECKING:
    from jaxrl.algorithm import Algorithm
    from jaxrl.config.base import AlgorithmConfig

FILE_LOGGERS = ("json", "csv", "tensorboard")


def replay(
    run: str,
    overrides: Mapping[str, Any],
    *,
    out: str | None,
    iterations: int | None,
    trust: Sequence[str] | None,
) -> int:
    """Train a run again and print whether the results and the last checkpoint are equal.

    Args:
        run: Run folder, or its name in the results folder.
        overrides: Settings from -v.
        out: Folder for the new run; None uses a temporary one.
        iterations: Number of iterations; None for as many as the run has.
        trust: Packages that may be imported.

    Returns:
        Exit code: 0 if all is equal, else 1.
    """
    record = load_record(run, instead_of_sweep="replay single runs")
    number = _choose_iterations(record, iterations)
    _refuse_unrepeatable_record(record, number)
    config = record.load_config(trust)
    _refuse_unrepeatable_config(record, config, number)
    console = terminal.open_console()
    with (
        terminal.RaiseOnInterrupt(),
        _open_folder(out) as folder,
        terminal.redirect_output(console),
    ):
        config.update_from_dict(dict(overrides))
        _prepare(config, record, folder, is_kept=out is not None)
        with console.status("building") as status, config.build() as algo:
            _refuse_resumed_host_run(record, algo, number)
            outcome = _train(record, algo, number, status.update)
            if outcome.differences:
                outcome.reasons, outcome.other_facts = _list_reasons(record, algo)
    _print(console, outcome, out)
    return 1 if outcome.differences else 0


@dataclasses.dataclass(kw_only=True)
class Outcome:
    """Outcome of a replay.

    Attributes:
        place: Iteration or checkpoint with the first differences.
        differences: Values that differ there: recorded and replayed.
        num_iterations: Number of iterations whose results were compared.
        num_values: Number of values compared.
        num_rounded: Number of values among them that are equal up to rounding.
        checkpoint: Name of the checkpoint that was compared; None if the run has none.
        num_arrays: Number of its arrays.
        reasons: Sentences on why the two may differ.
        other_facts: Entries of the manifest that differ: recorded and replayed.
    """

    place: str = ""
    differences: list[Difference] = dataclasses.field(default_factory=list)
    reasons: list[str] = dataclasses.field(default_factory=list)
    other_facts: list[Difference] = dataclasses.field(default_factory=list)
    num_iterations: int = 0
    num_values: int = 0
    num_rounded: int = 0
    checkpoint: str | None = None
    num_arrays: int = 0


# --- which runs can be replayed ---


def _choose_iterations(record: RunRecord, iterations: int | None) -> int:
    """Return the number of iterations to train."""
    recorded = count_iterations(record)
    if recorded == 0:
        raise RunFolderError(
            f"{record.path.name} has neither results nor checkpoints to compare with: train it "
            "for at least one iteration, with 'json' in loggers."
        )
    if iterations is not None and iterations > recorded:
        raise ConfigError(
            f"--iterations {iterations} is more than the {recorded} that {record.path.name} has."
        )
    number = recorded if iterations is None else iterations
    if not record.has_results and number not in record.checkpoints:
        raise RunFolderError(
            f"{record.path.name} has no results, and no checkpoint of iteration {number} to "
            f"compare with: use --iterations {max(record.checkpoints)}."
        )
    return number


def _refuse_unrepeatable_record(record: RunRecord, number: int) -> None:
    """Raise if the record says that the run does not follow from its config."""
    name = record.path.name
    if is_lane(record.path):
        raise RunFolderError(
            f"{name} is a lane of a sweep, whose program differs from that of a single run, so its "
            "results differ by rounding: replay single runs."
        )
    first = record.sessions[0] if record.sessions else {}
    not_saved = first.get("not_saved", ())
    if not_saved:
        raise RunFolderError(
            f"{name} cannot be replayed, because its {' and '.join(not_saved)} had no import "
            "path: define it at the top of a module and train the run again."
        )
    start = first.get(ITERATION, 0) or next(
        (max(0, get_iteration(row) - 1) for row in record.read_results()), 0
    )
    if start:
        raise RunFolderError(
            f"{name} begins after iteration {start}, from a checkpoint of another run: replay that "
            "one."
        )
    for session in record.sessions[1:]:
        changed = [
            difference
            for difference in compare_sessions([first], [session])
            if difference.name != GIT
        ]
        if session[ITERATION] < number and (
            changed or session.get("config_sha256") != first.get("config_sha256")
        ):
            what = str(changed[0]) if changed else "the config is another"
            raise RunFolderError(_format_resumed(record, session[ITERATION], what))


def _format_resumed(record: RunRecord, iteration: int, why: str) -> str:
    before = f": replay what is before with --iterations {iteration}" if iteration else ""
    return (
        f"{record.path.name} was resumed after iteration {iteration}, and a run without this "
        f"interruption has other results, because {why}{before}."
    )


def _refuse_unrepeatable_config(record: RunRecord, config: "AlgorithmConfig", number: int) -> None:
    """Raise if two runs of the config may differ."""
    name = record.path.name
    if is_sweep(config):
        raise RunFolderError(f"{name} is a sweep of several runs: replay single runs.")
    if config.reporting_settings.min_time_s_per_iteration:
        raise RunFolderError(
            f"{name} cannot be replayed, because min_time_s_per_iteration="
            f"{config.reporting_settings.min_time_s_per_iteration} lets the clock decide how much "
            "an iteration trains."
        )
    if config.is_async and config.env_runners_settings.num_env_runners:
        raise RunFolderError(
            f"{name} cannot be replayed, because the {config.env_runners_settings.num_env_runners} "
            f"runners of {config.algo_name} sample while it learns, so the clock decides which "
            "fragments a train batch has."
        )
    resumed = [s[ITERATION] for s in record.sessions[1:] if s[ITERATION] < number]
    if resumed and isinstance(config.training_settings, OffPolicyTraining):
        saved = record.checkpoints.get(max(record.checkpoints, default=0))
        leaves = {} if saved is None else ckpt.read_metadata(saved)["leaves"]
        if not any(leaf.startswith("buffer.") for leaf in leaves):
            raise RunFolderError(
                _format_resumed(record, resumed[0], "checkpoints do not hold its replay buffer")
            )


def _refuse_resumed_host_run(record: RunRecord, algo: "Algorithm", number: int) -> None:
    resumed = [s[ITERATION] for s in record.sessions[1:] if s[ITERATION] < number]
    if resumed and not algo.env_runner_group.is_compiled:
        raise RunFolderError(
            _format_resumed(
                record, resumed[0], "environments on the host begin new episodes at a resume"
            )
        )


# --- the replay ---


@contextlib.contextmanager
def _open_folder(out: str | None) -> Generator[Path]:
    """Yield the folder of the new run, which does not exist yet.

    Raises:
        RunFolderError: If the given one exists.
    """
    if out is None:
        with tempfile.TemporaryDirectory(prefix="jaxrl-replay-") as folder:
            yield Path(folder) / "replay"
        return
    path = Path(out).expanduser()
    check_name(path.name)
    if path.exists():
        raise RunFolderError(f"--out {path} exists: give a folder that does not.")
    yield path


def _prepare(config: "AlgorithmConfig", record: RunRecord, folder: Path, *, is_kept: bool) -> None:
    """Set where the replay is recorded, and what was chosen or measured when the run began."""
    sinks = [s for s in config.debugging_settings.loggers if s in FILE_LOGGERS]
    config.debugging(
        results_dir=str(folder.parent),
        run_name=folder.name,
        loggers=(sinks or ["json"]) if is_kept else [],
    )
    config.checkpointing(
        checkpoint_frequency=0, checkpoint_interval_s=None, checkpoint_at_end=is_kept
    )
    config.evaluation(record_video=False)
    devices = record.sessions[0].get("devices", {}) if record.sessions else {}
    if "platform" in devices and "count" in devices:
        available = devices.get("available", devices["count"])
        request_devices(str(devices["platform"]), int(available))  # at most MAX_DEVICES of them
        keep_recorded_choices(config, int(devices["count"]))


def _train(
    record: RunRecord, algo: "Algorithm", number: int, show: Callable[[str], None]
) -> Outcome:
    """Train until a result differs or all iterations are done, and compare the checkpoint."""
    outcome = Outcome()
    rows = record.read_results()
    current: dict[str, Any] | None = next(rows, None)
    is_evaluated = algo.config.evaluation_settings.evaluation_duration != "auto"

    def compare(result: Mapping[str, Any]) -> None:
        nonlocal current
        iteration = algo.iteration
        show(f"iteration {iteration} of {number}")
        current = _skip_to(rows, current, iteration)
        if current is None or outcome.differences:
            return
        if get_iteration(current) != iteration:
            return
        new = results.to_json(result)
        # With evaluation_duration="auto", evaluations last as long as training.
        left_out = () if is_evaluated else (metrics.EVALUATION,)
        pair = [{n: x for n, x in row.items() if n not in left_out} for row in (current, new)]
        outcome.differences, num_rounded = compare_result(*pair)
        outcome.place = f"iteration {iteration}"
        outcome.num_iterations += 1
        outcome.num_values += len(select_repeatable(pair[0]))
        outcome.num_rounded += num_rounded

    algo.fit(
        {results.ITERATION: number},
        on_iteration=compare,
        should_stop=lambda: bool(outcome.differences),
    )
    checkpoint = record.checkpoints.get(number)
    if checkpoint is not None and not outcome.differences:
        _compare_checkpoint(checkpoint, algo, outcome)
    return outcome


def _skip_to(
    rows: Iterator[dict[str, Any]], current: dict[str, Any] | None, iteration: int
) -> dict[str, Any] | None:
    """Return the first recorded result of an iteration or a later one."""
    while current is not None and get_iteration(current) < iteration:
        current = next(rows, None)
    return current


def _compare_checkpoint(checkpoint: Path, algo: "Algorithm", outcome: Outcome) -> None:
    """Compare the arrays of a checkpoint with those of the replay."""
    saved = ckpt.read_leaves(checkpoint, ckpt.read_metadata(checkpoint))
    own: Mapping[str, np.ndarray] = algo.get_state()["train_state"]
    outcome.checkpoint, outcome.num_arrays = checkpoint.name, len(saved)
    outcome.place = checkpoint.name
    for name in dict.fromkeys((*saved, *own)):
        one, other = saved.get(name), own.get(name)
        if one is None or other is None or _is_other_array(one, other):
            outcome.differences.append(
                Difference(
                    name=name, first=_describe_array(one), second=_describe_array(other, than=one)
                )
            )


def _is_other_array(one: np.ndarray, other: np.ndarray) -> bool:
    is_same_kind = one.shape == other.shape and one.dtype == other.dtype
    return not is_same_kind or one.tobytes() != other.tobytes()


def _describe_array(array: np.ndarray | None, than: np.ndarray | None = None) -> str:
    if array is None:
        return "missing"
    text = f"{array.dtype}{list(array.shape)}"
    if than is None or than.shape != array.shape or than.dtype != array.dtype:
        return text
    return f"{text}, {int(np.sum(array != than))} of {array.size} numbers differ"


# --- what is printed ---


def _list_reasons(record: RunRecord, algo: "Algorithm") -> tuple[list[str], list[Difference]]:
    """Return why a replay may differ: sentences, and entries of the manifest that differ."""
    if not record.sessions:
        return ["the run has no manifest, since an earlier jaxrl trained it"], []
    recorded, reasons = record.sessions[0], list[str]()
    current = {ITERATION: 0, **Session(algo.config, algo.devices).describe()}
    known = {name: value for name, value in current.items() if name in recorded}
    facts = compare_sessions([recorded], [known])
    digest = recorded.get("config_sha256")
    if digest is not None and digest != hash_config(record.params):
        reasons.append("params.json was changed since the run was made")
    if (recorded.get(GIT) or {}).get("dirty"):
        reasons.append("the run was made with changes to files that its commit does not have")
    if not algo.env_runner_group.is_compiled:
        reasons.append(
            "environments on the host repeat only if they are deterministic given their seed"
        )
    if not reasons and not facts:
        reasons.append(
            "the manifests are equal; not recorded are files that git does not track, and what a "
            "program did to the run, such as set_weights()"
        )
    return reasons, facts


def _print(console: Console, outcome: Outcome, out: str | None) -> None:
    def say(line: str) -> None:
        console.print(line, soft_wrap=True, highlight=False, markup=False)

    if outcome.differences:
        names = ("recorded", "replayed")
        say(f"different: {outcome.place}")
        found = {outcome.place: shorten(outcome.differences)}
        print_table(console, make_table(found, names))
        say("\nwhich may be because:")
        for sentence in outcome.reasons:
            say(f"- {sentence}")
        if outcome.other_facts:
            print_table(console, make_table({"manifest": outcome.other_facts}, names))
    else:
        say(_describe_equality(outcome))
    if out is not None:
        say(f"run folder  {Path(out).expanduser()}")


def _describe_equality(outcome: Outcome) -> str:
    parts: list[str] = []
    if outcome.num_iterations:
        parts.append(
            describe_values(outcome.num_values, outcome.num_rounded, outcome.num_iterations)
        )
    if outcome.checkpoint is not None:
        parts.append(f"{outcome.num_arrays} arrays of {outcome.checkpoint}")
    return f"equal: {' and '.join(parts)}"
