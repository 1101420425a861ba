"""Making gymnasium environments: of ids, classes, creators and instances."""

import copy
import dataclasses
import importlib
import inspect
from collections.abc import Callable
from typing import Any, NoReturn

import gymnasium
from gymnasium.envs.registration import EnvSpec, find_highest_version, get_env_id, parse_env_id

from jaxrl.envs.adapters import atari
from jaxrl.envs.adapters.barrier import close_quietly, raise_if_users
from jaxrl.envs.adapters.host_creators import (
    Creator,
    FromClass,
    FromInstance,
    FromSpec,
    Limited,
    VectorFromSpec,
    WithoutContext,
)
from jaxrl.envs.adapters.host_spaces import advice, cast_notes, notice, runner_space
from jaxrl.envs.adapters.host_state import time_limit
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import MadeHostEnv, Request
from jaxrl.envs.params import check_given
from jaxrl.envs.space_checks import check_space
from jaxrl.errors import EnvError, JaxrlError, UnknownNameError, did_you_mean, in_one_line

PREFIX = "gymnasium:"

CONTEXT_NAMES = ("config", "env_config", "env_context", "context")
"""A constructor's parameter of such a name gets the whole `EnvContext`, as with RLlib."""


def knows(env_id: str) -> bool:
    """Whether gymnasium has an entry of this id, or may after importing what it names."""
    return env_id in gymnasium.registry or ":" in env_id or atari.is_atari_id(env_id)


def is_host_env(env: object) -> bool:
    """Whether this is a gymnasium environment or one of the old gym package."""
    return isinstance(env, gymnasium.Env) or _is_old_gym(type(env))


def is_host_class(cls: type) -> bool:
    """Whether its instances are gymnasium environments or those of the old gym package."""
    return issubclass(cls, gymnasium.Env) or _is_old_gym(cls)


def from_id(env_id: str, request: Request, name: str) -> MadeHostEnv:
    """An environment of gymnasium's registry.

    Args:
        env_id: As gymnasium takes it: "CartPole-v1", "ALE/Pong-v5", "module:Env-v0".
        request: The context's config are the environment's arguments.
        name: What the user called it.

    Raises:
        UnknownNameError: There is no such id, or the environment takes no such argument.
        EnvError: It cannot be made.
    """
    with advice(name):
        spec, limit = _find_spec(env_id, name), request.max_episode_steps
    _check_arguments(spec, name, request.context)
    if atari.is_atari_spec(spec) and request.is_atari is not False:
        return _atari_game(spec, request, name)
    create = FromSpec(spec=spec, max_episode_steps=limit)
    vector = None
    if spec.vector_entry_point is not None:
        vector = VectorFromSpec(spec=spec, max_episode_steps=limit)
    return _made(name, create, request, vector=vector)


def _atari_game(spec: EnvSpec, request: Request, name: str) -> MadeHostEnv:
    """An Atari game behind its preprocessing."""
    create = atari.Preprocessed(spec=spec, max_episode_steps=request.max_episode_steps)
    has_vector = spec.vector_entry_point is not None
    vector = atari.PreprocessedVector(game=create) if has_vector else None
    made = _made(name, create, request, vector=vector)
    return dataclasses.replace(
        made,
        max_episode_steps=made.max_episode_steps or create.game_limit(request.context),
        notes=(f"{name}: {atari.NOTE}", *made.notes),
    )


def from_class(cls: type, request: Request, env_id: str) -> MadeHostEnv:
    """An environment of a class; the context's config are its constructor's arguments.

    A parameter called config, env_config, env_context or context that the config does not name
    gets the whole context, as with RLlib.

    Raises:
        UnknownNameError: The constructor has no such argument.
        EnvError: An argument is missing, or the environment cannot be made.
    """
    _refuse_old_gym(cls, env_id)
    context = request.context
    parameters = list(inspect.signature(cls).parameters.values())
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    names = [p.name for p in named]
    whole = next((n for n in CONTEXT_NAMES if n in names and n not in context), None)
    takes_any = whole is None and any(p.kind is p.VAR_KEYWORD for p in parameters)
    arguments = {key: value for key, value in context.items() if takes_any or key in names}
    if whole is None:
        _refuse_unknown(env_id, [key for key in context if key not in arguments], names)
    check_given(env_id, named, {*arguments, whole})
    create = FromClass(cls=cls, arguments=arguments, context_name=whole)
    return _made(env_id, _limited(create, request), request)


