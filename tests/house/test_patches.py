"""Check that what tests replace exists, also in slow tests of mistakes, which rarely run."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
PACKAGES = ("jaxrl", "benchmarks")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def find_patches(tree: ast.AST, local: frozenset[str] = frozenset()) -> Iterator[ast.Call]:
    """Yield `setattr(owner, "name", ...)` of a name that is not bound in a function around it."""
    for node in ast.iter_child_nodes(tree):
        inside = local | find_bound(node) if isinstance(node, FUNCTIONS) else local
        if isinstance(node, ast.Call) and is_patch(node) and find_root(node.args[0]) not in inside:
            yield node
        yield from find_patches(node, inside)


def is_patch(call: ast.Call) -> bool:
    return (
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "setattr"
        and len(call.args) >= 3
        and isinstance(call.args[1], ast.Constant)
        and not any(keyword.arg == "raising" for keyword in call.keywords)
    )


def find_bound(function: ast.AST) -> frozenset[str]:
    """Return the parameters and the variables of a function, except what it imports."""
    names = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    stored = {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return frozenset(names | stored)


def find_root(owner: ast.expr) -> str | None:
    """Return the first name of `a.b.c`; None for another expression."""
    while isinstance(owner, ast.Attribute):
        owner = owner.value
    return owner.id if isinstance(owner, ast.Name) else None


def import_names(tree: ast.AST) -> dict[str, Any]:
    """Return what a module imports from `PACKAGES`, also within its functions."""
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGES):
            assert node.module is not None
            module = importlib.import_module(node.module)
            for alias in node.names:
                found[alias.asname or alias.name] = (
                    getattr(module, alias.name)
                    if hasattr(module, alias.name)
                    else importlib.import_module(f"{node.module}.{alias.name}")
                )
    return found


def list_missing(source: str) -> tuple[int, list[str]]:
    """Return the number of attributes of `PACKAGES` that are replaced, and those that do not exist."""
    tree = ast.parse(source)
    patches = list(find_patches(tree))
    names = import_names(tree) if patches else {}
    number, missing = 0, list[str]()
    for call in patches:
        owner, root = ast.unparse(call.args[0]), find_root(call.args[0])
        if root not in names:
            continue
        attribute = ast.literal_eval(call.args[1])
        number += 1
        if not hasattr(eval(owner, dict(names)), attribute):
            missing.append(f"line {call.lineno}: {owner}.{attribute}")
    return number, missing


def test_what_is_replaced_exists() -> None:
    number, missing = 0, dict[str, list[str]]()
    for path in sorted(TESTS.rglob("*.py")):
        found, absent = list_missing(path.read_text(encoding="utf-8"))
        number += found
        if absent:
            missing[str(path.relative_to(TESTS))] = absent
    assert not missing
    assert number >= 100


@pytest.mark.parametrize("where", ["", "def f(patch):\n    "])
def test_what_does_not_exist_is_found(where: str) -> None:
    text = "from jaxrl.ops import losses\n{}patch.setattr(losses, 'clipped_surogate', 1)\n"
    assert list_missing(text.format(where))[1] == [
        f"line {2 + bool(where)}: losses.clipped_surogate"
    ]
    assert list_missing(text.format("def f(patch, losses):\n    ")) == (0, [])
    assert list_missing(text.replace("surogate", "surrogate").format(where)) == (1, [])
