"""Packages of environments, by the prefix of their ids: a row each, and a module of this folder.

The module, which is imported when it is first used, defines `list_ids()` and `make`, and `adapt(env)`
where the package's own instances can be given. `make(name, /, **arguments)` of a compiled package
returns a `JaxEnv`, a `MultiAgentJaxEnv`, or a class of its own that `adapt` takes; entries of
`env_config` that are no argument of it are parameters of the environment. A package on the host
defines `make(name, request, env_id)`, which returns the made environment or a creator of it.
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
    keys of kept programs. `refused` has the reason for each id that is never made, `find_import`
    returns the module that an id imports beside the package.
    """

    title: str
    package: str
    example: str
    install: str
    distributions: tuple[str, ...] = ()
    is_host: bool = False
    is_multi: bool = False
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    find_import: Callable[[str], str | None] = lambda name: None

    def is_installed(self) -> bool:
        """Return whether the package can be imported, without importing it."""
        return importlib.util.find_spec(self.package) is not None


def _jax(title: str, name: str, example: str, *others: str, **fields: Any) -> Adapter:
    """Describe a compiled package whose module, distribution and extra have one name."""
    defaults = {"package": name, "install": f"pip install 'jaxrl[{name}]'"}
    versions = (name, *others)
    return Adapter(title=title, example=example, distributions=versions, **defaults | fields)


def _host(title: str, package: str, example: str, install: str, **fields: Any) -> Adapter:
    return Adapter(
        title=title, package=package, example=example, install=install, is_host=True, **fields
    )


_MNIST = (
    "it downloads its data when it is made; SimpleBandit-bsuite and BernoulliBandit-misc are bandits "
    "without data"
)
_SOKOBAN = (
    "it downloads its levels when it is made; a creator of Sokoban with another generator, such as "
    "SimpleSolveGenerator(), is taken"
)
_GYMNAX = {"install": "pip install 'gymnax>=1.0,<2' six", "refused": {"MNISTBandit-bsuite": _MNIST}}

ADAPTERS: Mapping[str, Adapter] = {
    "gymnax": _jax("gymnax", "gymnax", "Catch-bsuite", **_GYMNAX),
    "brax": _jax("Brax", "brax", "ant", "mujoco", "mujoco-mjx"),
    "playground": _jax(
        *("MuJoCo Playground", "playground", "CartpoleBalance", "mujoco", "mujoco-mjx"),
        package="mujoco_playground",
    ),
    "craftax": _jax("Craftax", "craftax", "Craftax-Symbolic-v1"),
    "jumanji": _jax("Jumanji", "jumanji", "Snake-v1", refused={"Sokoban-v0": _SOKOBAN}),
    "xminigrid": _jax("XLand-MiniGrid", "xminigrid", "MiniGrid-Empty-8x8"),
    "jaxmarl": _jax("JaxMARL", "jaxmarl", "SMAX", is_multi=True),
    "pgx": _jax("pgx", "pgx", "connect_four", is_multi=True),
    "gymnasium": _host(
        *("gymnasium", "gymnasium", "LunarLander-v3", "pip install gymnasium"),
        find_import=lambda name: name.rpartition(":")[0] or None,
    ),
    "envpool": _host("EnvPool", "envpool", "HalfCheetah-v5", "pip install 'jaxrl[envpool]'"),
    "pettingzoo": _host(
        *("PettingZoo", "pettingzoo", "sisl/pursuit_v5", "pip install 'jaxrl[pettingzoo]'"),
        is_multi=True,
        find_import=get_package,
    ),
    "openspiel": _host(
        *("OpenSpiel", "pyspiel", "leduc_poker", "pip install 'jaxrl[openspiel]'"), is_multi=True
    ),
}


def split_id(spec: str) -> tuple[str, str] | None:
    """Return the prefix and the name of an id of one of the packages, None for any other id."""
    prefix, _, name = spec.partition(":")
    return (prefix, name) if name and prefix in ADAPTERS else None


def get_module(prefix: str) -> Any:
    """Import the module of a prefix."""
    return importlib.import_module(f"jaxrl.envs.adapters.{prefix}")


def find_adapter(env: object) -> str | None:
    """Return the prefix of the compiled package that an instance or a class is of, None if of none."""
    bases = env.__mro__ if isinstance(env, type) else type(env).__mro__
    packages = [base.__module__.partition(".")[0] for base in bases]
    return next(
        (
            prefix
            for package in packages
            for prefix, adapter in ADAPTERS.items()
            if adapter.package == package and not adapter.is_host
        ),
        None,
    )


def list_ids(prefix: str) -> list[str]:
    """List the ids of a package, without its prefix.

    Raises:
        EnvError: If the package is not installed, or too new.
    """
    with _explain_missing(prefix, prefix):
        names = get_module(prefix).list_ids()
    return [name for name in names if name not in ADAPTERS[prefix].refused]


def find_maker(prefix: str, name: str) -> Callable[..., Any]:
    """Return the function that makes environments of a compiled package by their names.

    Raises:
        UnknownNameError: If the package has no environment of this name.
        EnvError: If the package is not installed, or the environment is never made.
    """
    adapter, env_id = ADAPTERS[prefix], f"{prefix}:{name}"
    if name in adapter.refused:
        raise EnvError(f"{env_id} is refused: {adapter.refused[name]}.")
    with _explain_missing(prefix, env_id):
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
