"""Learner interface, optimizers, and the gradient step that turns a loss into an update."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, cast, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from jaxrl.core.hparams import HParams
from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, Metrics, Params, Progress, PyTree, Rollout
from jaxrl.errors import LossError
from jaxrl.learners.microbatches import Gradients

if TYPE_CHECKING:
    from jaxrl.config.settings.training import Training

S = TypeVar("S")
B = TypeVar("B")
B_contra = TypeVar("B_contra", contravariant=True)

NUM_NONFINITE_UPDATES = "num_nonfinite_updates"

MAX_RAVELED = 2**14
"""Maximum number of parameters that are one vector to their optimizer.

A vector takes a few operations instead of a few for each tensor, but parameters are copied into it
and out of it, which costs more with networks of two layers of 128 units.
Measured: docs/performance.md.
"""


class LearnerState(Protocol):
    """Common part of all learners' states: parameters with their optimizer, and hyperparameters."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def sgd(self) -> "SgdState": ...
    @property
    def hparams(self) -> HParams: ...


class Learner(Protocol[S, B_contra]):
    """Interface of an algorithm: a frozen dataclass whose methods are pure.

    `S` is its state (a `LearnerState`), `B` a minibatch: for algorithms with replay a `Transition`.
    `settings` is the training group of its config, and `axis_name` the mesh axis over which
    gradients and moments are reduced, or None.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def settings(self) -> Any: ...
    @property
    def axis_name(self) -> str | None: ...

    def init(self, key: Key) -> S:
        """Create the initial state. Consumes the key."""
        ...

    def update(self, state: S, batch: B_contra, progress: Progress, key: Key) -> tuple[S, Metrics]:
        """Take one gradient step on one minibatch, `[N, ...]`, target networks included.

        With replay, the metrics have a `td_error` `[N]`. The key is the same on every device, and the
        draws of a row must not depend on the number of devices
        (`learners.multi_optimizer.draw_normal_rows`).
        """
        ...


@runtime_checkable
class OnPolicyLearner(Learner[S, B], Protocol[S, B]):
    """Interface of an algorithm that trains on whole train batches instead of replayed rows."""

    def prepare(self, state: S, rollout: Rollout, progress: Progress) -> tuple[B, Metrics]:
        """Compute targets of a whole train batch, and their statistics.

        The batch is `[T, B, ...]` like the rollout.
        """
        ...

    def finish(self, state: S, metrics: Metrics, progress: Progress) -> S:
        """Update what changes once per train batch, such as an adaptive KL weight.

        `metrics` are means over the last epoch's updates, NaN if all of them were skipped.
        """
        ...


@pytree
class SgdState:
    """Parameters and their optimizer state."""

    params: Params
    opt_state: PyTree


_NUMBERS = (jax.Array, np.ndarray, np.generic, int, float)


def validate_loss(loss_name: str, output: object) -> tuple[Float[Array, ""], Metrics]:
    """Validate the output of a loss: a scalar and a dictionary of numbers.

    Args:
        loss_name: Name of the loss, for the message.
        output: Traced output of the loss.

    Raises:
        LossError: If the output has any other form.
    """
    if not isinstance(output, tuple):
        raise LossError(f"{loss_name} must return (loss, metrics), got a {type(output).__name__}.")
    pair = cast(tuple[Any, ...], output)
    if len(pair) != 2:
        raise LossError(f"{loss_name} must return (loss, metrics), got a tuple of {len(pair)}.")
    loss, metrics = pair
    if not isinstance(loss, jax.Array):
        raise LossError(
            f"{loss_name} must return a loss that is computed from the parameters, got {loss!r}."
        )
    if loss.shape != () or not jnp.issubdtype(loss.dtype, jnp.floating):
        raise LossError(
            f"{loss_name} returned a loss that is {loss.dtype} of shape {loss.shape}; it must be one "
            "floating number, such as jnp.mean(batch.weight * x)."
        )
    if not isinstance(metrics, dict):
        raise LossError(
            f"{loss_name} must return its metrics as a dictionary, got a {type(metrics).__name__}."
        )
    by_name = cast(dict[Any, Any], metrics)
    for name, value in by_name.items():
        if not isinstance(name, str) or not isinstance(value, _NUMBERS):
            raise LossError(
                f"{loss_name} must return its metrics as numbers by name, got {name!r}: {value!r}."
            )
    return loss, {name: jnp.asarray(value) for name, value in by_name.items()}


def check_scalar_metrics(owner: str, metrics: Mapping[str, Any]) -> None:
    """Raise if a metric is not a scalar.

    Args:
        owner: Owner of the metrics, for the message.
        metrics: Traced metrics by name.

    Raises:
        LossError: If a metric has axes; the message names it.
    """
    for name, value in metrics.items():
        if jnp.shape(value) != ():
            raise LossError(
                f"{owner}'s metric {name!r} has shape {jnp.shape(value)}; a metric is one number, "
                "such as the mean."
            )


def sgd_step(
    loss_fn: Callable[[Params], tuple[Float[Array, ""], Metrics]],
    tx: optax.GradientTransformation,
    state: SgdState,
    axis_name: str | None = None,
    log_gradients: bool = False,
) -> tuple[SgdState, Metrics]:
    """Take one step of `tx` down the gradient of the mean loss over all shards.

    A non-finite loss or gradient (after the reduction, so that all devices agree) leaves
    parameters and optimizer unchanged. The metric `num_nonfinite_updates` is then 1, and the
    others, which may be NaN, are excluded from the means.

    Args:
        loss_fn: Function from parameters to the mean loss of this device's rows, and metrics.
        tx: Optimizer, built from the hyperparameters' current values.
        state: Parameters and optimizer state.
        axis_name: Mesh axis to average gradients over; None on one device.
        log_gradients: Whether to report the L2 norm of every gradient tensor as `grad_norm/<path>`.
    """
    found = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return apply_gradients(found, tx, state, axis_name, log_gradients)


def apply_gradients(
    gradients: Gradients,
    tx: optax.GradientTransformation,
    state: SgdState,
    axis_name: str | None = None,
    log_gradients: bool = False,
) -> tuple[SgdState, Metrics]:
    """Apply gradients that are already computed; otherwise as `sgd_step`.

    Args:
        gradients: Loss, metrics and gradients of this device's rows.
        tx: Optimizer, built from the hyperparameters' current values.
        state: Parameters and optimizer state.
        axis_name: Mesh axis to average gradients over; None on one device.
        log_gradients: Whether to report the L2 norm of every gradient tensor as `grad_norm/<path>`.
    """
    (loss, metrics), grads = gradients
    grads, loss, grad_norm = _reduce_gradients(grads, loss, axis_name)
    if log_gradients:
        metrics = {**metrics, **compute_gradient_norms(grads)}
    is_finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    return select(is_finite, SgdState(params=params, opt_state=opt_state), state), {
        **jax.lax.stop_gradient(metrics),
        "total_loss": loss,
        "grad_norm": grad_norm,
        NUM_NONFINITE_UPDATES: 1.0 - is_finite.astype(jnp.float32),
    }


def _reduce_gradients(
    grads: Params, loss: Float[Array, ""], axis_name: str | None
) -> tuple[Params, Float[Array, ""], Float[Array, ""]]:
    """Average gradients and loss over all shards, and compute the gradients' L2 norm.

    One collective of one vector takes less than one for each tensor, with networks of every measured
    size: docs/performance.md.
    """
    if axis_name is not None:
        flat, unravel = ravel_pytree((grads, loss))
        grads, loss = unravel(jax.lax.pmean(flat, axis_name))
    if not _is_raveled(grads):
        return grads, loss, optax.tree.norm(grads)
    flat, unravel = ravel_pytree(grads)
    return unravel(flat), loss, jnp.sqrt(jnp.sum(jnp.square(flat)))


def compute_gradient_norms(grads: PyTree) -> Metrics:
    """Compute the L2 norm of every tensor, as `grad_norm/<path>`."""
    return {
        f"grad_norm/{jax.tree_util.keystr(path, simple=True, separator='.')}": optax.tree.norm(leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(grads)[0]
    }


def select(condition: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    """Select `new` where the scalar condition holds, else `old`, leaf by leaf."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), new, old)


