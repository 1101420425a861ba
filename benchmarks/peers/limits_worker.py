"""Peer that measures the machine's limits: matrix products, memory, and stepping of environments.

The measurements are called probes: `matmul 512x64x64`, `make_triad_probe`, `stepping program CartPole-v1 x64`.
JAX computes on all of its devices at once, each with its share of the environments, or with
products of the full shape. On a CPU the cores are devices, as for jaxrl.
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.peers import jaxrl_replay_worker, jaxrl_worker, products_worker
from benchmarks.peers.protocol import Peer, Request, serve_peer
from benchmarks.settings import ReplaySetting, Setting
from jaxrl.assembly.assemble import assemble
from jaxrl.config.base import AlgorithmConfig
from jaxrl.envs import make
from jaxrl.envs.vector import VectorEnv
from jaxrl.runtime.devices import claim_cpu_devices
from jaxrl.runtime.flops import count_flops

TARGET_S = 0.15
"""Approximate seconds per probe."""

MACHINE_PROBES = ("matmul 64x64x64", "matmul 2048x64x64", "matmul 2048x2048x2048", "triad")
"""Probes that are measured in addition to the requested ones."""

TRIAD_ROWS = 2**25
"""Size of each of the triad's two arrays over all devices, which exceeds all caches."""

CHUNK = 64
"""Number of environment steps whose keys and actions are sampled together."""

HOST_CHUNK = 8
"""Number of steps of gymnasium's environments per repetition."""

AXIS = "devices"
SHARDED, REPLICATED = PartitionSpec(AXIS), PartitionSpec()


@dataclasses.dataclass(kw_only=True)
class Probe:
    """Work that is repeated long enough to be measured.

    Args:
        work: Operations, bytes, or environment steps per repetition.
        repeat: Function that runs a number of repetitions and waits for the last.
        count: Number of repetitions per measurement.
    """

    work: float
    repeat: Callable[[int], None]
    count: int = 1

    def calibrate(self, target_s: float) -> None:
        """Choose the number of repetitions per measurement, after a warm-up."""
        self.repeat(1)
        while (seconds := self.measure_seconds()) < target_s / 4:
            self.count *= 4
        self.count = max(1, round(self.count * target_s / seconds))

    def measure_seconds(self) -> float:
        start = time.perf_counter()
        self.repeat(self.count)
        return time.perf_counter() - start

    def measure_rate(self) -> float:
        """Measure the work per second."""
        return self.work * self.count / self.measure_seconds()


class LimitsPeer(Peer):
    """Peer that runs probes, which are reused for later settings.

    Args:
        machine: Probes that are measured in addition to the requested ones.
        target_s: Approximate seconds per probe.
        triad_rows: Size of each of the triad's two arrays over all devices.
    """

    def __init__(
        self,
        *,
        machine_probes: Sequence[str] = MACHINE_PROBES,
        target_s: float = TARGET_S,
        triad_rows: int = TRIAD_ROWS,
    ) -> None:
        self._machine, self._target_s, self._triad_rows = machine_probes, target_s, triad_rows
        self._probes: dict[str, Probe] = {}
        self._names: list[str] = []

    packages = ("jax", "gymnasium")

    def count_devices(self) -> int:
        """Return the number of devices, which are the cores of a CPU."""
        claim_cpu_devices()
        return len(jax.local_devices())

    def setup(self, request: Request) -> dict[str, Any]:
        """Make the requested probes, and count the operations per step of the other peers."""
        start = time.perf_counter()
        work = request["setting"]["work"]
        requested = [item[kind] for item in work.values() for kind in ("arithmetic", "stepping")]
        self._names = list(dict.fromkeys([*self._machine, *(name for name in requested if name)]))
        for name in self._names:
            if name not in self._probes:
                self._probes[name] = self._make_probe(name)
                self._probes[name].calibrate(self._target_s)
        counts: dict[str, float] = {}
        flops = {name: _count_item(item, counts) for name, item in work.items()}
        return {"compile_s": time.perf_counter() - start, "work": work, "flops_per_step": flops}

    def run(self, request: Request) -> dict[str, Any]:
        """Measure each probe once."""
        return {"rates": {name: self._probes[name].measure_rate() for name in self._names}}

    def _make_probe(self, name: str) -> Probe:
        if name == "triad":
            return make_triad_probe(self._triad_rows)
        if match := re.fullmatch(r"matmul (\d+)x(\d+)x(\d+)", name):
            return make_product_probe(*map(int, match.groups()))
        match = re.fullmatch(r"stepping (host|program) (\S+) x(\d+)", name)
        if match is None:
            raise ValueError(f"unknown probe {name!r}")
        make_probe = make_host_stepping_probe if match[1] == "host" else make_stepping_probe
        return make_probe(match[2], int(match[3]))


