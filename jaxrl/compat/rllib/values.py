"""Values of RLlib's settings that ask for nothing, or for what is done anyway.

RLlib's `to_dict()` and its `params.json` have every setting, most of them at a default that means
nothing outside of RLlib, such as `num_gpus=0` or `input="sampler"`. Such a value of a setting that
does not exist here is accepted without effect, so that RLlib's own configs work; all others are
refused by name, see `jaxrl.compat.rllib.settings`.
"""

import dataclasses
import enum
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

ANY_VALUE = object()
"""Neutral value of a setting that RLlib itself does not read."""

_RLLIB_PACKAGE = "ray.rllib."
_REPR_PATTERN = re.compile(r"<(?:class '([\w.]+)'|function ([\w.<>]+) at 0x[0-9a-fA-F]+)>")


@dataclasses.dataclass(frozen=True)
class RllibObject:
    """Class, function or enum member of RLlib, as a pattern for values.

    Attributes:
        name: Qualified name within its module; `{algo}` stands for the name of the algorithm.
    """

    name: str


def get_rllib_name(value: object) -> str | None:
    """Return the qualified name of an object of RLlib, or None for any other value.

    Args:
        value: The object itself, its import path ("ray.rllib.callbacks.callbacks.RLlibCallback"),
            or the string that `params.json` has for it ("<class 'ray.rllib...'>").
    """
    if isinstance(value, enum.Enum):
        owner = type(value)
        name = f"{owner.__qualname__}.{value.name}"
        return name if owner.__module__.startswith(_RLLIB_PACKAGE) else None
    if isinstance(value, str):
        found = _REPR_PATTERN.fullmatch(value)
        if found is not None and found[2]:  # a function's repr does not have its module
            return found[2]
        path = found[1] if found is not None else value.replace(":", ".")
        is_member = re.fullmatch(r"[A-Z]\w+\.[A-Z_]+", path)  # an enum's member
        if is_member:
            return path
        return path.rpartition(".")[2] if path.startswith(_RLLIB_PACKAGE) else None
    module, name = (getattr(value, key, None) for key in ("__module__", "__qualname__"))
    is_rllibs = isinstance(module, str) and module.startswith(_RLLIB_PACKAGE)
    return name if is_rllibs and isinstance(name, str) else None


def is_neutral(value: object, neutral_values: Iterable[object], algo: str = "") -> bool:
    """Return whether a value equals one of the neutral ones.

    Lists, tuples and sets are compared by their items, and numbers by value, but 0 is not False.

    Args:
        value: Value as written by the user.
        neutral_values: Plain values, which may contain `RllibObject`s, or `ANY_VALUE`.
        algo: Name of the algorithm.
    """
    return any(_matches(value, neutral, algo) for neutral in neutral_values)


def _matches(value: object, neutral: object, algo: str) -> bool:
    if neutral is ANY_VALUE:
        return True
    if isinstance(neutral, RllibObject):
        return get_rllib_name(value) == neutral.name.replace("{algo}", algo)
    if isinstance(neutral, Mapping):
        expected = cast(Mapping[str, Any], neutral)
        return (
            isinstance(value, Mapping)
            and cast(Mapping[str, object], value).keys() == expected.keys()
            and all(
                _matches(cast(Mapping[str, object], value)[key], expected[key], algo)
                for key in expected
            )
        )
    if isinstance(neutral, list | tuple):
        items = _get_items(value)
        return (
            items is not None
            and len(items) == len(cast(list[Any], neutral))
            and all(map(_matches, items, cast(list[Any], neutral), [algo] * len(items)))
        )
    if isinstance(neutral, bool) or isinstance(value, bool):
        return value is neutral
    if isinstance(neutral, int | float) and isinstance(value, int | float):
        return value == neutral
    if isinstance(neutral, str):
        return isinstance(value, str) and value == neutral  # also a member of a StrEnum
    return type(value) is type(neutral) and value == neutral


def _get_items(value: object) -> list[Any] | None:
    if isinstance(value, list | tuple | set | frozenset):
        return list(cast(list[Any], value))
    return None


DEPRECATED_VALUE = -1
"""RLlib's value of settings that it no longer reads."""

_DEFAULT_POLICY = "default_policy"
_NO_SPEC = (
    None,
    {},
    [None, None, None, None],
    [None, None, None, {}],
    "PolicySpec(policy_class=None, observation_space=None, action_space=None, config=None)",
)

