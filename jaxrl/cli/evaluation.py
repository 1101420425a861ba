"""`jaxrl evaluate`: a saved policy in its environment or another one."""

import contextlib
import dataclasses
import importlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from jaxrl import metrics
from jaxrl.cli import terminal
from jaxrl.cli.errors import make_log_level_override
from jaxrl.cli.experiments import parse_steps
from jaxrl.cli.interrupts import RaiseOnInterrupt
from jaxrl.cli.records import find_run, resolve_checkpoint
from jaxrl.config.imports import SCRIPT_OPTION
from jaxrl.config.registry import get_algorithm_config_class, list_algorithms
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

Result = Mapping[str, Any]

logger = logging.getLogger("jaxrl")


def evaluate(
    checkpoint: str,
    episodes: int | None,
    log_level: int | None = None,
    *,
    algo: str | None = None,
    env: str | None = None,
    steps: str | None = None,
    out: str | None = None,
    video: bool = False,
    trust: Sequence[str] | None = None,
    without_callbacks: bool = False,
) -> None:
    """Evaluate a saved policy and print its returns.

    Args:
        checkpoint: Checkpoint, or a run for its newest one.
        episodes: Number of episodes; None for the config's.
        log_level: Level of jaxrl's Python loggers; None for the run's.
        algo: Name of the algorithm that must have written the checkpoint; None for any.
        env: Environment to evaluate in; None for the config's.
        steps: Number of environment steps, instead of episodes.
        out: File for the result (.json) or the transitions (.npz).
        video: Whether to record a video.
        trust: Packages that may be imported; see `--trust`.
        without_callbacks: Whether to leave out the callbacks of the run.

    Raises:
        JaxrlError: If options contradict each other, or the checkpoint cannot be used.
    """
    from jaxrl.algorithm import Algorithm

    console = Console()
    _check_options(episodes, steps, out, video=video)
    path = resolve_checkpoint(find_run(checkpoint))
    metadata = read_metadata(path)
    check_metadata(metadata, path)
    overrides: dict[str, Any] = {
        **_leave_out_callbacks(metadata, everything=without_callbacks),
        **_make_overrides(path, metadata, algo, env, steps, trust),
        **make_log_level_override(log_level),
    }
    if video:
        overrides["record_video"] = True
    status = console.status(f"loading {path.name} and compiling its evaluation")
    with (
        RaiseOnInterrupt(),
        terminal.redirect_output(console),
        status,
        Algorithm.from_checkpoint(str(path), trust=trust, **overrides) as algorithm,
    ):
        if out is not None and out.endswith(".npz"):
            result = _evaluate_and_record(algorithm, episodes, Path(out).expanduser())
        else:
            folder = _get_video_folder(path)
            result = algorithm.evaluate(num_episodes=episodes, video_folder=folder)
        if out is not None and out.endswith(".json"):
            _write_result(Path(out).expanduser(), path, algorithm, result)
    lines = [*format_evaluation(result), f"checkpoint        {path}"]
    for line in lines if out is None else [*lines, f"written to        {out}"]:
        terminal.echo(line)


def _check_options(
    episodes: int | None, steps: str | None, out: str | None, *, video: bool
) -> None:
    """Raise before anything is loaded if options contradict each other."""
    if steps is not None and episodes is not None:
        raise ConfigError(
            f"--steps {steps} and --episodes {episodes} both say how long to evaluate: leave one "
            "of them out."
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


def _evaluate_and_record(algorithm: "Algorithm", episodes: int | None, path: Path) -> Result:
    """Evaluate in this process, write every transition, and return the result."""
    from jaxrl.evaluation.rollouts import record_rollouts, write_rollouts
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


def _write_result(path: Path, checkpoint: Path, algorithm: "Algorithm", result: Result) -> None:
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
