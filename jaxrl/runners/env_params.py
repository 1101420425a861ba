"""An environment's parameters while a run goes on: changed without compiling anything again."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.types import PyTree
from jaxrl.envs.params import override_params, same_params
from jaxrl.envs.registry import MadeEnv
from jaxrl.envs.wrappers import OwnTimeLimit
from jaxrl.errors import EnvError
from jaxrl.runners.results import to_host


def changed_params(made: MadeEnv, now: PyTree, params: PyTree, fields: Mapping[str, Any]) -> PyTree:
    """The parameters to go on with, placed and typed as those of now.

    Args:
        made: The environment that the run was built with.
        now: Its parameters now.
        params: All of them; None for those of now.
        fields: Single ones by name, on top.

    Raises:
        UnknownNameError: There is no such parameter.
        EnvError: Another structure, shape or type, or one that changes what is compiled.
    """
    new = to_host(now)
    if params is not None:
        new = same_params(made.id, new, params)
    new = override_params(made.id, new, fields, given_in="set_env_params()")
    _check_what_is_compiled(made, new)
    return jax.tree.map(_placed_like, now, new)


def _check_what_is_compiled(made: MadeEnv, params: PyTree) -> None:
    questions: dict[str, Callable[[PyTree], object]] = {
        "observation space": made.env.observation_space,
        "action space": made.env.action_space,
    }
    if isinstance(made.env, OwnTimeLimit):
        questions["time limit"] = made.env.time_limit
    for name, ask in questions.items():
        built, asked = ask(made.params), ask(params)
        if built != asked:
            raise EnvError(
                f"set_env_params() would make the {name} of {made.id} {asked}, but the run was "
                f"built with {built}: set such a parameter in env_config."
            )


def _placed_like(old: Any, new: Any) -> Any:
    if not isinstance(old, jax.Array):  # not compiled, so nowhere in particular
        return new
    value = np.asarray(new, old.dtype)
    typed = jnp.asarray(value.item()) if old.aval.weak_type else value
    return jax.device_put(typed, old.sharding)
