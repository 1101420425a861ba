"""Connectors that transform observations, actions and rollouts, and the editing of pipelines."""

from typing import TYPE_CHECKING

from jaxrl.compat import lookup
from jaxrl.connectors.actions import ClipActions, OffsetActions, RoundActions, UnsquashActions
from jaxrl.connectors.base import (
    ActionConnector,
    Before,
    LearnerConnector,
    ObservationConnector,
    TemporalConnector,
)
from jaxrl.connectors.learning import ClipRewards, NormalizeRewards
from jaxrl.connectors.observations import FlattenObservations, MeanStdFilter, SeparateMask
from jaxrl.connectors.pipelines import PipelineBuilder
from jaxrl.connectors.temporal import FrameStacking, PrevActionsPrevRewards

if TYPE_CHECKING:
    from jaxrl.compat.rllib.connectors import SingleAgentObservationPreprocessor

__all__ = [
    "ActionConnector",
    "Before",
    "ClipActions",
    "ClipRewards",
    "FlattenObservations",
    "FrameStacking",
    "LearnerConnector",
    "MeanStdFilter",
    "NormalizeRewards",
    "ObservationConnector",
    "OffsetActions",
    "PipelineBuilder",
    "PrevActionsPrevRewards",
    "RoundActions",
    "SeparateMask",
    "SingleAgentObservationPreprocessor",
    "TemporalConnector",
    "UnsquashActions",
]


def __getattr__(name: str) -> object:
    """Import the connector of RLlib's on first access."""
    if name == "SingleAgentObservationPreprocessor":
        return lookup.load("rllib.connectors").SingleAgentObservationPreprocessor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
