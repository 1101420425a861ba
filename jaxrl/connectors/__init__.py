"""Connectors that transform observations, actions and rollouts, and the editing of pipelines."""

from jaxrl.connectors.actions import ClipActions, OffsetActions, RoundActions, UnsquashActions
from jaxrl.connectors.base import (
    ActionConnector,
    Before,
    LearnerConnector,
    ObservationConnector,
    TemporalConnector,
)
from jaxrl.connectors.builder import PipelineBuilder
from jaxrl.connectors.learning import ClipRewards, NormalizeRewards
from jaxrl.connectors.masks import SeparateMask
from jaxrl.connectors.observations import FlattenObservations, MeanStdFilter
from jaxrl.connectors.rllib_pieces import SingleAgentObservationPreprocessor
from jaxrl.connectors.temporal import FrameStacking, PrevActionsPrevRewards

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
