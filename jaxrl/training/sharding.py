"""How a TrainState lies on the devices, and the runner's programs over a mesh of them."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxtyping import Array, Bool, Int

from jaxrl.buffers.circular import CircularState
from jaxrl.buffers.replay import ReplayState
from jaxrl.core.struct import pytree, where_rows
from jaxrl.core.types import Device, PyTree
from jaxrl.runtime.kept_programs import KeptPrograms
from jaxrl.runtime.program import Program
from jaxrl.training.in_graph import InGraph
from jaxrl.training.train_state import Row, Sampled, Summary, TrainState
from jaxrl.training.train_step import Learning

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


def summary_specs() -> Summary:
    """Episode sums are per shard; the rest is reduced. Each spec is for all that lies below it."""
    everywhere: Any = WHOLE
    divided: Any = ALONG
    return Summary(
        metrics=everywhere,
        learned_batches=everywhere,
        episodes=divided,
        train_batches=everywhere,
        updates=everywhere,
        env_steps=everywhere,
    )


def row_specs() -> Row:
    """What has an axis of shards is divided, behind the axis of rows; see `summary_specs`."""
    everywhere: Any = WHOLE
    divided: Any = COLUMNS
    return Row(
        summary=dataclasses.replace(summary_specs(), episodes=divided),
        ring=divided,
        faults=divided,
        in_a_row=everywhere,
        num_rollbacks=everywhere,
        num_nonfinite=everywhere,
        env_steps=everywhere,
        updates=everywhere,
        replayed=everywhere,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compiled:
    """The runner's programs: `init(key, env_params)` and `run(state, num_rows, batches_each)`."""

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
    keeps_before: bool = False,
    kept: KeptPrograms | None = None,
) -> Compiled:
    """Programs for the devices; with several, a `shard_map` of the same functions over a mesh.

    Args:
        runner: The pure functions, without a mesh axis.
        state_shapes: `jax.eval_shape` of the first state.
        devices: The devices that share the work.
        max_retraces: See `Program`.
        jit: False runs everything op by op, on one device.
        keeps_before: `run` returns a copy of the state that it was given as well.
        kept: The programs of earlier processes.
    """
    if len(devices) == 1:
        shardings = jax.tree.map(lambda _: SingleDeviceSharding(devices[0]), state_shapes)
        run = runner.run_rows
    else:
        mesh = Mesh(np.asarray(devices), (AXIS,))
        specs = state_specs(state_shapes)
        shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
        run = over(
            devices, per_device(runner).run_rows, (specs, WHOLE, WHOLE), (specs, row_specs())
        )

    def run_and_keep(state: TrainState, *numbers: Any) -> tuple[Any, ...]:
        before = jax.tree.map(lambda x: jnp.array(x, copy=True), state)
        return *run(state, *numbers), before

    main = run_and_keep if keeps_before else run
    return Compiled(
        init=Program("init", runner.first_state, out_shardings=shardings, kept=kept, enabled=jit),
        run=Program("train", main, donate=(0,), max_retraces=max_retraces, kept=kept, enabled=jit),
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
        sharded = over(
            devices,
            per_device(runner).learn_and_sum,
            (specs, data_specs(data)),
            (specs, summary_specs()),
        )
        return sharded(state, data)

    def program(state: TrainState, data: Sampled) -> tuple[TrainState, Summary]:
        new_state, summary = learn(in_columns(runner, state, data), data)
        return out_of_columns(state, new_state, data), summary

    return Program("learn", program, donate=(0,), max_retraces=max_retraces, enabled=jit)


def over(
    devices: list[Device], fn: Callable[..., Any], in_specs: Any, out_specs: Any
) -> Callable[..., Any]:
    """A function of one device's part, over a mesh of all."""
    mesh = Mesh(np.asarray(devices), (AXIS,))
    return jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def in_columns(runner: Learning, state: TrainState, data: Sampled) -> TrainState:
    """The state with what connectors keep of each environment at the start of the columns.

    Several columns may be of one environment, where its runner delivered several fragments of the
    batch. Each of them starts from where the connectors leave the one before it in time, so that
    they see what one long fragment would show them.
    """
    kept = state.connectors.per_env
    if not jax.tree.leaves(kept):
        return state
    chain = _chain(data)
    links = chain.place.max()
    most = 2 * len(runner.learner_pipeline.connectors) * links

    def is_wrong(carry: _Starts) -> Bool[Array, ""]:
        return carry.changed & (carry.rounds < most)

    def follow(carry: _Starts) -> _Starts:
        """Each round a link further; connectors that read what others computed need some more."""
        ends = runner.per_env_after(_with_per_env(state, carry.per_env), data)
        behind = jax.tree.map(lambda x: x[chain.previous], ends)
        starts = where_rows(chain.place > 0, behind, carry.per_env)
        changed = jnp.stack(jax.tree.leaves(jax.tree.map(_differ, starts, carry.per_env))).any()
        return _Starts(per_env=starts, rounds=carry.rounds + 1, changed=changed)

    first = _Starts(
        per_env=jax.tree.map(lambda x: x[data.env_index], kept),
        rounds=jnp.zeros_like(links),
        changed=links > 0,
    )
    return _with_per_env(state, jax.lax.while_loop(is_wrong, follow, first).per_env)


@pytree
class _Starts:
    """What connectors keep at the start of the columns, as far as it is known."""

    per_env: PyTree
    rounds: Int[Array, ""]
    changed: Bool[Array, ""]


def _differ(a: Array, b: Array) -> Bool[Array, ""]:
    return ((a != b) & ~((a != a) & (b != b))).any()  # NaN is NaN


def out_of_columns(before: TrainState, state: TrainState, data: Sampled) -> TrainState:
    """The state with what connectors keep of each environment back in its place.

    Of several columns of one environment the latest counts.
    """
    kept = before.connectors.per_env
    if not jax.tree.leaves(kept):
        return _with_per_env(state, kept)
    nowhere = np.iinfo(np.int32).max
    index = jnp.where(_chain(data).is_latest, data.env_index, nowhere)
    back = jax.tree.map(
        lambda x, new: x.at[index].set(new, mode="drop"), kept, state.connectors.per_env
    )
    return _with_per_env(state, back)


@pytree
class _Chain:
    """The columns of each environment in order of time.

    `place` counts a column's predecessors, `previous` is the last of them where there is one.
    """

    place: Int[Array, " B"]
    previous: Int[Array, " B"]
    is_latest: Bool[Array, " B"]


def _chain(data: Sampled) -> _Chain:
    order = jnp.lexsort((data.record.env_step[0], data.env_index))
    env = data.env_index[order]
    numbers = jnp.arange(len(env), dtype=jnp.int32)
    place = numbers - jnp.searchsorted(env, env).astype(jnp.int32)
    is_latest = jnp.concatenate([env[1:] != env[:-1], jnp.ones((1,), bool)])
    back = jnp.argsort(order)
    return _Chain(place=place[back], previous=jnp.roll(order, 1)[back], is_latest=is_latest[back])


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
