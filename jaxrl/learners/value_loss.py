"""Losses of state values, and values in units of the moments of their targets."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.core.types import Columns, Params, Rollout
from jaxrl.learners.bootstrap import compute_values_and_successors
from jaxrl.modules.rl_module import RLModule
from jaxrl.modules.sequences import attach_final_carries
from jaxrl.ops import losses
from jaxrl.ops.statistics import DebiasedMoments

if TYPE_CHECKING:
    from jaxrl.config.settings.training import ValueTraining

TARGET_MEAN, TARGET_STD = "vf_target_mean", "vf_target_std"
"""Names of the targets' moments among the hyperparameters of a loss."""


def get_moment_values(moments: DebiasedMoments) -> dict[str, Float[Array, ""]]:
    """Return the moments of value targets by name, for `compute_value_loss`."""
    return {TARGET_MEAN: moments.mean, TARGET_STD: moments.std}


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


def compute_value_loss(
    value: Float[Array, "*n"],
    target: Float[Array, "*n"],
    settings: "ValueTraining",
    values: Mapping[str, Float[Array, ""]],
) -> Float[Array, "*n"]:
    """Compute min(l(v − G), c), the square or Huber's loss bounded by `vf_clip_param`.

    Args:
        value: Values v of the module.
        target: Targets G in units of the rewards.
        settings: Which loss it is, and whether values are normalized.
        values: Current hyperparameters by name, with `TARGET_MEAN` and `TARGET_STD` if they are.
    """
    if settings.normalize_values:
        target = (target - values[TARGET_MEAN]) / values[TARGET_STD]
    if settings.huber_delta is None:
        return losses.clipped_value_loss(value, target, values["vf_clip_param"])
    huber = losses.huber_loss(value - target, values["huber_delta"])
    return jnp.minimum(huber, values["vf_clip_param"])
