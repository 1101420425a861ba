"""What `jaxrl compile-report` does: build, compile, and say what it took; nothing is trained."""

import dataclasses
import json
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from jaxrl.cli import terminal
from jaxrl.cli.experiments import config_file
from jaxrl.cli.runs import find_run
from jaxrl.config.batch_plan.arithmetic import BatchPlan
from jaxrl.config.deserialize import config_from_serializable
from jaxrl.config.imports import Trust
from jaxrl.errors import ConfigError, RunFolderError
from jaxrl.loggers import text
from jaxrl.runs.run_folder import is_run_folder, params_are_own
from jaxrl.runtime.compilation_cache import CacheContents, cache_contents

if TYPE_CHECKING:
    from jaxrl.algorithm import Algorithm
    from jaxrl.config.base import AlgorithmConfig

MIB = 2**20
SIZES = ("argument_bytes", "output_bytes", "temp_bytes", "donated_bytes")
OF_A_BATCH = ("train", "learn", "deal", "renew", "deliver")
"""Programs that are called once for a train batch; some others belong to fewer steps, or to none."""
NOTE = (
    "FLOPs are of one call over all devices; loops whose length is known only at run time count "
    "once, so those of train are of one train batch. MiB are of one device."
)


def compile_report(
    source: Sequence[str], *, as_json: bool, trust: Sequence[str] | None = None
) -> None:
    """Compiles what a config or a run needs, and prints the table or JSON."""
    config = _config_of(source, trust)
    with tempfile.TemporaryDirectory(prefix="jaxrl-compile-report-") as folder:
        config.debugging(loggers=[], results_dir=folder, run_name=None)
        config.checkpointing(checkpoint_frequency=0, checkpoint_at_end=False)
        console = Console(stderr=True)
        with terminal.held(console), console.status("compiling"), _built(config) as algo:
            programs = algo.compile()
            plan = algo.config.plan()
            devices = f"{len(algo.devices)} x {algo.devices[0].device_kind}"
    if not programs:
        raise ConfigError(
            "jit=False compiles nothing, so there is nothing to report: set jit=True."
        )
    report = {
        "algo": config.algo_name,
        "env": str(config.environment_settings.env),
        "devices": devices,
        "env_steps_per_train_batch": plan.num_envs * plan.rollout_fragment_length,
        "programs": {name: _with_flops_per_step(name, p, plan) for name, p in programs.items()},
        "cache": _cache(cache_contents()),
    }
    typer.echo(json.dumps(report, indent=2) if as_json else "\n".join(_lines(report)))


def _built(config: "AlgorithmConfig") -> "Algorithm":
    from jaxrl.algorithm import Algorithm

    built = config.build()
    if not isinstance(built, Algorithm):
        built.stop()
        raise ConfigError(
            "compile-report is of one run, and this config is a sweep of several: give its settings "
            "a value each, and seeds=None."
        )
    return built


def _config_of(source: Sequence[str], trust: Sequence[str] | None) -> "AlgorithmConfig":
    """The config of `file CONFIG`, or of a run folder; a stranger's is held to what is trusted.

    Raises:
        JaxrlError: There is no such file or folder, or it is damaged.
    """
    if len(source) == 2 and source[0] == "file":
        from jaxrl.config.load import load_experiment

        return load_experiment(config_file(source[1])).config
    if len(source) != 1 or source[0] == "file":
        raise ConfigError(
            f"Cannot report on {' '.join(source)!r}: say 'jaxrl compile-report file CONFIG' or "
            "'jaxrl compile-report RUN'."
        )
    path = find_run(source[0])
    if not is_run_folder(path):
        raise RunFolderError(
            f"There is no run folder '{path}': give one that 'jaxrl train' printed, or say "
            "'jaxrl compile-report file CONFIG'."
        )
    params = path / "params.json"
    try:
        saved = json.loads(params.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunFolderError(f"Cannot read {params}: {error}.") from error
    trusted = Trust.of(trust, own=params_are_own(path), source=params)
    return config_from_serializable(saved, trust=trusted)


def _with_flops_per_step(name: str, figures: Mapping[str, Any], plan: BatchPlan) -> dict[str, Any]:
    steps = _steps_of_a_call(name, plan)
    return {**figures, "flops_per_env_step": None if steps is None else figures["flops"] / steps}


def _steps_of_a_call(name: str, plan: BatchPlan) -> int | None:
    """Environment steps that a call of a program belongs to; None where it is none of training's."""
    if name in OF_A_BATCH:
        return plan.num_envs * plan.rollout_fragment_length
    if name == "host_draw":
        return plan.envs_per_runner * plan.rollout_fragment_length
    return plan.envs_per_runner if name == "host_act" else None


def _cache(contents: CacheContents | None) -> dict[str, Any] | None:
    return None if contents is None else dataclasses.asdict(contents)


def _lines(report: Mapping[str, Any]) -> list[str]:
    """The table, in words."""
    table = Table(box=None, pad_edge=False)
    table.add_column("program")
    names = ("trace s", "lower s", "compile s", "from", "FLOPs", "per env step")
    for name in (*names, "arguments MiB", "outputs", "temporaries", "donated"):
        table.add_column(name, justify="right")
    for name, figures in report["programs"].items():
        per_step = figures["flops_per_env_step"]
        table.add_row(
            name,
            *(f"{figures[part]:.2f}" for part in ("trace_s", "lower_s", "compile_s")),
            "cache" if figures["cache_hit"] else "XLA",
            text.rate(figures["flops"]),
            "-" if per_step is None else text.rate(per_step),
            *(f"{figures[size] / MIB:.2f}" for size in SIZES),
        )
    console = Console(width=160)
    with console.capture() as printed:
        console.print(table)
    first = (
        f"{report['algo']} on {report['env']}, {report['devices']}, "
        f"{text.number(report['env_steps_per_train_batch'])} environment steps a train batch"
    )
    return [
        first,
        *(line.rstrip() for line in printed.get().splitlines()),
        NOTE,
        _cache_in_words(report["cache"]),
    ]


def _cache_in_words(cache: Mapping[str, Any] | None) -> str:
    if cache is None:
        return "compilation cache: none"
    most = "" if cache["max_bytes"] is None else f" of at most {cache['max_bytes'] / MIB:,.0f}"
    return (
        f"compilation cache: {cache['folder']}, {cache['entries']} entries, "
        f"{cache['bytes'] / MIB:,.1f} MiB{most}"
    )
