"""The command that tries an environment out."""

import logging
import warnings

import typer

from jaxrl.cli.experiments import json_object
from jaxrl.envs.registry import make
from jaxrl.testing import check_env


def check(env: str, env_config: str | None, steps: int, seed: int) -> None:
    """Hold an environment to its contract; warnings are printed, an error is one sentence."""
    made = make(env, None if env_config is None else json_object("--env-config", env_config))
    advice = _Collected()
    logger = logging.getLogger("jaxrl.envs")
    logger.addHandler(advice)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            check_env(made, num_steps=steps, seed=seed)
    finally:
        logger.removeHandler(advice)
    sentences = [*advice.sentences, *(str(warning.message) for warning in caught)]
    for sentence in dict.fromkeys((*made.notes, *sentences)):
        typer.echo(f"note: {sentence}")
    typer.echo(f"{made.id} is as it should be.")


class _Collected(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.sentences: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.sentences.append(record.getMessage())