def from_creator(create: Creator, env: Any, request: Request, env_id: str) -> MadeHostEnv:
    """An environment of a function of an `EnvContext`, which made `env` already.

    Raises:
        EnvError: `env` is of the old gym package, or not what it should be.
    """
    _refuse_old_gym(type(env), env_id)
    return _made(env_id, _limited(create, request), request, env=env)


def from_instance(env: Any, request: Request, env_id: str) -> MadeHostEnv:
    """Copies of an environment; the instance itself is left alone.

    Raises:
        EnvError: It cannot be copied.
    """
    _refuse_old_gym(type(env), env_id)
    if request.context:
        raise EnvError(
            f"{env_id} is an instance already; env_config={dict(request.context)} has no effect."
        )
    try:
        copy.deepcopy(env)
    except Exception as error:
        if env.spec is None or env.spec.entry_point is None:
            raise EnvError(
                f"{env_id}: the instance cannot be copied ({in_one_line(error)}); give its "
                f"class or a creator, of which every copy can be made."
            ) from error
        notice(f"{env_id}: the instance cannot be copied; copies are made of its gymnasium id.")
        create = FromSpec(spec=env.spec, max_episode_steps=request.max_episode_steps)
        return _made(env_id, create, request)
    return _made(env_id, _limited(FromInstance(instance=env), request), request)


def _limited(create: Creator, request: Request) -> Creator:
    limit = request.max_episode_steps
    return create if limit is None else Limited(create=create, max_episode_steps=limit)


def _made(
    env_id: str,
    create: Creator,
    request: Request,
    *,
    vector: Callable[[int, EnvContext], Any] | None = None,
    env: Any = None,
) -> MadeHostEnv:
    """What one environment says of itself; it is closed afterwards."""
    if env is None:
        env = create_env(env_id, create, request.context)
    try:
        observation_space = _space(env, env_id, "observation")
        action_space = _space(env, env_id, "action")
        own_limit = time_limit(env)
        is_atari = atari.is_atari_env(env)
    finally:
        close_quietly(env_id, env)
    notes = [
        *cast_notes(f"{env_id}: the observation", observation_space),
        *cast_notes(f"{env_id}: the action", action_space),
    ]
    return MadeHostEnv(
        id=env_id,
        create=create,
        vector=vector,
        observation_space=runner_space(observation_space),
        action_space=runner_space(action_space),
        max_episode_steps=request.max_episode_steps or own_limit,
        env_config=dict(request.context),
        is_atari=is_atari if request.is_atari is None else request.is_atari,
        notes=tuple(notes),
    )


def create_env(env_id: str, create: Creator, context: EnvContext) -> gymnasium.Env[Any, Any]:
    """One environment.

    Raises:
        EnvError: Its creator raises, or returns something else.
    """
    env = call_creator(env_id, create, context)
    _refuse_old_gym(type(env), env_id)
    if not isinstance(env, gymnasium.Env):
        raise EnvError(f"The creator of {env_id} must return a gymnasium.Env, got {env!r}.")
    return env


def taking_context(create: Callable[..., Any], context: EnvContext, env_id: str) -> Creator:
    """The creator itself, or one that takes an `EnvContext` for a function without an argument.

    Raises:
        EnvError: It takes none, and there is a config that it would not see.
    """
    try:
        parameters = inspect.signature(create).parameters
    except (TypeError, ValueError):  # what C functions are called with is not known
        return create
    if parameters:
        return create
    if context:
        raise EnvError(
            f"{env_id} takes no argument, so env_config={dict(context)} has no effect: let it take "
            "the EnvContext, as in lambda ctx: ..."
        )
    return WithoutContext(create=create)


