"""The default module's settings: RLlib's names and defaults, and what is refused."""

import dataclasses
import math

import pytest

from jaxrl.compat.rllib.models import RENAMED
from jaxrl.errors import ConfigError, UnknownSettingError
from jaxrl.modules.model_config import (
    MODEL_SETTINGS,
    DefaultModelConfig,
    resolve_model_settings,
)

# ray 2.60's DefaultModelConfig; None where this version refuses the setting.
RLLIB_DEFAULTS = {
    "fcnet_hiddens": [256, 256],
    "fcnet_activation": "tanh",
    "fcnet_kernel_initializer": None,
    "fcnet_kernel_initializer_kwargs": None,
    "fcnet_bias_initializer": None,
    "fcnet_bias_initializer_kwargs": None,
    "fcnet_use_layernorm": False,
    "conv_filters": None,
    "conv_activation": "relu",
    "conv_kernel_initializer": None,
    "conv_kernel_initializer_kwargs": None,
    "conv_bias_initializer": None,
    "conv_bias_initializer_kwargs": None,
    "fusionnet_hiddens": [256, 256],
    "fusionnet_activation": "tanh",
    "fusionnet_kernel_initializer": None,
    "fusionnet_kernel_initializer_kwargs": None,
    "fusionnet_bias_initializer": None,
    "fusionnet_bias_initializer_kwargs": None,
    "head_fcnet_hiddens": [],
    "head_fcnet_activation": "relu",
    "head_fcnet_kernel_initializer": None,
    "head_fcnet_kernel_initializer_kwargs": None,
    "head_fcnet_bias_initializer": None,
    "head_fcnet_bias_initializer_kwargs": None,
    "head_fcnet_use_layernorm": False,
    "free_log_std": False,
    "log_std_clip_param": 20.0,
    "vf_share_layers": False,
    "use_lstm": False,
    "max_seq_len": 20,
    "lstm_cell_size": 256,
    "lstm_use_prev_action": False,
    "lstm_use_prev_reward": False,
    "use_attention": False,
    "attention_num_transformer_units": 1,
    "attention_dim": 64,
    "attention_num_heads": 1,
    "attention_head_dim": 32,
    "attention_memory_inference": 50,
    "attention_position_wise_mlp_dim": 32,
    "attention_init_gru_gate_bias": 2.0,
    "attention_use_n_prev_actions": 0,
    "attention_use_n_prev_rewards": 0,
}
OURS = {
    "recurrent_layer_type",
    "recurrent_num_layers",
    "autoregressive_actions",
    "conv_use_layernorm",
    "critic_fcnet_hiddens",
    "critic_only_observations",
    "critic_use_batchrenorm",
    "embedding_size",
    "fcnet_block",
    "fusionnet_use_layernorm",
    "pi_head_kernel_initializer",
    "pi_head_kernel_initializer_kwargs",
    "vf_head_kernel_initializer",
    "vf_head_kernel_initializer_kwargs",
}


def test_names_and_defaults_are_rllib_s():
    settings = DefaultModelConfig().to_dict()
    assert {n: v for n, v in settings.items() if n not in OURS} == RLLIB_DEFAULTS
    assert set(settings) == set(RLLIB_DEFAULTS) | OURS
    assert all(f.metadata["doc"] for f in dataclasses.fields(DefaultModelConfig))


def test_round_trip_through_plain_data():
    config = DefaultModelConfig(
        fcnet_hiddens=[32],
        conv_filters=[[16, 4, 2], [8, [3, 2], 1, "valid"]],
        pi_head_kernel_initializer="orthogonal",
        pi_head_kernel_initializer_kwargs={"gain": 0.01},
        log_std_clip_param=math.inf,
    )
    assert DefaultModelConfig.from_dict(config.to_dict()) == config
    assert config.to_dict()["conv_filters"][1] == [8, [3, 2], [1, 1], "valid"]


def test_old_names_are_accepted_and_answered():
    settings, old_names = resolve_model_settings(
        {"post_fcnet_hiddens": [8], "fcnet_weights_initializer": "orthogonal", "free_log_std": True}
    )
    assert settings == {
        "head_fcnet_hiddens": [8],
        "fcnet_kernel_initializer": "orthogonal",
        "free_log_std": True,
    }
    assert old_names == {
        "post_fcnet_hiddens": "head_fcnet_hiddens",
        "fcnet_weights_initializer": "fcnet_kernel_initializer",
    }
    assert DefaultModelConfig.from_dict({"post_fcnet_hiddens": [8]}).head_fcnet_hiddens == (8,)


