"""RLlib's view of modules: batches and models of policies."""

import copy
import dataclasses
import functools
import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any, cast

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float

from jaxrl.compat.lookup import RLlibNames
from jaxrl.config.settings.run import WITHOUT_CALLBACKS
from jaxrl.core.keys import make_key
from jaxrl.core.spaces import get_leaf_spaces, map_leaves, without_parts
from jaxrl.core.types import Columns, Key, ObsSequence, ObsWithCarry, Params, PyTree
from jaxrl.errors import ConfigError, ModuleError, SpaceError
from jaxrl.metrics import DEFAULT_MODULE
from jaxrl.modules.networks import format_parameter_table
from jaxrl.modules.q_network import ATOM_LOGITS, QUANTILES, QModule
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


@functools.cache
def _make_bound_class(module_class: type[RLModule]) -> type[RLModule]:
    """Return a subclass of a module's class, of the same name, that takes batches."""
    names = {
        "__module__": module_class.__module__,
        "__doc__": module_class.__doc__,
        "pure_class": module_class,
    }
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


@dataclasses.dataclass(frozen=True)
class _Pass:
    """A forward pass: its batch, its outputs, and the logits that were returned."""

    batch: Mapping[str, Any]
    outputs: Mapping[str, Any]
    logits: Array


class ModelPart(RLlibNames):
    """A network, or one of its heads.

    Args:
        name: Name for the summary.
        params: Its parameters.
    """

    _rllib_kind = "model_part"

    def __init__(self, name: str, params: Params) -> None:
        self.name, self._params = name, params

    def summary(self, print_fn: Callable[[str], object] = print) -> None:
        """Print the table of parameters: layers, shapes, counts, whether trainable."""
        print_fn(format_parameter_table(self.name, self._params))

    @property
    def variables(self) -> list[np.ndarray]:
        """Copies of the parameters."""
        return [np.array(leaf) for leaf in jax.tree.leaves(self._params)]


