"""From what a user calls an environment to a made one: ids, class paths, classes, creators."""

import dataclasses
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import gymnasium

from jaxrl.core.types import PyTree
from jaxrl.envs.adapters import gymnasium as gymnasium_adapter
from jaxrl.envs.adapters import gymnax as gymnax_adapter
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.catalog import OWN_ENVS, OWN_HOST_ENVS
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import MadeHostEnv, Request
from jaxrl.envs.params import check_given, override_params
from jaxrl.envs.wrappers import OwnTimeLimit, TimeLimit, check_max_episode_steps
from jaxrl.errors import EnvError, UnknownNameError, did_you_mean

AnyEnv: TypeAlias = JaxEnv[Any, Any] | gymnasium.Env[Any, Any]
EnvClass: TypeAlias = type[JaxEnv[Any, Any]] | type[gymnasium.Env[Any, Any]]
EnvCreator: TypeAlias = Callable[[EnvContext], AnyEnv]
EnvSpec: TypeAlias = str | EnvClass | AnyEnv | EnvCreator

_registered: dict[str, EnvCreator | EnvClass] = {}

RESERVED_PREFIXES = ("gymnasium", "gymnax", "jaxrl")

_AS_JAX_ENV = "write its reset and step as a JaxEnv, see docs/guides/custom_environment.md"
_WITHOUT_ADAPTER = {
    "craftax": f"Craftax has no adapter here: {_AS_JAX_ENV}.",
    "brax": f"Brax has no adapter here: {_AS_JAX_ENV}.",
    "jumanji": (
        f"Jumanji has no adapter here: {_AS_JAX_ENV}; or give a creator of "
        "jumanji.wrappers.JumanjiToGymWrapper(env), which is stepped on the host."
    ),
    "pgx": f"Pgx has no adapter here: {_AS_JAX_ENV}.",
    "xland": f"XLand-MiniGrid has no adapter here: {_AS_JAX_ENV}.",
    "envpool": "Its vector environments have no adapter here; gymnasium's ids of the same games do.",
}
"""Families of environments that are asked for, and what can be done."""

_CLASS_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*[.:][A-Za-z_]\w*")
_GYMNASIUM_ID = re.compile(r"([\w.]+:)?([\w.-]+/)?[\w.-]+-v\d+")


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


Made: TypeAlias = MadeEnv | MadeHostEnv


def register_env(name: str, creator: EnvCreator | EnvClass) -> None:
    """Let `name` stand for an environment; a name that was registered before is replaced.

    Args:
        name: Any id without the prefixes `gymnasium:`, `gymnax:` and `jaxrl:`; it goes before
            built-in ids.
        creator: Called with an `EnvContext` (the `env_config`), returns a `JaxEnv` or a
            `gymnasium.Env`; or a class of either.

    Raises:
        EnvError: The name is not a string, empty or prefixed, or the creator is not callable.
    """
    if not isinstance(name, str) or not name:
        raise EnvError(f"An environment's name must be a non-empty string, got {name!r}.")
    if name.split(":")[0] in RESERVED_PREFIXES:
        raise EnvError(f"The prefix of {name!r} is reserved; register the name without it.")
    if not callable(creator):
        raise EnvError(
            f"The creator of {name!r} must be callable with an EnvContext, got {creator!r}."
        )
    _registered[name] = creator


def registered_env(name: str) -> EnvCreator | EnvClass | None:
    """What was registered under this name, None if nothing was."""
    return _registered.get(name)


def list_envs() -> list[str]:
    """Registered names, jaxrl's own ids and gymnax's; `gymnasium:<id>` reaches gymnasium's."""
    own = [name if not name.startswith("probe-") else f"jaxrl:{name}" for name in OWN_ENVS]
    own += [f"jaxrl:{name}" for name in OWN_HOST_ENVS]
    return [*sorted(_registered), *own, *(f"gymnax:{name}" for name in gymnax_adapter.ENV_IDS)]


