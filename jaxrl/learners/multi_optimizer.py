"""Several optimizers: parts of the parameters with their own loss, learning rate and state."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrl.core.types import Columns, Key, Metrics, Params
from jaxrl.learners.learner import (
    NUM_NONFINITE_UPDATES,
    SgdState,
    sgd_step,
    validate_loss,
)
from jaxrl.learners.optimizers import configure_part_optimizer
from jaxrl.ops.losses import huber_loss, masked_mean
from jaxrl.ops.value_losses import categorical_mean, cross_entropy

if TYPE_CHECKING:
    from jaxrl.config.settings.actor_critic import ActorCriticTraining

S = TypeVar("S")

POLICY, CRITIC, LOG_ALPHA = "policy", "critic", "log_alpha"
LR_NAMES = {POLICY: "actor_lr", CRITIC: "critic_lr", LOG_ALPHA: "alpha_lr"}
"""Setting that is the learning rate of each part."""
COMBINED_METRICS = ("total_loss", "grad_norm", NUM_NONFINITE_UPDATES)


def init_parts(
    learner: "MultiOptimizerLearner",
    params: Mapping[str, Params],
    values: Mapping[str, Float[Array, ""]],
) -> SgdState:
    """Initialize one optimizer per part; `opt_state` is `{part: optimizer state}`.

    Args:
        learner: Learner with the optimizers' settings.
        params: Parameters by part.
        values: Current hyperparameters by name.
    """
    states = {
        part: configure_part_optimizer(learner, part, learner.lr_names, values).init(
            {part: part_params}
        )
        for part, part_params in params.items()
    }
    return SgdState(params=dict(params), opt_state=states)


class MultiOptimizerLearner(Protocol):
    """Attributes of a learner on which a step depends besides the loss."""

    lr_names: ClassVar[Mapping[str, str]]
    has_stacked_params: ClassVar[bool]

    @property
    def settings(self) -> "ActorCriticTraining": ...
    @property
    def axis_name(self) -> str | None: ...
    @property
    def log_gradients(self) -> bool: ...


def step_one(
    learner: MultiOptimizerLearner,
    part: str,
    loss_fn: Callable[[Params], tuple[Float[Array, ""], Metrics]],
    state: SgdState,
    values: Mapping[str, Float[Array, ""]],
) -> tuple[SgdState, Metrics]:
    """Take an `sgd_step` of one part; the others are unchanged.

    Args:
        learner: Learner with the optimizer's settings.
        part: Name of the part.
        loss_fn: Function from that part's parameters to the loss and metrics.
        state: State made by `init_parts`.
        values: Current hyperparameters by name.
    """
    loss_name = f"{type(learner).__name__}'s loss of the {part}"
    new_part, metrics = sgd_step(
        lambda params: validate_loss(loss_name, loss_fn(params[part])),
        configure_part_optimizer(learner, part, learner.lr_names, values),
        get_part(state, part),
        learner.axis_name,
        learner.log_gradients,
    )
    return replace_part(state, part, new_part), metrics


def get_part(state: SgdState, part: str) -> SgdState:
    """Return one part alone, `{part: ...}`, with its own optimizer state."""
    return SgdState(params={part: state.params[part]}, opt_state=state.opt_state[part])


def replace_part(state: SgdState, part: str, new_part: SgdState) -> SgdState:
    """Replace one part by `new_part`, as returned by `get_part`."""
    return SgdState(
        params={**state.params, **new_part.params},
        opt_state={**state.opt_state, part: new_part.opt_state},
    )


def combine_metrics(*steps: Metrics) -> Metrics:
    """Combine the metrics of an update that consists of several steps.

    The loss is the sum of the losses, the gradient norm that of all gradients together, and the
    update is non-finite if any step is; all other metrics are merged.
    """
    step_losses, grad_norms, is_nonfinite = (
        [step[name] for step in steps] for name in COMBINED_METRICS
    )
    other_metrics = {
        name: x for step in steps for name, x in step.items() if name not in COMBINED_METRICS
    }
    return {
        **other_metrics,
        "total_loss": sum(step_losses[1:], step_losses[0]),
        "grad_norm": jnp.sqrt(
            sum((jnp.square(x) for x in grad_norms[1:]), jnp.square(grad_norms[0]))
        ),
        NUM_NONFINITE_UPDATES: jnp.max(jnp.stack(is_nonfinite)),
    }


def step_when_due(
    age: Int[Array, ""], delay: int, step: Callable[[], S], skipped: S
) -> tuple[S, Int[Array, ""]]:
    """Take a delayed step, or skip it at no cost.

    Args:
        age: Updates since the last step, without this one.
        delay: Updates per step.
        step: Function that takes the step.
        skipped: Its result where it is not due, of the same structure.

    Returns:
        The result and the new age.
    """
    age = age + 1
    result = step() if delay == 1 else jax.lax.cond(age >= delay, step, lambda: skipped)
    return result, jnp.where(age >= delay, 0, age)


def draw_normal_rows(
    key: Key, shape: tuple[int, ...], axis_name: str | None
) -> Float[Array, "N ..."]:
    """Draw standard normals for this device's rows; see `draw_rows`. Consumes the key."""
    return draw_rows(jax.random.normal, key, shape, axis_name)


