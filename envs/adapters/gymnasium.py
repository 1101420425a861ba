"""Host environments from gymnasium ids, classes, creators and instances."""

import copy
import dataclasses
import functools
import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias, cast

import gymnasium
from gymnasium.envs.registration import EnvSpec, find_highest_version, get_env_id, parse_env_id
from gymnasium.vector import VectorEnv

from jaxrl.core.spaces import SUPPORTED_SPACES, get_leaf_spaces
from jaxrl.envs.adapters import atari
from jaxrl.envs.adapters.barrier import close_quietly, reraise_interrupts
from jaxrl.envs.adapters.host_creators import (
    ClassCreator,
    Creator,
    InstanceCreator,
    NoContextCreator,
    SpecCreator,
    TimeLimitCreator,
    VectorOnlyCreator,
    VectorSpecCreator,
)
from jaxrl.envs.adapters.host_spaces import (
    describe_casts,
    log_warnings,
    to_runner_actions,
    to_runner_space,
    warn_once,
)
from jaxrl.envs.adapters.host_state import get_time_limit, unwrap_layers
from jaxrl.envs.adapters.pettingzoo import is_pettingzoo, is_pettingzoo_class, wrap_pettingzoo
from jaxrl.envs.adapters.table import get_module
from jaxrl.envs.catalog import BUILTIN_ENVS
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import EnvRequest, MadeHostEnv
from jaxrl.envs.multi.checked import CheckedMultiAgentEnv
from jaxrl.envs.multi.host_env import MultiAgentEnv, is_multi_agent_class, is_multi_agent_env
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.envs.params import check_required
from jaxrl.envs.space_checks import check_space
from jaxrl.envs.task_settable import find_task_layer
from jaxrl.errors import EnvError, JaxrlError, UnknownNameError, did_you_mean, summarize_exception

PREFIX = "gymnasium:"

MadeAny: TypeAlias = MadeHostEnv | MadeMultiHostEnv

CONTEXT_NAMES = ("config", "env_config", "env_context", "context")
"""Names of constructor parameters that receive the whole `EnvContext`, as in RLlib."""


_MUJOCO_ID = re.compile(
    "(Ant|HalfCheetah|Hopper|Humanoid|HumanoidStandup|Inverted(Double)?Pendulum|Pusher|Reacher|Swimmer"
    r"|Walker2d)-v[45]"
)
_VECTOR_CLASSES = ("VectorEnv", "VecEnv")
"""Names of base classes of vector environments: gymnasium's and RLlib's, Stable-Baselines3's."""


def has_env(env_id: str) -> bool:
    """Return whether gymnasium has an entry of this id, or may after importing its module."""
    return env_id in gymnasium.registry or ":" in env_id or atari.is_atari_id(env_id)


def is_multi_agent_id(env_id: str) -> bool:
    """Return whether an id of gymnasium's registry names a class of environments of several agents."""
    spec = gymnasium.registry.get(env_id)
    entry: Any = None if spec is None else spec.entry_point
    if isinstance(entry, str):
        module, _, attribute = entry.partition(":")
        if module.split(".")[0] == "gymnasium":
            return False
        try:
            entry = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError):  # raised again when it is made
            return False
    return isinstance(entry, type) and is_multi_agent_class(entry)


def is_host_env(env: object) -> bool:
    """Return whether this is a Python environment: of gymnasium, RLlib, PettingZoo or old gym."""
    is_host = isinstance(env, gymnasium.Env) or is_multi_agent_env(env) or is_pettingzoo(env)
    return is_host or _is_old_gym(type(env))


def is_host_class(cls: type) -> bool:
    """Return whether instances are Python environments, as `is_host_env`."""
    is_host = issubclass(cls, gymnasium.Env) or is_multi_agent_class(cls)
    return is_host or is_pettingzoo_class(cls) or _is_old_gym(cls)


def refuse_vector(env: object, env_id: str) -> None:
    """Raise for an instance or a class of vector environments.

    Raises:
        EnvError: If it is one; the message says what to give.
    """
    bases = env.__mro__ if isinstance(env, type) else type(env).__mro__
    if any(base.__module__.partition(".")[0] == "envpool" for base in bases):
        get_module("envpool").refuse_instance(env, env_id)
    if any(base.__name__ in _VECTOR_CLASSES for base in bases):
        raise EnvError(
            f"{env_id} is a vector environment, whose copies were made already: give the id, the "
            "class or a creator of one environment, of which num_envs_per_env_runner copies are "
            "made, or register an id with gymnasium.register(id, vector_entry_point=...) and set "
            "gym_env_vectorize_mode='vector_entry_point'."
        )


