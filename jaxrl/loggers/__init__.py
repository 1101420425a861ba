"""What a run leaves behind: the run folder, its sinks, the display and the learning curve."""

from jaxrl.loggers.sinks import OWN_SINKS, Sink, close_sinks, open_sinks
from jaxrl.runs.run_folder import RunFolder

__all__ = ["OWN_SINKS", "RunFolder", "Sink", "close_sinks", "open_sinks"]
