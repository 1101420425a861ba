"""Learning of a policy and critics: parts with their own loss, learning rate and optimizer state.

What varies among critics that are bootstrapped from critics are values: whether a target network gives
the targets or the same pass through the critics (CrossQ), which of the critics do (REDQ), and whether they
have one value or a distribution of the return (C51). How the action after a row is chosen, and what the
targets add, is the algorithm's.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrl.core.types import Columns, Key, Metrics, Params, PyTree, Transition
from jaxrl.learners.gradients import NUM_NONFINITE_UPDATES, SgdState, sgd_step, validate_loss
from jaxrl.learners.learner import BaseLearner
from jaxrl.modules.networks import MomentRows
from jaxrl.modules.policy_and_critics import CRITIC, POLICY, PolicyQModule
from jaxrl.ops.losses import huber_loss, masked_mean
from jaxrl.ops.value_losses import (
    categorical_mean,
    categorical_projection,
    cross_entropy,
    fraction_outside,
)

if TYPE_CHECKING:
    from jaxrl.config.settings.actor_critic import ActorCriticTraining, EnsembleCritics

S = TypeVar("S")

LOG_ALPHA = "log_alpha"
LR_NAMES = {POLICY: "actor_lr", CRITIC: "critic_lr", LOG_ALPHA: "alpha_lr"}
"""Setting that is the learning rate of each part."""
COMBINED_METRICS = ("total_loss", "grad_norm", NUM_NONFINITE_UPDATES)
ATOMS_CLIPPED = "atoms_clipped_fraction"
"""Metric: mean probability of the targets outside of C51's support."""
_MOMENT = "moments/"

CriticLoss = Callable[
    [Params, Float[Array, "critics N *n"], Float[Array, "critics N *n"]],
    tuple[Float[Array, ""], Metrics],
]
"""Function of the critics' parameters, and of the outputs at the rows and at what follows them."""


@dataclasses.dataclass(frozen=True, eq=False)
class ActorCriticLearner(BaseLearner[S]):
    """Base of learners with a policy and critics, whose parts have a loss and an optimizer each."""

    module: PolicyQModule
    settings: "ActorCriticTraining"

    def init_parts(self, params: Mapping[str, Params], values: "ActorCriticTraining") -> SgdState:
        """Initialize one optimizer per part; `opt_state` is `{part: optimizer state}`.

        Args:
            params: Parameters by part.
            values: Settings with the values of the moment.
        """
        states = {
            part: self.configure_part_optimizer(part, values).init({part: own})
            for part, own in params.items()
        }
        return SgdState(params=dict(params), opt_state=states)

    def step_part(
        self,
        part: str,
        loss_fn: Callable[[Params], tuple[Float[Array, ""], Metrics]],
        state: SgdState,
        values: "ActorCriticTraining",
    ) -> tuple[SgdState, Metrics]:
        """Take an `sgd_step` of one part; the others are unchanged.

        Args:
            part: Name of the part.
            loss_fn: Function from that part's parameters to the loss and metrics.
            state: State made by `init_parts`.
            values: Settings with the values of the moment.
        """
        loss_name = f"{type(self).__name__}'s loss of the {part}"
        new_part, metrics = sgd_step(
            lambda params: validate_loss(loss_name, loss_fn(params[part])),
            self.configure_part_optimizer(part, values),
            get_part(state, part),
            self.axis_name,
            self.log_gradients,
        )
        return replace_part(state, part, new_part), metrics

    def step_bootstrapped_critics(
        self,
        state: SgdState,
        target: Params | None,
        batch: Transition,
        next_action: PyTree,
        loss_fn: CriticLoss,
        values: "ActorCriticTraining",
    ) -> tuple[SgdState, Metrics]:
        """Take a step of the critics; what follows the rows carries no gradient.

        Without a target network, rows and what follows them are one batch of one pass, so that a
        `BatchRenorm` normalizes both by the same moments  (Bhatt et al. 2024, section 4.1). Moments are
        those of rows with a weight.

        Args:
            state: State made by `init_parts`.
            target: Parameters of the target network's critics; None without one.
            batch: Minibatch, `[N, ...]`.
            next_action: Actions at `batch.next_obs`; None where actions are discrete.
            loss_fn: Loss of the outputs.
            values: Settings with the values of the moment.
        """
        module, is_row = self.module, batch.weight > 0.0
        following = (batch.next_obs, next_action)
        next_out = None if target is None else module.compute_critic_outputs(target, *following)

        def loss(critic: Params) -> tuple[Float[Array, ""], Metrics]:
            obs, action, mask = batch.obs, None if module.is_discrete else batch.action, is_row
            if next_out is None:
                first, second = (obs, action, mask), (*following, mask)
                obs, action, mask = jax.tree.map(_join, first, second)
            rows = MomentRows(mask=mask, axis_name=self.axis_name)
            out, moments = module.train_critics(critic, obs, action, rows)
            out, after = (out, next_out) if next_out is not None else jnp.split(out, 2, axis=1)
            value, metrics = loss_fn(critic, out, jax.lax.stop_gradient(after))
            return value, {**metrics, **_name_leaves(moments)}

        stepped, metrics = self.step_part(CRITIC, loss, state, values)
        names = [name for name in metrics if name.startswith(_MOMENT)]
        # They replace what the optimizer made of them, such as by weight decay, after a finite step.
        moments = {name: metrics.pop(name) for name in names}
        if moments:
            is_finite = metrics[NUM_NONFINITE_UPDATES] == 0.0

            def choose(path: tuple[PyTree, ...], x: Array) -> Array:
                return jnp.where(is_finite, moments.get(_name(path), x), x)

            critic = jax.tree_util.tree_map_with_path(choose, stepped.params[CRITIC])
            stepped = SgdState(
                params={**stepped.params, CRITIC: critic}, opt_state=stepped.opt_state
            )
        return stepped, metrics


