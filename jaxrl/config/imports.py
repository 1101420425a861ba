"""Import paths, `"module:name"`: what a setting may name by one, and who says that it is imported.

Importing a module runs it. So whatever a setting names by a path is held to what the setting takes
before anything of it is called and, while a config of somebody else's is read, to a `Trust`.
"""

import contextlib
import contextvars
import dataclasses
import functools
import importlib
import sys
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias, cast

from jaxrl.errors import CheckpointError, ConfigError
from jaxrl.moved import new_name

TrustSpec: TypeAlias = bool | str | Sequence[str] | None
"""Whether everything in a checkpoint is trusted, or which packages it may import."""

EVERYTHING = "all"
"""What stands for True on the command line."""

KNOWN_PACKAGES = ("jaxrl", "gymnasium", "gymnax")
"""Packages of which a class may be imported for anybody, where a setting names what it must be."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """What an import path of a setting may name; anything, unless it says so.

    Attributes:
        bases: Paths of classes, of which a class must be a subclass.
        methods: Names that a class must have.
    """

    bases: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()

    @property
    def names_classes(self) -> bool:
        """Whether it says what a class must be."""
        return bool(self.bases or self.methods)

    def holds(self, found: type) -> bool:
        """Whether a class is of this kind."""
        has_methods = all(callable(getattr(found, name, None)) for name in self.methods)
        bases = [_found(base) for base in self.bases]
        return has_methods and (not bases or issubclass(found, tuple(bases)))

    @property
    def wanted(self) -> str:
        """In words."""
        if self.bases:
            names = [base.rpartition(":")[2] for base in self.bases]
            return f"a subclass of {' or '.join(names)}"
        return f"a class with the methods {' and '.join(self.methods)}"


ANYTHING = Kind()
ENV = Kind(
    bases=(
        "jaxrl.envs.base:JaxEnv",
        "gymnasium:Env",
        "gymnax.environments.environment:Environment",
    )
)
RL_MODULE = Kind(bases=("jaxrl.modules.rl_module:RLModule",))
ALGORITHM = Kind(bases=("jaxrl.algorithm:Algorithm",))
ALGORITHM_CONFIG = Kind(bases=("jaxrl.config.base:AlgorithmConfig",))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trust:
    """What a config from a file may import.

    Without any trust it may name classes of a known kind that belong to jaxrl, gymnasium or gymnax, or
    whose module is imported already; no function, which would be called with anything.

    Attributes:
        everything: The user of this process wrote it, or said so.
        packages: Those that the user named.
        source: What the config is part of, for errors.
        quietly: Do not log what is not taken.
    """

    everything: bool = False
    packages: tuple[str, ...] = ()
    source: str = "The config"
    quietly: bool = False

    @staticmethod
    def of(given: TrustSpec, *, own: bool, source: object) -> "Trust":
        """From what a caller said, and whether the file is the user's own.

        Raises:
            ConfigError: That is neither a truth value nor names of packages.
        """
        names: Any = [given] if isinstance(given, str) else given
        if names is None or isinstance(names, bool):
            return Trust(everything=own or bool(names), source=str(source))
        listed = isinstance(names, list | tuple | set | frozenset)
        packages = tuple(cast(Sequence[Any], names)) if listed else ()
        parts = [p.split(".") if isinstance(p, str) else [""] for p in packages]
        if not listed or not all(part.isidentifier() for each in parts for part in each):
            raise ConfigError(
                f"trust must be True, or a list of packages such as ['my_package'], got {given!r}."
            )
        everything = own or EVERYTHING in packages
        return Trust(everything=everything, packages=packages, source=str(source))

    def allows(self, module: str) -> bool:
        """Whether the user said that a module may be imported."""
        return self.everything or _within(module, self.packages)

    def check_module(self, module: str, name: str) -> None:
        """Refuse to import a module for a setting that names it beside a class.

        Raises:
            CheckpointError: It is not imported yet, and not trusted.
        """
        known = _within(module, KNOWN_PACKAGES) and not module.endswith(".__main__")
        if not (self.allows(module) or known or module in sys.modules):
            raise self._refusal(module, name, module)

    def check(self, path: str, name: str, kind: Kind) -> None:
        """Refuse to import for a setting what nobody said may be imported.

        Raises:
            CheckpointError: Names the setting, the module and how to allow it.
        """
        module = _split(path)[0]
        if self.allows(module):
            return
        if not kind.names_classes:
            raise self._refusal(module, name, path)
        self.check_module(module, name)

    def check_found(self, found: Any, path: str, name: str, kind: Kind) -> None:
        """Refuse what is no class, where nobody said that it may be called."""
        module = _split(path)[0]
        if not self.allows(module) and not (isinstance(found, type) and kind.holds(found)):
            raise self._refusal(module, name, path)

    def _refusal(self, module: str, name: str, path: str) -> CheckpointError:
        root = module.split(".")[0]
        said = (
            f"{self.source} was not written by this user on this machine, and its {name} would import "
            f"{path!r}"
        )
        if root in sys.stdlib_module_names:
            return CheckpointError(f"{said}, a part of Python that no {name} needs.")
        return CheckpointError(
            f"{said}: if you trust it, allow that with trust=[{root!r}] (on the command line "
            f"--trust {root}), or give {name} yourself, from_checkpoint(..., {name}=...)."
        )


_trust: contextvars.ContextVar[Trust | None] = contextvars.ContextVar("trust", default=None)


@contextlib.contextmanager
def only_trusted(trust: Trust) -> Generator[None]:
    """Hold all that is imported by a path within the block to what a user trusts."""
    token = _trust.set(trust)
    try:
        yield
    finally:
        _trust.reset(token)


def load_object(path: str, name: str, kind: Kind = ANYTHING) -> Any:
    """The object that `"module:qualified.name"` names.

    Args:
        path: The import path.
        name: The setting that has it.
        kind: What the setting takes; a class of another kind is refused.

    Raises:
        ConfigError: There is no such module or object, or it is of another kind; names the setting.
        CheckpointError: It is not trusted.
    """
    trust = _trust.get()
    if not isinstance(path, str):
        raise ConfigError(
            f"{name} must be an object or its import path 'module:name', got {path!r}."
        )
    if trust is not None:
        trust.check(path, name, kind)
    try:
        found = _found(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{name} must be an object or its import path 'module:name', "
            f"got {path!r}, which cannot be imported ({error})."
        ) from error
    if isinstance(found, type) and kind.names_classes and not kind.holds(found):
        raise ConfigError(f"{name} must be {kind.wanted}, got {path!r}, which is none.")
    if trust is not None:
        trust.check_found(found, path, name, kind)
    return found


def object_path(value: Any) -> str | None:
    """`"module:qualname"` of a function or class that can be imported again, else None."""
    module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str):
        return None
    if "<" in qualname or module == "__main__":
        return None
    return f"{module}:{qualname}"


def _found(path: str) -> Any:
    module, qualname = _split(path)
    if not all((*module.split("."), *qualname.split("."))):
        raise ImportError("a name in it is empty")
    get: Callable[[Any, str], Any] = getattr
    return functools.reduce(
        get, qualname.split("."), importlib.import_module(new_name(module) or module)
    )


def _split(path: str) -> tuple[str, str]:
    module, colon, qualname = path.partition(":")
    if not colon:
        module, _, qualname = path.rpartition(".")
    return module, qualname


def _within(module: str, packages: Sequence[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)
