"""Curriculum of a run: the current task of its environments, chosen after every iteration."""

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from jaxrl.assembly.assemble import make_env
from jaxrl.assembly.env import get_params_by_name, is_same_task, resolve_task
from jaxrl.config.curriculum import parse_curriculum, to_task_data
from jaxrl.config.stop import find_reached_criterion
from jaxrl.core.types import PyTree
from jaxrl.envs.context import EnvContext
from jaxrl.envs.params import override_params
from jaxrl.envs.registry import AnyMadeEnv
from jaxrl.envs.task_settable import TaskSettableEnv
from jaxrl.errors import CheckpointError, ConfigError, JaxrlError
from jaxrl.metrics import lookup

if TYPE_CHECKING:
    from jaxrl.config.config import Config

logger = logging.getLogger("jaxrl")

CURRICULUM = "curriculum"
"""Key of the current stage and task in results and in the counts of checkpoints."""

_EPISODE_PREFIXES = ("env_runners/episode_", "env_runners/custom_metrics/")
_EVALUATION_PREFIX = "evaluation/"

CallTaskMethod = Callable[..., PyTree]
"""Function that calls `get_task` or `sample_tasks` of an environment, by name and arguments."""


class Curriculum:
    """Current task of a run's environments, by `curriculum` or by `env_task_fn`.

    Decisions depend only on results, so a restored run makes the same ones.

    Args:
        config: Config of the run.
        is_jax_env: Whether the environment is a JaxEnv, whose tasks are parameters.

    Attributes:
        task: Current task in builtin types; None before there is one.
        payload: Current task as vector environments take it: parameters of a JAX environment, or
            the task itself; None before there is one.
    """

    def __init__(self, config: "Config", *, is_jax_env: bool) -> None:
        settings = config.environment_settings
        self._stages = parse_curriculum(settings.curriculum)
        self._function = settings.env_task_fn
        self._config, self._is_jax_env = config, is_jax_env
        self._made: AnyMadeEnv | None = None
        self._stage = 0
        self._num_episodes_before = 0
        self.task: PyTree = None
        self.payload: PyTree = None
        if self._stages:
            self._set_task(self._stages[0].task)

    @property
    def is_active(self) -> bool:
        """Return whether the run has tasks."""
        return bool(self._stages) or self._function is not None

    @property
    def made(self) -> AnyMadeEnv:
        """JAX environment with the parameters of `env_config`, which tasks start from."""
        if self._made is None:
            self._made = make_env(self._config)
        return self._made

    @property
    def name(self) -> str:
        """Name of the setting, and the stage, for messages."""
        return f"curriculum, stage {self._stage + 1}: task" if self._stages else "env_task_fn"

    def describe(self) -> dict[str, Any]:
        """Return the entry of results: the task that the iteration was trained with."""
        if not self.is_active:
            return {}
        stage = {"stage": self._stage} if self._stages else {}
        return {CURRICULUM: {**stage, "task": self.task}}

    def _set_task(self, task: PyTree) -> None:
        self.payload = resolve_task(self.made, task, self.name) if self._is_jax_env else task
        self.task = task

    # --- decisions ---

    def update(self, result: Mapping[str, Any], call_env: CallTaskMethod) -> bool:
        """Choose the task of the next iteration; return whether it is another one.

        Args:
            result: Result of the iteration.
            call_env: Function that calls a task method of an environment.

        Raises:
            ConfigError: If `env_task_fn` raises, or returns no valid task.
        """
        before = self.task
        if self._function is not None:
            task = self._call_function(result, call_env)
            if before is None or task != before:
                self._set_task(task)
        elif self._stage + 1 < len(self._stages) and self._has_ended(result):
            self._stage += 1
            self._num_episodes_before = _count_episodes(result)
            self._set_task(self._stages[self._stage].task)
        return self.task != before

    def _has_ended(self, result: Mapping[str, Any]) -> bool:
        """Return whether the stage has ended: only values of its own episodes count."""
        until = self._stages[self._stage].until
        window = self._config.reporting_settings.metrics_num_episodes_for_smoothing
        if _count_episodes(result) - self._num_episodes_before < window:
            until = {k: v for k, v in until.items() if not k.startswith(_EPISODE_PREFIXES)}
        if not self._config.evaluation_settings.is_due(int(result["training_iteration"])):
            until = {k: v for k, v in until.items() if not k.startswith(_EVALUATION_PREFIX)}
        return find_reached_criterion(result, until) is not None

    def _call_function(self, result: Mapping[str, Any], call_env: CallTaskMethod) -> PyTree:
        assert self._function is not None
        settings = self._config.environment_settings
        runners = self._config.env_runners_settings.num_env_runners
        context = EnvContext(settings.env_config, num_workers=runners)
        task = self._function(result, _CurrentTask(self, call_env), context)
        if task is None:
            raise ConfigError(
                "env_task_fn must return the task of the next iteration, got None: return "
                "task_settable_env.get_task() to keep the current one."
            )
        params = None if isinstance(task, Mapping) else get_params_by_name(task)
        return to_task_data(task if params is None else params, "the task of env_task_fn")

    # --- checkpoints ---

    def get_state(self) -> dict[str, Any]:
        """Return the state as JSON-compatible data; empty without tasks."""
        if not self.is_active or self.task is None:
            return {}
        return {
            "stage": self._stage,
            "num_episodes_before": self._num_episodes_before,
            "task": self.task,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `get_state` returned.

        A run whose stages have changed since starts with the first of them.

        Raises:
            CheckpointError: If the state is invalid, or its task does not fit the environment.
        """
        if not self.is_active:
            return
        stage, task = int(state.get("stage", 0)), state.get("task")
        if self._stages and (
            stage >= len(self._stages) or not is_same_task(self._stages[stage].task, task)
        ):
            if state:
                logger.warning("The curriculum has changed, so it starts with its first stage.")
            stage, task, state = 0, self._stages[0].task, {}
        self._stage = stage
        self._num_episodes_before = int(state.get("num_episodes_before", 0))
        if task is None:
            self.task = self.payload = None
            return
        try:
            self._set_task(task)
        except JaxrlError as error:
            raise CheckpointError(f"The task does not fit the environment: {error}") from error

    def replace_params(self, params: PyTree) -> PyTree:
        """Return parameters of a JAX environment with those that the current task names."""
        return override_params(self.made.id, params, self.task, given_in=self.name)

    def copy_state(self, source: "Curriculum") -> None:
        """Continue with the stage and task of another run of the same environment."""
        self._stage, self._num_episodes_before = source._stage, source._num_episodes_before
        self.task, self.payload = source.task, source.payload


def _count_episodes(result: Mapping[str, Any]) -> int:
    return int(lookup(result, "env_runners/num_episodes_lifetime") or 0)


class _CurrentTask(TaskSettableEnv):
    """Environment that `env_task_fn` receives: its task, which all copies share."""

    def __init__(self, curriculum: Curriculum, call_env: CallTaskMethod) -> None:
        self._curriculum, self._call = curriculum, call_env

    def get_task(self) -> PyTree:
        task = self._curriculum.task
        return self._call("get_task") if task is None else task

    def sample_tasks(self, n_tasks: int) -> list[Any]:
        return list(cast("list[Any]", self._call("sample_tasks", n_tasks)))

    def set_task(self, task: PyTree) -> None:
        raise ConfigError("env_task_fn must return the task instead of setting it.")
