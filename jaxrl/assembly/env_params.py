"""Environment parameters during a run: changed without recompiling."""

import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.spaces import is_same_space
from jaxrl.core.struct import replace
from jaxrl.core.types import PyTree
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.multi.base import MultiAgentJaxEnv
from jaxrl.envs.params import cast_params, override_params, param_names
from jaxrl.envs.registry import MadeEnv, MadeMultiEnv
from jaxrl.envs.wrappers import HasTimeLimit
from jaxrl.errors import ConfigError, EnvError
from jaxrl.training.report import to_host
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.assembly.assemble import Assembly


def set_env_params(
    assembly: "Assembly", state: TrainState, params: PyTree, fields: Mapping[str, Any]
) -> TrainState:
    """Return a state with other parameters; see `change_env_params`.

    Raises:
        ConfigError: If the environment is stepped on the host.
    """
    made = get_jax_env(assembly, "set_env_params()")
    return replace(state, env_params=change_env_params(made, state.env_params, params, fields))


def change_env_params(
    made: MadeEnv, current: PyTree, params: PyTree, fields: Mapping[str, Any]
) -> PyTree:
    """Return the changed parameters, placed and typed like the current ones.

    Args:
        made: Environment that the run was built with.
        current: Current parameters.
        params: All new parameters; None for the current ones.
        fields: Individual parameters by name, applied last.

    Raises:
        UnknownNameError: If there is no such parameter.
        EnvError: If structure, shape or type differ, or if the change affects compiled code.
    """
    new = to_host(current)
    if params is not None:
        new = cast_params(made.id, new, params)
    new = override_params(made.id, new, fields, given_in="set_env_params()")
    _check_compiled_properties(made, new, "set_env_params()")
    return place_env_params(current, new)


def place_env_params(current: PyTree, new: PyTree) -> PyTree:
    """Return new parameters, placed and typed like the current ones."""
    return jax.tree.map(_place_like, current, new)


def make_task_params(made: MadeEnv, task: object, what: str) -> PyTree:
    """Return the parameters of a task, which are those of `env_config` where it names none.

    Args:
        made: Environment with the parameters of `env_config`.
        task: Parameters by name.
        what: Origin of the task, for messages.

    Raises:
        UnknownNameError: If there is no such parameter.
        EnvError: If a value does not fit, or affects compiled code.
        ConfigError: If the task is not a mapping.
    """
    if not isinstance(task, Mapping):
        known = ", ".join(param_names(made.params)) or "none"
        raise ConfigError(
            f"{what} must name parameters of {made.id}, as in {{'name': value}}, got {task!r}; "
            f"known are: {known}."
        )
    values = cast(Mapping[str, Any], task)
    params = override_params(made.id, made.params, values, given_in=what)
    _check_compiled_properties(made, params, what)
    return params


def get_jax_env(assembly: "Assembly", what: str) -> MadeEnv:
    """Return the environment of a run, which must be part of the compiled program.

    Args:
        assembly: Functions of the run.
        what: Property or method that requires it, for the message.

    Raises:
        ConfigError: If it is stepped on the host.
    """
    if not assembly.is_in_graph:
        raise ConfigError(
            f"{what} requires an environment in the compiled program, but {assembly.made.id} is stepped "
            "by runners on the host: call a method of your environment on each runner with "
            "env_runner_group.foreach_env_runner(...)."
        )
    return assembly.jax_env


def can_share_program(made: MadeEnv | MadeMultiEnv, other: MadeEnv | MadeMultiEnv) -> bool:
    """Return whether environments differ only in numbers that a program takes as arguments."""
    leaves, structure = jax.tree.flatten(made.params)
    others, other_structure = jax.tree.flatten(other.params)
    if made.env != other.env or structure != other_structure:
        return False
    types, other_types = ([jax.typeof(x) for x in params] for params in (leaves, others))
    return types == other_types and not _find_compiled_differences(
        made.env, made.params, other.params
    )


def _check_compiled_properties(made: MadeEnv, params: PyTree, what: str) -> None:
    for name, built, requested in _find_compiled_differences(made.env, made.params, params):
        raise EnvError(
            f"{what} would make the {name} of {made.id} {requested}, but the run was "
            f"built with {built}: set such a parameter in env_config."
        )


def _find_compiled_differences(
    env: JaxEnv[Any, Any] | MultiAgentJaxEnv[Any, Any], built: PyTree, requested: PyTree
) -> list[tuple[str, Any, Any]]:
    """Return the compiled properties that two sets of parameters give different values.

    Each is a name with the value that was built and the requested one.
    """
    properties: dict[str, tuple[Callable[[PyTree], Any], Callable[[Any, Any], bool]]] = {}
    if isinstance(env, MultiAgentJaxEnv):
        for agent in env.possible_agents:
            for name, space_of in (
                ("observation", env.observation_space),
                ("action", env.action_space),
            ):
                properties[f"{name} space of {agent!r}"] = partial(space_of, agent), is_same_space
    else:
        properties["observation space"] = env.observation_space, is_same_space
        properties["action space"] = env.action_space, is_same_space
    if isinstance(env, HasTimeLimit):
        properties["time limit"] = (env.get_time_limit, operator.eq)
    found = [
        (name, compute(built), compute(requested), same)
        for name, (compute, same) in properties.items()
    ]
    return [(name, old, new) for name, old, new, same in found if not same(old, new)]


def _place_like(old: PyTree, new: PyTree) -> PyTree:
    if not isinstance(old, jax.Array):  # not compiled, so without a device
        return new
    value = np.asarray(new, old.dtype)
    typed = jnp.asarray(value.item()) if old.aval.weak_type else value
    return jax.device_put(typed, old.sharding)
