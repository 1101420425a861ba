"""Target networks: a copy of parameters that follows them, in jumps or slowly."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, UInt32

from jaxrl.core.struct import pytree
from jaxrl.core.types import Metrics, Params, Progress, PyTree
from jaxrl.learners.learner import NONFINITE


@pytree
class Target:
    """The copy, and the low word of the environment steps at which it was last renewed."""

    params: Params
    renewed: UInt32[Array, ""]


def first_target(params: Params) -> Target:
    """A copy of the first parameters."""
    return Target(params=jax.tree.map(jnp.copy, params), renewed=jnp.zeros((), jnp.uint32))


def followed(
    target: Target,
    params: Params,
    metrics: Metrics,
    progress: Progress,
    tau: Float[Array, ""],
    frequency: int,
) -> Target:
    """The target after a gradient step, renewed where that is due.

    Args:
        target: Before the step.
        params: After it.
        metrics: The step's; one that was skipped for being non-finite renews nothing.
        progress: Of the run.
        tau: Share of `params`; 1 is a copy.
        frequency: Environment steps between two renewals; 0 is one after every gradient step.
    """
    now = progress.env_steps.low
    due = metrics[NONFINITE] < 0.5
    if frequency > 0:
        due = due & (now - target.renewed >= frequency)
    return Target(
        params=mixed(due, tau, params, target.params),
        renewed=jnp.where(due, now, target.renewed),
    )


def mixed(due: Bool[Array, ""], tau: Float[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    """`old` after `new` was mixed into it, τ new + (1 − τ) old, where that is due."""
    return jax.tree.map(lambda x, y: jnp.where(due, tau * x + (1.0 - tau) * y, y), new, old)
