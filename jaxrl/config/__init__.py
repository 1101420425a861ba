"""Settings, the fluent AlgorithmConfig, and the values derived from them."""

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.batch_plan.on_policy import BatchPlan, choose_num_devices
from jaxrl.config.fields import Schedule, field, fluent
from jaxrl.config.registry import (
    get_algorithm_config,
    get_algorithm_config_class,
    list_algorithms,
    register,
)
from jaxrl.config.settings.training import AdvantageTraining, OnPolicyTraining, Training

__all__ = [
    "AdvantageTraining",
    "AlgorithmConfig",
    "BatchPlan",
    "OnPolicyTraining",
    "Schedule",
    "Training",
    "choose_num_devices",
    "field",
    "fluent",
    "get_algorithm_config",
    "get_algorithm_config_class",
    "list_algorithms",
    "register",
]