def make(
    spec: EnvSpec,
    env_config: Mapping[str, Any] | None = None,
    *,
    max_episode_steps: int | None = None,
    is_atari: bool | None = None,
) -> Made:
    """Make an environment, with its time limit around it.

    JAX environments made twice from equal arguments are the same or equal objects, so that
    programs compiled for one serve the other (creators excepted: those are called each time). Of a
    gymnasium environment one is made and closed, to learn its spaces.

    Args:
        spec: An id ("CartPole-v1", "jaxrl:...", "gymnax:...", "gymnasium:...", or a registered
            name), a class path ("package.module:Class" or "package.module.Class"), a class or an
            instance of `JaxEnv` or `gymnasium.Env`, or a creator that is called with an
            `EnvContext`.
        env_config: Fields of a JAX environment's params, and arguments of the constructor; what a
            creator gets as its `EnvContext`.
        max_episode_steps: Replaces the environment's own time limit.
        is_atari: Whether this is an Atari game, which is preprocessed and whose rewards are
            clipped; None asks the environment.

    Raises:
        UnknownNameError: No environment, parameter or constructor argument has this name.
        EnvError: The environment cannot be made.
    """
    if max_episode_steps is not None:
        max_episode_steps = check_max_episode_steps(max_episode_steps)
    context = env_config if isinstance(env_config, EnvContext) else EnvContext(env_config)
    request = Request(context=context, max_episode_steps=max_episode_steps, is_atari=is_atari)
    if isinstance(spec, str):
        return _from_string(spec, request)
    return _from_object(spec, request, _describe(spec))


def _from_string(spec: str, request: Request) -> Made:
    prefix, _, name = spec.partition(":")
    if spec in _registered:
        return _from_object(_registered[spec], request, spec)
    if prefix == "jaxrl" and (name in OWN_ENVS or name in OWN_HOST_ENVS):
        return _from_catalog(name, request, spec)
    if spec in OWN_ENVS:
        made = _from_catalog(spec, request, spec)
        if spec not in gymnasium.registry and spec not in gymnax_adapter.ENV_IDS:
            return made
        return _noted(
            made, f"{spec}: jaxrl's own JAX implementation (not gymnasium's, not gymnax's)."
        )
    if name and prefix in _WITHOUT_ADAPTER:
        raise _unknown(spec)
    if prefix == "gymnax" and name:
        return _from_class(gymnax_adapter.env_class(name), request, spec)
    if prefix == "gymnasium" and name:
        return gymnasium_adapter.from_id(name, request, spec)
    if spec in gymnax_adapter.ENV_IDS:
        made = _from_class(gymnax_adapter.env_class(spec), request, spec)
        return _noted(made, f"{spec}: gymnax's implementation.")
    if prefix != "jaxrl" and _GYMNASIUM_ID.fullmatch(spec) and gymnasium_adapter.knows(spec):
        made = gymnasium_adapter.from_id(spec, request, spec)
        return _noted(made, f"{spec}: gymnasium's implementation, stepped on the host.")
    if prefix != "jaxrl" and _CLASS_PATH.fullmatch(spec):
        return _from_object(_held(_load(spec), spec), request, spec)
    raise _unknown(spec)


def imported_by(spec: str) -> tuple[str | None, str | None]:
    """What making the environment of a name imports, in the order in which `make` looks.

    Returns:
        A module that the name asks for, and the class path where it is one; None for what is known.
    """
    prefix, _, name = spec.partition(":")
    known = spec in _registered or spec in OWN_ENVS or spec in gymnax_adapter.ENV_IDS
    if known or (prefix in ("jaxrl", "gymnax") and name):
        return None, None
    if prefix == "gymnasium" and name:
        return name.rpartition(":")[0] or None, None
    if _GYMNASIUM_ID.fullmatch(spec) and gymnasium_adapter.knows(spec):
        return spec.rpartition(":")[0] or None, None
    if _CLASS_PATH.fullmatch(spec):
        module = spec.replace(":", ".").rpartition(".")[0]
        return module, f"{module}:{spec.replace(':', '.').rpartition('.')[2]}"
    return None, None


def _noted(made: Made, note: str) -> Made:
    return dataclasses.replace(made, notes=(note, *made.notes))


def _from_catalog(name: str, request: Request, env_id: str) -> Made:
    entry = {**OWN_ENVS, **OWN_HOST_ENVS}[name]
    merged = request.context.copy_with_overrides({**entry.arguments, **request.context})
    return _from_object(_load(entry.path), dataclasses.replace(request, context=merged), env_id)


