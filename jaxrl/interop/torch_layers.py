"""Layers of torch among the arrays of a state dict, converted to the layouts of flax."""

import dataclasses
import re
from collections.abc import Mapping

import numpy as np

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
