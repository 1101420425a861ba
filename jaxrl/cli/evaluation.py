"""`jaxrl evaluate`, `record` and `estimate`: a saved policy in environments and on recorded data."""

import contextlib
import dataclasses
import importlib
import json
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from jaxrl import metrics
from jaxrl.cli import terminal
from jaxrl.cli.experiments import parse_steps
from jaxrl.cli.exporting import make_planner
from jaxrl.cli.records import find_run, open_checkpoint, open_policy, resolve_checkpoint
from jaxrl.config.base import get_algorithm_config_class
from jaxrl.config.imports import SCRIPT_OPTION
from jaxrl.config.registry import list_algorithms
from jaxrl.config.serialize import deserialize_config
from jaxrl.config.settings.run import WITHOUT_CALLBACKS
from jaxrl.envs.registry import find_imports
from jaxrl.errors import ConfigError, RunFolderError
from jaxrl.loggers import text
from jaxrl.runs import results
from jaxrl.runs.checkpoint import read_metadata
from jaxrl.runs.host_state import check_metadata, find_missing_settings, resolve_trust
from jaxrl.runs.run_folder import is_run_folder
from jaxrl.runtime import files

if TYPE_CHECKING:
    from jaxrl.algorithm import Algorithm
    from jaxrl.estimation.estimate import Estimate, EstimateReport

logger = logging.getLogger("jaxrl")


def evaluate(
    checkpoint: str,
    overrides: Mapping[str, Any],
    *,
    episodes: int | None,
    steps: str | None,
    algo: str | None,
    env: str | None,
    out: str | None,
    video: bool,
    simulations: int | None,
    trust: Sequence[str] | None,
    without_callbacks: bool,
) -> None:
    """Evaluate a saved policy and print its returns.

    Args:
        checkpoint: Checkpoint, or a run for its newest one.
        overrides: Settings from -v.
        episodes: Number of episodes; None for the config's.
        steps: Number of environment steps, instead of episodes.
        algo: Name of the algorithm that must have written the checkpoint; None for any.
        env: Environment to evaluate in; None for the config's.
        out: File for the result (.json) or the transitions (.npz).
        video: Whether to record a video.
        simulations: Steps of the search for each action; None acts as in training.
        trust: Packages that may be imported.
        without_callbacks: Whether to leave out the callbacks of the run.
    """
    _check_options(episodes, steps, out, video=video, simulations=simulations)
    path = resolve_checkpoint(find_run(checkpoint))
    metadata = read_metadata(path)
    check_metadata(metadata, path)
    overrides = {
        **_leave_out_callbacks(metadata, everything=without_callbacks),
        **_make_overrides(path, metadata, algo, env, steps, trust),
        **overrides,
        **({"record_video": True} if video else {}),
    }
    with open_checkpoint(path, overrides, trust, "compiling its evaluation") as algorithm:
        if out is not None and out.endswith(".npz"):
            result = evaluate_and_record(algorithm, episodes, Path(out).expanduser())
        else:
            folder = _get_video_folder(path)
            result = algorithm.evaluate(
                num_episodes=episodes, video_folder=folder, planner=make_planner(simulations)
            )
        if out is not None and out.endswith(".json"):
            _write_result(Path(out).expanduser(), path, algorithm, result)
    lines = [*format_evaluation(result), f"checkpoint        {path}"]
    for line in lines if out is None else [*lines, f"written to        {out}"]:
        terminal.echo(line)


def _check_options(
    episodes: int | None,
    steps: str | None,
    out: str | None,
    *,
    video: bool,
    simulations: int | None,
) -> None:
    """Raise before anything is loaded if options contradict each other."""
    if steps is not None and episodes is not None:
        raise ConfigError(
            f"--steps {steps} and --episodes {episodes} both say how long to evaluate: leave one "
            "of them out."
        )
    if simulations is not None and (video or (out is not None and out.endswith(".npz"))):
        raise ConfigError(
            f"--simulations {simulations} has no effect on {'--render' if video else '--out'}, which "
            "records what the policy does by itself: leave one of them out."
        )
    if out is None:
        return
    path = Path(out).expanduser()
    if path.suffix not in (".json", ".npz"):
        raise ConfigError(
            f"--out {out} must end in .json, for the result, or in .npz, for the transitions."
        )
    if path.suffix == ".npz" and video:
        raise ConfigError(
            f"--out {out} records transitions without a video: leave out --render, or use .json."
        )
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise RunFolderError(
            f"--out {out} cannot be written: give a file in a folder that exists and that you can "
            "write to."
        )


def _leave_out_callbacks(metadata: Mapping[str, Any], *, everything: bool) -> Mapping[str, None]:
    """Return the settings that leave out all callbacks, or those that are not found here."""
    if everything:
        return WITHOUT_CALLBACKS
    missing = [name for name in find_missing_settings(metadata) if name in WITHOUT_CALLBACKS]
    if missing:
        logger.warning(
            "This evaluation is without %s of the run, which the checkpoint does not contain: %s "
            "gives the script that defines it.",
            ", ".join(missing),
            SCRIPT_OPTION,
        )
    return dict.fromkeys(missing)


