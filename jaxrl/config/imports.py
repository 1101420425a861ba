"""Import paths, `"module:name"`: objects that a setting may name, and which imports are trusted.

Importing a module runs it. An object that a setting names is therefore checked to be of the kind
that the setting takes before it is called and, for a config from another user, against a `Trust`.
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
from jaxrl.moved import find_new_name

TrustSpec: TypeAlias = bool | str | Sequence[str] | None
"""Trust in everything in a checkpoint (True), or the packages that it may import."""

TRUST_ALL = "all"
"""Value on the command line that stands for True."""

KNOWN_PACKAGES = ("jaxrl", "gymnasium", "gymnax")
"""Packages whose classes may be imported for untrusted configs, in settings that restrict the class."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportKind:
    """Restriction on the classes that an import path may name; the default allows any object.

    Attributes:
        bases: Import paths of classes, one of which a class must derive from.
        methods: Names of methods that a class must have.
        by_name: Whether a path is an entry of a dictionary, while other strings are names.
    """

    bases: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    by_name: bool = False

    @property
    def is_restricted(self) -> bool:
        """Return whether classes are restricted."""
        return bool(self.bases or self.methods)

    def matches(self, found: type) -> bool:
        """Return whether a class satisfies the restriction."""
        has_methods = all(callable(getattr(found, name, None)) for name in self.methods)
        bases = [_import_object(base) for base in self.bases]
        return has_methods and (not bases or issubclass(found, tuple(bases)))

    @property
    def description(self) -> str:
        """Description of the restriction."""
        if self.bases:
            names = [base.rpartition(":")[2] for base in self.bases]
            return f"a subclass of {' or '.join(names)}"
        return f"a class with the methods {' and '.join(self.methods)}"


ANYTHING = ImportKind()
ENV = ImportKind(
    bases=(
        "jaxrl.envs.base:JaxEnv",
        "jaxrl.envs.multi.base:MultiAgentJaxEnv",
        "gymnasium:Env",
        "gymnax.environments.environment:Environment",
    )
)
REPLAY_BUFFER = ImportKind(methods=("add", "sample"))
RL_MODULE = ImportKind(bases=("jaxrl.modules.rl_module:RLModule",))
ALGORITHM = ImportKind(bases=("jaxrl.algorithm:Algorithm",))
ALGORITHM_CONFIG = ImportKind(bases=("jaxrl.config.base:AlgorithmConfig",))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trust:
    """Imports that a config from a file may make.

    An untrusted config may name classes of a restricted kind that belong to jaxrl, gymnasium or
    gymnax, or whose module is imported already, but no functions, which would be called with any
    arguments.

    Attributes:
        everything: Whether everything is trusted, as for files of the user of this process.
        packages: Packages that the user trusts.
        source: Origin of the config, for error messages.
        is_quiet: Whether to ignore untrusted settings without logging them.
    """

    everything: bool = False
    packages: tuple[str, ...] = ()
    source: str = "The config"
    is_quiet: bool = False

    @staticmethod
    def from_argument(given: TrustSpec, *, is_own: bool, source: object) -> "Trust":
        """Make a Trust from an argument `trust`.

        Args:
            given: Value of the argument.
            is_own: Whether the file is signed by the user of this process.
            source: Origin of the config, for error messages.

        Raises:
            ConfigError: If the value is neither a boolean nor names of packages.
        """
        names = [given] if isinstance(given, str) else given
        if names is None or isinstance(names, bool):
            return Trust(everything=is_own or bool(names), source=str(source))
        is_sequence = isinstance(names, list | tuple | set | frozenset)
        packages = tuple(cast(Sequence[Any], names)) if is_sequence else ()
        parts = [p.split(".") if isinstance(p, str) else [""] for p in packages]
        if not is_sequence or not all(part.isidentifier() for each in parts for part in each):
            raise ConfigError(
                f"trust must be True, or a list of packages such as ['my_package'], got {given!r}."
            )
        everything = is_own or TRUST_ALL in packages
        return Trust(everything=everything, packages=packages, source=str(source))

    def allows(self, module: str) -> bool:
        """Return whether the user allowed the import of a module."""
        return self.everything or _is_within(module, self.packages)

    def check_module(self, module: str, name: str) -> None:
        """Check that a module may be imported for a setting that restricts its class.

        Raises:
            CheckpointError: If the module is neither imported nor trusted.
        """
        is_known = _is_within(module, KNOWN_PACKAGES) and not module.endswith(".__main__")
        if not (self.allows(module) or is_known or module in sys.modules):
            raise self._make_error(module, name, module)

    def check(self, path: str, name: str, kind: ImportKind) -> None:
        """Check that an import path may be imported for a setting.

        Raises:
            CheckpointError: If it may not; the message explains how to allow it.
        """
        module = _split_path(path)[0]
        if self.allows(module):
            return
        if not kind.is_restricted:
            raise self._make_error(module, name, path)
        self.check_module(module, name)

    def check_object(self, found: object, path: str, name: str, kind: ImportKind) -> None:
        """Check that an imported object is a class of the kind, unless its module is trusted.

        Raises:
            CheckpointError: If it is not.
        """
        module = _split_path(path)[0]
        if not self.allows(module) and not (isinstance(found, type) and kind.matches(found)):
            raise self._make_error(module, name, path)

    def _make_error(self, module: str, name: str, path: str) -> CheckpointError:
        root = module.split(".")[0]
        reason = (
            f"{self.source} was not written by this user on this machine, and its {name} would "
            f"import {path!r}"
        )
        if root in sys.stdlib_module_names:
            return CheckpointError(f"{reason}, a module of Python that no {name} needs.")
        return CheckpointError(
            f"{reason}: if you trust it, allow that with trust=[{root!r}] (on the command line "
            f"--trust {root}), or pass {name}, from_checkpoint(..., {name}=...)."
        )


