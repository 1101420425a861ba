"""The replay buffer of a config."""

import dataclasses
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax

from jaxrl.buffers.replay import Prioritization, Replay, ReplayState
from jaxrl.buffers.sequence import AnyReplay, SequenceReplay
from jaxrl.config.batch_plan.arithmetic import BatchPlan, divisors
from jaxrl.config.batch_plan.replay import ReplayPlan
from jaxrl.config.settings.replay import HOST, PRIORITIZED, buffer_settings, n_step_range
from jaxrl.core.struct import replace
from jaxrl.errors import ConfigError
from jaxrl.modules.encoder_module import EncoderModule
from jaxrl.modules.rl_module import RLModule
from jaxrl.ops.schedules import Schedule
from jaxrl.training.rollout import Acting
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.assembly.assemble import Assembly
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


DEFAULT_MAX_SEQ_LEN = 20


def max_seq_len(module: RLModule) -> int:
    """The setting, for modules of the library; RLlib's default for others."""
    if isinstance(module, EncoderModule):
        return module.settings.max_seq_len
    return DEFAULT_MAX_SEQ_LEN


def sequence_length(plan: BatchPlan, module: RLModule) -> int | None:
    """Rows of a sequence in the minibatches of a train batch; None where there are none.

    The largest number up to `max_seq_len` that divides the rollout, with whole sequences in every
    minibatch of each shard.

    Raises:
        ConfigError: That is less than half of what was asked for.
    """
    if isinstance(plan, ReplayPlan) or not module.is_stateful:
        return None
    if plan.sequence_length is not None:
        return plan.sequence_length
    steps, most = plan.rollout_fragment_length, max_seq_len(module)
    columns = plan.num_envs // plan.num_shards
    whole = [n for n in divisors(steps) if (steps // n * columns) % plan.num_minibatches == 0]
    length = max((n for n in whole if n <= most), default=0)
    if 2 * length < min(most, steps):
        longer = [n for n in whole if n > most]
        rows = min(most, steps) * plan.num_shards
        instead = f"max_seq_len to {longer[0]}, or " if longer else ""
        raise ConfigError(
            f"max_seq_len={most} must allow sequences that divide rollout_fragment_length={steps} "
            f"and leave each minibatch (minibatch_size={plan.minibatch_size}) whole ones of every "
            f"shard, but the longest that do have {length} rows; set {instead}"
            f"minibatch_size to a multiple of {rows}, beside a rollout_fragment_length that is one of "
            f"{min(most, steps)}."
        )
    return length


logger = logging.getLogger("jaxrl")

_PREFIX = "buffer."


def to_save(assembly: "Assembly", state: TrainState) -> TrainState:
    """The state as checkpoints hold it."""
    if isinstance(assembly.runner.experience, AnyReplay) and not assembly.saves_buffer:
        return replace(state, buffer=())
    return state


def expected(assembly: "Assembly", state: TrainState, leaves: Mapping[str, Any]) -> TrainState:
    """What of a state is to be found among saved leaves: no replay buffer where they have none."""
    holds_it = any(name.startswith(_PREFIX) for name in leaves)
    if holds_it or not isinstance(assembly.runner.experience, AnyReplay):
        return state
    return replace(state, buffer=())


def with_buffer(assembly: "Assembly", restored: TrainState, buffer: Any) -> TrainState:
    """A restored state with an empty replay buffer, if one belongs there and was not saved.

    Args:
        assembly: The run's.
        restored: `expected`, filled with what was saved.
        buffer: The run's until now, whose memory the empty one takes over.
    """
    replay = assembly.runner.experience
    if not isinstance(replay, AnyReplay) or isinstance(restored.buffer, ReplayState):
        return restored
    logger.warning(
        "The checkpoint has no replay buffer: there is no learning before %d transitions are in "
        "the buffer again.",
        replay.first_learned_at,
    )
    places = jax.tree.map(lambda leaf: leaf.sharding, buffer)
    empty = jax.jit(replay.emptied, donate_argnums=0, out_shardings=places)
    return replace(restored, buffer=empty(buffer))


def buffer_notes(assembly: "Assembly") -> list[str]:
    """How large the replay buffer is and whether checkpoints hold it, in a sentence."""
    replay = assembly.runner.experience
    if not isinstance(replay, AnyReplay):
        return []
    capacity = replay.length * replay.num_envs
    where = " in host memory" if replay.in_host_memory else ""
    held = "hold it" if assembly.saves_buffer else "do not hold it"
    note = (
        f"Replay buffer: {capacity} transitions of {assembly.buffer_bytes / capacity:.0f} bytes, "
        f"{assembly.buffer_bytes / 2**20:.2f} MiB{where}; checkpoints {held} "
        f"(store_buffer_in_checkpoints={assembly.store_buffer!r})."
    )
    return [note]
