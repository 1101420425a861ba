"""Layers of torch among the arrays of a state dict, and those of the library's own modules."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias, cast

import numpy as np

from jaxrl.errors import ModuleError
from jaxrl.interop.sources import Arrays

CONV, DENSE, NORM, LSTM, GRU = "convolution", "dense layer", "LayerNorm", "LSTM", "GRU"
_KIND_OF_WEIGHT = {4: CONV, 2: DENSE, 1: NORM}
_RECURRENT_KINDS = {4: LSTM, 3: GRU}
_OF_NUMBER = " layer "
_RECURRENT = re.compile(r"(weight_ih|weight_hh|bias_ih|bias_hh)_l(\d+)")


@dataclasses.dataclass(frozen=True)
class TorchLayer:
    """A layer's arrays, by the last part of their names.

    Args:
        name: Name that the arrays have in common.
        kind: Kind of layer.
        arrays: `weight` and `bias`, or `weight_ih` and so on.
    """

    name: str
    kind: str
    arrays: Mapping[str, np.ndarray]

    @property
    def size(self) -> int:
        """Number of outputs."""
        if self.kind in (LSTM, GRU):
            return self.arrays["weight_hh"].shape[1]
        return self.arrays["weight"].shape[0]

    def list_array_names(self) -> list[str]:
        """Return the full names of the arrays."""
        prefix, separator, number = self.name.rpartition(_OF_NUMBER)
        if self.kind in (LSTM, GRU) and separator:
            return [f"{prefix}.{suffix}_l{number}" for suffix in self.arrays]
        return [f"{self.name}.{suffix}" for suffix in self.arrays]


def find_layers(arrays: Arrays) -> tuple[dict[str, TorchLayer], Arrays]:
    """Group arrays by layer; return the layers by name and the arrays outside of layers."""
    groups: dict[str, Arrays] = {}
    alone: Arrays = {}
    for name, array in arrays.items():
        prefix, _, suffix = name.rpartition(".")
        recurrent = _RECURRENT.fullmatch(suffix)
        if recurrent is not None:
            key = f"{prefix}{_OF_NUMBER}{recurrent[2]}"
            groups.setdefault(key, {})[recurrent[1]] = array
        elif suffix in ("weight", "bias"):
            groups.setdefault(prefix, {})[suffix] = array
        else:
            alone[name] = array
    layers: dict[str, TorchLayer] = {}
    for name, group in groups.items():
        kind = _get_kind(group)
        if kind is None:
            alone |= {f"{name}.{suffix}": array for suffix, array in group.items()}
        else:
            layers[name] = TorchLayer(name, kind, group)
    return layers, alone


def _get_kind(group: Arrays) -> str | None:
    if "weight" in group:
        return _KIND_OF_WEIGHT.get(group["weight"].ndim)
    if {"weight_ih", "weight_hh"} <= group.keys() and group["weight_hh"].ndim == 2:
        rows, size = group["weight_hh"].shape
        return _RECURRENT_KINDS.get(rows // size) if size and rows % size == 0 else None
    return None


def convert_layer(layer: TorchLayer) -> dict[tuple[str, ...], np.ndarray]:
    """Convert a layer to flax's arrays by path within the layer.

    Kernels are transposed, `[out, in]` to `[in, out]` and OIHW to HWIO. Gates are in the same order
    in both libraries (i, f, g, o and r, z, n). The two biases of a gate are added, but for that of
    the GRU's candidate, of which the reset gate scales one. A missing bias is 0.
    """
    arrays = layer.arrays
    if layer.kind in (LSTM, GRU):
        return _convert_recurrent(layer)
    weight = arrays["weight"]
    bias = arrays.get("bias", np.zeros(weight.shape[0], np.float32))
    match layer.kind:
        case "LayerNorm":
            return {("scale",): weight, ("bias",): bias}
        case "convolution":
            return {("kernel",): weight.transpose(2, 3, 1, 0), ("bias",): bias}
        case _:
            return {("kernel",): weight.T, ("bias",): bias}


def _convert_recurrent(layer: TorchLayer) -> dict[tuple[str, ...], np.ndarray]:
    arrays, size = layer.arrays, layer.size
    zeros = np.zeros(arrays["weight_ih"].shape[0], np.float32)
    of_input, of_hidden = arrays.get("bias_ih", zeros), arrays.get("bias_hh", zeros)
    converted: dict[tuple[str, ...], np.ndarray] = {
        ("inputs", "kernel"): arrays["weight_ih"].T,
        ("recurrent_kernel",): arrays["weight_hh"].T,
    }
    if layer.kind == LSTM:
        return {**converted, ("inputs", "bias"): of_input + of_hidden}
    gates = of_input + of_hidden * (np.arange(len(zeros)) < 2 * size)
    return {**converted, ("inputs", "bias"): gates, ("recurrent_bias",): of_hidden[2 * size :]}


def reorder_inputs(
    layer: TorchLayer, order: np.ndarray | None, factor: float, num_scaled: int
) -> TorchLayer:
    """Reorder and scale a layer's inputs.

    Args:
        layer: Layer, not a LayerNorm.
        order: Index of the layer's input at each input of the result; further inputs stay where
            they are. None keeps the order.
        factor: Factor of the weights of the first inputs.
        num_scaled: Number of inputs that the factor applies to; all channels of a convolution.
    """
    name = "weight_ih" if layer.kind in (LSTM, GRU) else "weight"
    weight = layer.arrays[name]
    if order is not None:
        rest = np.arange(len(order), weight.shape[1])
        weight = weight[:, np.concatenate([order, rest])]
    if factor != 1.0:
        scale = np.ones(weight.shape[1], np.float32)
        scale[: len(scale) if layer.kind == CONV else num_scaled] = factor
        weight = weight * scale.reshape(1, -1, *[1] * (weight.ndim - 2))
    return dataclasses.replace(layer, arrays={**layer.arrays, name: weight})


def join_outputs(name: str, first: TorchLayer, second: TorchLayer) -> TorchLayer:
    """Join two dense layers of the same inputs into one with the outputs of both."""
    both = [layer.arrays for layer in (first, second)]
    return TorchLayer(
        name,
        DENSE,
        {
            "weight": np.concatenate([arrays["weight"] for arrays in both]),
            "bias": np.concatenate(
                [arrays.get("bias", np.zeros(len(arrays["weight"]), np.float32)) for arrays in both]
            ),
        },
    )


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
