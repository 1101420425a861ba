"""Learner that changes nothing, of modules that play without being trained."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.core.hparams import build_hparams
from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, Metrics, Progress, Rollout
from jaxrl.learners.gradients import NUM_NONFINITE_UPDATES, SgdState
from jaxrl.learners.learner import BaseLearner
from jaxrl.learners.policy_gradient import SgdLearnerState
from jaxrl.modules.rl_module import RLModule


@pytree
class FixedBatch:
    """Train batch, `[T, B]`; `weight` is 0 where a row is not a transition."""

    weight: Float[Array, "*batch"]


@dataclasses.dataclass(frozen=True, eq=False)
class FixedLearner(BaseLearner[SgdLearnerState]):
    """Learner that changes nothing."""

    module: RLModule
    settings: Any

    def init(self, key: Key) -> SgdLearnerState:
        sgd = SgdState(params=self.module.init(key), opt_state=())
        return SgdLearnerState(sgd=sgd, hparams=build_hparams(self.settings))

    def prepare(
        self, state: SgdLearnerState, rollout: Rollout, progress: Progress
    ) -> tuple[FixedBatch, Metrics]:
        del state, progress
        return FixedBatch(weight=rollout.mask.astype(jnp.float32)), {}

    def update(
        self, state: SgdLearnerState, batch: FixedBatch, progress: Progress, key: Key
    ) -> tuple[SgdLearnerState, Metrics]:
        """Return the state unchanged. Does not consume the key."""
        del batch, progress, key
        zero = jnp.zeros((), jnp.float32)
        return state, {"total_loss": zero, "grad_norm": zero, NUM_NONFINITE_UPDATES: zero}

    def finish(
        self, state: SgdLearnerState, metrics: Metrics, progress: Progress
    ) -> SgdLearnerState:
        """Return the state unchanged."""
        del metrics, progress
        return state
