"""Several runs as one compiled program: a leading axis of lanes on the whole TrainState.

A lane is one run, a member of the population. Counters that are equal in all lanes have no such
axis, so that operations that depend on them (target network updates, the write position of a
buffer) remain a branch and an address instead of a selection between both outcomes.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxtyping import Array, Float, Int, UInt32

from jaxrl.buffers.circular import CircularBufferState
from jaxrl.buffers.dataset import Dataset
from jaxrl.buffers.replay import ReplayState
from jaxrl.core.hparams import Hyperparameter, S, mark_per_lane, replace_with_traced
from jaxrl.core.keys import split_run_key
from jaxrl.core.struct import replace
from jaxrl.core.types import Device, Key, Keys, PyTree
from jaxrl.errors import ConfigError
from jaxrl.runtime.program import Program
from jaxrl.training.in_graph import CompiledRun
from jaxrl.training.offline import OfflineTrainStep
from jaxrl.training.train_state import Summary, TrainState
from jaxrl.training.train_step import TrainStep

if TYPE_CHECKING:
    from jaxrl.learners.learner import BaseLearner, Learner

LANES_AXIS = "lanes"
SHARDED, REPLICATED = PartitionSpec(LANES_AXIS), PartitionSpec()


def change_settings(run: CompiledRun, change: Callable[[str, Any], Any]) -> CompiledRun:
    """Return a run whose learners have other settings.

    Args:
        run: Functions of a run.
        change: Function of a module's id, '' for a single one, and its learner's settings.
    """

    def change_step(module: str, step: TrainStep) -> TrainStep:
        own = cast("BaseLearner[Any]", step.learner)
        learner = dataclasses.replace(own, settings=change(module, own.settings))
        return dataclasses.replace(step, learner=cast("Learner[Any, Any]", learner))

    return dataclasses.replace(run, learning=run.learning.map_steps(change_step))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Lanes:
    """Pure functions of runs that differ only in numbers.

    Args:
        run: Functions of a single run, shared by all lanes.
    """

    run: CompiledRun

    @staticmethod
    def from_run(run: CompiledRun, varying_settings: Collection[str]) -> "Lanes":
        """Return the functions of lanes, built from those of one run.

        Args:
            run: Functions of one run, whose learner has the settings of that run.
            varying_settings: Names of the settings that differ between lanes; reading the value of
                one from the settings raises an error.
        """

        def mark(_: str, settings: S) -> S:
            return mark_per_lane(settings, varying_settings)

        return Lanes(run=change_settings(run, mark))

    def init(
        self,
        keys: Keys,
        env_params: PyTree,
        hparams: Mapping[str, PyTree],
        data: Dataset | None = None,
    ) -> TrainState:
        """Initialize the states `[lanes, ...]`, each equal to that of a single run.

        Args:
            keys: Keys `[lanes]`; consumed.
            env_params: Parameters of each lane's environment, `[lanes, ...]`.
            hparams: Sweepable training settings of each module by name, `[lanes, ...]`, those of a
                single one under ''; see `replace_with_traced`.
            data: Recorded data that all lanes learn from; None if they step environments.
        """
        statistics = None if data is None else self._offline_step.compute_statistics(data)

        def init_one(key: Key, params: PyTree, values: Mapping[str, PyTree]) -> TrainState:
            def replace_numbers(module: str, settings: S) -> S:
                return replace_with_traced(settings, values[module])

            run = change_settings(self.run, replace_numbers)
            if isinstance(run.learning, OfflineTrainStep):
                return run.learning.init_with(split_run_key(key), statistics)
            return run.init(key, params)

        # Sequential: on the CPU, XLA's threads deadlock in batched QR decompositions, which
        # orthogonal initialization uses.
        states = jax.lax.map(lambda args: init_one(*args), (keys, env_params, hparams))
        return jax.tree.map(
            lambda x, per_lane: x if per_lane else x[0], states, is_per_lane(states)
        )

    def run_batches(
        self, states: TrainState, num_batches: Int[Array, ""], data: Dataset | None = None
    ) -> tuple[TrainState, Summary]:
        """Run `num_batches` train batches in every lane; return the states and lanes' summaries.

        A single lane runs as it would by itself: with an axis of one lane, programs for a CPU write
        the gradients of wide layers transposed, and take up to twice as long.

        Args:
            states: States `[lanes, ...]`.
            num_batches: Number of train batches.
            data: Recorded data, without an axis of lanes, that all lanes learn from; None if they
                step environments.
        """
        axes, returns = get_vmap_axes(states), self._compute_returns(states, data)
        begin, step = partial(self._begin, data), partial(self._train_batch, data)
        begin_all = jax.vmap(begin, in_axes=(axes, 0))
        step_all = jax.vmap(step, in_axes=(axes, 0, 0), out_axes=(axes, 0))
        if self.run.own_step is not None:
            _check_counters(begin_all, step_all, states, returns)
        if _count_lanes(states) > 1:
            return _repeat(begin_all, step_all, states, returns, num_batches)
        own_returns = None if returns is None else returns[0]
        state, summary = _repeat(begin, step, _squeeze(states), own_returns, num_batches)
        return _unsqueeze(state), jax.tree.map(lambda x: x[None], summary)

    def _compute_returns(
        self, states: TrainState, data: Dataset | None
    ) -> Float[Array, "lanes N"] | None:
        """Compute the returns of all rows for each lane's discount factor, if they are needed."""
        if data is None or not self._offline_step.experience.needs_returns:
            return None

        def compute(state: TrainState) -> Float[Array, " N"] | None:
            return self._offline_step.bind(state, data).returns

        return jax.vmap(compute, in_axes=(get_vmap_axes(states),))(states)

    def _begin(
        self, data: Dataset | None, state: TrainState, returns: Float[Array, " N"] | None
    ) -> Summary:
        return self._bind(data, returns).init_summary(state)

    def _train_batch(
        self,
        data: Dataset | None,
        state: TrainState,
        summary: Summary,
        returns: Float[Array, " N"] | None,
    ) -> tuple[TrainState, Summary]:
        return self._bind(data, returns).add_step(state, summary)

    def _bind(self, data: Dataset | None, returns: Float[Array, " N"] | None) -> CompiledRun:
        """Return the functions of one lane, with the recorded data."""
        if data is None:
            return self.run
        bound = dataclasses.replace(self._offline_step, data=data, returns=returns)
        return dataclasses.replace(self.run, learning=bound)

    @property
    def _offline_step(self) -> OfflineTrainStep:
        assert isinstance(self.run.learning, OfflineTrainStep)
        return self.run.learning


