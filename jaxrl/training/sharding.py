"""Layout of a TrainState on devices, and the runner's programs over a device mesh."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxtyping import Array, Bool, Int

from jaxrl.buffers.circular import CircularBufferState
from jaxrl.buffers.dataset import Dataset
from jaxrl.buffers.replay import ReplayState
from jaxrl.core.struct import pytree, where_rows
from jaxrl.core.types import Device, PyTree
from jaxrl.runtime.kept_programs import ProgramCache
from jaxrl.runtime.program import Program
from jaxrl.training.episode_stats import AgentStats, AgentSums
from jaxrl.training.in_graph import InGraphRunner
from jaxrl.training.mixed import MixedRunner, MixedTrainStep
from jaxrl.training.multi_agent import MultiAgentRunner
from jaxrl.training.offline import FedRows, OfflineRunner
from jaxrl.training.train_state import (
    RecordedRollouts,
    ReportRow,
    RolloutBatch,
    Summary,
    TrainState,
)
from jaxrl.training.train_step import TrainStep

RunnerT = TypeVar("RunnerT", bound=TrainStep | MultiAgentRunner)

DEVICE_AXIS = "devices"
SHARDED, REPLICATED, COLUMN_SHARDED = (
    PartitionSpec(DEVICE_AXIS),
    PartitionSpec(),
    PartitionSpec(None, DEVICE_AXIS),
)
BATCH_SHARDED = PartitionSpec(None, None, DEVICE_AXIS)


def state_specs(state: TrainState) -> TrainState:
    """Return the partition specs of a state.

    Axes of environments or shards are sharded, everything else is replicated.
    """

    def fill(tree: PyTree, spec: PartitionSpec) -> PyTree:
        return jax.tree.map(lambda _: spec, tree)

    whole = fill(state, REPLICATED)
    whole = dataclasses.replace(
        whole, modules={name: state_specs(module) for name, module in state.modules.items()}
    )
    buffer, agents = whole.buffer, whole.agents
    if state.modules:
        agents = dataclasses.replace(agents, ring=fill(state.agents.ring, COLUMN_SHARDED))
    if isinstance(state.buffer, CircularBufferState):
        buffer = dataclasses.replace(buffer, batches=fill(state.buffer.batches, BATCH_SHARDED))
    if isinstance(state.buffer, ReplayState):
        buffer = replay_specs(state.buffer)
    return dataclasses.replace(
        whole,
        buffer=buffer,
        env=fill(state.env, SHARDED),
        carry=fill(state.carry, SHARDED),
        ring=fill(state.ring, SHARDED),
        faults=fill(state.faults, SHARDED),
        agents=agents,
        connectors=dataclasses.replace(
            whole.connectors, per_env=fill(state.connectors.per_env, SHARDED)
        ),
    )


def replay_specs(state: ReplayState) -> ReplayState:
    """Return partition specs of a replay buffer: rows by environment, priorities by shard."""

    def fill(tree: PyTree, spec: PartitionSpec) -> PyTree:
        return jax.tree.map(lambda _: spec, tree)

    whole, priorities = fill(state, REPLICATED), state.priorities
    if priorities is not None:
        priorities = dataclasses.replace(whole.priorities, tree=fill(priorities.tree, SHARDED))
    rows = (
        fill(state.rows, SHARDED)
        if state.has_positions_by_column
        else dataclasses.replace(whole.rows, experience=fill(state.rows.experience, SHARDED))
    )
    return ReplayState(rows=rows, priorities=priorities, streams=fill(state.streams, SHARDED))


def summary_specs(modules: tuple[str, ...] = ()) -> Summary:
    """Return partition specs of a summary; episode sums are per shard, everything else is reduced.

    Each spec is a prefix that covers the subtree below it.

    Args:
        modules: Ids of the modules of a run of several agents.
    """
    make = cast("Callable[..., Summary]", Summary)  # its fields hold specs here
    return make(
        metrics=REPLICATED,
        learned_batches=REPLICATED,
        episodes=SHARDED,
        train_batches=REPLICATED,
        updates=REPLICATED,
        env_steps=REPLICATED,
        modules={name: summary_specs() for name in modules},
        agents=_agent_sum_specs(COLUMN_SHARDED) if modules else None,
    )


def row_specs(state: TrainState) -> ReportRow:
    """Return partition specs of report rows, whose shard axis follows the axis of rows.

    Each spec is a prefix, as in `summary_specs`.
    """
    modules, buffer = tuple(state.modules), state.buffer
    is_packed = isinstance(buffer, ReplayState) and buffer.has_positions_by_column
    make = cast("Callable[..., ReportRow]", ReportRow)  # its fields hold specs here
    return make(
        summary=_add_row_axis(summary_specs(modules)),
        ring=COLUMN_SHARDED,
        faults=COLUMN_SHARDED,
        in_a_row=REPLICATED,
        num_rollbacks=REPLICATED,
        num_nonfinite=REPLICATED,
        env_steps=REPLICATED,
        updates=REPLICATED,
        buffer_position=COLUMN_SHARDED if is_packed else REPLICATED,
        modules={name: row_specs(own) for name, own in state.modules.items()},
        agents=_agent_specs(BATCH_SHARDED) if modules else (),
    )


def _agent_specs(ring: PartitionSpec) -> AgentStats:
    """Return partition specs of the statistics of agents, prefixes as in `summary_specs`."""
    make = cast("Callable[..., AgentStats]", AgentStats)
    return make(ring=ring, steps=REPLICATED, module_steps=REPLICATED)


def _agent_sum_specs(episodes: PartitionSpec) -> AgentSums:
    make = cast("Callable[..., AgentSums]", AgentSums)
    return make(episodes=episodes, steps=REPLICATED)


def _add_row_axis(specs: Summary) -> Summary:
    """Return the specs of summaries that are stacked in rows."""
    return dataclasses.replace(
        specs,
        episodes=COLUMN_SHARDED,
        agents=None if specs.agents is None else _agent_sum_specs(BATCH_SHARDED),
        modules={name: _add_row_axis(own) for name, own in specs.modules.items()},
    )


def make_recorded_specs() -> RecordedRollouts:
    """Return partition specs of recorded rollouts, which are prefixes as in `summary_specs`."""
    make = cast("Callable[..., RecordedRollouts]", RecordedRollouts)  # its fields hold specs here
    return make(rollouts=BATCH_SHARDED, first_version=REPLICATED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunnerPrograms:
    """Programs of a runner: `init(key, inputs)` and `run(state, *inputs, num_rows, batches_each)`.

    A run from recorded data has the dataset as its input; one that steps environments has their
    parameters as the input of `init` alone.
    """

    init: Program
    run: Program
    shardings: PyTree
    devices: tuple[Device, ...]


def make_runner_programs(
    runner: InGraphRunner | OfflineRunner | MultiAgentRunner,
    state_shapes: TrainState,
    devices: list[Device],
    *,
    max_retraces: int | None,
    jit: bool,
    return_previous: bool = False,
    program_cache: ProgramCache | None = None,
) -> RunnerPrograms:
    """Make the runner's programs for the devices.

    With several devices, the same functions run under a `shard_map` over their mesh.

    Args:
        runner: Pure functions of the run, without a mesh axis.
        state_shapes: `jax.eval_shape` of the initial state.
        devices: Devices that share the work.
        max_retraces: See `Program`.
        jit: Whether to compile; False runs everything op by op, on one device.
        return_previous: Whether `run` also returns a copy of its input state.
        program_cache: Cache of programs compiled by earlier processes.
    """
    inputs = [REPLICATED] if isinstance(runner, OfflineRunner | MixedRunner) else []
    records = isinstance(runner, InGraphRunner) and runner.max_recorded_batches > 0
    recorded = [make_recorded_specs()] if records else []
    if len(devices) == 1:
        shardings = jax.tree.map(lambda _: SingleDeviceSharding(devices[0]), state_shapes)
        run = runner.program
    else:
        mesh = Mesh(np.asarray(devices), (DEVICE_AXIS,))
        specs = state_specs(state_shapes)
        shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
        run = shard_over_devices(
            devices,
            to_per_device(runner).program,
            (specs, *inputs, REPLICATED, REPLICATED),
            (specs, row_specs(state_shapes), *recorded),
        )

    def run_and_copy(state: TrainState, *others: PyTree) -> tuple[Any, ...]:
        before = jax.tree.map(lambda x: jnp.array(x, copy=True), state)
        return *run(state, *others), before

    main = run_and_copy if return_previous else run
    return RunnerPrograms(
        init=Program(
            "init",
            runner.jitted_init,
            out_shardings=shardings,
            program_cache=program_cache,
            enabled=jit,
        ),
        run=Program(
            "train",
            main,
            donate_argnums=(0,),
            max_retraces=max_retraces,
            program_cache=program_cache,
            enabled=jit,
        ),
        shardings=shardings,
        devices=tuple(devices),
    )


def make_fed_program(
    runner: OfflineRunner,
    state_shapes: TrainState,
    devices: list[Device],
    *,
    max_retraces: int | None,
    jit: bool,
    program_cache: ProgramCache | None = None,
) -> Program:
    """Make `train(state, rows) -> (state, report)` for one train batch whose rows are an argument.

    Args:
        runner: Pure functions of the run, without a mesh axis.
        state_shapes: Shapes of the state.
        devices: Devices that share the work.
        max_retraces: See `Program`.
        jit: Whether to compile.
        program_cache: Cache of programs compiled by earlier processes.
    """

    def train(state: TrainState, rows: FedRows) -> tuple[TrainState, ReportRow]:
        if len(devices) == 1:
            return runner.fed_program(state, rows)
        specs = state_specs(state_shapes)
        report = dataclasses.replace(
            row_specs(state_shapes), summary=summary_specs(), ring=SHARDED, faults=SHARDED
        )
        return shard_over_devices(
            devices,
            to_per_device(runner).fed_program,
            (specs, fed_specs(rows)),
            (specs, report),
        )(state, rows)

    return Program(
        "train",
        train,
        donate_argnums=(0,),
        max_retraces=max_retraces,
        program_cache=program_cache,
        enabled=jit,
    )


def fed_specs(rows: FedRows) -> FedRows:
    """Return partition specs of the rows of a train batch; those of a shard are contiguous."""
    picked = jax.tree.map(lambda _: COLUMN_SHARDED, rows.picked)
    position = jax.tree.map(lambda _: REPLICATED, rows.position)
    return dataclasses.replace(rows, picked=picked, position=position)


def make_train_step_program(
    runner: TrainStep,
    devices: list[Device],
    *,
    max_retraces: int | None,
    jit: bool,
    program_cache: ProgramCache | None = None,
) -> Program:
    """Make `learn(state, data) -> (state, summary)` for data recorded by runners on the host.

    Columns are sharded over the devices as environments are in-graph. The connectors' state of each
    environment is gathered into column order before the update and scattered back after it. A run
    that learns from recorded data, too, has the dataset as a third argument.
    """

    def train(
        step: TrainStep, state: TrainState, data: RolloutBatch, *dataset: Dataset
    ) -> tuple[TrainState, Summary]:
        bound = step.bind(*dataset) if isinstance(step, MixedTrainStep) else step
        return bound.train_step_with_summary(state, data)

    def learn(
        state: TrainState, data: RolloutBatch, *dataset: Dataset
    ) -> tuple[TrainState, Summary]:
        if len(devices) == 1:
            return train(runner, state, data, *dataset)
        specs = state_specs(state)
        sharded = shard_over_devices(
            devices,
            partial(train, to_per_device(runner)),
            (specs, data_specs(data), *(REPLICATED for _ in dataset)),
            (specs, summary_specs()),
        )
        return sharded(state, data, *dataset)

    def program(
        state: TrainState, data: RolloutBatch, *dataset: Dataset
    ) -> tuple[TrainState, Summary]:
        new_state, summary = learn(gather_columns(runner, state, data), data, *dataset)
        return scatter_columns(state, new_state, data), summary

    return Program(
        "learn",
        program,
        donate_argnums=(0,),
        max_retraces=max_retraces,
        program_cache=program_cache,
        enabled=jit,
    )


def shard_over_devices(
    devices: list[Device], fn: Callable[..., Any], in_specs: PyTree, out_specs: PyTree
) -> Callable[..., Any]:
    """Map a function of one device's part over a mesh of the devices."""
    mesh = Mesh(np.asarray(devices), (DEVICE_AXIS,))
    return jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def gather_columns(runner: TrainStep, state: TrainState, data: RolloutBatch) -> TrainState:
    """Return the state with the connectors' per-environment state gathered into column order.

    Several columns may belong to one environment if its runner delivered several fragments of the
    batch. Each of them starts from the connector state at the end of the column that precedes it in
    time, so the connectors see the same as with one long fragment. These states are computed by
    fixed-point iteration.
    """
    kept = state.connectors.per_env
    if not jax.tree.leaves(kept):
        return state
    chain = _chain_columns(data)
    links = chain.place.max()
    max_rounds = 2 * len(runner.learner_pipeline.connectors) * links

    def not_converged(carry: _ColumnStarts) -> Bool[Array, ""]:
        return carry.changed & (carry.rounds < max_rounds)

    def propagate(carry: _ColumnStarts) -> _ColumnStarts:
        """Propagate the states by one column.

        Connectors that read other connectors' output may need several rounds per column.
        """
        ends = runner.update_per_env(_replace_per_env(state, carry.per_env), data)
        behind = jax.tree.map(lambda x: x[chain.previous], ends)
        starts = where_rows(chain.place > 0, behind, carry.per_env)
        changed = jnp.stack(
            jax.tree.leaves(jax.tree.map(_any_differs, starts, carry.per_env))
        ).any()
        return _ColumnStarts(per_env=starts, rounds=carry.rounds + 1, changed=changed)

    first = _ColumnStarts(
        per_env=jax.tree.map(lambda x: x[data.env_index], kept),
        rounds=jnp.zeros_like(links),
        changed=links > 0,
    )
    return _replace_per_env(state, jax.lax.while_loop(not_converged, propagate, first).per_env)


