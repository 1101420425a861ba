"""`jaxrl compile-report`: builds and compiles a run and reports the cost, without training."""

import dataclasses
import json
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from jaxrl.cli import terminal
from jaxrl.cli.records import find_run_folder, load_run_config, read_params
from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.batch_plan import BatchPlan
from jaxrl.config.load import load_experiment
from jaxrl.config.registry import resolve_config_path
from jaxrl.errors import ConfigError
from jaxrl.loggers import text
from jaxrl.runtime.compilation_cache import get_cache_contents

if TYPE_CHECKING:
    from jaxrl.algorithm import Algorithm

MIB = 2**20
SIZE_KEYS = ("argument_bytes", "output_bytes", "temp_bytes", "donated_bytes")
PER_BATCH_PROGRAMS = (
    "train",
    "learn",
    "receive",
    "add",
    "fold_n_steps",
    "sample_inputs",
    "sample_rows",
    "update",
    "update_priorities",
)
"""Programs that are called once per train batch; others cover fewer steps, or none."""
TABLE_NOTE = (
    "FLOPs are per call over all devices; loops whose length is known only at run time count once, "
    "so those of train are for one train batch. MiB are per device."
)


def compile_report(
    source: Sequence[str], *, as_json: bool, trust: Sequence[str] | None = None
) -> None:
    """Compile the programs of a config or a run, and print a table or JSON."""
    config = _load_config(source, trust)
    with tempfile.TemporaryDirectory(prefix="jaxrl-compile-report-") as folder:
        config.debugging(loggers=[], results_dir=folder, run_name=None)
        config.checkpointing(checkpoint_frequency=0, checkpoint_at_end=False)
        console = Console(stderr=True)
        with terminal.redirect_output(console), console.status("compiling"), _build(config) as algo:
            programs = algo.compile()
            plan = algo.config.plan()
            devices = f"{len(algo.devices)} x {algo.devices[0].device_kind}"
    if not programs:
        raise ConfigError(
            "jit=False compiles nothing, so there is nothing to report: set jit=True, and unset "
            "JAX_DISABLE_JIT."
        )
    cache = get_cache_contents()
    report = {
        "algo": config.algo_name,
        "env": str(config.environment_settings.env),
        "devices": devices,
        "env_steps_per_train_batch": plan.num_envs * plan.rollout_fragment_length,
        "programs": {name: _add_flops_per_step(name, p, plan) for name, p in programs.items()},
        "cache": None if cache is None else dataclasses.asdict(cache),
    }
    typer.echo(json.dumps(report, indent=2) if as_json else "\n".join(_format_report(report)))


def _build(config: AlgorithmConfig) -> "Algorithm":
    from jaxrl.algorithm import Algorithm

    built = config.build()
    if not isinstance(built, Algorithm):
        built.stop()
        raise ConfigError(
            "compile-report needs a single run, and this config is a sweep of several: give each "
            "setting one value, and seeds=None."
        )
    return built


def _load_config(source: Sequence[str], trust: Sequence[str] | None) -> AlgorithmConfig:
    """Load the config of `file CONFIG` or of a run folder, importing only what is trusted.

    Raises:
        JaxrlError: If the file or folder does not exist, or is damaged.
    """
    if len(source) == 2 and source[0] == "file":
        return load_experiment(resolve_config_path(source[1])).config
    if len(source) != 1 or source[0] == "file":
        raise ConfigError(
            f"Cannot report on {' '.join(source)!r}: use 'jaxrl compile-report file CONFIG' or "
            "'jaxrl compile-report RUN'."
        )
    path = find_run_folder(source[0])
    return load_run_config(path, read_params(path), trust)


def _add_flops_per_step(name: str, figures: Mapping[str, Any], plan: BatchPlan) -> dict[str, Any]:
    steps = _count_steps_per_call(name, plan)
    return {**figures, "flops_per_env_step": None if steps is None else figures["flops"] / steps}


def _count_steps_per_call(name: str, plan: BatchPlan) -> int | None:
    """Return the environment steps per call of a program; None if it is not part of training."""
    if name in PER_BATCH_PROGRAMS:
        return plan.num_envs * plan.rollout_fragment_length
    if name == "host_draw":
        return plan.envs_per_runner * plan.rollout_fragment_length
    return plan.envs_per_runner if name == "host_act" else None


def _format_report(report: Mapping[str, Any]) -> list[str]:
    """Format the report as text."""
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
            text.format_rate(figures["flops"]),
            "-" if per_step is None else text.format_rate(per_step),
            *(f"{figures[size] / MIB:.2f}" for size in SIZE_KEYS),
        )
    first = (
        f"{report['algo']} on {report['env']}, {report['devices']}, "
        f"{text.format_number(report['env_steps_per_train_batch'])} environment steps per train batch"
    )
    return [
        first,
        *terminal.format_table(table, Console(width=terminal.FILE_WIDTH)),
        TABLE_NOTE,
        _format_cache(report["cache"]),
    ]


def _format_cache(cache: Mapping[str, Any] | None) -> str:
    if cache is None:
        return "compilation cache: none"
    most = "" if cache["max_bytes"] is None else f" of at most {cache['max_bytes'] / MIB:,.0f}"
    return (
        f"compilation cache: {cache['folder']}, {cache['entries']} entries, "
        f"{cache['bytes'] / MIB:,.1f} MiB{most}"
    )
