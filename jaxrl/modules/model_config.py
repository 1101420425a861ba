"""Settings of the default module, with RLlib's `DefaultModelConfig` names."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar, cast

from jaxrl.compat import lookup
from jaxrl.errors import ConfigError, UnknownSettingError, did_you_mean
from jaxrl.modules.networks import ConvFilter, get_activation, get_initializer, parse_conv_filters
from jaxrl.modules.recurrent import RECURRENT_CORES, RecurrentLayer, make_recurrent_core

T = TypeVar("T")
InitializerSetting: TypeAlias = str | Callable[..., Any] | None
Check: TypeAlias = Callable[[str, Any], Any]
"""Function `(setting name, value) -> value in its stored form` that may raise ConfigError."""


def _hiddens(name: str, value: object) -> tuple[int, ...]:
    sizes: list[Any] = list(value) if isinstance(value, list | tuple) else [None]
    if not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in sizes):
        raise ConfigError(
            f"{name} is {value!r}; it must be a list of positive whole numbers, such as [64, 64]."
        )
    return tuple(sizes)


def _hiddens_or_none(name: str, value: object) -> tuple[int, ...] | None:
    return None if value is None else _hiddens(name, value)


def _one_of(*known: str) -> Check:
    def check(name: str, value: object) -> object:
        if value not in known:
            raise ConfigError(
                f"{name} is {value!r}; it must be {' or '.join(map(repr, known))}."
                f"{did_you_mean(str(value), known)}"
            )
        return value

    return check


def _check_flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; it must be True or False.")
    return value


def _activation(name: str, value: str | None) -> str | None:
    get_activation(value, name)
    return value


def _check_initializer(name: str, value: object) -> InitializerSetting:
    if not (value is None or isinstance(value, str) or callable(value)):
        raise ConfigError(f"{name} is {value!r}; it must be an initializer's name or a callable.")
    return value


def _check_kwargs(name: str, value: object) -> dict[str, Any] | None:
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"{name} is {value!r}; it must be a dict such as {{'gain': 1.0}}.")
    return None if value is None else dict(cast(Mapping[str, Any], value))


def _names(name: str, value: object) -> tuple[str, ...]:
    given: list[Any] = list(value) if isinstance(value, list | tuple) else [None]
    if not all(isinstance(each, str) for each in given) or len(set(given)) < len(given):
        raise ConfigError(
            f"{name} is {value!r}; it must be a list of different names, such as ['privileged_state']."
        )
    return tuple(given)


def _conv_filters(name: str, value: object) -> tuple[ConvFilter, ...] | None:
    return None if value is None else parse_conv_filters(value, name)


def _size_or_none(name: str, value: int | None) -> int | None:
    is_size = isinstance(value, int) and not isinstance(value, bool) and value > 0
    if value is not None and not is_size:
        raise ConfigError(
            f"{name} is {value!r}; it must be a positive whole number, or None for one-hot vectors."
        )
    return value


def _log_std_clip(name: str, value: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or math.isnan(value) or value <= 0:
        raise ConfigError(
            f"{name} is {value!r}; it must be a number above 0 (float('inf') for no clamp)."
        )
    return float(value)


def _at_least(least: int) -> Check:
    def check(name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(
                f"{name} is {value!r}; it must be a whole number of at least {least}."
            )
        return value

    return check


def _number(name: str, value: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise ConfigError(f"{name} is {value!r}; it must be a finite number.")
    return float(value)


def _layer_type(name: str, value: RecurrentLayer) -> RecurrentLayer:
    make_recurrent_core(value, 1)  # raises for an unknown kind
    return value


def _setting(default: T, check: Check, doc: str) -> T:
    return dataclasses.field(default=default, metadata={"doc": doc, "check": check})


def _flag(doc: str) -> bool:
    return _setting(False, _check_flag, doc)


def _initializer(doc: str) -> InitializerSetting:
    return _setting(None, _check_initializer, doc)


def _kwargs(doc: str = "Keyword arguments of that initializer.") -> dict[str, Any] | None:
    return _setting(None, _check_kwargs, doc)


MEMORY_SWITCHES = ("use_lstm", "use_attention")


def get_required_switches(name: str) -> tuple[str, ...]:
    """Return the settings of which one must be on for the named setting to have an effect."""
    if name == "max_seq_len":
        return MEMORY_SWITCHES
    if name.startswith(("lstm_", "recurrent_")):
        return ("use_lstm",)
    return ("use_attention",) if name.startswith("attention_") else ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class DefaultModelConfig:
    """Architecture of the default modules.

    Names and defaults are RLlib's, except:

    - `vf_share_layers` is False, as RLlib's PPO has it when settings are given as a dict (its
      dataclass says True, so that there the same settings mean two networks).
    - `fcnet_hiddens` is stacked on the convolutions too, where RLlib ignores it.
    - 84 x 84 images get Mnih et al.'s filters, small ones a single layer.
    - `head_fcnet_*initializer` take effect (RLlib's PPO never reads them). The additional
      `pi_head_kernel_initializer` and `vf_head_kernel_initializer` initialize the output layers: a
      policy head of `orthogonal` with gain 0.01 starts near uniform.
    - `conv_use_layernorm` is additional: RLlib's encoders have it (`cnn_use_layernorm`), but not
      these settings. So are `fusionnet_use_layernorm`, `embedding_size`, `autoregressive_actions`,
      `critic_only_observations`, `critic_use_batchrenorm`, `fcnet_block` and `critic_fcnet_hiddens`.
    - `fusionnet_*` join the parts of a Dict or Tuple, for every algorithm; RLlib has one such
      encoder, of observations and actions, in SAC's critics.

    Sizes of a memory are refused without its switch. Where the switch is False by name, as
    `use_lstm=args.use_lstm` may be, they are kept without effect; `dataclasses.replace` and
    `to_dict` name every switch.
    """

    fcnet_hiddens: tuple[int, ...] | list[int] = _setting(
        (256, 256), _hiddens, "Sizes of the encoder's dense layers."
    )
    critic_fcnet_hiddens: tuple[int, ...] | list[int] | None = _setting(
        None,
        _hiddens_or_none,
        "Sizes of these layers in critics and values with an encoder of their own; None is "
        "fcnet_hiddens.",
    )
    fcnet_block: str = _setting(
        "mlp",
        _one_of("mlp", "simba"),
        "What each size is: 'mlp' is a dense layer, 'simba' a residual block with a hidden layer 4 "
        "times as wide, between a linear embedding and a LayerNorm (Lee et al. 2024); all sizes "
        "are then equal.",
    )
    fcnet_activation: str | None = _setting("tanh", _activation, "Activation of the encoder.")
    fcnet_kernel_initializer: InitializerSetting = _initializer(
        "Initializer of the encoder's kernels; None is torch's default, or that of SimBa's authors."
    )
    fcnet_kernel_initializer_kwargs: dict[str, Any] | None = _kwargs(
        "Keyword arguments of that initializer, such as {'gain': 1.41}."
    )
    fcnet_bias_initializer: InitializerSetting = _initializer(
        "Initializer of the encoder's biases; None is zeros, 'default' torch's."
    )
    fcnet_bias_initializer_kwargs: dict[str, Any] | None = _kwargs()
    fcnet_use_layernorm: bool = _flag(
        "Whether to apply LayerNorm after each dense layer of the encoder."
    )
    conv_filters: Any = _setting(
        None,
        _conv_filters,
        "Convolutions, each [channels, kernel, stride(, 'same' | 'valid')]; None is a default "
        "for the image's size, [] is none (the image is flattened).",
    )
    conv_activation: str | None = _setting("relu", _activation, "Activation of the convolutions.")
    conv_kernel_initializer: InitializerSetting = _initializer(
        "Initializer of the convolutions' kernels; None is torch's default."
    )
    conv_kernel_initializer_kwargs: dict[str, Any] | None = _kwargs()
    conv_bias_initializer: InitializerSetting = _initializer(
        "Initializer of the convolutions' biases; None is zeros, 'default' torch's."
    )
    conv_bias_initializer_kwargs: dict[str, Any] | None = _kwargs()
    conv_use_layernorm: bool = _flag(
        "Whether to apply LayerNorm over the channels after each convolution."
    )
    fusionnet_hiddens: tuple[int, ...] | list[int] = _setting(
        (256, 256), _hiddens, "Sizes of the dense layers that join the parts of a Dict or Tuple."
    )
    fusionnet_activation: str | None = _setting("tanh", _activation, "Activation of these layers.")
    fusionnet_kernel_initializer: InitializerSetting = _initializer(
        "Initializer of these layers' kernels; None is torch's default."
    )
    fusionnet_kernel_initializer_kwargs: dict[str, Any] | None = _kwargs()
    fusionnet_bias_initializer: InitializerSetting = _initializer(
        "Initializer of these layers' biases; None is zeros, 'default' torch's."
    )
    fusionnet_bias_initializer_kwargs: dict[str, Any] | None = _kwargs()
    fusionnet_use_layernorm: bool = _flag("Whether to apply LayerNorm after each of these layers.")
    embedding_size: int | None = _setting(
        None,
        _size_or_none,
        "Size of the learned embedding of each choice of a Discrete or MultiDiscrete part of a "
        "Dict or Tuple; None is one-hot.",
    )
    head_fcnet_hiddens: tuple[int, ...] | list[int] = _setting(
        (), _hiddens, "Sizes of the hidden layers of each head."
    )
    head_fcnet_activation: str | None = _setting("relu", _activation, "Activation of the heads.")
    head_fcnet_kernel_initializer: InitializerSetting = _initializer(
        "Initializer of the heads' hidden kernels; None is torch's default."
    )
    head_fcnet_kernel_initializer_kwargs: dict[str, Any] | None = _kwargs()
    head_fcnet_bias_initializer: InitializerSetting = _initializer(
        "Initializer of the heads' hidden biases; None is zeros."
    )
    head_fcnet_bias_initializer_kwargs: dict[str, Any] | None = _kwargs()
    head_fcnet_use_layernorm: bool = _flag(
        "Whether to apply LayerNorm after each hidden layer of the heads."
    )
    pi_head_kernel_initializer: InitializerSetting = _initializer(
        "Initializer of the policy's output kernel; None is torch's default."
    )
    pi_head_kernel_initializer_kwargs: dict[str, Any] | None = _kwargs()
    vf_head_kernel_initializer: InitializerSetting = _initializer(
        "Initializer of the value's output kernel; None is torch's default."
    )
    vf_head_kernel_initializer_kwargs: dict[str, Any] | None = _kwargs()
    autoregressive_actions: bool = _flag(
        "Whether to choose the parts of an action one after another, each conditioned on those "
        "before it, instead of independently."
    )
    free_log_std: bool = _flag(
        "Whether the log standard deviation is a parameter instead of a network output."
    )
    log_std_clip_param: float = _setting(
        20.0, _log_std_clip, "Clamp of the log standard deviation; infinity for none."
    )
    critic_use_batchrenorm: bool = _flag(
        "Whether the critics of SAC, TQC, TD3 and DDPG renormalize their input and every activation by "
        "the moments of the batch (CrossQ)."
    )
    vf_share_layers: bool = _flag("Whether policy and value share the encoder.")
    critic_only_observations: tuple[str, ...] | list[str] = _setting(
        (),
        _names,
        "Names of parts of a Dict observation that values and critics see and the policy does not "
        "(asymmetric actor-critic, Pinto et al. 2018). Acting needs no such part.",
    )
    use_lstm: bool = _flag("Whether a recurrent layer follows the encoder.")
    max_seq_len: int = _setting(
        20,
        _at_least(1),
        "Maximum rows of the sequences that a recurrent module learns from: on-policy, the largest "
        "number up to this that divides the rollout into whole minibatches; with replay, exactly "
        "this many after the burn-in.",
    )
    lstm_cell_size: int = _setting(256, _at_least(1), "Size of the recurrent layers.")
    recurrent_layer_type: str | type[Any] = _setting(
        "lstm",
        _layer_type,
        f"One of {', '.join(map(repr, RECURRENT_CORES))}, or a subclass of flax.linen.RNNCellBase.",
    )
    recurrent_num_layers: int = _setting(1, _at_least(1), "Number of stacked recurrent layers.")
    lstm_use_prev_action: bool = _flag("Whether to observe the previous action.")
    lstm_use_prev_reward: bool = _flag("Whether to observe the previous reward.")
    use_attention: bool = _flag(
        "Whether to attend over the episode's latest features (GTrXL, Parisotto et al. 2020)."
    )
    attention_num_transformer_units: int = _setting(1, _at_least(1), "Number of attention blocks.")
    attention_dim: int = _setting(64, _at_least(1), "Width of the blocks.")
    attention_num_heads: int = _setting(1, _at_least(1), "Number of heads of each block.")
    attention_head_dim: int = _setting(32, _at_least(1), "Width of each head.")
    attention_memory_inference: int = _setting(
        50,
        _at_least(1),
        "Number of past steps that each block attends to, in acting and in learning.",
    )
    attention_position_wise_mlp_dim: int = _setting(
        32, _at_least(1), "Width of the hidden layer after each block's attention."
    )
    attention_init_gru_gate_bias: float = _setting(
        2.0,
        _number,
        "Initial bias of the gates: the larger, the closer a block starts to the identity.",
    )
    attention_use_n_prev_actions: int = _setting(
        0, _at_least(0), "Number of previous actions to observe."
    )
    attention_use_n_prev_rewards: int = _setting(
        0, _at_least(0), "Number of previous rewards to observe."
    )

    def __new__(cls, **given: object) -> "DefaultModelConfig":
        """Note which memories are switched off by name."""
        settings = super().__new__(cls)
        off = tuple(switch for switch in MEMORY_SWITCHES if given.get(switch) is False)
        object.__setattr__(settings, "_switched_off", off)
        return settings

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = field.metadata["check"](field.name, self[field.name])
            object.__setattr__(self, field.name, value)
        for name in INITIALIZER_SETTINGS:
            self.make_initializer(name)
        self._check_memory()
        self._check_blocks()
        if self.vf_share_layers and self.critic_fcnet_hiddens is not None:
            raise ConfigError(
                f"critic_fcnet_hiddens={list(self.critic_fcnet_hiddens)} sizes an encoder of the "
                "values' own, but vf_share_layers=True shares the policy's: set only one of them."
            )

    def _check_memory(self) -> None:
        if self.use_lstm and self.use_attention:
            raise ConfigError(
                "use_lstm=True and use_attention=True exclude each other; set one of them to False."
            )
        for field in dataclasses.fields(self):
            name, switches = field.name, get_required_switches(field.name)
            is_off = switches and not any(self[switch] for switch in switches)
            by_name = any(switch in self["_switched_off"] for switch in switches)
            if is_off and not by_name and self[name] != field.default:
                raise ConfigError(
                    f"{name}={self[name]!r} has no effect without {' or '.join(switches)}; set "
                    f"{switches[0]}=True, or leave it out."
                )

    def _check_blocks(self) -> None:
        if self.fcnet_block == "mlp":
            return
        if self.fcnet_use_layernorm:
            raise ConfigError(
                f"fcnet_use_layernorm=True has no effect on fcnet_block={self.fcnet_block!r}, whose "
                "blocks have layer norms of their own: set fcnet_use_layernorm=False."
            )
        if self.critic_use_batchrenorm:
            raise ConfigError(
                f"critic_use_batchrenorm=True is for dense layers, got fcnet_block={self.fcnet_block!r}, "
                "whose blocks have layer norms: leave one of the two out."
            )
        if not (self.fcnet_hiddens or self.critic_fcnet_hiddens):
            raise ConfigError(
                f"fcnet_block={self.fcnet_block!r} has no effect without blocks, got "
                "fcnet_hiddens=[]: give the width of each, such as [128]."
            )
        for name in ("fcnet_hiddens", "critic_fcnet_hiddens"):
            if len(set(self[name] or ())) > 1:
                raise ConfigError(
                    f"{name} is {list(self[name])}, but blocks of fcnet_block="
                    f"{self.fcnet_block!r} are added to what enters them: give all one width, "
                    "such as [128, 128]."
                )

    @property
    def is_recurrent(self) -> bool:
        """Return whether a recurrent core follows the encoder."""
        return self.use_lstm or self.use_attention

    @property
    def num_prev_actions_and_rewards(self) -> tuple[int, int]:
        """Number of previous actions and of previous rewards that are observed."""
        if self.use_attention:
            return self.attention_use_n_prev_actions, self.attention_use_n_prev_rewards
        return int(self.lstm_use_prev_action), int(self.lstm_use_prev_reward)

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[name]

    def make_initializer(self, name: str) -> Callable[..., Any]:
        """Return the initializer described by the settings `name` and `name + "_kwargs"`."""
        kwargs = self.__dict__.get(f"{name}_kwargs")
        return get_initializer(self[name], kwargs, name, for_bias="_bias_" in name)

    def to_dict(self) -> dict[str, Any]:
        """Convert the settings to plain data (lists, not tuples), for YAML and JSON."""
        return {f.name: _to_lists(self[f.name]) for f in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> "DefaultModelConfig":
        """Build from RLlib's names, old ones included (see `resolve_model_settings`).

        Raises:
            UnknownSettingError: If a name is unknown.
            ConfigError: If a value is wrong, or a setting is not supported.
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
"""Settings that initialize all biases as torch does."""
RELU_ACTIVATIONS: Mapping[str, str] = {"fcnet_activation": "relu", "fusionnet_activation": "relu"}
"""Activations of algorithms whose papers do not use tanh."""


def resolve_model_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the settings under their current names, and the names that replaced old ones.

    Defaults of RLlib's settings that do not exist here are dropped.

    Raises:
        UnknownSettingError: If a name is unknown.
        ConfigError: If a setting is not supported, or is given under both names.
    """
    resolved: dict[str, Any] = {}
    renamed: dict[str, str] = {}
    for name, value in settings.items():
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UnknownSettingError(
                f"model_config must map names of model settings to values, got the name {name!r}."
            )
        current = name
        if name not in MODEL_SETTINGS:
            current = lookup.load("rllib.models").find_model_setting(name, value, MODEL_SETTINGS)
        if current is None:
            continue
        if current in resolved:
            raise ConfigError(f"The model setting {current!r} is given twice, once by an old name.")
        if current != name:
            renamed[name] = current
        resolved[current] = value
    return resolved, renamed


def _to_lists(value: object) -> object:
    if isinstance(value, tuple):
        return [_to_lists(item) for item in cast(tuple[Any, ...], value)]
    return value
