"""Layout of a TrainState on devices, and the runner's programs over a device mesh."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxtyping import Array, Bool, Int

from jaxrl.buffers.circular import CircularBufferState
from jaxrl.buffers.dataset import Dataset
from jaxrl.buffers.replay import ReplayState
from jaxrl.core.struct import pytree, replace, where_rows
from jaxrl.core.types import Device, PyTree, Rollout
from jaxrl.runtime.kept_programs import ProgramCache
from jaxrl.runtime.program import Program
from jaxrl.training.data_flow import (
    Learning,
    finish_update,
    receive_batch,
    train_on_batch,
)
from jaxrl.training.episode_stats import AgentStats, AgentSums
from jaxrl.training.in_graph import CompiledEnvs, CompiledRun
from jaxrl.training.multi_rollout import MultiRollout
from jaxrl.training.offline import BatchRows, OfflineTrainStep
from jaxrl.training.replay_updates import PresampledBatches
from jaxrl.training.train_state import (
    RecordedRollouts,
    ReportRow,
    RolloutBatch,
    Summary,
    TrainState,
    make_report_row,
)
from jaxrl.training.train_step import TrainStep


def gather_columns(runner: TrainStep, data: RolloutBatch, state: TrainState) -> TrainState:
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
        ends = runner.update_per_env(replace_per_env(state, carry.per_env), data)
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
    return replace_per_env(state, jax.lax.while_loop(not_converged, propagate, first).per_env)


@pytree
class _ColumnStarts:
    """Current estimate of the connector state at the start of each column."""

    per_env: PyTree
    rounds: Int[Array, ""]
    changed: Bool[Array, ""]


def _any_differs(a: Array, b: Array) -> Bool[Array, ""]:
    return ((a != b) & ~((a != a) & (b != b))).any()  # NaN equals NaN


def scatter_columns(
    runner: TrainStep, data: RolloutBatch, state: TrainState, before: TrainState
) -> TrainState:
    """Return the state with the connectors' per-environment state scattered back into place.

    If several columns belong to one environment, the latest one wins.
    """
    del runner
    kept = before.connectors.per_env
    if not jax.tree.leaves(kept):
        return replace_per_env(state, kept)
    out_of_range = np.iinfo(np.int32).max
    index = jnp.where(_chain_columns(data).is_latest, data.env_index, out_of_range)
    back = jax.tree.map(
        lambda x, new: x.at[index].set(new, mode="drop"), kept, state.connectors.per_env
    )
    return replace_per_env(state, back)


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


def replace_per_env(state: TrainState, per_env: PyTree) -> TrainState:
    """Return a state with another state of the connectors for each environment."""
    connectors = dataclasses.replace(state.connectors, per_env=per_env)
    return dataclasses.replace(state, connectors=connectors)


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
    runner: CompiledRun,
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
    inputs = [REPLICATED] * runner.num_inputs
    recorded = [make_recorded_specs()] if runner.max_recorded_batches else []
    if len(devices) == 1:
        shardings = jax.tree.map(lambda _: SingleDeviceSharding(devices[0]), state_shapes)
        run = partial(runner.dispatch, return_previous=return_previous)
    else:
        mesh = Mesh(np.asarray(devices), (DEVICE_AXIS,))
        specs = state_specs(state_shapes)
        previous = [specs] if return_previous else []
        shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
        run = shard_over_devices(
            devices,
            partial(_to_per_device(runner).dispatch, return_previous=return_previous),
            (specs, *inputs, REPLICATED, REPLICATED),
            (specs, row_specs(state_shapes), *recorded, *previous),
        )
    return RunnerPrograms(
        init=Program(
            "init",
            runner.jitted_init,
            out_shardings=shardings,
            single_call=True,
            program_cache=program_cache,
            enabled=jit,
        ),
        run=Program(
            "train",
            run,
            donate_argnums=(0,),
            max_retraces=max_retraces,
            program_cache=program_cache,
            enabled=jit,
        ),
        shardings=shardings,
        devices=tuple(devices),
    )


def make_rows_program(
    learning: OfflineTrainStep,
    state_shapes: TrainState,
    devices: list[Device],
    *,
    max_retraces: int | None,
    jit: bool,
    program_cache: ProgramCache | None = None,
) -> Program:
    """Make `train(state, rows) -> (state, report)` for one train batch whose rows are an argument.

    Args:
        learning: Pure functions of training, without a mesh axis.
        state_shapes: Shapes of the state.
        devices: Devices that share the work.
        max_retraces: See `Program`.
        jit: Whether to compile.
        program_cache: Cache of programs compiled by earlier processes.
    """

    def train_on_rows(
        learning: OfflineTrainStep, state: TrainState, rows: BatchRows
    ) -> tuple[TrainState, ReportRow]:
        bound = dataclasses.replace(learning, rows=rows)
        return CompiledRun(learning=bound, source=None).run_batches(state, jnp.int32(1))

    def train(state: TrainState, rows: BatchRows) -> tuple[TrainState, ReportRow]:
        if len(devices) == 1:
            return train_on_rows(learning, state, rows)
        specs = state_specs(state_shapes)
        report = dataclasses.replace(
            row_specs(state_shapes), summary=summary_specs(), ring=SHARDED, faults=SHARDED
        )
        return shard_over_devices(
            devices,
            partial(train_on_rows, learning.with_axis(DEVICE_AXIS)),
            (specs, batch_rows_specs(rows)),
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


def batch_rows_specs(rows: BatchRows) -> BatchRows:
    """Return partition specs of the rows of a train batch; those of a shard are contiguous."""
    picked = jax.tree.map(lambda _: COLUMN_SHARDED, rows.picked)
    position = jax.tree.map(lambda _: REPLICATED, rows.position)
    return dataclasses.replace(rows, picked=picked, position=position)


def make_train_step_program(
    learning: Learning,
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
        learning: Learning, state: TrainState, data: RolloutBatch, *dataset: Dataset
    ) -> tuple[TrainState, Summary]:
        return train_on_batch(learning.bind(state, *dataset), state, data)

    def learn(
        state: TrainState, data: RolloutBatch, *dataset: Dataset
    ) -> tuple[TrainState, Summary]:
        if len(devices) == 1:
            return train(learning, state, data, *dataset)
        specs = state_specs(state)
        sharded = shard_over_devices(
            devices,
            partial(train, learning.with_axis(DEVICE_AXIS)),
            (specs, data_specs(data), *(REPLICATED for _ in dataset)),
            (specs, summary_specs(tuple(state.modules))),
        )
        return sharded(state, data, *dataset)

    def program(
        state: TrainState, data: RolloutBatch, *dataset: Dataset
    ) -> tuple[TrainState, Summary]:
        columns = learning.map_batches(gather_columns, data, state)
        after, summary = learn(columns, data, *dataset)
        return learning.map_batches(scatter_columns, data, after, state), summary

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


def data_specs(data: RolloutBatch) -> RolloutBatch:
    """Return partition specs of a recorded batch, sharded by column."""
    columns = jax.tree.map(lambda _: COLUMN_SHARDED, data)
    recorded: object = columns.rollout
    if isinstance(recorded, MultiRollout):
        rollouts = {m: _shard_carry(own) for m, own in recorded.rollouts.items()}
        rollout: PyTree = dataclasses.replace(recorded, rollouts=rollouts)
    else:
        rollout = _shard_carry(columns.rollout)
    return dataclasses.replace(
        columns, rollout=rollout, env_index=SHARDED, num_env_steps=REPLICATED
    )


def _shard_carry(columns: Rollout) -> Rollout:
    """Return the specs of a rollout whose carry, which has no axis of time, is sharded, too."""
    return dataclasses.replace(columns, carry_in=jax.tree.map(lambda _: SHARDED, columns.carry_in))


def state_shardings(state: TrainState, devices: list[Device]) -> PyTree:
    """Return the shardings of a state without environments.

    The connectors' per-environment state is replicated.
    """
    if len(devices) == 1:
        return jax.tree.map(lambda _: SingleDeviceSharding(devices[0]), state)
    mesh = Mesh(np.asarray(devices), (DEVICE_AXIS,))
    specs = _replicate_per_env(state_specs(state))
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)


def _replicate_per_env(specs: TrainState) -> TrainState:
    """Return specs of a state in which every device has the connectors' state of each environment."""
    whole = jax.tree.map(lambda _: REPLICATED, specs.connectors.per_env)
    modules = {name: _replicate_per_env(own) for name, own in specs.modules.items()}
    return dataclasses.replace(replace_per_env(specs, whole), modules=modules)


