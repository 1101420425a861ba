"""What checkpoints hold of a replay buffer, all of it or nothing, and how a run goes on without."""

import logging
from collections.abc import Mapping
from typing import Any

import jax

from jaxrl.assembly.assemble import Assembly
from jaxrl.buffers.replay import ReplayState
from jaxrl.buffers.sequence import AnyReplay
from jaxrl.core.struct import replace
from jaxrl.training.train_state import TrainState

logger = logging.getLogger("jaxrl")

_PREFIX = "buffer."


def to_save(assembly: Assembly, state: TrainState) -> TrainState:
    """The state as checkpoints hold it."""
    if isinstance(assembly.runner.experience, AnyReplay) and not assembly.saves_buffer:
        return replace(state, buffer=())
    return state


def expected(assembly: Assembly, state: TrainState, leaves: Mapping[str, Any]) -> TrainState:
    """What of a state is to be found among saved leaves: no replay buffer where they have none."""
    holds_it = any(name.startswith(_PREFIX) for name in leaves)
    if holds_it or not isinstance(assembly.runner.experience, AnyReplay):
        return state
    return replace(state, buffer=())


def with_buffer(assembly: Assembly, restored: TrainState, buffer: Any) -> TrainState:
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


def buffer_notes(assembly: Assembly) -> list[str]:
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
