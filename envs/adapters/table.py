"""Packages of environments, by the prefix of their ids: a row each, and a module of this folder.

The module, which is imported when it is first used, defines `list_ids()` and `make`, and `adapt(env)`
where the package's own instances can be given. `make(name, /, **arguments)` of a compiled package
returns a `JaxEnv`, a `MultiAgentJaxEnv`, or a class of its own that `adapt` takes; entries of
`env_config` that are no argument of it are parameters of the environment. A package on the host
defines `make(name, request, env_id)`, which returns the made environment or a creator of it. A module
may define `find_refused()`, which returns the reason for each id that is never made.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
from collections.abc import Callable, Generator, Mapping
from typing import Any

from jaxrl.envs.adapters.pettingzoo import get_package
from jaxrl.errors import (
    EnvError,
    JaxrlError,
    UnknownNameError,
    did_you_mean,
    summarize_exception,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adapter:
    """Environments of one package.

    `distributions` are those whose code a compiled program holds, so that their versions are in the
    keys of kept programs. `find_import` returns the module that an id imports beside the package.
    """

    title: str
    package: str
    example: str
    install: str
    distributions: tuple[str, ...] = ()
    is_host: bool = False
    is_multi: bool = False
    find_import: Callable[[str], str | None] = lambda name: None

    def is_installed(self) -> bool:
        """Return whether the package can be imported, without importing it."""
        return importlib.util.find_spec(self.package) is not None


def _extra(name: str) -> str:
    return f"pip install 'jaxrl[{name}]'"


ADAPTERS: Mapping[str, Adapter] = {
    "gymnax": Adapter(
        title="gymnax",
        package="gymnax",
        example="Catch-bsuite",
        install="pip install 'gymnax>=1.0,<2' six",
        distributions=("gymnax",),
    ),
    "brax": Adapter(
        title="Brax",
        package="brax",
        example="ant",
        install=_extra("brax"),
        distributions=("brax", "mujoco", "mujoco-mjx"),
    ),
    "playground": Adapter(
        title="MuJoCo Playground",
        package="mujoco_playground",
        example="CartpoleBalance",
        install=_extra("playground"),
        distributions=("playground", "mujoco", "mujoco-mjx"),
    ),
    "craftax": Adapter(
        title="Craftax",
        package="craftax",
        example="Craftax-Symbolic-v1",
        install=_extra("craftax"),
        distributions=("craftax",),
    ),
    "jumanji": Adapter(
        title="Jumanji",
        package="jumanji",
        example="Snake-v1",
        install=_extra("jumanji"),
        distributions=("jumanji",),
    ),
    "xminigrid": Adapter(
        title="XLand-MiniGrid",
        package="xminigrid",
        example="MiniGrid-Empty-8x8",
        install=_extra("xminigrid"),
        distributions=("xminigrid",),
    ),
    "jaxmarl": Adapter(
        title="JaxMARL",
        package="jaxmarl",
        example="SMAX",
        install=_extra("jaxmarl"),
        distributions=("jaxmarl",),
        is_multi=True,
    ),
    "pgx": Adapter(
        title="pgx",
        package="pgx",
        example="connect_four",
        install=_extra("pgx"),
        distributions=("pgx",),
        is_multi=True,
    ),
    "gymnasium": Adapter(
        title="gymnasium",
        package="gymnasium",
        example="LunarLander-v3",
        install="pip install gymnasium",
        is_host=True,
        find_import=lambda name: name.rpartition(":")[0] or None,
    ),
    "envpool": Adapter(
        title="EnvPool",
        package="envpool",
        example="HalfCheetah-v5",
        install=_extra("envpool"),
        is_host=True,
    ),
    "pettingzoo": Adapter(
        title="PettingZoo",
        package="pettingzoo",
        example="sisl/pursuit_v5",
        install=_extra("pettingzoo"),
        is_host=True,
        is_multi=True,
        find_import=get_package,
    ),
    "openspiel": Adapter(
        title="OpenSpiel",
        package="pyspiel",
        example="leduc_poker",
        install=_extra("openspiel"),
        is_host=True,
        is_multi=True,
    ),
}

_AS_JAX_ENV = "write its reset and step as a JaxEnv, see docs/guides/custom_environment.md"
WITHOUT_ADAPTER: Mapping[str, str] = {
    "navix": f"NAVIX has no adapter here: {_AS_JAX_ENV}, or take xminigrid:MiniGrid-Empty-8x8.",
    "kinetix": f"Kinetix has no adapter here: {_AS_JAX_ENV}.",
    "jaxatari": f"JAXAtari has no adapter here: {_AS_JAX_ENV}, or take ALE/Pong-v5.",
}
"""Packages without an adapter by their names, and the alternative to each."""


def split_id(spec: str) -> tuple[str, str] | None:
    """Return the prefix and the name of an id of one of the packages, None for any other id."""
    prefix, _, name = spec.partition(":")
    return (prefix, name) if name and prefix in ADAPTERS else None


def get_module(prefix: str) -> Any:
    """Import the module of a prefix."""
    return importlib.import_module(f"jaxrl.envs.adapters.{prefix}")


def find_adapter(env: object) -> str | None:
    """Return the prefix of the compiled package that an instance or a class is of, None if of none."""
    prefixes = {row.package: prefix for prefix, row in ADAPTERS.items() if not row.is_host}
    return next((prefixes[name] for name in _list_packages(env) if name in prefixes), None)


def find_suite_advice(env: object) -> str | None:
    """Return the alternative to an instance or a class of a package without an adapter, else None."""
    names = _list_packages(env)
    return next((WITHOUT_ADAPTER[name] for name in names if name in WITHOUT_ADAPTER), None)


def _list_packages(env: object) -> list[str]:
    """Return the packages of an instance's or a class's bases."""
    bases = env.__mro__ if isinstance(env, type) else type(env).__mro__
    return [base.__module__.partition(".")[0] for base in bases]


def list_ids(prefix: str) -> list[str]:
    """List the ids of a package, without its prefix.

    Raises:
        EnvError: If the package is not installed, or too new.
    """
    with _explain_missing(prefix, prefix):
        names = get_module(prefix).list_ids()
        refused = find_refused(prefix)
    return [name for name in names if name not in refused]


def find_refused(prefix: str) -> Mapping[str, str]:
    """Return the reason for each id of a package that is never made."""
    return getattr(get_module(prefix), "find_refused", dict[str, str])()


def find_maker(prefix: str, name: str) -> Callable[..., Any]:
    """Return the function that makes environments of a compiled package by their names.

    Raises:
        UnknownNameError: If the package has no environment of this name.
        EnvError: If the package is not installed, or the environment is never made.
    """
    adapter, env_id = ADAPTERS[prefix], f"{prefix}:{name}"
    with _explain_missing(prefix, env_id):
        refused = find_refused(prefix)
        if name in refused:
            raise EnvError(f"{env_id} is refused: {refused[name]}.")
        known = get_module(prefix).list_ids()
    if name not in known:
        raise UnknownNameError(
            f"{adapter.title} has no environment {name!r}.{did_you_mean(name, known)} Known: "
            f"{', '.join(known)}."
        )
    return get_module(prefix).make


@contextlib.contextmanager
def explain_making(
    prefix: str, env_id: str, arguments: Mapping[str, object] | None = None
) -> Generator[None]:
    """Turn what a package raises for an environment's arguments into a sentence.

    Raises:
        EnvError: If it raises.
    """
    try:
        with _explain_missing(prefix, env_id):
            yield
    except JaxrlError:
        raise
    except Exception as error:
        given = f" with env_config={dict(arguments)!r}" if arguments else ""
        raise EnvError(f"{env_id}{given}: {summarize_exception(error)}.") from error


@contextlib.contextmanager
def _explain_missing(prefix: str, env_id: str) -> Generator[None]:
    adapter = ADAPTERS[prefix]
    try:
        yield
    except ImportError as error:
        raise EnvError(
            f"{env_id} needs the package {(error.name or adapter.package)!r}, which cannot be imported "
            f"({error}): {adapter.install}."
        ) from error