def is_per_lane(state: TrainState) -> PyTree:
    """Return whether each leaf has an axis of lanes: False for counters that all lanes share."""

    def fill(tree: PyTree, value: bool) -> PyTree:
        return jax.tree.map(lambda _: value, tree)

    per_lane = fill(state, True)
    if state.modules:
        # Whether a module is updated depends on its rows, so all counters but one may differ.
        shared = fill(state.progress.train_batches, False)
        return replace(per_lane, progress=replace(per_lane.progress, train_batches=shared))
    buffer = per_lane.buffer
    # Faulty rows are not transitions, so lanes may differ in their number of environment steps.
    progress = replace(fill(state.progress, False), env_steps=fill(state.progress.env_steps, True))
    if isinstance(state.buffer, ReplayState):
        rows = dataclasses.replace(buffer.rows, current_index=False, is_full=False)
        buffer = dataclasses.replace(buffer, rows=rows)
    if isinstance(state.buffer, CircularBufferState):
        buffer = dataclasses.replace(buffer, next_slot=False, filled=False, draws_left=False)
        # Earlier draws determine whether there is a batch to draw from, and thus an update.
        progress = dataclasses.replace(progress, updates=fill(state.progress.updates, True))
    return replace(per_lane, progress=progress, buffer=buffer)


def get_vmap_axes(state: TrainState) -> PyTree:
    """Return the `in_axes` of `jax.vmap`: 0 for leaves with an axis of lanes, None for others."""
    return jax.tree.map(lambda per_lane: 0 if per_lane else None, is_per_lane(state))


def _repeat(
    begin: Callable[..., Summary],
    step: Callable[..., tuple[TrainState, Summary]],
    states: TrainState,
    returns: Float[Array, "*lanes N"] | None,
    num_batches: Int[Array, ""],
) -> tuple[TrainState, Summary]:
    """Run `num_batches` train batches of `step(states, summary, returns)`."""

    def body(_: Int[Array, ""], carry: tuple[TrainState, Summary]) -> tuple[TrainState, Summary]:
        return step(*carry, returns)

    return jax.lax.fori_loop(0, num_batches, body, (states, begin(states, returns)))


