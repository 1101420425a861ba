"""Run logging: the run folder, result sinks, displays and learning curves."""

from jaxrl.loggers.sinks import Sink, close_sinks, open_sinks
from jaxrl.runs.run_folder import RunFolder

__all__ = ["RunFolder", "Sink", "close_sinks", "open_sinks"]
