"""Modules with the current weights of a run, which take RLlib's dictionaries."""

import copy
import functools
import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array

from jaxrl.config.settings.run import WITHOUT_CALLBACKS
from jaxrl.core.spaces import get_leaf_spaces, map_leaves, without_parts
from jaxrl.core.types import Columns, Key, ObsSequence, ObsWithCarry, PyTree
from jaxrl.errors import ConfigError, ModuleError, SpaceError
from jaxrl.metrics import DEFAULT_MODULE
from jaxrl.modules.rl_module import RLModule, make_zeros
from jaxrl.runs.checkpoint import get_path
from jaxrl.runs.weights import list_modules
from jaxrl.training.report import to_host
from jaxrl.training.rollout import ActorState

Outputs = dict[str, Any]

_MODULES_FOLDER = "rl_module"
_RLLIB_FOLDERS = ("learner_group", "learner", "env_runner", _MODULES_FOLDER)
"""Folders around the module in a checkpoint of RLlib's, which a checkpoint here does not have."""


class BatchCalls:
    """Mix-in of a module: its methods also take RLlib's batches, with the run's weights.

    `module.forward_inference({"obs": batch})` is a call with a batch; with parameters before the
    observations, the methods are the pure ones of the module. Attributes are set by `bind_module`.
    """

    _get_actor: Callable[[], ActorState]
    _set_params: Callable[[PyTree], object]
    _make_key: Callable[[], Key]
    _pure: RLModule
    _compiled: dict[str, Callable[..., Outputs]]

    def forward_inference(self, *args: PyTree, **kwargs: PyTree) -> Outputs:
        """Compute the most likely actions, for a batch or for parameters and observations."""
        if _is_pure_call(args, kwargs):
            return self._pure.forward_inference(*args, **kwargs)
        return self._act("forward_inference", *args)

    def forward_exploration(self, *args: PyTree, **kwargs: PyTree) -> Outputs:
        """Sample actions, for a batch or for parameters, observations and random draws."""
        if _is_pure_call(args, kwargs):
            return self._pure.forward_exploration(*args, **kwargs)
        return self._act("forward_exploration", *args)

    def forward_train(self, *args: PyTree, **kwargs: PyTree) -> Outputs:
        """Compute all outputs, for a batch or for parameters and a batch."""
        if _is_pure_call(args, kwargs):
            return self._pure.forward_train(*args, **kwargs)
        obs, carry = self._read_batch(*args)
        return _drop_none(self._run("forward_train", obs, carry))

    def compute_values(self, *args: PyTree, **kwargs: PyTree) -> Array:
        """Compute state values, for a batch or for parameters and observations."""
        if _is_pure_call(args, kwargs) and "embeddings" not in kwargs:
            return self._pure.compute_values(*args, **kwargs)
        obs, carry = self._read_batch(*args)
        return self._run("compute_values", obs, carry)[Columns.VF_PREDS]

    def get_initial_state(self) -> PyTree:
        """Return the recurrent state at an episode's start, without a batch axis; {} for none."""
        carry = self._pure.initial_carry(1)
        return {} if carry is None else jax.tree.map(lambda x: np.asarray(x[0]), carry)

    def get_state(self) -> PyTree:
        """Return the parameters as NumPy arrays."""
        return to_host(self._get_actor().params)

    def set_state(self, state: PyTree) -> None:
        """Replace the parameters in the run, as `Algorithm.set_weights` does."""
        self._set_params(state)

    def __call__(self, batch: Mapping[str, Any]) -> Outputs:
        """Compute all outputs for a batch."""
        return self.forward_train(batch)

    def _read_batch(self, batch: Mapping[str, Any]) -> tuple[PyTree, PyTree]:
        """Return the observations and the recurrent state of a batch.

        Raises:
            SpaceError: If one of them is missing or has another shape.
        """
        module = self._pure
        if Columns.OBS not in batch:
            found = ", ".join(map(repr, batch)) or "nothing"
            raise SpaceError(f"The batch has no 'obs', the observations: it has {found}.")
        obs = _to_arrays(module.observation_space, batch[Columns.OBS])
        shape = _get_batch_shape(module.observation_space, obs)
        state = batch.get(Columns.STATE_IN)
        is_stateful = module.initial_carry(1) is not None
        most = 2 if is_stateful else np.inf
        if not 1 <= len(shape) <= most:
            axes = "a batch axis, and an axis of time after it" if is_stateful else "a batch axis"
            raise SpaceError(
                f"'obs' must be observations of {module.observation_space} with {axes}, got shape "
                f"{jax.tree.leaves(obs)[0].shape}."
            )
        if not is_stateful:
            return obs, None
        blank = module.initial_carry(shape[0])
        return obs, blank if state is None else _check_state(state, blank)

    def _act(self, method: str, batch: Mapping[str, Any]) -> Outputs:
        module = self._pure
        if module.critic_only_observations and Columns.OBS in batch:
            obs = _fill_critic_only(module, module.observation_space, batch[Columns.OBS])
            batch = {**batch, Columns.OBS: obs}
        obs, carry = self._read_batch(batch)
        return _drop_none(self._run(method, obs, carry, self._make_key()))

    def _run(self, method: str, obs: PyTree, carry: PyTree, *more: object) -> Outputs:
        """Run a compiled function of the actor's state, observations and recurrent state."""
        if method not in self._compiled:
            functions = {"forward_train": _train, "compute_values": _compute_values}
            function = functions.get(method, functools.partial(_act, method))
            self._compiled[method] = jax.jit(functools.partial(function, self._pure))
        return self._compiled[method](self._get_actor(), obs, carry, *more)


