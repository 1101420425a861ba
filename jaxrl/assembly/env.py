"""Descriptions of environments that are not in this process: recorded ones, and simulators."""

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, cast

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector.utils import batch_space

from jaxrl.assembly.offline import open_sources
from jaxrl.config.curriculum import parse_curriculum
from jaxrl.config.settings.offline import OfflineDataSettings
from jaxrl.config.settings.training import EnvironmentSettings
from jaxrl.connectors.pipelines import Offers
from jaxrl.core.spaces import is_same_space
from jaxrl.core.types import PyTree
from jaxrl.envs.adapters.host_spaces import to_runner_space
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import MadeHostEnv, VectorizeMode
from jaxrl.envs.multi.base import MultiAgentJaxEnv
from jaxrl.envs.params import cast_params, get_param, override_params, param_names
from jaxrl.envs.registry import AnyMadeEnv, MadeEnv, MadeMultiEnv
from jaxrl.envs.space_checks import check_space
from jaxrl.envs.wrappers import HasTimeLimit
from jaxrl.errors import ConfigError, EnvError
from jaxrl.training.report import to_host

if TYPE_CHECKING:
    pass


def make_data_env(environment: EnvironmentSettings, data: OfflineDataSettings) -> MadeHostEnv:
    """Make the description of an environment that only its recorded data are there of."""
    spaces = environment.observation_space, environment.action_space
    if None in spaces:
        first = open_sources(data, environment)[0]
        spaces = first.observation_space, first.action_space
    return _describe_env(
        "recorded data",
        spaces,
        "There is no environment, only its recorded data: name it for evaluation, "
        "environment(env=...).",
    )


def make_external_env(environment: EnvironmentSettings) -> MadeHostEnv:
    """Make the description of environments in simulators, from the declared spaces."""
    return _describe_env(
        "external",
        (environment.observation_space, environment.action_space),
        "The environments are in simulators (placement='external'), and there is none here: "
        "name one for evaluation, evaluation_config={'env': ...}.",
    )


def _describe_env(
    name: str,
    spaces: tuple[gymnasium.Space[Any] | None, gymnasium.Space[Any] | None],
    problem: str,
) -> MadeHostEnv:
    """Return an environment that has spaces, and raises ConfigError where it should be made."""
    observation_space, action_space = spaces
    assert observation_space is not None
    assert action_space is not None
    check_space("observation_space", observation_space)
    check_space("action_space", to_runner_space(action_space))

    def create(context: EnvContext) -> NoReturn:
        raise ConfigError(problem)

    return MadeHostEnv(
        id=name,
        create=create,
        observation_space=observation_space,
        action_space=action_space,
        max_episode_steps=None,
        env_config={},
    )


INPUT_ENV_SPACES = "__env__"
"""Key of the spaces of the vector environment in the `spaces` that RLlib passes."""
INPUT_ENV_SINGLE_SPACES = "__env_single__"
"""Key of the spaces of a single environment in the `spaces` that RLlib passes."""

Spaces = tuple[gymnasium.Space[Any], gymnasium.Space[Any]]


class EnvToInspect:
    """Environment of a run, in the form of a vector environment.

    It is to be read, not stepped: a host environment is made when it is first used. Attributes that
    vector environments do not have are those of the environment itself.

    Args:
        made: Environment of the run.
        num_envs: Number of copies; those of a JAX environment are one object.
    """

    def __init__(self, made: AnyMadeEnv, num_envs: int = 1) -> None:
        self._made, self.num_envs = made, num_envs
        self.single_observation_space, self.single_action_space = made.spaces

    @functools.cached_property
    def envs(self) -> list[Any]:
        """Environments: JAX environments, or those of gymnasium."""
        made = self._made
        if isinstance(made, MadeEnv | MadeMultiEnv):
            return [made.env] * self.num_envs
        return [made.create(EnvContext(made.env_config)) for _ in range(self.num_envs)]

    def get_sub_environments(self) -> list[Any]:
        """Return `envs`, under the name of RLlib's older environments."""
        return self.envs

    @property
    def unwrapped(self) -> "EnvToInspect":
        """The environment, for compatibility with gymnasium's vector environments."""
        return self

    @functools.cached_property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Space of the observations of the vector environment."""
        return batch_space(self.single_observation_space, self.num_envs)

    @functools.cached_property
    def action_space(self) -> gymnasium.Space[Any]:
        """Space of the actions of the vector environment."""
        return batch_space(self.single_action_space, self.num_envs)

    @property
    def is_jax(self) -> bool:
        """Return whether the environment is part of the compiled program, or could be."""
        return self._made.is_jax

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.envs[0], name)

    def close(self) -> None:
        """Close the environment if it was made."""
        if "envs" in vars(self) and not self.is_jax:
            for env in self.envs:
                env.close()


def get_rllib_spaces(spaces: Spaces, num_envs: int = 1) -> dict[str, Spaces]:
    """Return spaces as RLlib passes them: of the vector environment, and of a single one."""
    observation_space, action_space = spaces
    vector = batch_space(observation_space, num_envs), batch_space(action_space, num_envs)
    return {INPUT_ENV_SPACES: vector, INPUT_ENV_SINGLE_SPACES: spaces}


def make_offers(env: EnvToInspect) -> Offers:
    """Return the arguments for the connectors between environment and module."""
    spaces = env.single_observation_space, env.single_action_space
    return {"env": lambda: env, "spaces": lambda: get_rllib_spaces(spaces), "device": lambda: None}


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


def can_share_program(made: MadeEnv | MadeMultiEnv, other: MadeEnv | MadeMultiEnv) -> bool:
    """Return whether environments differ only in numbers that a program takes as arguments.

    A model that is searched in is compiled with its parameters.
    """
    leaves, structure = jax.tree.flatten(made.params)
    others, other_structure = jax.tree.flatten(other.params)
    if made.env != other.env or structure != other_structure:
        return False
    if made.model is not None and not all(map(np.array_equal, leaves, others)):
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


def prepare_first_task(
    settings: EnvironmentSettings, vectorize_mode: VectorizeMode, made: AnyMadeEnv
) -> AnyMadeEnv:
    """Return the training environment with the task of its first stage, if it has stages.

    Raises:
        JaxrlError: If the environment takes no tasks, or a stage's task does not fit it.
    """
    stages = parse_curriculum(settings.curriculum)
    if not stages and settings.env_task_fn is None:
        return made
    name = "curriculum" if stages else "env_task_fn"
    _check_takes_tasks(made, vectorize_mode, name)
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


def _check_takes_tasks(made: AnyMadeEnv, vectorize_mode: VectorizeMode, name: str) -> None:
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
    mode = made.resolve_mode(vectorize_mode)
    if mode == "vector_entry_point":
        raise ConfigError(
            f"{name} sets the task of each environment, which gym_env_vectorize_mode={mode!r} "
            "steps all together: use 'sync' or 'async'."
        )