def clip_gradients(
    by: str, limit: Float[Array, ""] | None, *, is_stacked: bool = False
) -> optax.GradientTransformation:
    """Build RLlib's gradient clipping of the given kind.

    Args:
        by: Kind of clipping: "value" clamps each entry to `[-limit, limit]`; "norm" scales each
            tensor to an L2 norm of at most `limit`; "global_norm" scales all tensors by their
            common L2 norm.
        limit: Bound, or None for no clipping.
        is_stacked: Whether the first axes of all tensors are those of several networks, each of
            which is clipped by itself.
    """
    if limit is None:
        return optax.identity()
    clip = _CLIPPING[by](limit)
    if not is_stacked:
        return clip
    return optax.stateless(
        lambda updates, _: jax.vmap(lambda own: clip.update(own, ())[0])(updates)
    )


def _clip_by_tensor_norm(limit: float | Array) -> optax.GradientTransformation:
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


Optimizers = optax.GradientTransformation | Mapping[str, optax.GradientTransformation]
"""One optimizer for all parameters, or several by label."""
OptimizerSetting = str | Mapping[str, Any] | Callable[..., optax.GradientTransformation]


def build_optimizer(
    settings: "Training", values: Mapping[str, Float[Array, ""]], *, is_stacked: bool = False
) -> optax.GradientTransformation:
    """Build the optimizer of a training group (`Training`), gradient clipping included.

    If every step is elementwise, it works on one vector of all parameters, if they are few
    (`MAX_RAVELED`).

    Args:
        settings: Training settings.
        values: Current hyperparameters by name.
        is_stacked: Whether gradients are clipped by network, see `clip_gradients`.
    """
    clip = clip_gradients(settings.grad_clip_by, values.get("grad_clip"), is_stacked=is_stacked)
    optimizer = make_base_optimizer(settings.optimizer, values["lr"])
    if not _is_elementwise(settings.optimizer):
        return optax.chain(clip, _apply_to_each(optimizer) if is_stacked else optimizer)
    if settings.grad_clip_by == "norm" or is_stacked:
        return optax.chain(clip, _ravel(optimizer))
    return _ravel(optax.chain(clip, optimizer))