def bind_module(
    module: RLModule,
    get_actor: Callable[[], ActorState],
    make_key: Callable[[], Key],
    compiled: dict[str, Callable[..., Outputs]],
) -> RLModule:
    """Return a module that also takes RLlib's batches.

    Args:
        module: Pure module.
        get_actor: Function that returns the current parameters and hyperparameters.
        make_key: Function that returns a new key for each exploration.
        compiled: Compiled calls of this module so far, which calls are added to.
    """
    bound: Any = copy.copy(module)
    bound.__class__ = _make_bound_class(type(module))
    bound._pure, bound._get_actor, bound._make_key, bound._compiled = (
        module,
        get_actor,
        make_key,
        compiled,
    )
    return bound


def load_module(path: str | os.PathLike[str]) -> RLModule:
    """Return the module of a checkpoint; see `RLModule.from_checkpoint`."""
    found, module_id = get_path(path), DEFAULT_MODULE
    if found.parent.name == _MODULES_FOLDER and not found.exists():
        found, module_id = found.parent, found.name
    while found.name in _RLLIB_FOLDERS:
        found = found.parent
    higher = importlib.import_module("jaxrl.algorithm")  # by name: it is a higher layer
    algorithm = higher.Algorithm.from_checkpoint(found, **WITHOUT_CALLBACKS)
    ids = list_modules(algorithm.state)
    if module_id == DEFAULT_MODULE and module_id not in ids:
        raise ConfigError(
            f"RLModule.from_checkpoint returns one module, and {found} has {', '.join(ids)}: name one "
            f"below it, such as {str(found / _MODULES_FOLDER / ids[0])!r}."
        )
    return algorithm.get_module(module_id)


def is_class_of(module: object, given: object) -> bool:
    """Return whether a class is a module's, or that of the module with weights."""
    own = type(module)
    if not isinstance(given, type):
        return False
    return given is own or (issubclass(given, BatchCalls) and given.__bases__[-1] is own)


@functools.cache
def _make_bound_class(module_class: type[RLModule]) -> type[RLModule]:
    """Return a subclass of a module's class, of the same name, that takes batches."""
    names = {"__module__": module_class.__module__, "__doc__": module_class.__doc__}
    return type(module_class.__name__, (BatchCalls, module_class), names)