def call_creator(env_id: str, create: Creator, context: EnvContext) -> Any:
    """Whatever a creator returns.

    Raises:
        EnvError: It raises.
    """
    try:
        return create(context)
    except JaxrlError:
        raise
    except gymnasium.error.DependencyNotInstalled as error:
        raise EnvError(_lacking(env_id, error)) from error
    except BaseException as error:
        raise_if_users(error)
        raise EnvError(
            f"{env_id} cannot be made: its creation raised {in_one_line(error)}."
        ) from error


def _space(env: gymnasium.Env[Any, Any], env_id: str, kind: str) -> gymnasium.Space[Any]:
    what = f"{env_id}: {kind}_space"
    try:
        space = env.observation_space if kind == "observation" else env.action_space
    except AttributeError:
        raise EnvError(f"{what} is missing; set self.{kind}_space in __init__.") from None
    if not isinstance(space, gymnasium.Space):
        raise EnvError(f"{what} must be a gymnasium space, got {space!r}.")
    check_space(what, runner_space(space), for_actions=kind == "action")
    return space


def _find_spec(env_id: str, name: str) -> EnvSpec:
    """Gymnasium's entry, after importing the module that the id names; the newest if unversioned."""
    module, _, bare = env_id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise EnvError(
                f"Cannot import {module!r} for the environment {name!r}: {error}."
            ) from error
    try:
        namespace, env_name, version = parse_env_id(bare)
    except gymnasium.error.Error as error:
        raise UnknownNameError(f"{name!r} is no id of gymnasium's: {error}") from error
    if atari.is_atari_id(bare):
        atari.register(name)
    if version is None:
        newest = find_highest_version(namespace, env_name)
        if newest is not None:
            bare = get_env_id(namespace, env_name, newest)
            notice(f"{name}: the newest version, {bare}.")
    if bare not in gymnasium.registry:
        _unknown(bare, name)
    return copy.deepcopy(gymnasium.registry[bare])


def _unknown(bare: str, name: str) -> NoReturn:
    hint = did_you_mean(bare, gymnasium.registry)
    raise UnknownNameError(
        f"Gymnasium knows no environment {name!r}.{hint} If a package registers it, name that: "
        f"'gymnasium:package:{bare}'."
    )


def _check_arguments(spec: EnvSpec, name: str, context: EnvContext) -> None:
    """Refuse names in env_config that the environment's constructor does not have."""
    entry: Any = spec.entry_point
    if isinstance(entry, str):
        module, _, attribute = entry.partition(":")
        try:
            with advice(name):
                entry = getattr(importlib.import_module(module), attribute)
        except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
            raise EnvError(_lacking(name, error)) from error
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


def _lacking(env_id: str, error: Exception) -> str:
    """The sentence on a package that is missing, with one recipe: ours, or else the error's own."""
    extra = _extra(env_id)
    said = str(error).rstrip(".")
    if extra:
        said = said.split(", you can")[0].split(", run")[0]
    return f"{env_id} lacks a package: {said}.{extra}"


def _extra(env_id: str) -> str:
    """Which extra of jaxrl's brings what an environment needs."""
    if any(name in env_id for name in ("LunarLander", "BipedalWalker", "CarRacing")):
        return " Install it with: pip install 'jaxrl[box2d]'."
    if atari.is_atari_id(env_id.removeprefix(PREFIX)):
        return " Install it with: pip install 'jaxrl[atari]'."
    return ""


def _is_old_gym(cls: type) -> bool:
    return any(base.__module__.split(".")[0] == "gym" for base in cls.__mro__)


def _refuse_old_gym(cls: type, env_id: str) -> None:
    if _is_old_gym(cls) and not issubclass(cls, gymnasium.Env):
        raise EnvError(
            f"{env_id} is an environment of the old gym package, not of gymnasium: wrap it in a "
            f"creator with shimmy's GymV21CompatibilityV0 or GymV26CompatibilityV0."
        )
