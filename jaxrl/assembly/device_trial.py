"""How many of a CPU's cores share an update, and in how many parts it is taken: short trials.

What a core gains on its own and what cores lose by waiting for one another differs from machine to
machine: with 64 rows a core, two are 1.35 times as fast as one on one make of processor and 0.7 times
on another. An update like PPO's, of the rows that the run has, is timed both ways, and what came of it
is kept in a file, by machine.
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

from jaxrl.config.batch_plan.on_policy import MIN_ROWS_PER_CPU_DEVICE
from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, Metrics, PyTree
from jaxrl.learners.microbatches import gradients
from jaxrl.runtime.compilation_cache import file_beside_programs
from jaxrl.runtime.devices import cores_are_devices
from jaxrl.runtime.measurements import keep_entries, machine, read_entries
from jaxrl.runtime.program import QUICKLY, compiled_with
from jaxrl.training.sharding import ALONG, AXIS, WHOLE, over

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

SURE_ROWS = 512
"""From so many rows a core on, sharing them is faster wherever it was tried."""
GAIN = 1.05
"""How many times as fast the other way must be to be taken."""
ROUNDS, UPDATES, MINIBATCHES, FEATURES, UNITS = 9, 48, 4, 8, 64
MOST_ROWS = 4096
"""Of a trial of parts."""
FILE = "devices.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Way:
    """One way to take an update: on so many devices, of so many rows each, in equal parts."""

    num_devices: int
    rows: int
    parts: int = 1


Measure = Callable[[Way, Way], float]
"""How many times as fast the second way is, for the same rows in all."""


class DeviceTrials:
    """Decisions about devices and parts, each measured once and kept.

    Args:
        store: The file that keeps them; None keeps nothing, so nothing is measured: a run would not
            be sure of the same programs when it goes on.
        measure: In place of trials on this machine.
    """

    def __init__(self, store: Path | None, measure: Measure | None = None) -> None:
        self._said: dict[str, None] = {}
        self._store, self._measure = store, measure or times_as_fast

    @property
    def notes(self) -> list[str]:
        """What was measured, now or before, a sentence each."""
        return list(self._said)

    @property
    def is_possible(self) -> bool:
        """Whether there is something to measure on, and a place to keep it."""
        return self._store is not None and cores_are_devices()

    def is_worth(self, rows: int, num_devices: int) -> bool:
        """Whether so many devices are faster than one, with so many rows of a minibatch each."""
        if num_devices == 1 or not MIN_ROWS_PER_CPU_DEVICE <= rows < SURE_ROWS:
            return num_devices == 1 or rows >= SURE_ROWS
        rows = 1 << (rows.bit_length() - 1)
        gain = self._gain(
            Way(num_devices=1, rows=rows * num_devices), Way(num_devices=num_devices, rows=rows)
        )
        self._say(
            f"{num_devices} devices with {rows} rows of a minibatch each update {gain:.2f} times as fast "
            "as one with all, measured on this machine."
        )
        return gain >= GAIN

    def are_parts_worth(self, rows: int, parts: int, num_devices: int) -> bool:
        """Whether a device takes the gradient of its rows faster in parts than at once."""
        rows = min(MOST_ROWS, 1 << (rows.bit_length() - 1))
        parts = min(parts, rows)
        parts = 1 << (parts.bit_length() - 1)
        whole = Way(num_devices=num_devices, rows=rows)
        gain = self._gain(whole, dataclasses.replace(whole, parts=parts))
        self._say(
            f"A gradient of {rows} rows in {parts} parts is taken {gain:.2f} times as fast as at once, "
            "measured on this machine."
        )
        return gain * GAIN >= 1  # parts are the rule

    def _say(self, sentence: str) -> None:
        self._said[sentence] = None

    def _gain(self, base: Way, other: Way) -> float:
        name = "; ".join([*map(str, machine().values()), str(base), str(other)])
        kept = read_entries(self._store).get(name)
        if isinstance(kept, float):
            return kept
        gain = round(self._measure(base, other), 3)
        keep_entries(self._store, {name: gain})
        return gain


def device_trials(config: "AlgorithmConfig") -> DeviceTrials:
    """The trials of this machine, kept where the config keeps its compiled programs."""
    return DeviceTrials(file_beside_programs(config.debugging_settings.compilation_cache_dir, FILE))


def times_as_fast(base: Way, other: Way) -> float:
    """How many times as many rows a second the other way learns from, taking turns with the first."""
    with ThreadPoolExecutor(2) as pool:
        run_base, run_other = pool.map(_compiled, (base, other))
    for run in (run_base, run_other):
        run()
    return statistics.median(run_base() / run_other() for _ in range(ROUNDS))


@pytree
class _Rows:
    """A minibatch of the trial's update."""

    obs: Float[Array, "N F"]
    actions: Int[Array, " N"]
    advantages: Float[Array, " N"]
    value_targets: Float[Array, " N"]


def _compiled(way: Way) -> Callable[[], float]:
    """A run of some updates, which returns its seconds."""
    devices = jax.local_devices()[: way.num_devices]
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(2.5e-4))

    def update(i: Array, state: PyTree, rows: _Rows) -> PyTree:
        params, moments = state
        start = i % MINIBATCHES * way.rows
        minibatch = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, way.rows), rows)
        _, grads = gradients(_loss, params, minibatch, jax.random.key(0), way.rows // way.parts)
        if way.num_devices > 1:
            flat, restore = ravel_pytree(grads)
            grads = restore(jax.lax.pmean(flat, AXIS))
        updates, moments = optimizer.update(grads, moments, params)
        return optax.apply_updates(params, updates), moments

    def run(state: PyTree, rows: _Rows, count: Int[Array, ""]) -> PyTree:
        return jax.lax.fori_loop(0, count, lambda i, state: update(i, state, rows), state)

    params = {"pi": _layers(2), "vf": _layers(1)}
    state, rows = (params, optimizer.init(params)), _rows(way.rows * way.num_devices * MINIBATCHES)
    shared = over(devices, run, (WHOLE, ALONG, WHOLE), WHOLE) if way.num_devices > 1 else run
    mesh = Mesh(np.asarray(devices), (AXIS,))
    args = (
        jax.device_put(state, NamedSharding(mesh, WHOLE)),
        jax.device_put(rows, NamedSharding(mesh, ALONG)),
        np.int32(UPDATES),
    )
    compiled = compiled_with(QUICKLY, jax.jit(shared).lower(*args))

    def seconds() -> float:
        start = time.perf_counter()
        jax.block_until_ready(compiled(*args))
        return time.perf_counter() - start

    return seconds


def _layers(num_outputs: int) -> list[Array]:
    draws = np.random.default_rng(0)
    sizes = (FEATURES, UNITS, UNITS, num_outputs)
    return [
        jnp.asarray(draws.normal(0.0, a**-0.5, (a, b)), jnp.float32)
        for a, b in itertools.pairwise(sizes)
    ]


def _rows(number: int) -> _Rows:
    draws = np.random.default_rng(1)
    return _Rows(
        obs=jnp.asarray(draws.normal(size=(number, FEATURES)), jnp.float32),
        actions=jnp.asarray(draws.integers(0, 2, number), jnp.int32),
        advantages=jnp.asarray(draws.normal(size=number), jnp.float32),
        value_targets=jnp.asarray(draws.normal(size=number), jnp.float32),
    )


def _loss(params: PyTree, rows: _Rows, key: Key) -> tuple[Array, Metrics]:
    """The cost of PPO's loss: its operations on rows, of which nothing is to be learned."""
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
