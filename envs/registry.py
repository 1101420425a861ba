"""From what a user calls an environment to a made one: ids, class paths, classes, creators."""

import dataclasses
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import gymnasium

from jaxrl.core.types import PyTree
from jaxrl.envs.adapters import gymnax as gymnax_adapter
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.catalog import OWN_ENVS
from jaxrl.envs.context import EnvContext
from jaxrl.envs.params import override_params
from jaxrl.envs.wrappers import OwnTimeLimit, TimeLimit, check_max_episode_steps
from jaxrl.errors import EnvError, UnknownNameError, did_you_mean

EnvCreator: TypeAlias = Callable[[EnvContext], JaxEnv[Any, Any]]
EnvSpec: TypeAlias = str | type[JaxEnv[Any, Any]] | JaxEnv[Any, Any] | EnvCreator

_registered: dict[str, EnvCreator | type[JaxEnv[Any, Any]]] = {}

_CLASS_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*[.:][A-Za-z_]\w*")
_GYMNASIUM_ID = re.compile(r"([\w.-]+/)?[\w.-]+-v\d+")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MadeEnv:
    """An environment ready to run: its time limit is around it, its parameters are set.

    `notes` are sentences for `config.explain()`.
    """

    env: JaxEnv[Any, Any]
    params: PyTree
    id: str
    notes: tuple[str, ...] = ()

    @property
    def max_episode_steps(self) -> int | None:
        """After how many steps an episode is truncated, None for never."""
        if isinstance(self.env, OwnTimeLimit):
            return self.env.time_limit(self.params)
        return self.env.max_episode_steps


def register_env(name: str, creator: EnvCreator | type[JaxEnv[Any, Any]]) -> None:
    """Let `name` stand for an environment; a name that was registered before is replaced.

    Args:
        name: Any id without the prefixes `gymnax:` and `jaxrl:`; it goes before built-in ids.
        creator: Called with an `EnvContext` (the `env_config`), returns a `JaxEnv`; or a class.

    Raises:
        EnvError: The name is not a string, empty or prefixed, or the creator is not callable.
    """
    if not isinstance(name, str) or not name:
        raise EnvError(f"An environment's name must be a non-empty string, got {name!r}.")
    if name.split(":")[0] in ("gymnax", "jaxrl"):
        raise EnvError(f"The prefix of {name!r} is reserved; register the name without it.")
    if not callable(creator):
        raise EnvError(
            f"The creator of {name!r} must be callable with an EnvContext, got {creator!r}."
        )
    _registered[name] = creator


def list_envs() -> list[str]:
    """Every id that `make` knows: registered names, jaxrl's own, gymnax's."""
    own = [name if not name.startswith("probe-") else f"jaxrl:{name}" for name in OWN_ENVS]
    return [*sorted(_registered), *own, *(f"gymnax:{name}" for name in gymnax_adapter.ENV_IDS)]


def make(
    spec: EnvSpec,
    env_config: Mapping[str, Any] | None = None,
    *,
    max_episode_steps: int | None = None,
) -> MadeEnv:
    """Make an environment, with its time limit around it.

    Environments made twice from equal arguments are the same or equal objects, so that programs
    compiled for one serve the other (creators excepted: those are called each time).

    Args:
        spec: An id ("CartPole-v1", "jaxrl:...", "gymnax:...", or a registered name), a class path
            ("package.module:Class" or "package.module.Class"), a `JaxEnv` class or instance, or
            a creator that is called with an `EnvContext`.
        env_config: Fields of the environment's params and arguments of its constructor; what a
            creator gets as its `EnvContext`.
        max_episode_steps: Replaces the environment's own time limit.

    Raises:
        UnknownNameError: No environment, parameter or constructor argument has this name.
        EnvError: The environment cannot be made, or is no JAX environment.
    """
    if max_episode_steps is not None:
        max_episode_steps = check_max_episode_steps(max_episode_steps)
    context = env_config if isinstance(env_config, EnvContext) else EnvContext(env_config)
    if isinstance(spec, str):
        made = _from_string(spec, context)
    else:
        made = _from_object(spec, context, _describe(spec))
    return _with_time_limit(made, max_episode_steps)


def _from_string(spec: str, context: EnvContext) -> MadeEnv:
    prefix, _, name = spec.partition(":")
    if spec in _registered:
        return _from_object(_registered[spec], context, spec)
    if prefix == "jaxrl" and name in OWN_ENVS:
        return _from_catalog(name, context, spec)
    if spec in OWN_ENVS:
        made = _from_catalog(spec, context, spec)
        note = f"{spec}: jaxrl's own JAX implementation (not gymnasium's, not gymnax's)."
        return dataclasses.replace(made, notes=(note,) if spec in gymnasium.registry else ())
    if prefix == "gymnax" and name:
        return _from_class(gymnax_adapter.env_class(name), context, spec)
    if spec in gymnax_adapter.ENV_IDS:
        made = _from_class(gymnax_adapter.env_class(spec), context, spec)
        return dataclasses.replace(made, notes=(f"{spec}: gymnax's implementation.",))
    if prefix != "jaxrl" and _GYMNASIUM_ID.fullmatch(spec) and _known_to_gymnasium(spec):
        raise EnvError(_host_env_message(spec))
    if prefix != "jaxrl" and _CLASS_PATH.fullmatch(spec):
        return _from_object(_load(spec), context, spec)
    raise _unknown(spec)


