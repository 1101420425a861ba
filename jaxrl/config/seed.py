"""Drawing of a seed for `seed=None`."""

import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


def draw_seed(config: "AlgorithmConfig") -> None:
    """Set the seed to a random number if it is None, so that the run can be repeated.

    The number is part of the config from then on, and so of `params.json` and of checkpoints.
    """
    if config.debugging_settings.seed is not None:
        return
    seed = secrets.randbits(32)
    config.debugging(seed=seed)
    config.add_remark(f"seed=None: {seed} was drawn; set seed={seed} to repeat the run.")
