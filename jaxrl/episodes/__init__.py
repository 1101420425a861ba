"""Episodes as Python objects, for callbacks and custom code; nothing that is compiled needs them."""

from jaxrl.episodes.lookback import LookbackBuffer
from jaxrl.episodes.single_agent import SingleAgentEpisode

__all__ = ["LookbackBuffer", "SingleAgentEpisode"]