def test_every_new_name_exists():
    assert set(RENAMED.values()) <= set(MODEL_SETTINGS)
    assert not set(RENAMED) & set(MODEL_SETTINGS)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("lstm_kernel_initializer", "initializers"),
        ("attention_memory_training", "attention_memory_inference"),
        ("conv_transpose_kernel_initializer", "transposed"),
        ("custom_model", "RLModuleSpec"),
        ("framestack", "wrapper"),
    ],
)
def test_settings_of_other_versions_are_refused_by_name(name, reason):
    with pytest.raises(ConfigError, match=rf"'{name}' \(got 1\) is not supported: .*{reason}"):
        DefaultModelConfig.from_dict({name: 1})


def test_unknown_and_double_names():
    with pytest.raises(UnknownSettingError, match="Did you mean 'fcnet_hiddens'"):
        DefaultModelConfig.from_dict({"fcnet_hidden": [8]})
    with pytest.raises(ConfigError, match="given twice"):
        DefaultModelConfig.from_dict({"head_fcnet_hiddens": [8], "post_fcnet_hiddens": [8]})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("fcnet_hiddens", 64, "list of positive whole numbers"),
        ("fcnet_hiddens", [64, 0], "list of positive whole numbers"),
        ("fcnet_hiddens", [64.0], "list of positive whole numbers"),
        ("fcnet_hiddens", [True], "list of positive whole numbers"),
        ("head_fcnet_hiddens", "64", "list of positive whole numbers"),
        ("critic_fcnet_hiddens", 64, "list of positive whole numbers"),
        ("fcnet_block", "simbba", "'mlp' or 'simba'.*Did you mean 'simba'"),
        ("fcnet_block", None, "'mlp' or 'simba'"),
        ("fcnet_activation", "rellu", "Did you mean 'relu'"),
        ("fcnet_activation", 3, "not a known activation"),
        ("head_fcnet_activation", "tanhh", "Did you mean 'tanh'"),
        ("conv_activation", "nope", "not a known activation"),
        ("conv_filters", [[16, 4]], r"conv_filters\[0\]"),
        ("fcnet_use_layernorm", 1, "True or False"),
        ("conv_use_layernorm", 1, "True or False"),
        ("vf_share_layers", "no", "True or False"),
        ("free_log_std", None, "True or False"),
        ("log_std_clip_param", 0.0, "above 0"),
        ("log_std_clip_param", "20", "above 0"),
        ("log_std_clip_param", float("nan"), "above 0"),
        ("fcnet_kernel_initializer", "ortogonal", "Did you mean 'orthogonal'"),
        ("fcnet_kernel_initializer", 3, "name or a callable"),
        ("fcnet_bias_initializer", "orthogonal", "not an initializer of biases"),
        ("fcnet_kernel_initializer_kwargs", 3, "must be a dict"),
        ("fcnet_kernel_initializer_kwargs", {"gain": 1.0}, "'default' does not take"),
    ],
)
def test_wrong_values_name_the_setting(name, value, message):
    with pytest.raises(ConfigError, match=message) as error:
        DefaultModelConfig.from_dict({name: value})
    assert name.removesuffix("_kwargs") in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"fcnet_hiddens": [64, 32]},
            r"fcnet_hiddens is \[64, 32\].*give all one width, such as \[128, 128\]",
        ),
        ({"critic_fcnet_hiddens": [64, 32]}, r"critic_fcnet_hiddens is \[64, 32\].*one width"),
        ({"fcnet_use_layernorm": True}, "fcnet_use_layernorm=True has no effect on fcnet_block="),
        ({"fcnet_hiddens": []}, r"no effect without blocks, got fcnet_hiddens=\[\]"),
        ({"critic_use_batchrenorm": True}, r"critic_use_batchrenorm=True is for dense layers, got"),
    ],
)
def test_blocks_are_refused_with_what_they_have_no_use_for(settings, message):
    with pytest.raises(ConfigError, match=message):
        DefaultModelConfig.from_dict({"fcnet_block": "simba", **settings})
    DefaultModelConfig.from_dict(settings)


def test_a_shared_encoder_has_no_sizes_of_the_critics_own():
    with pytest.raises(ConfigError, match=r"critic_fcnet_hiddens=\[8\] .*vf_share_layers=True"):
        DefaultModelConfig(vf_share_layers=True, critic_fcnet_hiddens=[8])
