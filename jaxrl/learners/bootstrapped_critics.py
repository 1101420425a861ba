"""The step of critics whose targets are values of critics, shared by stochastic and deterministic policies.

What varies are values: whether a target network gives the targets or the same pass through the critics
(CrossQ), which of the critics do (REDQ), and whether they have one value or a distribution of the return
(C51). How the action after a row is chosen, and what the targets add, is the learner's.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrl.core.types import Key, Metrics, Params, PyTree, Transition
from jaxrl.learners.learner import NUM_NONFINITE_UPDATES, SgdState
from jaxrl.learners.multi_optimizer import CRITIC, MultiOptimizerLearner, step_one
from jaxrl.modules.networks import MomentRows
from jaxrl.modules.policy_and_critics import PolicyQModule
from jaxrl.ops.losses import masked_mean
from jaxrl.ops.value_losses import categorical_mean, categorical_projection, fraction_outside

if TYPE_CHECKING:
    from jaxrl.config.settings.actor_critic import EnsembleCritics

ATOMS_CLIPPED = "atoms_clipped_fraction"
"""Metric: mean probability of the targets outside of C51's support."""
_MOMENT = "moments/"


class BootstrappedLearner(MultiOptimizerLearner, Protocol):
    """Attributes of a learner on which the step of its critics depends."""

    @property
    def module(self) -> PolicyQModule: ...


CriticLoss = Callable[
    [Params, Float[Array, "critics N *n"], Float[Array, "critics N *n"]],
    tuple[Float[Array, ""], Metrics],
]
"""Function of the critics' parameters, and of the outputs at the rows and at what follows them."""


def step_critics(
    learner: BootstrappedLearner,
    state: SgdState,
    target: Params | None,
    batch: Transition,
    next_action: PyTree,
    loss_fn: CriticLoss,
    values: Mapping[str, Float[Array, ""]],
) -> tuple[SgdState, Metrics]:
    """Take a step of the critics; what follows the rows carries no gradient.

    Without a target network, rows and what follows them are one batch of one pass, so that a
    `BatchRenorm` normalizes both by the same moments  (Bhatt et al. 2024, section 4.1). Moments are
    those of rows with a weight.

    Args:
        learner: Learner with a module and the optimizer's settings.
        state: State made by `init_parts`.
        target: Parameters of the target network's critics; None without one.
        batch: Minibatch, `[N, ...]`.
        next_action: Actions at `batch.next_obs`; None where actions are discrete.
        loss_fn: Loss of the outputs.
        values: Current hyperparameters by name.
    """
    module, is_row = learner.module, batch.weight > 0.0
    following = (batch.next_obs, next_action)
    next_out = None if target is None else module.compute_critic_outputs(target, *following)

    def loss(critic: Params) -> tuple[Float[Array, ""], Metrics]:
        obs, action, mask = batch.obs, None if module.is_discrete else batch.action, is_row
        if next_out is None:
            first, second = (obs, action, mask), (*following, mask)
            obs, action, mask = jax.tree.map(_join, first, second)
        rows = MomentRows(mask=mask, axis_name=learner.axis_name)
        out, moments = module.train_critics(critic, obs, action, rows)
        out, after = (out, next_out) if next_out is not None else jnp.split(out, 2, axis=1)
        value, metrics = loss_fn(critic, out, jax.lax.stop_gradient(after))
        return value, {**metrics, **_name_leaves(moments)}

    stepped, metrics = step_one(learner, CRITIC, loss, state, values)
    names = [name for name in metrics if name.startswith(_MOMENT)]
    # They replace what the optimizer made of them, such as by weight decay, after a finite step.
    moments = {name: metrics.pop(name) for name in names}
    if moments:
        is_finite = metrics[NUM_NONFINITE_UPDATES] == 0.0

        def choose(path: tuple[PyTree, ...], x: Array) -> Array:
            return jnp.where(is_finite, moments.get(_name(path), x), x)

        critic = jax.tree_util.tree_map_with_path(choose, stepped.params[CRITIC])
        stepped = SgdState(params={**stepped.params, CRITIC: critic}, opt_state=stepped.opt_state)
    return stepped, metrics


def _join(x: Array, y: Array) -> Array:
    return jnp.concatenate([x, y])


def _name(path: tuple[PyTree, ...]) -> str:
    return _MOMENT + jax.tree_util.keystr(path, simple=True, separator="/")


def _name_leaves(tree: Params) -> Metrics:
    """Return the leaves of a tree by names that are no metrics'."""
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


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