def _join(x: Array, y: Array) -> Array:
    return jnp.concatenate([x, y])


def _name(path: tuple[PyTree, ...]) -> str:
    return _MOMENT + jax.tree_util.keystr(path, simple=True, separator="/")


def _name_leaves(tree: Params) -> Metrics:
    """Return the leaves of a tree by names that are no metrics'."""
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


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


def choose_critics(
    settings: "EnsembleCritics", key: Key
) -> tuple[Int[Array, " chosen"] | None, Key]:
    """Draw the critics of the targets without replacement, the same on all devices. Consumes the key.

    Args:
        settings: Numbers of critics.
        key: Key, the same on all devices.

    Returns:
        The critics, None for all; and a key for further draws, which is the same one if all are used.
    """
    number, num_chosen = settings.resolve_num_critics(), settings.num_target_critics
    if num_chosen is None or not settings.draws_critics:
        return None, key
    choice_key, key = jax.random.split(key)
    return jax.random.choice(choice_key, number, (num_chosen,), replace=False), key


def compute_smallest_targets(
    out: Float[Array, "critics N *n"],
    batch: Transition,
    support: Float[Array, " atoms"] | None,
    cost: Float[Array, " N"] | None = None,
    probs: Float[Array, "N actions"] | None = None,
    axis_name: str | None = None,
) -> tuple[Float[Array, " N *atoms"], Metrics]:
    """Compute y = r + γ (minₖ Q'ₖ(s', a') − c), or Φ(r − γ c + γ Z') of the smallest critic's return Z'.

    γ stands for `batch.discount`, which is 0 after a termination. The distribution is that of the
    critic with the smallest mean, row by row, projected onto the support (Bellemare et al. 2017,
    eq. 7).

    Args:
        out: Outputs of the critics at what follows the rows.
        batch: Minibatch, `[N, ...]`.
        support: Atoms of the outputs; None for values.
        cost: What is subtracted from the values, such as α log π(a'|s'); None for nothing.
        probs: Probabilities of discrete actions, over which values are averaged; None for one action.
        axis_name: Mesh axis that the rows are divided over, or None.

    Returns:
        The targets, and metrics.
    """
    reward, discount = batch.reward, batch.discount
    if support is None:
        value = jnp.min(out, axis=0)
        value = value if probs is None else jnp.sum(probs * value, axis=-1)
        value = value if cost is None else value - cost
        return reward + discount * value, {}
    reward = reward if cost is None else reward - discount * cost
    smallest = jnp.argmin(categorical_mean(out, support), axis=0)
    logits = jnp.take_along_axis(out, smallest[None, ..., None], axis=0)[0]
    distribution = jax.nn.softmax(logits)
    outside = fraction_outside(reward, discount, distribution, support)
    clipped = masked_mean(outside, batch.weight > 0.0, axis_name)
    targets = categorical_projection(reward, discount, distribution, support)
    return targets, {ATOMS_CLIPPED: clipped}


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
