"""Opponents that explore as a learner does, with its hyperparameters and progress."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from jaxrl.core.struct import replace
from jaxrl.training.rollout import ActorState


def follow_learners(
    stack: ActorState,
    follows: Bool[Array, " S"],
    leaders: Sequence[str],
    actors: Mapping[str, ActorState],
) -> ActorState:
    """Return a stack in which those that follow a learner explore as it does now.

    Args:
        stack: Inputs of acting of opponents, `[S, ...]`.
        follows: Whether each of them follows.
        leaders: Learner of each slot.
        actors: Inputs of acting of the learners.
    """
    different = sorted(set(leaders))
    of_slot = np.array([different.index(name) for name in leaders])

    def choose(own: Array, *now: Array) -> Array:
        return jnp.where(follows, jnp.stack(now)[of_slot], own)

    hparams = [actors[name].hparams for name in different]
    progress = [actors[name].progress for name in different]
    return replace(
        stack,
        hparams=jax.tree.map(choose, stack.hparams, *hparams),
        progress=jax.tree.map(choose, stack.progress, *progress),
    )
