"""Recording of a checkpoint's policy."""

from collections.abc import Sequence
from pathlib import Path

from jaxrl.cli import terminal
from jaxrl.cli.datasets import format_mean_return
from jaxrl.cli.exporting import open_checkpoint


def record(
    checkpoint: str,
    output: str,
    log_level: int | None = None,
    *,
    num_steps: int,
    num_envs: int,
    explore: bool | None,
    seed: int | None,
    trust: Sequence[str] | None,
) -> None:
    """Record the policy of a checkpoint, and print what the folder has.

    Args:
        checkpoint: Checkpoint, or a run for its newest one.
        output: Folder of recorded data.
        log_level: Level of jaxrl's Python loggers; None for the run's.
        num_steps: Least number of environment steps.
        num_envs: Number of environments.
        explore: Whether the policy explores; None for the run's.
        seed: Seed; None for the run's.
        trust: Packages that may be imported; see `--trust`.

    Raises:
        JaxrlError: If the checkpoint cannot be used, or the folder cannot be written.
    """
    folder = str(Path(output).expanduser().absolute())
    with open_checkpoint(checkpoint, log_level, trust) as (path, algorithm):
        data = algorithm.record(
            folder, num_steps=num_steps, num_envs=num_envs, explore=explore, seed=seed
        )
    terminal.echo(f"checkpoint  {path}")
    terminal.echo(f"data        {folder}")
    by_module = data if isinstance(data, dict) else {"": data}
    for module, own in by_module.items():
        if own.counts is not None:
            counts = own.counts
            known = counts.returns.num_episodes
            mean = format_mean_return(counts.returns.mean if known else None)
            name = f"{module}: " if module else ""
            terminal.echo(
                f"            {name}{counts.num_steps} steps, {counts.num_episodes} episodes, {mean}"
            )
