"""Import of weights into an Algorithm or into a module's parameters."""

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias, cast

import gymnasium
import jax
import numpy as np
from gymnasium import spaces
from jax.tree_util import DictKey, keystr

from jaxrl.algorithm import Algorithm
from jaxrl.assembly.offline import check_statistics_may_change
from jaxrl.core.struct import replace
from jaxrl.core.types import PyTree
from jaxrl.distributions.base import DiagGaussian
from jaxrl.errors import ConfigError, ModuleError, UnknownNameError, did_you_mean
from jaxrl.interop.layers import Path, Tree, list_shapes
from jaxrl.interop.matching import (
    Assignment,
    Naming,
    get_naming,
    match_by_naming,
    match_by_own_mapping,
)
from jaxrl.interop.sources import Arrays, Source, read_arrays
from jaxrl.metrics import DEFAULT_MODULE
from jaxrl.modules.encoder_module import EncoderModule
from jaxrl.modules.policy_and_critics import PolicyQModule
from jaxrl.modules.rl_module import RLModule
from jaxrl.ops.statistics import RunningMoments
from jaxrl.runs.weights import list_modules
from jaxrl.training.train_state import TrainState

_NAME = re.compile(r"obs_rms\.(?:(.+)\.)?(mean|var|count)")
_PARTS = ("mean", "var", "count")
Statistics = Mapping[str, Arrays]
"""Arrays `mean`, `var` and `count`, by name of the observation's part; "" for the whole."""


def split_filter_arrays(arrays: Arrays) -> tuple[Arrays, Statistics]:
    """Split arrays into those of layers and those of filters."""
    weights: Arrays = {}
    statistics: dict[str, Arrays] = {}
    for name, array in arrays.items():
        found = _NAME.fullmatch(name)
        if found is None:
            weights[name] = array
        else:
            statistics.setdefault(found[1] or "", {})[found[2]] = array
    return weights, statistics


def with_filter_arrays(state: TrainState, statistics: Statistics) -> tuple[TrainState, list[str]]:
    """Set the statistics of a run's MeanStdFilter.

    The sum of squared deviations is var × (count − 1), so that the filter divides by the root of
    the same variance.

    Args:
        state: State of the run.
        statistics: Statistics by part; empty leaves the state as it is.

    Returns:
        The new state, and a phrase for each problem.
    """
    problems: list[str] = []
    unused = dict(statistics)

    def set_moments(path: jax.tree_util.KeyPath[object], old: object) -> object:
        if not isinstance(old, RunningMoments):
            return old
        part = ".".join(keystr((key,), simple=True) for key in path if isinstance(key, DictKey))
        name = f"obs_rms.{part}" if part else "obs_rms"
        if part not in unused:
            problems.append(
                f"the module observes through a MeanStdFilter, but there is no {name}.mean "
                '(set observation_filter="NoFilter" if the policy had none)'
            )
            return old
        new, problem = _make_moments(name, unused.pop(part), old)
        if problem:
            problems.append(problem)
        return new

    obs = jax.tree_util.tree_map_with_path(
        set_moments, state.connectors.obs, is_leaf=lambda x: isinstance(x, RunningMoments)
    )
    problems += [
        f"{f'obs_rms.{part}' if part else 'obs_rms'} has no place: set "
        'env_runners(observation_filter="MeanStdFilter")'
        for part in unused
    ]
    return replace(state, connectors=replace(state.connectors, obs=obs)), problems


def _make_moments(
    name: str, arrays: Arrays, old: RunningMoments
) -> tuple[RunningMoments, str | None]:
    missing = [part for part in _PARTS if part not in arrays]
    if missing:
        return old, f"{name}.{missing[0]} is missing"
    mean, variance, count = (arrays[part] for part in _PARTS)
    if mean.shape != old.mean.shape or variance.shape != mean.shape:
        return old, f"{name}.mean has shape {mean.shape}, expected {old.mean.shape}"
    if count.size != 1 or count.item() <= 1.0 or np.any(variance < 0.0):
        return old, f"{name} needs a count above 1 and variances of at least 0"
    rows = np.asarray(count, np.float32).reshape(())
    new = RunningMoments(count=rows, mean=mean, m2=variance * (rows - 1.0))  # pyright: ignore[reportArgumentType]
    placed = jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), new, old)
    return placed, None


