"""Replay buffer of a user's own class with RLlib's methods, which stores transitions in Python."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from jaxrl.buffers.host import BATCH_INDEXES, WEIGHTS, HostBuffer, TransitionColumns
from jaxrl.buffers.replay import PRIORITY_EPSILON, ReplayBuffer, SampledIndices
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Device, PyTree, Transition
from jaxrl.errors import ReplayBufferError, summarize_exception
from jaxrl.runners.host_replay import SampleInputs, get_host_device, make_sample_inputs, place_rows
from jaxrl.runtime.program import Program
from jaxrl.training.replay_updates import PresampledBatches
from jaxrl.training.train_state import RolloutBatch, TrainState
from jaxrl.training.train_step import TrainStep

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
