"""Requirements of installed packages: which are met, and what installs those that are not."""

import dataclasses
import functools
import importlib.metadata
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

DEVELOPMENT_EXTRAS = frozenset(("dev", "docs", "test"))
"""Extras of jaxrl for those who change it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Installed:
    """Requirement and the version that is installed; None if none is."""

    requirement: Requirement
    version: str | None

    @property
    def is_met(self) -> bool:
        """Return whether a version is installed that the requirement admits."""
        return self.version is not None and self.requirement.specifier.contains(
            self.version, prereleases=True
        )

    def __str__(self) -> str:
        return f"{self.requirement.name} {self.version or 'missing'}"


def find_requirements(package: str, extra: str | None = None) -> list[Installed]:
    """Return the requirements of an installed package on this machine.

    Args:
        package: Name of the package.
        extra: Extra whose requirements are returned; None for those without an extra.

    Raises:
        PackageNotFoundError: If the package is not installed.
    """
    found = [Requirement(text) for text in importlib.metadata.requires(package) or []]
    return [check(requirement) for requirement in found if _applies(requirement, extra)]


def _applies(requirement: Requirement, extra: str | None) -> bool:
    """Return whether a requirement belongs to an extra alone or, without one, to the package."""
    if requirement.marker is None:
        return extra is None
    is_always = requirement.marker.evaluate({"extra": ""})
    if extra is None:
        return is_always
    return not is_always and requirement.marker.evaluate({"extra": extra})


def check(requirement: Requirement) -> Installed:
    """Look up the installed version of a requirement."""
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        version = None
    return Installed(requirement=requirement, version=version)


def find_extra(package: str, extra: str) -> list[Installed]:
    """Return all that an extra of an installed package requires, including extras of others."""
    return list(_walk(package, canonicalize_name(extra), frozenset()))


def _walk(package: str, extra: str, seen: frozenset[tuple[str, str]]) -> Iterator[Installed]:
    if (package, extra) in seen:
        return
    for found in find_requirements(package, extra):
        inner = found.requirement.extras
        if not inner or found.version is None:
            yield found
        for name in sorted(inner) if found.version is not None else ():
            name = canonicalize_name(name)
            yield from _walk(found.requirement.name, name, seen | {(package, extra)})


@functools.cache
def list_extras(package: str) -> list[str]:
    """Return the extras of an installed package, without those for its development."""
    extras = importlib.metadata.metadata(package).get_all("Provides-Extra") or []
    return sorted(set(extras) - DEVELOPMENT_EXTRAS)
