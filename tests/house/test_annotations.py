"""Few annotations say nothing: how many are exactly `Any`, as a number."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ANNOTATIONS_OF_ANY = 150


def annotations(tree: ast.AST) -> Iterator[ast.expr]:
    """Annotations of parameters, returns, variables and attributes."""
    for node in ast.walk(tree):
        found = None
        if isinstance(node, (ast.arg, ast.AnnAssign)):
            found = node.annotation
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found = node.returns
        if found is not None:
            yield found


def lines_of_any(source: str) -> list[int]:
    """Lines with an annotation that is `Any` itself, not a part of another such as dict[str, Any]."""
    return sorted(
        found.lineno
        for found in annotations(ast.parse(source))
        if ast.unparse(found) in ("Any", "typing.Any", "'Any'")
    )


def test_few_annotations_are_any() -> None:
    counts = {
        str(path.relative_to(ROOT)): len(lines_of_any(path.read_text()))
        for path in sorted((ROOT / "jaxrl").rglob("*.py"))
    }
    assert len(counts) > 100
    most = dict(sorted(counts.items(), key=lambda item: -item[1])[:10])
    assert sum(counts.values()) <= ANNOTATIONS_OF_ANY, (
        f"{sum(counts.values())} annotations are Any, most in {most}: name the type, a PyTree, a "
        "TypeVar for what is returned unchanged, or `object` for what is merely passed on"
    )


def test_counter_counts_as_it_says() -> None:
    source = """
import typing
from typing import Any

x: Any = 1
y: dict[str, Any] = {}


class A:
    attribute: "Any"

    def f(self, a: Any, /, b: list[Any], *args: Any, c: object = None, **kwargs: typing.Any) -> Any:
        z: Any | None = a
        return lambda q: z


async def g(a, b: int) -> Any:
    return a
"""
    assert lines_of_any(source) == [5, 10, 12, 12, 12, 12, 17]
