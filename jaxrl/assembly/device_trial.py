"""Timing trials that choose the number of CPU cores and of gradient parts for an update.

The speed of a single core and the cost of synchronizing cores vary between machines: with 64 rows
per core, two cores are 1.35 times as fast as one on one processor model and 0.7 times on another.
An update like PPO's is timed both ways with the number of rows of the run, and the result is stored
in a file by machine.
"""

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Float, Int

from jaxrl.config.batch_plan import MIN_ROWS_PER_CPU_DEVICE
from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, Metrics, PyTree
from jaxrl.learners.gradients import accumulate_gradients
from jaxrl.runtime.compilation_cache import get_cache_file
from jaxrl.runtime.devices import has_device_per_core
from jaxrl.runtime.measurements import add_entries, describe_machine, read_entries
from jaxrl.runtime.program import FAST_COMPILE_OPTIONS, compile_with_options
from jaxrl.training.sharding import DEVICE_AXIS, REPLICATED, SHARDED, shard_over_devices

if TYPE_CHECKING:
    from jaxrl.config.config import Config

ALWAYS_FASTER_ROWS = 512
"""Number of rows per core from which sharing them was faster on every tested machine."""
MIN_SPEEDUP = 1.05
"""Minimum speedup for choosing the alternative."""
ROUNDS, UPDATES, MINIBATCHES, FEATURES, UNITS = 9, 48, 4, 8, 64
MAX_TRIAL_ROWS = 4096
"""Maximum number of rows in a trial of gradient parts."""
FILE_NAME = "devices.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateLayout:
    """Layout of an update: number of devices, rows per device, and equal parts of these rows."""

    num_devices: int
    rows: int
    parts: int = 1


MeasureSpeedup = Callable[[UpdateLayout, UpdateLayout], float]
"""Function that returns the speedup of the second layout over the first, for equal total rows."""


class DeviceTrials:
    """Decisions about devices and gradient parts, each measured once and stored.

    Args:
        store: File for the measurements. With None nothing is stored, hence nothing measured: a
            resumed run could otherwise get different programs.
        measure: Replacement for trials on this machine.
    """

    def __init__(self, store: Path | None, measure: MeasureSpeedup | None = None) -> None:
        self._notes: dict[str, None] = {}
        self._store, self._measure = store, measure or measure_speedup

    @property
    def notes(self) -> list[str]:
        """Sentences on all measurements used, including stored ones."""
        return list(self._notes)

    @property
    def is_possible(self) -> bool:
        """Return whether there are devices to measure on, and a file to store results in."""
        return self._store is not None and has_device_per_core()

    def is_faster(self, rows: int, num_devices: int) -> bool:
        """Return whether sharing a minibatch is faster than one device with all of its rows.

        Args:
            rows: Rows of a minibatch per device.
            num_devices: Number of devices that share it.
        """
        if num_devices == 1 or not MIN_ROWS_PER_CPU_DEVICE <= rows < ALWAYS_FASTER_ROWS:
            return num_devices == 1 or rows >= ALWAYS_FASTER_ROWS
        rows = 1 << (rows.bit_length() - 1)
        speedup = self._get_speedup(
            UpdateLayout(num_devices=1, rows=rows * num_devices),
            UpdateLayout(num_devices=num_devices, rows=rows),
        )
        self._add_note(
            f"{num_devices} devices with {rows} rows of a minibatch each update {speedup:.2f} "
            "times as fast as one with all, measured on this machine."
        )
        return speedup >= MIN_SPEEDUP

    def is_faster_in_parts(self, rows: int, parts: int, num_devices: int) -> bool:
        """Return whether a device's gradient is computed faster in parts than at once.

        Args:
            rows: Rows of a minibatch per device.
            parts: Number of parts.
            num_devices: Number of devices that share the minibatch.
        """
        rows = min(MAX_TRIAL_ROWS, 1 << (rows.bit_length() - 1))
        parts = min(parts, rows)
        parts = 1 << (parts.bit_length() - 1)
        whole = UpdateLayout(num_devices=num_devices, rows=rows)
        speedup = self._get_speedup(whole, dataclasses.replace(whole, parts=parts))
        self._add_note(
            f"A gradient of {rows} rows in {parts} parts is computed {speedup:.2f} times as fast "
            "as at once, measured on this machine."
        )
        return speedup * MIN_SPEEDUP >= 1  # parts are the default

    def _add_note(self, sentence: str) -> None:
        self._notes[sentence] = None

    def _get_speedup(self, base: UpdateLayout, other: UpdateLayout) -> float:
        name = "; ".join([*map(str, describe_machine().values()), str(base), str(other)])
        kept = read_entries(self._store).get(name)
        if isinstance(kept, float):
            return kept
        speedup = round(self._measure(base, other), 3)
        add_entries(self._store, {name: speedup})
        return speedup


