"""Environment registry: ids, class paths, classes, instances and creators become environments."""

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, TypeAlias, TypeVar

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from jaxrl.core.types import PyTree
from jaxrl.envs.adapters import gymnasium as gymnasium_adapter
from jaxrl.envs.adapters import gymnax as gymnax_adapter
from jaxrl.envs.adapters.pettingzoo import is_pettingzoo, is_pettingzoo_class
from jaxrl.envs.adapters.table import (
    ADAPTERS,
    WITHOUT_ADAPTER,
    explain_making,
    find_adapter,
    find_maker,
    find_suite_advice,
    get_module,
    split_id,
)
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.catalog import (
    BUILTIN_ENVS,
    BUILTIN_HOST_ENVS,
    BUILTIN_MULTI_ENVS,
)
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import EnvRequest, MadeHostEnv
from jaxrl.envs.multi.base import MultiAgentJaxEnv
from jaxrl.envs.multi.host_env import MultiAgentEnv, is_multi_agent_class, is_multi_agent_env
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.envs.multi.made import MadeMultiEnv, MultiTimeLimit
from jaxrl.envs.params import check_required, override_params
from jaxrl.envs.wrappers import HasTimeLimit, TimeLimit, check_max_episode_steps
from jaxrl.errors import EnvError, UnknownNameError, did_you_mean

if TYPE_CHECKING:
    from jaxrl.envs.model import EnvModel

AnyEnv: TypeAlias = (
    JaxEnv[Any, Any] | gymnasium.Env[Any, Any] | MultiAgentJaxEnv[Any, Any] | MultiAgentEnv
)
EnvClass: TypeAlias = (
    type[JaxEnv[Any, Any]]
    | type[gymnasium.Env[Any, Any]]
    | type[MultiAgentJaxEnv[Any, Any]]
    | type[MultiAgentEnv]
)
EnvCreator: TypeAlias = Callable[[EnvContext], AnyEnv]
EnvSpec: TypeAlias = str | EnvClass | AnyEnv | EnvCreator

_registered: dict[str, EnvCreator | EnvClass] = {}
_CATALOG = {**BUILTIN_ENVS, **BUILTIN_MULTI_ENVS, **BUILTIN_HOST_ENVS}

RESERVED_PREFIXES = ("jaxrl", *ADAPTERS)
_ADAPTED_PACKAGES = {adapter.package for adapter in ADAPTERS.values()}

_CLASS_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*[.:][A-Za-z_]\w*")
_PACKAGES = {"babyai": "minigrid", "highway": "highway_env"}
"""Packages by the first word of the ids that they register, where these differ."""
_GYMNASIUM_ID = re.compile(r"([\w.]+:)?([\w.-]+/)?[\w.-]+-v\d+")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MadeEnv:
    """An environment ready to run, with its time limit applied and its parameters set.

    `notes` are sentences for `config.explain()`; `model` is that of `envs.model.with_state`, None
    without.
    """

    is_jax: ClassVar[bool] = True
    is_atari: ClassVar[bool] = False

    env: JaxEnv[Any, Any]
    params: PyTree
    id: str
    notes: tuple[str, ...] = ()
    model: "EnvModel | None" = None

    @property
    def spaces(self) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        """Observation space and action space."""
        return self.env.get_spaces(self.params)

    @property
    def max_episode_steps(self) -> int | None:
        """Number of steps after which an episode is truncated, None for no limit."""
        if isinstance(self.env, HasTimeLimit):
            return self.env.get_time_limit(self.params)
        return self.env.max_episode_steps


AnyMadeEnv: TypeAlias = MadeEnv | MadeHostEnv
Made: TypeAlias = AnyMadeEnv | MadeMultiEnv | MadeMultiHostEnv
MadeT = TypeVar("MadeT", MadeEnv, MadeHostEnv, MadeMultiEnv, AnyMadeEnv, Made)


