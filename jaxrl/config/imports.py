"""Import paths, `"module:name"`: objects that a setting may name, and which imports are trusted.

Importing a module runs it. An object that a setting names is therefore checked to be of the kind
that the setting takes before it is called and, for a config from another user, against a `Trust`.
"""

import dataclasses
import functools
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from jaxrl.config.markers import Marker
from jaxrl.errors import CheckpointError, ConfigError

TrustSpec: TypeAlias = bool | str | Sequence[str] | None
"""Trust in everything in a checkpoint (True), or the packages that it may import."""

TRUST_ALL = "all"
"""Value on the command line that stands for True."""

KNOWN_PACKAGES = ("jaxrl", "gymnasium", "gymnax")
"""Packages whose classes may be imported for untrusted configs, in settings that restrict the class."""


SCRIPT = "__main__"
"""Module of the program that Python runs: a script or a notebook."""
SCRIPT_OPTION = "--script"
"""Option of the command line for the script that a run was trained with."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportKind:
    """Restriction on the classes that an import path may name; the default allows any object.

    Attributes:
        bases: Import paths of classes, one of which a class must derive from.
        methods: Names of methods that a class must have.
        by_name: Whether a path is an entry of a dictionary, while other strings are names.
        is_env: Whether a path is that of an environment, which is imported when it is made.
    """

    bases: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    by_name: bool = False
    is_env: bool = False

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
    ),
    is_env=True,
)
REPLAY_BUFFER = ImportKind(methods=("add", "sample"))
RL_MODULE = ImportKind(bases=("jaxrl.modules.rl_module:RLModule",))
ALGORITHM = ImportKind(bases=("jaxrl.algorithm:Algorithm",))
ALGORITHM_CONFIG = ImportKind(bases=("jaxrl.config.base:AlgorithmConfig",))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trust:
    """Imports by name that a config, and all that is made of it, may make.

    An untrusted config may name classes of a restricted kind that belong to jaxrl, gymnasium or
    gymnax, or whose module is imported already, but no functions, which would be called with any
    arguments.

    Attributes:
        everything: Whether everything is trusted, as for files of the user of this process.
        packages: Packages that the user trusts.
        source: Origin of the config, for error messages.
        is_quiet: Whether to ignore untrusted settings without logging them.
        makes_envs: Whether environments may be made of the config; their names are not checked
            if not.
    """

    everything: bool = False
    packages: tuple[str, ...] = ()
    source: str = "The config"
    is_quiet: bool = False
    makes_envs: bool = True

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

    def check_env(self, env: object) -> None:
        """Check that environments with these names, which a setting holds, may be made.

        Raises:
            CheckpointError: If the name of one would import a module that is not trusted.
            ConfigError: If a class that one names is no environment.
        """
        if self.everything or not self.makes_envs:
            return
        if isinstance(env, Mapping):
            for one in cast(Mapping[Any, Any], env).values():
                self.check_env(one)
        elif isinstance(env, Marker | list | tuple):
            for one in env.values if isinstance(env, Marker) else cast(list[Any], env):
                self.check_env(one)
        elif isinstance(env, str):
            from jaxrl.envs.registry import find_imports

            module, path = find_imports(env)
            if path is not None:
                load_object(path, "env", ENV, trust=self)
            elif module is not None:
                self.check_module(module, "env")

    def check_inner_envs(self, env_config: object) -> None:
        """Check the environments that one may wrap, which its arguments `env` name at any depth.

        Raises:
            CheckpointError: If the name of one would import a module that is not trusted.
        """
        if isinstance(env_config, Mapping):
            for key, value in cast(Mapping[Any, Any], env_config).items():
                check = self.check_env if key == "env" else self.check_inner_envs
                check(value)
        elif isinstance(env_config, Marker | list | tuple):
            is_marker = isinstance(env_config, Marker)
            for value in env_config.values if is_marker else cast(list[Any], env_config):
                self.check_inner_envs(value)

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


OWN = Trust(everything=True)
"""Trust in names that the user's own code or files give."""


def load_object(path: object, name: str, kind: ImportKind = ANYTHING, *, trust: Trust) -> Any:
    """Import the object at `"module:qualified.name"`.

    Args:
        path: Import path.
        name: Setting with this value, for error messages.
        kind: Restriction on classes.
        trust: Imports that whoever gave the path may make.

    Raises:
        ConfigError: If the object does not exist or is not of the kind; the message names the
            setting.
        CheckpointError: If the import is not trusted.
    """
    if not isinstance(path, str):
        raise ConfigError(
            f"{name} must be an object or its import path 'module:name', got {path!r}."
        )
    trust.check(path, name, kind)
    try:
        found = _import_object(path)
    except (ImportError, AttributeError, ValueError) as error:
        module, qualname = _split_path(path)
        if module == SCRIPT:
            raise ConfigError(
                f"{name} is {qualname!r} of a script, got {path!r}, and this program defines none: "
                f"define it here as well, or give the script, {SCRIPT_OPTION} SCRIPT.py on the command "
                "line."
            ) from error
        raise ConfigError(
            f"{name} must be an object or its import path 'module:name', "
            f"got {path!r}, which cannot be imported ({error})."
        ) from error
    if isinstance(found, type) and kind.is_restricted and not kind.matches(found):
        raise ConfigError(f"{name} must be {kind.description}, got {path!r}, which is not one.")
    trust.check_object(found, path, name, kind)
    return found


def is_missing_in_script(path: object) -> bool:
    """Return whether a path is of a script, and the running one does not define it."""
    if not isinstance(path, str) or _split_path(path)[0] != SCRIPT:
        return False
    try:
        _import_object(path)
    except (ImportError, AttributeError):
        return True
    return False


def get_import_path(value: object) -> str | None:
    """Return `"module:qualname"` of a function or class, or None if it cannot be found again.

    One of a script or notebook is found where a program has the same name, such as in the same script.
    """
    module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str):
        return None
    if "<" in qualname:
        return None
    is_script = sys.modules.get(module) is sys.modules.get(SCRIPT)
    return f"{SCRIPT if is_script else module}:{qualname}"


def _import_object(path: str) -> Any:
    module, qualname = _split_path(path)
    if not all((*module.split("."), *qualname.split("."))):
        raise ImportError("it contains an empty name")
    get: Callable[[Any, str], Any] = getattr
    return functools.reduce(get, qualname.split("."), importlib.import_module(module))


def _split_path(path: str) -> tuple[str, str]:
    module, colon, qualname = path.partition(":")
    if not colon:
        module, _, qualname = path.rpartition(".")
    return module, qualname


def _is_within(module: str, packages: Sequence[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)
