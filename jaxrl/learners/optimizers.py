"""Optimizers by name, gradient clipping, and labels that divide parameters among optimizers."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jaxtyping import Array, Float

from jaxrl.core.types import Params, PyTree
from jaxrl.errors import LossError, did_you_mean
from jaxrl.learners.gradients import is_raveled

if TYPE_CHECKING:
    from jaxrl.config.settings.training import Training

CONFIGURE = "configure_optimizers_for_module"
Optimizers: TypeAlias = optax.GradientTransformation | Mapping[str, optax.GradientTransformation]
"""One optimizer for all parameters, or several by label."""
OptimizerSetting: TypeAlias = str | Mapping[str, Any] | Callable[..., optax.GradientTransformation]


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


def build_optimizer(
    values: "Training", lr: Float[Array, ""], *, is_stacked: bool = False
) -> optax.GradientTransformation:
    """Build the optimizer of a training group (`Training`), gradient clipping included.

    If every step is elementwise, it works on one vector of all parameters, if they are few
    (`MAX_RAVELED`).

    Args:
        values: Settings, with the values of the moment.
        lr: Learning rate.
        is_stacked: Whether gradients are clipped by network, see `clip_gradients`.
    """
    clip = clip_gradients(values.grad_clip_by, values.grad_clip, is_stacked=is_stacked)
    optimizer = make_base_optimizer(values.optimizer, lr)
    if not _is_elementwise(values.optimizer):
        return optax.chain(clip, _apply_to_each(optimizer) if is_stacked else optimizer)
    if values.grad_clip_by == "norm" or is_stacked:
        return optax.chain(clip, _ravel(optimizer))
    return _ravel(optax.chain(clip, optimizer))


def _apply_to_each(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return an optimizer of stacked networks that treats each of them by itself."""
    return optax.GradientTransformation(jax.vmap(optimizer.init), jax.vmap(optimizer.update))


def _ravel(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return an optimizer of one vector of all parameters, if they are few."""
    raveled = optax.flatten(optimizer)

    def choose(tree: PyTree) -> optax.GradientTransformation:
        return raveled if is_raveled(tree) else optimizer

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


def label_all(
    learner_name: str,
    labels: PyTree,
    configured: Mapping[str, optax.GradientTransformation],
    params: Params,
) -> PyTree:
    """Return a label for every single parameter.

    Args:
        learner_name: Name of the learner's class, for messages.
        labels: Labels that the learner gives to the parameters, or to subtrees of them.
        configured: Optimizers of the learner by label.
        params: Parameters.

    Raises:
        LossError: If labels do not fit the parameters or the optimizers.
    """
    title, configure = f"{learner_name}.label_params", f"{learner_name}.{CONFIGURE}"

    def spread(label: object, subtree: PyTree) -> PyTree:
        return jax.tree.map(lambda _: _Label(label), subtree)

    try:
        spread_labels = jax.tree.map(spread, labels, params, is_leaf=lambda x: x is None)
    except ValueError as error:
        reason = str(error).strip().splitlines()[0].rstrip(".;")
        raise LossError(
            f"{title} must return a tree of strings with the structure of params, or of its "
            f"upper levels ({reason})."
        ) from None
    found = jax.tree_util.tree_flatten_with_path(spread_labels)[0]
    for path, label in found:
        if label.value not in configured:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise LossError(
                f"{title} labels the parameter {name} {label.value!r}, for which "
                f"{configure} has no optimizer."
                f"{did_you_mean(label.value, configured)} It has {join_names(configured)}."
            )
    used = {label.value for _, label in found}
    unused = [label for label in configured if label not in used]
    if unused:
        raise LossError(
            f"{configure} has an optimizer for {join_names(unused)}, a label of no "
            f"parameter.{did_you_mean(unused[0], used)} Labels are {join_names(used)}; override "
            "label_params(params) for others."
        )
    return jax.tree.map(lambda label: label.value, spread_labels)


class _Label:
    """Leaf that holds a label, whatever its type: None is not a leaf."""

    def __init__(self, value: object) -> None:
        self.value = value


def join_names(names: Mapping[str, object] | set[object] | list[str]) -> str:
    """List names in quotation marks."""
    return ", ".join(sorted(repr(name) for name in names))