def register_env(name: str, creator: EnvCreator | EnvClass) -> None:
    """Register an environment under a name, replacing any previous registration.

    Args:
        name: Id without the prefixes `gymnasium:`, `gymnax:` and `jaxrl:`; it takes precedence over
            built-in ids.
        creator: Function of an `EnvContext` (the `env_config`) that returns a `JaxEnv` or a
            `gymnasium.Env`, or a class of either.

    Raises:
        EnvError: If the name is not a string, empty or prefixed, or the creator is not callable.
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


def get_registered_env(name: str) -> EnvCreator | EnvClass | None:
    """Return the creator or class registered under a name, None if there is none."""
    return _registered.get(name)


def list_envs() -> list[str]:
    """List registered names, built-in ids and gymnax's ids; `gymnasium:<id>` gives gymnasium's."""
    own = [name if not name.startswith("probe-") else f"jaxrl:{name}" for name in BUILTIN_ENVS]
    own += [f"jaxrl:{name}" for name in BUILTIN_HOST_ENVS]
    return [*sorted(_registered), *own, *(f"gymnax:{name}" for name in gymnax_adapter.ENV_IDS)]


def list_multi_envs() -> list[str]:
    """List the built-in multi-agent environments; those registered are in `list_envs`."""
    return [
        name if not name.startswith("probe-") else f"jaxrl:{name}" for name in BUILTIN_MULTI_ENVS
    ]


def is_multi_agent_spec(spec: object) -> bool:
    """Return whether a spec is known, without being called, to make an environment of several agents."""
    if isinstance(spec, str):
        kind, key = _look_up(spec)
        if kind == "registered":
            return is_multi_agent_spec(_registered[key])
        if kind == "built-in":
            return key in BUILTIN_MULTI_ENVS
        if kind == "package":
            prefix, name = key
            is_multi_id = prefix == "gymnasium" and gymnasium_adapter.is_multi_agent_id(name)
            return is_multi_id or ADAPTERS[prefix].is_multi
        if kind == "gymnasium":
            return gymnasium_adapter.is_multi_agent_id(spec)
        if kind != "path":
            return False
        try:
            return is_multi_agent_spec(_load(spec))
        except (EnvError, UnknownNameError):  # raised again when it is made
            return False
    if isinstance(spec, type):
        is_host = is_multi_agent_class(spec) or is_pettingzoo_class(spec)
        return is_host or issubclass(spec, MultiAgentJaxEnv) or _is_adapted(spec, is_multi=True)
    is_host = is_multi_agent_env(spec) or is_pettingzoo(spec)
    return is_host or isinstance(spec, MultiAgentJaxEnv) or _is_adapted(spec, is_multi=True)


def make(
    spec: EnvSpec,
    env_config: Mapping[str, Any] | None = None,
    *,
    max_episode_steps: int | None = None,
    is_atari: bool | None = None,
) -> AnyMadeEnv:
    """Make an environment of a single agent and apply its time limit.

    Making a JAX environment twice from equal arguments gives the same or an equal object, so that
    programs compiled for one serve the other (except for creators, which are called each time). For
    a gymnasium environment, one instance is made and closed to read its spaces.

    Args:
        spec: An id ("CartPole-v1", "jaxrl:...", "gymnax:...", "gymnasium:...", or a registered
            name), a class path ("package.module:Class" or "package.module.Class"), a class or an
            instance of `JaxEnv` or `gymnasium.Env`, or a creator that is called with an
            `EnvContext`.
        env_config: Fields of a JAX environment's params and arguments of the constructor; creators
            receive it as their `EnvContext`.
        max_episode_steps: Time limit that replaces the environment's own.
        is_atari: Whether this is an Atari game, which is preprocessed and whose rewards are
            clipped; None to detect it.

    Raises:
        UnknownNameError: If no environment, parameter or constructor argument has the name.
        EnvError: If the environment cannot be made, or has several agents.
    """
    made = make_any(spec, env_config, max_episode_steps=max_episode_steps, is_atari=is_atari)
    if isinstance(made, MadeMultiHostEnv):
        raise EnvError(
            f"{made.id} has several agents ({_few(made.possible_agents)}): make it with "
            "make_multi_host(); in a config, .multi_agent(policies={'default_policy'}) says so, or its "
            "class in place of a creator."
        )
    if isinstance(made, MadeMultiEnv):
        raise EnvError(
            f"{made.id} has several agents ({_few(made.env.possible_agents)}): make it with "
            "make_multi(), or give a team of them one module's place with group_agents()."
        )
    return made


def make_multi(
    spec: EnvSpec,
    env_config: Mapping[str, Any] | None = None,
    *,
    max_episode_steps: int | None = None,
) -> MadeMultiEnv:
    """Make an environment of several agents and apply its time limit.

    Args:
        spec: An id, a class path, a class or an instance of `MultiAgentJaxEnv`, or a creator of
            one, as in `make`.
        env_config: Fields of the params and arguments of the constructor.
        max_episode_steps: Time limit that replaces the environment's own.

    Raises:
        UnknownNameError: If no environment, parameter or constructor argument has the name.
        EnvError: If the environment cannot be made, or has a single agent.
    """
    made = make_any(spec, env_config, max_episode_steps=max_episode_steps)
    if isinstance(made, MadeMultiHostEnv):
        raise EnvError(f"{made.id} is stepped in Python: make it with make_multi_host().")
    return made if isinstance(made, MadeMultiEnv) else _refuse_single(made)


def make_multi_host(
    spec: EnvSpec,
    env_config: Mapping[str, Any] | None = None,
    *,
    max_episode_steps: int | None = None,
) -> MadeMultiHostEnv:
    """Make an environment of several agents that is stepped in Python.

    Args:
        spec: An id, a class path, a class or an instance of `MultiAgentEnv` or of RLlib's class of
            that name, or a creator of one, as in `make`.
        env_config: Arguments of the constructor, or the creator's `EnvContext`.
        max_episode_steps: Time limit that replaces the environment's own.

    Raises:
        UnknownNameError: If no environment or constructor argument has the name.
        EnvError: If the environment cannot be made, has a single agent, or is written in JAX.
    """
    made = make_any(spec, env_config, max_episode_steps=max_episode_steps)
    if isinstance(made, MadeMultiEnv):
        raise EnvError(f"{made.id} is written in JAX: make it with make_multi().")
    return made if isinstance(made, MadeMultiHostEnv) else _refuse_single(made)


def _refuse_single(made: AnyMadeEnv) -> NoReturn:
    raise EnvError(
        f"{made.id} has a single agent: make_multi_agent({made.id!r}) makes a class of "
        "environments with any number of its copies."
    )


def make_any(
    spec: EnvSpec,
    env_config: Mapping[str, Any] | None = None,
    *,
    max_episode_steps: int | None = None,
    is_atari: bool | None = None,
) -> Made:
    """Make an environment of one or of several agents; see `make` and `make_multi`.

    Raises:
        UnknownNameError: If no environment, parameter or constructor argument has the name.
        EnvError: If the environment cannot be made.
    """
    if max_episode_steps is not None:
        max_episode_steps = check_max_episode_steps(max_episode_steps)
    context = env_config if isinstance(env_config, EnvContext) else EnvContext(env_config)
    request = EnvRequest(context=context, max_episode_steps=max_episode_steps, is_atari=is_atari)
    if isinstance(spec, str):
        return _from_string(spec, request)
    return _from_object(spec, request, describe_spec(spec))


_Kind: TypeAlias = Literal["registered", "built-in", "package", "gymnasium", "path", "unknown"]


def _look_up(spec: str) -> tuple[_Kind, Any]:
    """Return where the environment of a name is found, and its key there.

    The key of a package's is its prefix and its name.
    """
    prefix, _, name = spec.partition(":")
    if spec in _registered:
        return "registered", spec
    if prefix == "jaxrl" and name:
        return ("built-in", name) if name in _CATALOG else ("unknown", None)
    if spec in BUILTIN_ENVS or spec in BUILTIN_MULTI_ENVS:
        return "built-in", spec
    if name and (prefix in WITHOUT_ADAPTER or prefix in _ADAPTED_PACKAGES - set(ADAPTERS)):
        return "unknown", None
    if (found := split_id(spec)) is not None:
        return "package", found
    if spec in gymnax_adapter.ENV_IDS:
        return "package", ("gymnax", spec)
    if _GYMNASIUM_ID.fullmatch(spec) and gymnasium_adapter.has_env(spec):
        return "gymnasium", spec
    return ("path", spec) if _CLASS_PATH.fullmatch(spec) else ("unknown", None)


def _from_string(spec: str, request: EnvRequest) -> Made:
    kind, key = _look_up(spec)
    match kind:
        case "registered":
            return _from_object(_registered[key], request, spec)
        case "built-in":
            made, note = _from_catalog(key, request, spec), None
            if key == spec and (spec in gymnasium.registry or spec in gymnax_adapter.ENV_IDS):
                note = "jaxrl's own JAX implementation (not gymnasium's, not gymnax's)."
        case "package":
            prefix, name = key
            made = _from_adapter(prefix, name, request, spec)
            note = "gymnax's implementation." if name == spec else None
        case "gymnasium":
            made = gymnasium_adapter.make(spec, request, spec)
            note = "gymnasium's implementation, stepped on the host."
        case "path":
            return _from_object(check_creator(_load(spec), spec), request, spec)
        case _:
            raise _unknown_env_error(spec)
    return made if note is None else _with_note(made, f"{spec}: {note}")


def find_imports(spec: str) -> tuple[str | None, str | None]:
    """Find the imports that making an environment by name requires, in the lookup order of `make`.

    Returns:
        Module in front of an id or class path, and the class path; each None if there is none.
    """
    kind, key = _look_up(spec)
    if kind == "package":
        return ADAPTERS[key[0]].find_import(key[1]), None
    if kind == "gymnasium":
        return spec.rpartition(":")[0] or None, None
    if kind == "path":
        module, _, name = spec.replace(":", ".").rpartition(".")
        return module, f"{module}:{name}"
    return None, None


def _with_note(made: MadeT, note: str) -> MadeT:
    return dataclasses.replace(made, notes=(note, *made.notes))


def _from_adapter(prefix: str, name: str, request: EnvRequest, env_id: str) -> Made:
    """Make an environment of another package; equal arguments give the same object."""
    if ADAPTERS[prefix].is_host:
        with explain_making(prefix, env_id):
            made = get_module(prefix).make(name, request, env_id)
        if isinstance(made, MadeHostEnv | MadeMultiHostEnv):
            return made
        env = gymnasium_adapter.create_env(env_id, made, request.context)
        return gymnasium_adapter.from_creator(made, env, request, env_id)
    make, context = find_maker(prefix, name), request.context
    parameters = list(inspect.signature(make).parameters.values())[1:]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = [p.name for p in parameters]
    arguments = {key: context[key] for key in context if takes_any or key in names}
    with explain_making(prefix, env_id, arguments):
        env = get_instance(make, arguments, name)
    if isinstance(env, type):
        return _from_class(env, request, env_id)
    env = _adapt(env, env_id)
    rest = {key: value for key, value in context.items() if key not in arguments}
    params = override_params(env_id, env.default_params, rest, names)
    return _wrap(env, params, env_id, request)


def _from_catalog(name: str, request: EnvRequest, env_id: str) -> Made:
    entry = _CATALOG[name]
    merged = request.context.copy_with_overrides({**entry.arguments, **request.context})
    return _from_object(_load(entry.path), dataclasses.replace(request, context=merged), env_id)


def _from_object(spec: object, request: EnvRequest, env_id: str) -> Made:
    """Make an environment from a class, an instance or a creator."""
    gymnasium_adapter.refuse_vector(spec, env_id)
    if isinstance(spec, type):
        return _from_class(spec, request, env_id)
    if gymnasium_adapter.is_host_env(spec):
        return gymnasium_adapter.from_instance(spec, request, env_id)
    if isinstance(spec, JaxEnv | MultiAgentJaxEnv) or _is_adapted(spec):
        env = _adapt(spec, env_id)
        params = override_params(env_id, env.default_params, request.context)
        return _wrap(env, params, env_id, request)
    _refuse_suite(spec, env_id)
    if not callable(spec):
        raise EnvError(
            f"An environment must be an id, a class path, a class or instance of JaxEnv or "
            f"gymnasium.Env, or a creator, got {spec!r}."
        )
    spec = gymnasium_adapter.adapt_creator(spec, request.context, env_id)
    made = gymnasium_adapter.call_creator(env_id, spec, request.context)
    gymnasium_adapter.refuse_vector(made, env_id)
    if gymnasium_adapter.is_host_env(made):
        return gymnasium_adapter.from_creator(spec, made, request, env_id)
    env = _adapt(made, env_id)
    return _wrap(env, env.default_params, env_id, request)


def _is_adapted(spec: object, *, is_multi: bool | None = None) -> bool:
    """Return whether this is a compiled package's instance or class, or its pair with parameters."""
    prefix = find_adapter(spec[0] if isinstance(spec, tuple) and len(spec) == 2 else spec)
    return prefix is not None and is_multi in (None, ADAPTERS[prefix].is_multi)


