"""The optimiser step: the only place where a loss becomes an update."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, Metrics, Params, Progress, PyTree, Rollout, Transition
from jaxrl.errors import LossError
from jaxrl.learners.microbatches import Gradients

S = TypeVar("S")
B = TypeVar("B")

NONFINITE = "num_nonfinite_updates"


class Learner(Protocol[S, B]):
    """What an algorithm file defines. All four are pure; `S` holds parameters, optimiser, targets.

    `axis_name` is the mesh axis over which gradients and moments are reduced, or None.
    """

    def init(self, key: Key) -> S:
        """The first state. Consumes the key."""
        ...

    def prepare(self, state: S, rollout: Rollout, progress: Progress) -> tuple[B, Metrics]:
        """Targets for a whole train batch, `[T, B, ...]` as the rollout, and their statistics."""
        ...

    def update(self, state: S, batch: B, progress: Progress, key: Key) -> tuple[S, Metrics]:
        """One gradient step on one minibatch, `[N, ...]`."""
        ...

    def finish(self, state: S, metrics: Metrics, progress: Progress) -> S:
        """Once a train batch: adaptive KL, targets.

        `metrics` are means over the last epoch's updates, NaN if all of them were skipped.
        """
        ...


class ReplayLearner(Protocol[S]):
    """What the file of an algorithm with replay defines. Both are pure.

    `S` has `sgd`, whose `params` are the module's, and `hparams`, with `gamma` among them.
    """

    def init(self, key: Key) -> S:
        """The first state. Consumes the key."""
        ...

    def update(
        self, state: S, batch: Transition, progress: Progress, key: Key
    ) -> tuple[S, Metrics]:
        """One gradient step, target networks included; the metrics have a `td_error` `[N]`.

        The key is the same on every device, and rows draw alike on any number of them
        (`core.parts.normal_rows`).
        """
        ...


@pytree
class SgdState:
    """Parameters and the optimiser's state that belongs to them."""

    params: Params
    opt_state: PyTree


_NUMBERS = (jax.Array, np.ndarray, np.generic, int, float)


def checked_loss(what: str, returned: Any) -> tuple[Float[Array, ""], Metrics]:
    """What a loss returned, if it is a number and numbers by name.

    Args:
        what: The loss, for the message.
        returned: By it, traced.

    Raises:
        LossError: It is anything else.
    """
    if not isinstance(returned, tuple):
        raise LossError(f"{what} must return (loss, metrics), got a {type(returned).__name__}.")
    both = cast(tuple[Any, ...], returned)
    if len(both) != 2:
        raise LossError(f"{what} must return (loss, metrics), got a tuple of {len(both)}.")
    loss, metrics = both
    if not isinstance(loss, jax.Array):
        raise LossError(
            f"{what} must return a loss that is computed from the parameters, got {loss!r}."
        )
    if loss.shape != () or not jnp.issubdtype(loss.dtype, jnp.floating):
        raise LossError(
            f"{what} returned a loss that is {loss.dtype} of shape {loss.shape}; it must be one "
            "floating number, such as jnp.mean(batch.weight * x)."
        )
    if not isinstance(metrics, dict):
        raise LossError(
            f"{what} must return its metrics as a dictionary, got a {type(metrics).__name__}."
        )
    given = cast(dict[Any, Any], metrics)
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, _NUMBERS):
            raise LossError(
                f"{what} must return its metrics as numbers by name, got {name!r}: {value!r}."
            )
    return loss, {name: jnp.asarray(value) for name, value in given.items()}


def check_scalars(what: str, metrics: Mapping[str, Any]) -> None:
    """Refuse a metric that is no single number.

    Args:
        what: Whose they are, for the message.
        metrics: Traced.

    Raises:
        LossError: Names the metric.
    """
    for name, value in metrics.items():
        if jnp.shape(value) != ():
            raise LossError(
                f"{what}'s metric {name!r} has shape {jnp.shape(value)}; a metric is one number, "
                "such as the mean."
            )


def sgd_step(
    loss_fn: Callable[[Params], tuple[Float[Array, ""], Metrics]],
    tx: optax.GradientTransformation,
    state: SgdState,
    axis_name: str | None = None,
    log_gradients: bool = False,
) -> tuple[SgdState, Metrics]:
    """One step of `tx` down the gradient of the mean loss over all shards.

    A non-finite loss or gradient (after the reduction, so that all devices agree) leaves
    parameters and optimiser as they were; the metric `num_nonfinite_updates` is 1 then, and the
    others, which may be NaN, are left out of the means.

    Args:
        loss_fn: Mean loss of this device's rows, and metrics.
        tx: The optimiser, built from the hyperparameters' current values.
        state: Parameters and optimiser state.
        axis_name: Mesh axis to average gradients over; None on one device.
        log_gradients: Also report the L2 norm of every gradient tensor, as `grad_norm/<path>`.
    """
    found = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return step_along(found, tx, state, axis_name, log_gradients)


