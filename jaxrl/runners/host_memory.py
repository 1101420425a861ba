"""Choice of a replay buffer in host memory."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jaxtyping import Array, Bool, Float, Int

from jaxrl.assembly.replay import make_host_buffer
from jaxrl.buffers.host import BATCH_INDEXES, WEIGHTS, HostBuffer, TransitionColumns
from jaxrl.buffers.replay import PRIORITY_EPSILON, ReplayBuffer, ReplayState, SampledIndices
from jaxrl.buffers.sequence import AnyReplayBuffer
from jaxrl.core.hparams import current_values
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Device, Key, Progress, PyTree, Transition
from jaxrl.errors import ConfigError, ReplayBufferError, summarize_exception
from jaxrl.runtime.program import Program
from jaxrl.training.replay_updates import PresampledBatches, split_step_key
from jaxrl.training.sharding import DEVICE_AXIS, make_row_specs
from jaxrl.training.train_state import RolloutBatch, TrainState
from jaxrl.training.train_step import TrainStep

if TYPE_CHECKING:
    from jaxrl.config.config import Config


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


T = TypeVar("T")

NEW_OBS, DISCOUNTS = "new_obs", "discounts"
COLUMNS = ("obs", "actions", "rewards", NEW_OBS, DISCOUNTS)
"""Columns that a sample needs."""


@pytree
class _Folded:
    """Transitions of all rows of a rollout, `[N]`, and which of the rows are transitions."""

    transition: Transition
    terminated: Bool[Array, " N"]
    truncated: Bool[Array, " N"]
    is_transition: Bool[Array, " N"]


class UserReplay:
    """Replay buffer of a user's own class.

    The n steps of a transition are folded when it is added, within its fragment, as in RLlib; γ is
    that of the time when it is added.

    Args:
        train_step: Train step of the run.
        replay: Its replay buffer, of which only the sizes are used.
        buffer: Buffer of the user.
        devices: Devices of the learner.
        jit: Whether to compile.
    """

    def __init__(
        self,
        train_step: TrainStep,
        replay: ReplayBuffer,
        buffer: HostBuffer,
        devices: list[Device],
        *,
        jit: bool,
    ) -> None:
        self._train_step, self._replay, self._devices = train_step, replay, devices
        self.buffer = buffer
        self._name = type(buffer).__name__
        self._inputs_program = Program(
            "sample_inputs", lambda state: make_sample_inputs(train_step, state), enabled=jit
        )
        self._fold_program = Program("fold_n_steps", self._fold, enabled=jit)
        self._example: Transition | None = None
        """Transitions, for the shapes of a blank sample."""

    @property
    def programs(self) -> list[Program]:
        return [self._inputs_program, self._fold_program]

    def init_buffer(self, state: TrainState) -> tuple[()]:
        del state
        return ()

    def add(self, state: TrainState, batch: RolloutBatch) -> tuple[()]:
        inputs = self._inputs_program(replace(state, buffer=()))
        host = get_host_device()
        folded: _Folded = jax.device_get(self._fold_program(*jax.device_put((batch, inputs), host)))
        kept: _Folded = jax.tree.map(lambda x: x[folded.is_transition], folded)
        self._example, rows = folded.transition, kept.transition
        columns = {
            "obs": rows.obs,
            "actions": rows.action,
            "rewards": rows.reward,
            NEW_OBS: rows.next_obs,
            DISCOUNTS: rows.discount,
            "terminateds": kept.terminated,
            "truncateds": kept.truncated,
        }
        if len(kept.terminated):
            self._call("add", lambda: self.buffer.add(columns))
        return ()

    def sample(
        self, state: TrainState, num_updates: int | None
    ) -> tuple[tuple[()], Any, PresampledBatches]:
        if self._example is None:  # nothing was added yet, as after a restore
            self._example = self._make_example(state)
        number = self._replay.num_updates if num_updates is None else num_updates
        is_ready = len(self.buffer) >= self._replay.min_rows_to_learn
        rows = [self._draw() if is_ready else self._make_blank() for _ in range(number)]
        indexes = [index for _, index in rows]
        batches = jax.tree.map(lambda *leaves: np.stack(leaves), *(batch for batch, _ in rows))
        presampled = PresampledBatches(batches=batches, is_ready=jnp.asarray(is_ready))
        return (), indexes, place_rows(presampled, self._devices)

    def update_priorities(
        self, buffer: PyTree, indices: PyTree, errors: Array, ready: Array
    ) -> PyTree:
        update: Callable[[Any, np.ndarray], None] | None = getattr(
            self.buffer, "update_priorities", None
        )
        if update is not None and bool(ready):
            for indexes, row in zip(indices, np.asarray(errors), strict=True):
                if indexes is not None:
                    priorities = np.abs(row) + PRIORITY_EPSILON
                    self._call(
                        "update_priorities",
                        lambda indexes=indexes, priorities=priorities: update(indexes, priorities),
                    )
        return buffer

    def get_state(self) -> dict[str, Any] | None:
        """Return what the user's buffer wants to be in a checkpoint; None if it cannot say."""
        get_state: Callable[[], dict[str, Any]] | None = getattr(self.buffer, "get_state", None)
        return None if get_state is None else self._call("get_state", get_state)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state returned by `get_state`."""
        set_state: Callable[[Mapping[str, Any]], None] = getattr(self.buffer, "set_state")  # noqa: B009
        self._call("set_state", lambda: set_state(state))

    def _call(self, method: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as error:
            raise ReplayBufferError(
                f"{method}() of replay_buffer_config['type']={self._name} raised "
                f"{summarize_exception(error)}."
            ) from error

    def _draw(self) -> tuple[Transition, Any]:
        """Sample one batch from the user's buffer, and check it."""
        wanted = self._replay.batch_size
        columns: TransitionColumns = self._call("sample", lambda: self.buffer.sample(wanted))
        missing = [name for name in COLUMNS if name not in columns]
        if missing:
            raise ReplayBufferError(
                f"sample({wanted}) of {self._name} returned the columns {', '.join(columns)}, and "
                f"no {' and no '.join(missing)}: return the columns that add() was given."
            )
        weights = columns.get(WEIGHTS, np.ones(wanted, np.float32))
        batch = Transition(
            obs=columns["obs"],
            action=columns["actions"],
            reward=columns["rewards"],
            discount=columns[DISCOUNTS],
            next_obs=columns[NEW_OBS],
            weight=weights,
        )
        example = self._make_blank()[0]
        try:
            rows = jax.tree.map(_as_like, batch, example)
        except ValueError as error:
            raise ReplayBufferError(
                f"sample({wanted}) of {self._name} returned {error}."
            ) from error
        return rows, columns.get(BATCH_INDEXES)

    def _make_example(self, state: TrainState) -> Transition:
        """Return no transitions, of the shapes and dtypes that rollouts have."""
        shapes = jax.eval_shape(self._train_step.init_buffer, replace(state, buffer=()))

        def take_none(x: jax.ShapeDtypeStruct) -> np.ndarray:
            return np.zeros((0, *x.shape[2:]), x.dtype)

        rows = jax.tree.map(take_none, shapes.rows.experience)
        return Transition(
            obs=rows.obs,
            action=rows.action,
            reward=rows.reward,
            discount=rows.reward,
            next_obs=rows.final_obs,
            weight=rows.reward,
        )

    def _make_blank(self) -> tuple[Transition, None]:
        """Return zeros in the form of one batch, for updates that do not happen."""
        number = self._replay.batch_size
        assert self._example is not None
        blank = jax.tree.map(lambda x: np.zeros((number, *x.shape[1:]), x.dtype), self._example)
        return replace(blank, weight=np.zeros(number, np.float32)), None

    def _fold(self, batch: RolloutBatch, inputs: SampleInputs) -> _Folded:
        """Fold the steps that follow each row, within the rollout; traced."""
        steps, envs = batch.rollout.mask.shape
        whole = ReplayBuffer(
            length=steps,
            num_envs=envs,
            num_shards=1,
            batch_size=steps * envs,
            num_updates=1,
            n_step=self._replay.n_step,
            learning_starts=1,
            allow_gaps=True,
        )
        state = whole.add(
            whole.init(batch.rollout), batch.rollout, batch.env_index, batch.record.env_step
        )
        env, time = (x.reshape(-1) for x in jnp.indices((envs, steps), dtype=jnp.int32))
        indices = SampledIndices(env=env, time=time, weight=jnp.ones(env.shape, jnp.float32))
        key = jax.random.fold_in(inputs.key, 0)
        shards = jnp.zeros((1,), jnp.int32)
        transition = whole.gather_transitions(state, indices, inputs.gamma, shards, key)
        rows = state.rows.experience
        _, _, last = whole.fold(state, indices, inputs.gamma, shards, key)
        return _Folded(
            transition=transition,
            terminated=rows.terminated[env, last],
            truncated=rows.truncated[env, last],
            is_transition=rows.mask[env, time],
        )


def _as_like(value: PyTree, example: np.ndarray) -> np.ndarray:
    """Convert one leaf of a sample.

    Raises:
        ValueError: If it has another shape; the message is a phrase.
    """
    array = np.asarray(value, example.dtype)
    if array.shape != example.shape:
        raise ValueError(f"an array of shape {array.shape} where {example.shape} is needed")
    return array


def make_host_memory(
    config: "Config",
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
    buffer = make_host_buffer(config.get_buffer_settings(), config.debugging_settings.run_seed)
    if buffer is None:
        return HostReplay(train_step, replay, devices, max_retraces=max_retraces, jit=jit)
    assert isinstance(replay, ReplayBuffer)
    return UserReplay(train_step, replay, buffer, devices, jit=jit)
