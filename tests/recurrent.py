"""Small runs of modules that remember, and what such a module does step by step."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import RLModule
from jaxrl.core.struct import where_rows
from jaxrl.core.types import Columns
from tests.helpers import small

MEMORY = {"use_lstm": True, "lstm_cell_size": 6, "max_seq_len": 4, "fcnet_hiddens": [8]}


def remembering(algo: str = "PPO", env: Any = None, model: Any = None, **training: Any) -> Any:
    """`small`, with a memory; 16 environments x 8 steps, sequences of 4."""
    config = small(algo, env, **training)
    return config.rl_module(model_config={**MEMORY, **(model or {})})


def step_by_step(module: RLModule, params: Any, obs: Any, carry: Any, is_first: Any) -> Any:
    """Outputs and the carries after each row, `[T, B, ...]`, one row at a time."""
    step = jax.jit(module._forward_step)  # pyright: ignore[reportPrivateUsage]
    blank = module.initial_carry(is_first.shape[1])
    rows = []
    for t in range(is_first.shape[0]):
        carry = where_rows(jnp.asarray(is_first[t]), blank, carry)
        out = step(params, jax.tree.map(lambda x, t=t: x[t], obs), carry)
        carry = out[Columns.STATE_OUT]
        rows.append(out)
    return jax.tree.map(lambda *x: np.stack([np.asarray(leaf) for leaf in x]), *rows)
