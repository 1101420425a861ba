"""Parameters that learn in parts, each with a loss, a rate and an optimiser state of its own."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from jaxrl.core.types import Columns, Key, Metrics, Params
from jaxrl.learners.learner import NONFINITE, SgdState, checked_loss, optimizer_of, sgd_step
from jaxrl.ops.losses import huber_loss, masked_mean

POLICY, CRITIC, LOG_ALPHA = "policy", "critic", "log_alpha"
RATES = {POLICY: "actor_lr", CRITIC: "critic_lr", LOG_ALPHA: "alpha_lr"}
"""The setting that is the learning rate of a part."""
JOINED = ("total_loss", "grad_norm", NONFINITE)


def first_parts(
    params: Mapping[str, Params], settings: Any, values: Mapping[str, Float[Array, ""]]
) -> SgdState:
    """The parameters `{part: ...}` with `{part: optimiser state}`.

    Args:
        params: Of every part.
        settings: Of the optimisers.
        values: Hyperparameters by name.
    """
    states = {
        part: _optimizer(part, settings, values).init({part: own}) for part, own in params.items()
    }
    return SgdState(params=dict(params), opt_state=states)


def _optimizer(
    part: str, settings: Any, values: Mapping[str, Float[Array, ""]]
) -> optax.GradientTransformation:
    return optimizer_of(settings, {**values, "lr": values[RATES[part]]})


class LearnerOfParts(Protocol):
    """What a step depends on besides the loss."""

    @property
    def settings(self) -> Any: ...
    @property
    def axis_name(self) -> str | None: ...
    @property
    def log_gradients(self) -> bool: ...


def step_part(
    learner: LearnerOfParts,
    part: str,
    loss_fn: Callable[[Params], tuple[Float[Array, ""], Metrics]],
    state: SgdState,
    values: Mapping[str, Float[Array, ""]],
) -> tuple[SgdState, Metrics]:
    """`sgd_step` of one part; the others are as they were.

    Args:
        learner: Its settings are those of the optimiser.
        part: Its name.
        loss_fn: Of that part's parameters.
        state: From `first_parts`.
        values: Current hyperparameters by name.
    """
    what = f"{type(learner).__name__}'s loss of the {part}"
    own, metrics = sgd_step(
        lambda params: checked_loss(what, loss_fn(params[part])),
        _optimizer(part, learner.settings, values),
        part_of(state, part),
        learner.axis_name,
        learner.log_gradients,
    )
    return with_part(state, part, own), metrics


def part_of(state: SgdState, part: str) -> SgdState:
    """One part alone, `{part: ...}`, with its own optimiser state."""
    return SgdState(params={part: state.params[part]}, opt_state=state.opt_state[part])


def with_part(state: SgdState, part: str, own: SgdState) -> SgdState:
    """All parts, of which one is as in `own`, from `part_of`."""
    return SgdState(
        params={**state.params, **own.params},
        opt_state={**state.opt_state, part: own.opt_state},
    )


def joined(*steps: Metrics) -> Metrics:
    """The metrics of an update of several steps.

    The sum of the losses, the norm of all gradients together, and whether any was non-finite;
    other names are each step's own.
    """
    losses, norms, flags = ([step[name] for step in steps] for name in JOINED)
    own = {name: x for step in steps for name, x in step.items() if name not in JOINED}
    return {
        **own,
        "total_loss": sum(losses[1:], losses[0]),
        "grad_norm": jnp.sqrt(sum((jnp.square(x) for x in norms[1:]), jnp.square(norms[0]))),
        NONFINITE: jnp.max(jnp.stack(flags)),
    }


def normal_rows(key: Key, shape: tuple[int, ...], axis_name: str | None) -> Float[Array, "N ..."]:
    """Standard normal draws for this device's rows, those of all devices lying one after another.

    Every device draws all of them, which is cheap, so that a row's draw does not depend on how many
    devices there are. Consumes the key.

    Args:
        key: The same on all devices.
        shape: Of this device's draws, rows first.
        axis_name: Mesh axis that the rows are divided over, or None.
    """
    if axis_name is None:
        return jax.random.normal(key, shape, jnp.float32)
    num_rows, first = shape[0], jax.lax.axis_index(axis_name) * shape[0]
    total = num_rows * jax.lax.axis_size(axis_name)
    rows = jax.random.normal(key, (total, *shape[1:]), jnp.float32)
    return jax.lax.dynamic_slice_in_dim(rows, first, num_rows)


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
