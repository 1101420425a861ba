"""A replay buffer in host memory, for learners whose devices could not hold it.

The functions are those of a buffer on the devices. A rollout's rows go to the host's memory, the
rows of all its updates come to the devices in one transfer, and their errors go back. So what is
drawn is the same, but that the updates of one rollout do not see each other's new priorities.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxrl.buffers.replay import Drawn, ReplayState
from jaxrl.buffers.sequence import AnyReplay
from jaxrl.core.hparams import current_values
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Device, Key, Progress, PyTree, Rollout, Transition
from jaxrl.errors import ConfigError
from jaxrl.runtime.program import Program
from jaxrl.training.replay_updates import Dealt, step_keys
from jaxrl.training.sharding import (
    ALONG,
    AXIS,
    COLUMNS,
    WHOLE,
    data_specs,
    in_columns,
    out_of_columns,
    over,
    per_device,
    state_specs,
    summary_specs,
)
from jaxrl.training.train_state import Sampled, Summary, TrainState, summed, updates_between
from jaxrl.training.train_step import Learning

ROWS = PartitionSpec(None, AXIS)


@pytree
class Delivery:
    """What a train batch brings to the buffer, and what its draws depend on."""

    rollout: Rollout
    env_index: Int[Array, " B"]
    env_step: UInt32[Array, "T B"]
    gamma: Float[Array, ""]
    progress: Progress
    key: Key


def uses_host_memory(runner: Learning) -> bool:
    """Whether the run has a replay buffer that is not on the learner's devices."""
    return isinstance(runner.experience, AnyReplay) and runner.experience.in_host_memory


def host_device() -> Device:
    """What computes in host memory.

    Raises:
        ConfigError: JAX was told to leave it alone.
    """
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise ConfigError(
            "replay_buffer_config['storage']='host' needs JAX's CPU backend beside that of the "
            "accelerator: add cpu to JAX_PLATFORMS, as in JAX_PLATFORMS=cuda,cpu."
        ) from error


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class HostMemoryLearning:
    """The parts of a train batch, each pure and in one place.

    Args:
        runner: Where rollouts are received and learned from.
        replay: The buffer.
    """

    runner: Learning
    replay: AnyReplay

    def deliver(self, state: TrainState, data: Sampled) -> Delivery:
        """On the devices: what the buffer gets of a rollout."""
        steps = state.progress.env_steps.add(data.num_env_steps)
        progress = replace(state.progress, env_steps=steps)
        return Delivery(
            rollout=self.runner.to_store(state, data),
            env_index=data.env_index,
            env_step=data.record.env_step,
            gamma=current_values(state.learner.hparams, progress)["gamma"],
            progress=progress,
            key=self.runner.batch_key(state),
        )

    def deal(self, buffer: ReplayState, delivery: Delivery) -> tuple[ReplayState, Drawn, Dealt]:
        """On the host: store, and draw the rows of all updates."""
        buffer = self.replay.add(buffer, delivery.rollout, delivery.env_index, delivery.env_step)
        source = self.runner.from_buffer(buffer, delivery.progress)

        def one(number: Int[Array, ""]) -> tuple[Drawn, Transition]:
            row_key, _ = step_keys(delivery.key, number)
            return source.rows(buffer.priorities, number, delivery.gamma, row_key)

        numbers = jnp.arange(self.replay.num_updates, dtype=jnp.int32)
        drawn, batches = jax.lax.map(one, numbers)
        return buffer, drawn, Dealt(batches=batches, ready=self.replay.can_learn(buffer))

    def learn(
        self, state: TrainState, data: Sampled, dealt: Dealt
    ) -> tuple[TrainState, Summary, Float[Array, "U N"]]:
        """On the devices: everything else, and the rows' TD errors."""
        after, metrics, errors = self.runner.learn_dealt(state, data, dealt)
        updates = updates_between(state, after)
        summary = summed(self.runner.no_summary(state, metrics), data, metrics, updates)
        return after, summary, errors

    def renew(
        self, buffer: ReplayState, drawn: Drawn, errors: Float[Array, "U N"], ready: Bool[Array, ""]
    ) -> ReplayState:
        """On the host: the priorities of what was learned from."""

        def body(number: Int[Array, ""], priorities: PyTree) -> PyTree:
            rows = jax.tree.map(lambda x: x[number], drawn)
            return self.replay.prioritize(priorities, rows, errors[number])

        number = jnp.where(ready, self.replay.num_updates, 0)
        return replace(buffer, priorities=jax.lax.fori_loop(0, number, body, buffer.priorities))


