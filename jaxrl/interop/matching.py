"""Assignment of the layers of another library's network to those of a module, with all problems."""

import dataclasses
import re
from collections.abc import Mapping, Sequence

import gymnasium
import numpy as np
from gymnasium import spaces

from jaxrl.errors import ConfigError, did_you_mean
from jaxrl.interop.layers import (
    ACTION_VALUES,
    CONV,
    CRITIC,
    DENSE,
    GRU,
    LSTM,
    NORM,
    POLICY,
    VALUE,
    ModuleLayer,
    Path,
    TorchLayer,
    Tree,
    convert_layer,
    find_layer,
    find_layers,
    get_chains,
    join_outputs,
    list_shapes,
    reorder_inputs,
)
from jaxrl.interop.sources import Arrays

LOG_STD: Path = ("log_std",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Naming:
    """Names of a library's layers.

    Args:
        library: Name of the library.
        branches: For each network, its stages in order; each stage is a list of alternatives, of
            which the first that has layers counts. `{i}` is the number of a critic.
        log_std: Names of the parameter with the logarithm of the standard deviation.
        log_std_head: Name of a layer that outputs it, next to the policy's last one.
        ignored: Pattern of the arrays that are not needed to act or to train on.
        critics_differ: Reason why critics of actions cannot be imported; None if they can.
        flattens_channels_first: Whether an image, or the output of convolutions, is flattened
            channel by channel.
        scales_images: Whether 8-bit images are divided by 255.
        squashes: Whether actions in a Box that are sampled from a normal are scaled from [-1, 1];
            None if that is a setting as it is here.
    """

    library: str
    branches: Mapping[str, Sequence[Sequence[str]]]
    log_std: Sequence[str]
    log_std_head: str | None = None
    ignored: str
    critics_differ: str | None = None
    flattens_channels_first: bool
    scales_images: bool
    squashes: bool | None

    def is_ignored(self, name: str) -> bool:
        """Return whether an array is not needed."""
        return re.match(self.ignored, name) is not None


_SB3_CRITIC = [["critic.features_extractor"], ["critic.qf{i}"]]
SB3 = Naming(
    library="Stable-Baselines3",
    branches={
        POLICY: [
            ["actor.features_extractor", "pi_features_extractor", "features_extractor"],
            ["lstm_actor"],
            ["actor.latent_pi", "mlp_extractor.policy_net"],
            ["actor.mu", "action_net"],
        ],
        VALUE: [
            ["vf_features_extractor", "features_extractor"],
            ["lstm_critic", "lstm_actor"],
            ["mlp_extractor.value_net"],
            ["value_net"],
        ],
        ACTION_VALUES: [["q_net.features_extractor"], ["q_net.q_net"]],
        "critic {i}": _SB3_CRITIC,
    },
    log_std=["log_std"],
    log_std_head="actor.log_std",
    ignored=r"(critic_target|actor_target|q_net_target)\.|.*\.num_batches_tracked$",
    flattens_channels_first=True,
    scales_images=True,
    squashes=False,
)

_RLLIB_ACTOR = ("encoder.actor_encoder", "encoder.encoder", "pi_encoder")
_RLLIB_CRITIC = ("encoder.critic_encoder", "encoder.encoder", "encoder")


def _list_rllib_stages(encoders: Sequence[str], head: str) -> list[list[str]]:
    """Return the stages of a network: what encodes observations, what remembers them, the head."""
    return [
        [f"{name}.{part}" for name in encoders for part in ("tokenizer", "net")],
        [f"{name}.{part}" for name in encoders for part in ("lstm", "gru")],
        [head],
    ]


RLLIB = Naming(
    library="RLlib",
    branches={
        POLICY: _list_rllib_stages(_RLLIB_ACTOR, "pi"),
        VALUE: _list_rllib_stages(_RLLIB_CRITIC, "vf"),
        ACTION_VALUES: _list_rllib_stages(("encoder",), "af"),
    },
    log_std=["pi.log_std"],
    ignored=r"_?target_|qf_|qf\.|.*log_std_clip_param_const$",
    critics_differ="RLlib's critics encode observations and actions apart, and these do not",
    flattens_channels_first=False,
    scales_images=False,
    squashes=None,
)

NAMINGS: Mapping[str, Naming] = {"sb3": SB3, "rllib": RLLIB}


def get_naming(name: str) -> Naming:
    """Return the naming of a library.

    Raises:
        ConfigError: If the name is unknown.
    """
    if name not in NAMINGS:
        raise ConfigError(
            f"mapping is {name!r}, which is not known.{did_you_mean(name, NAMINGS)} Known: "
            f"{', '.join(map(repr, NAMINGS))}, or a dict {{'name of their layer': "
            "'path/of/yours'}."
        )
    return NAMINGS[name]


def get_stages(naming: Naming, branch: str) -> Sequence[Sequence[str]] | None:
    """Return the stages of a network; None if the library has no such one."""
    if branch in naming.branches:
        return naming.branches[branch]
    stem, _, number = branch.rpartition(" ")
    stages = naming.branches.get(f"{stem} {{i}}")
    if stages is None:
        return None
    return [[name.replace("{i}", number) for name in stage] for stage in stages]


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
    full = [inner for inner, _ in list_shapes(params)]
    known = {"/".join(inner[:n]) for inner in full for n in range(1, len(inner) + 1)}
    return did_you_mean(path, sorted(known))
