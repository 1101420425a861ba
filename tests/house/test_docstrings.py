"""First words of docstrings: a verb for functions, a noun phrase for all else, never a clause."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("jaxrl", "envs", "benchmarks", "tests")
OPENINGS = {
    *("How", "Of", "That", "What", "When", "Where", "Whether", "Which", "Who", "Whose", "Why"),
}
"""Words that open a clause, which is no sentence."""

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring, those of constants and fields included."""
    for node in ast.walk(tree):
        if isinstance(node, Documented):
            has_fields = isinstance(node, (ast.Module, ast.ClassDef))
            for statement in node.body if has_fields else node.body[:1]:
                value = statement.value if isinstance(statement, ast.Expr) else None
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield statement.lineno, value.value


def find_clauses(tree: ast.AST) -> list[int]:
    """Return the lines of docstrings that begin with a clause."""
    return [line for line, text in docstrings(tree) if {*text.split(maxsplit=1)[:1]} & OPENINGS]


def test_docstrings_open_with_no_clause() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if ".venv" not in path.parts
        for line in find_clauses(ast.parse(path.read_text()))
    ]
    assert not found, f"docstrings that begin with a clause: {found}"


def test_clauses_are_found_wherever_they_stand() -> None:
    source = '''"""What this is."""
LIMIT = 3
"""Where it ends."""
class A:
    """Whatever this is, it is a noun."""
    x: int
    """Whether it is."""
    def f(self):
        """How it is done."""
        "What follows is no docstring."
'''
    assert find_clauses(ast.parse(source)) == [1, 3, 7, 9]
