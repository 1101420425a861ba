"""Target networks after an import, which must not bootstrap from the weights before it."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from jaxrl.core.struct import replace
from jaxrl.core.types import PyTree
from jaxrl.learners.multi_optimizer import CRITIC
from jaxrl.learners.target_network import TargetNetwork
from jaxrl.runs.weights import refresh_snapshot
from jaxrl.training.train_state import TrainState


def with_equal_targets(state: TrainState) -> TrainState:
    """Set the target networks of a run to copies of the networks that they follow."""
    learner = state.learner
    values = {field.name: getattr(learner, field.name) for field in dataclasses.fields(learner)}
    targets = {
        name: replace(value, params=_copy_followed(learner.sgd.params, value.params))
        for name, value in values.items()
        if isinstance(value, TargetNetwork)
    }
    if not targets:
        return state
    return refresh_snapshot(replace(state, learner=replace(learner, **targets)))


def _copy_followed(params: PyTree, target: PyTree) -> PyTree:
    """Return a copy of the parameters that a target network follows: all, or the critics'."""
    is_of_all = jax.tree.structure(params) == jax.tree.structure(target)
    followed = params if is_of_all or not isinstance(params, Mapping) else params[CRITIC]
    return jax.tree.map(jnp.copy, followed)