NEUTRAL_VALUES_OF_SETTINGS: dict[str, tuple[object, ...]] = {
    "actions_in_input_normalized": (False,),
    "always_attach_evaluation_results": (DEPRECATED_VALUE,),
    "callbacks_class": (RllibObject("RLlibCallback"), RllibObject("DefaultCallbacks")),
    "env_task_fn": (DEPRECATED_VALUE,),
    "env_runner_cls": (None, RllibObject("SingleAgentEnvRunner"), RllibObject("RolloutWorker")),
    "input_": (None,),
    "input_read_schema": (None,),
    "learner_class": (None, RllibObject("{algo}TorchLearner"), RllibObject("{algo}TfLearner")),
    "off_policy_estimation_methods": (None, {}),
    "offline_evaluation_type": (None,),
    "ope_split_batch_by_episode": (None,),
    "optimizer": ({}, None),
    "shuffle_buffer_size": (0,),
    "algorithm_config_overrides_per_module": (None,),
    "use_critic": (DEPRECATED_VALUE,),
    "policies": (
        None,
        {},
        [_DEFAULT_POLICY],
        *({_DEFAULT_POLICY: spec} for spec in _NO_SPEC),
    ),
    "policies_to_train": (None,),
    "policy_mapping_fn": (
        None,
        RllibObject("AlgorithmConfig.DEFAULT_POLICY_MAPPING_FN"),
    ),
    "rl_module_spec": (
        None,
        RllibObject("Default{algo}TorchRLModule"),
        RllibObject("{algo}TorchRLModule"),
    ),
}
"""Values of settings that exist here which leave them at their default."""


_NO_SAMPLING: dict[str, tuple[object, ...]] = {
    "_is_online": (False,),
    "num_envs_per_env_runner": (1,),
}
"""RLlib's defaults of algorithms that learn from recorded data alone."""
_MARWIL: dict[str, tuple[object, ...]] = {
    **_NO_SAMPLING,
    "_set_off_policy_estimation_methods": (False,),
    "burnin_len": (0,),
    "materialize_data": (True,),
    "materialize_mapped_data": (False,),
    "postprocess_inputs": (True,),
    "rollout_fragment_length": (200,),
}
_ADVANTAGES: dict[str, tuple[object, ...]] = {
    "lambda": (1.0,),
    "lambda_": (1.0,),
    "vf_coeff": (1.0,),
    "moving_average_sqd_adv_norm_start": (100.0,),
    "moving_average_sqd_adv_norm_update_rate": (1e-8,),
}
"""RLlib's defaults of MARWIL, which its BC and IQL inherit without reading them."""
_BUFFER_OF_CQL = {
    "_enable_replay_buffer_api": True,
    "capacity": 1_000_000,
    "prioritized_replay": False,
    "prioritized_replay_alpha": 0.6,
    "prioritized_replay_beta": 0.4,
    "prioritized_replay_eps": 1e-6,
    "type": "MultiAgentPrioritizedReplayBuffer",
    "worker_side_prioritization": False,
}

_RMSPROP: dict[str, tuple[object, ...]] = {"optim_alpha": (0.99,), "optim_eps": (1e-5,)}
NEUTRAL_VALUES_BY_ALGORITHM: dict[str, dict[str, tuple[object, ...]]] = {
    # RLlib's default, which its new API stack does not read
    "IMPALA": {"num_gpus": (1,)},
    "APPO": {"num_gpus": (1,)},
    # RLlib's BC is its MARWIL with beta=0, in which the other settings have no effect
    "BC": {**_MARWIL, **_ADVANTAGES, "beta": (0.0,)},
    "MARWIL": _MARWIL,
    "AlphaZero": {"num_steps_sampled_before_learning_starts": (0,)},
    # RLlib's Dreamer has its number of rows in two others
    "DreamerV3": {"train_batch_size": (None,)},
    # those of RLlib's optimizers of QMIX and SlateQ
    "QMIX": _RMSPROP,
    "VDN": _RMSPROP,
    "SlateQ": {"rmsprop_epsilon": (1e-5,)},
    "IQL": {**_MARWIL, **_ADVANTAGES, "bc_logstd_coeff": (0.0,)},
    "CQL": {
        **_NO_SAMPLING,
        "lr": (3e-4,),  # which RLlib does not read: its parts have learning rates of their own
        "min_train_timesteps_per_iteration": (100,),
        "num_steps_sampled_before_learning_starts": (1500,),
        "replay_buffer_config": (_BUFFER_OF_CQL,),
        "store_buffer_in_checkpoints": (False,),
    },
}
"""Further values, for single algorithms."""
