"""The replay buffer of a config."""

from typing import TYPE_CHECKING

import jax

from jaxrl.buffers.replay import Prioritization, Replay
from jaxrl.config.replay_groups import HOST, PRIORITIZED, buffer_settings, n_step_range
from jaxrl.config.replay_plan import ReplayPlan
from jaxrl.errors import ConfigError
from jaxrl.ops.schedules import Schedule
from jaxrl.runners.rollout import Acting

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


def replay_of(
    config: "AlgorithmConfig", plan: ReplayPlan, acting: Acting, *, in_graph: bool
) -> Replay:
    """The buffer, as its settings say.

    Raises:
        ConfigError: A setting that does not go together with replay.
    """
    _check_connectors(acting)
    settings = buffer_settings(config)
    if settings.storage == HOST and in_graph:
        raise ConfigError(
            "replay_buffer_config['storage']='host' keeps the buffer where the compiled program "
            "cannot reach it: set placement='host' to step the environment from Python, or "
            "'storage' to 'device'."
        )
    prioritization = None
    if settings.type == PRIORITIZED:
        beta = Schedule.from_setting(settings.beta, name="replay_buffer_config['beta']")
        prioritization = Prioritization(alpha=settings.alpha, beta=beta)
    training = config.training_settings
    return Replay(
        length=plan.buffer_length,
        num_envs=plan.num_envs,
        num_shards=plan.num_shards,
        batch_size=plan.train_batch_size,
        num_updates=plan.num_minibatches,
        n_step=n_step_range(training.n_step),
        learning_starts=training.num_steps_sampled_before_learning_starts,
        prioritization=prioritization,
        may_skip=not in_graph,
        in_host_memory=settings.storage == HOST,
    )


def _check_connectors(acting: Acting) -> None:
    """Connectors that remember are kept as seen, and statistics must not change under them."""
    pipeline = acting.obs_pipeline
    if pipeline.temporal and jax.tree.leaves(jax.eval_shape(pipeline.init)):
        names = " and ".join(connector.name for connector in pipeline.temporal)
        raise ConfigError(
            f"Replay keeps observations as {names} made them, with the statistics of then, which a "
            "running filter would change later: use observation_filter='NoFilter' beside it, or "
            "stack frames in the environment."
        )