def _make_overrides(
    checkpoint: Path,
    metadata: Mapping[str, Any],
    algo: str | None,
    env: str | None,
    steps: str | None,
    trust: Sequence[str] | None,
) -> dict[str, Any]:
    """Return the settings that replace saved ones; check the algorithm and the duration."""
    number = None if steps is None else int(parse_steps(steps))
    if algo is None and env is None and number is None:
        return {}
    if algo is not None:
        _check_algorithm(algo, metadata["algorithm"], checkpoint)
    if env is None and number is None:
        return {}
    if env is not None:
        _import_module_of(env)
    missing = find_missing_settings(metadata)
    given = {"env": env} if env is not None and "env" in missing else {}
    if given and number is None:
        return given
    trusted = resolve_trust(checkpoint, trust, quietly=True)
    config = deserialize_config(metadata["config"], {**WITHOUT_CALLBACKS, **given}, trust=trusted)
    settings = config.evaluation_settings
    if number is not None and settings.custom_evaluation_function is not None:
        raise ConfigError(
            f"--steps {steps} has no effect on a custom_evaluation_function, which chooses its own "
            "episodes: leave it out."
        )
    changed = dict(settings.evaluation_config or {})
    if env is not None and env != changed.get("env", config.environment_settings.env):
        changed["env"] = env
    return {**given, **_make_duration(changed, number)}


def _import_module_of(env: str) -> None:
    """Import the module that an option names, which may be used whoever wrote the checkpoint."""
    module = find_imports(env)[0]
    if module is not None:
        with contextlib.suppress(ImportError):  # reported when the environment is made
            importlib.import_module(module)


def _make_duration(evaluation_config: dict[str, Any], number: int | None) -> dict[str, Any]:
    """Return the override of `evaluation_config` for an evaluation of a number of steps."""
    if number is not None:
        evaluation_config |= {
            "evaluation_duration": number,
            "evaluation_duration_unit": "timesteps",
            "evaluation_num_envs": "auto",  # divides the number exactly
        }
    return {"evaluation_config": evaluation_config} if evaluation_config else {}


def _check_algorithm(given: str, saved: str, checkpoint: Path) -> None:
    """Raise if a checkpoint is not of the algorithm that was given."""
    if given.lower() == saved.lower():
        return
    if given.lower() not in (name.lower() for name in list_algorithms()):
        get_algorithm_config_class(given)  # raises with the closest name
    raise ConfigError(
        f"--algo {given} does not fit: {checkpoint} was saved by {saved}; leave --algo out, or give "
        "another checkpoint."
    )


def evaluate_and_record(algorithm: "Algorithm", episodes: int | None, path: Path) -> results.Result:
    """Evaluate in this process, write every transition, and return the result."""
    from jaxrl.evaluation.host import record_rollouts, write_rollouts
    from jaxrl.runners.compiled_runner import CompiledRunnerGroup

    config = algorithm.config.get_evaluation_config_object()
    assert config is not None
    if config.evaluation_settings.custom_evaluation_function is not None:
        raise ConfigError(
            f"--out {path} needs jaxrl's own evaluation, but the run has a "
            "custom_evaluation_function: write its result with --out FILE.json."
        )
    if config.is_multi_agent:
        raise ConfigError(
            f"--out {path} records rows, which are those of a single agent: write the result with "
            "--out FILE.json."
        )
    changed = algorithm.config.evaluation_settings.evaluation_config or {}
    env_params, weights = None, algorithm.learner_group.get_weights(1)
    if not {"env", "env_config"} & changed.keys():
        runners = algorithm.env_runner_group
        if isinstance(runners, CompiledRunnerGroup):
            env_params = algorithm.env_params
        else:
            weights = dataclasses.replace(weights, task=runners.task)
    result, played = record_rollouts(config, weights, episodes, env_params)
    if not played:
        raise ConfigError(f"No transition was recorded for --out {path}: evaluate for longer.")
    write_rollouts(path, played)
    return result


def _write_result(
    path: Path, checkpoint: Path, algorithm: "Algorithm", result: results.Result
) -> None:
    """Write the result of an evaluation, and of what it is, as JSON."""
    config = algorithm.config
    changed = config.evaluation_settings.evaluation_config or {}
    document = {
        "checkpoint": str(checkpoint),
        "algorithm": config.algo_name,
        "env": changed.get("env", config.environment_settings.env),
        results.ITERATION: algorithm.iteration,
        metrics.EVALUATION: result,
    }
    with files.translate_os_errors("write", path), files.open_atomic(path) as file:
        json.dump(results.to_json(document), file, indent=2, allow_nan=False)
        file.write("\n")


