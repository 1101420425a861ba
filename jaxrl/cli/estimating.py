"""Estimation of a checkpoint's policy from recorded data, and the table of the estimates."""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

from jaxrl.cli import terminal
from jaxrl.cli.exporting import open_checkpoint
from jaxrl.errors import ConfigError
from jaxrl.estimation.estimate import Estimate, EstimateReport


def estimate(
    checkpoint: str,
    source: str | None,
    log_level: int | None = None,
    *,
    methods: str | None,
    gamma: float | None,
    explore: bool | None,
    confidence: float,
    fqe_updates: int | None,
    seed: int,
    as_json: bool,
    trust: Sequence[str] | None,
) -> None:
    """Estimate the policy of a checkpoint, and print the estimates.

    Args:
        checkpoint: Checkpoint, or a run for its newest one.
        source: Recorded data; None for those of the run.
        log_level: Level of jaxrl's Python loggers; None for the run's.
        methods: Names of methods, separated by commas; None for those that are possible.
        gamma: Discount factor; None for the run's.
        explore: Whether the policy samples its actions; None for the run's.
        confidence: Probability that the intervals contain the value.
        fqe_updates: Gradient steps of the value function; None for the default.
        seed: Seed of resampling, actions and fits.
        as_json: Whether to print JSON.
        trust: Packages that may be imported; see `--trust`.

    Raises:
        JaxrlError: If the checkpoint or the data cannot be used.
    """
    names = None if methods is None else [name.strip() for name in methods.split(",")]
    fqe = None if fqe_updates is None else {"num_updates": fqe_updates}
    data = None if source is None else str(Path(source).expanduser())
    with open_checkpoint(checkpoint, log_level, trust) as (path, algorithm):
        if data is None and not (algorithm.config.is_offline or algorithm.config.is_mixed):
            raise ConfigError(
                f"The run of {path} learned from no recorded data: name a folder of them, --input DATA."
            )
        report = algorithm.evaluate_offline(
            data,
            names,
            gamma=gamma,
            explore=explore,
            confidence=confidence,
            fqe=fqe,
            seed=seed,
        )
    if as_json:
        typer.echo(json.dumps(_to_json(report), indent=2))
        return
    terminal.echo(f"checkpoint  {path}")
    for line in _format_lines(report):
        terminal.echo(line)


def _to_json(report: EstimateReport) -> object:
    """Return a report as JSON data, without the numbers that JSON does not have."""

    def convert(value: object) -> object:
        if isinstance(value, dict):
            return {str(name): convert(item) for name, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        if isinstance(value, float) and not math.isfinite(value):
            return None
        return value

    return convert(report.to_dict())


def _format_lines(report: EstimateReport) -> Iterator[str]:
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
        yield f"{name:{width}}  {_format(estimate)}"
    if report.effective_size is not None and report.largest_share is not None:
        yield ""
        yield (
            f"effective episodes {report.effective_size:.1f}, "
            f"largest weight {100.0 * report.largest_share:.1f}%"
        )
    for warning in report.warnings:
        yield f"warning: {warning}"


def _format(estimate: Estimate) -> str:
    return f"{estimate.value:10.4g}  [{estimate.low:.4g}, {estimate.high:.4g}]"
