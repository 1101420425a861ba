"""Registration with Ray Tune, once both Tune and a config of jaxrl are in use.

`Tuner("PPO", param_space=config)` needs the names of the algorithms, and that Tune accepts config
objects. Both are set up by importing `jaxrl.tune`, which imports Ray and is therefore not done
before Ray Tune has been imported by someone else.
"""

import contextlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec

from jaxrl.errors import ConfigError

_TUNE = "ray.tune"


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
        target: types.ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname != _TUNE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: types.ModuleType) -> None:
                execute(module)
                vars(sys.modules["ray"])["tune"] = module  # as the import does after this
                _register()

            spec.loader.exec_module = execute_and_register
        return spec
