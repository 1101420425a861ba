"""Terms of a loss that compare the value of a row's action with those of all others."""

from typing import TYPE_CHECKING

from jaxtyping import Array, Float

from jaxrl.core.types import Transition
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

    `cql_loss` pushes down the values of the actions that the row does not have (Kumar et al. 2020).
    Illegal actions have no part.

    Args:
        module: Module that knows which actions are legal.
        settings: Settings of the learner.
        batch: Minibatch.
        values: Values of all actions, of distributions their means.
    """
    if settings.cql_alpha == 0.0:
        return {}
    legal_values = mask_logits(values, module.action_mask(batch.obs))
    value = value_losses.batched_index(values, batch.action)
    gap = value_losses.conservative_gap(legal_values, value)
    return {"cql_loss": settings.cql_alpha * gap}