def _is_pure_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a method was called with parameters, rather than with a batch alone."""
    return len(args) + len(kwargs) > 1


def _drop_none(outputs: Outputs) -> Outputs:
    return {name: value for name, value in outputs.items() if value is not None}


def _to_arrays(space: gymnasium.Space[Any], obs: PyTree) -> PyTree:
    try:
        return map_leaves(lambda leaf, x: jnp.asarray(np.asarray(x)), space, obs)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise SpaceError(f"'obs' must have the structure of {space}, got {obs!r:.80}.") from error


def _fill_critic_only(module: RLModule, space: gymnasium.Space[Any], obs: PyTree) -> PyTree:
    """Return observations with zeros for the parts that are for critics alone, where they are missing."""
    if not isinstance(space, spaces.Dict) or not isinstance(obs, Mapping):
        return obs
    given = {
        name: _fill_critic_only(module, part, obs[name])
        for name, part in space.spaces.items()
        if name in obs
    }
    absent = [n for n in module.critic_only_observations if n in space.spaces and n not in given]
    if not absent:
        return given
    seen = without_parts(space, absent)
    shape = _get_batch_shape(seen, _to_arrays(seen, given))
    return {**given, **{name: make_zeros(space.spaces[name], shape) for name in absent}}


def _get_batch_shape(space: gymnasium.Space[Any], obs: PyTree) -> tuple[int, ...]:
    """Return the leading axes of observations; () if they have none, or do not fit the space."""
    shapes = set[tuple[int, ...]]()
    for (_, leaf), x in zip(get_leaf_spaces(space), jax.tree.leaves(obs), strict=True):
        own = tuple(leaf.shape or ())
        count = x.ndim - len(own)
        if count < 0 or x.shape[count:] != own:
            return ()
        shapes.add(x.shape[:count])
    return shapes.pop() if len(shapes) == 1 else ()


def _check_state(state: PyTree, blank: PyTree) -> PyTree:
    arrays = jax.tree.map(jnp.asarray, state)
    found, want = (
        (jax.tree.structure(tree), [leaf.shape for leaf in jax.tree.leaves(tree)])
        for tree in (arrays, blank)
    )
    if found != want:
        raise SpaceError(
            "'state_in' must be the module's state with a batch axis, such as the 'state_out' of "
            f"the previous call: arrays of shapes {want[1]}, got {found[1]}."
        )
    return arrays


def _act(
    method: str, module: RLModule, actor: ActorState, obs: PyTree, carry: PyTree, key: Key
) -> Outputs:
    """Compute actions for observations `[B, ...]`, or step by step for `[B, T, ...]`."""
    shape = _get_batch_shape(module.observation_space, obs)
    forward = getattr(module, method)

    def step(carry: PyTree, row: tuple[PyTree, Key]) -> tuple[PyTree, Outputs]:
        obs, key = row
        num = jax.tree.leaves(obs)[0].shape[0]
        draws = module.draw(jax.random.split(key, num))
        index = jnp.arange(num, dtype=jnp.int32)
        out = dict(forward(actor.params, obs, carry, actor.hparams, actor.progress, index, draws))
        return out.pop(Columns.STATE_OUT, None), out

    if carry is None:
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[len(shape) :]), obs)
        _, out = step(None, (flat, key))
        return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), out)
    if len(shape) == 1:
        carry, out = step(carry, (obs, key))
        return {**out, Columns.STATE_OUT: carry}
    rows = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), obs)
    carry, out = jax.lax.scan(step, carry, (rows, jax.random.split(key, shape[1])))
    return {**jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), out), Columns.STATE_OUT: carry}


def _with_carry(module: RLModule, obs: PyTree, carry: PyTree) -> PyTree:
    """Return the observations together with the recurrent state before them."""
    if carry is None or not module.is_stateful:
        return obs
    carry = module.get_recurrent_carry(carry)
    shape = _get_batch_shape(module.observation_space, obs)
    if len(shape) == 1:
        return ObsWithCarry(obs=obs, carry=carry)
    return ObsSequence(obs=obs, carry=carry, is_first=jnp.zeros(shape, jnp.bool_))


def _train(module: RLModule, actor: ActorState, obs: PyTree, carry: PyTree) -> Outputs:
    seen = _with_carry(module, obs, carry)
    out = dict(module.forward_train(actor.params, {Columns.OBS: seen}))
    if isinstance(seen, ObsSequence):
        states = out[Columns.STATE_OUT]
        out[Columns.STATE_OUT] = jax.tree.map(lambda x: x[:, -1], states)
    return out


def _compute_values(module: RLModule, actor: ActorState, obs: PyTree, carry: PyTree) -> Outputs:
    seen = _with_carry(module, obs, carry)
    if type(module).compute_values is RLModule.compute_values:
        outputs = module.forward_train(actor.params, {Columns.OBS: seen})
        if Columns.VF_PREDS not in outputs:
            raise ModuleError(f"{type(module).__name__} has no value function: {list(outputs)}.")
    return {Columns.VF_PREDS: module.compute_values(actor.params, seen)}
