"""Training steps of users' own Algorithms as a part of the compiled program."""

import inspect
from typing import TYPE_CHECKING

from jaxrl.errors import ConfigError
from jaxrl.training.data_flow import CompiledStep

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


def get_compiled_step(config: "AlgorithmConfig") -> CompiledStep | None:
    """Return the training step of the config's own Algorithm, if it has one for the program.

    Raises:
        ConfigError: If it is not a function of the data flow alone.
    """
    name = "compiled_training_step"
    step: CompiledStep | None = getattr(config.algo_class, name, None)
    if step is None:
        return None
    owner = config.algo_class.__name__ if config.algo_class else ""
    try:
        inspect.signature(step).bind(None)
    except TypeError:
        raise ConfigError(
            f"{name} of {owner} must be a static function of the data flow alone, because it is "
            f"part of the compiled program: @staticmethod, then def {name}(flow), got "
            f"{name}{inspect.signature(step)}."
        ) from None
    interval = config.training_settings.weights_interval
    if interval > 1:
        raise ConfigError(
            f"broadcast_interval={interval} has no effect on {name} of {owner}, which calls "
            "sync_weights() itself: leave it at 1."
        )
    return step
