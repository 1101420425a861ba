"""Names of the sinks for results; `jaxrl.loggers.sinks` opens them."""

from typing import Literal, TypeAlias, get_args

LocalLoggerName: TypeAlias = Literal["console", "json", "csv", "tensorboard"]
"""Sinks that only print or write into the run folder, so a config from any source may name them."""
LoggerName: TypeAlias = Literal[LocalLoggerName, "wandb"]

LOCAL_LOGGERS: tuple[str, ...] = get_args(LocalLoggerName)
LOGGERS: tuple[str, ...] = get_args(LoggerName)
