"""Loading of RLlib's own example scripts from the installed package, with the import renamed.

What a user would replace is replaced: the command line, and the call that starts Ray Tune.
"""

import argparse
import ast
import contextlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest

import jaxrl

FORMER_STACK = ("OldAPIStack", "RandomPolicy")
"""Parts of the names of RLlib's former classes, which the scripts import for `--old-api-stack`."""


def find_source(path: str) -> str:
    """Return the source of a file of RLlib, without importing it; skip if it is not installed."""
    spec = importlib.util.find_spec("ray")
    if spec is None or spec.origin is None:
        pytest.skip("Ray is not installed")
    file = Path(spec.origin).parent / "rllib" / path
    if not file.exists():
        pytest.skip(f"this version of RLlib has no {path}")
    return file.read_text()


class Parser(argparse.ArgumentParser):
    """Parser of an example's arguments, which are given by a test.

    Args:
        given: Command line.
        defaults: What the example sets as its own defaults.
    """

    def __init__(self, given: list[str], defaults: dict[str, Any]) -> None:
        super().__init__(allow_abbrev=False)
        self._given = given
        self.add_argument("--algo", default="PPO")
        self.add_argument("--env")
        self.add_argument("--num-agents", type=int, default=0)
        self.add_argument("--num-env-runners", type=int, default=None)
        reward, steps = (
            defaults.get("default_reward", 100.0),
            defaults.get("default_timesteps", 100_000),
        )
        self.add_argument("--stop-reward", type=float, default=reward)
        self.add_argument("--stop-iters", type=int, default=defaults.get("default_iters", 200))
        self.add_argument("--stop-timesteps", type=int, default=steps)
        self.set_defaults(old_api_stack=False)

    def parse_args(self) -> argparse.Namespace:  # pyright: ignore
        return super().parse_args(self._given)


class _Renaming(ast.NodeTransformer):
    """Renames imports of RLlib; names of `replaced` are bound by the test instead."""

    def __init__(self, replaced: dict[str, Any]) -> None:
        self._replaced = replaced

    def visit_Import(self, node: ast.Import) -> Any:
        return None if node.names[0].name == "torch" else node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        module = node.module or ""
        names = [
            alias
            for alias in node.names
            if alias.name not in self._replaced
            and not any(part in alias.name for part in FORMER_STACK)
        ]
        if not names:
            return None
        return ast.ImportFrom(
            module.replace("ray.rllib", "jaxrl"), [ast.alias(x.name, x.asname) for x in names], 0
        )


def load(path: str, **replaced: Any) -> dict[str, Any]:
    """Execute a file of RLlib with imports renamed, and return its names."""
    tree = _Renaming(replaced).visit(ast.parse(find_source(path)))
    former = {
        alias.name: None
        for node in ast.walk(ast.parse(find_source(path)))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if any(part in alias.name for part in FORMER_STACK)
    }
    scope = {"__name__": "__main__", **former, **replaced}
    exec(compile(ast.fix_missing_locations(tree), path, "exec"), scope)
    return scope


def get_trainable_cls(name: str) -> Any:
    """Return the class of an algorithm, by whose default config the scripts begin."""
    return getattr(jaxrl, name)


def load_example(name: str, *given: str, **replaced: Any) -> tuple[Any, argparse.Namespace]:
    """Return the config that an example makes, and its arguments."""
    found: list[Any] = []

    def make_parser(**defaults: Any) -> Parser:
        return Parser(list(given), defaults)

    def start(config: Any, args: argparse.Namespace, **others: Any) -> Any:
        found.extend((config, args))
        raise _Started

    own = {
        "add_rllib_example_script_args": make_parser,
        "run_rllib_example_script_experiment": start,
        "get_trainable_cls": get_trainable_cls,
        "register_env": jaxrl.register_env,
        **replaced,
    }
    with contextlib.suppress(_Started):
        load(f"examples/{name}.py", **own)
    config, args = found
    return config, args


class _Started(Exception):
    """Raised where an example would start Ray Tune."""