def _adapt(env: object, env_id: str) -> JaxEnv[Any, Any] | MultiAgentJaxEnv[Any, Any]:
    if isinstance(env, JaxEnv | MultiAgentJaxEnv):
        return env
    # gymnax's and XLand-MiniGrid's functions return environment and parameters.
    given = env if isinstance(env, tuple) and len(env) == 2 else (env,)
    prefix = find_adapter(given[0])
    if prefix is not None:
        with explain_making(prefix, env_id):
            return get_module(prefix).adapt(*given)
    _refuse_suite(env, env_id)
    raise EnvError(
        f"The creator of {env_id} must return a JaxEnv, a MultiAgentJaxEnv or a gymnasium.Env, "
        f"got {env!r}{'; shimmy wraps the old gym API' if hasattr(env, 'reset') else ''}."
    )


def _refuse_suite(env: object, env_id: str) -> None:
    """Raise for an instance or a class of a suite without an adapter, and say what to use instead."""
    advice = find_suite_advice(env)
    if advice is not None:
        raise EnvError(f"{env_id}: {advice}")


def _from_class(cls: type, request: EnvRequest, env_id: str) -> Made:
    """Make an environment from a class; the config holds constructor arguments and params."""
    if gymnasium_adapter.is_host_class(cls):
        return gymnasium_adapter.from_class(cls, request, env_id)
    if not (issubclass(cls, JaxEnv | MultiAgentJaxEnv) or _is_adapted(cls)):
        _refuse_suite(cls, env_id)
        raise EnvError(
            f"{env_id} is neither a JaxEnv class, nor a MultiAgentJaxEnv class, nor a gymnasium.Env "
            "class."
        )
    context = request.context
    parameters = inspect.signature(cls).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    arguments = {p.name: context[p.name] for p in named if p.name in context}
    check_required(env_id, named, arguments)
    env = _adapt(get_instance(cls, arguments), env_id)
    param_values = {key: value for key, value in context.items() if key not in arguments}
    params = override_params(env_id, env.default_params, param_values, [p.name for p in named])
    return _wrap(env, params, env_id, request)


