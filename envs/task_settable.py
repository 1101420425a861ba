"""Gymnasium environments whose task can be changed, with RLlib's methods."""

from typing import Any

import gymnasium

from jaxrl.envs.adapters.host_state import unwrap_layers


class TaskSettableEnv(gymnasium.Env[Any, Any]):
    """Gymnasium environment with tasks, for `environment(curriculum=...)` and `env_task_fn`.

    Only `set_task` is required. A task consists of numbers, strings, lists and dictionaries.
    Environments that define the method without this base class are also accepted.
    """

    def sample_tasks(self, n_tasks: int) -> list[Any]:
        """Return `n_tasks` random tasks, for an `env_task_fn` that chooses among them."""
        raise NotImplementedError(f"{type(self).__name__} does not define sample_tasks")

    def set_task(self, task: Any) -> None:
        """Change the task, at the latest from the next episode on."""
        raise NotImplementedError(f"{type(self).__name__} does not define set_task")

    def get_task(self) -> Any:
        """Return the current task."""
        raise NotImplementedError(f"{type(self).__name__} does not define get_task")


def find_task_layer(env: gymnasium.Env[Any, Any], method: str = "set_task") -> Any:
    """Return the outermost wrapper, or the environment inside, that defines a method of tasks.

    Args:
        env: Environment, with any number of wrappers around it.
        method: Name of the method.

    Returns:
        The layer; None if none defines it.
    """
    for layer in unwrap_layers(env):
        own = {name for cls in type(layer).__mro__[:-1] for name in vars(cls)} | set(vars(layer))
        inherited = getattr(type(layer), method, None) is getattr(TaskSettableEnv, method)
        if method in own and not inherited:
            return layer
    return None
