"""Connectors that see all rows of a dataset at once: those of rewards, and those that look back."""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.buffers.dataset import Dataset
from jaxrl.connectors.base import Before
from jaxrl.connectors.pipelines import LearnerPipeline
from jaxrl.core.hparams import build_hparams, current_values
from jaxrl.core.struct import replace
from jaxrl.core.types import Progress, PyTree, Rollout
from jaxrl.training.rollout import PolicyStep

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


def apply_connectors(
    config: "AlgorithmConfig",
    dataset: Dataset,
    policy_step: PolicyStep,
    learner_pipeline: LearnerPipeline,
) -> Dataset:
    """Return the dataset with rewards and observations as they are learned from."""
    temporal = policy_step.obs_pipeline.temporal
    if not temporal and not len(learner_pipeline):
        return dataset
    values = current_values(build_hparams(config.training_settings), Progress.zeros())
    learner_pipeline = learner_pipeline.at(values)

    def convert(dataset: Dataset) -> Dataset:
        raw = _as_rollout(dataset)
        seen = _look_back(raw, policy_step) if temporal else raw
        learned = seen
        if len(learner_pipeline):
            states, per_env = learner_pipeline.init(), learner_pipeline.init_per_env(1)
            learned = learner_pipeline(states, per_env, seen, None)[2]
        dataset = replace(dataset, reward=learned.reward[:, 0])
        return _lay_observations(dataset, seen) if temporal else dataset

    return jax.tree.map(np.asarray, jax.jit(convert)(dataset))


def _as_rollout(dataset: Dataset) -> Rollout:
    """Return all rows as a rollout `[N, 1]` of one environment."""
    rows = jnp.arange(dataset.num_rows, dtype=jnp.int32)

    def column(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda x: x[:, None], tree)

    return Rollout(
        obs=column(dataset.get_obs(rows)),
        action=column(dataset.action),
        reward=column(dataset.reward),
        terminated=column(dataset.terminated),
        truncated=column(dataset.truncated),
        final_obs=column(dataset.get_next_obs(rows)),
        is_first=column(dataset.is_first),
        mask=jnp.ones((dataset.num_rows, 1), jnp.bool_),
        extras={},
    )


def _look_back(rollout: Rollout, policy_step: PolicyStep) -> Rollout:
    """Return the rollout with the observations of the connectors that look back.

    What they see of rewards is the environment's, as in `RolloutWorker.preprocess_rollout`.
    """
    pipeline = policy_step.obs_pipeline
    shift = jax.tree.map(lambda x: jnp.roll(x, 1, axis=0), (rollout.action, rollout.reward))
    zeros = jax.tree.map(jnp.zeros_like, shift)
    action, reward = jax.tree.map(
        lambda x, zero: jnp.where(
            rollout.is_first.reshape(rollout.is_first.shape + (1,) * (x.ndim - 2)), zero, x
        ),
        shift,
        zeros,
    )
    before = Before(is_first=rollout.is_first, action=action, reward=reward)
    seen = pipeline.preprocess_rollout(pipeline.init(), pipeline.init_carry(1), rollout, before)
    return replace(rollout, obs=seen.obs, final_obs=seen.final_obs)


def _lay_observations(dataset: Dataset, seen: Rollout) -> Dataset:
    """Return the dataset with the observations of a rollout of all its rows."""

    def lay(obs: PyTree, final_obs: PyTree) -> PyTree:
        total = jax.tree.leaves(dataset.obs)[0].shape[0]
        out = jnp.zeros((total, *obs.shape[2:]), obs.dtype)
        out = out.at[dataset.obs_index + 1].set(final_obs[:, 0])
        return out.at[dataset.obs_index].set(obs[:, 0])

    return replace(dataset, obs=jax.tree.map(lay, seen.obs, seen.final_obs))
