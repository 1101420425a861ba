"""Getting and setting a state's module parameters, also from partly matching ones."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.keys import make_key
from jaxrl.core.struct import replace
from jaxrl.core.types import PyTree
from jaxrl.errors import CheckpointError, ConfigError, ModuleError, UnknownNameError, did_you_mean
from jaxrl.learners.target_network import TargetNetwork
from jaxrl.metrics import DEFAULT_MODULE
from jaxrl.runs import checkpoint as ckpt
from jaxrl.runs.opponents import (
    get_opponent,
    let_follow,
    list_opponents,
    remember_first,
    write_actor,
)
from jaxrl.training.report import to_host
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.modules.rl_module import RLModule

logger = logging.getLogger("jaxrl")


def check_fits(
    template: TrainState, leaves: Mapping[str, np.ndarray], prefixes: tuple[str, ...]
) -> None:
    """Raise CheckpointError if saved leaves do not match those of a state.

    Args:
        template: State with the expected leaves.
        leaves: Saved leaves by name.
        prefixes: Prefixes of the names to compare.
    """
    problem = ckpt.find_first_difference(template, leaves, prefixes)
    if problem is None:
        return
    saved = dict.fromkeys(n.split(".")[1] for n in leaves if n.startswith("modules."))
    if bool(saved) == bool(template.modules):
        raise CheckpointError(f"The state does not fit this Algorithm: {problem}.")
    own, other = f"the modules {', '.join(saved)}", "one"
    if not saved:
        own, other = "one module", "several"
    of, to = next(iter(saved or [DEFAULT_MODULE])), list_modules(template)[0]
    raise CheckpointError(
        f"The state does not fit this Algorithm: it has {own}, and this Algorithm {other}; weights "
        f"alone fit, as in set_weights({{{to!r}: saved.get_weights()[{of!r}]}}) with "
        "saved=Algorithm.from_checkpoint(...)."
    )


def list_modules(state: TrainState) -> list[str]:
    """Return the ids of a run's modules."""
    return list(state.modules) or [DEFAULT_MODULE]


def get_weights(state: TrainState, module_ids: Sequence[str]) -> dict[str, PyTree]:
    """Return the parameters of modules as NumPy arrays."""
    slots = list_opponents(state)
    return {
        name: to_host(get_opponent(state, slots[name]).params)
        if name in slots
        else get_parameters(state.modules.get(name, state))
        for name in module_ids
    }


