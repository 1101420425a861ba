"""Assignment of layers and arrays by a mapping of the caller's."""

from collections.abc import Mapping, Sequence

import numpy as np

from jaxrl.errors import did_you_mean
from jaxrl.interop.matching import Assignment
from jaxrl.interop.module_layers import Path, Tree, find_layer, list_shapes
from jaxrl.interop.sources import Arrays
from jaxrl.interop.torch_layers import TorchLayer, find_layers


def match_by_own_mapping(
    arrays: Arrays, params: Tree, mapping: Mapping[str, str | Sequence[str] | None]
) -> Assignment:
    """Assign the layers and arrays named in a mapping.

    Args:
        arrays: Arrays of the source.
        params: Parameters of the module.
        mapping: Names of the source's layers or arrays, each with the path of the module's layer or
            array, several of them, or None to leave it out.
    """
    done = Assignment()
    layers, _ = find_layers(arrays)
    known = [*layers, *arrays]
    for name, targets in mapping.items():
        paths = [targets] if isinstance(targets, str) else list(targets or ())
        if name in layers:
            done.used |= set(layers[name].list_array_names())
            for path in paths:
                _assign_layer(layers[name], path, params, done)
        elif name in arrays:
            done.used.add(name)
            for path in paths:
                _assign_array(name, arrays[name], path, params, done)
        else:
            done.problems.append(f"the source has no {name!r}.{did_you_mean(name, known)}")
    done.add_missing(params)
    done.add_left_over(arrays)
    return done


def _assign_layer(layer: TorchLayer, path: str, params: Tree, done: Assignment) -> None:
    target = find_layer(params, _split(path))
    if target is None:
        done.problems.append(f"the module has no layer {path!r}.{_suggest(path, params)}")
    elif target.kind != layer.kind:
        done.problems.append(
            f"{layer.name} is a {layer.kind}, but {path} is a {target.kind or 'layer of its own'}"
        )
    else:
        done.assign(layer, target)


def _assign_array(name: str, array: np.ndarray, path: str, params: Tree, done: Assignment) -> None:
    shapes = dict(list_shapes(params))
    target = _split(path)
    if target not in shapes:
        done.problems.append(f"the module has no array {path!r}.{_suggest(path, params)}")
    elif shapes[target] != array.shape:
        done.problems.append(f"{name} has shape {array.shape}, expected {shapes[target]} of {path}")
    else:
        done.set_array(target, array, name)


def _split(path: str) -> Path:
    return tuple(path.strip("/").split("/"))


def _suggest(path: str, params: Tree) -> str:
    """Suggest a path among those of arrays and of layers."""
    full = [inner for inner, _ in list_shapes(params)]
    known = {"/".join(inner[:n]) for inner in full for n in range(1, len(inner) + 1)}
    return did_you_mean(path, sorted(known))
