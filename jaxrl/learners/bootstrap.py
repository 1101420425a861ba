"""Values of successor states, which are not the next row where an episode ended."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxrl.core.struct import pytree
from jaxrl.core.types import Columns, Params, PyTree, Rollout, Transition, obs_only
from jaxrl.modules.rl_module import RLModule
from jaxrl.modules.sequences import attach_final_carries
from jaxrl.ops.returns import gae
from jaxrl.ops.search import searchsorted
from jaxrl.ops.statistics import DebiasedMoments

ValueFn = Callable[[PyTree], Float[Array, " N"]]


@pytree
class _LoopState:
    done: Int[Array, ""]
    values: Float[Array, " N"]


def compute_values_and_successors(
    value_fn: ValueFn, rollout: Rollout, values: Float[Array, "T B"] | None = None
) -> tuple[Float[Array, "T B"], Float[Array, "T B"]]:
    """Compute v(obs) of every row in one forward pass, and v of its successor.

    See `compute_successor_values`. If `values` are given, they are used as v(obs).
    """
    if values is not None:
        return values, compute_successor_values(value_fn, rollout, values)
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rollout.obs)
    values = value_fn(flat).reshape(rollout.reward.shape)
    return values, compute_successor_values(value_fn, rollout, values)


def compute_rollout_values(
    module: RLModule,
    params: Params,
    rollout: Rollout,
    out: dict[str, Any],
    moments: DebiasedMoments | None,
) -> tuple[Float[Array, "T B"], Float[Array, "T B"]]:
    """Compute the values of all rows and of their successors, in units of the rewards.

    Args:
        module: Module with a value function.
        params: Its parameters.
        rollout: Rollout, `[T, B, ...]`.
        out: Outputs of `forward_rollout` if the module is recurrent, else empty.
        moments: Moments of the targets that the module's values are in units of, or None.
    """
    values = compute_values_and_successors(
        partial(module.compute_values, params),
        attach_final_carries(rollout, out),
        out.get(Columns.VF_PREDS),
    )
    if moments is None:
        return values
    return moments.denormalize(values[0]), moments.denormalize(values[1])


def compute_successor_values(
    value_fn: ValueFn,
    rollout: Rollout,
    values: Float[Array, "T B"],
    mask: Bool[Array, "T B"] | None = None,
) -> Float[Array, "T B"]:
    """Compute v(final_obs) of every row, at little more than the cost of the truncated ones.

    Within an episode the successor is the next row, whose value is known. The last row, the
    truncated ones, and those before a row without a value are evaluated on `final_obs`; they are
    gathered a few rows at a time, so a rollout without them costs one forward pass of B rows. At
    terminations the result is not a successor's value and must be multiplied by a discount of 0.

    Args:
        value_fn: Function from a batch of the module's observations to state values.
        rollout: Transitions `[T, B, ...]`, holding the module's observations.
        values: State values v(obs), `[T, B]`.
        mask: Rows that have a value; None if all have. Those behind the last row of an agent, which
            bootstrap it by their `obs`, have none where values are those computed for acting.
    """
    last = value_fn(jax.tree.map(lambda x: x[-1], rollout.final_obs))
    shifted = jnp.concatenate([values[1:], last[None]])
    is_wanted = rollout.truncated
    if mask is not None:
        has_next = jnp.concatenate([mask[1:], jnp.ones_like(mask[:1])])
        is_wanted = is_wanted | (mask & ~has_next)
    is_wanted = is_wanted & ~rollout.terminated
    flat_obs = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rollout.final_obs)
    flat = evaluate_rows(value_fn, flat_obs, is_wanted.reshape(-1), shifted.reshape(-1))
    return flat.reshape(values.shape)


def evaluate_rows(
    value_fn: ValueFn, obs: PyTree, is_wanted: Bool[Array, " N"], values: Float[Array, " N"]
) -> Float[Array, " N"]:
    """Replace the wanted rows of `values` by `value_fn` of their observations."""
    rows = is_wanted.shape[0]
    chunk = max(1, rows // 32)
    ordinal = jnp.cumsum(is_wanted.astype(jnp.int32))

    def body(carry: _LoopState) -> _LoopState:
        nth = carry.done + jnp.arange(1, chunk + 1, dtype=jnp.int32)
        row = searchsorted(ordinal, nth)  # past the last one: `rows`, which is dropped
        picked = jax.tree.map(lambda x: jnp.take(x, row, axis=0, mode="clip"), obs)
        return _LoopState(
            done=carry.done + chunk,
            values=carry.values.at[row].set(value_fn(picked), mode="drop"),
        )

    start = _LoopState(done=jnp.zeros((), jnp.int32), values=values)
    return jax.lax.while_loop(lambda carry: carry.done < ordinal[-1], body, start).values


def compute_window_returns(
    value_fn: ValueFn,
    batch: Transition,
    out: dict[str, PyTree],
    gamma: Float[Array, ""],
    lambda_: float,
) -> Float[Array, "*n"]:
    """Compute the λ-returns of rows in windows of successive rows, without a gradient.

    The last row of a window, and those after which an episode was truncated or cut, bootstrap from
    their successors; nothing passes from one episode to another.

    Args:
        value_fn: Function from a batch of the module's observations to state values, whose
            parameters have no gradient.
        batch: Rows `[N * L]`, or sequences `[N, L]`, with one step each, and with `TERMINATEDS` and
            `TRUNCATEDS` `[N, L]` among the extras.
        out: Outputs of the module for the batch.
        gamma: Discount factor.
        lambda_: GAE's lambda.
    """
    windows = batch.extras[Columns.TERMINATEDS].shape
    num_batch_axes = batch.weight.ndim

    def lay(tree: PyTree) -> PyTree:
        """Return rows with time first, `[L, N, ...]`."""

        def lay_leaf(x: Array) -> Array:
            return jnp.swapaxes(x.reshape(*windows, *x.shape[num_batch_axes:]), 0, 1)

        return jax.tree.map(lay_leaf, tree)

    values = lay(jax.lax.stop_gradient(out[Columns.VF_PREDS]))
    rollout = Rollout(
        obs=(),
        action=(),
        reward=lay(batch.reward),
        terminated=batch.extras[Columns.TERMINATEDS].T,
        truncated=batch.extras[Columns.TRUNCATEDS].T,
        final_obs=lay(obs_only(batch.next_obs)),
        is_first=jnp.zeros_like(batch.extras[Columns.TERMINATEDS].T),
        mask=lay(batch.weight > 0.0),
        extras={},
    )
    carries = {k: lay(v) for k, v in out.items() if k == Columns.STATE_OUT}
    rollout = attach_final_carries(rollout, jax.lax.stop_gradient(carries))
    advantages = gae(
        rollout.reward,
        values,
        compute_successor_values(value_fn, rollout, values),
        rollout.terminated,
        rollout.truncated,
        rollout.mask,
        gamma,
        lambda_,
    )
    return jnp.swapaxes(advantages + values, 0, 1).reshape(batch.weight.shape)
