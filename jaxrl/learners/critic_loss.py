"""The regression of several critics on common targets: SAC's, TD3's and DDPG's."""

from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.core.types import Columns, Metrics
from jaxrl.ops.losses import huber_loss, masked_mean


def critic_loss(
    q: Float[Array, "critics N *L"],
    targets: Float[Array, " N *L"],
    weight: Float[Array, " N *L"],
    td_error_loss_fn: str,
    axis_name: str | None,
) -> tuple[Float[Array, ""], Metrics]:
    """Σₖ E[w l(Qₖ(s, a) − y)], with metrics and the mean |TD error| of each row.

    Args:
        q: Qₖ(s, a).
        targets: y, which get no gradient.
        weight: Of each row.
        td_error_loss_fn: "huber" or "mse".
        axis_name: Mesh axis that the rows are divided over, or None.
    """
    error = q - targets[None]
    each = huber_loss(error) if td_error_loss_fn == "huber" else jnp.square(error)
    loss = jnp.sum(jnp.mean(weight[None] * each, axis=tuple(range(1, q.ndim))))
    value, td_error = jnp.mean(q, axis=0), jnp.mean(jnp.abs(error), axis=0)
    return loss, critic_metrics(loss, value, td_error, weight, axis_name)


def critic_metrics(
    loss: Float[Array, ""],
    value: Float[Array, " N *L"],
    td_error: Float[Array, " N *L"],
    weight: Float[Array, " N *L"],
    axis_name: str | None,
) -> Metrics:
    """What a step of the critics reports; means are of the rows of all devices that are transitions."""
    mean = partial(masked_mean, mask=weight > 0.0, axis_name=axis_name)
    return {
        "qf_loss": loss,
        "qf_mean": mean(value),
        "td_error_mean": mean(td_error),
        Columns.TD_ERROR: td_error,
    }
