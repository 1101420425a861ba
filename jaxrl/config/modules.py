"""Module specs and model settings of configs."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from jaxrl.config.fields import format_value
from jaxrl.errors import ConfigError

if TYPE_CHECKING:
    import gymnasium

    from jaxrl.config.config import Config
    from jaxrl.modules.model_config import DefaultModelConfig
    from jaxrl.modules.rl_module import RLModuleSpec


def resolve_module_spec(
    config: "Config",
    observation_space: "gymnasium.Space[Any] | None",
    action_space: "gymnasium.Space[Any] | None",
) -> "RLModuleSpec":
    """Return the user's or the default spec, with model settings merged and spaces filled in."""
    spec = _select_spec(config)
    return dataclasses.replace(
        spec,
        observation_space=spec.observation_space or observation_space,
        action_space=spec.action_space or action_space,
        model_config=_merge_model_config(spec, config.rl_module_settings.model_config),
        algorithm_config={**config.get_module_settings(), **spec.algorithm_config},
    )


def check_model_config(config: "Config") -> None:
    """Check the model settings of a default module; custom modules check their own."""
    from jaxrl.modules.model_config import DefaultModelConfig

    spec = resolve_module_spec(config, None, None)
    settings = spec.model_config
    if _uses_default_config(spec) and isinstance(settings, Mapping):
        DefaultModelConfig.from_dict(cast(Mapping[str, Any], settings))


def find_renamed_settings(config: "Config") -> dict[str, str]:
    """Return the current name of each model setting given under an old name."""
    from jaxrl.modules.model_config import resolve_model_settings

    model_config = config.rl_module_settings.model_config
    if not _uses_default_config(_select_spec(config)) or not isinstance(model_config, Mapping):
        return {}
    return resolve_model_settings(cast(Mapping[str, Any], model_config))[1]


def resolve_default_model_config(config: "Config") -> "DefaultModelConfig | None":
    """Return the model settings of a default module, or None for a module with its own settings.

    Raises:
        ConfigError: If a setting is invalid.
    """
    from jaxrl.modules.model_config import DefaultModelConfig

    spec = _select_spec(config)
    settings = _merge_model_config(spec, config.rl_module_settings.model_config)
    if isinstance(settings, DefaultModelConfig):
        return settings
    if not _uses_default_config(spec):
        return None
    return DefaultModelConfig.from_dict(settings or {})


def get_rows_per_sample(config: "Config") -> int:
    """Return the number of rows per replay sample: `max_seq_len` for a stateful module, else 1.

    An algorithm may learn from windows of successive rows instead.
    """
    if config.rows_per_window is not None:
        return config.rows_per_window
    settings = resolve_default_model_config(config)
    return settings.max_seq_len if settings is not None and settings.is_recurrent else 1


def _select_spec(config: "Config") -> "RLModuleSpec":
    from jaxrl.modules.rl_module import MultiRLModuleSpec, RLModule, RLModuleSpec

    settings = config.rl_module_settings
    spec = settings.rl_module_spec
    if isinstance(spec, MultiRLModuleSpec):
        raise ConfigError(
            "rl_module_spec is a MultiRLModuleSpec, but the environment has a single agent, and so a "
            "single module: pass an RLModuleSpec."
        )
    if settings.network is not None:
        return _wrap_network(config, settings.network)
    if spec is None:
        return config.get_default_rl_module_spec()
    if isinstance(spec, type) and issubclass(spec, RLModule):
        return RLModuleSpec(module_class=spec)
    if not isinstance(spec, RLModuleSpec):
        raise ConfigError(
            f"rl_module_spec must be an RLModuleSpec or a subclass of RLModule, got "
            f"{format_value(spec)}; set a network of flax or of functions by rl_module(network=...)."
        )
    return spec


def _wrap_network(config: "Config", network: object) -> "RLModuleSpec":
    """Return a spec whose module wraps a network that is not an RLModule."""
    from jaxrl.modules.network_module import make_network_module
    from jaxrl.modules.rl_module import RLModuleSpec

    if config.rl_module_settings.rl_module_spec is not None:
        raise ConfigError(
            "network and rl_module_spec both define the module; set only one of them."
        )
    module_class = config.get_default_rl_module_spec().module_class
    if module_class is not None:
        raise ConfigError(
            f"network is a policy with a value function, but {config.algo_name} trains a "
            f"{module_class.__name__}: set its networks by model_config, or pass a subclass of it "
            "as rl_module_spec."
        )
    return RLModuleSpec(module_class=make_network_module(network), model_config={})


def _uses_default_config(spec: "RLModuleSpec") -> bool:
    """Return whether a module takes the model settings of the default networks."""
    from jaxrl.modules.model_config import DefaultModelConfig

    if spec.module_class is None:
        return True
    # Any other class is rejected when it is built.
    return getattr(spec.module_class, "model_config_class", None) is DefaultModelConfig


def _merge_model_config(spec: "RLModuleSpec", model_config: object) -> Any:
    """Merge the config's model settings into the spec's; an object replaces them."""
    from jaxrl.modules.model_config import DefaultModelConfig, resolve_model_settings

    if model_config is None or (isinstance(model_config, Mapping) and not model_config):
        return spec.model_config
    if not isinstance(model_config, Mapping):
        if _uses_default_config(spec) and not isinstance(model_config, DefaultModelConfig):
            raise ConfigError(
                f"model_config must be a DefaultModelConfig or a dictionary of its fields, such as "
                f"{{'fcnet_hiddens': [64, 64]}}, got {model_config!r}."
            )
        return model_config
    settings = dict(cast(Mapping[str, Any], model_config))
    if _uses_default_config(spec):
        settings = resolve_model_settings(settings)[0]
    base = spec.model_config
    if base is not None and not isinstance(base, Mapping):
        base = base.to_dict() if hasattr(base, "to_dict") else dataclasses.asdict(base)
    return {**(base or {}), **settings}
