"""Episodes as Python objects, for callbacks and custom code; compiled code does not use them."""

from jaxrl.episodes.lookback import LookbackBuffer
from jaxrl.episodes.multi_agent import MultiAgentEpisode
from jaxrl.episodes.single_agent import SingleAgentEpisode

__all__ = ["LookbackBuffer", "MultiAgentEpisode", "SingleAgentEpisode"]