def set_weights(
    state: TrainState, weights: Mapping[str, PyTree], *, strict: bool
) -> tuple[TrainState, list[str]]:
    """Replace the parameters of modules.

    Args:
        state: State of the run.
        weights: New parameters by module; of several modules, some may be left out.
        strict: Whether to raise on mismatches; False sets only the parameters that match.

    Returns:
        The new state, and a phrase for each mismatch.

    Raises:
        ModuleError: If a module does not exist or, with `strict`, a parameter does not fit.
    """
    if not isinstance(weights, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ModuleError(
            f"weights must be {{module_id: parameters}}, as get_weights() returns them, got "
            f"{type(weights).__name__}."
        )
    if not state.modules:
        return set_parameters(state, select_module(weights, DEFAULT_MODULE), strict=strict)
    slots = list_opponents(state)
    known = [*state.modules, *slots]
    unknown = next((name for name in weights if name not in known), None)
    if unknown is not None:
        raise ModuleError(
            f"weights has the module '{unknown}'; there are {', '.join(known)}."
            f"{did_you_mean(unknown, known)}"
        )
    modules, problems = dict(state.modules), list[str]()
    for name, params in weights.items():
        if name in slots:
            actor = get_opponent(state, slots[name])
            params, own = match_parameters(actor.params, params, strict=strict)
            state = write_actor(state, slots[name], replace(actor, params=params))
            state = let_follow(state, slots[name])
        else:
            modules[name], own = set_parameters(modules[name], params, strict=strict)
        problems += [f"{name}: {problem}" for problem in own]
    return set_first_versions(replace(state, modules=modules), list(weights)), problems


def set_first_versions(state: TrainState, modules: Sequence[str]) -> TrainState:
    """Return a state, in which nothing was trained yet, whose league begins with what modules are.

    Learners return to it, and the first version of a main agent plays it.

    Args:
        state: State of the run.
        modules: Modules that were set.
    """
    state = remember_first(state, list(modules))
    if getattr(state.opponents, "league", None) is None or int(state.progress.train_batches):
        return state
    slots = list_opponents(state)
    for name in modules:
        slot = slots.get(f"{name}_v0")
        if slot is None or name not in state.modules:
            continue
        actor, own = get_opponent(state, slot), state.modules[name]
        params, _ = match_parameters(actor.params, get_parameters(own), strict=False)
        actor = replace(actor, params=params, obs_state=own.connectors.obs)
        state = write_actor(state, slot, actor)
    return state


def get_parameters(state: TrainState) -> PyTree:
    """Return the module's parameters as NumPy arrays."""
    return to_host(state.learner.sgd.params)


def set_parameters(
    state: TrainState, weights: PyTree, *, strict: bool
) -> tuple[TrainState, list[str]]:
    """Replace the module's parameters.

    Args:
        state: State of the run.
        weights: New parameters.
        strict: Whether to raise on mismatches; False sets only the parameters that match.

    Returns:
        The new state, and a phrase for each mismatch.

    Raises:
        ModuleError: With `strict`, if a parameter is missing, unexpected or of another shape.
    """
    new_params, problems = match_parameters(state.learner.sgd.params, weights, strict=strict)
    sgd = replace(state.learner.sgd, params=new_params)
    state = replace(state, learner=_renew_target(replace(state.learner, sgd=sgd), new_params))
    if state.behaviour is not None:
        state = replace(state, behaviour=jax.tree.map(jnp.copy, new_params))
    return refresh_snapshot(state), problems


def match_parameters(params: PyTree, weights: PyTree, *, strict: bool) -> tuple[PyTree, list[str]]:
    """Return parameters with the values of others.

    Args:
        params: Parameters to replace, of arrays on devices.
        weights: New parameters.
        strict: Whether to raise on mismatches; False replaces only the parameters that match.

    Returns:
        The parameters, and a phrase for each mismatch.

    Raises:
        ModuleError: With `strict`, if a parameter is missing, unexpected or of another shape.
    """
    matching, problems = _match_leaves(params, weights, strict=strict)

    def replace_leaf(path: jax.tree_util.KeyPath[Any], old: jax.Array) -> jax.Array:
        new = matching.get(ckpt.format_leaf_name(path))
        return old if new is None else jax.device_put(new, old.sharding)

    return jax.tree_util.tree_map_with_path(replace_leaf, params), problems


def check_parameters(module: "RLModule", weights: PyTree) -> None:
    """Raise ModuleError if weights do not fit a module, which is not initialized for it."""
    _match_leaves(jax.eval_shape(lambda: module.init(make_key(0))), weights, strict=True)


def _match_leaves(
    params: PyTree, weights: PyTree, *, strict: bool
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the weights that fit by name, and a phrase for each problem."""
    new_leaves = ckpt.get_named_leaves(weights)
    current = ckpt.get_named_leaves(params)
    problems = [
        f"{name} does not exist in this module" for name in new_leaves if name not in current
    ]
    matching: dict[str, np.ndarray] = {}
    for name, leaf in current.items():
        if name not in new_leaves:
            problems.append(f"{name} is missing")
        elif np.shape(new_leaves[name]) != leaf.shape:
            shape = np.shape(new_leaves[name])
            problems.append(f"{name} has shape {shape}, expected {leaf.shape}")
        else:
            matching[name] = np.array(new_leaves[name], leaf.dtype)
    if problems and strict:
        raise ModuleError(
            f"The weights do not fit the module: {'; '.join(problems)}. "
            "set_weights(..., strict=False) sets only the matching ones."
        )
    return matching, problems


def _renew_target(learner: Any, params: PyTree) -> Any:
    """Return the learner state whose target network, if it has one, is a copy of the parameters."""
    target = getattr(learner, "target", None)
    if target is None:
        return learner
    old = target.params if isinstance(target, TargetNetwork) else target
    parts = [params, *(params.values() if isinstance(params, Mapping) else ())]
    structure = jax.tree.structure(old)
    source = next((part for part in parts if jax.tree.structure(part) == structure), None)
    if source is None:  # of a learner of the user's own
        return learner
    renewed = jax.tree.map(lambda new, x: jax.device_put(jnp.copy(new), x.sharding), source, old)
    is_network = isinstance(target, TargetNetwork)
    return replace(learner, target=replace(target, params=renewed) if is_network else renewed)


def refresh_snapshot(state: TrainState) -> TrainState:
    """Replace the divergence guards' snapshots by copies of the current learner states.

    After parameters were set, a rollback must not restore the previous ones.
    """
    if state.modules:
        modules = {name: refresh_snapshot(own) for name, own in state.modules.items()}
        return replace(state, modules=modules)
    if state.guard.snapshot is None:
        return state
    snapshot = jax.tree.map(jnp.copy, state.learner)
    return replace(state, guard=replace(state.guard, snapshot=snapshot))


def restore_modules(
    state: TrainState,
    path: Path,
    leaves: Mapping[str, np.ndarray],
    module_ids: Sequence[str],
    component: str | None,
) -> TrainState:
    """Restore learners and connectors of modules from the leaves of a checkpoint.

    Raises:
        ConfigError: If the config has no such module.
        UnknownNameError: If the checkpoint has none.
        CheckpointError: If one has another architecture or optimizer.
    """
    if component is not None:
        raise ConfigError(
            f"policy_ids restores learners and connectors whole, so component={component!r} has no "
            "effect: leave one of them out."
        )
    if isinstance(module_ids, str) or not module_ids:
        raise ConfigError(
            f"policy_ids={module_ids!r} must be a list of the modules to restore, such as ['main']; "
            "None restores the whole run."
        )
    saved = sorted({name.split(".")[1] for name in leaves if name.startswith("modules.")})
    modules = dict(state.modules)
    for name in module_ids:
        if name not in saved:
            raise UnknownNameError(
                f"policy_ids has {name!r}, but {path} has the modules "
                f"{', '.join(saved) or 'of a single agent'}.{did_you_mean(name, saved)}"
            )
        if name not in modules:
            raise ConfigError(
                f"policy_ids has {name!r}, but the modules of the config are "
                f"{', '.join(modules) or 'those of a single agent'}."
            )
    parts = ("learner", "connectors.obs", "connectors.learner", "progress")
    prefixes = tuple(f"modules.{name}.{part}" for name in module_ids for part in parts)
    template = {"modules": modules}
    problem = ckpt.find_first_difference(template, leaves, prefixes)
    if problem is not None:
        raise CheckpointError(f"{path} does not fit: {problem}.")
    filled: dict[str, Any] = ckpt.fill(template, leaves, prefixes)["modules"]
    restored = {name: refresh_snapshot(filled[name]) for name in module_ids}
    new = [name for name in modules if name not in module_ids]
    logger.info(
        "%s: restored %s; new: %s; left out: %s.",
        path,
        ", ".join(module_ids),
        ", ".join(new) or "none",
        ", ".join(name for name in saved if name not in module_ids) or "none",
    )
    after = replace(state, modules={**modules, **restored})
    return set_first_versions(after, module_ids)


def select_module(weights: Mapping[str, PyTree], module_id: str) -> PyTree:
    """Return the entry of a module in `{module_id: parameters}`.

    Raises:
        ModuleError: If there are other modules, or this one is missing.
    """
    if set(weights) != {module_id}:
        raise ModuleError(
            f"weights must be {{'{module_id}': parameters}}, got the keys {sorted(weights)}."
        )
    return weights[module_id]
