"""Several runs as one compiled program: a leading axis of lanes on the whole TrainState.

Counters that are the same in every lane have no such axis, so that what depends on them (when a
target network is due, where a buffer's next row goes) stays a branch and an address.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxtyping import Array, Int

from jaxrl.buffers.circular import CircularState
from jaxrl.buffers.replay import ReplayState
from jaxrl.core.hparams import traced_settings
from jaxrl.core.struct import replace
from jaxrl.core.types import Device, Key, PyTree
from jaxrl.runners.in_graph import InGraph
from jaxrl.runners.learning import summed, updates_between
from jaxrl.runners.program import Program
from jaxrl.runners.train_state import Summary, TrainState

AXIS = "lanes"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Lanes:
    """The pure functions of runs that differ in numbers alone.

    Args:
        runner: Of the first of them.
    """

    runner: InGraph

    def init(self, keys: Key, env_params: PyTree, numbers: Mapping[str, PyTree]) -> TrainState:
        """The first states, `[lanes, ...]`, each of which a run by itself would have.

        Args:
            keys: One for each lane; consumed.
            env_params: Of each lane's environment, `[lanes, ...]`.
            numbers: Sweepable training settings by name, as `traced_settings` takes them.
        """

        def one(key: Key, params: PyTree, values: Mapping[str, PyTree]) -> TrainState:
            learner: Any = self.runner.learner
            settings = traced_settings(learner.settings, values)
            learner = dataclasses.replace(learner, settings=settings)
            return dataclasses.replace(self.runner, learner=learner).init(key, params)

        of_one = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), (keys, env_params, numbers)
        )
        shapes = jax.eval_shape(one, *of_one)
        return jax.vmap(one, out_axes=lane_axes(shapes))(keys, env_params, numbers)

    def run(self, states: TrainState, num_batches: Int[Array, ""]) -> tuple[TrainState, Summary]:
        """`num_batches` train batches of every lane, and each lane's summary."""
        axes = lane_axes(states)
        step = jax.vmap(self._train_batch, in_axes=(axes, 0), out_axes=(axes, 0))
        start = jax.vmap(self._no_summary, in_axes=(axes,))(states)

        def body(_: Any, carry: tuple[TrainState, Summary]) -> tuple[TrainState, Summary]:
            return step(*carry)

        return jax.lax.fori_loop(0, num_batches, body, (states, start))

    def _no_summary(self, state: TrainState) -> Summary:
        return self.runner.no_summary(state, jax.eval_shape(self.runner.step, state)[1])

    def _train_batch(self, state: TrainState, summary: Summary) -> tuple[TrainState, Summary]:
        after, data, metrics = self.runner.train_batch(state)
        return after, summed(summary, data, metrics, updates_between(state, after))


def is_per_lane(state: TrainState) -> Any:
    """For every leaf, whether each lane has its own: False for counters that all lanes share."""

    def fill(tree: PyTree, value: bool) -> PyTree:
        return jax.tree.map(lambda _: value, tree)

    own = fill(state, True)
    buffer: Any = own.buffer
    progress = fill(state.progress, False)
    if isinstance(state.buffer, ReplayState):
        rows: Any = dataclasses.replace(buffer.rows, current_index=False, is_full=False)
        buffer = dataclasses.replace(buffer, rows=rows)
    if isinstance(state.buffer, CircularState):
        buffer = dataclasses.replace(buffer, next_slot=False, filled=False, draws_left=False)
        # Whether there is a batch to draw from, and so an update, is a matter of earlier draws.
        progress = dataclasses.replace(progress, updates=fill(state.progress.updates, True))
    return replace(own, progress=progress, buffer=buffer)


def lane_axes(state: TrainState) -> Any:
    """For `jax.vmap`: where a leaf has its axis of lanes, None for the counters that they share."""
    return jax.tree.map(lambda per_lane: 0 if per_lane else None, is_per_lane(state))


def lane_of(states: TrainState, index: int) -> TrainState:
    """One lane's state, which a run by itself takes; copies."""
    return jax.tree.map(
        lambda x, per_lane: jnp.array(x[index] if per_lane else x, copy=True),
        states,
        is_per_lane(states),
    )


def with_lane(states: TrainState, index: int, state: TrainState) -> TrainState:
    """The lanes with another state in the place of one; shared counters stay as they are."""
    return jax.tree.map(
        lambda x, new, per_lane: x.at[index].set(new) if per_lane else x,
        states,
        state,
        is_per_lane(states),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompiledLanes:
    """The programs: `init(keys, env_params, numbers)` and `run(states, num_batches)`."""

    init: Program
    run: Program


def compile_lanes(
    lanes: Lanes, shapes: TrainState, devices: Sequence[Device], *, jit: bool
) -> CompiledLanes:
    """Programs for the devices, each of which has an equal share of the lanes.

    Args:
        lanes: The pure functions.
        shapes: `jax.eval_shape` of the first states.
        devices: As many as divide the lanes.
        jit: False runs everything op by op.
    """
    if len(devices) == 1:
        shardings = jax.tree.map(lambda _: SingleDeviceSharding(devices[0]), shapes)
        run: Any = lanes.run
    else:
        along, whole = PartitionSpec(AXIS), PartitionSpec()
        mesh = Mesh(np.asarray(devices), (AXIS,))
        specs = jax.tree.map(lambda own: along if own else whole, is_per_lane(shapes))
        shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
        run = jax.shard_map(
            lanes.run, mesh=mesh, in_specs=(specs, whole), out_specs=(specs, along), check_vma=False
        )
    return CompiledLanes(
        init=Program("init", lanes.init, out_shardings=shardings, enabled=jit),
        run=Program("train", run, donate=(0,), enabled=jit),
    )
