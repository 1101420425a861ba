"""V-trace targets of a rollout, shared by IMPALA and APPO."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxrl.core.struct import pytree
from jaxrl.core.types import Columns, Metrics, Params, Rollout
from jaxrl.learners.bootstrap import compute_successor_values
from jaxrl.learners.policy_gradient import weight_advantages
from jaxrl.modules.rl_module import RLModule
from jaxrl.modules.sequences import attach_final_carries
from jaxrl.ops import losses, returns

ROUNDING = 1e-5
"""Relative error up to which a ratio counts as not clipped: on-policy, all would be near 1."""


class VTraceSettings(Protocol):
    """Settings that shape the program of the targets."""

    @property
    def vtrace(self) -> bool: ...
    @property
    def normalize_advantages(self) -> bool | str: ...


@pytree
class VTraceTargets:
    """Targets of every row; `weight` is 0 where a row is not a transition, and 1 on average."""

    value_targets: Float[Array, "T B"]
    advantages: Float[Array, "T B"]
    weight: Float[Array, "T B"]


def compute_vtrace_targets(
    module: RLModule,
    params: Params,
    out: dict[str, Any],
    log_prob: Float[Array, "T B"],
    rollout: Rollout,
    values: Mapping[str, Float[Array, ""]],
    settings: VTraceSettings,
    axis_name: str | None,
) -> tuple[VTraceTargets, Metrics]:
    """Compute the targets and advantages of Espeholt et al. 2018 (eq. 1, section 4.2).

    Episodes are cut at terminations and truncations; a truncated row, and the last one, bootstraps
    from the value of its final observation. Statistics are returned as metrics.

    Args:
        module: Module that computes the values of successors.
        params: Parameters of the module.
        out: Outputs of `forward_rollout` with the same parameters.
        log_prob: Log-probability log π(a|s) of the target policy, in ρ = π / μ; that of the acting
            policy, log μ(a|s), is in the rollout.
        rollout: Transitions `[T, B, ...]`, holding the module's observations.
        values: Current gamma, lambda_, vtrace_clip_rho_threshold and vtrace_clip_pg_rho_threshold.
        settings: Settings; without `vtrace`, ρ is 1, as if the target policy had acted.
        axis_name: Mesh axis that the environments are divided over, or None.
    """
    log_ratio = log_prob - rollout.extras[Columns.ACTION_LOGP]
    rho = jnp.exp(log_ratio) if settings.vtrace else jnp.ones_like(log_ratio)
    estimates, seen = out[Columns.VF_PREDS], attach_final_carries(rollout, out)
    mask, clip_rho = rollout.mask, values["vtrace_clip_rho_threshold"]
    value_targets, advantages = returns.vtrace(
        rollout.reward,
        estimates,
        compute_successor_values(partial(module.compute_values, params), seen, estimates),
        rho,
        rollout.terminated,
        rollout.truncated,
        mask,
        values["gamma"],
        values["lambda_"],
        clip_rho,
        values["vtrace_clip_pg_rho_threshold"],
    )
    normalize = settings.normalize_advantages
    advantages, weight = weight_advantages(advantages, mask, normalize, axis_name)

    def mean(x: Float[Array, "T B"]) -> Float[Array, ""]:
        return losses.masked_moments(x, mask, axis_name).mean

    targets = VTraceTargets(
        value_targets=value_targets,
        advantages=advantages,
        weight=weight,
    )
    return targets, {
        "mean_rho": mean(jnp.minimum(rho, clip_rho)),
        "rho_clip_fraction": mean((rho > (1.0 + ROUNDING) * clip_rho).astype(jnp.float32)),
        "vf_explained_var": losses.explained_variance(value_targets, estimates, mask, axis_name),
        "curr_lr": values["lr"],
        "curr_entropy_coeff": values["entropy_coeff"],
    }