class ModelView(RLlibNames):
    """Network of a policy with its parameters, which are not changed.

        model = algorithm.get_policy().model
        logits, state = model({"obs": batch})

    Args:
        module: Pure module.
        actor: Its parameters and hyperparameters.
        compiled: Compiled calls of the module so far, to share with others that have it.
    """

    _rllib_kind = "model"

    def __init__(
        self, module: RLModule, actor: ActorState, compiled: dict[str, Callable[..., Any]]
    ) -> None:
        self._module, self._params = module, actor.params
        bound = bind_module(module, lambda: actor, lambda: make_key(0), compiled)
        self._bound = cast("Any", bound)
        self._latest: _Pass | None = None

    def __call__(
        self,
        input_dict: Mapping[str, Any],
        state: PyTree = None,
        seq_lens: object = None,
    ) -> tuple[Array, PyTree]:
        """Compute the inputs of the action distribution, and the recurrent state after it.

        Args:
            input_dict: Observations of the module with a batch axis as `obs`; for a recurrent
                module an axis of time may follow it.
            state: Recurrent state with a batch axis; None or an empty list at an episode's start.
            seq_lens: Lengths of sequences, which observations have as an axis of time here.

        Returns:
            Logits (for learners of action values: the values), and the state, [] without one.

        Raises:
            SpaceError: If the observations or the state are missing or have another shape.
            ConfigError: If there are lengths of sequences.
        """
        if not isinstance(input_dict, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SpaceError(
                f"A model takes a dictionary with 'obs', got {type(input_dict).__name__}: write "
                "model({'obs': batch})."
            )
        if seq_lens is not None and self._module.is_stateful:
            raise ConfigError(
                f"seq_lens (got {seq_lens!s:.80}) has no effect: give 'obs' an axis of time after the "
                "batch axis, and leave seq_lens out."
            )
        batch = {name: input_dict[name] for name in (Columns.OBS,) if name in input_dict}
        if jax.tree.leaves(state):
            batch[Columns.STATE_IN] = state
        outputs = self._bound.forward_train(batch)
        logits = outputs[Columns.ACTION_DIST_INPUTS]
        self._latest = _Pass(batch, outputs, logits)
        return logits, outputs.get(Columns.STATE_OUT, [])

    def _get_latest(self, method: str) -> _Pass:
        if self._latest is None:
            raise ConfigError(f"{method} is about the latest forward pass: call the model before.")
        return self._latest

    def value_function(self) -> Float[Array, " *batch"]:
        """Return the state values of the latest forward pass; of action values, the best ones.

        Raises:
            ModuleError: If the module has no value function.
        """
        latest = self._get_latest("value_function()")
        if Columns.VF_PREDS in latest.outputs:
            return latest.outputs[Columns.VF_PREDS]
        return self._bound.compute_values(latest.batch)

    @property
    def action_mask(self) -> PyTree:
        """Legal actions of the observations of the latest forward pass, None without a mask."""
        if self._latest is None:
            return None
        return jax.tree.map(jnp.asarray, self._module.action_mask(self._latest.batch[Columns.OBS]))

    # --- action values ---

    def get_q_value_distributions(self, model_out: object) -> list[Array]:
        """Return action values `[B, actions]`, and the distributions of returns behind them.

        Args:
            model_out: Return value of the latest call of the model, or its first part.

        Returns:
            The values, logits and probabilities of each return `[B, actions, 1]`; with several
            atoms the values, the returns, the logits twice, and the probabilities, as RLlib; with
            quantiles the values, the quantiles, and their probabilities.

        Raises:
            ModuleError: If the module has no action values.
            ConfigError: If this is not from the latest call.
        """
        module, latest = self._get_values("get_q_value_distributions", model_out)
        values = latest.logits
        if ATOM_LOGITS in latest.outputs:
            logits = latest.outputs[ATOM_LOGITS]
            return [values, module.support, logits, logits, jax.nn.softmax(logits)]
        if QUANTILES in latest.outputs:
            quantiles = latest.outputs[QUANTILES]
            return [values, quantiles, jnp.full_like(quantiles, 1.0 / quantiles.shape[-1])]
        ones = jnp.ones_like(values)[..., None]
        return [values, ones, ones]

    def get_state_value(self, model_out: object) -> Float[Array, "*batch width"]:
        """Return the state values of a dueling network, `[B, 1]`, or for each atom or quantile.

        Args:
            model_out: Return value of the latest call of the model, or its first part.

        Raises:
            ModuleError: If the module has no head for them.
            ConfigError: If this is not from the latest call.
        """
        _, latest = self._get_values("get_state_value", model_out)
        self._get_head("state_value_head")
        outputs = latest.outputs
        values = outputs.get(ATOM_LOGITS, outputs.get(QUANTILES, latest.logits[..., None]))
        return jnp.mean(values, axis=-2)  # the advantages that are added to it have a mean of 0

    def _get_values(self, method: str, model_out: object) -> tuple[QModule, _Pass]:
        if not isinstance(self._module, QModule):
            raise ModuleError(
                f"{type(self._module).__name__} has no values of all actions, which {method} "
                "returns: they are DQN's; value_function() returns the values of states."
            )
        latest = self._get_latest(f"{method}()")
        logits = model_out[0] if isinstance(model_out, tuple) else model_out
        if logits is not latest.logits:
            raise ConfigError(
                f"{method} takes the return value of the latest call of the model: "
                f"model_out = model({{'obs': batch}}); model.{method}(model_out)."
            )
        return self._module, latest

    # --- parameters ---

    @property
    def base_model(self) -> ModelPart:
        """The whole network."""
        return ModelPart(type(self._module).__name__, self._params)

    @property
    def q_value_head(self) -> ModelPart:
        """Head of the action values, or of the advantages of a dueling network."""
        return self._get_head("q_value_head")

    @property
    def state_value_head(self) -> ModelPart:
        """Head of the state values of a dueling network."""
        return self._get_head("state_value_head")

    def _get_head(self, name: str) -> ModelPart:
        own = {"q_value_head": "q_head", "state_value_head": "vf_head"}[name]
        params = cast("dict[str, Params]", self._params)
        if not isinstance(self._module, QModule) or own not in params:
            needs = "training(dueling=True) of " if own == "vf_head" else ""
            raise ModuleError(
                f"{type(self._module).__name__} has no {name}, which is a part of {needs}DQN: it has "
                f"{', '.join(map(str, params))}."
            )
        return ModelPart(own, params[own])

    def variables(self, as_dict: bool = False) -> list[np.ndarray] | dict[str, np.ndarray]:
        """Return copies of the parameters, as a list or by their paths."""
        leaves = jax.tree_util.tree_flatten_with_path(self._params)[0]
        named = {
            jax.tree_util.keystr(path, simple=True, separator="/"): np.array(leaf)
            for path, leaf in leaves
        }
        return named if as_dict else list(named.values())

    def trainable_variables(
        self, as_dict: bool = False
    ) -> list[np.ndarray] | dict[str, np.ndarray]:
        """Return `variables`, all of which are trained."""
        return self.variables(as_dict)

    def get_initial_state(self) -> PyTree:
        """Return the recurrent state at an episode's start, without a batch axis; [] without one."""
        return self._bound.get_initial_state() or []


def read_weights(state: Mapping[str, Any]) -> Mapping[str, PyTree]:
    """Return the parameters of modules in a state of RLlib's form.

    That is `{"learner_group": {"learner": {"rl_module": {module_id: parameters}}}}`.

    Raises:
        ConfigError: If it has more than parameters.
    """
    inner: object = state
    path = ("learner_group", "learner", "rl_module")
    for i, name in enumerate(path):
        if not isinstance(inner, Mapping) or set(inner) != {name}:
            found = ", ".join(map(str, inner)) if isinstance(inner, Mapping) else repr(inner)
            raise ConfigError(
                f"set_state takes the parameters of modules at {'/'.join(path)} in RLlib's form, "
                f"got {found} in the place of {'/'.join(path[: i + 1])}: leave the rest out."
            )
        inner = inner[name]
    return cast("Mapping[str, PyTree]", inner)