def _from_object(spec: Any, request: Request, env_id: str) -> Made:
    """From a class, an instance or a creator."""
    if isinstance(spec, type):
        return _from_class(spec, request, env_id)
    if isinstance(spec, JaxEnv) or gymnax_adapter.is_gymnax(spec):
        env = _adapted(spec, env_id)
        params = override_params(env_id, env.default_params, request.context)
        return _with_time_limit(MadeEnv(env=env, params=params, id=env_id), request)
    if gymnasium_adapter.is_host_env(spec):
        return gymnasium_adapter.from_instance(spec, request, env_id)
    if not callable(spec):
        raise EnvError(
            f"An environment must be an id, a class path, a class or instance of JaxEnv or "
            f"gymnasium.Env, or a creator, got {spec!r}."
        )
    spec = gymnasium_adapter.taking_context(spec, request.context, env_id)
    made = gymnasium_adapter.call_creator(env_id, spec, request.context)
    if gymnasium_adapter.is_host_env(made):
        return gymnasium_adapter.from_creator(spec, made, request, env_id)
    env = _adapted(made, env_id)
    return _with_time_limit(MadeEnv(env=env, params=env.default_params, id=env_id), request)


def _adapted(env: Any, env_id: str) -> JaxEnv[Any, Any]:
    if gymnax_adapter.is_gymnax(env):
        return gymnax_adapter.GymnaxEnv(env)
    if not isinstance(env, JaxEnv):
        raise EnvError(
            f"The creator of {env_id} must return a JaxEnv or a gymnasium.Env, got {env!r}."
        )
    return env


def _from_class(cls: type, request: Request, env_id: str) -> Made:
    """An instance from the constructor's arguments in the config, params from the rest."""
    if gymnasium_adapter.is_host_class(cls):
        return gymnasium_adapter.from_class(cls, request, env_id)
    if not (issubclass(cls, JaxEnv) or gymnax_adapter.is_gymnax_class(cls)):
        raise EnvError(f"{env_id} is neither a JaxEnv class nor a gymnasium.Env class.")
    context = request.context
    parameters = inspect.signature(cls).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    arguments = {p.name: context[p.name] for p in named if p.name in context}
    check_given(env_id, named, arguments)
    env = _adapted(_instance(cls, arguments), env_id)
    rest = {key: value for key, value in context.items() if key not in arguments}
    params = override_params(env_id, env.default_params, rest, [p.name for p in named])
    return _with_time_limit(MadeEnv(env=env, params=params, id=env_id), request)


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


def _with_time_limit(made: MadeEnv, request: Request) -> MadeEnv:
    env, limit = made.env, request.max_episode_steps
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
        there = f" Run it in the folder that holds {error.name}.py, or put that on PYTHONPATH."
        raise EnvError(
            f"Cannot import the environment {path!r}: {error}.{there if absent else ''}"
        ) from error
    except ImportError as error:
        raise EnvError(f"Cannot import the environment {path!r}: {error}.") from error
    if name not in vars(module):
        raise EnvError(f"Module {module_name!r} has no {name!r}.{did_you_mean(name, vars(module))}")
    return vars(module)[name]


def _held(found: Any, path: str) -> Any:
    """What a class path names, if it may be called: a class is looked at where it is made.

    Raises:
        EnvError: A function that no creator can be.
    """
    if isinstance(found, type) or not callable(found) or isinstance(found, JaxEnv):
        return found
    named, defined = path.replace(":", "."), str(getattr(found, "__module__", ""))
    roots = {named.split(".")[0], defined.split(".")[0]}
    try:
        takes_context = not inspect.isbuiltin(found) and not roots & sys.stdlib_module_names
        inspect.signature(found).bind(EnvContext())
    except (TypeError, ValueError):
        takes_context = False
    if not takes_context:
        raise EnvError(
            f"{path!r} names {found!r}, which is no environment: a class path names a subclass of "
            "JaxEnv or gymnasium.Env, or a function of yours that takes an EnvContext and returns one."
        )
    return found


def _describe(spec: Any) -> str:
    if isinstance(spec, JaxEnv):
        return spec.name
    if isinstance(spec, gymnasium.Env) and spec.spec is not None:
        return spec.spec.id
    named = spec if isinstance(spec, type) or inspect.isfunction(spec) else type(spec)
    return f"{named.__module__}:{named.__qualname__}"


def _unknown(spec: str) -> UnknownNameError:
    known = [*list_envs(), *OWN_ENVS, *gymnax_adapter.ENV_IDS, *gymnasium.registry]
    family = next((name for name in _WITHOUT_ADAPTER if name in spec.lower()), None)
    if family is not None:
        return UnknownNameError(f"Unknown environment {spec!r}. {_WITHOUT_ADAPTER[family]}")
    return UnknownNameError(
        f"Unknown environment {spec!r}.{did_you_mean(spec, known)} 'jaxrl list envs' names jaxrl's own; "
        "an id that a package registers with gymnasium is known once its module is imported, or as "
        f"'module:{spec.rpartition(':')[2]}'; a class is 'module:Class'."
    )