def _wrap(
    env: JaxEnv[Any, Any] | MultiAgentJaxEnv[Any, Any],
    params: PyTree,
    env_id: str,
    request: EnvRequest,
) -> MadeEnv | MadeMultiEnv:
    """Return the environment with its parameters, and its time limit applied."""
    if isinstance(env, JaxEnv):
        return _with_time_limit(MadeEnv(env=env, params=params, id=env_id), request)
    limit = request.max_episode_steps
    if isinstance(env, MultiTimeLimit):
        env, limit = env.env, limit or env.max_episode_steps
    if limit is not None and env.time_limit_fault is not None:
        raise EnvError(
            f"max_episode_steps={limit} cannot truncate {env_id}: {env.time_limit_fault}."
        )
    limit = limit or env.max_episode_steps
    made = MadeMultiEnv(
        env=env if limit is None else MultiTimeLimit(env, limit), params=params, id=env_id
    )
    return made if env.note is None else _with_note(made, env.note)


def _with_time_limit(made: MadeEnv, request: EnvRequest) -> MadeEnv:
    env, limit = made.env, request.max_episode_steps
    if isinstance(env, TimeLimit):
        env, limit = env.env, limit or env.max_episode_steps
    if isinstance(env, HasTimeLimit):
        if limit is None:
            return made
        return dataclasses.replace(made, params=env.with_time_limit(made.params, limit))
    limit = limit or env.max_episode_steps
    return made if limit is None else dataclasses.replace(made, env=TimeLimit(env, limit))


