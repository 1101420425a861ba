"""Several runs as one compiled program: a leading axis of lanes on the whole TrainState.

Counters that are the same in every lane have no such axis, so that what depends on them (when a
target network is due, where a buffer's next row goes) stays a branch and an address.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxtyping import Array, Int, UInt32

from jaxrl.buffers.circular import CircularState
from jaxrl.buffers.replay import ReplayState
from jaxrl.core.hparams import Hyperparameter, per_lane_settings, traced_settings
from jaxrl.core.struct import replace
from jaxrl.core.types import Device, Key, PyTree
from jaxrl.runtime.program import Program
from jaxrl.training.in_graph import InGraph
from jaxrl.training.train_state import Summary, TrainState, summed, updates_between

AXIS = "lanes"
ALONG, WHOLE = PartitionSpec(AXIS), PartitionSpec()


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Lanes:
    """The pure functions of runs that differ in numbers alone.

    Args:
        runner: Of all of them.
    """

    runner: InGraph

    @staticmethod
    def of(runner: InGraph, own_numbers: Collection[str]) -> "Lanes":
        """Those of runs with a runner, in which nothing reads certain numbers from the settings.

        Args:
            runner: Whose learner has those of one run.
            own_numbers: The names of settings that each run has its own numbers of.
        """
        settings = per_lane_settings(runner.learner.settings, own_numbers)
        learner = dataclasses.replace(runner.learner, settings=settings)
        return Lanes(runner=dataclasses.replace(runner, learner=learner))

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

        # One after another: XLA's threads on the CPU wait for one another for ever in batches of
        # the QR decompositions by which orthogonal weights are drawn.
        states = jax.lax.map(lambda args: one(*args), (keys, env_params, numbers))
        return jax.tree.map(lambda x, own: x if own else x[0], states, is_per_lane(states))

    def run(self, states: TrainState, num_batches: Int[Array, ""]) -> tuple[TrainState, Summary]:
        """`num_batches` train batches of every lane, and each lane's summary."""
        axes = lane_axes(states)
        step = jax.vmap(self._train_batch, in_axes=(axes, 0), out_axes=(axes, 0))
        start = jax.vmap(self.runner.first_summary, in_axes=(axes,))(states)

        def body(_: Any, carry: tuple[TrainState, Summary]) -> tuple[TrainState, Summary]:
            return step(*carry)

        return jax.lax.fori_loop(0, num_batches, body, (states, start))

    def _train_batch(self, state: TrainState, summary: Summary) -> tuple[TrainState, Summary]:
        after, data, metrics = self.runner.train_batch(state)
        return after, summed(summary, data, metrics, updates_between(state, after))


def is_per_lane(state: TrainState) -> Any:
    """For every leaf, whether each lane has its own: False for counters that all lanes share."""

    def fill(tree: PyTree, value: bool) -> PyTree:
        return jax.tree.map(lambda _: value, tree)

    own = fill(state, True)
    buffer: Any = own.buffer
    # Where environments are at fault, lanes differ in the steps that are transitions.
    progress = replace(fill(state.progress, False), env_steps=fill(state.progress.env_steps, True))
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


def stacked(trees: Sequence[PyTree]) -> PyTree:
    """Trees of numbers as one, `[len(trees), ...]`."""
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(x) for x in leaves]), *trees)


def lane_of(states: TrainState, index: Int[Array, ""], *, buffer: bool = True) -> TrainState:
    """One lane's state, which a run by itself takes, with or without a buffer; copies."""
    per_lane = is_per_lane(states)
    if not buffer:
        states, per_lane = replace(states, buffer=()), replace(per_lane, buffer=())
    return jax.tree.map(
        lambda x, own: jnp.array(x[index] if own else x, copy=True), states, per_lane
    )