@pytree
class _ColumnStarts:
    """Current estimate of the connector state at the start of each column."""

    per_env: PyTree
    rounds: Int[Array, ""]
    changed: Bool[Array, ""]


def _any_differs(a: Array, b: Array) -> Bool[Array, ""]:
    return ((a != b) & ~((a != a) & (b != b))).any()  # NaN equals NaN


def scatter_columns(before: TrainState, state: TrainState, data: RolloutBatch) -> TrainState:
    """Return the state with the connectors' per-environment state scattered back into place.

    If several columns belong to one environment, the latest one wins.
    """
    kept = before.connectors.per_env
    if not jax.tree.leaves(kept):
        return _replace_per_env(state, kept)
    out_of_range = np.iinfo(np.int32).max
    index = jnp.where(_chain_columns(data).is_latest, data.env_index, out_of_range)
    back = jax.tree.map(
        lambda x, new: x.at[index].set(new, mode="drop"), kept, state.connectors.per_env
    )
    return _replace_per_env(state, back)


@pytree
class _ColumnChain:
    """Columns of each environment in order of time.

    `place` counts a column's predecessors; `previous` is the index of the latest predecessor, if
    there is one.
    """

    place: Int[Array, " B"]
    previous: Int[Array, " B"]
    is_latest: Bool[Array, " B"]


