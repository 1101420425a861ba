"""How a TrainState lies on the devices, and the runner's programs over a mesh of them."""

import dataclasses
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from jaxrl.buffers.circular import CircularState
from jaxrl.buffers.replay import ReplayState
from jaxrl.core.types import Device, PyTree
from jaxrl.runners.in_graph import InGraph
from jaxrl.runners.learning import Learning
from jaxrl.runners.program import Program
from jaxrl.runners.train_state import Sampled, Summary, TrainState

RunnerT = TypeVar("RunnerT", bound=Learning)

AXIS = "devices"
ALONG, WHOLE, COLUMNS = PartitionSpec(AXIS), PartitionSpec(), PartitionSpec(None, AXIS)
BATCHES = PartitionSpec(None, None, AXIS)


def state_specs(state: TrainState) -> TrainState:
    """What has an axis of environments or shards is divided; everything else is on each device."""

    def fill(tree: PyTree, spec: PartitionSpec) -> PyTree:
        return jax.tree.map(lambda _: spec, tree)

    whole = fill(state, WHOLE)
    buffer = whole.buffer
    if isinstance(state.buffer, CircularState):
        buffer = dataclasses.replace(buffer, batches=fill(state.buffer.batches, BATCHES))
    if isinstance(state.buffer, ReplayState):
        buffer = replay_specs(state.buffer)
    return dataclasses.replace(
        whole,
        buffer=buffer,
        env=fill(state.env, ALONG),
        carry=fill(state.carry, ALONG),
        ring=fill(state.ring, ALONG),
        faults=fill(state.faults, ALONG),
        connectors=dataclasses.replace(
            whole.connectors, per_env=fill(state.connectors.per_env, ALONG)
        ),
    )


def replay_specs(state: ReplayState) -> ReplayState:
    """Rows are divided by environment, priorities by shard."""

    def fill(tree: PyTree, spec: PartitionSpec) -> PyTree:
        return jax.tree.map(lambda _: spec, tree)

    whole, priorities = fill(state, WHOLE), state.priorities
    if priorities is not None:
        priorities = dataclasses.replace(whole.priorities, tree=fill(priorities.tree, ALONG))
    rows = dataclasses.replace(whole.rows, experience=fill(state.rows.experience, ALONG))
    return ReplayState(rows=rows, priorities=priorities, streams=fill(state.streams, ALONG))


def summary_specs(summary: Summary) -> Summary:
    """Episode sums are per shard; the rest is reduced."""
    whole = jax.tree.map(lambda _: WHOLE, summary)
    return dataclasses.replace(whole, episodes=jax.tree.map(lambda _: ALONG, summary.episodes))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compiled:
    """The runner's programs: `init(key, env_params)` and `run(state, num_batches)`."""

    init: Program
    run: Program
    shardings: Any
    devices: tuple[Device, ...]


def compile_runner(
    runner: InGraph,
    state_shapes: TrainState,
    devices: list[Device],
    *,
    max_retraces: int | None,
    jit: bool,
) -> Compiled:
    """Programs for the devices; with several, a `shard_map` of the same functions over a mesh.

    Args:
        runner: The pure functions, without a mesh axis.
        state_shapes: `jax.eval_shape` of the first state.
        devices: The devices that share the work.
        max_retraces: See `Program`.
        jit: False runs everything op by op, on one device.
    """
    if len(devices) == 1:
        shardings = jax.tree.map(lambda _: SingleDeviceSharding(devices[0]), state_shapes)
        run = runner.run
    else:
        mesh = Mesh(np.asarray(devices), (AXIS,))
        specs = state_specs(state_shapes)
        shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
        summary = jax.eval_shape(runner.run, state_shapes, np.int32(1))[1]
        run = jax.shard_map(
            per_device(runner).run,
            mesh=mesh,
            in_specs=(specs, WHOLE),
            out_specs=(specs, summary_specs(summary)),
            check_vma=False,
        )
    return Compiled(
        init=Program("init", runner.init, out_shardings=shardings, enabled=jit),
        run=Program("train", run, donate=(0,), max_retraces=max_retraces, enabled=jit),
        shardings=shardings,
        devices=tuple(devices),
    )


def learn_program(
    runner: Learning, devices: list[Device], *, max_retraces: int | None, jit: bool
) -> Program:
    """`learn(state, data) -> (state, summary)` for data that runners on the host recorded.

    Columns are divided over the devices as environments are in-graph; what connectors keep of each
    environment is brought into the order of the columns and back.
    """

    def learn(state: TrainState, data: Sampled) -> tuple[TrainState, Summary]:
        if len(devices) == 1:
            return runner.learn_and_sum(state, data)
        specs = state_specs(state)
        state_and_summary = jax.eval_shape(runner.learn_and_sum, state, data)
        sharded = jax.shard_map(
            per_device(runner).learn_and_sum,
            mesh=Mesh(np.asarray(devices), (AXIS,)),
            in_specs=(specs, data_specs(data)),
            out_specs=(specs, summary_specs(state_and_summary[1])),
            check_vma=False,
        )
        return sharded(state, data)

    def in_columns(state: TrainState, data: Sampled) -> tuple[TrainState, Summary]:
        kept = state.connectors.per_env
        columns = jax.tree.map(lambda x: x[data.env_index], kept)
        state, summary = learn(_with_per_env(state, columns), data)
        back = jax.tree.map(
            lambda x, new: x.at[data.env_index].set(new), kept, state.connectors.per_env
        )
        return _with_per_env(state, back), summary

    return Program("learn", in_columns, donate=(0,), max_retraces=max_retraces, enabled=jit)


def _with_per_env(state: TrainState, per_env: PyTree) -> TrainState:
    connectors = dataclasses.replace(state.connectors, per_env=per_env)
    return dataclasses.replace(state, connectors=connectors)


def data_specs(data: Sampled) -> Sampled:
    """Columns are divided."""
    columns = jax.tree.map(lambda _: COLUMNS, data)
    carry_in = jax.tree.map(lambda _: ALONG, data.rollout.carry_in)
    return dataclasses.replace(
        columns,
        rollout=dataclasses.replace(columns.rollout, carry_in=carry_in),
        env_index=ALONG,
        num_env_steps=WHOLE,
    )


def state_shardings(state: TrainState, devices: list[Device]) -> Any:
    """Where a state without environments lies: what is kept of each environment is everywhere."""
    if len(devices) == 1:
        return jax.tree.map(lambda _: SingleDeviceSharding(devices[0]), state)
    mesh = Mesh(np.asarray(devices), (AXIS,))
    specs = state_specs(state)
    whole = jax.tree.map(lambda _: WHOLE, specs.connectors.per_env)
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), _with_per_env(specs, whole))


def per_device(runner: RunnerT) -> RunnerT:
    """The runner as one device's part of the mesh: it reduces over the axis."""
    return dataclasses.replace(
        runner,
        axis_name=AXIS,
        learner=dataclasses.replace(runner.learner, axis_name=AXIS),
    )