Mapped: TypeAlias = str | Mapping[str, str | Sequence[str] | None]
"""Name of a library, or the module's path (or paths, or None to leave it out) of each layer."""


def import_weights(
    algorithm: Algorithm,
    source: Source,
    mapping: Mapped,
    *,
    strict: bool = True,
    module_id: str = DEFAULT_MODULE,
) -> list[str]:
    """Set an Algorithm's weights and filter statistics to those of a policy trained with torch.

    Args:
        algorithm: Algorithm whose module has the same layers.
        source: `.npz`, `.safetensors` or `.h5` file, or a state dict. The arrays `obs_rms.mean`,
            `obs_rms.var` and `obs_rms.count` are the statistics of the MeanStdFilter.
        mapping: "sb3" for a policy of Stable-Baselines3 or sb3-contrib, "rllib" for a module of
            RLlib's, or a dict: the name of their layer or array -> the path of yours,
            `{"net.0": "pi_encoder/mlp/dense_0"}`; a list for several, None to leave one out. An
            array is copied as it is, a layer converted.
        strict: Whether to raise on problems, with nothing changed; False sets what matches.
        module_id: Id of the module, in a run of several agents.

    Returns:
        One phrase per problem; empty if everything matched.

    Raises:
        ModuleError: If the source cannot be read or, with `strict`, if there is any problem.
        ConfigError: If the mapping is unknown.
        UnknownNameError: If there is no such module.
    """
    state = algorithm.state
    modules = list_modules(state)
    if module_id not in modules:
        raise UnknownNameError(
            f"import_weights(module_id={module_id!r}) is not there; the modules are "
            f"{', '.join(modules)}.{did_you_mean(module_id, modules)}"
        )
    arrays, statistics = split_filter_arrays(read_arrays(source))
    weights = cast(Tree, algorithm.get_weights([module_id])[module_id])
    module = algorithm.get_module(module_id)
    done = _match(arrays, weights, mapping, module)
    if isinstance(mapping, str):
        _check_actions(algorithm, module, get_naming(mapping), done)
    own, problems = with_filter_arrays(state.modules.get(module_id, state), statistics)
    state = replace(state, modules={**state.modules, module_id: own}) if state.modules else own
    problems = done.problems + problems
    if problems and strict:
        _raise_problems(problems)
    if statistics and algorithm.config.is_offline:
        check_statistics_may_change(algorithm.get_policy().inference.policy_step)
    algorithm.state = state  # with the statistics
    algorithm.set_weights({module_id: _overlay(weights, done.arrays)})
    return problems


def import_keras_weights(algorithm: Algorithm, source: Source, module_id: str) -> None:
    """Set the weights of a module to those of RLlib's default network that Keras saved.

    A file with this module's own paths, as `policy.model.variables(as_dict=True)` has them, is read as
    well.

    Args:
        algorithm: Algorithm whose module has the same layers.
        source: `.h5` file.
        module_id: Id of the module.

    Raises:
        ModuleError: If the file cannot be read, or does not fit the module.
        UnknownNameError: If there is no such module.
    """
    names = list(read_arrays(source))
    weights = cast(Tree, algorithm.get_weights([module_id])[module_id])
    own = ["/".join(path) for path, _ in list_shapes(weights)]
    if set(names) == set(own):
        mapping: dict[str, str | Sequence[str] | None] = {name: name for name in own}
    else:
        layers = sorted({name.rpartition(".")[0] for name in names})
        mapping = {name: _place_keras_layer(name, weights, layers) for name in layers}
    import_weights(algorithm, source, mapping, module_id=module_id)


_KERAS_LAYER = re.compile(r"fc_(?P<of_value>value_)?(?P<number>[1-9]\d*)")