_trust: contextvars.ContextVar[Trust | None] = contextvars.ContextVar("trust", default=None)


@contextlib.contextmanager
def restrict_imports(trust: Trust) -> Generator[None]:
    """Restrict imports by path within the block to those that are trusted."""
    token = _trust.set(trust)
    try:
        yield
    finally:
        _trust.reset(token)


def load_object(path: object, name: str, kind: ImportKind = ANYTHING) -> Any:
    """Import the object at `"module:qualified.name"`.

    Args:
        path: Import path.
        name: Setting with this value, for error messages.
        kind: Restriction on classes.

    Raises:
        ConfigError: If the object does not exist or is not of the kind; the message names the
            setting.
        CheckpointError: If the import is not trusted.
    """
    trust = _trust.get()
    if not isinstance(path, str):
        raise ConfigError(
            f"{name} must be an object or its import path 'module:name', got {path!r}."
        )
    if trust is not None:
        trust.check(path, name, kind)
    try:
        found = _import_object(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{name} must be an object or its import path 'module:name', "
            f"got {path!r}, which cannot be imported ({error})."
        ) from error
    if isinstance(found, type) and kind.is_restricted and not kind.matches(found):
        raise ConfigError(f"{name} must be {kind.description}, got {path!r}, which is not one.")
    if trust is not None:
        trust.check_object(found, path, name, kind)
    return found


def get_import_path(value: object) -> str | None:
    """Return `"module:qualname"` of a function or class, or None if it cannot be imported again."""
    module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str):
        return None
    if "<" in qualname or module == "__main__":
        return None
    return f"{module}:{qualname}"


def _import_object(path: str) -> Any:
    module, qualname = _split_path(path)
    if not all((*module.split("."), *qualname.split("."))):
        raise ImportError("it contains an empty name")
    get: Callable[[Any, str], Any] = getattr
    return functools.reduce(
        get, qualname.split("."), importlib.import_module(find_new_name(module) or module)
    )


def _split_path(path: str) -> tuple[str, str]:
    module, colon, qualname = path.partition(":")
    if not colon:
        module, _, qualname = path.rpartition(".")
    return module, qualname


def _is_within(module: str, packages: Sequence[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)
