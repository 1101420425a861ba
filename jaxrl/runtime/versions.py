"""Versions of Python, jaxrl and the packages whose code takes part in a run."""

import contextlib
import functools
import importlib.metadata
import platform
from collections.abc import Iterable

import jaxrl

PACKAGES = (
    *("jax", "jaxlib", "flax", "optax", "chex", "flashbax", "numpy"),
    *("gymnasium", "gymnax", "ray", "ale-py", "mujoco", "box2d"),
    *("jax-cuda12-plugin", "jax-cuda13-plugin"),
)
"""Packages that compute: learning, environments, devices. Those not installed are left out."""
EXACT_PACKAGES = ("jaxrl", "python", "jax", "jaxlib", "flax", "optax", "gymnax")
"""Packages that a bit-exact resume depends on."""


@functools.cache
def get_versions() -> dict[str, str]:
    """Return the versions of Python, jaxrl and the installed packages that compute."""
    own = {"jaxrl": jaxrl.__version__, "python": platform.python_version()}
    return {**own, **read_versions(PACKAGES)}


def read_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed, by name."""
    versions: dict[str, str] = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