def _check_counters(
    begin: Callable[..., Summary],
    step: Callable[..., tuple[TrainState, Summary]],
    states: TrainState,
    returns: Float[Array, "lanes N"] | None,
) -> None:
    """Raise an error if a custom training step makes shared counters differ between lanes."""
    try:
        jax.eval_shape(lambda: step(states, begin(states, returns), returns))
    except ValueError as error:
        if "out_axes" not in str(error):
            raise
        raise ConfigError(
            "compiled_training_step() repeats a step a number of times that may differ between "
            "lanes, which share one count of updates: let it depend on the flow's "
            "progress.train_batches or progress.updates, or train each lane by itself."
        ) from None


def _count_lanes(states: TrainState) -> int:
    leaves = zip(jax.tree.leaves(states), jax.tree.leaves(is_per_lane(states)), strict=True)
    return next(x.shape[0] for x, per_lane in leaves if per_lane)


def _squeeze(states: TrainState) -> TrainState:
    """Remove the axis of lanes, of which there is one."""
    return jax.tree.map(lambda x, per_lane: x[0] if per_lane else x, states, is_per_lane(states))


def _unsqueeze(state: TrainState) -> TrainState:
    """Add an axis of one lane."""
    return jax.tree.map(lambda x, per_lane: x[None] if per_lane else x, state, is_per_lane(state))


def stack_trees(trees: Sequence[PyTree]) -> PyTree:
    """Stack trees of numbers along a new leading axis, `[len(trees), ...]`."""
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(x) for x in leaves]), *trees)


def take_lane(states: TrainState, index: Int[Array, ""], *, buffer: bool = True) -> TrainState:
    """Copy the state of one lane, which is a valid state of a single run.

    Args:
        states: States of all lanes.
        index: Index of the lane.
        buffer: Whether to include the buffer; False leaves it empty.
    """
    if not buffer:
        states = _drop_buffers(states)
    per_lane = is_per_lane(states)
    return jax.tree.map(
        lambda x, has_axis: jnp.array(x[index] if has_axis else x, copy=True), states, per_lane
    )


def _drop_buffers(states: TrainState) -> TrainState:
    """Return states without a buffer, also of each of several modules."""
    modules = {name: _drop_buffers(own) for name, own in states.modules.items()}
    return replace(states, buffer=(), modules=modules)


def put_lane(
    states: TrainState, index: Int[Array, ""], state: TrainState, *, counters: bool = False
) -> TrainState:
    """Replace the state of one lane.

    Args:
        states: States of all lanes.
        index: Index of the lane to replace.
        state: New state of the lane.
        counters: Whether the counters that all lanes share are replaced, too.
    """
    return jax.tree.map(
        lambda x, new, per_lane: x.at[index].set(new) if per_lane else (new if counters else x),
        states,
        state,
        is_per_lane(states),
    )


def copy_member(
    states: TrainState,
    index: Int[Array, ""],
    source: TrainState,
    hparams: Mapping[str, Mapping[str, Hyperparameter]],
    salt: UInt32[Array, ""],
) -> TrainState:
    """Replace a lane by a copy of another one's state, except for its keys (PBT's exploit step).

    The lane's keys are folded from its previous ones, so that its draws differ from those of the
    source and from those of another lane with the same seed.

    Args:
        states: States of all lanes.
        index: Index of the lane to replace.
        source: State of the lane to copy.
        hparams: Hyperparameters of each module that replace those of the source, by name; those of
            a single one under ''.
        salt: Data to fold into the keys.
    """
    if source.modules:
        modules = {m: _replace_hparams(own, hparams[m]) for m, own in source.modules.items()}
        source = replace(source, modules=modules)
    else:
        source = _replace_hparams(source, hparams[""])

    def write(x: Array, new: Array, per_lane: bool) -> Array:
        if not per_lane:
            return x
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            new = _fold_in_each(x[index], salt)
        return x.at[index].set(new)

    return jax.tree.map(write, states, source, is_per_lane(states))


def _replace_hparams(state: TrainState, numbers: Mapping[str, Hyperparameter]) -> TrainState:
    """Return a state with other hyperparameters, also in the snapshot to roll back to."""

    def change(learner: PyTree) -> PyTree:
        return replace(learner, hparams={**learner.hparams, **numbers})

    snapshot = state.guard.snapshot
    guard = replace(state.guard, snapshot=None if snapshot is None else change(snapshot))
    return replace(state, learner=change(state.learner), guard=guard)


