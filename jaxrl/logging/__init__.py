"""What a run leaves behind: the run folder, its sinks, the display and the learning curve."""

from jaxrl.logging.run_folder import RunFolder
from jaxrl.logging.sinks import Sink, close_sinks, open_sinks

__all__ = ["RunFolder", "Sink", "close_sinks", "open_sinks"]
