"""One learner of several: a process that holds its part of the state and does as the others do."""

import functools
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import ray
import ray.util
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ray import cloudpickle

from jaxrl.core.seeds import seed_key
from jaxrl.core.types import PyTree
from jaxrl.envs.registry import MadeEnv
from jaxrl.runners.fragment import Weights
from jaxrl.runners.ray.env_runner import as_raised, open_job
from jaxrl.training.report import Report, to_host
from jaxrl.training.sharding import (
    AXIS,
    compile_runner,
    data_specs,
    learn_program,
    state_shardings,
)
from jaxrl.training.train_state import Sampled, TrainState

if TYPE_CHECKING:
    from jaxrl.assembly.assemble import Assembly


PROBES = "probes"
"""Ray's name for the thread that answers whether the process is there."""


def free_address() -> str:
    """Where the first learner waits for the others: this node, a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return f"{ray.util.get_node_ip_address()}:{probe.getsockname()[1]}"


def keys_as_data(tree: PyTree) -> PyTree:
    """The tree with typed keys as their numbers, which NumPy can hold."""

    def plain(leaf: Any) -> Any:
        is_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(leaf) if is_key else leaf

    return jax.tree.map(plain, tree)


def data_as_keys(tree: PyTree, like: PyTree) -> PyTree:
    """The tree with typed keys again where `like`, of the same structure, has them."""

    def typed(leaf: Any, example: Any) -> Any:
        is_key = jnp.issubdtype(example.dtype, jax.dtypes.prng_key)
        return jax.random.wrap_key_data(leaf) if is_key else leaf

    return jax.tree.map(typed, tree, like)


def first_state(assembly: "Assembly", seed: int) -> TrainState:
    """The state that learning begins with."""
    key, made = seed_key(seed), assembly.made
    if assembly.in_graph:
        assert isinstance(made, MadeEnv)
        return assembly.in_graph_runner.init(key, to_host(made.params))
    return assembly.runner.init_learning(key, assembly.plan.total_envs)


class RayLearner:
    """Lives in a process of its own; every method is called in all learners at once."""

    @ray.method(concurrency_group=PROBES)
    def is_there(self) -> bool:
        """Answer, in a thread of its own, also while the learner computes."""
        return True

    def address(self) -> str:
        """Where the others find this learner, if it is the first."""
        return free_address()

    def join(self, address: str, rank: int, number: int, timeout_s: int) -> int:
        """Meet the other learners; how many devices this one brings."""
        if number > 1:
            jax.distributed.initialize(
                address,
                num_processes=number,
                process_id=rank,
                initialization_timeout=timeout_s,
            )
        return len(jax.local_devices())

    def build(self, packed: bytes) -> Any:
        """Make the run's functions and its first state; None, or what was raised."""
        try:
            self._build(packed)
        except Exception as error:  # noqa: BLE001  (it is the driver's to judge)
            return as_raised(error)
        return None

    def _build(self, packed: bytes) -> None:
        from jaxrl.assembly.assemble import assemble

        config = open_job(packed).config
        debugging = config.debugging_settings
        assembly = assemble(config)
        runner, self._devices = assembly.runner, jax.devices()
        self._mesh = Mesh(np.asarray(self._devices), (AXIS,))
        first = functools.partial(first_state, assembly, debugging.seed)
        shapes = jax.eval_shape(first)
        if assembly.in_graph:
            compiled = compile_runner(
                assembly.in_graph_runner, shapes, self._devices, max_retraces=None, jit=True
            )
            self._main, self._shardings = compiled.run, compiled.shardings
        else:
            self._main = learn_program(runner, self._devices, max_retraces=None, jit=True)
            self._shardings = state_shardings(shapes, self._devices)
        self._state = jax.jit(first, out_shardings=self._shardings)()
        self._actor = jax.jit(runner.actor, out_shardings=self._everywhere)
        self._whole = jax.jit(keys_as_data, out_shardings=self._everywhere)

    @property
    def _everywhere(self) -> NamedSharding:
        return NamedSharding(self._mesh, PartitionSpec())

    def run(self, batches: int) -> Report:
        """Train batches of environments inside the program."""
        self._state, rows = self._main(self._state, np.int32(1), np.int32(batches))
        return Report.of_row(self._gathered(rows), 0)

    def learn(self, columns: Sampled) -> Report:
        """One train batch, of which this learner has its own columns, NumPy."""
        specs = data_specs(columns)

        def place(leaf: Any, spec: PartitionSpec) -> jax.Array:
            return jax.make_array_from_process_local_data(NamedSharding(self._mesh, spec), leaf)

        self._state, summary = self._main(self._state, jax.tree.map(place, columns, specs))
        return Report.fetch(self._state, [summary], self._gathered)

    def _gathered(self, tree: PyTree) -> PyTree:
        """NumPy copies of arrays that are spread over the learners."""
        return to_host(self._whole(tree))

    def weights(self, version: int) -> Weights:
        """What acting depends on now."""
        return Weights(version=version, actor=to_host(self._actor(self._state)))

    def get_state(self) -> PyTree:
        """The whole state, NumPy, with keys as their numbers."""
        return self._gathered(self._state)

    def set_state(self, state: PyTree) -> None:
        """Take over a state as `get_state` returns it."""
        typed = data_as_keys(state, self._state)

        def place(leaf: Any, sharding: Any) -> jax.Array:
            return jax.make_array_from_callback(leaf.shape, sharding, lambda index: leaf[index])

        self._state = jax.tree.map(place, typed, self._shardings)

    def apply(self, packed: bytes) -> Any:
        """What a function of this learner returns."""
        fn: Callable[[RayLearner], Any] = cloudpickle.loads(packed)
        return fn(self)

    def call(self, method: str, *args: Any) -> Any:
        """What a method returns."""
        return getattr(self, method)(*args)