def list_ids() -> list[str]:
    """List the ids that are registered now."""
    return sorted(gymnasium.registry)


def make(env_id: str, request: EnvRequest, name: str) -> MadeAny:
    """Make a host environment from an id of gymnasium's registry.

    Args:
        env_id: Id in gymnasium's format: "CartPole-v1", "ALE/Pong-v5", "module:Env-v0".
        request: Arguments of `make`; the context's config holds the environment's arguments.
        name: Name that the user gave.

    Raises:
        UnknownNameError: If there is no such id, or the environment takes no such argument.
        EnvError: If it cannot be made.
    """
    with log_warnings(name):
        spec, limit = _find_spec(env_id, name), request.max_episode_steps
    _refuse_unknown_arguments(spec, name, request.context)
    if atari.is_atari_spec(spec) and request.is_atari is not False:
        return _from_atari_spec(spec, request, name)
    create = SpecCreator(spec=spec, max_episode_steps=limit)
    vector = None
    if spec.vector_entry_point is not None:
        vector = VectorSpecCreator(spec=spec, max_episode_steps=limit)
    if vector is not None and spec.entry_point is None:
        return _describe_vector(name, vector, request)
    return describe_env(name, create, request, vector=vector)


def _describe_vector(name: str, create: VectorSpecCreator, request: EnvRequest) -> MadeHostEnv:
    """Read the spaces of an id that has a vector environment alone, and close it."""
    made = call_creator(name, functools.partial(create, 1), request.context)
    vector = cast("VectorEnv[Any, Any, Any]", made)
    try:
        spaces = [vector.single_observation_space, vector.single_action_space]
        for kind, space in zip(("observation", "action"), spaces, strict=True):
            check_space(f"{name}: {kind}_space", to_runner_space(space))
    finally:
        close_quietly(name, vector)
    return MadeHostEnv(
        id=name,
        create=VectorOnlyCreator(name=name),
        vector=create,
        observation_space=to_runner_space(spaces[0]),
        action_space=to_runner_actions(spaces[1]),
        max_episode_steps=request.max_episode_steps or create.spec.max_episode_steps,
        env_config=dict(request.context),
        prefers_vector=True,
    )


def _from_atari_spec(spec: EnvSpec, request: EnvRequest, name: str) -> MadeAny:
    """Make an Atari game with its preprocessing."""
    create = atari.AtariCreator(spec=spec, max_episode_steps=request.max_episode_steps)
    has_vector = spec.vector_entry_point is not None
    vector = atari.AtariVectorCreator(game=create) if has_vector else None
    made = describe_env(name, create, request, vector=vector)
    if isinstance(made, MadeMultiHostEnv):
        return made
    return dataclasses.replace(
        made,
        max_episode_steps=made.max_episode_steps or create.get_time_limit(request.context),
        notes=(f"{name}: {atari.PREPROCESSING_NOTE}", *made.notes),
    )


def from_class(cls: type, request: EnvRequest, env_id: str) -> MadeAny:
    """Make a host environment from a class; the context's config holds its constructor's arguments.

    A parameter named config, env_config, env_context or context that the config does not set
    receives the whole context, as in RLlib.

    Raises:
        UnknownNameError: If the constructor has no such argument.
        EnvError: If an argument is missing, or the environment cannot be made.
    """
    _refuse_old_gym(cls, env_id)
    context = request.context
    parameters = list(inspect.signature(cls).parameters.values())
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    names = [p.name for p in named]
    context_param = next((n for n in CONTEXT_NAMES if n in names and n not in context), None)
    takes_any = context_param is None and any(p.kind is p.VAR_KEYWORD for p in parameters)
    arguments = {key: value for key, value in context.items() if takes_any or key in names}
    if context_param is None:
        _refuse_unknown(env_id, [key for key in context if key not in arguments], names)
    check_required(env_id, named, {*arguments, context_param})
    create = ClassCreator(cls=cls, arguments=arguments, context_name=context_param)
    return describe_env(env_id, _with_limit(create, request), request)


def from_creator(create: Creator, env: Any, request: EnvRequest, env_id: str) -> MadeAny:
    """Make a host environment from a function of an `EnvContext`, which has already made `env`.

    Raises:
        EnvError: If `env` is of the old gym package, or not a valid environment.
    """
    _refuse_old_gym(type(env), env_id)
    return describe_env(env_id, _with_limit(create, request), request, env=env)


