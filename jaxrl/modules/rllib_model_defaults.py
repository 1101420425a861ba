"""RLlib's `MODEL_DEFAULTS`, whose values in a config ask for nothing."""

from collections.abc import Mapping
from typing import Any, cast

from jaxrl.core.neutral import is_neutral

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
