"""`jaxrl doctor`: what jaxrl finds on this machine, and what is wrong with it."""

import contextlib
import dataclasses
import functools
import importlib.metadata
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from jaxrl.cli import terminal
from jaxrl.errors import summarize_exception

TESTED_JAX = ("0.10", "0.11")
"""Versions of JAX that jaxrl is tested with."""
MIN_FREE_BYTES = 2**29
"""Free space of a folder of results below which a run may fill it with checkpoints."""
SHOWN_VARIABLES = ("JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES", "XLA_FLAGS", "JAXRL_RESULTS_DIR")
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
GIB = 2**30


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


# --- the examination ---


class Report:
    """Findings and problems.

    Attributes:
        findings: Names and texts.
        problems: Sentences with advice.
        works: Parts that have been examined without an error.
    """

    def __init__(self) -> None:
        self.findings: list[tuple[str, str]] = []
        self.problems: list[str] = []
        self.works: set[str] = set()

    def add(self, name: str, text: str) -> None:
        """Add a finding."""
        self.findings.append((name, text))

    def format(self) -> list[str]:
        """Return the findings as two columns, and the problems after them."""
        width = max(len(name) for name, _ in self.findings)
        lines = [f"{name:<{width}}  {text}".rstrip() for name, text in self.findings]
        if not self.problems:
            return [*lines, "", "no problems found"]
        return [*lines, "", "problems:", *(f"- {problem}" for problem in self.problems)]


def doctor() -> int:
    """Print what is found.

    Returns:
        Exit code: 0 if nothing is wrong, else 1.
    """
    report = examine()
    for line in report.format():
        terminal.echo(line)
    return 1 if report.problems else 0


def examine() -> Report:
    """Examine the machine; a part that fails is a problem, and the others are examined anyway."""
    report = Report()
    for name, part in PARTS.items():
        if not report.works.issuperset(NEEDS.get(name, ())):
            continue  # whose problem is known
        try:
            part(report)
        except Exception as error:  # noqa: BLE001  (whatever is broken here is what is looked for)
            report.add(name, "cannot be examined")
            report.problems.append(f"{name}: {summarize_exception(error)}.{ADVICE.get(name, '')}")
        else:
            report.works.add(name)
    return report


def _examine_versions(report: Report) -> None:
    import jaxrl

    python = platform.python_version()
    try:
        supported = (importlib.metadata.metadata("jaxrl").get_all("Requires-Python") or [""])[0]
        required = find_requirements("jaxrl")
    except importlib.metadata.PackageNotFoundError:
        report.add("jaxrl", f"{jaxrl.__version__}, not installed: {Path(jaxrl.__file__).parent}")
        report.add("Python", python)
        report.problems.append(
            "jaxrl is imported from a folder that is not installed, so the versions of its "
            "requirements are unknown: pip install -e FOLDER."
        )
        return
    report.add("jaxrl", jaxrl.__version__)
    report.add("Python", f"{python} (supported: {supported})")
    if not SpecifierSet(supported).contains(python, prereleases=True):
        report.problems.append(
            f"Python {python} is not supported: make a virtual environment with a version that is "
            f"{supported}."
        )
    for found in required:
        _add_problem_unless_met(report, found, "jaxrl")
    _examine_jax_versions(report, required)


def _examine_jax_versions(report: Report, required: list[Installed]) -> None:
    jax = next((found for found in required if found.requirement.name == "jax"), None)
    if jax is None or jax.version is None:
        report.add("jax", "not installed")
        return
    specifier, newest = jax.requirement.specifier, TESTED_JAX[-1]
    report.add("jax", f"{jax.version} (supported: {specifier}, tested: {' and '.join(TESTED_JAX)})")
    if Version(jax.version).release[:2] > Version(newest).release:
        major, minor = Version(newest).release
        report.problems.append(
            f"jax {jax.version} is newer than {newest}, the last that jaxrl is tested with: "
            f"pip install 'jax<{major}.{minor + 1}'."
        )
    for found in find_requirements("jax"):
        if found.requirement.name == "jaxlib":
            report.add(
                "jaxlib", f"{found.version or 'missing'} (jax needs {found.requirement.specifier})"
            )
            _add_problem_unless_met(report, found, f"jax {jax.version}")


def _add_problem_unless_met(report: Report, found: Installed, by: str) -> None:
    if not found.is_met:
        got = "is not installed" if found.version is None else f"has version {found.version}"
        needed = f"{found.requirement.name}{found.requirement.specifier}"
        report.problems.append(
            f"{found.requirement.name} {got}, but {by} needs {needed}: pip install '{needed}'."
        )


def _import_jax(report: Report) -> None:
    del report  # only failures are reported
    import jax  # noqa: F401  # pyright: ignore[reportUnusedImport]


def _examine_devices(report: Report) -> None:
    import jax

    from jaxrl.runtime.devices import claim_cpu_devices, get_memory_limit
    from jaxrl.runtime.measurements import get_cpu_model

    claim_cpu_devices()  # as a run does
    devices = jax.local_devices()
    first = devices[0]
    kind = get_cpu_model() if first.platform == "cpu" else first.device_kind
    memory = None if first.platform == "cpu" else get_memory_limit(first)
    each = "" if memory is None else f", {memory / GIB:.1f} GiB each"
    report.add("devices", f"{len(devices)} x {first.platform}, {kind}{each}")
    is_chosen = "cpu" in (jax.config.values["jax_platforms"] or "")
    if first.platform == "cpu" and NVIDIA_DRIVER.exists() and not is_chosen:
        report.problems.append(
            "there is an NVIDIA driver, but JAX computes on the CPU: pip install 'jaxrl[cuda12]'."
        )