def from_instance(env: Any, request: EnvRequest, env_id: str) -> MadeAny:
    """Make a host environment from copies of an instance, which is left unchanged.

    Raises:
        EnvError: If it cannot be copied, or there is an env_config.
    """
    _refuse_old_gym(type(env), env_id)
    if request.context:
        raise EnvError(
            f"{env_id} is an instance already; env_config={dict(request.context)} has no effect."
        )
    try:
        copy.deepcopy(env)
    except Exception as error:
        spec = getattr(env, "spec", None)
        if spec is None or spec.entry_point is None:
            raise EnvError(
                f"{env_id}: the instance cannot be copied ({summarize_exception(error)}); use its "
                f"class or a creator, which can make every copy."
            ) from error
        warn_once(
            f"{env_id}: the instance cannot be copied; copies are made from its gymnasium id."
        )
        create = SpecCreator(spec=spec, max_episode_steps=request.max_episode_steps)
        return describe_env(env_id, create, request)
    return describe_env(env_id, _with_limit(InstanceCreator(instance=env), request), request)


def _with_limit(create: Creator, request: EnvRequest) -> Creator:
    limit = request.max_episode_steps
    return create if limit is None else TimeLimitCreator(create=create, max_episode_steps=limit)


def describe_env(
    env_id: str,
    create: Creator,
    request: EnvRequest,
    *,
    vector: Callable[[int, EnvContext], VectorEnv[Any, Any, Any]] | None = None,
    env: Any = None,
) -> MadeAny:
    """Read spaces and limits of one environment, and close it."""
    if env is None:
        env = create_env(env_id, create, request.context)
    env = wrap_pettingzoo(env)
    if find_multi_agent_layer(env) is not None:
        return describe_multi_env(env_id, create, request, env)
    try:
        observation_space = _get_space(env, env_id, "observation")
        action_space = _get_space(env, env_id, "action")
        own_limit = get_time_limit(env)
        is_atari = atari.is_atari_env(env)
        is_task_settable = find_task_layer(env) is not None
    finally:
        close_quietly(env_id, env)
    notes = [
        *describe_casts(f"{env_id}: the observation", observation_space),
        *describe_casts(f"{env_id}: the action", action_space),
    ]
    return MadeHostEnv(
        id=env_id,
        create=create,
        vector=vector,
        observation_space=to_runner_space(observation_space),
        action_space=to_runner_actions(action_space),
        max_episode_steps=request.max_episode_steps or own_limit,
        env_config=dict(request.context),
        is_atari=is_atari if request.is_atari is None else request.is_atari,
        notes=tuple(notes),
        is_task_settable=is_task_settable,
    )


def create_env(env_id: str, create: Creator, context: EnvContext) -> gymnasium.Env[Any, Any]:
    """Create one environment.

    Raises:
        EnvError: If its creator raises, or returns anything else.
    """
    env: Any = wrap_pettingzoo(call_creator(env_id, create, context))
    _refuse_old_gym(type(env), env_id)
    if not isinstance(env, gymnasium.Env) and not is_multi_agent_env(env):
        raise EnvError(f"The creator of {env_id} must return a gymnasium.Env, got {env!r}.")
    return env


def adapt_creator(create: Callable[..., Any], context: EnvContext, env_id: str) -> Creator:
    """Return the creator, or one that takes an `EnvContext` for a function without arguments.

    Raises:
        EnvError: If it takes none, and the config is not empty.
    """
    try:
        parameters = inspect.signature(create).parameters
    except (TypeError, ValueError):  # C functions may have no signature
        return create
    if parameters:
        return create
    if context:
        raise EnvError(
            f"{env_id} takes no argument, so env_config={dict(context)} has no effect: let it take "
            "the EnvContext, as in lambda ctx: ..."
        )
    return NoContextCreator(create=create)


def call_creator(env_id: str, create: Creator, context: EnvContext) -> object:
    """Call a creator, and return its result.

    Raises:
        EnvError: If it raises.
    """
    try:
        return create(context)
    except JaxrlError:
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        raise EnvError(_missing_package_message(env_id, error)) from error
    except BaseException as error:
        reraise_interrupts(error)
        raise EnvError(
            f"{env_id} cannot be made: its creation raised {summarize_exception(error)}."
        ) from error


def _get_space(env: gymnasium.Env[Any, Any], env_id: str, kind: str) -> gymnasium.Space[Any]:
    what = f"{env_id}: {kind}_space"
    try:
        space = env.observation_space if kind == "observation" else env.action_space
    except AttributeError:
        raise EnvError(f"{what} is missing; set self.{kind}_space in __init__.") from None
    if not isinstance(space, gymnasium.Space):
        raise EnvError(f"{what} must be a gymnasium space, got {space!r}.")
    if kind == "observation":
        _refuse_parts(what, space)
    check_space(what, to_runner_space(space))
    return space


