"""Replay buffers in host memory, for buffers that do not fit on the learner's devices.

`HostReplay` uses the functions of the buffer on devices: rollouts are moved to host memory, the
rows of all updates to the devices in one transfer, and their TD errors back. Samples are therefore
the same, except that the updates of a rollout do not see each other's new priorities.
`runners.user_replay` does the same with a buffer of the user's own.
"""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jaxtyping import Array, Bool, Float, Int

from jaxrl.buffers.replay import ReplayState, SampledIndices
from jaxrl.buffers.sequence import AnyReplayBuffer
from jaxrl.core.hparams import current_values
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Device, Key, Progress, PyTree, Transition
from jaxrl.errors import ConfigError
from jaxrl.runtime.program import Program
from jaxrl.training.replay_updates import PresampledBatches, split_step_key
from jaxrl.training.sharding import DEVICE_AXIS
from jaxrl.training.step_programs import make_row_specs
from jaxrl.training.train_state import RolloutBatch, TrainState
from jaxrl.training.train_step import TrainStep


class HostMemory(Protocol):
    """Replay buffer in host memory; `buffer` is the field of the TrainState that holds it."""

    @property
    def programs(self) -> list[Program]:
        """Compiled programs."""
        ...

    def init_buffer(self, state: TrainState) -> PyTree:
        """Return an empty buffer for the state."""
        ...

    def add(self, state: TrainState, batch: RolloutBatch) -> PyTree:
        """Add a received batch and return the buffer, in the donated memory of the state's."""
        ...

    def sample(
        self, state: TrainState, num_updates: int | None
    ) -> tuple[Any, Any, PresampledBatches]:
        """Sample the rows of several updates.

        Args:
            state: State with the buffer.
            num_updates: Number of updates; None for the configured number.

        Returns:
            The buffer, the origin of the rows, and the rows on the learner's devices.
        """
        ...

    def update_priorities(
        self, buffer: PyTree, indices: PyTree, errors: Array, ready: Array
    ) -> PyTree:
        """Update the priorities of sampled rows and return the buffer.

        Args:
            buffer: Buffer, whose memory may be donated.
            indices: Origin of the rows.
            errors: TD errors `[U, N]`.
            ready: Whether they were learned from.
        """
        ...


def get_host_device(setting: str = "replay_buffer_config['storage']='host'") -> Device:
    """Return the CPU device, which computes in host memory.

    Args:
        setting: Setting that needs it, for messages.

    Raises:
        ConfigError: If JAX is configured without the CPU backend.
    """
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise ConfigError(
            f"{setting} needs JAX's CPU backend beside that of the "
            "accelerator: add cpu to JAX_PLATFORMS, as in JAX_PLATFORMS=cuda,cpu."
        ) from error


def place_rows(rows: PresampledBatches, devices: list[Device]) -> PresampledBatches:
    """Move drawn rows to the learner's devices, a part of each update's rows to each."""
    if len(devices) == 1:
        return jax.device_put(rows, SingleDeviceSharding(devices[0]))
    mesh = Mesh(np.asarray(devices), (DEVICE_AXIS,))
    specs = make_row_specs(rows)
    return jax.device_put(rows, jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs))


@pytree
class SampleInputs:
    """Inputs of the draws of a train batch: discount factor, counters and key."""

    gamma: Float[Array, ""]
    progress: Progress
    key: Key


def make_sample_inputs(train_step: TrainStep, state: TrainState) -> SampleInputs:
    """Return the inputs of the draws for a state that has received the latest batch."""
    values = current_values(state.learner.hparams, state.progress)
    return SampleInputs(
        gamma=values["gamma"], progress=state.progress, key=train_step.make_batch_key(state)
    )


class HostReplay:
    """Replay buffer of the library in host memory.

    Args:
        train_step: Train step of the run.
        replay: Its replay buffer.
        devices: Devices of the learner.
        max_retraces: Maximum number of retraces, see `Program`.
        jit: Whether to compile; False runs operation by operation.
    """

    def __init__(
        self,
        train_step: TrainStep,
        replay: AnyReplayBuffer,
        devices: list[Device],
        *,
        max_retraces: int | None,
        jit: bool,
    ) -> None:
        self._train_step, self._replay = train_step, replay
        self._devices, self._host_sharding = devices, SingleDeviceSharding(get_host_device())
        options: dict[str, Any] = {"max_retraces": max_retraces, "enabled": jit}
        self._inputs_program = Program(
            "sample_inputs", lambda state: make_sample_inputs(train_step, state), **options
        )
        self._add_program = Program("add", replay.add, donate_argnums=(0,), **options)
        self._sample_program = Program("sample_rows", self._sample, enabled=jit)
        self._priority_program = Program(
            "update_priorities", self._update_priorities, donate_argnums=(0,), enabled=jit
        )

    @property
    def programs(self) -> list[Program]:
        optional = [self._priority_program] if self._replay.has_priorities else []
        return [self._inputs_program, self._add_program, self._sample_program, *optional]

    def init_buffer(self, state: TrainState) -> ReplayState:
        functions = self._train_step
        return jax.jit(lambda: functions.init_buffer(state), out_shardings=self._host_sharding)()

    def add(self, state: TrainState, batch: RolloutBatch) -> ReplayState:
        rows = batch.rollout, batch.env_index, batch.record.env_step
        return self._add_program(state.buffer, *jax.device_put(rows, self._host_sharding))

    def sample(
        self, state: TrainState, num_updates: int | None
    ) -> tuple[ReplayState, SampledIndices, PresampledBatches]:
        inputs = self._inputs_program(replace(state, buffer=()))
        numbers = np.arange(self._replay.num_updates if num_updates is None else num_updates)
        indices, rows = self._sample_program(
            state.buffer, *jax.device_put((inputs, numbers.astype(np.int32)), self._host_sharding)
        )
        return state.buffer, indices, place_rows(rows, self._devices)

    def update_priorities(
        self, buffer: ReplayState, indices: SampledIndices, errors: Array, ready: Array
    ) -> ReplayState:
        if not self._replay.has_priorities:
            return buffer
        return self._priority_program(
            buffer, indices, *jax.device_put((errors, ready), self._host_sharding)
        )

    # --- traced, on the host's device ---

    def _sample(
        self, buffer: ReplayState, inputs: SampleInputs, numbers: Int[Array, " U"]
    ) -> tuple[SampledIndices, PresampledBatches]:
        source = self._train_step.make_buffer_source(self._replay, buffer, inputs.progress)

        def one(number: Int[Array, ""]) -> tuple[SampledIndices, Transition]:
            row_key, _ = split_step_key(inputs.key, number)
            return source.sample_rows(buffer.priorities, number, inputs.gamma, row_key)

        indices, batches = jax.lax.map(one, numbers)
        ready = self._replay.can_learn(buffer)
        return indices, PresampledBatches(batches=batches, is_ready=ready)

    def _update_priorities(
        self,
        buffer: ReplayState,
        indices: SampledIndices,
        errors: Float[Array, "U N"],
        ready: Bool[Array, ""],
    ) -> ReplayState:
        def body(number: Int[Array, ""], priorities: PyTree) -> PyTree:
            rows = jax.tree.map(lambda x: x[number], indices)
            return self._replay.update_priorities(priorities, rows, errors[number])

        number = jnp.where(ready, errors.shape[0], 0)
        return replace(buffer, priorities=jax.lax.fori_loop(0, number, body, buffer.priorities))