def with_lane(
    states: TrainState, index: Int[Array, ""], state: TrainState, *, counters: bool = False
) -> TrainState:
    """The lanes with another state in the place of one.

    Args:
        states: Of all lanes.
        index: Which one.
        state: Its new state.
        counters: Whether those that all lanes share are taken too, or stay as they are.
    """
    return jax.tree.map(
        lambda x, new, per_lane: x.at[index].set(new) if per_lane else (new if counters else x),
        states,
        state,
        is_per_lane(states),
    )


def adopted(
    states: TrainState,
    index: Int[Array, ""],
    source: TrainState,
    numbers: Mapping[str, Hyperparameter],
    salt: UInt32[Array, ""],
) -> TrainState:
    """The lanes with one that goes on as a copy of a state, but for its keys.

    Its keys are made of those that it had, so that it draws neither as the other lane does nor as
    a lane with the same seed.

    Args:
        states: Of all lanes.
        index: Which one.
        source: Another lane's.
        numbers: Hyperparameters that it has in the place of the source's.
        salt: What the keys are folded with.
    """
    learner, snapshot = source.learner, source.guard.snapshot
    source = replace(
        source,
        learner=_with_numbers(learner, numbers),
        guard=replace(
            source.guard, snapshot=None if snapshot is None else _with_numbers(snapshot, numbers)
        ),
    )

    def write(x: Array, new: Array, per_lane: bool) -> Array:
        if not per_lane:
            return x
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            new = _folded(x[index], salt)
        return x.at[index].set(new)

    return jax.tree.map(write, states, source, is_per_lane(states))


def _with_numbers(learner: Any, numbers: Mapping[str, Hyperparameter]) -> Any:
    return replace(learner, hparams={**learner.hparams, **numbers})


def _folded(keys: Key, salt: UInt32[Array, ""]) -> Key:
    """Keys of any shape, each folded with the salt."""
    fold = jax.random.fold_in
    for _ in range(keys.ndim):
        fold = jax.vmap(fold, (0, None))
    return fold(keys, salt)


def divided(
    function: Callable[..., PyTree], states: TrainState, devices: Sequence[Device]
) -> Callable[..., PyTree]:
    """A function of `(states, more, keys)` for the devices that share the lanes.

    Args:
        function: Treats each lane for itself; what else it takes and returns is `[lanes, ...]`.
        states: Of the lanes, or their shapes.
        devices: As many as divide the lanes.
    """
    if len(devices) == 1:
        return function
    specs = (_specs(states), ALONG, ALONG)
    return jax.shard_map(
        function, mesh=_mesh(devices), in_specs=specs, out_specs=ALONG, check_vma=False
    )


def _mesh(devices: Sequence[Device]) -> Mesh:
    return Mesh(np.asarray(devices), (AXIS,))


def _specs(states: TrainState) -> Any:
    return jax.tree.map(lambda own: ALONG if own else WHOLE, is_per_lane(states))


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompiledLanes:
    """The programs: `init(keys, env_params, numbers)`, `run(states, num_batches)`.

    The others read and write single lanes: `lane_of`, `with_lane` and `adopted`. Which lane is traced.
    """

    init: Program
    run: Program
    take: Program
    take_to_act: Program
    put: Program
    restore: Program
    adopt: Program


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
        mesh, specs = _mesh(devices), _specs(shapes)
        shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
        run = jax.shard_map(
            lanes.run, mesh=mesh, in_specs=(specs, WHOLE), out_specs=(specs, ALONG), check_vma=False
        )

    def written(name: str, function: Callable[..., TrainState]) -> Program:
        return Program(name, function, donate=(0,), out_shardings=shardings, enabled=jit)

    return CompiledLanes(
        init=Program("init", lanes.init, out_shardings=shardings, enabled=jit),
        run=Program("train", run, donate=(0,), enabled=jit),
        take=Program("take", lane_of, enabled=jit),
        take_to_act=Program("take_to_act", partial(lane_of, buffer=False), enabled=jit),
        put=written("put", with_lane),
        restore=written("restore", partial(with_lane, counters=True)),
        adopt=written("exploit", adopted),
    )
