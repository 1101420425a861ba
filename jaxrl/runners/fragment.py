"""Messages between host runners and learners: weights and rollout fragments."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from jaxrl.core.types import PyTree, Rollout
from jaxrl.training.episode_stats import EpisodeRecord
from jaxrl.training.rollout import ActorState


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weights:
    """Actor state and its version.

    Other processes receive it as NumPy arrays. Within a process, the arrays are copies, so that
    donation of the learner state does not overwrite them. `task` is the task of the environments,
    as `HostVector.set_task` takes it; None leaves it as it is.
    """

    version: int
    actor: ActorState
    task: PyTree = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunnerFault:
    """Restart of an environment, as reported in results."""

    worker_index: int
    env_index: int
    what: str
    detail: str
    silent: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fragment:
    """Consecutive steps of a runner's `n` environments, in NumPy, `[T, n, ...]`.

    `rollout` holds the raw observations of the environments, the outputs of the module and the
    module's carry at the start; `record` marks the episodes that ended. `num_env_steps` is the
    number of rows that are transitions. `number` counts the runner's fragments from 0 since its
    last (re)start. `metrics` holds the metrics logged by callbacks, in the form that
    `MetricsLogger` merges.

    With several agents, `rollout` is a `MultiRollout`, and `completed` `[T, R]` is whether a step
    completed a row of each module's column. `num_agent_steps_lost` counts the rows that
    were begun and never completed because a copy failed, `num_pending_rows` those that go on in the
    next fragment, and `rewards_without_action` the rewards of agents that were not present.
    `begins_episodes` is whether all environments began anew with it, of several agents.
    """

    worker_index: int
    number: int
    weights_version: int
    rollout: Rollout
    record: EpisodeRecord
    env_index: Int[np.ndarray, " n"]
    num_env_steps: int
    seconds: float
    env_seconds: float
    faults: tuple[RunnerFault, ...] = ()
    metrics: dict[str, Any] = dataclasses.field(default_factory=dict)
    completed: dict[str, Bool[np.ndarray, "T R"]] | None = None
    num_agent_steps_lost: int = 0
    num_pending_rows: int = 0
    rewards_without_action: int = 0
    begins_episodes: bool = False
