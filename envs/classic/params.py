"""Environment parameters that are single numbers."""

import dataclasses
from typing import Any

import numpy as np


def scalar(default: float) -> Any:
    """A float32 field of a params pytree.

    The leaf is a NumPy array, so that making an environment does not start JAX's backend.
    """
    return dataclasses.field(default_factory=lambda: np.asarray(default, np.float32))
