"""Choice of a replay buffer in host memory."""

from typing import TYPE_CHECKING

from jaxrl.assembly.replay import make_host_buffer
from jaxrl.buffers.replay import ReplayBuffer
from jaxrl.core.types import Device
from jaxrl.runners.host_replay import HostMemory, HostReplay
from jaxrl.runners.user_replay import UserReplay
from jaxrl.training.train_step import TrainStep

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


def make_host_memory(
    config: "AlgorithmConfig",
    train_step: TrainStep,
    devices: list[Device],
    *,
    max_retraces: int | None,
    jit: bool,
) -> HostMemory | None:
    """Make the replay buffer in host memory; None if there is none.

    Args:
        config: Config of the run.
        train_step: Train step of the run.
        devices: Devices of the learner.
        max_retraces: Maximum number of retraces, see `Program`.
        jit: Whether to compile.
    """
    replay = train_step.host_replay
    if replay is None:
        return None
    buffer = make_host_buffer(config)
    if buffer is None:
        return HostReplay(train_step, replay, devices, max_retraces=max_retraces, jit=jit)
    assert isinstance(replay, ReplayBuffer)
    return UserReplay(train_step, replay, buffer, devices, jit=jit)
