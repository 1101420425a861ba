"""Optimizers of a learner: that of its settings, or those that a subclass configures."""

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

import jax
import optax
from jaxtyping import Array, Float

from jaxrl.core.hparams import HParamValues
from jaxrl.core.types import Params, PyTree
from jaxrl.errors import LossError, did_you_mean
from jaxrl.learners.base import BaseLearner, check_arguments, overrides
from jaxrl.learners.learner import build_optimizer, clip_gradients
from jaxrl.metrics import DEFAULT_MODULE

if TYPE_CHECKING:
    from jaxrl.config.settings.training import Training

CONFIGURE = "configure_optimizers_for_module"


class OptimizedLearner(Protocol):
    """Attributes of a learner on which its optimizer depends."""

    has_stacked_params: ClassVar[bool]

    @property
    def settings(self) -> "Training": ...


def configure_optimizer(
    learner: OptimizedLearner, values: Mapping[str, Float[Array, ""]], params: Params
) -> optax.GradientTransformation:
    """Build the optimizer of a learner with one loss, gradient clipping included.

    Args:
        learner: Learner, with its own `configure_optimizers_for_module` or without.
        values: Current hyperparameters by name.
        params: Parameters to optimize.

    Raises:
        LossError: If the learner configures anything else than optax transformations, or labels
            and parameters do not fit.
    """
    configured = _configure(learner, values)
    if configured is None:
        return build_optimizer(learner.settings, values, is_stacked=learner.has_stacked_params)
    if isinstance(configured, optax.GradientTransformation):
        return _with_clipping(configured, learner, values)
    assert isinstance(learner, BaseLearner)
    labels = _label_all(learner, configured, params)
    clipped: dict[Hashable, optax.GradientTransformation] = {
        name: _with_clipping(tx, learner, values) for name, tx in configured.items()
    }
    return optax.partition(clipped, labels)


def configure_part_optimizer(
    learner: OptimizedLearner,
    part: str,
    lr_names: Mapping[str, str],
    values: Mapping[str, Float[Array, ""]],
) -> optax.GradientTransformation:
    """Build the optimizer of one part of a learner with one loss per part.

    Args:
        learner: Learner, with its own `configure_optimizers_for_module` or without.
        part: Name of the part.
        lr_names: Setting that is the learning rate of each part.
        values: Current hyperparameters by name.

    Raises:
        LossError: If the learner configures anything else than an optax transformation per part.
    """
    configured = _configure(learner, values)
    if configured is None:
        values = {**values, "lr": values[lr_names[part]]}
        return build_optimizer(learner.settings, values, is_stacked=learner.has_stacked_params)
    if isinstance(configured, optax.GradientTransformation):
        return _with_clipping(configured, learner, values)
    if set(configured) != set(lr_names):
        raise LossError(
            f"{_get_title(learner)} must return one optimizer for each of "
            f"{_join(lr_names)}, got {_join(configured)}; super()'s are a dictionary of all."
        )
    return _with_clipping(configured[part], learner, values)


def _configure(
    learner: OptimizedLearner, values: Mapping[str, Float[Array, ""]]
) -> optax.GradientTransformation | Mapping[str, optax.GradientTransformation] | None:
    """Return what a learner configures; None for the optimizer of its settings."""
    if not overrides(learner, CONFIGURE):
        return None
    arguments = {"module_id": DEFAULT_MODULE, "values": HParamValues(values)}
    usage = (
        "must take (module_id, values) and return an optax transformation, or a dictionary of "
        "them by label; values['lr'] is the learning rate"
    )
    check_arguments(learner, CONFIGURE, usage, **arguments)
    configured: object = getattr(learner, CONFIGURE)(**arguments)
    if isinstance(configured, optax.GradientTransformation):
        return configured
    title = _get_title(learner)
    if not isinstance(configured, Mapping):
        raise LossError(
            f"{title} must return an optax transformation, such as "
            "self.make_optimizer(values['lr']), or a dictionary of them by label, got "
            f"{configured!r}."
        )
    by_label = cast(Mapping[str, object], configured)
    for label, optimizer in by_label.items():
        if not isinstance(optimizer, optax.GradientTransformation):
            raise LossError(
                f"{title} returned {optimizer!r} for {label!r}; it must be an optax "
                "transformation, such as self.make_optimizer(values['lr'])."
            )
    return cast(Mapping[str, optax.GradientTransformation], configured)


def _with_clipping(
    optimizer: optax.GradientTransformation,
    learner: OptimizedLearner,
    values: Mapping[str, Float[Array, ""]],
) -> optax.GradientTransformation:
    if "grad_clip" not in values:
        return optimizer
    by, limit = learner.settings.grad_clip_by, values["grad_clip"]
    return optax.chain(clip_gradients(by, limit, is_stacked=learner.has_stacked_params), optimizer)


def _label_all(
    learner: BaseLearner[PyTree],
    configured: Mapping[str, optax.GradientTransformation],
    params: Params,
) -> PyTree:
    """Return a label for every single parameter, and check that both sides fit."""
    title = f"{type(learner).__name__}.label_params"
    labels = learner.label_params(params)

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
                f"{_get_title(learner)} has no optimizer."
                f"{did_you_mean(label.value, configured)} It has {_join(configured)}."
            )
    used = {label.value for _, label in found}
    unused = [label for label in configured if label not in used]
    if unused:
        raise LossError(
            f"{_get_title(learner)} has an optimizer for {_join(unused)}, a label of no "
            f"parameter.{did_you_mean(unused[0], used)} Labels are {_join(used)}; override "
            "label_params(params) for others."
        )
    return jax.tree.map(lambda label: label.value, spread_labels)


class _Label:
    """Leaf that holds a label, whatever its type: None is not a leaf."""

    def __init__(self, value: object) -> None:
        self.value = value


def _get_title(learner: object) -> str:
    return f"{type(learner).__name__}.{CONFIGURE}"


def _join(names: Mapping[str, object] | set[object] | list[str]) -> str:
    return ", ".join(sorted(repr(name) for name in names))
