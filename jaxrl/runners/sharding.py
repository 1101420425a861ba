"""How a TrainState lies on the devices, and the runner's programs over a mesh of them."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from jaxrl.core.types import Device, PyTree
from jaxrl.runners.in_graph import InGraph
from jaxrl.runners.program import Program
from jaxrl.runners.train_state import Summary, TrainState

AXIS = "devices"
ALONG, WHOLE = PartitionSpec(AXIS), PartitionSpec()


def state_specs(state: TrainState) -> TrainState:
    """What has an axis of environments or shards is divided; everything else is on each device."""

    def fill(tree: PyTree, spec: PartitionSpec) -> PyTree:
        return jax.tree.map(lambda _: spec, tree)

    whole = fill(state, WHOLE)
    return dataclasses.replace(
        whole,
        env=fill(state.env, ALONG),
        carry=fill(state.carry, ALONG),
        ring=fill(state.ring, ALONG),
        faults=fill(state.faults, ALONG),
        connectors=dataclasses.replace(
            whole.connectors, per_env=fill(state.connectors.per_env, ALONG)
        ),
    )


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


def per_device(runner: InGraph) -> InGraph:
    """The runner as one device's part of the mesh: it reduces over the axis."""
    return dataclasses.replace(
        runner,
        axis_name=AXIS,
        learner=dataclasses.replace(runner.learner, axis_name=AXIS),
    )