class HostMemory:
    """The compiled parts, and the way between them.

    Args:
        runner: The run's pure functions.
        devices: The learner's.
        max_retraces: See `Program`.
        jit: False runs everything op by op.
    """

    def __init__(
        self, runner: Learning, devices: list[Device], *, max_retraces: int | None, jit: bool
    ) -> None:
        assert isinstance(runner.experience, AnyReplay)
        self._replay = runner.experience
        self._parts = parts = HostMemoryLearning(runner=runner, replay=self._replay)
        self._devices, self._host = devices, SingleDeviceSharding(host_device())
        options: dict[str, Any] = {"max_retraces": max_retraces, "enabled": jit}
        self._deliver = Program("deliver", self._delivering, **options)
        self._deal = Program("deal", parts.deal, donate=(0,), **options)
        self.main = Program("learn", self._learning, donate=(0,), **options)
        self._renew = Program("renew", parts.renew, donate=(0,), **options)

    @property
    def programs(self) -> list[Program]:
        """All that is compiled."""
        renews = [self._renew] if self._replay.prioritization is not None else []
        return [self._deliver, self._deal, self.main, *renews]

    def empty(self, state: TrainState) -> ReplayState:
        """A buffer with nothing in it."""
        runner = self._parts.runner
        return jax.jit(lambda: runner.empty_buffer(state), out_shardings=self._host)()

    def deal(self, state: TrainState, data: Sampled) -> tuple[ReplayState, Drawn, Dealt]:
        """The buffer with a train batch in it, in the memory of the state's; what was drawn.

        The rows are on the learner's devices.
        """
        delivery = self._deliver(replace(state, buffer=()), data)
        buffer, drawn, dealt = self._deal(state.buffer, jax.device_put(delivery, self._host))
        return buffer, drawn, jax.device_put(dealt, self._places(dealt))

    def renew(self, buffer: ReplayState, drawn: Drawn, errors: Array, ready: Array) -> ReplayState:
        """The buffer, in its own memory, with the priorities of what was learned from."""
        if self._replay.prioritization is None:
            return buffer
        return self._renew(buffer, drawn, *jax.device_put((errors, ready), self._host))

    def _places(self, dealt: Dealt) -> Any:
        if len(self._devices) == 1:
            return SingleDeviceSharding(self._devices[0])
        mesh = Mesh(np.asarray(self._devices), (AXIS,))
        return jax.tree.map(lambda spec: NamedSharding(mesh, spec), _dealt_specs(dealt))

    @property
    def _per_device(self) -> HostMemoryLearning:
        return dataclasses.replace(self._parts, runner=per_device(self._parts.runner))

    def _delivering(self, state: TrainState, data: Sampled) -> Delivery:
        state = in_columns(self._parts.runner, state, data)
        if len(self._devices) == 1:
            return self._parts.deliver(state, data)
        shapes = jax.eval_shape(self._parts.deliver, state, data)
        out_specs = replace(
            jax.tree.map(lambda _: WHOLE, shapes),
            rollout=jax.tree.map(lambda _: COLUMNS, shapes.rollout),
            env_index=ALONG,
            env_step=COLUMNS,
        )
        in_specs = state_specs(state), data_specs(data)
        return over(self._devices, self._per_device.deliver, in_specs, out_specs)(state, data)

    def _learning(
        self, state: TrainState, data: Sampled, dealt: Dealt
    ) -> tuple[TrainState, Summary, Float[Array, "U N"]]:
        columns = in_columns(self._parts.runner, state, data)
        learn = self._parts.learn
        if len(self._devices) > 1:
            specs = state_specs(columns)
            in_specs = specs, data_specs(data), _dealt_specs(dealt)
            out_specs = specs, summary_specs(), ROWS
            learn = over(self._devices, self._per_device.learn, in_specs, out_specs)
        new_state, summary, errors = learn(columns, data, dealt)
        return out_of_columns(state, new_state, data), summary, errors


def _dealt_specs(dealt: Dealt) -> Dealt:
    """Rows are divided: those of a device's shards lie next to each other."""
    rows: Any = jax.tree.map(lambda _: ROWS, dealt)
    return replace(rows, ready=WHOLE)
