"""Dependencies: those declared are those needed, and can be installed again."""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

# Imported name -> the name it is installed under, where the two differ.
INSTALLED_AS = {
    "orbax": "orbax-checkpoint",
    "prometheus_client": "prometheus-client",
    "yaml": "pyyaml",
}
# Needed by gymnax and JAX, which do not declare them.
NOT_IMPORTED = {"filelock", "six"}
# Run what an extra wrote, where a user has installed them.
OPTIONAL = {"onnxruntime"}
# Part of every type checker, and imported by nothing else.
OF_TYPE_CHECKERS = {"_typeshed"}


def name_of(requirement: str) -> str:
    return re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def imported() -> set[str]:
    """The top-level packages that the code imports, wherever in a file it does so."""
    names = set()
    for folder in ("jaxrl", "envs"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    names |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.level == 0:
                    names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - OF_TYPE_CHECKERS - {"jaxrl"}


def test_every_import_is_declared() -> None:
    declared = {name_of(requirement) for requirement in PROJECT["dependencies"]}
    extras = ("export", "migrate", "offline", "search", "serve", "wandb", "weights")
    declared |= {name_of(item) for name in extras for item in EXTRAS[name]}
    used = {INSTALLED_AS.get(name, name).lower() for name in imported()}
    assert used <= declared | OPTIONAL
    assert {name_of(item) for item in EXTRAS["test"]} & used >= OPTIONAL


def test_every_core_dependency_is_used() -> None:
    paths = [*(ROOT / "jaxrl").rglob("*.py"), *(ROOT / "envs").rglob("*.py")]
    code = "\n".join(path.read_text() for path in paths)
    imported_as = {installed: name for name, installed in INSTALLED_AS.items()}
    for requirement in PROJECT["dependencies"]:
        name = name_of(requirement)
        module = imported_as.get(name, name)
        is_imported = re.search(rf"(?i)\b(import|from) {module}\b|\"{module}[.\"]", code)
        assert is_imported or name in NOT_IMPORTED, f"nothing imports {name}"


def test_constraints_name_each_dependency_exactly_and_no_host() -> None:
    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    for line in lines:
        assert re.fullmatch(r'[\w.\-]+==[\w.]+( ; python_version (<|>=) "3\.\d+")?', line), line
    constrained = {name_of(line) for line in lines}
    needed = {name_of(item) for item in PROJECT["dependencies"]}
    needed |= {name_of(item) for extra in ("dev", "docs", "test") for item in EXTRAS[extra]}
    assert needed - {"jaxrl"} <= constrained


def test_make_and_ci_agree_with_the_supported_versions() -> None:
    assert PROJECT["requires-python"] == ">=3.11,<3.14"
    assert "(3, 11) <= sys.version_info[:2] < (3, 14)" in (ROOT / "Makefile").read_text()
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
