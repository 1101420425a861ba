"""Assignment of the layers of another library's network to those of a module, with all problems."""

import dataclasses
import re
from collections.abc import Mapping, Sequence

import gymnasium
import numpy as np
from gymnasium import spaces

from jaxrl.interop.module_layers import (
    ACTION_VALUES,
    CRITIC,
    POLICY,
    VALUE,
    ModuleLayer,
    Path,
    Tree,
    get_chains,
    list_shapes,
)
from jaxrl.interop.names import Naming, get_stages
from jaxrl.interop.sources import Arrays
from jaxrl.interop.torch_layers import (
    CONV,
    DENSE,
    GRU,
    LSTM,
    NORM,
    TorchLayer,
    convert_layer,
    find_layers,
    join_outputs,
    reorder_inputs,
)

LOG_STD: Path = ("log_std",)


@dataclasses.dataclass
class Assignment:
    """Arrays of a module by path, and a phrase for each problem.

    `used` are the names of all arrays that have a place, or that are known to have none.
    """

    arrays: dict[Path, np.ndarray] = dataclasses.field(default_factory=dict[Path, np.ndarray])
    problems: list[str] = dataclasses.field(default_factory=list[str])
    used: set[str] = dataclasses.field(default_factory=set[str])
    assigned_from: dict[Path, str] = dataclasses.field(default_factory=dict[Path, str])

    def assign(self, source: TorchLayer, target: ModuleLayer) -> None:
        """Assign a layer's converted arrays to a layer of the module."""
        for inner, array in convert_layer(source).items():
            path = (*target.path, *inner)
            expected = target.shapes[inner]
            if array.shape != expected:
                self.problems.append(_describe_shapes(source, path, array, expected))
            else:
                self.set_array(path, array, source.name)

    def set_array(self, path: Path, array: np.ndarray, source: str) -> None:
        """Set an array; two sources of one array must agree."""
        if path in self.arrays and not np.array_equal(self.arrays[path], array):
            self.problems.append(
                f"{self.assigned_from[path]} and {source} differ, but the module has one "
                f"{'/'.join(path)} for both (set vf_share_layers=False in model_config)"
            )
            return
        self.arrays[path] = array
        self.assigned_from[path] = source

    def add_missing(self, params: Tree) -> None:
        """Add a problem for each array of the module that nothing was assigned to."""
        known = " ".join(self.problems)
        for path, shape in list_shapes(params):
            name = "/".join(path)
            is_reported = any(f"{'/'.join(path[:n])} " in known for n in range(2, len(path) + 1))
            if path not in self.arrays and not is_reported:
                self.problems.append(f"nothing in the file is {name} {shape}")

    def add_left_over(self, arrays: Arrays) -> None:
        """Add a problem for each array of the file that has no place in the module."""
        known = " ".join(self.problems)
        for name, array in arrays.items():
            if name not in self.used and f"{name.rpartition('.')[0]} " not in known:
                self.problems.append(
                    f"{name} {array.shape} is left over, nothing in the module takes it"
                )


def match_by_naming(
    arrays: Arrays, params: Tree, naming: Naming, space: gymnasium.Space[object]
) -> Assignment:
    """Assign the arrays of a library to those of a module, network by network.

    Args:
        arrays: Arrays by the library's names.
        params: Parameters of the module.
        naming: Names of the library.
        space: Space of the observations that the module's network sees.
    """
    done = Assignment()
    layers, alone = find_layers(arrays)
    done.used |= {name for name in arrays if naming.is_ignored(name)}
    chains = get_chains(params)
    for branch, chain in chains.items():
        if naming.critics_differ and branch.startswith(CRITIC):
            part = "/".join(chain[0].path[:2])
            done.problems.append(f"{part} cannot be imported ({naming.critics_differ})")
            continue
        source, has_head = _select_branch(layers, naming, branch, done)
        if branch == VALUE and ACTION_VALUES in chains and not source:
            done.problems.append(
                f"{chain[-1].name} is missing in the file, which has no dueling heads (set "
                "training(dueling=False))"
            )
            continue
        if branch == POLICY:
            source = _join_log_std_head(source, layers, naming, done)
        source = _adapt_inputs(source, naming, space, done)
        _match_chain(branch, source, chain, done, has_head=has_head)
    _match_log_std(alone, params, naming, done)
    _mark_used(layers, done)
    done.add_missing(params)
    done.add_left_over(arrays)
    return done