def _fold_in_each(keys: Keys, salt: UInt32[Array, ""]) -> Keys:
    """Fold data into each of an array of keys of any shape."""
    fold = jax.random.fold_in
    for _ in range(keys.ndim):
        fold = jax.vmap(fold, (0, None))
    return fold(keys, salt)


def shard_lanes(
    function: Callable[..., PyTree], states: TrainState, devices: Sequence[Device]
) -> Callable[..., PyTree]:
    """Divide a function of `(states, other, keys)` among the devices that share the lanes.

    Args:
        function: Function that treats lanes independently; its other arguments and its result are
            `[lanes, ...]`.
        states: States of the lanes, or their shapes.
        devices: Devices, whose number must divide the number of lanes.
    """
    if len(devices) == 1:
        return function
    specs = (_make_specs(states), SHARDED, SHARDED)
    return jax.shard_map(
        function, mesh=_make_mesh(devices), in_specs=specs, out_specs=SHARDED, check_vma=False
    )


def choose_lane_devices(devices: Sequence[Device], num_lanes: int) -> list[Device]:
    """Return the fewest devices with which the largest share of lanes is as small as with all."""
    largest_share = -(-num_lanes // len(devices))
    return list(devices[: -(-num_lanes // largest_share)])


def count_slots(num_lanes: int, num_devices: int) -> int:
    """Return the number of lanes after padding, so that the devices that share them have as many.

    Args:
        num_lanes: Number of lanes.
        num_devices: Number of devices among which they may be divided; see `choose_lane_devices`.
    """
    largest_share = -(-num_lanes // num_devices)
    return largest_share * -(-num_lanes // largest_share)


def place_for_all(tree: PyTree, devices: Sequence[Device]) -> PyTree:
    """Return a tree that all lanes have, with one copy on each device."""
    if len(devices) == 1:
        return jax.device_put(tree, SingleDeviceSharding(devices[0]))
    return jax.device_put(tree, NamedSharding(_make_mesh(devices), REPLICATED))


def _make_mesh(devices: Sequence[Device]) -> Mesh:
    return Mesh(np.asarray(devices), (LANES_AXIS,))


def _make_specs(states: TrainState) -> PyTree:
    return jax.tree.map(lambda per_lane: SHARDED if per_lane else REPLICATED, is_per_lane(states))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanePrograms:
    """Compiled programs: `init(keys, env_params, numbers)` and `run(states, num_batches)`.

    Both have recorded data as their last argument if lanes learn from them. The others read and
    write single lanes: `take_lane`, `put_lane` and `copy_member`. The index of the lane is traced.
    """

    init: Program
    run: Program
    take: Program
    take_without_buffer: Program
    put: Program
    put_with_counters: Program
    copy_member: Program


def make_lane_programs(
    lanes: Lanes, shapes: TrainState, devices: Sequence[Device], *, jit: bool
) -> LanePrograms:
    """Build the programs for the devices, each of which has an equal share of the lanes.

    Args:
        lanes: Pure functions of the lanes.
        shapes: Result of `jax.eval_shape` of the initial states.
        devices: Devices, whose number must divide the number of lanes.
        jit: Whether to compile; False runs operation by operation.
    """
    if len(devices) == 1:
        shardings = jax.tree.map(lambda _: SingleDeviceSharding(devices[0]), shapes)
        run = lanes.run_batches
    else:
        mesh, specs = _make_mesh(devices), _make_specs(shapes)
        inputs = [REPLICATED] * lanes.run.num_inputs
        shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
        run = jax.shard_map(
            lanes.run_batches,
            mesh=mesh,
            in_specs=(specs, REPLICATED, *inputs),
            out_specs=(specs, SHARDED),
            check_vma=False,
        )

    def make_writer(name: str, function: Callable[..., TrainState]) -> Program:
        return Program(name, function, donate_argnums=(0,), out_shardings=shardings, enabled=jit)

    return LanePrograms(
        init=Program("init", lanes.init, out_shardings=shardings, enabled=jit),
        run=Program("train", run, donate_argnums=(0,), enabled=jit),
        take=Program("take", take_lane, enabled=jit),
        take_without_buffer=Program("take_to_act", partial(take_lane, buffer=False), enabled=jit),
        put=make_writer("put", put_lane),
        put_with_counters=make_writer("restore", partial(put_lane, counters=True)),
        copy_member=make_writer("exploit", copy_member),
    )
