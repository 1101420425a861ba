"""RLlib's settings of models: names that differ here, and defaults, which ask for nothing."""

from collections.abc import Collection, Mapping
from typing import Any, cast

from jaxrl.compat.rllib.values import is_neutral
from jaxrl.errors import ConfigError, UnknownSettingError, did_you_mean

_LAYERS = ("fcnet", "conv", "conv_transpose", "post_fcnet", "lstm")
MODEL_DEFAULTS: Mapping[str, Any] = {
    **{
        f"{layers}_{part}_initializer{suffix}": None
        for layers in _LAYERS
        for part in ("kernel", "weights", "bias")
        for suffix in ("", "_config")
    },
    "fcnet_hiddens": [256, 256],
    "fcnet_activation": "tanh",
    "conv_filters": None,
    "conv_activation": "relu",
    "post_fcnet_hiddens": [],
    "post_fcnet_activation": "relu",
    "free_log_std": False,
    "log_std_clip_param": 20.0,
    "no_final_linear": False,
    "vf_share_layers": True,
    "use_lstm": False,
    "max_seq_len": 20,
    "lstm_cell_size": 256,
    "lstm_use_prev_action": False,
    "lstm_use_prev_reward": False,
    "lstm_use_prev_action_reward": -1,
    "_time_major": False,
    "use_attention": False,
    "attention_num_transformer_units": 1,
    "attention_dim": 64,
    "attention_num_heads": 1,
    "attention_head_dim": 32,
    "attention_memory_inference": 50,
    "attention_memory_training": 50,
    "attention_position_wise_mlp_dim": 32,
    "attention_init_gru_gate_bias": 2.0,
    "attention_use_n_prev_actions": 0,
    "attention_use_n_prev_rewards": 0,
    "framestack": True,
    "dim": 84,
    "grayscale": False,
    "zero_mean": True,
    "custom_model": None,
    "custom_model_config": {},
    "custom_action_dist": None,
    "custom_preprocessor": None,
    "encoder_latent_dim": None,
    "always_check_shapes": False,
    "_use_default_native_models": -1,
    "_disable_preprocessor_api": False,
    "_disable_action_flattening": False,
}
_KEYS_OF_MERGED = {"_time_major", "custom_model", "custom_action_dist", "framestack", "zero_mean"}

RENAMED: Mapping[str, str] = {
    "fcnet_weights_initializer": "fcnet_kernel_initializer",
    "fcnet_weights_initializer_config": "fcnet_kernel_initializer_kwargs",
    "fcnet_bias_initializer_config": "fcnet_bias_initializer_kwargs",
    "conv_kernel_initializer_config": "conv_kernel_initializer_kwargs",
    "conv_bias_initializer_config": "conv_bias_initializer_kwargs",
    "post_fcnet_hiddens": "head_fcnet_hiddens",
    "post_fcnet_activation": "head_fcnet_activation",
    "post_fcnet_weights_initializer": "head_fcnet_kernel_initializer",
    "post_fcnet_weights_initializer_config": "head_fcnet_kernel_initializer_kwargs",
    "post_fcnet_bias_initializer": "head_fcnet_bias_initializer",
    "post_fcnet_bias_initializer_config": "head_fcnet_bias_initializer_kwargs",
}

_RECURRENT = "recurrent layers have fixed initializers and are time-major inside the module"
_ATTENTION = "training attends as far back as acting does: set attention_memory_inference"
_ATARI = "image preprocessing is done by an environment wrapper"
_CUSTOM = "pass the class to rl_module(rl_module_spec=RLModuleSpec(module_class=...)) instead"
_REFUSED_PREFIXES = {
    "lstm_": _RECURRENT,
    "attention_": _ATTENTION,
    "conv_transpose_": "no module of this version has transposed convolutions",
}
_REFUSED = {
    "_time_major": _RECURRENT,
    "framestack": _ATARI,
    "dim": _ATARI,
    "grayscale": _ATARI,
    "zero_mean": _ATARI,
    "custom_model": _CUSTOM,
    "custom_model_config": _CUSTOM,
    "custom_action_dist": _CUSTOM,
    "custom_preprocessor": "write a connector instead",
    "no_final_linear": _CUSTOM,
    "encoder_latent_dim": "set the last entry of fcnet_hiddens instead",
    "always_check_shapes": "shapes are checked whenever the program is traced",
    **dict.fromkeys(
        ("_use_default_native_models", "_disable_preprocessor_api", "_disable_action_flattening"),
        "there is a single API stack",
    ),
}

_SYNONYMS = {
    **dict.fromkeys(
        ("net_arch", "hidden_sizes", "hidden_layer_sizes", "hidden_size", "hsize", "hiddens"),
        " Here it is 'fcnet_hiddens', such as [64, 64].",
    ),
    **dict.fromkeys(("activation", "activation_fn"), " Here it is 'fcnet_activation'."),
}
"""Sentences on the names of other libraries."""


def find_model_setting(name: str, value: object, known: Collection[str]) -> str | None:
    """Return the current name of a setting that does not exist here; None for a default of RLlib's.

    Args:
        name: Name of the setting.
        value: Its value.
        known: Names of the settings here.

    Raises:
        UnknownSettingError: If RLlib has no setting of this name either.
        ConfigError: If the setting is not supported.
    """
    if name in RENAMED:
        return RENAMED[name]
    if has_default(name, value):
        return None
    prefixes = (reason for prefix, reason in _REFUSED_PREFIXES.items() if name.startswith(prefix))
    if (reason := next(prefixes, _REFUSED.get(name))) is not None:
        raise ConfigError(f"The model setting {name!r} (got {value!r}) is not supported: {reason}.")
    raise UnknownSettingError(
        f"There is no model setting {name!r}.{_SYNONYMS.get(name) or did_you_mean(name, known)}"
    )


def has_default(name: str, value: object) -> bool:
    """Return whether a model setting has RLlib's default."""
    return name in MODEL_DEFAULTS and is_neutral(value, (MODEL_DEFAULTS[name],))


def drop_merged_defaults(model: object) -> object:
    """Remove RLlib's defaults from a dictionary that RLlib has merged with all of them.

    RLlib's `config.model` has every setting of `MODEL_DEFAULTS`, so that a default there says no
    more than the setting's absence. A shorter dictionary was written by the user, and is returned
    unchanged, as is any other value.
    """
    if not isinstance(model, Mapping):
        return model
    settings = cast(Mapping[str, Any], model)
    if not settings.keys() >= _KEYS_OF_MERGED:
        return settings
    return {name: value for name, value in settings.items() if not has_default(name, value)}