def make_product_probe(rows: int, inputs: int, outputs: int) -> Probe:
    """Return a probe of products of `[rows, inputs]` with `[inputs, outputs]`, and back.

    Each product depends on the previous one. The matrix has orthonormal rows or columns, and its
    transpose maps back, so the magnitudes of the numbers do not change.
    """
    devices = jax.local_devices()
    generator = np.random.default_rng(0)
    size = max(inputs, outputs)
    basis = np.linalg.qr(generator.normal(size=(size, size)))[0].astype(np.float32)
    matrix = basis[:inputs, :outputs]
    x = generator.normal(size=(rows * len(devices), inputs)).astype(np.float32)

    def loop(count: Any, x: Any, matrix: Any, transpose: Any) -> Any:
        return jax.lax.fori_loop(0, count, lambda _, x: (x @ matrix) @ transpose, x)

    run, place = _shard(devices, loop, (REPLICATED, SHARDED, REPLICATED, REPLICATED), SHARDED)
    x, matrix, transpose = (
        place(x, SHARDED),
        place(matrix, REPLICATED),
        place(matrix.T.copy(), REPLICATED),
    )
    return Probe(
        work=2 * 2.0 * rows * inputs * outputs * len(devices),
        repeat=lambda count: _wait(run(np.int32(count), x, matrix, transpose)),
    )


def make_triad_probe(rows: int) -> Probe:
    """Return a probe of `x = y + s * x`, which reads two numbers and writes one, without caches."""
    devices = jax.local_devices()
    rows = rows // len(devices) * len(devices)

    def loop(count: Any, x: Any, y: Any) -> Any:
        return jax.lax.fori_loop(0, count, lambda _, x: y + 0.5 * x, x)

    run, place = _shard(devices, loop, (REPLICATED, SHARDED, SHARDED), SHARDED)
    x, y = (place(np.full(rows, value, np.float32), SHARDED) for value in (1.0, 2.0))
    work = 3.0 * rows * np.dtype(np.float32).itemsize
    return Probe(work=work, repeat=lambda count: _wait(run(np.int32(count), x, y)))


def make_stepping_probe(env_id: str, num_envs: int) -> Probe:
    """Return a probe of copies of a jaxrl environment in a compiled loop, with random actions."""
    devices = jax.local_devices()
    devices = devices if num_envs % len(devices) == 0 else devices[:1]
    made: Any = make(env_id)
    vector = VectorEnv(made.env, made.env.reset_mode)
    space = made.env.action_space(made.params)

    def chunk(index: Any, state: Any, params: Any) -> Any:
        actions = sample_actions(
            space, jax.random.fold_in(jax.random.key(0), index), state.index.shape[0]
        )
        inputs = vector.make_step_inputs(state, CHUNK, params)

        def step(state: Any, step_inputs: Any) -> tuple[Any, None]:
            action, inputs = step_inputs
            return vector.step(state, action, inputs, params)[0], None

        return jax.lax.scan(step, state, (actions, inputs))[0]

    def loop(count: Any, state: Any, params: Any) -> Any:
        return jax.lax.fori_loop(0, count, partial(chunk, params=params), state)

    first = jax.jit(vector.reset)(jax.random.key(0), jnp.arange(num_envs), made.params)
    specs = jax.tree.map(lambda _: SHARDED, first), jax.tree.map(lambda _: REPLICATED, made.params)
    run, place = _shard(devices, loop, (REPLICATED, *specs), specs[0])
    first, params = place(first, SHARDED), place(made.params, REPLICATED)
    return Probe(
        work=float(num_envs * CHUNK),
        repeat=lambda count: _wait(run(np.int32(count), first, params)),
    )