def _apply_to_each(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return an optimizer of stacked networks that treats each of them by itself."""
    return optax.GradientTransformation(jax.vmap(optimizer.init), jax.vmap(optimizer.update))


def _is_raveled(tree: PyTree) -> bool:
    return sum(leaf.size for leaf in jax.tree.leaves(tree)) <= MAX_RAVELED


def _ravel(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return an optimizer of one vector of all parameters, if they are few."""
    raveled = optax.flatten(optimizer)

    def choose(tree: PyTree) -> optax.GradientTransformation:
        return raveled if _is_raveled(tree) else optimizer

    def update(updates: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
        return choose(updates).update(updates, state, params)

    return optax.GradientTransformation(lambda params: choose(params).init(params), update)


ELEMENTWISE_OPTIMIZERS = frozenset(
    ("adam", "adamw", "sgd", "rmsprop", "lion", "radam", "nadam", "adabelief")
)
"""Optimizers that treat every entry independently."""


def _is_elementwise(setting: OptimizerSetting) -> bool:
    if callable(setting):
        return False
    if isinstance(setting, str):
        return setting in ELEMENTWISE_OPTIMIZERS
    return setting["name"] in ELEMENTWISE_OPTIMIZERS and "mask" not in setting


CONTRIBUTED_OPTIMIZERS = frozenset(("muon",))
"""Optimizers of `optax.contrib`."""


def get_optimizer(name: str) -> Callable[..., optax.GradientTransformation]:
    """Return the function of the learning rate that optax has under a name."""
    return vars(optax.contrib if name in CONTRIBUTED_OPTIMIZERS else optax)[name]


def make_base_optimizer(
    setting: OptimizerSetting, lr: float | Float[Array, ""]
) -> optax.GradientTransformation:
    """Build the optimizer named by a setting, at a traced learning rate.

    Args:
        setting: Name in optax, `{"name": ..., **keyword arguments}`, or a function of the learning
            rate.
        lr: Current learning rate.
    """
    if callable(setting):
        return setting(lr)
    kwargs = {"name": setting} if isinstance(setting, str) else dict(setting)
    return get_optimizer(kwargs.pop("name"))(lr, **kwargs)
