"""Ray actor of one of several learners, which holds its part of the state."""

import functools
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import ray
import ray.util
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
from ray import cloudpickle

from jaxrl.core.keys import make_key, split_run_key
from jaxrl.core.types import PyTree
from jaxrl.runners.fragment import Weights
from jaxrl.runners.ray.env_runner import to_exception_info, unpack_job
from jaxrl.runners.ray.start import ExceptionInfo
from jaxrl.training.data_flow import take_behaviour
from jaxrl.training.report import TrainReport, to_host
from jaxrl.training.sharding import (
    DEVICE_AXIS,
    StepPrograms,
    data_specs,
    make_runner_programs,
    make_train_step_program,
    state_shardings,
)
from jaxrl.training.train_state import ReportRow, RolloutBatch, TrainState

if TYPE_CHECKING:
    from jaxrl.assembly.assemble import Assembly


PROBE_GROUP = "probes"
"""Name of Ray's concurrency group for the thread that answers health probes."""


def find_free_address() -> str:
    """Return the address of this node with a free port, where the first learner coordinates."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return f"{ray.util.get_node_ip_address()}:{probe.getsockname()[1]}"


def unwrap_keys(tree: PyTree) -> PyTree:
    """Convert typed keys in a tree to their raw data, which NumPy can represent."""

    def unwrap(leaf: jax.Array | np.ndarray) -> jax.Array | np.ndarray:
        is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(leaf) if is_key else leaf

    return jax.tree.map(unwrap, tree)


def wrap_keys(tree: PyTree, like: PyTree) -> PyTree:
    """Convert raw key data back to typed keys where `like`, of the same structure, has them."""

    def wrap(leaf: Any, example: jax.Array | jax.ShapeDtypeStruct) -> jax.Array | np.ndarray:
        is_key = jnp.issubdtype(example.dtype, jax.dtypes.prng_key)
        return jax.random.wrap_key_data(leaf) if is_key else leaf

    return jax.tree.map(wrap, tree, like)


def init_state(assembly: "Assembly", seed: int) -> TrainState:
    """Create the initial state."""
    key = make_key(seed)
    if assembly.is_in_graph:
        return assembly.run.init(key, to_host(assembly.jax_env.params))
    if assembly.is_offline:  # the driver has the statistics of the data
        step = assembly.offline_step
        return step.init_with(split_run_key(key), step.policy_step.obs_pipeline.init())
    return assembly.train_step.init_without_envs(key, assembly.plan.total_envs)


class RayLearner:
    """Actor of one learner; every method is called in all learners at the same time."""

    @ray.method(concurrency_group=PROBE_GROUP)
    def is_there(self) -> bool:
        """Return True, from a separate thread, even while the learner computes."""
        return True

    def address(self) -> str:
        """Return the coordinator address, if this is the first learner."""
        return find_free_address()

    def join(self, address: str, rank: int, number: int, timeout_s: int) -> int:
        """Join the other learners; return the number of devices of this one."""
        if number > 1:
            jax.distributed.initialize(
                address,
                num_processes=number,
                process_id=rank,
                initialization_timeout=timeout_s,
            )
        return len(jax.local_devices())

    def build(self, packed: bytes) -> ExceptionInfo | None:
        """Create the run's functions and initial state; return None or the exception as data."""
        try:
            self._build(packed)
        except Exception as error:  # noqa: BLE001  (the driver handles it)
            return to_exception_info(error)
        return None

    def _build(self, packed: bytes) -> None:
        from jaxrl.assembly.assemble import assemble

        config = unpack_job(packed).config
        debugging = config.debugging_settings
        assembly = assemble(config)
        train_step, self._devices = assembly.train_step, jax.devices()
        self._mesh = Mesh(np.asarray(self._devices), (DEVICE_AXIS,))
        first = functools.partial(init_state, assembly, debugging.run_seed)
        shapes = jax.eval_shape(first)
        self._make_programs(assembly, shapes)
        self._steps = StepPrograms(
            train_step, assembly.source, self._devices, max_retraces=None, jit=True
        )
        self._batches: dict[int, RolloutBatch] = {}
        self._state = jax.jit(first, out_shardings=self._shardings)()
        self._actor = jax.jit(train_step.make_actor_state, out_shardings=self._replicated)
        self._replicate = jax.jit(unwrap_keys, out_shardings=self._replicated)

    def _make_programs(self, assembly: "Assembly", shapes: TrainState) -> None:
        """Make the program of training, and the shardings of the state."""
        if assembly.is_in_graph:
            compiled = make_runner_programs(
                assembly.run, shapes, self._devices, max_retraces=None, jit=True
            )
            self._main, self._shardings = compiled.run, compiled.shardings
        else:
            self._main = make_train_step_program(
                assembly.train_step, self._devices, max_retraces=None, jit=True
            )
            self._shardings = state_shardings(shapes, self._devices)

    @property
    def _replicated(self) -> NamedSharding:
        return NamedSharding(self._mesh, PartitionSpec())

    def run(self, batches: int) -> TrainReport:
        """Run train batches of a run whose environments are in the compiled program."""
        self._state, rows = self._main(self._state, np.int32(1), np.int32(batches))
        return TrainReport.from_row(self._gather(rows), 0)

    def learn(self, columns: RolloutBatch) -> TrainReport:
        """Train on one train batch, given the NumPy columns of this learner."""
        self._state, summary = self._main(self._state, self._place(columns))
        return TrainReport.fetch(self._state, [summary], self._gather)

    def _gather(self, tree: PyTree) -> PyTree:
        """Return NumPy copies of arrays that are sharded over the learners."""
        return to_host(self._replicate(tree))

    # --- steps of a training step of one's own; batches stay here under a number ---

    def step_sample(self, number: int) -> TrainReport:
        """Sample a train batch in the compiled program."""
        self._state, self._batches[number], row = self._steps.sample(self._state)
        return self._make_report(row)

    def step_receive(self, number: int, columns: RolloutBatch) -> TrainReport:
        """Receive a train batch, given the NumPy columns of this learner."""
        data = self._place(columns)
        self._state, self._batches[number], row = self._steps.receive(self._state, data)
        return self._make_report(row)

    def step_add_to_buffer(self, number: int) -> None:
        """Add a batch to the buffer."""
        self._state = self._steps.add_to_buffer(self._state, self._batches[number])

    def step_update(self, number: int | None, num_updates: int | None) -> TrainReport:
        """Update from a batch, or from the buffer."""
        batch = None if number is None else self._batches[number]
        self._state, row = self._steps.update(self._state, batch, num_updates)
        return self._make_report(row)

    def step_release(self, numbers: Sequence[int], behaviour: bool) -> None:
        """Forget batches, and the weights that act if they differ from the learner's."""
        for number in numbers:
            del self._batches[number]
        if behaviour:
            self._state = take_behaviour(self._state, None)

    def _make_report(self, row: ReportRow) -> TrainReport:
        fetched = self._gather(row)
        return TrainReport(summaries=[fetched.summary], latest=fetched)

    def _place(self, columns: RolloutBatch) -> RolloutBatch:
        """Return the global arrays of which the columns are this learner's part."""
        specs = data_specs(columns)

        def place(leaf: np.ndarray, spec: PartitionSpec) -> jax.Array:
            return jax.make_array_from_process_local_data(NamedSharding(self._mesh, spec), leaf)

        return jax.tree.map(place, columns, specs)

    def weights(self, version: int) -> Weights:
        """Return the current actor state, labeled with a version."""
        return Weights(version=version, actor=to_host(self._actor(self._state)))

    def get_state(self) -> PyTree:
        """Return the full state in NumPy, with keys as raw data."""
        return self._gather(self._state)

    def set_state(self, state: PyTree) -> None:
        """Replace the state by one returned by `get_state`."""
        typed = wrap_keys(state, self._state)

        def place(leaf: jax.Array | np.ndarray, sharding: Sharding) -> jax.Array:
            return jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf[index])

        self._state = jax.tree.map(place, typed, self._shardings)

    def apply(self, packed: bytes) -> object:
        """Call a pickled function with this learner and return its result."""
        fn: Callable[[RayLearner], object] = cloudpickle.loads(packed)
        return fn(self)

    def call(self, method: str, *args: object) -> object:
        """Call a method by name and return its result."""
        return getattr(self, method)(*args)
