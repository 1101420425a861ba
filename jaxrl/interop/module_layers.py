"""Layers of the library's own modules, in the order in which observations pass through them."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias, cast

import numpy as np

from jaxrl.errors import ModuleError
from jaxrl.interop.torch_layers import CONV, DENSE, GRU, LSTM, NORM

Path: TypeAlias = tuple[str, ...]
Tree: TypeAlias = Mapping[str, object]
"""Parameters: arrays in nested dicts."""

POLICY, VALUE, ACTION_VALUES, CRITIC = "policy", "value", "action values", "critic"


@dataclasses.dataclass(frozen=True)
class ModuleLayer:
    """A layer of a module: its path, kind, and the shapes of its arrays by path within it.

    `kind` is None for layers that torch does not have.
    """

    path: Path
    kind: str | None
    shapes: Mapping[Path, tuple[int, ...]]

    @property
    def name(self) -> str:
        """Path with slashes."""
        return "/".join(self.path)

    @property
    def size(self) -> int:
        """Number of outputs."""
        if self.kind in (LSTM, GRU):
            return self.shapes["recurrent_kernel",][0]
        return next(iter(self.shapes.values()))[-1]


def list_shapes(tree: Tree, prefix: Path = ()) -> Iterator[tuple[Path, tuple[int, ...]]]:
    """Yield the path and the shape of every array."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from list_shapes(cast(Tree, value), (*prefix, name))
        else:
            yield (*prefix, name), np.shape(cast(np.ndarray, value))


def get_chains(params: Tree) -> dict[str, list[ModuleLayer]]:
    """Return the layers of each network of a module, by what it computes.

    The names are `POLICY`, `VALUE`, `ACTION_VALUES`, and "critic 0", ... for critics of actions.

    Raises:
        ModuleError: If the module is not one of the library's own.
    """
    names = set(params)
    if "pi_head" in names:
        policy, value = ("encoder",) * 2 if "encoder" in names else ("pi_encoder", "vf_encoder")
        parts: dict[str, list[Path]] = {
            POLICY: [(policy,), ("pi_head",)],
            VALUE: [(value,), ("vf_head",)],
        }
    elif "q_head" in names:
        parts = {ACTION_VALUES: [("encoder",), ("q_head",)]}
        if "vf_head" in names:
            parts[VALUE] = [("encoder",), ("vf_head",)]
    elif names == {"policy", "critic"}:
        parts = {POLICY: [("policy", "encoder"), ("policy", "head")]}
        for name in cast(Tree, params["critic"]):
            path = ("critic", name)
            parts[f"{CRITIC} {name.rpartition('_')[2]}"] = [
                (*path, part) for part in ("encoder", "joint", "head")
            ]
    else:
        raise ModuleError(
            f"The module has the parts {', '.join(sorted(names))}, which mapping names of other "
            "libraries do not know; pass mapping={'name of their layer': 'path/of/yours', ...}."
        )
    return {
        name: [layer for path in paths for layer in _walk(params, path)]
        for name, paths in parts.items()
    }


def _walk(params: Tree, path: Path) -> Iterator[ModuleLayer]:
    """Yield the layers of a part; none if it has no parameters."""
    tree = _get_tree(params, path)
    if tree is not None:
        yield from _walk_tree(tree, path)


def find_layer(params: Tree, path: Path) -> ModuleLayer | None:
    """Return the layer at a path; None if there is none."""
    tree = _get_tree(params, path)
    return None if tree is None else _make_layer(tree, path)


def _get_tree(params: Tree, path: Path) -> Tree | None:
    """Return the parameters below a path; None if there are none."""
    tree: object = params
    for name in path:
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree if isinstance(tree, Mapping) else None


_ORDER = ("features", "cnn", "images", "mlp", "memory", "joint", "hidden", "out")


def _walk_tree(tree: Tree, path: Path) -> Iterator[ModuleLayer]:
    layer = _make_layer(tree, path)
    if layer is not None:
        yield layer
        return
    for name in sorted(tree, key=_get_position):
        yield from _walk_tree(cast(Tree, tree[name]), (*path, name))


def _get_position(name: str) -> tuple[int, int, bool]:
    """Return the sort key of a part: stages in order, then layers by number, norms after them."""
    stem, _, number = name.rpartition("_")
    if not number.isdigit():
        stem, number = name, "0"
    stage = _ORDER.index(stem) if stem in _ORDER else len(_ORDER)
    return stage, int(number), stem == "norm"


def _make_layer(tree: Tree, path: Path) -> ModuleLayer | None:
    """Return the layer that a tree is; None if it contains layers."""
    shapes = dict(list_shapes(tree))
    names = set(shapes)
    kernel = ("kernel",)
    if names == {kernel, ("bias",)}:
        return ModuleLayer(path, CONV if len(shapes[kernel]) == 4 else DENSE, shapes)
    if names == {("scale",), ("bias",)}:
        return ModuleLayer(path, NORM, shapes)
    recurrent = {("inputs", "kernel"), ("inputs", "bias"), ("recurrent_kernel",)}
    if names == recurrent:
        return ModuleLayer(path, LSTM, shapes)
    if names == recurrent | {("recurrent_bias",)}:
        return ModuleLayer(path, GRU, shapes)
    is_leafy = any(not isinstance(value, Mapping) for value in tree.values())
    has_parts = all(re.fullmatch(r"[a-z]+(_\d+)?", name) for name in tree)
    return ModuleLayer(path, None, shapes) if is_leafy or not has_parts else None