def _load(path: str) -> object:
    """Import the object named by "module:name" or "module.name".

    Raises:
        UnknownNameError: If there is no such module, and the path may be a mistyped id.
        EnvError: If the import fails, or the module has no such name.
    """
    module_name, _, name = path.replace(":", ".").rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        is_absent = error.name is not None and f"{module_name}.".startswith(f"{error.name}.")
        if is_absent and ":" not in path:
            raise _unknown_env_error(path) from error
        hint = f" Run it in the folder that holds {error.name}.py, or put that on PYTHONPATH."
        raise EnvError(
            f"Cannot import the environment {path!r}: {error}.{hint if is_absent else ''}"
        ) from error
    except ImportError as error:
        raise EnvError(f"Cannot import the environment {path!r}: {error}.") from error
    if name not in vars(module) and name not in vars(module).get("__all__", ()):
        raise EnvError(f"Module {module_name!r} has no {name!r}.{did_you_mean(name, vars(module))}")
    return getattr(module, name)


def _few(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown}, ... {len(names)} in all"


def _spell_minatar(spec: str) -> str:
    """Return jaxrl's spelling of an id of MinAtar's own package; other ids are unchanged."""
    name = spec.removeprefix("minatar/")
    return spec if name == spec else f"{name.partition('-')[0]}-minatar"