def _refuse_parts(what: str, space: gymnasium.Space[Any]) -> None:
    """Raise for a Dict of observations with parts that no module reads, which can be left out.

    Raises:
        EnvError: If there is one, such as the text of a mission; the message says how.
    """
    if not isinstance(space, gymnasium.spaces.Dict):
        return
    parts: dict[str, Any] = space.spaces
    bad = [key for key, part in parts.items() if not _is_supported(part)]
    kept = [key for key in parts if key not in bad]
    if bad and kept:
        kind = type(parts[bad[0]])
        more = ""
        if kind.__module__.partition(".")[0] == "minigrid":
            more = "; minigrid.wrappers.ImgObsWrapper(env) leaves the image alone"
        raise EnvError(
            f"{what}[{bad[0]!r}] is {kind.__name__}, which no module reads: leave it out by a "
            f"creator, `lambda ctx: gymnasium.wrappers.FilterObservation(env, {kept})` with the "
            f"environment as env{more}."
        )


def _is_supported(space: gymnasium.Space[Any]) -> bool:
    return all(isinstance(leaf, SUPPORTED_SPACES) for _, leaf in get_leaf_spaces(space))


def _find_spec(env_id: str, name: str) -> EnvSpec:
    """Return gymnasium's entry, of the newest version if the id has none.

    The module that the id names is imported first.
    """
    module, _, bare = env_id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise EnvError(
                f"Cannot import {module!r} for the environment {name!r}: {error}."
                f"{did_you_mean(name, BUILTIN_ENVS)}"
            ) from error
    try:
        namespace, env_name, version = parse_env_id(bare)
    except gymnasium.error.Error as error:
        raise UnknownNameError(f"{name!r} is not a gymnasium id: {error}") from error
    if atari.is_atari_id(bare):
        atari.register(name)
    if version is None:
        newest = find_highest_version(namespace, env_name)
        if newest is not None:
            bare = get_env_id(namespace, env_name, newest)
            warn_once(f"{name}: using the newest version, {bare}.")
    if bare not in gymnasium.registry:
        _raise_unknown(bare, name)
    return copy.deepcopy(gymnasium.registry[bare])


def _raise_unknown(bare: str, name: str) -> NoReturn:
    hint = did_you_mean(atari.find_current_id(bare), gymnasium.registry)
    raise UnknownNameError(
        f"Gymnasium has no environment {name!r}.{hint} If a package registers it, prefix that: "
        f"'gymnasium:package:{bare}'."
    )


def _refuse_unknown_arguments(spec: EnvSpec, name: str, context: EnvContext) -> None:
    """Raise for names in env_config that the environment's constructor does not have."""
    entry: Any = spec.entry_point or spec.vector_entry_point
    if isinstance(entry, str):
        module, _, attribute = entry.partition(":")
        try:
            with log_warnings(name):
                entry = getattr(importlib.import_module(module), attribute)
        except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
            raise EnvError(_missing_package_message(name, error)) from error
    parameters = inspect.signature(entry).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    names = [p.name for p in parameters]
    _refuse_unknown(name, [key for key in context if key not in names], names)


def _refuse_unknown(name: str, unknown: list[str], known: list[str]) -> None:
    if not unknown:
        return
    if unknown[0] == "max_episode_steps":
        raise UnknownNameError(
            f"{name} takes no argument 'max_episode_steps'; the setting of that name, beside "
            f"env_config, replaces the time limit."
        )
    takes = f"It takes {', '.join(known)}." if known else "It takes no arguments."
    raise UnknownNameError(
        f"{name} takes no argument {unknown[0]!r} (env_config)."
        f"{did_you_mean(unknown[0], known)} {takes}"
    )


def _missing_package_message(env_id: str, error: Exception) -> str:
    """Return the error message for a missing package, with one install command.

    The command is that of jaxrl's extra if there is one, else the original error's.
    """
    extra = _install_hint(env_id)
    reason = str(error).rstrip(".")
    if extra:
        reason = reason.split(", you can")[0].split(", run")[0]
    return f"{env_id} lacks a package: {reason}.{extra}"


