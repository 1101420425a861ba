"""The shapes of a rollout before there is one, for what is allocated beforehand."""

import jax
import jax.numpy as jnp

from jaxrl.core.struct import replace
from jaxrl.core.types import Columns, Rollout
from jaxrl.modules.rl_module import zeros_of
from jaxrl.training.rollout import RECORDED, Acting, Actor


def blank_rollout(acting: Acting, actor: Actor, num_steps: int, num_envs: int) -> Rollout:
    """A rollout `[T, B, ...]` of nothing, shaped and typed as every runner records one.

    It comes from the spaces and from the module alone, so that it needs no environment.
    """
    obs = zeros_of(acting.obs_pipeline.space, (num_envs,))
    carry = acting.initial_carry(num_envs)
    flag, number = jnp.zeros((num_envs,), jnp.bool_), jnp.zeros((num_envs,), jnp.float32)
    keys = jax.random.split(jax.random.key(0), num_envs)
    index = jnp.arange(num_envs, dtype=jnp.int32)
    out = acting.act(actor, obs, carry, flag, index, acting.module.draw(keys), True)
    row = Rollout(
        obs=obs,
        action=out[Columns.ACTIONS],
        reward=number,
        terminated=flag,
        truncated=flag,
        final_obs=obs,
        is_first=flag,
        mask=flag,
        extras={name: out[name] for name in RECORDED},
    )
    rows = jax.tree.map(lambda x: jnp.broadcast_to(x[None], (num_steps, *x.shape)), row)
    return replace(rows, carry_in=carry)