def _select_branch(
    layers: Mapping[str, TorchLayer], naming: Naming, branch: str, done: Assignment
) -> tuple[list[TorchLayer], bool]:
    """Return the layers of a network in order, and whether those of the last stage are there."""
    selected: list[TorchLayer] = []
    of_stage: list[TorchLayer] = []
    for stage in get_stages(naming, branch) or ():
        found = [_find_under(layers, prefix) for prefix in stage]
        of_stage = next(filter(None, found), [])
        selected += of_stage
        # The others are the same layers under another name, as SB3 lists shared extractors.
        done.used |= {layer.name for group in found for layer in group}
    return selected, bool(of_stage)


def _find_under(layers: Mapping[str, TorchLayer], prefix: str) -> list[TorchLayer]:
    names = [name for name in layers if re.match(rf"{re.escape(prefix)}($|[. ])", name)]
    return [layers[name] for name in sorted(names, key=_sort_naturally)]


def _sort_naturally(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _mark_used(layers: Mapping[str, TorchLayer], done: Assignment) -> None:
    """Replace the names of used layers by those of their arrays."""
    for name, layer in layers.items():
        if name in done.used:
            done.used |= set(layer.list_array_names())


def _join_log_std_head(
    source: list[TorchLayer], layers: Mapping[str, TorchLayer], naming: Naming, done: Assignment
) -> list[TorchLayer]:
    """Join the layer of means and that of standard deviations, which are one layer here."""
    head = layers.get(naming.log_std_head or "")
    if head is None or not source:
        return source
    done.used.add(head.name)
    last = source[-1]
    if head.arrays["weight"].shape[1:] != last.arrays["weight"].shape[1:]:
        done.problems.append(f"{last.name} and {head.name} have different inputs")
        return source
    return [*source[:-1], join_outputs(f"{last.name} with {head.name}", last, head)]


def _adapt_inputs(
    source: list[TorchLayer], naming: Naming, space: gymnasium.Space[object], done: Assignment
) -> list[TorchLayer]:
    """Reorder and scale the inputs of layers where the library's differ from the module's."""
    adapted = list(source)
    for i, (before, layer) in enumerate(zip([None, *source], source, strict=False)):
        if layer.kind == NORM:
            continue
        order, factor, num_inputs = None, 1.0, 0
        if before is None:
            order, factor = _get_input_order(layer, naming, space), _get_scale(naming, space)
            num_inputs = int(np.prod(space.shape or ()))
        elif before.kind == CONV and layer.kind != CONV and not naming.flattens_channels_first:
            order = _order_channels_first(layer, before.size, done)
        if order is not None or factor != 1.0:
            adapted[i] = reorder_inputs(layer, order, factor, num_inputs)
    return adapted


def _get_input_order(
    layer: TorchLayer, naming: Naming, space: gymnasium.Space[object]
) -> np.ndarray | None:
    """Return the order of a flattened image's pixels; None if it is the library's own.

    A module flattens an image `[H, W, C]` as it is.
    """
    if layer.kind == CONV or not naming.flattens_channels_first or not _is_image(space):
        return None
    shape = space.shape or (1,)
    return np.arange(int(np.prod(shape))).reshape(shape[-1], -1).T.reshape(-1)


def _order_channels_first(layer: TorchLayer, channels: int, done: Assignment) -> np.ndarray | None:
    """Return the order of the pixels that convolutions output, which a module flattens `[C, H, W]`."""
    name = "weight_ih" if layer.kind in (LSTM, GRU) else "weight"
    num = layer.arrays[name].shape[1]
    if num % channels:
        done.problems.append(f"{layer.name} has {num} inputs, no multiple of {channels} channels")
        return None
    return np.arange(num).reshape(-1, channels).T.reshape(-1)


def _is_image(space: gymnasium.Space[object]) -> bool:
    """Return whether SB3 takes a space for an image with the channels last, and transposes it."""
    return (
        isinstance(space, spaces.Box)
        and len(space.shape) == 3
        and space.dtype == np.uint8
        and bool(np.all(space.low == 0) and np.all(space.high == 255))
        and int(np.argmin(space.shape)) != 0
    )


def _get_scale(naming: Naming, space: gymnasium.Space[object]) -> float:
    """Return the library's scale of integer observations over that of a module's encoder."""
    if not isinstance(space, spaces.Box) or np.issubdtype(space.dtype, np.floating):
        return 1.0
    of_module = 1.0 / max(float(np.max(space.high)), 1.0)
    of_library = 1.0 / 255.0 if naming.scales_images and _is_image(space) else 1.0
    return of_library / of_module


def _match_chain(
    branch: str,
    source: Sequence[TorchLayer],
    chain: Sequence[ModuleLayer],
    done: Assignment,
    *,
    has_head: bool,
) -> None:
    """Assign layers in order; the head to the head, so that a missing one is recognized."""
    if not source:
        done.problems += [
            f"the {branch} network's {target.kind} {target.name} is missing in the file"
            for target in chain
        ]
        return
    for target in chain:
        if target.kind is None:
            done.problems.append(f"{target.name} has a layout that torch's layers do not have")
    pairs, left_over, missing = _pair(source, chain, has_head=has_head)
    for layer, target in pairs:
        if layer.kind == NORM:
            done.problems.append(
                f"{layer.name} is a LayerNorm, whose epsilon differs from that of {target.name} "
                "(1e-6)"
            )
        else:
            done.assign(layer, target)
    for layer in left_over:
        done.problems.append(
            f"{layer.name} ({layer.kind} of {layer.size}) is left over: in the {branch} network, "
            f"the file has {_describe(source)}, and the module {_describe_chain(chain)}"
        )
    for target in missing:
        done.problems.append(
            f"{target.name} ({target.kind}) is missing: in the {branch} network, the file has "
            f"{_describe(source)}, and the module {_describe_chain(chain)}"
        )


def _pair(
    source: Sequence[TorchLayer], chain: Sequence[ModuleLayer], *, has_head: bool
) -> tuple[list[tuple[TorchLayer, ModuleLayer]], list[TorchLayer], list[ModuleLayer]]:
    """Pair layers of the same kind in order; return the pairs and what remains of each side."""
    pairs: list[tuple[TorchLayer, ModuleLayer]] = []
    left_over: list[TorchLayer] = []
    waiting = [target for target in chain if target.kind is not None]
    body, last = list(source), None
    head = waiting.pop() if waiting else None
    if head is not None and has_head and body[-1].kind == head.kind:
        last = (body.pop(), head)
    for layer in body:
        if any(target.kind == layer.kind for target in waiting):
            index = next(i for i, target in enumerate(waiting) if target.kind == layer.kind)
            pairs.append((layer, waiting.pop(index)))
        else:
            left_over.append(layer)
    if last is None and head is not None:
        waiting.append(head)
    return pairs + ([last] if last else []), left_over, waiting


def _match_log_std(alone: Arrays, params: Tree, naming: Naming, done: Assignment) -> None:
    """Assign a standard deviation that does not depend on the observation."""
    expected = dict(list_shapes(params)).get(LOG_STD)
    for name in naming.log_std:
        if name not in alone:
            continue
        array = alone[name]
        done.used.add(name)
        if expected is None:
            done.problems.append(
                f"{name} {array.shape} is left over: a standard deviation that does not depend on "
                "the observation needs model_config={'free_log_std': True}"
            )
        elif array.ndim != 1:
            done.problems.append(
                f"{name} has shape {array.shape}: state-dependent exploration (use_sde=True) does "
                "not exist here"
            )
        elif array.shape != expected:
            done.problems.append(f"{name} has shape {array.shape}, expected {expected} of log_std")
        else:
            done.set_array(LOG_STD, array, name)


def _describe(source: Sequence[TorchLayer]) -> str:
    return ", ".join(f"{layer.kind} {layer.size}" for layer in source)


def _describe_chain(chain: Sequence[ModuleLayer]) -> str:
    return ", ".join(f"{layer.kind} {layer.size}" for layer in chain) or "no layers"


def _describe_shapes(
    source: TorchLayer, path: Path, array: np.ndarray, expected: tuple[int, ...]
) -> str:
    """Describe a mismatch of shapes; a layer that was transposed before is recognized."""
    text = f"{source.name} gives {'/'.join(path)} the shape {array.shape}, expected {expected}"
    if source.kind == DENSE and array.ndim == 2 and array.shape[::-1] == expected:
        return f"{text}: it is transposed, torch's weights are [outputs, inputs]"
    return text
