"""Tasks of a run's environments: checked before anything is compiled, the first one applied."""

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl.assembly.env_params import make_task_params
from jaxrl.config.curriculum import parse_curriculum
from jaxrl.core.types import PyTree
from jaxrl.envs.params import get_param, param_names
from jaxrl.envs.registry import AnyMadeEnv, MadeEnv
from jaxrl.errors import ConfigError

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


def prepare_first_task(config: "AlgorithmConfig", made: AnyMadeEnv) -> AnyMadeEnv:
    """Return the training environment with the task of its first stage, if it has stages.

    Raises:
        JaxrlError: If the environment takes no tasks, or a stage's task does not fit it.
    """
    settings = config.environment_settings
    stages = parse_curriculum(settings.curriculum)
    if not stages and settings.env_task_fn is None:
        return made
    name = "curriculum" if stages else "env_task_fn"
    _check_takes_tasks(config, made, name)
    tasks = [
        resolve_task(made, stage.task, f"curriculum, stage {number}: task")
        for number, stage in enumerate(stages, 1)
    ]
    return set_first_task(made, tasks[0]) if tasks else made


def set_first_task(made: AnyMadeEnv, task: PyTree) -> AnyMadeEnv:
    """Return the environment with another first task.

    Args:
        made: Environment.
        task: Return value of `resolve_task`.
    """
    if isinstance(made, MadeEnv):
        return dataclasses.replace(made, params=task)
    return dataclasses.replace(made, task=task)


def resolve_task(made: AnyMadeEnv, task: PyTree, what: str) -> PyTree:
    """Return what a vector environment's `set_task` takes: parameters, or the task itself.

    Args:
        made: Environment with the parameters of `env_config`.
        task: Task in builtin types.
        what: Origin of the task, for messages.

    Raises:
        JaxrlError: If the task does not fit the environment.
    """
    return make_task_params(made, task, what) if isinstance(made, MadeEnv) else task


def get_params_by_name(params: PyTree) -> dict[str, Any] | None:
    """Return the parameters of a JAX environment by name; None if they have no names."""
    names = param_names(params)
    return {name: get_param(params, name) for name in names} if names else None


def is_same_task(task: PyTree, other: PyTree) -> bool:
    """Return whether two tasks, or the parameters of two, are equal."""
    leaves, structure = jax.tree.flatten(task)
    others, other_structure = jax.tree.flatten(other)
    return structure == other_structure and all(map(np.array_equal, leaves, others))


def _check_takes_tasks(config: "AlgorithmConfig", made: AnyMadeEnv, name: str) -> None:
    if isinstance(made, MadeEnv):
        if not param_names(made.params):
            raise ConfigError(
                f"{name} changes parameters of a JAX environment by name, but {made.id} has none: "
                "give it params, a dataclass or a dictionary of numbers."
            )
        return
    if not made.is_task_settable:
        raise ConfigError(
            f"{name} needs an environment with a method set_task(task), but {made.id} has none: "
            "derive it from jaxrl.envs.TaskSettableEnv."
        )
    mode = made.resolve_mode(config.env_runners_settings.gym_env_vectorize_mode)
    if mode == "vector_entry_point":
        raise ConfigError(
            f"{name} sets the task of each environment, which gym_env_vectorize_mode={mode!r} "
            "steps all together: use 'sync' or 'async'."
        )
