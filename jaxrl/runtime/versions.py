"""Versions of Python, jaxrl and the packages whose code takes part in a run."""

import contextlib
import functools
import importlib.metadata
import json
import platform
from collections.abc import Iterable

from jaxrl.core.version import __version__
from jaxrl.envs.adapters.table import ADAPTERS

SUITES = tuple(sorted({name for row in ADAPTERS.values() for name in row.distributions}))
"""Packages of compiled environments."""
PACKAGES = (
    *("jax", "jaxlib", "flax", "optax", "chex", "flashbax", "numpy"),
    *("gymnasium", "ray", "ale-py", "mujoco", "box2d"),
    *SUITES,
    *("jax-cuda12-plugin", "jax-cuda13-plugin"),
)
"""Packages that compute: learning, environments, devices. Those not installed are left out."""
EXACT_PACKAGES = ("jaxrl", "python", "jax", "jaxlib", "flax", "optax", "gymnax")
"""Packages that a bit-exact resume depends on, beside those of `SUITES` that its environment is of."""


@functools.cache
def get_versions() -> dict[str, str]:
    """Return the versions of Python, jaxrl and the installed packages that compute."""
    own = {"jaxrl": __version__, "python": platform.python_version()}
    return {**own, **read_versions(PACKAGES)}


def read_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed, by name."""
    versions: dict[str, str] = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def is_editable(name: str) -> bool:
    """Return whether a package is installed from a folder in place, so that its version says little."""
    try:
        text = importlib.metadata.distribution(name).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return False
    return text is not None and bool(json.loads(text).get("dir_info", {}).get("editable"))
