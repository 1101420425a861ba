"""Target networks: a lagged copy of parameters, updated periodically or by Polyak averaging."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, UInt32

from jaxrl.core.struct import pytree
from jaxrl.core.types import Metrics, Params, Progress, PyTree
from jaxrl.learners.gradients import NUM_NONFINITE_UPDATES


@pytree
class TargetNetwork:
    """Parameters of the copy, and the low word of the environment steps at its last update."""

    params: Params
    renewed: UInt32[Array, ""]


def init_target(params: Params) -> TargetNetwork:
    """Create a target network as a copy of the initial parameters."""
    return TargetNetwork(params=jax.tree.map(jnp.copy, params), renewed=jnp.zeros((), jnp.uint32))


def update_target(
    target: TargetNetwork,
    params: Params,
    metrics: Metrics,
    progress: Progress,
    tau: Float[Array, ""],
    frequency: int,
) -> TargetNetwork:
    """Update the target network after a gradient step, if an update is due.

    Args:
        target: Target network before the step.
        params: Parameters after the step.
        metrics: Metrics of the step; a step that was skipped for being non-finite updates nothing.
        progress: Progress of the run.
        tau: Weight of `params` in the update; 1 is a copy.
        frequency: Environment steps between two updates; 0 updates after every gradient step.
    """
    now = progress.env_steps.low
    due = metrics[NUM_NONFINITE_UPDATES] < 0.5
    if frequency > 0:
        due = due & (now - target.renewed >= frequency)
    return TargetNetwork(
        params=polyak_average(due, tau, params, target.params),
        renewed=jnp.where(due, now, target.renewed),
    )


def polyak_average(
    is_due: Bool[Array, ""], tau: Float[Array, ""], new: PyTree, old: PyTree
) -> PyTree:
    """Compute τ new + (1 − τ) old where an update is due, else `old`."""
    return jax.tree.map(lambda x, y: jnp.where(is_due, tau * x + (1.0 - tau) * y, y), new, old)