def open_device_trials(config: "Config") -> DeviceTrials:
    """Return the trials of this machine, stored next to the config's compiled programs.

    Nothing is measured for a config whose choices were recorded.
    """
    if config.is_recorded:
        return DeviceTrials(None)
    return DeviceTrials(get_cache_file(config.debugging_settings.compilation_cache_dir, FILE_NAME))


def measure_speedup(base: UpdateLayout, other: UpdateLayout) -> float:
    """Measure the speedup of the second layout over the first, alternating between them."""
    with ThreadPoolExecutor(2) as pool:
        run_base, run_other = pool.map(_compile, (base, other))
    for run in (run_base, run_other):
        run()
    return statistics.median(run_base() / run_other() for _ in range(ROUNDS))


@pytree
class _Rows:
    """Minibatch of the trial's update."""

    obs: Float[Array, "N F"]
    actions: Int[Array, " N"]
    advantages: Float[Array, " N"]
    value_targets: Float[Array, " N"]


def _compile(way: UpdateLayout) -> Callable[[], float]:
    """Compile a loop of updates into a function that runs it and returns its seconds."""
    devices = jax.local_devices()[: way.num_devices]
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(2.5e-4))

    def update(i: Array, state: PyTree, rows: _Rows) -> PyTree:
        params, moments = state
        start = i % MINIBATCHES * way.rows
        minibatch = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, way.rows), rows)
        _, grads = accumulate_gradients(
            _loss, params, minibatch, jax.random.key(0), way.rows // way.parts
        )
        if way.num_devices > 1:
            flat, restore = ravel_pytree(grads)
            grads = restore(jax.lax.pmean(flat, DEVICE_AXIS))
        updates, moments = optimizer.update(grads, moments, params)
        return optax.apply_updates(params, updates), moments

    def run(state: PyTree, rows: _Rows, count: Int[Array, ""]) -> PyTree:
        return jax.lax.fori_loop(0, count, lambda i, state: update(i, state, rows), state)

    params = {"pi": _make_layers(2), "vf": _make_layers(1)}
    state, rows = (
        (params, optimizer.init(params)),
        _make_rows(way.rows * way.num_devices * MINIBATCHES),
    )
    shared = (
        shard_over_devices(devices, run, (REPLICATED, SHARDED, REPLICATED), REPLICATED)
        if way.num_devices > 1
        else run
    )
    mesh = Mesh(np.asarray(devices), (DEVICE_AXIS,))
    args = (
        jax.device_put(state, NamedSharding(mesh, REPLICATED)),
        jax.device_put(rows, NamedSharding(mesh, SHARDED)),
        np.int32(UPDATES),
    )
    compiled = compile_with_options(FAST_COMPILE_OPTIONS, jax.jit(shared).lower(*args))

    def seconds() -> float:
        start = time.perf_counter()
        jax.block_until_ready(compiled(*args))
        return time.perf_counter() - start

    return seconds


def _make_layers(num_outputs: int) -> list[Array]:
    rng = np.random.default_rng(0)
    sizes = (FEATURES, UNITS, UNITS, num_outputs)
    return [
        jnp.asarray(rng.normal(0.0, a**-0.5, (a, b)), jnp.float32)
        for a, b in itertools.pairwise(sizes)
    ]


def _make_rows(number: int) -> _Rows:
    rng = np.random.default_rng(1)
    return _Rows(
        obs=jnp.asarray(rng.normal(size=(number, FEATURES)), jnp.float32),
        actions=jnp.asarray(rng.integers(0, 2, number), jnp.int32),
        advantages=jnp.asarray(rng.normal(size=number), jnp.float32),
        value_targets=jnp.asarray(rng.normal(size=number), jnp.float32),
    )


def _loss(params: PyTree, rows: _Rows, key: Key) -> tuple[Array, Metrics]:
    """Return a loss with PPO's operations on rows, for timing only."""
    del key
    log_probs = jax.nn.log_softmax(_forward(params["pi"], rows.obs))
    log_prob = jnp.take_along_axis(log_probs, rows.actions[:, None], axis=1)[:, 0]
    ratio, advantages = jnp.exp(log_prob + 0.7), rows.advantages
    surrogate = jnp.minimum(ratio * advantages, jnp.clip(ratio, 0.8, 1.2) * advantages)
    entropy = -(jnp.exp(log_probs) * log_probs).sum(axis=-1)
    error = _forward(params["vf"], rows.obs)[:, 0] - rows.value_targets
    return (0.5 * error**2 - surrogate - 0.01 * entropy).mean(), {}


def _forward(layers: list[Array], x: Array) -> Array:
    *hidden, last = layers
    for kernel in hidden:
        x = jnp.tanh(x @ kernel)
    return x @ last
