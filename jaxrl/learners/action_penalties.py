"""Terms of a loss that compare the value of a row's action with those of all others."""

from typing import TYPE_CHECKING

from jaxtyping import Array, Float

from jaxrl.core.types import IS_RECORDED, Transition
from jaxrl.distributions.base import mask_logits
from jaxrl.modules.rl_module import RLModule
from jaxrl.ops import value_losses

if TYPE_CHECKING:
    from jaxrl.config.settings.value import DQNTraining


def compute_action_penalties(
    module: RLModule,
    settings: "DQNTraining",
    batch: Transition,
    values: Float[Array, "*n actions"],
) -> dict[str, Float[Array, "*n"]]:
    """Compute the weighted penalties that the settings ask for, by metric; none by default.

    `cql_loss` pushes down the values of the actions that the row does not have (Kumar et al. 2020),
    and `margin_loss` those above the row's less a margin, where rows are recorded (Hester et al.
    2018). Illegal actions have no part.

    Args:
        module: Module that knows which actions are legal.
        settings: Settings of the learner.
        batch: Minibatch.
        values: Values of all actions, of distributions their means.
    """
    penalties: dict[str, Array] = {}
    if settings.cql_alpha == settings.margin_coeff == 0.0:
        return penalties
    legal_values = mask_logits(values, module.action_mask(batch.obs))
    if settings.cql_alpha > 0.0:
        value = value_losses.batched_index(values, batch.action)
        gap = value_losses.conservative_gap(legal_values, value)
        penalties["cql_loss"] = settings.cql_alpha * gap
    if settings.margin_coeff > 0.0:
        loss = value_losses.large_margin(legal_values, batch.action, settings.margin)
        is_recorded = batch.extras.get(IS_RECORDED, 1.0)
        penalties["margin_loss"] = settings.margin_coeff * is_recorded * loss
    return penalties
