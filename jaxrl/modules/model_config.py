"""The default module's settings, with RLlib's `DefaultModelConfig` names."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, cast

from jaxrl.errors import ConfigError, UnknownSettingError, did_you_mean
from jaxrl.modules import model_checks as check
from jaxrl.modules.model_checks import Check, InitializerSetting
from jaxrl.modules.networks import get_initializer


def _setting(default: Any, check: Check, doc: str) -> Any:
    return dataclasses.field(default=default, metadata={"doc": doc, "check": check})


def memory_switch(name: str) -> tuple[str, ...]:
    """The settings of which one must be on for this one to have an effect."""
    if name == "max_seq_len":
        return "use_lstm", "use_attention"
    if name.startswith(("lstm_", "recurrent_")):
        return ("use_lstm",)
    return ("use_attention",) if name.startswith("attention_") else ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class DefaultModelConfig:
    """The architecture of the default modules.

    Names and defaults are RLlib's; what differs, and why:

    - `vf_share_layers` is False, as RLlib's PPO has it when settings are given as a dict (its
      dataclass says True, so there the same settings mean two networks).
    - `fcnet_hiddens` is stacked on the convolutions too, where RLlib ignores it.
    - 84 x 84 images get Mnih et al.'s filters, small ones a single layer.
    - `head_fcnet_*initializer` take effect (in RLlib's PPO nothing reads them), and
      `pi_head_kernel_initializer` and `vf_head_kernel_initializer`, which are ours, are those of
      the output layers: a policy head of `orthogonal` with gain 0.01 starts near uniform.
    - `conv_use_layernorm` is ours too: RLlib has it in its encoders (`cnn_use_layernorm`), but not
      among these settings. So are `fusionnet_use_layernorm`,
      `embedding_size` and `autoregressive_actions`.
    - `fusionnet_*` join the parts of a Dict or Tuple, for every algorithm; RLlib has one such
      encoder, of observations and actions, in SAC's critics.
    """

    fcnet_hiddens: tuple[int, ...] | list[int] = _setting(
        (256, 256), check.hiddens, "Sizes of the encoder's dense layers."
    )
    fcnet_activation: str | None = _setting("tanh", check.activation, "Activation of the encoder.")
    fcnet_kernel_initializer: InitializerSetting = _setting(
        None, check.initializer, "Initialiser of the encoder's kernels; None is torch's default."
    )
    fcnet_kernel_initializer_kwargs: dict[str, Any] | None = _setting(
        None, check.kwargs, "Its keywords, such as {'gain': 1.41}."
    )
    fcnet_bias_initializer: InitializerSetting = _setting(
        None,
        check.initializer,
        "Initialiser of the encoder's biases; None is zeros, 'default' torch's.",
    )
    fcnet_bias_initializer_kwargs: dict[str, Any] | None = _setting(
        None, check.kwargs, "Its keywords."
    )
    fcnet_use_layernorm: bool = _setting(
        False, check.flag, "LayerNorm after each dense layer of the encoder."
    )
    conv_filters: Any = _setting(
        None,
        check.conv_filters,
        "Convolutions as [channels, kernel, stride(, 'same' | 'valid')] each; None is a default "
        "for the image's size, [] is none (the image is flattened).",
    )
    conv_activation: str | None = _setting(
        "relu", check.activation, "Activation of the convolutions."
    )
    conv_kernel_initializer: InitializerSetting = _setting(
        None,
        check.initializer,
        "Initialiser of the convolutions' kernels; None is torch's default.",
    )
    conv_kernel_initializer_kwargs: dict[str, Any] | None = _setting(
        None, check.kwargs, "Its keywords."
    )
    conv_bias_initializer: InitializerSetting = _setting(
        None,
        check.initializer,
        "Initialiser of the convolutions' biases; None is zeros, 'default' torch's.",
    )
    conv_bias_initializer_kwargs: dict[str, Any] | None = _setting(
        None, check.kwargs, "Its keywords."
    )
    conv_use_layernorm: bool = _setting(
        False, check.flag, "LayerNorm over the channels after each convolution."
    )
    fusionnet_hiddens: tuple[int, ...] | list[int] = _setting(
        (256, 256),
        check.hiddens,
        "Sizes of the dense layers that join the parts of a Dict or Tuple.",
    )
    fusionnet_activation: str | None = _setting("tanh", check.activation, "Their activation.")
    fusionnet_kernel_initializer: InitializerSetting = _setting(
        None, check.initializer, "Initialiser of their kernels; None is torch's default."
    )
    fusionnet_kernel_initializer_kwargs: dict[str, Any] | None = _setting(
        None, check.kwargs, "Its keywords."
    )
    fusionnet_bias_initializer: InitializerSetting = _setting(
        None, check.initializer, "Initialiser of their biases; None is zeros, 'default' torch's."
    )
    fusionnet_bias_initializer_kwargs: dict[str, Any] | None = _setting(
        None, check.kwargs, "Its keywords."
    )
    fusionnet_use_layernorm: bool = _setting(False, check.flag, "LayerNorm after each of them.")
    embedding_size: int | None = _setting(
        None,
        check.size_or_none,
        "Numbers that stand for each choice of a Discrete or MultiDiscrete part of a Dict or "
        "Tuple, learned; None is one-hot.",
    )
    head_fcnet_hiddens: tuple[int, ...] | list[int] = _setting(
        (), check.hiddens, "Sizes of the hidden layers of each head."
    )
    head_fcnet_activation: str | None = _setting(
        "relu", check.activation, "Activation of the heads."
    )
    head_fcnet_kernel_initializer: InitializerSetting = _setting(
        None,
        check.initializer,
        "Initialiser of the heads' hidden kernels; None is torch's default.",
    )
    head_fcnet_kernel_initializer_kwargs: dict[str, Any] | None = _setting(
        None, check.kwargs, "Its keywords."
    )
    head_fcnet_bias_initializer: InitializerSetting = _setting(
        None, check.initializer, "Initialiser of the heads' hidden biases; None is zeros."
    )
    head_fcnet_bias_initializer_kwargs: dict[str, Any] | None = _setting(
        None, check.kwargs, "Its keywords."
    )
    head_fcnet_use_layernorm: bool = _setting(
        False, check.flag, "LayerNorm after each hidden layer of the heads."
    )
    pi_head_kernel_initializer: InitializerSetting = _setting(
        None,
        check.initializer,
        "Initialiser of the policy's output kernel; None is torch's default.",
    )
    pi_head_kernel_initializer_kwargs: dict[str, Any] | None = _setting(
        None, check.kwargs, "Its keywords."
    )
    vf_head_kernel_initializer: InitializerSetting = _setting(
        None,
        check.initializer,
        "Initialiser of the value's output kernel; None is torch's default.",
    )
    vf_head_kernel_initializer_kwargs: dict[str, Any] | None = _setting(
        None, check.kwargs, "Its keywords."
    )
    autoregressive_actions: bool = _setting(
        False,
        check.flag,
        "The parts of an action are chosen one after another, each knowing those before it, "
        "instead of independently.",
    )
    free_log_std: bool = _setting(
        False, check.flag, "The log standard deviation is a parameter instead of a network output."
    )
    log_std_clip_param: float = _setting(
        20.0, check.log_std_clip, "Clamp of the log standard deviation; infinity for none."
    )
    vf_share_layers: bool = _setting(
        False, check.flag, "Whether policy and value share the encoder."
    )
    use_lstm: bool = _setting(False, check.flag, "A recurrent layer behind the encoder's.")
    max_seq_len: int = _setting(
        20,
        check.at_least(1),
        "Rows of the sequences that a module that remembers learns from: the largest number up to "
        "this that divides the rollout into whole minibatches; of a replayed one, all that learn.",
    )
    lstm_cell_size: int = _setting(256, check.at_least(1), "Size of the recurrent layers.")
    recurrent_layer_type: str | type[Any] = _setting(
        "lstm",
        check.layer_type,
        "'lstm', 'gru', 'lru' (a linear recurrence, Orvieto et al. 2023), or a subclass of "
        "flax.linen.RNNCellBase.",
    )
    recurrent_num_layers: int = _setting(
        1, check.at_least(1), "Recurrent layers one after another."
    )
    lstm_use_prev_action: bool = _setting(False, check.flag, "Observe the previous action too.")
    lstm_use_prev_reward: bool = _setting(False, check.flag, "Observe the previous reward too.")
    use_attention: bool = _setting(
        False,
        check.flag,
        "Attention over the episode's latest features (GTrXL, Parisotto et al. 2020).",
    )
    attention_num_transformer_units: int = _setting(1, check.at_least(1), "Blocks of attention.")
    attention_dim: int = _setting(64, check.at_least(1), "Width of the blocks.")
    attention_num_heads: int = _setting(1, check.at_least(1), "Heads of each block.")
    attention_head_dim: int = _setting(32, check.at_least(1), "Width of each head.")
    attention_memory_inference: int = _setting(
        50, check.at_least(1), "Steps that each block looks back, in acting and in learning."
    )
    attention_position_wise_mlp_dim: int = _setting(
        32, check.at_least(1), "Width of the hidden layer behind each block's attention."
    )
    attention_init_gru_gate_bias: float = _setting(
        2.0,
        check.number,
        "First bias of the gates: the larger, the more a block starts as an identity.",
    )
    attention_use_n_prev_actions: int = _setting(
        0, check.at_least(0), "How many previous actions are observed too."
    )
    attention_use_n_prev_rewards: int = _setting(
        0, check.at_least(0), "How many previous rewards are observed too."
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = field.metadata["check"](field.name, self[field.name])
            object.__setattr__(self, field.name, value)
        for name in INITIALIZER_SETTINGS:
            self.initializer(name)
        self._check_memory()

    def _check_memory(self) -> None:
        if self.use_lstm and self.use_attention:
            raise ConfigError(
                "use_lstm=True and use_attention=True exclude each other; set one of them to False."
            )
        for field in dataclasses.fields(self):
            name, needs = field.name, memory_switch(field.name)
            if needs and not any(self[switch] for switch in needs) and self[name] != field.default:
                raise ConfigError(
                    f"{name}={self[name]!r} has no effect without {' or '.join(needs)}; set "
                    f"{needs[0]}=True, or leave it out."
                )

    @property
    def remembers(self) -> bool:
        """Whether there is a memory behind the encoder."""
        return self.use_lstm or self.use_attention

    @property
    def num_previous(self) -> tuple[int, int]:
        """How many previous actions and rewards are observed."""
        if self.use_attention:
            return self.attention_use_n_prev_actions, self.attention_use_n_prev_rewards
        return int(self.lstm_use_prev_action), int(self.lstm_use_prev_reward)

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[name]

    def initializer(self, name: str) -> Callable[..., Any]:
        """The initialiser that the settings `name` and `name + "_kwargs"` describe."""
        kwargs = self.__dict__.get(f"{name}_kwargs")
        return get_initializer(self[name], kwargs, name, for_bias="_bias_" in name)

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain data (lists, not tuples), for YAML and JSON."""
        return {f.name: _to_lists(self[f.name]) for f in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> "DefaultModelConfig":
        """From RLlib's names, old ones included (see `resolve_model_settings`).

        Raises:
            UnknownSettingError: For an unknown name.
            ConfigError: For a wrong value, or a setting that this version has not.
        """
        return cls(**resolve_model_settings(settings)[0])


INITIALIZER_SETTINGS = tuple(
    f.name for f in dataclasses.fields(DefaultModelConfig) if f.name.endswith("_initializer")
)
MODEL_SETTINGS = tuple(f.name for f in dataclasses.fields(DefaultModelConfig))

TORCH_BIASES: Mapping[str, str] = {
    f"{layers}_bias_initializer": "default"
    for layers in ("fcnet", "conv", "fusionnet", "head_fcnet")
}
"""All biases start as torch's do."""
RELU: Mapping[str, str] = {"fcnet_activation": "relu", "fusionnet_activation": "relu"}
"""The activations of algorithms whose papers have no tanh."""

RENAMED_MODEL_SETTINGS: dict[str, str] = {
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

_RECURRENT = "recurrent layers have their own initialisers, in time-major order inside the module"
_ATTENTION = "training looks back as far as acting: set attention_memory_inference"
_ATARI = "image preprocessing is the environment's own, by a wrapper"
_CUSTOM = "give the class to rl_module(rl_module_spec=RLModuleSpec(module_class=...)) instead"
# Settings of RLlib that have no reader here; accepting them in silence would be a lie.
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
}


def resolve_model_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The settings under today's names, and a sentence for each that had an old one.

    Raises:
        UnknownSettingError: For an unknown name.
        ConfigError: For one that this version has not, or one given under both names.
    """
    resolved: dict[str, Any] = {}
    notes: list[str] = []
    for name, value in settings.items():
        new = RENAMED_MODEL_SETTINGS.get(name, name)
        _refuse_unsupported(name)
        if new not in MODEL_SETTINGS:
            raise UnknownSettingError(
                f"There is no model setting {name!r}.{did_you_mean(name, MODEL_SETTINGS)}"
            )
        if new in resolved:
            raise ConfigError(f"The model setting {new!r} is given twice, once by an old name.")
        if new != name:
            notes.append(f"The model setting {name!r} is called {new!r} now.")
        resolved[new] = value
    return resolved, notes


def _refuse_unsupported(name: str) -> None:
    if name in MODEL_SETTINGS:
        return
    reason = _REFUSED.get(name)
    for prefix, why in _REFUSED_PREFIXES.items():
        if name.startswith(prefix):
            reason = why
    if reason is not None:
        raise ConfigError(f"The model setting {name!r} is not supported: {reason}.")


def _to_lists(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_lists(item) for item in cast(tuple[Any, ...], value)]
    return value
