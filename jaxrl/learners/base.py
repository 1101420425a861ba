"""Base of the algorithms' learners: the methods that a subclass may override besides its loss."""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrl.core.types import Metrics, Params, Progress, PyTree, strip_weak_types
from jaxrl.errors import LossError
from jaxrl.learners.learner import Optimizers, make_base_optimizer
from jaxrl.modules.rl_module import RLModule

if TYPE_CHECKING:
    import optax

    from jaxrl.config.settings.training import Training

S = TypeVar("S")

BEFORE_UPDATE, AFTER_UPDATE = "before_gradient_based_update", "after_gradient_based_update"


@dataclasses.dataclass(frozen=True, eq=False)
class BaseLearner(Generic[S]):
    """Fields and overridable methods of all learners; `S` is the learner's state."""

    module: RLModule
    settings: "Training"
    axis_name: str | None = None
    log_gradients: bool = False

    lr_names: ClassVar[Mapping[str, str]] = {}
    """Setting that is the learning rate of each part, for learners with one loss per part."""
    has_stacked_params: ClassVar[bool] = False
    """True if parameters of several networks are stacked, `[m, ...]`; each is clipped by itself."""
    needs_returns: ClassVar[bool] = False
    """True if rows of recorded data need the extras of `ReturnColumns`."""

    def without_delays(self, state: S) -> S:
        """Return the state whose next update has the loss of every part, none of which is delayed."""
        return state

    def configure_optimizers_for_module(
        self, module_id: str, values: Mapping[str, Float[Array, ""]]
    ) -> Optimizers:
        """Return the optimizer of the parameters, or several by label.

        Override this method to optimize parts of the parameters differently. Each optimizer
        receives the gradients of its own parameters, clipped by `grad_clip`.

        Args:
            module_id: Id of the module, "default_policy".
            values: Current hyperparameters by name, as traced numbers: `values["lr"]` is the
                learning rate, also of a schedule or of a sweep.

        Returns:
            One optax transformation for all parameters, or a dictionary of them by the labels that
            `label_params` returns; for SAC, TQC and TD3, by part: "policy", "critic" and, except
            for TD3, "log_alpha".
        """
        del module_id
        if not self.lr_names:
            return self.make_optimizer(values["lr"])
        return {part: self.make_optimizer(values[name]) for part, name in self.lr_names.items()}

    def label_params(self, params: Params) -> PyTree:
        """Return the label of each parameter, by default the first name of its path.

        Args:
            params: Parameters of the module.

        Returns:
            A tree of strings with the structure of the parameters, or of its upper levels: a label
            in place of a subtree is that of all its parameters.
        """
        if not isinstance(params, Mapping):
            raise LossError(
                f"{type(self).__name__} has parameters in a {type(params).__name__}, whose parts "
                "have no names: override label_params(params) to return a tree of labels."
            )
        return {name: name for name in params}

    def make_optimizer(self, lr: "float | Float[Array, '']") -> "optax.GradientTransformation":
        """Build the optimizer of the setting `optimizer`, without clipping, at a learning rate."""
        return make_base_optimizer(self.settings.optimizer, lr)

    def before_gradient_based_update(self, state: S, progress: Progress) -> S:
        """Update the state before each train batch that is learned from, targets included.

        With replay, that is before each batch drawn from the buffer.

        Args:
            state: State of the learner.
            progress: Progress of the run; `progress.env_steps` are the timesteps.
        """
        del progress
        return state

    def after_gradient_based_update(self, state: S, metrics: Metrics, progress: Progress) -> S:
        """Update the state after each train batch that was learned from, and after `finish`.

        With replay, that is after each batch drawn from the buffer.

        Args:
            state: State of the learner.
            metrics: Metrics of the update, means over the last epoch if it has several minibatches.
            progress: Progress of the run; `progress.env_steps` are the timesteps.
        """
        del metrics, progress
        return state


def overrides(learner: object, name: str) -> bool:
    """Return whether a learner has its own version of a method of `BaseLearner`."""
    method = getattr(type(learner), name, None)
    return method is not None and method is not getattr(BaseLearner, name)


def update_before(learner: object, state: S, progress: Progress) -> S:
    """Return the state after `before_gradient_based_update`."""
    return _update_state(learner, BEFORE_UPDATE, state, progress=progress)


def update_after(
    learner: object, state: S, metrics: Metrics, progress: Progress, axis_name: str | None = None
) -> S:
    """Return the state after `after_gradient_based_update`.

    Args:
        learner: Learner, with a hook of its own or without.
        state: State of the learner.
        metrics: Metrics of the update.
        progress: Progress of the run.
        axis_name: Mesh axis to average the metrics over; None if they are those of all devices.
    """
    if axis_name is not None and overrides(learner, AFTER_UPDATE):
        metrics = jax.lax.pmean(metrics, axis_name)
    return _update_state(learner, AFTER_UPDATE, state, metrics=metrics, progress=progress)


def _update_state(learner: object, name: str, state: S, **arguments: PyTree) -> S:
    """Return the state that a hook returns, of the same structure and types.

    Raises:
        LossError: If the hook takes other arguments, or does not return such a state.
    """
    if not overrides(learner, name):
        return state
    usage = (
        f"must take (state, {', '.join(arguments)}) and return the new state; "
        "progress.env_steps are the timesteps"
    )
    check_arguments(learner, name, usage, state, *arguments.values())
    updated: S = getattr(learner, name)(state, *arguments.values())
    title = f"{type(learner).__name__}.{name}"
    if jax.tree.structure(updated) != jax.tree.structure(state):
        raise LossError(f"{title} {usage}, got {_describe(updated, state)}.")
    updated = strip_weak_types(jax.tree.map(_as_array, updated, state))
    before, _ = jax.tree_util.tree_flatten_with_path(state)
    for (path, old), new in zip(before, jax.tree.leaves(updated), strict=True):
        if (new.shape, new.dtype) != (old.shape, old.dtype):
            leaf = jax.tree_util.keystr(path, simple=True, separator=".")
            raise LossError(
                f"{title} must keep the state's types: {leaf} was {old.dtype}{list(old.shape)} "
                f"and became {new.dtype}{list(new.shape)}."
            )
    return updated


def _as_array(leaf: PyTree, old: Array) -> Array:
    """Return a leaf as an array; a Python number takes the old one's type, as in arithmetic."""
    if isinstance(leaf, jax.Array):
        return leaf
    return jnp.asarray(leaf, jnp.result_type(old, leaf) if np.ndim(leaf) == 0 else None)


def _describe(updated: object, state: object) -> str:
    if type(updated) is type(state):
        return "one with another structure"
    return "None" if updated is None else f"a {type(updated).__name__}"


def check_arguments(
    learner: object, name: str, usage: str, *args: object, **kwargs: object
) -> None:
    """Raise if a method of a learner cannot be called with some arguments.

    Args:
        learner: Learner with the method.
        name: Name of the method.
        usage: Rest of the message's sentence after the method's name.
        *args: Positional arguments.
        **kwargs: Arguments by name.

    Raises:
        LossError: If it cannot.
    """
    signature = inspect.signature(getattr(learner, name))
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        raise LossError(
            f"{type(learner).__name__}.{name} {usage}, got {name}{signature}."
        ) from None