def _chain_columns(data: RolloutBatch) -> _ColumnChain:
    order = jnp.lexsort((data.record.env_step[0], data.env_index))
    env = data.env_index[order]
    numbers = jnp.arange(len(env), dtype=jnp.int32)
    place = numbers - jnp.searchsorted(env, env).astype(jnp.int32)
    is_latest = jnp.concatenate([env[1:] != env[:-1], jnp.ones((1,), bool)])
    back = jnp.argsort(order)
    return _ColumnChain(
        place=place[back], previous=jnp.roll(order, 1)[back], is_latest=is_latest[back]
    )


def _replace_per_env(state: TrainState, per_env: PyTree) -> TrainState:
    connectors = dataclasses.replace(state.connectors, per_env=per_env)
    return dataclasses.replace(state, connectors=connectors)


def data_specs(data: RolloutBatch) -> RolloutBatch:
    """Return partition specs of a recorded batch, sharded by column."""
    columns = jax.tree.map(lambda _: COLUMN_SHARDED, data)
    carry_in = jax.tree.map(lambda _: SHARDED, data.rollout.carry_in)
    return dataclasses.replace(
        columns,
        rollout=dataclasses.replace(columns.rollout, carry_in=carry_in),
        env_index=SHARDED,
        num_env_steps=REPLICATED,
    )


def state_shardings(state: TrainState, devices: list[Device]) -> PyTree:
    """Return the shardings of a state without environments.

    The connectors' per-environment state is replicated.
    """
    if len(devices) == 1:
        return jax.tree.map(lambda _: SingleDeviceSharding(devices[0]), state)
    mesh = Mesh(np.asarray(devices), (DEVICE_AXIS,))
    specs = state_specs(state)
    whole = jax.tree.map(lambda _: REPLICATED, specs.connectors.per_env)
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), _replace_per_env(specs, whole))


def to_per_device(runner: RunnerT) -> RunnerT:
    """Return the runner as one device's part of the mesh, reducing over the mesh axis."""
    if isinstance(runner, MultiAgentRunner):
        steps = {m: to_per_device(step) for m, step in runner.steps.items()}
        return dataclasses.replace(runner, axis_name=DEVICE_AXIS, steps=steps)
    return dataclasses.replace(
        runner,
        axis_name=DEVICE_AXIS,
        learner=dataclasses.replace(runner.learner, axis_name=DEVICE_AXIS),
    )