def _to_per_device(run: CompiledRun) -> CompiledRun:
    """Return the run as one device's part of the mesh, reducing over the mesh axis."""
    return dataclasses.replace(run, learning=run.learning.with_axis(DEVICE_AXIS))


ROW_SHARDED = PartitionSpec(None, DEVICE_AXIS)
"""Spec of drawn rows, `[U, N]`."""


class StepPrograms:
    """Programs of sampling, storing and updating, compiled on first use.

    They donate the state and keep the batches, which may be used again.

    Args:
        learning: Functions of training.
        source: Environments in the program; None if runners on the host step them.
        devices: Devices that share the work.
        max_retraces: See `Program`.
        jit: Whether to compile.
        program_cache: Cache of programs compiled by earlier processes.
    """

    def __init__(
        self,
        learning: Learning,
        source: CompiledEnvs | None,
        devices: list[Device],
        *,
        max_retraces: int | None,
        jit: bool,
        program_cache: ProgramCache | None = None,
    ) -> None:
        self._learning, self._source, self._devices = learning, source, devices
        self._options: dict[str, Any] = {
            "donate_argnums": (0,),
            "max_retraces": max_retraces,
            "program_cache": program_cache,
            "enabled": jit,
        }
        self._programs: dict[str, Program] = {}

    @property
    def programs(self) -> list[Program]:
        """Programs that were used so far."""
        return list(self._programs.values())

    def sample(self, state: TrainState) -> tuple[TrainState, RolloutBatch, ReportRow]:
        """Step the environments of the state for one train batch.

        Returns:
            The state that has received the batch, the batch, and the report on it.
        """
        return self._get("sample", self._sample)(state)

    def receive(
        self, state: TrainState, data: RolloutBatch
    ) -> tuple[TrainState, RolloutBatch, ReportRow]:
        """Receive a batch that host runners recorded; returns what `sample` does."""
        return self._get("receive", self._receive)(state, data)

    def add_to_buffer(self, state: TrainState, batch: RolloutBatch) -> TrainState:
        """Add a received batch to the buffer."""
        return self._get("add_to_buffer", self._add_to_buffer)(state, batch)

    def update(
        self, state: TrainState, batch: RolloutBatch | None, num_updates: int | None
    ) -> tuple[TrainState, ReportRow]:
        """Update the learner from a batch, or from its buffer."""
        if batch is None:
            name = "update" if num_updates is None else f"update_{num_updates}"

            def update(state: TrainState) -> tuple[TrainState, ReportRow]:
                return self._update(state, None, num_updates)

            return self._get(name, update)(state)
        return self._get("update", lambda state, batch: self._update(state, batch, None))(
            state, batch
        )

    def update_on_presampled(
        self, state: TrainState, presampled: PresampledBatches
    ) -> tuple[TrainState, ReportRow, PyTree]:
        """Update the learner from rows that were drawn elsewhere; also return their TD errors."""
        return self._get("update", self._update_on_presampled)(state, presampled)

    def _get(self, name: str, fn: Callable[..., Any]) -> Program:
        if name not in self._programs:
            self._programs[name] = Program(name, fn, **self._options)
        return self._programs[name]

    # --- traced ---

    def _map(
        self,
        call: Callable[..., Any],
        arguments: tuple[PyTree, ...],
        make_out_specs: Callable[..., PyTree],
    ) -> PyTree:
        """Call a function of the run's functions and arguments, over the mesh if there are several devices."""
        learning = self._learning
        if len(self._devices) == 1:
            return call(learning, *arguments)
        out_specs = make_out_specs(*jax.eval_shape(lambda *xs: call(learning, *xs), *arguments))
        state, *batches = arguments
        per_device = learning.with_axis(DEVICE_AXIS)
        in_specs = state_specs(state), *map(_get_argument_specs, batches)
        return shard_over_devices(
            self._devices, lambda *xs: call(per_device, *xs), in_specs, out_specs
        )(*arguments)

    def _sample(self, state: TrainState) -> tuple[TrainState, PyTree, ReportRow]:
        def sample(learning: Learning, state: TrainState) -> tuple[TrainState, PyTree, Summary]:
            assert self._source is not None
            return receive_batch(learning, *self._source.collect(learning, state))

        after, batch, summary = self._map(sample, (state,), _get_batch_specs)
        return after, batch, make_report_row(after, summary)

    def _receive(
        self, state: TrainState, data: RolloutBatch
    ) -> tuple[TrainState, PyTree, ReportRow]:
        columns = self._learning.map_batches(gather_columns, data, state)
        after, batch, summary = self._map(receive_batch, (columns, data), _get_batch_specs)
        after = self._learning.map_batches(scatter_columns, data, after, state)
        return after, batch, make_report_row(after, summary)

    def _add_to_buffer(self, state: TrainState, batch: PyTree) -> TrainState:
        def add(learning: Learning, *xs: PyTree) -> tuple[TrainState]:
            return (learning.add_to_buffer(*xs),)

        after = self._map(
            add, (_without_per_env(state), batch), lambda after: (state_specs(after),)
        )[0]
        return _with_per_env_of(after, state)

    def _update(
        self, state: TrainState, batch: PyTree, num_updates: int | None
    ) -> tuple[TrainState, ReportRow]:
        def update(
            learning: Learning, state: TrainState, *batches: PyTree
        ) -> tuple[TrainState, Summary]:
            batch = batches[0] if batches else None
            return finish_update(learning, state, *learning.update(state, batch, num_updates))

        batches = () if batch is None else (batch,)
        after, summary = self._map(
            update,
            (_without_per_env(state), *batches),
            lambda after, _: (state_specs(after), summary_specs(tuple(after.modules))),
        )
        after = _with_per_env_of(after, state)
        return after, make_report_row(after, summary)

    def _update_on_presampled(
        self, state: TrainState, presampled: PresampledBatches
    ) -> tuple[TrainState, ReportRow, PyTree]:
        def update(
            learning: TrainStep, state: TrainState, presampled: PresampledBatches
        ) -> tuple[TrainState, Summary, PyTree]:
            after, metrics, errors = learning.update_on_presampled(state, presampled)
            return *finish_update(learning, state, after, metrics), errors

        after, summary, errors = self._map(
            update,
            (_without_per_env(state), presampled),
            lambda after, _summary, _errors: (state_specs(after), summary_specs(), ROW_SHARDED),
        )
        after = _with_per_env_of(after, state)
        return after, make_report_row(after, summary), errors


