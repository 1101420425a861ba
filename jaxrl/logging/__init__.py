"""What a run leaves behind: the run folder, its sinks, the display and the learning curve."""

from jaxrl.logging.run_folder import RunFolder
from jaxrl.logging.sinks import OWN_SINKS, Sink, close_sinks, open_sinks

__all__ = ["OWN_SINKS", "RunFolder", "Sink", "close_sinks", "open_sinks"]