def step_along(
    found: Gradients,
    tx: optax.GradientTransformation,
    state: SgdState,
    axis_name: str | None = None,
    log_gradients: bool = False,
) -> tuple[SgdState, Metrics]:
    """`sgd_step` where loss, metrics and gradients of this device's rows are known."""
    (loss, metrics), grads = found
    # One vector: a single collective and a single norm, whatever the number of tensors.
    flat, unravel = ravel_pytree(grads)
    if axis_name is not None:
        reduced = jax.lax.pmean(jnp.append(flat, loss), axis_name)
        flat, loss = reduced[:-1], reduced[-1]
    grads = unravel(flat)
    grad_norm = jnp.sqrt(jnp.sum(jnp.square(flat)))
    if log_gradients:
        metrics = {**metrics, **tensor_norms(grads)}
    finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    return select(finite, SgdState(params=params, opt_state=opt_state), state), {
        **jax.lax.stop_gradient(metrics),
        "total_loss": loss,
        "grad_norm": grad_norm,
        NONFINITE: 1.0 - finite.astype(jnp.float32),
    }


def tensor_norms(grads: PyTree) -> Metrics:
    """The L2 norm of every tensor, as `grad_norm/<path>`."""
    return {
        f"grad_norm/{jax.tree_util.keystr(path, simple=True, separator='.')}": optax.tree.norm(leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(grads)[0]
    }


def select(condition: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    """`new` where the scalar condition holds, else `old`, leaf by leaf."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), new, old)


def clip_gradients(by: str, limit: Float[Array, ""] | None) -> optax.GradientTransformation:
    """RLlib's three kinds of clipping, each as its name says.

    Args:
        by: "value" clamps each entry to `[-limit, limit]`; "norm" scales each tensor to an L2 norm
            of at most `limit`; "global_norm" scales all of them by their common L2 norm.
        limit: The bound, None for no clipping.
    """
    if limit is None:
        return optax.identity()
    return _CLIPPING[by](limit)


def _clip_by_tensor_norm(limit: Any) -> optax.GradientTransformation:
    def clip(updates: PyTree) -> PyTree:
        def scale(g: Array) -> Array:
            return g * jnp.minimum(1.0, limit / (jnp.sqrt(jnp.sum(jnp.square(g))) + 1e-6))

        return jax.tree.map(scale, updates)

    return optax.stateless(lambda updates, _: clip(updates))


_CLIPPING: dict[str, Callable[[Any], optax.GradientTransformation]] = {
    "value": optax.clip,
    "norm": _clip_by_tensor_norm,
    "global_norm": optax.clip_by_global_norm,
}


OptimizerSetting = str | Mapping[str, Any] | Callable[..., optax.GradientTransformation]
OPTIMIZERS = ("adam", "adamw", "sgd", "rmsprop", "lion", "radam", "nadam", "adabelief", "lamb")


def optimizer_of(
    settings: Any, values: Mapping[str, Float[Array, ""]]
) -> optax.GradientTransformation:
    """The optimiser of a training group, `Training`, at the hyperparameters' current values.

    Where everything works entry by entry, it works on one vector of all parameters: a few
    operations instead of a few for each tensor.
    """
    clip = clip_gradients(settings.grad_clip_by, values.get("grad_clip"))
    optimizer = make_optimizer(settings.optimizer, values["lr"])
    if not _is_elementwise(settings.optimizer):
        return optax.chain(clip, optimizer)
    if settings.grad_clip_by == "norm":
        return optax.chain(clip, optax.flatten(optimizer))
    return optax.flatten(optax.chain(clip, optimizer))


ELEMENTWISE = frozenset(("adam", "adamw", "sgd", "rmsprop", "lion", "radam", "nadam", "adabelief"))
"""Optimisers that treat every entry for itself."""


def _is_elementwise(setting: OptimizerSetting) -> bool:
    if callable(setting):
        return False
    if isinstance(setting, str):
        return setting in ELEMENTWISE
    return setting["name"] in ELEMENTWISE and "mask" not in setting


def make_optimizer(setting: OptimizerSetting, lr: Float[Array, ""]) -> optax.GradientTransformation:
    """The optimiser that the setting names, at a traced rate.

    Args:
        setting: optax's name, `{"name": ..., **keyword arguments}`, or a callable of `lr`.
        lr: The current learning rate.
    """
    if callable(setting):
        return setting(lr)
    kwargs = {"name": setting} if isinstance(setting, str) else dict(setting)
    factory: Callable[..., optax.GradientTransformation] = vars(optax)[kwargs.pop("name")]
    return factory(lr, **kwargs)
