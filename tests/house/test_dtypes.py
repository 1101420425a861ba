"""Arrays that are made state their type: JAX's defaults are of 64 bits where a process asks for it.

Draws are in question above all: those of a default type are others with `jax_enable_x64`, so that
the same seed would be another run.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NUM_ARGUMENTS = {
    "jax.nn.one_hot": None,
    "jax.random.exponential": 3,
    "jax.random.gumbel": 3,
    "jax.random.normal": 3,
    "jax.random.randint": 5,
    "jax.random.truncated_normal": 5,
    "jax.random.uniform": 3,
    "jnp.arange": 4,
    "jnp.empty": 2,
    "jnp.eye": 4,
    "jnp.full": 3,
    "jnp.linspace": None,
    "jnp.ones": 2,
    "jnp.zeros": 2,
    "self.param": 4,
}
"""Functions whose type has a default, and the number of arguments with which one states it."""
DRAWS = tuple(name for name in NUM_ARGUMENTS if name.startswith("jax.random."))


def find_untyped(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the code of each array that is made of a default type."""
    tree = ast.parse(source)
    called = set[ast.expr]()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called.add(node.func)
        name, number = ast.unparse(node.func), len(node.args)
        is_typed = any(keyword.arg == "dtype" for keyword in node.keywords)
        if name == "draw_rows":  # which states the type
            called.add(node.args[0])
        if name.endswith("partial") and ast.unparse(node.args[0]) in DRAWS:
            called.add(node.args[0])
            if not is_typed:
                yield node.lineno, ast.unparse(node)
        if name == "jax.random.bernoulli" and (
            number < 2 or isinstance(node.args[1], ast.Constant)
        ):
            yield node.lineno, ast.unparse(node)
        if name not in NUM_ARGUMENTS or is_typed:
            continue
        needed = NUM_ARGUMENTS[name]
        is_function = name == "self.param" and isinstance(node.args[1], ast.Lambda)
        if not is_function and (needed is None or number < needed):
            yield node.lineno, ast.unparse(node)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node not in called and ast.unparse(node) in DRAWS:
            yield node.lineno, ast.unparse(node)


def test_arrays_state_their_types() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {code}"
        for folder in ("envs", "jaxrl")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, code in find_untyped(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("code", "is_untyped"),
    [
        ("jnp.zeros(3)", True),
        ("jnp.zeros(3, jnp.float32)", False),
        ("jnp.arange(3, dtype=jnp.int32)", False),
        ("jax.random.uniform(key, (3,))", True),
        ("jax.vmap(jax.random.uniform)(keys)", True),
        ("draw_rows(jax.random.uniform, key, (3,), None)", False),
        ("jax.vmap(partial(jax.random.uniform, dtype=jnp.float32))(keys)", False),
        ("partial(jax.random.normal, shape=(3,))", True),
        ("jax.random.bernoulli(key, 0.5)", True),
        ("jax.random.bernoulli(key, probability)", False),
        ("self.param('bias', zeros, (3,))", True),
    ],
)
def test_what_is_untyped(code: str, is_untyped: bool) -> None:
    assert bool(list(find_untyped(code))) == is_untyped