def sample_actions(space: gymnasium.Space[Any], key: Any, num_envs: int) -> Any:
    """Sample actions `[CHUNK, num_envs, ...]`."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return jax.random.randint(key, (CHUNK, num_envs), 0, int(space.n))
    assert isinstance(space, gymnasium.spaces.Box)
    shape = (CHUNK, num_envs, *space.shape)
    return jax.random.uniform(key, shape, minval=space.low, maxval=space.high)


def make_host_stepping_probe(env_id: str, num_envs: int) -> Probe:
    """Return a probe of gymnasium's synchronous environments, with presampled random actions."""
    envs = gymnasium.make_vec(env_id, num_envs=num_envs, vectorization_mode="sync")
    envs.reset(seed=0)
    envs.action_space.seed(0)
    actions = [envs.action_space.sample() for _ in range(HOST_CHUNK)]

    def repeat(count: int) -> None:
        for _ in range(count):
            for action in actions:
                envs.step(action)

    return Probe(work=float(num_envs * HOST_CHUNK), repeat=repeat)


def count_flops_per_step(config: AlgorithmConfig) -> float:
    """Count the operations of jaxrl's program per environment step of a train batch.

    Nothing is compiled. The operations of other peers with the same network differ little.
    """
    assembly = assemble(config)
    runner = assembly.run
    params: Any = assembly.made.params  # pyright: ignore[reportAttributeAccessIssue]
    state = jax.eval_shape(runner.init, jax.random.key(0), params)
    flops = count_flops(jax.make_jaxpr(runner.step)(state))
    return flops / (assembly.plan.num_envs * assembly.plan.rollout_fragment_length)


def _count_item(item: dict[str, Any], counts: dict[str, float]) -> float | None:
    """Count the operations per environment step of a peer, once for equal settings.

    Args:
        item: Part of the request about one peer, with its kind and setting.
        counts: Cache of earlier counts, which is extended.
    """
    if item["arithmetic"] is None:
        return None
    values = {k: v for k, v in item["setting"].items() if k not in ("num_updates", "env_steps")}
    key = json.dumps([item["kind"], values], sort_keys=True)
    if key not in counts:
        counts[key] = _count_setting(item["kind"], item["setting"])
    return counts[key]


def _count_setting(kind: str, setting: dict[str, Any]) -> float:
    if kind == "Setting":
        return count_flops_per_step(jaxrl_worker.make_config(Setting.from_dict(setting)))
    replay_setting = ReplaySetting.from_dict(setting)
    if kind == "products":
        networks, batches = products_worker.make_arguments(
            replay_setting, obs_size=3, action_size=1
        )
        first = [rows[0] for rows in batches]
        return count_flops(jax.make_jaxpr(products_worker.compute_update)(networks, first))
    return count_flops_per_step(jaxrl_replay_worker.make_config(replay_setting))


def _shard(
    devices: list[Any], fn: Callable[..., Any], in_specs: Any, out_specs: Any
) -> tuple[Callable[..., Any], Callable[[Any, PartitionSpec], Any]]:
    """Jit a function over the devices.

    Returns:
        The jitted function, and a function that places its arguments on the devices.
    """
    mesh = Mesh(np.asarray(devices), (AXIS,))
    run = jax.jit(
        jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    )

    def place(tree: Any, spec: PartitionSpec) -> Any:
        return jax.tree.map(lambda leaf: jax.device_put(leaf, NamedSharding(mesh, spec)), tree)

    return run, place


def _wait(result: Any) -> None:
    jax.block_until_ready(result)


if __name__ == "__main__":
    serve_peer(LimitsPeer())
