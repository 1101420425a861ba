"""Replay buffer in host memory, for buffers that do not fit on the learner's devices.

It uses the functions of the buffer on devices. The rows of a rollout are moved to host memory, the
rows of all its updates are moved to the devices in one transfer, and their TD errors are moved
back. Samples are therefore the same, except that the updates of a rollout do not see each other's
new priorities.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxrl.buffers.replay import ReplayState, SampledIndices
from jaxrl.buffers.sequence import AnyReplayBuffer
from jaxrl.core.hparams import current_values
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Device, Key, Progress, PyTree, Rollout, Transition
from jaxrl.errors import ConfigError
from jaxrl.runtime.program import Program
from jaxrl.training.replay_updates import PresampledBatches, split_step_key
from jaxrl.training.sharding import (
    COLUMN_SHARDED,
    DEVICE_AXIS,
    REPLICATED,
    SHARDED,
    data_specs,
    gather_columns,
    scatter_columns,
    shard_over_devices,
    state_specs,
    summary_specs,
    to_per_device,
)
from jaxrl.training.train_state import (
    RolloutBatch,
    Summary,
    TrainState,
    add_to_summary,
    count_updates_between,
    empty_summary,
)
from jaxrl.training.train_step import TrainStep

ROW_SHARDED = PartitionSpec(None, DEVICE_AXIS)


@pytree
class BufferInsert:
    """Rollout to add to the buffer, and the inputs of the sampling that follows."""

    rollout: Rollout
    env_index: Int[Array, " B"]
    env_step: UInt32[Array, "T B"]
    gamma: Float[Array, ""]
    progress: Progress
    key: Key


def get_host_device() -> Device:
    """Return the CPU device, which computes in host memory.

    Raises:
        ConfigError: If JAX is configured without the CPU backend.
    """
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise ConfigError(
            "replay_buffer_config['storage']='host' needs JAX's CPU backend beside that of the "
            "accelerator: add cpu to JAX_PLATFORMS, as in JAX_PLATFORMS=cuda,cpu."
        ) from error


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class HostReplayStages:
    """Stages of a train batch, each a pure function on either the host or the devices.

    Args:
        functions: Train step of the run.
        replay: Its replay buffer.
    """

    functions: TrainStep
    replay: AnyReplayBuffer

    def make_insert(self, state: TrainState, data: RolloutBatch) -> BufferInsert:
        """Prepare the data of a rollout that the buffer stores; runs on the devices."""
        steps = state.progress.env_steps.add(data.num_env_steps)
        progress = replace(state.progress, env_steps=steps)
        return BufferInsert(
            rollout=self.functions.to_stored_rollout(state, data),
            env_index=data.env_index,
            env_step=data.record.env_step,
            gamma=current_values(state.learner.hparams, progress)["gamma"],
            progress=progress,
            key=self.functions.make_batch_key(state),
        )

    def sample_batches(
        self, buffer: ReplayState, insert: BufferInsert
    ) -> tuple[ReplayState, SampledIndices, PresampledBatches]:
        """Store a rollout and sample the rows of all updates; runs on the host."""
        buffer = self.replay.add(buffer, insert.rollout, insert.env_index, insert.env_step)
        source = self.functions.make_buffer_source(self.replay, buffer, insert.progress)

        def one(number: Int[Array, ""]) -> tuple[SampledIndices, Transition]:
            row_key, _ = split_step_key(insert.key, number)
            return source.sample_rows(buffer.priorities, number, insert.gamma, row_key)

        numbers = jnp.arange(self.replay.num_updates, dtype=jnp.int32)
        drawn, batches = jax.lax.map(one, numbers)
        return (
            buffer,
            drawn,
            PresampledBatches(batches=batches, is_ready=self.replay.can_learn(buffer)),
        )

    def train_step(
        self, state: TrainState, data: RolloutBatch, presampled: PresampledBatches
    ) -> tuple[TrainState, Summary, Float[Array, "U N"]]:
        """Run the rest of the train step, on the devices; return also the TD errors of the rows."""
        after, metrics, errors = self.functions.train_on_presampled(
            self.replay, state, data, presampled
        )
        updates = count_updates_between(state, after)
        empty = empty_summary(state.ring.count.shape[0], metrics)
        summary = add_to_summary(empty, data, metrics, updates)
        return after, summary, errors

    def update_priorities(
        self,
        buffer: ReplayState,
        indices: SampledIndices,
        errors: Float[Array, "U N"],
        ready: Bool[Array, ""],
    ) -> ReplayState:
        """Update the priorities of the sampled rows; runs on the host."""

        def body(number: Int[Array, ""], priorities: PyTree) -> PyTree:
            rows = jax.tree.map(lambda x: x[number], indices)
            return self.replay.update_priorities(priorities, rows, errors[number])

        number = jnp.where(ready, self.replay.num_updates, 0)
        return replace(buffer, priorities=jax.lax.fori_loop(0, number, body, buffer.priorities))


class HostReplay:
    """Compiled stages of a train batch, and the transfers between host and devices.

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
        self._replay = replay
        self._stages = parts = HostReplayStages(functions=train_step, replay=replay)
        self._devices, self._host_sharding = devices, SingleDeviceSharding(get_host_device())
        options: dict[str, Any] = {"max_retraces": max_retraces, "enabled": jit}
        self._insert_program = Program("deliver", self._prepare_insert, **options)
        self._sample_program = Program("deal", parts.sample_batches, donate_argnums=(0,), **options)
        self.train_program = Program("learn", self._train, donate_argnums=(0,), **options)
        self._priority_program = Program(
            "renew", parts.update_priorities, donate_argnums=(0,), **options
        )

    @property
    def programs(self) -> list[Program]:
        """Compiled programs."""
        optional = [self._priority_program] if self._replay.prioritization is not None else []
        return [self._insert_program, self._sample_program, self.train_program, *optional]

    def init_buffer(self, state: TrainState) -> ReplayState:
        """Create an empty buffer in host memory."""
        functions = self._stages.functions
        return jax.jit(lambda: functions.init_buffer(state), out_shardings=self._host_sharding)()

    def sample_batches(
        self, state: TrainState, data: RolloutBatch
    ) -> tuple[ReplayState, SampledIndices, PresampledBatches]:
        """Add a train batch to the buffer and sample the rows of its updates.

        Returns:
            The updated buffer, in the donated memory of the state's buffer; the sampled indices;
            the sampled rows, on the learner's devices.
        """
        delivery = self._insert_program(replace(state, buffer=()), data)
        buffer, drawn, dealt = self._sample_program(
            state.buffer, jax.device_put(delivery, self._host_sharding)
        )
        return buffer, drawn, jax.device_put(dealt, self._make_shardings(dealt))

    def update_priorities(
        self, buffer: ReplayState, indices: SampledIndices, errors: Array, ready: Array
    ) -> ReplayState:
        """Update the priorities of the sampled rows, in the donated memory of the buffer."""
        if self._replay.prioritization is None:
            return buffer
        return self._priority_program(
            buffer, indices, *jax.device_put((errors, ready), self._host_sharding)
        )

    def _make_shardings(self, dealt: PresampledBatches) -> PyTree:
        if len(self._devices) == 1:
            return SingleDeviceSharding(self._devices[0])
        mesh = Mesh(np.asarray(self._devices), (DEVICE_AXIS,))
        return jax.tree.map(lambda spec: NamedSharding(mesh, spec), _make_row_specs(dealt))

    @property
    def _per_device_stages(self) -> HostReplayStages:
        return dataclasses.replace(self._stages, functions=to_per_device(self._stages.functions))

    def _prepare_insert(self, state: TrainState, data: RolloutBatch) -> BufferInsert:
        state = gather_columns(self._stages.functions, state, data)
        if len(self._devices) == 1:
            return self._stages.make_insert(state, data)
        shapes = jax.eval_shape(self._stages.make_insert, state, data)
        out_specs = replace(
            jax.tree.map(lambda _: REPLICATED, shapes),
            rollout=jax.tree.map(lambda _: COLUMN_SHARDED, shapes.rollout),
            env_index=SHARDED,
            env_step=COLUMN_SHARDED,
        )
        in_specs = state_specs(state), data_specs(data)
        return shard_over_devices(
            self._devices, self._per_device_stages.make_insert, in_specs, out_specs
        )(state, data)

    def _train(
        self, state: TrainState, data: RolloutBatch, dealt: PresampledBatches
    ) -> tuple[TrainState, Summary, Float[Array, "U N"]]:
        columns = gather_columns(self._stages.functions, state, data)
        learn = self._stages.train_step
        if len(self._devices) > 1:
            specs = state_specs(columns)
            in_specs = specs, data_specs(data), _make_row_specs(dealt)
            out_specs = specs, summary_specs(), ROW_SHARDED
            learn = shard_over_devices(
                self._devices, self._per_device_stages.train_step, in_specs, out_specs
            )
        new_state, summary, errors = learn(columns, data, dealt)
        return scatter_columns(state, new_state, data), summary, errors


def _make_row_specs(dealt: PresampledBatches) -> PresampledBatches:
    """Return specs that divide the rows; those of a device's shards are contiguous."""
    rows: PresampledBatches = jax.tree.map(lambda _: ROW_SHARDED, dealt)
    return replace(rows, is_ready=REPLICATED)
