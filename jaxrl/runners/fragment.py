"""What passes between a runner on the host and the learner: weights one way, fragments the other."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Int

from jaxrl.core.types import Rollout
from jaxrl.training.episode_stats import EpisodeRecord
from jaxrl.training.rollout import Actor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weights:
    """What acting depends on, and which version of it.

    To other processes it goes as NumPy arrays; within one, as arrays that nobody else overwrites.
    """

    version: int
    actor: Actor


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunnerFault:
    """A copy of an environment that was restarted, as results name it."""

    worker_index: int
    env_index: int
    what: str
    detail: str
    silent: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fragment:
    """Consecutive steps of a runner's `n` environments, NumPy, `[T, n, ...]`.

    `rollout` holds the environments' own observations, what the module did, and the module's carry
    at the start; `record` says which episodes ended. `num_env_steps` counts the rows that are
    transitions. `number` counts the runner's fragments from 0 since it was (re)started. `metrics`
    is what callbacks logged, in the form that `runners.metrics_logger` merges.
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