def _from_catalog(name: str, context: EnvContext, env_id: str) -> MadeEnv:
    entry = OWN_ENVS[name]
    merged = context.copy_with_overrides({**entry.arguments, **context})
    return _from_object(_load(entry.path), merged, env_id)


def _from_object(spec: Any, context: EnvContext, env_id: str) -> MadeEnv:
    """From a class, an instance or a creator."""
    if isinstance(spec, type):
        return _from_class(spec, context, env_id)
    if isinstance(spec, JaxEnv) or gymnax_adapter.is_gymnax(spec):
        env = _adapted(spec, env_id)
        params = override_params(env_id, env.default_params, context)
        return MadeEnv(env=env, params=params, id=env_id)
    if isinstance(spec, gymnasium.Env):
        raise EnvError(_host_env_message(env_id))
    if not callable(spec):
        raise EnvError(
            f"An environment must be an id, a class path, a JaxEnv class or instance, or a "
            f"creator, got {spec!r}."
        )
    made = spec(context)
    if isinstance(made, gymnasium.Env):
        raise EnvError(_host_env_message(env_id))
    env = _adapted(made, env_id)
    return MadeEnv(env=env, params=env.default_params, id=env_id)


def _adapted(env: Any, env_id: str) -> JaxEnv[Any, Any]:
    if gymnax_adapter.is_gymnax(env):
        return gymnax_adapter.GymnaxEnv(env)
    if not isinstance(env, JaxEnv):
        raise EnvError(f"The creator of {env_id} must return a JaxEnv, got {env!r}.")
    return env


def _from_class(cls: type, context: EnvContext, env_id: str) -> MadeEnv:
    """An instance from the constructor's arguments in the config, params from the rest."""
    if issubclass(cls, gymnasium.Env):
        raise EnvError(_host_env_message(env_id))
    if not (issubclass(cls, JaxEnv) or gymnax_adapter.is_gymnax_class(cls)):
        raise EnvError(f"{env_id} is not a JaxEnv class.")
    parameters = inspect.signature(cls).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    arguments = {p.name: context[p.name] for p in named if p.name in context}
    missing = [p.name for p in named if p.default is p.empty and p.name not in arguments]
    if missing:
        raise EnvError(
            f"{env_id} needs {', '.join(missing)}: give it in env_config, or use a creator."
        )
    env = _adapted(_instance(cls, arguments), env_id)
    rest = {key: value for key, value in context.items() if key not in arguments}
    params = override_params(env_id, env.default_params, rest, [p.name for p in named])
    return MadeEnv(env=env, params=params, id=env_id)


def _instance(cls: Any, arguments: dict[str, Any]) -> Any:
    """The one instance of a class with these arguments, if they can be compared."""
    try:
        hash(tuple(arguments.values()))
    except TypeError:
        return cls(**arguments)
    # The types keep True apart from 1 and 1.0.
    types = tuple(type(value) for value in arguments.values())
    return _cached_instance(cls, tuple(arguments.items()), types)


@functools.cache
def _cached_instance(cls: Any, arguments: tuple[tuple[str, Any], ...], types: Any) -> Any:
    del types
    return cls(**dict(arguments))


def _with_time_limit(made: MadeEnv, max_episode_steps: int | None) -> MadeEnv:
    env, limit = made.env, max_episode_steps
    if isinstance(env, TimeLimit):
        env, limit = env.env, limit or env.max_episode_steps
    if isinstance(env, OwnTimeLimit):
        if limit is None:
            return made
        return dataclasses.replace(made, params=env.with_time_limit(made.params, limit))
    limit = limit or env.max_episode_steps
    return made if limit is None else dataclasses.replace(made, env=TimeLimit(env, limit))


def _load(path: str) -> Any:
    """The object behind "module:name" or "module.name".

    Raises:
        UnknownNameError: There is no such module, and the path may as well be a mistyped id.
        EnvError: The module fails to import, or has no such name.
    """
    module_name, _, name = path.replace(":", ".").rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        absent = error.name is not None and f"{module_name}.".startswith(f"{error.name}.")
        if absent and ":" not in path:
            raise _unknown(path) from error
        raise EnvError(f"Cannot import the environment {path!r}: {error}.") from error
    except ImportError as error:
        raise EnvError(f"Cannot import the environment {path!r}: {error}.") from error
    if name not in vars(module):
        raise EnvError(f"Module {module_name!r} has no {name!r}.{did_you_mean(name, vars(module))}")
    return vars(module)[name]


def _describe(spec: Any) -> str:
    if isinstance(spec, JaxEnv):
        return spec.name
    named = spec if isinstance(spec, type) or inspect.isfunction(spec) else type(spec)
    return f"{named.__module__}:{named.__qualname__}"


def _known_to_gymnasium(spec: str) -> bool:
    return spec in gymnasium.registry or "/" in spec


def _host_env_message(env_id: str) -> str:
    return (
        f"{env_id} is a gymnasium environment, which runs on the host; this version runs JAX "
        f"environments only: use one of `jaxrl list envs`, such as 'CartPole-v1' or "
        f"'gymnax:Breakout-MinAtar', or a JaxEnv class of your own."
    )


def _unknown(spec: str) -> UnknownNameError:
    known = list_envs()
    hint = did_you_mean(spec, [*known, *OWN_ENVS, *gymnax_adapter.ENV_IDS])
    return UnknownNameError(f"Unknown environment {spec!r}.{hint} Known: {', '.join(known)}.")