def _examine_machine(report: Report) -> None:
    from jaxrl.runtime.devices import count_usable_cores, get_host_memory_limit

    present = os.cpu_count() or 1
    report.add("cores", f"{count_usable_cores()} usable of {present}")
    limit, free = get_host_memory_limit(), _read_available_memory()
    texts = [
        "" if limit is None else f"{limit / GIB:.1f} GiB",
        "" if free is None else f"{free / GIB:.1f} GiB available",
    ]
    report.add("memory", ", ".join(filter(None, texts)) or "unknown")
    for name in SHOWN_VARIABLES:
        if os.environ.get(name):
            report.add(name, os.environ[name])


def _read_available_memory() -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _examine_cache(report: Report) -> None:
    from jaxrl.runtime.compilation_cache import enable_compilation_cache, get_cache_contents
    from jaxrl.runtime.program import can_reuse_programs

    sentence = enable_compilation_cache(None)
    contents = get_cache_contents()
    if contents is None:
        report.add("compilation cache", "none: every process compiles anew")
        report.problems.append(
            f"{sentence.removesuffix('.')}: set XDG_CACHE_HOME to a folder that you can write to, "
            "or JAX_ENABLE_COMPILATION_CACHE=true if it is off."
        )
        return
    most = "" if contents.max_bytes is None else f" of at most {contents.max_bytes / GIB:.3g} GiB"
    hits = can_reuse_programs()
    report.add(
        "compilation cache",
        f"{contents.folder}, {contents.entries} programs, {contents.bytes / 2**20:,.1f} MiB{most}, "
        f"{'hits possible' if hits else 'no hits'}",
    )
    if not hits:
        report.problems.append(
            "this version of JAX finds no program again in its compilation cache on "
            "these devices, so every process compiles anew: install a tested version."
        )
    _check_folder(report, Path(contents.folder), "compilation cache", "XDG_CACHE_HOME")


def _examine_folders(report: Report) -> None:
    from jaxrl.config import signature
    from jaxrl.runs.run_folder import resolve_results_dir

    folder = resolve_results_dir()
    report.add("results", str(folder))
    _check_folder(report, folder, "results", "JAXRL_RESULTS_DIR")
    key = signature.get_key_path()
    if key.exists() and signature.sign(b"") is None:
        report.problems.append(
            f"{key} is not private, so your own checkpoints count as those of another user: "
            f"chmod 600 {key}."
        )


def _check_folder(report: Report, folder: Path, name: str, variable: str) -> None:
    """Add a problem if a folder, or the one in which it would be created, cannot be written."""
    parent = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=parent):
            pass
    except OSError as error:
        report.problems.append(
            f"the folder of the {name}, {folder}, cannot be written "
            f"({(error.strerror or str(error)).lower()}): set {variable} to another."
        )
        return
    free = shutil.disk_usage(parent).free
    if free < MIN_FREE_BYTES:
        report.problems.append(
            f"the folder of the {name}, {folder}, has {free / 2**20:,.0f} MiB left: set {variable} "
            "to another, or make room."
        )


def _examine_ray(report: Report) -> None:
    try:
        version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        report.add("Ray", "not installed: no actors (num_env_runners, num_learners, Ray Tune)")
        return
    report.add(
        "Ray",
        f"{version}; while a run hangs, 'ray stack' shows where, and 'ray memory' what is stored",
    )


def _examine_extras(report: Report) -> None:
    try:
        extras = list_extras("jaxrl")
    except importlib.metadata.PackageNotFoundError:
        return  # reported by the versions
    for extra in extras:
        found = find_extra("jaxrl", extra)
        missing = [str(item.requirement) for item in found if item.version is None]
        if missing:
            report.add(f"jaxrl[{extra}]", f"not installed: pip install 'jaxrl[{extra}]'")
            continue
        report.add(f"jaxrl[{extra}]", ", ".join(dict.fromkeys(map(str, found))))
        for item in found:
            _add_problem_unless_met(report, item, f"jaxrl[{extra}]")


PARTS: dict[str, Callable[[Report], None]] = {
    "versions": _examine_versions,
    "JAX": _import_jax,
    "devices": _examine_devices,
    "machine": _examine_machine,
    "compilation cache": _examine_cache,
    "results": _examine_folders,
    "Ray": _examine_ray,
    "extras": _examine_extras,
}
"""Parts of the examination, in the order of the report."""
NEEDS = {
    "devices": ("JAX",),
    "machine": ("JAX",),
    "compilation cache": ("devices",),
    "results": ("JAX",),
}
"""Parts without which another is not examined."""
ADVICE = {
    "JAX": " Install it again: pip install --force-reinstall jax jaxlib.",
    "devices": " If JAX_PLATFORMS is set, unset it, or install what it names, such as "
    "pip install 'jaxrl[cuda12]'.",
    "results": " Make what it names readable and writable for this user, for example with chown.",
}
"""Advice for a part that cannot be examined."""
