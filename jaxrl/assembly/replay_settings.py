"""The replay buffer of a config."""

import dataclasses
from typing import TYPE_CHECKING

import jax

from jaxrl.assembly.sequence_settings import max_seq_len
from jaxrl.buffers.replay import Prioritization, Replay
from jaxrl.buffers.sequence import AnyReplay, SequenceReplay
from jaxrl.config.batch_plan.divisors import divisors
from jaxrl.config.batch_plan.replay import ReplayPlan
from jaxrl.config.settings.replay import HOST, PRIORITIZED, buffer_settings, n_step_range
from jaxrl.errors import ConfigError
from jaxrl.ops.schedules import Schedule
from jaxrl.training.rollout import Acting

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


def replay_of(
    config: "AlgorithmConfig", plan: ReplayPlan, acting: Acting, *, in_graph: bool
) -> AnyReplay:
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
    module = acting.module
    length = max_seq_len(module) if module.is_stateful else 1
    _check_sequences(config, plan, length if module.is_stateful else None)
    replay = Replay(
        length=plan.buffer_length,
        num_envs=plan.num_envs,
        num_shards=plan.num_shards,
        batch_size=plan.train_batch_size // length,
        num_updates=plan.num_minibatches,
        n_step=n_step_range(training.n_step),
        learning_starts=training.num_steps_sampled_before_learning_starts,
        prioritization=prioritization,
        may_skip=not in_graph,
        in_host_memory=settings.storage == HOST,
    )
    if not module.is_stateful:
        return replay
    return SequenceReplay(
        replay=dataclasses.replace(replay, prioritization=None),
        prioritization=prioritization,
        sequence_length=length,
        burn_in=training.burn_in_len,
        period=1 if prioritization is None else _period(plan.buffer_length, length),
    )


def _period(rows: int, length: int) -> int:
    """Half of a sequence, as sequences of R2D2 lie (Kapturowski et al. 2019), or what divides."""
    return max(n for n in divisors(rows) if n <= max(1, length // 2))


def _check_sequences(config: "AlgorithmConfig", plan: ReplayPlan, length: int | None) -> None:
    training = config.training_settings
    if length is None:
        if training.burn_in_len or training.zero_init_states:
            name = "burn_in_len" if training.burn_in_len else "zero_init_states"
            raise ConfigError(
                f"{name}={config[name]} has no effect on a module without memory; set use_lstm or "
                "use_attention in model_config, or leave it out."
            )
        return
    unit = length * plan.num_shards
    if plan.train_batch_size % unit:
        raise ConfigError(
            f"train_batch_size={plan.train_batch_size} must be whole sequences of max_seq_len="
            f"{length} rows for each of num_shards={plan.num_shards}; set it to "
            f"{max(1, round(plan.train_batch_size / unit)) * unit}."
        )
    rows = training.burn_in_len + 2 * length
    if rows > plan.buffer_length:
        raise ConfigError(
            f"burn_in_len={training.burn_in_len} + max_seq_len={length} needs room for at least "
            f"{rows} rows of each environment, and the buffer holds {plan.buffer_length}; set "
            f"replay_buffer_config['capacity'] to at least {rows * plan.num_envs}."
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
