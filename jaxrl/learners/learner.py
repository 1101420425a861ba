"""Learner interface, and the base class with the methods that a subclass may override."""

import dataclasses
import inspect
from collections.abc import Hashable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Protocol,
    TypeVar,
    cast,
    runtime_checkable,
)

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from jaxrl.core.hparams import HParams, build_hparams
from jaxrl.core.types import Key, Metrics, Params, Progress, PyTree, Rollout, strip_weak_types
from jaxrl.errors import LossError
from jaxrl.learners.gradients import SgdState
from jaxrl.learners.optimizers import (
    CONFIGURE,
    Optimizers,
    build_optimizer,
    clip_gradients,
    join_names,
    label_all,
    make_base_optimizer,
)
from jaxrl.metrics import DEFAULT_MODULE
from jaxrl.modules.rl_module import RLModule

if TYPE_CHECKING:
    from jaxrl.config.settings.training import Training

S = TypeVar("S")
B = TypeVar("B")
B_contra = TypeVar("B_contra", contravariant=True)

BEFORE_UPDATE, AFTER_UPDATE = "before_gradient_based_update", "after_gradient_based_update"


class LearnerState(Protocol):
    """Common part of all learners' states: parameters with their optimizer, and hyperparameters."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def sgd(self) -> SgdState: ...
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
        (`core.keys.draw_normal_rows`).
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

    def configure_optimizers_for_module(self, module_id: str, values: Any) -> Optimizers:
        """Return the optimizer of the parameters, or several by label.

        Override this method to optimize parts of the parameters differently. Each optimizer
        receives the gradients of its own parameters, clipped by `grad_clip`.

        Args:
            module_id: Id of the module, "default_policy".
            values: Settings with the values of the moment, traced numbers: `values.lr` is the
                learning rate, also of a schedule or of a sweep.

        Returns:
            One optax transformation for all parameters, or a dictionary of them by the labels that
            `label_params` returns; for SAC, TQC and TD3, by part: "policy", "critic" and, except
            for TD3, "log_alpha".
        """
        del module_id
        if not self.lr_names:
            return self.make_optimizer(values.lr)
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

    def make_optimizer(self, lr: float | Float[Array, ""]) -> optax.GradientTransformation:
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

    def init_sgd(self, key: Key) -> tuple[SgdState, HParams]:
        """Initialize parameters, optimizer state and hyperparameters. Consumes the key."""
        params, hparams = self.module.init(key), build_hparams(self.settings)
        values = self.settings.at(hparams, Progress.zeros())
        opt_state = self.configure_optimizer(values, params).init(params)
        return SgdState(params=params, opt_state=opt_state), hparams

    def configure_optimizer(
        self, values: "Training", params: Params
    ) -> optax.GradientTransformation:
        """Build the optimizer of a learner with one loss, gradient clipping included.

        Args:
            values: Settings with the values of the moment.
            params: Parameters to optimize.

        Raises:
            LossError: If the learner configures anything else than optax transformations, or labels
                and parameters do not fit.
        """
        configured = self._configure(values)
        if configured is None:
            return build_optimizer(values, values.lr, is_stacked=self.has_stacked_params)
        if isinstance(configured, optax.GradientTransformation):
            return self._with_clipping(configured, values)
        labels = label_all(type(self).__name__, self.label_params(params), configured, params)
        clipped: dict[Hashable, optax.GradientTransformation] = {
            name: self._with_clipping(tx, values) for name, tx in configured.items()
        }
        return optax.partition(clipped, labels)

    def configure_part_optimizer(
        self, part: str, values: "Training"
    ) -> optax.GradientTransformation:
        """Build the optimizer of one part of a learner with one loss per part.

        Args:
            part: Name of the part.
            values: Settings with the values of the moment.

        Raises:
            LossError: If the learner configures anything else than an optax transformation per part.
        """
        configured = self._configure(values)
        if configured is None:
            lr = values[self.lr_names[part]]
            return build_optimizer(values, lr, is_stacked=self.has_stacked_params)
        if isinstance(configured, optax.GradientTransformation):
            return self._with_clipping(configured, values)
        if set(configured) != set(self.lr_names):
            raise LossError(
                f"{type(self).__name__}.{CONFIGURE} must return one optimizer for each of "
                f"{join_names(self.lr_names)}, got {join_names(configured)}; super()'s are a dictionary "
                "of all."
            )
        return self._with_clipping(configured[part], values)

    def _configure(
        self, values: "Training"
    ) -> optax.GradientTransformation | Mapping[str, optax.GradientTransformation] | None:
        """Return what a subclass configures; None for the optimizer of the settings."""
        if not overrides(self, CONFIGURE):
            return None
        arguments: dict[str, Any] = {"module_id": DEFAULT_MODULE, "values": values}
        usage = (
            "must take (module_id, values) and return an optax transformation, or a dictionary of "
            "them by label; values.lr is the learning rate"
        )
        check_arguments(self, CONFIGURE, usage, **arguments)
        configured: object = self.configure_optimizers_for_module(**arguments)
        if isinstance(configured, optax.GradientTransformation):
            return configured
        title = f"{type(self).__name__}.{CONFIGURE}"
        if not isinstance(configured, Mapping):
            raise LossError(
                f"{title} must return an optax transformation, such as "
                "self.make_optimizer(values.lr), or a dictionary of them by label, got "
                f"{configured!r}."
            )
        by_label = cast(Mapping[str, object], configured)
        for label, optimizer in by_label.items():
            if not isinstance(optimizer, optax.GradientTransformation):
                raise LossError(
                    f"{title} returned {optimizer!r} for {label!r}; it must be an optax "
                    "transformation, such as self.make_optimizer(values.lr)."
                )
        return configured

    def _with_clipping(
        self, optimizer: optax.GradientTransformation, values: "Training"
    ) -> optax.GradientTransformation:
        if values.grad_clip is None:
            return optimizer
        clip = clip_gradients(
            values.grad_clip_by, values.grad_clip, is_stacked=self.has_stacked_params
        )
        return optax.chain(clip, optimizer)


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
