"""Connectors that see all rows of a dataset at once: those of rewards, and those that look back."""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.buffers.dataset import Dataset
from jaxrl.connectors.base import Before
from jaxrl.connectors.pipelines import LearnerPipeline
from jaxrl.connectors.temporal import PrevActionsPrevRewards
from jaxrl.core.hparams import build_hparams, current_values
from jaxrl.core.struct import replace
from jaxrl.core.types import Progress, PyTree, Rollout
from jaxrl.errors import ConfigError
from jaxrl.modules.decision_transformer import DecisionTransformerModule
from jaxrl.training.rollout import PolicyStep

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


def apply_connectors(
    config: "AlgorithmConfig",
    dataset: Dataset,
    policy_step: PolicyStep,
    learner_pipeline: LearnerPipeline,
    statistics: PyTree | None = None,
) -> Dataset:
    """Return the dataset with rewards and observations as they are learned from.

    Args:
        config: Config of the run.
        dataset: Dataset with the environment's own observations.
        policy_step: Policy with its connectors.
        learner_pipeline: Connectors of rewards.
        statistics: Statistics of the observation connectors, if some of them look back; None for
            those of the dataset.
    """
    temporal = policy_step.obs_pipeline.temporal
    if not temporal and not len(learner_pipeline):
        return dataset
    values = current_values(build_hparams(config.training_settings), Progress.zeros())
    learner_pipeline = learner_pipeline.at(values)

    def convert(dataset: Dataset) -> Dataset:
        raw = _as_rollout(dataset)
        seen, used = raw, ()
        if temporal:
            seen, used = _look_back(raw, policy_step, statistics)
        learned = seen
        if len(learner_pipeline):
            states, per_env = learner_pipeline.init(), learner_pipeline.init_per_env(1)
            learned = learner_pipeline(states, per_env, seen, None)[2]
        dataset = replace(dataset, reward=learned.reward[:, 0], statistics=used)
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


def _look_back(
    rollout: Rollout, policy_step: PolicyStep, statistics: PyTree | None
) -> tuple[Rollout, PyTree]:
    """Return the rollout with the observations of all connectors, and the statistics of these.

    What connectors that look back see of rewards is the environment's, as in
    `RolloutWorker.preprocess_rollout`.

    Args:
        rollout: Rollout `[N, 1]` with the environment's own observations.
        policy_step: Policy with its connectors.
        statistics: Statistics to use; None for those of the rollout.
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
    states = tuple(pipeline.init() if statistics is None else statistics)
    for i, connector in enumerate(pipeline.connectors):
        if statistics is None and jax.tree.leaves(states[i]):
            seen = pipeline.preprocess_rollout(states, pipeline.init_carry(1), rollout, before)
            own = connector.update(states[i], seen.received[i], rollout.mask, None)
            states = (*states[:i], own, *states[i + 1 :])
    seen = pipeline.preprocess_rollout(states, pipeline.init_carry(1), rollout, before)
    return replace(rollout, obs=seen.obs, final_obs=seen.final_obs), states


def check_rewards_unfiltered(policy_step: PolicyStep) -> None:
    """Check that a decision transformer sees the environment's rewards, which it subtracts.

    Raises:
        ConfigError: If a filter comes after the connector of previous rewards.
    """
    pipeline = policy_step.obs_pipeline
    if not isinstance(policy_step.module, DecisionTransformerModule):
        return
    has_rewards = False
    for connector, state in zip(pipeline.connectors, jax.eval_shape(pipeline.init), strict=True):
        if has_rewards and jax.tree.leaves(state):
            raise ConfigError(
                f"{connector.unwrapped.name} would change the previous rewards, by which returns-to-go "
                "become lower: put it before PrevActionsPrevRewards, as "
                "observation_filter='MeanStdFilter' is."
            )
        has_rewards = has_rewards or isinstance(connector.unwrapped, PrevActionsPrevRewards)


def check_statistics_may_change(policy_step: PolicyStep) -> None:
    """Raise if recorded rows have passed connectors whose statistics are to be replaced.

    Raises:
        ConfigError: If they have.
    """
    pipeline = policy_step.obs_pipeline
    if pipeline.temporal and pipeline.has_statistics:
        names = " and ".join(connector.name for connector in pipeline.temporal)
        raise ConfigError(
            f"The statistics of the observation filter cannot be replaced in a run from recorded data "
            f"with {names}, which see all rows once, through the statistics of these: replace the "
            "weights alone."
        )


def _lay_observations(dataset: Dataset, seen: Rollout) -> Dataset:
    """Return the dataset with the observations of a rollout of all its rows."""

    def lay(obs: PyTree, final_obs: PyTree) -> PyTree:
        total = jax.tree.leaves(dataset.obs)[0].shape[0]
        out = jnp.zeros((total, *obs.shape[2:]), obs.dtype)
        out = out.at[dataset.obs_index + 1].set(final_obs[:, 0])
        return out.at[dataset.obs_index].set(obs[:, 0])

    return replace(dataset, obs=jax.tree.map(lay, seen.obs, seen.final_obs))
