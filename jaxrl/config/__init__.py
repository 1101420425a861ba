"""Settings, the fluent AlgorithmConfig, and the values derived from them."""

from jaxrl.config.base import AlgorithmConfig, get_algorithm_config, get_algorithm_config_class
from jaxrl.config.fields import Schedule, field, fluent
from jaxrl.config.registry import list_algorithms, register
from jaxrl.config.settings.training import AdvantageTraining, OnPolicyTraining, Training

__all__ = [
    "AdvantageTraining",
    "AlgorithmConfig",
    "OnPolicyTraining",
    "Schedule",
    "Training",
    "field",
    "fluent",
    "get_algorithm_config",
    "get_algorithm_config_class",
    "list_algorithms",
    "register",
]
