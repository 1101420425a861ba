"""Import hooks: RLlib's module paths with `jaxrl` in place of `ray.rllib`, and Ray Tune.

`Tuner("PPO", param_space=config)` needs the names of the algorithms, and that Tune accepts config
objects. Both are set up by importing `jaxrl.tune`, which imports Ray and is therefore not done
before Ray Tune has been imported by someone else.
"""

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from jaxrl.compat import lookup
from jaxrl.errors import ConfigError

RLLIB_PARENTS = {
    *("callbacks", "policy.policy"),
    *(
        f"algorithms.{name}"
        for name in (
            *(
                "alpha_zero",
                "appo",
                "bandit",
                "cql",
                "dqn",
                "dreamer",
                "dt",
                "es",
                "impala",
                "maddpg",
                "marwil",
                "ppo",
                "qmix",
            ),
            *("random_agent", "sac", "td3", "tqc"),
        )
    ),
}
"""Modules here that are packages in RLlib, as in `algorithms.ppo.ppo`, or have more names there."""

_TUNE = "ray.tune"


def install_import_hooks() -> None:
    """Install the import hooks for the module paths of RLlib."""
    if not any(isinstance(installed, _ParentFinder) for installed in sys.meta_path):
        sys.meta_path.insert(0, _ParentFinder())
        sys.meta_path.append(_ForeignFinder())


def refuse_foreign_name(module: str, name: str) -> None:
    """Raise ImportError for a name that other libraries have; the message says what to write."""
    advice = lookup.load("libraries").advise_on_import(name)
    if advice is None:
        algorithm = name.removesuffix("Config").removesuffix("Trainer")
        advice = lookup.load("rllib.imports").get_algorithm_advice(algorithm)
    if advice is not None:
        raise ImportError(f"{module} has no {name}: {advice}.")


class _ForeignFinder(MetaPathFinder):
    """Finder of modules that are not here, but in other libraries."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("jaxrl."):
            return None
        return lookup.load("rllib.imports").find_spec(fullname)


class _ParentFinder(MetaPathFinder):
    """Finder of modules here in which Python then looks for modules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("jaxrl.") or fullname[len("jaxrl.") :] not in RLLIB_PARENTS:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _ParentLoader(spec.loader)
            spec.submodule_search_locations = []
        return spec


class _ParentLoader(Loader):
    """Loader of a module here that is a package in RLlib and has more names there."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)

        def load_name(name: str) -> object:
            if name.startswith("_"):
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            try:
                return lookup.load("rllib.imports").load_name(module.__name__, name)
            except ImportError as error:
                raise AttributeError(str(error)) from error

        module.__dict__.setdefault("__getattr__", load_name)


def connect_to_tune() -> None:
    """Register jaxrl with Ray Tune: now if Tune has been imported, otherwise when it is.

    Called when a config is created; further calls do nothing.
    """
    if "jaxrl.tune" in sys.modules or any(isinstance(f, _TuneFinder) for f in sys.meta_path):
        return
    if _TUNE in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _TuneFinder())


def _register() -> None:
    ray = sys.modules["ray"]
    if ray.is_initialized() and ray.get_runtime_context().worker.mode == ray.WORKER_MODE:
        return  # a process of a run, which starts no trials
    with contextlib.suppress(ConfigError):  # without the packages that Tune needs
        importlib.import_module("jaxrl.tune")


class _TuneFinder(MetaPathFinder):
    """Finder that registers jaxrl after the import of Ray Tune, for which it leaves its place."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname != _TUNE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                vars(sys.modules["ray"])["tune"] = module  # as the import does after this
                _register()

            spec.loader.exec_module = execute_and_register
        return spec