def _install_hint(env_id: str) -> str:
    """Return how to install jaxrl's extra for an environment, an empty string if there is none."""
    if any(name in env_id for name in ("LunarLander", "BipedalWalker", "CarRacing")):
        return " Install it with: pip install 'jaxrl[box2d]'."
    if atari.is_atari_id(env_id.removeprefix(PREFIX)):
        return " Install it with: pip install 'jaxrl[atari]'."
    if _MUJOCO_ID.fullmatch(env_id.removeprefix(PREFIX)):
        return " Install it with: pip install 'jaxrl[mujoco]'."
    return ""


def _is_old_gym(cls: type) -> bool:
    return any(base.__module__.split(".")[0] == "gym" for base in cls.__mro__)


def _refuse_old_gym(cls: type, env_id: str) -> None:
    if _is_old_gym(cls) and not issubclass(cls, gymnasium.Env):
        raise EnvError(
            f"{env_id} is an environment of the old gym package, not of gymnasium: wrap it in a "
            f"creator with shimmy's GymV21CompatibilityV0 or GymV26CompatibilityV0."
        )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MultiAgentCreator:
    """Creator of the environment of several agents inside what another creator makes.

    Gymnasium puts wrappers of a single agent around every environment of its registry.
    """

    create: Callable[[EnvContext], Any]

    def __call__(self, context: EnvContext) -> MultiAgentEnv:
        env = find_multi_agent_layer(wrap_pettingzoo(self.create(context)))
        assert env is not None  # it was found when the creator was first called
        return env


def find_multi_agent_layer(env: object) -> MultiAgentEnv | None:
    """Return the environment of several agents inside gymnasium's wrappers, None if there is none."""
    layers: list[Any] = unwrap_layers(env)  # pyright: ignore[reportArgumentType]
    return next((layer for layer in layers if is_multi_agent_env(layer)), None)


def describe_multi_env(
    env_id: str, create: Creator, request: EnvRequest, env: Any
) -> MadeMultiHostEnv:
    """Read agents, spaces and limits of one environment, and close it.

    Where the environment does not say who may take part, the agents are those of a first episode's
    first observations.

    Raises:
        EnvError: If it names no agent, or an agent has no valid space.
    """
    if request.is_atari:
        raise EnvError(
            f"{env_id} has several agents, so is_atari=True has no effect; leave it out."
        )
    inner = find_multi_agent_layer(env)
    assert inner is not None
    _check_layers(env_id, env, inner)
    try:
        checked = CheckedMultiAgentEnv(inner, env_id)
        agents = checked.possible_agents
        has_all_agents = bool(agents)
        if not has_all_agents:
            agents = tuple(checked.reset(seed=0).obs)
        if not agents:
            raise EnvError(
                f"{env_id} names no agent: set self.possible_agents in __init__ to the ids of all "
                "that may take part."
            )
        own_limit = get_time_limit(env)
        notes = _describe_casts(checked, agents)
        return MadeMultiHostEnv(
            id=env_id,
            create=MultiAgentCreator(
                create=create.create if isinstance(create, TimeLimitCreator) else create
            ),
            observation_spaces={name: checked.get_observation_space(name) for name in agents},
            action_spaces={name: checked.get_action_space(name) for name in agents},
            max_episode_steps=request.max_episode_steps or own_limit,
            env_config=dict(request.context),
            state_space=checked.state_space,
            has_all_agents=has_all_agents,
            notes=notes,
            own_ids={name: checked.agents.get_own_id(name) for name in agents},
        )
    finally:
        close_quietly(env_id, env)


def _check_layers(env_id: str, env: Any, inner: MultiAgentEnv) -> None:
    """Raise EnvError if a wrapper of the user's is around an environment, which would be left out."""
    layers: list[Any] = unwrap_layers(env)
    for layer in layers[: layers.index(inner)]:
        if not type(layer).__module__.startswith("gymnasium."):
            raise EnvError(
                f"{env_id}: {type(layer).__name__} wraps an environment of several agents, and gymnasium's "
                "wrappers do not take their dictionaries: write it as a MultiAgentEnv that holds the "
                "other one."
            )


def _describe_casts(checked: CheckedMultiAgentEnv, agents: tuple[str, ...]) -> tuple[str, ...]:
    """Return a sentence for each Box that modules see in another dtype, of equal agents once."""
    notes: dict[str, str] = {}
    for agent in agents:
        own = checked.agents.get_own_id(agent)
        spaces = {
            "observation": checked.env.get_observation_space(own),
            "action": checked.env.get_action_space(own),
        }
        for what, space in spaces.items():
            for note in describe_casts("", space):
                notes.setdefault(f"{what}{note}", f"the {what} of agent {agent!r}{note}")
    return tuple(f"{checked.name}: {note}" for note in notes.values())