def _place_keras_layer(name: str, params: Tree, layers: Sequence[str]) -> str:
    """Return the path of the layer that RLlib's default network has under a name.

    Raises:
        ModuleError: If there is none.
    """
    found = _KERAS_LAYER.fullmatch(name)
    heads = {"fc_out": "pi_head/out", "value_out": "vf_head/out"}
    if "pi_head" in params and name in heads:
        return heads[name]
    if "pi_head" in params and found is not None:
        encoder = "vf_encoder" if found["of_value"] else "pi_encoder"
        encoder = "encoder" if "encoder" in params else encoder
        return f"{encoder}/mlp/dense_{int(found['number']) - 1}"
    raise ModuleError(
        f"The file has the layers {', '.join(layers)}, which are not those of RLlib's fully connected "
        "network of a policy and a value: jaxrl.interop.import_weights(algorithm, file, mapping={'name "
        "of their layer': 'path/of/yours'}) takes others."
    )


def convert_weights(source: Source, mapping: Mapped, module: RLModule, params: PyTree) -> PyTree:
    """Convert the weights of a policy trained with torch to a module's parameters.

    Args:
        source: `.npz` or `.safetensors` file, or a state dict.
        mapping: "sb3", "rllib" or a dict, as in `import_weights`.
        module: Module with the same layers.
        params: Parameters of the module, of which the shapes are read.

    Raises:
        ModuleError: If the source cannot be read, or does not fit the module.
        ConfigError: If the mapping is unknown.
    """
    arrays, _ = split_filter_arrays(read_arrays(source))
    done = _match(arrays, cast(Tree, params), mapping, module)
    if done.problems:
        _raise_problems(done.problems)
    return _overlay(cast(Tree, params), done.arrays)


def _raise_problems(problems: Sequence[str]) -> None:
    raise ModuleError(
        f"The weights do not fit the module: {'; '.join(problems)}. "
        "strict=False imports only what matches."
    )


def _match(arrays: Arrays, params: Tree, mapping: Mapped, module: RLModule) -> Assignment:
    if isinstance(mapping, Mapping):
        return match_by_own_mapping(arrays, params, mapping)
    if not isinstance(mapping, str):
        raise ConfigError(
            "mapping must be 'sb3', 'rllib', or a dict {'name of their layer': 'path/of/yours'}, got "
            f"{mapping!r:.80}."
        )
    naming = get_naming(mapping)
    space = cast("gymnasium.Space[object]", module.observation_space)
    if isinstance(module, EncoderModule):
        space = cast("gymnasium.Space[object]", module.get_network_obs_space())
    if isinstance(space, spaces.Dict | spaces.Tuple):
        raise ModuleError(
            f"The module observes {space}, whose parts {naming.library} encodes in another way; "
            "pass flatten_observations=True, or mapping={...} of your own."
        )
    return match_by_naming(arrays, params, naming, space)


def _overlay(params: Tree, arrays: Mapping[Path, np.ndarray], prefix: Path = ()) -> PyTree:
    result: dict[str, object] = {}
    for name, value in params.items():
        path = (*prefix, name)
        if isinstance(value, Mapping):
            result[name] = _overlay(cast(Tree, value), arrays, path)
        else:
            result[name] = arrays.get(path, value)
    return result


def _check_actions(
    algorithm: Algorithm, module: RLModule, naming: Naming, done: Assignment
) -> None:
    """Add a problem if the module's actions are in other units than the library's."""
    box, is_normalized = (
        module.action_space,
        algorithm.config.environment_settings.normalize_actions,
    )
    if naming.squashes is None or not isinstance(box, spaces.Box):
        return
    if isinstance(module, PolicyQModule):
        if not (np.all(box.low == -1.0) and np.all(box.high == 1.0)):
            done.problems.append(
                f"{naming.library}'s critics take actions in [-1, 1], and the module's in {box}; "
                "set environment(normalize_actions=True)"
            )
    elif module.distribution.family is DiagGaussian and is_normalized and box.is_bounded():
        done.problems.append(
            f"{naming.library}'s policy acts in the environment's own units; set "
            "environment(normalize_actions=False, clip_actions=True)"
        )