def _find_package(spec: str) -> str | None:
    """Return the installed package that an id of gymnasium begins with, None if there is none."""
    word = re.split(r"\W", spec.lower(), maxsplit=1)[0]
    package = _PACKAGES.get(word, word)
    if not _GYMNASIUM_ID.fullmatch(spec) or ":" in spec or package in sys.stdlib_module_names:
        return None
    if not package.isidentifier() or package in ("gymnasium", "jaxrl"):
        return None
    return package if importlib.util.find_spec(package) is not None else None


def _unknown_env_error(spec: str) -> UnknownNameError:
    known = [
        *list_envs(),
        *list_multi_envs(),
        *BUILTIN_ENVS,
        *gymnax_adapter.ENV_IDS,
        *gymnasium.registry,
    ]
    family = next((name for name in WITHOUT_ADAPTER if name in spec.lower()), None)
    if family is not None:
        return UnknownNameError(f"Unknown environment {spec!r}. {WITHOUT_ADAPTER[family]}")
    for prefix, adapter in ADAPTERS.items():
        if adapter.package in spec.lower() and spec.partition(":")[0] not in ADAPTERS:
            return UnknownNameError(
                f"Unknown environment {spec!r}. The ids of {adapter.title} have a prefix, as in "
                f"{prefix}:{adapter.example}."
            )
    spelled = {name.lower(): name for name in reversed(known)}
    found = did_you_mean(_spell_minatar(spec.lower()), spelled)
    hint = f" Did you mean {spelled[found.split(chr(39))[1]]!r}?" if found else ""
    if spec.startswith("jaxrl:"):
        return UnknownNameError(f"jaxrl has no environment {spec!r}.{hint} See 'jaxrl list envs'.")
    package = _find_package(spec)
    if package is not None:
        return UnknownNameError(
            f"Unknown environment {spec!r}.{hint} If the installed package {package} registers it: "
            f"{f'{package}:{spec}'!r}."
        )
    return UnknownNameError(
        f"Unknown environment {spec!r}.{hint} "
        "'jaxrl list envs' lists jaxrl's own; a name of register_env must be registered in this "
        "process first; an id that a package registers with gymnasium is "
        "available once its module is imported, or as "
        f"'module:{spec.rpartition(':')[2]}'; a class is 'module:Class'."
    )


def check_creator(found: object, path: str) -> object:
    """Return the object of a class path; classes are checked when they are instantiated.

    Raises:
        EnvError: If it is a function that cannot be a creator.
    """
    is_env = isinstance(found, JaxEnv | MultiAgentJaxEnv)
    if isinstance(found, type) or not callable(found) or is_env:
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
            "JaxEnv or gymnasium.Env, or a function that takes an EnvContext and returns one."
        )
    return found


def describe_spec(spec: object) -> str:
    """Return the name of an environment for messages."""
    if isinstance(spec, JaxEnv | MultiAgentJaxEnv):
        return spec.name
    if isinstance(spec, gymnasium.Env) and isinstance(spec.spec, GymnasiumSpec):
        return spec.spec.id
    named = spec if isinstance(spec, type) or inspect.isfunction(spec) else type(spec)
    return f"{named.__module__}:{named.__qualname__}"


def get_instance(
    make: Callable[..., object], arguments: Mapping[str, object], *names: str
) -> object:
    """Return the result of a class or a function for these arguments, cached if they are hashable."""
    try:
        hash(tuple(arguments.values()))
    except TypeError:
        return make(*names, **arguments)
    # The types keep True apart from 1 and 1.0.
    types = tuple(type(value) for value in arguments.values())
    return _make_instance(make, names, tuple(arguments.items()), types)


@functools.cache
def _make_instance(
    make: Callable[..., object],
    names: tuple[str, ...],
    arguments: tuple[tuple[str, object], ...],
    types: tuple[type, ...],
) -> object:
    del types
    return make(*names, **dict(arguments))
