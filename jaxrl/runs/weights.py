"""Parameters in and out of a state, also where not everything fits."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.struct import replace
from jaxrl.core.types import PyTree
from jaxrl.errors import ModuleError
from jaxrl.runs import checkpoint as ckpt
from jaxrl.training.report import to_host
from jaxrl.training.train_state import TrainState


def get_parameters(state: TrainState) -> PyTree:
    """The module's parameters as NumPy arrays."""
    return to_host(state.learner.sgd.params)


def set_parameters(
    state: TrainState, weights: PyTree, *, strict: bool
) -> tuple[TrainState, list[str]]:
    """The state with the parameters given, and a sentence for each that did not fit.

    Raises:
        ModuleError: With `strict`, if anything is missing, left over or of another shape.
    """
    params = state.learner.sgd.params
    given = ckpt.named_leaves(weights)
    own = ckpt.named_leaves(params)
    problems = [f"{name} has no place in this module" for name in given if name not in own]
    fitting: dict[str, np.ndarray] = {}
    for name, leaf in own.items():
        if name not in given:
            problems.append(f"{name} is missing")
        elif np.shape(given[name]) != leaf.shape:
            problems.append(f"{name} has shape {np.shape(given[name])}, here it is {leaf.shape}")
        else:
            fitting[name] = np.array(given[name], leaf.dtype)
    if problems and strict:
        raise ModuleError(
            f"The weights do not fit the module: {'; '.join(problems)}. "
            "set_weights(..., strict=False) takes what fits."
        )

    def place(path: Any, old: jax.Array) -> jax.Array:
        new = fitting.get(ckpt.leaf_name(path))
        return old if new is None else jax.device_put(new, old.sharding)

    new_params = jax.tree_util.tree_map_with_path(place, params)
    sgd = replace(state.learner.sgd, params=new_params)
    state = replace(state, learner=replace(state.learner, sgd=sgd))
    if state.behaviour is not None:
        state = replace(state, behaviour=jax.tree.map(jnp.copy, new_params))
    return with_fresh_snapshot(state), problems


def with_fresh_snapshot(state: TrainState) -> TrainState:
    """The state with what the guard goes back to replaced by the present learner state, copied.

    After parameters were put in, the ones from before are no longer the last good ones.
    """
    if state.guard.snapshot is None:
        return state
    snapshot = jax.tree.map(jnp.copy, state.learner)
    return replace(state, guard=replace(state.guard, snapshot=snapshot))


def by_module(weights: Mapping[str, PyTree], module_id: str) -> PyTree:
    """The entry of a module in `{module_id: parameters}`."""
    if set(weights) != {module_id}:
        raise ModuleError(
            f"weights must be {{'{module_id}': parameters}}, got the keys {sorted(weights)}."
        )
    return weights[module_id]
