"""Which module a config builds, and with which model settings."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from jaxrl.errors import ConfigError

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig
    from jaxrl.modules.model_config import DefaultModelConfig
    from jaxrl.modules.rl_module import RLModuleSpec


def resolve_module_spec(
    config: "AlgorithmConfig", observation_space: Any, action_space: Any
) -> "RLModuleSpec":
    """The user's or the algorithm's spec, with model settings merged and spaces filled in."""
    spec = _chosen_spec(config)
    return dataclasses.replace(
        spec,
        observation_space=spec.observation_space or observation_space,
        action_space=spec.action_space or action_space,
        model_config=_merged(spec, config.rl_module_settings.model_config),
        algorithm_config={**config.module_settings(), **spec.algorithm_config},
    )


def check_model_config(config: "AlgorithmConfig") -> None:
    """Refuses wrong settings of the default module; a custom one checks its own."""
    from jaxrl.modules.model_config import DefaultModelConfig

    spec = resolve_module_spec(config, None, None)
    settings: Any = spec.model_config
    if _is_default(spec) and isinstance(settings, Mapping):
        DefaultModelConfig.from_dict(cast(Mapping[str, Any], settings))


def model_notes(config: "AlgorithmConfig") -> list[str]:
    """A sentence for each model setting that was given under an old name."""
    from jaxrl.modules.model_config import resolve_model_settings

    given = config.rl_module_settings.model_config
    if not _is_default(_chosen_spec(config)) or not isinstance(given, Mapping):
        return []
    return resolve_model_settings(cast(Mapping[str, Any], given))[1]


def default_settings(config: "AlgorithmConfig") -> "DefaultModelConfig | None":
    """The model settings of a module of the library; None for one that has its own.

    Raises:
        ConfigError: One of them is wrong.
    """
    from jaxrl.modules.model_config import DefaultModelConfig

    spec = _chosen_spec(config)
    settings: Any = _merged(spec, config.rl_module_settings.model_config)
    if isinstance(settings, DefaultModelConfig):
        return settings
    if not _is_default(spec):
        return None
    return DefaultModelConfig.from_dict(settings or {})


def rows_of_a_draw(config: "AlgorithmConfig") -> int:
    """Rows that come together from a replay buffer: 1, or a sequence's for a module that remembers."""
    settings = default_settings(config)
    return settings.max_seq_len if settings is not None and settings.remembers else 1


def _chosen_spec(config: "AlgorithmConfig") -> "RLModuleSpec":
    from jaxrl.modules.rl_module import RLModule, RLModuleSpec

    settings = config.rl_module_settings
    chosen = settings.rl_module_spec
    if settings.network is not None:
        return _spec_around(config, settings.network)
    if chosen is None:
        return config.get_default_rl_module_spec()
    if isinstance(chosen, type) and issubclass(chosen, RLModule):
        return RLModuleSpec(module_class=chosen)
    if not isinstance(chosen, RLModuleSpec):
        raise ConfigError(
            f"rl_module_spec must be an RLModuleSpec or a subclass of RLModule, got {chosen!r}; a "
            "network of flax or of functions goes to rl_module(network=...)."
        )
    return chosen


def _spec_around(config: "AlgorithmConfig", network: Any) -> "RLModuleSpec":
    """The spec of a network that is no RLModule."""
    from jaxrl.modules.network_module import network_module
    from jaxrl.modules.rl_module import RLModuleSpec

    if config.rl_module_settings.rl_module_spec is not None:
        raise ConfigError("network and rl_module_spec both say what the module is; give one.")
    own = config.get_default_rl_module_spec().module_class
    if own is not None:
        raise ConfigError(
            f"network is a policy with its value, but {config.algo_name} learns a {own.__name__}: "
            "set its networks by model_config, or give a subclass of it as rl_module_spec."
        )
    return RLModuleSpec(module_class=network_module(network), model_config={})


def _is_default(spec: "RLModuleSpec") -> bool:
    """Whether the model settings are those of the default networks."""
    from jaxrl.modules.model_config import DefaultModelConfig

    if spec.module_class is None:
        return True
    # A class of any other kind is refused when it is built.
    return getattr(spec.module_class, "model_config_class", None) is DefaultModelConfig


def _merged(spec: "RLModuleSpec", given: Any) -> Any:
    """The spec's model settings, with the config's on top; a whole object replaces them."""
    from jaxrl.modules.model_config import DefaultModelConfig, resolve_model_settings

    if given is None or given == {}:
        return spec.model_config
    if not isinstance(given, Mapping):
        if _is_default(spec) and not isinstance(given, DefaultModelConfig):
            raise ConfigError(
                f"model_config must be a DefaultModelConfig or a dictionary of its fields, such as "
                f"{{'fcnet_hiddens': [64, 64]}}, got {given!r}."
            )
        return given
    settings = dict(cast(Mapping[str, Any], given))
    if _is_default(spec):
        settings = resolve_model_settings(settings)[0]
    base = spec.model_config
    if base is not None and not isinstance(base, Mapping):
        base = base.to_dict() if hasattr(base, "to_dict") else dataclasses.asdict(base)
    return {**(base or {}), **settings}