def make_row_specs(presampled: PresampledBatches) -> PresampledBatches:
    """Return specs that divide drawn rows `[U, N]`; those of a device's shards are contiguous."""
    rows: PresampledBatches = jax.tree.map(lambda _: ROW_SHARDED, presampled)
    return replace(rows, is_ready=REPLICATED)


def _get_argument_specs(argument: PyTree) -> PyTree:
    if isinstance(argument, PresampledBatches):
        return make_row_specs(argument)
    if isinstance(argument, RolloutBatch):
        return data_specs(argument)
    return {m: data_specs(own) for m, own in argument.items()}


def _get_batch_specs(state: TrainState, batch: PyTree, _: Summary) -> tuple[Any, Any, Any]:
    specs = _get_argument_specs(batch), summary_specs(tuple(state.modules))
    return state_specs(state), *specs


def _without_per_env(state: TrainState) -> TrainState:
    """Return the state without the connectors' state of each environment, which no update reads.

    On the host it has a row per environment, whose number the devices need not divide.
    """
    modules = {m: _without_per_env(own) for m, own in state.modules.items()}
    return replace(replace_per_env(state, ()), modules=modules)


def _with_per_env_of(after: TrainState, before: TrainState) -> TrainState:
    modules = {m: _with_per_env_of(own, before.modules[m]) for m, own in after.modules.items()}
    return replace(replace_per_env(after, before.connectors.per_env), modules=modules)