def format_evaluation(result: results.Result) -> list[str]:
    """Return the lines that report an evaluation."""
    stats = metrics.lookup(result, "env_runners")
    stats = stats if isinstance(stats, Mapping) else {}
    episodes = results.get_number(stats, "num_episodes") or 0
    mean = results.get_number(stats, "episode_return_mean")
    videos = [f"video             {path}" for path in metrics.lookup(result, "videos") or ()]
    if mean is None:
        return ["evaluated return  no episode ended during the evaluation", *videos]
    parts = [f"{text.format_number(mean)} on average"]
    for name in ("std", "min", "max"):
        value = results.get_number(stats, f"episode_return_{name}")
        if value is not None:
            parts.append(f"{name} {text.format_number(value)}")
    length = results.get_number(stats, "episode_len_mean")
    steps = "" if length is None else f" of {text.format_number(length)} steps on average"
    return [
        f"evaluated return  {'  '.join(parts)}",
        f"                  over {text.format_number(episodes)} episodes{steps}",
        *videos,
    ]


def _get_video_folder(checkpoint: Path) -> Path:
    """Return the folder for videos of a checkpoint: in its run folder, or else beside it."""
    folder = checkpoint.resolve().parent
    return (folder.parent if is_run_folder(folder.parent) else folder) / "videos"


def record(
    checkpoint: str,
    output: str,
    overrides: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    trust: Sequence[str] | None,
) -> None:
    """Record the policy of a checkpoint, and print the contents of the folder.

    Args:
        checkpoint: Checkpoint, or a run for its newest one.
        output: Folder of recorded data.
        overrides: Settings from -v.
        options: Further arguments of `Algorithm.record`.
        trust: Packages that may be imported.
    """
    folder = str(Path(output).expanduser().absolute())
    with open_policy(checkpoint, overrides, trust) as (path, algorithm):
        data = algorithm.record(folder, **options)
    terminal.echo(f"checkpoint  {path}")
    terminal.echo(f"data        {folder}")
    by_module = data if isinstance(data, dict) else {"": data}
    for module, recorded in by_module.items():
        if (counts := recorded.counts) is not None:
            known = counts.returns.num_episodes
            mean = format_mean_return(counts.returns.mean if known else None)
            name = f"{module}: " if module else ""
            terminal.echo(
                f"            {name}{counts.num_steps} steps, {counts.num_episodes} episodes, {mean}"
            )


def format_mean_return(mean: float | None) -> str:
    """Format the mean return of recorded episodes; None if no episode is whole."""
    return "no whole episode" if mean is None else f"mean return {mean:.4g}"


def estimate(
    checkpoint: str,
    source: str | None,
    overrides: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    methods: str | None,
    fqe_updates: int | None,
    as_json: bool,
    trust: Sequence[str] | None,
) -> None:
    """Estimate the policy of a checkpoint from recorded data, and print the estimates.

    Args:
        checkpoint: Checkpoint, or a run for its newest one.
        source: Recorded data; None for those of the run.
        overrides: Settings from -v.
        options: Further arguments of `Algorithm.evaluate_offline`.
        methods: Names of methods, separated by commas; None for those that are possible.
        fqe_updates: Gradient steps of the value function; None for the default.
        as_json: Whether to print JSON.
        trust: Packages that may be imported.
    """
    names = None if methods is None else [name.strip() for name in methods.split(",")]
    fqe = None if fqe_updates is None else {"num_updates": fqe_updates}
    data = None if source is None else str(Path(source).expanduser())
    with open_policy(checkpoint, overrides, trust) as (path, algorithm):
        if data is None and not (algorithm.config.is_offline or algorithm.config.is_mixed):
            raise ConfigError(
                f"The run of {path} learned from no recorded data: name a folder of them, --input DATA."
            )
        report = algorithm.evaluate_offline(data, names, fqe=fqe, **options)
    if as_json:
        typer.echo(json.dumps(_report_to_json(report), indent=2))
        return
    terminal.echo(f"checkpoint  {path}")
    for line in _format_report(report):
        terminal.echo(line)


def _report_to_json(report: "EstimateReport") -> object:
    """Return a report as JSON data, without the numbers that JSON does not have."""

    def convert(value: object) -> object:
        if isinstance(value, dict):
            return {str(name): convert(item) for name, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        if isinstance(value, float) and not math.isfinite(value):
            return None
        return value

    return convert(report.to_dict())


def _format_report(report: "EstimateReport") -> Iterator[str]:
    yield (
        f"data        {report.num_episodes} episodes, {report.num_steps} steps, "
        f"{report.num_dropped} incomplete parts left out"
    )
    yield f"policy      {'samples its actions' if report.explore else 'takes the most likely action'}"
    yield f"gamma       {report.gamma:g}"
    yield ""
    rows = {"behavior": report.behavior, **report.estimates}
    width = max(map(len, rows))
    yield f"{'':{width}}  {'value':>10}  {100.0 * report.confidence:g}% interval"
    for name, estimate in rows.items():
        yield f"{name:{width}}  {_format_estimate(estimate)}"
    if report.effective_size is not None and report.largest_share is not None:
        yield ""
        yield (
            f"effective episodes {report.effective_size:.1f}, "
            f"largest weight {100.0 * report.largest_share:.1f}%"
        )
    for warning in report.warnings:
        yield f"warning: {warning}"


def _format_estimate(estimate: "Estimate") -> str:
    return f"{estimate.value:10.4g}  [{estimate.low:.4g}, {estimate.high:.4g}]"