def draw_rows(
    draw: Callable[..., Float[Array, "..."]],
    key: Key,
    shape: tuple[int, ...],
    axis_name: str | None,
) -> Float[Array, "N ..."]:
    """Draw float32 numbers for this device's rows. Consumes the key.

    The rows of all devices form one array. Every device draws all of it, which is cheap, so that a
    row's draw does not depend on the number of devices.

    Args:
        draw: Function of JAX's that draws numbers, such as `jax.random.uniform`.
        key: Key, the same on all devices.
        shape: Shape of this device's draws, rows first.
        axis_name: Mesh axis that the rows are divided over, or None.
    """
    if axis_name is None:
        return draw(key, shape, jnp.float32)
    num_rows, first_row = shape[0], jax.lax.axis_index(axis_name) * shape[0]
    total = num_rows * jax.lax.axis_size(axis_name)
    rows = draw(key, (total, *shape[1:]), jnp.float32)
    return jax.lax.dynamic_slice_in_dim(rows, first_row, num_rows)


def critic_loss(
    q: Float[Array, "critics N *n"],
    targets: Float[Array, " N *n"],
    weight: Float[Array, " N *L"],
    td_error_loss_fn: str,
    axis_name: str | None,
    support: Float[Array, " atoms"] | None = None,
) -> tuple[Float[Array, ""], Metrics]:
    """Compute Σₖ E[w l(Qₖ(s, a) − y)], with metrics and the mean |TD error| of each row.

    With atoms, l is the cross-entropy of the targets' distribution (Bellemare et al. 2017), and a TD
    error the difference of the means.

    Args:
        q: Action values Qₖ(s, a), or logits of the atoms, which are last.
        targets: Targets y, which must carry no gradient, or probabilities of the atoms.
        weight: Weight of each row.
        td_error_loss_fn: Loss l of values, "huber" or "mse".
        axis_name: Mesh axis that the rows are divided over, or None.
        support: Atoms; None for values.
    """
    if support is None:
        error = q - targets[None]
        losses = huber_loss(error) if td_error_loss_fn == "huber" else jnp.square(error)
    else:
        losses = cross_entropy(q, jnp.broadcast_to(targets[None], q.shape))
        z = support.reshape((1,) * (targets.ndim - 1) + (-1,))
        q = categorical_mean(q, support)
        error = q - jnp.sum(targets * z, axis=-1)[None]
    loss = jnp.sum(jnp.mean(weight[None] * losses, axis=tuple(range(1, q.ndim))))
    value, td_error = jnp.mean(q, axis=0), jnp.mean(jnp.abs(error), axis=0)
    return loss, compute_critic_metrics(loss, value, td_error, weight, axis_name)


def compute_critic_metrics(
    loss: Float[Array, ""],
    value: Float[Array, " N *L"],
    td_error: Float[Array, " N *L"],
    weight: Float[Array, " N *L"],
    axis_name: str | None,
) -> Metrics:
    """Compute the metrics of a critic step, averaged over the transitions of all devices."""
    mean = partial(masked_mean, mask=weight > 0.0, axis_name=axis_name)
    return {
        "qf_loss": loss,
        "qf_mean": mean(value),
        "td_error_mean": mean(td_error),
        Columns.TD_ERROR: td_error,
    }
