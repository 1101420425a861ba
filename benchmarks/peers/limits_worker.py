"""The machine's limits as a peer: matrix products, memory, and environments without a policy.

Its work is named by probes, `matmul 512x64x64`, `triad` or `stepping program CartPole-v1 x64`. What
JAX computes is computed on all of its devices at once, each with its own share of the environments
and each with products of the whole shape; on a CPU the cores are devices, as they are for jaxrl.
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
from benchmarks.peers.protocol import serve
from benchmarks.replay_settings import ReplaySetting
from benchmarks.settings import Setting
from jaxrl.assembly.assemble import assemble
from jaxrl.config.base import AlgorithmConfig
from jaxrl.envs import make
from jaxrl.envs.vector import VectorEnv
from jaxrl.runtime.devices import claim_cpu_devices
from jaxrl.runtime.flops import count_flops

TARGET_S = 0.15
"""Length of one probe, about."""

MACHINE = ("matmul 64x64x64", "matmul 2048x64x64", "matmul 2048x2048x2048", "triad")
"""Measured beside whatever is asked for."""

TRIAD_ROWS = 2**25
"""Numbers of each of its two arrays, over all devices: more than caches hold."""

CHUNK = 64
"""Environment steps whose keys and actions are drawn together."""

HOST_CHUNK = 8

AXIS = "devices"
ALONG, WHOLE = PartitionSpec(AXIS), PartitionSpec()


@dataclasses.dataclass(kw_only=True)
class Probe:
    """Work that is repeated as often as it takes.

    Args:
        work: Of one repetition: operations, bytes or environment steps.
        repeat: Does so many repetitions, and waits for the last.
        count: Repetitions of a measurement.
    """

    work: float
    repeat: Callable[[int], None]
    count: int = 1

    def calibrate(self, target_s: float) -> None:
        """Choose the number of repetitions; what is lazy is done before."""
        self.repeat(1)
        while (seconds := self.seconds()) < target_s / 4:
            self.count *= 4
        self.count = max(1, round(self.count * target_s / seconds))

    def seconds(self) -> float:
        start = time.perf_counter()
        self.repeat(self.count)
        return time.perf_counter() - start

    def rate(self) -> float:
        """Work in a second."""
        return self.work * self.count / self.seconds()


class LimitsPeer:
    """Probes that have been made are kept from setting to setting."""

    def __init__(
        self,
        *,
        machine: Sequence[str] = MACHINE,
        target_s: float = TARGET_S,
        triad_rows: int = TRIAD_ROWS,
    ) -> None:
        self._machine, self._target_s, self._triad_rows = machine, target_s, triad_rows
        self._made: dict[str, Probe] = {}
        self._names: list[str] = []

    def info(self, request: dict[str, Any]) -> dict[str, Any]:
        claim_cpu_devices()
        versions = {"jax": jax.__version__, "gymnasium": gymnasium.__version__}
        return {"versions": versions, "devices": len(jax.local_devices())}

    def setup(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make the probes that the setting needs, and count the operations of its peers' steps."""
        start = time.perf_counter()
        work = request["setting"]["work"]
        wanted = [item[kind] for item in work.values() for kind in ("arithmetic", "stepping")]
        self._names = list(dict.fromkeys([*self._machine, *(name for name in wanted if name)]))
        for name in self._names:
            if name not in self._made:
                self._made[name] = self._probe(name)
                self._made[name].calibrate(self._target_s)
        counted: dict[str, float] = {}
        flops = {name: _counted(item, counted) for name, item in work.items()}
        return {"compile_s": time.perf_counter() - start, "work": work, "flops_per_step": flops}

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """One measurement of each."""
        return {"rates": {name: self._made[name].rate() for name in self._names}}

    def _probe(self, name: str) -> Probe:
        if name == "triad":
            return triad(self._triad_rows)
        if match := re.fullmatch(r"matmul (\d+)x(\d+)x(\d+)", name):
            return product(*map(int, match.groups()))
        match = re.fullmatch(r"stepping (host|program) (\S+) x(\d+)", name)
        if match is None:
            raise ValueError(f"no probe is called {name!r}")
        make_probe = host_stepping if match[1] == "host" else stepping
        return make_probe(match[2], int(match[3]))


def product(rows: int, inputs: int, outputs: int) -> Probe:
    """Products of `[rows, inputs]` with `[inputs, outputs]`, and back, so that each needs the last.

    The matrix has orthonormal rows or columns and goes back as its transpose, so numbers keep their
    size.
    """
    devices = jax.local_devices()
    random = np.random.default_rng(0)
    wide = max(inputs, outputs)
    basis = np.linalg.qr(random.normal(size=(wide, wide)))[0].astype(np.float32)
    matrix = basis[:inputs, :outputs]
    x = random.normal(size=(rows * len(devices), inputs)).astype(np.float32)

    def loop(count: Any, x: Any, forth: Any, back: Any) -> Any:
        return jax.lax.fori_loop(0, count, lambda _, x: (x @ forth) @ back, x)

    run, place = _over(devices, loop, (WHOLE, ALONG, WHOLE, WHOLE), ALONG)
    x, forth, back = place(x, ALONG), place(matrix, WHOLE), place(matrix.T.copy(), WHOLE)
    return Probe(
        work=2 * 2.0 * rows * inputs * outputs * len(devices),
        repeat=lambda count: _wait(run(np.int32(count), x, forth, back)),
    )


def triad(rows: int) -> Probe:
    """`x = y + s * x` over arrays that no cache holds: two numbers read and one written."""
    devices = jax.local_devices()
    rows = rows // len(devices) * len(devices)

    def loop(count: Any, x: Any, y: Any) -> Any:
        return jax.lax.fori_loop(0, count, lambda _, x: y + 0.5 * x, x)

    run, place = _over(devices, loop, (WHOLE, ALONG, ALONG), ALONG)
    x, y = (place(np.full(rows, value, np.float32), ALONG) for value in (1.0, 2.0))
    work = 3.0 * rows * np.dtype(np.float32).itemsize
    return Probe(work=work, repeat=lambda count: _wait(run(np.int32(count), x, y)))


def stepping(env_id: str, num_envs: int) -> Probe:
    """Copies of an environment of jaxrl's in the compiled program, with random actions."""
    devices = jax.local_devices()
    devices = devices if num_envs % len(devices) == 0 else devices[:1]
    made: Any = make(env_id)
    vector = VectorEnv(made.env, made.env.reset_mode)
    space = made.env.action_space(made.params)

    def chunk(index: Any, state: Any, params: Any) -> Any:
        actions = random_actions(
            space, jax.random.fold_in(jax.random.key(0), index), state.index.shape[0]
        )
        inputs = vector.inputs(state, CHUNK, params)

        def step(state: Any, drawn: Any) -> tuple[Any, None]:
            action, inputs = drawn
            return vector.step(state, action, inputs, params)[0], None

        return jax.lax.scan(step, state, (actions, inputs))[0]

    def loop(count: Any, state: Any, params: Any) -> Any:
        return jax.lax.fori_loop(0, count, partial(chunk, params=params), state)

    first = jax.jit(vector.reset)(jax.random.key(0), jnp.arange(num_envs), made.params)
    specs = jax.tree.map(lambda _: ALONG, first), jax.tree.map(lambda _: WHOLE, made.params)
    run, place = _over(devices, loop, (WHOLE, *specs), specs[0])
    first, params = place(first, ALONG), place(made.params, WHOLE)
    return Probe(
        work=float(num_envs * CHUNK),
        repeat=lambda count: _wait(run(np.int32(count), first, params)),
    )


def random_actions(space: gymnasium.Space[Any], key: Any, num_envs: int) -> Any:
    """`[CHUNK, num_envs, ...]` actions, drawn in bulk."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return jax.random.randint(key, (CHUNK, num_envs), 0, int(space.n))
    assert isinstance(space, gymnasium.spaces.Box)
    shape = (CHUNK, num_envs, *space.shape)
    return jax.random.uniform(key, shape, minval=space.low, maxval=space.high)


def host_stepping(env_id: str, num_envs: int) -> Probe:
    """Synchronous environments of gymnasium's with random actions, drawn beforehand."""
    envs = gymnasium.make_vec(env_id, num_envs=num_envs, vectorization_mode="sync")
    envs.reset(seed=0)
    envs.action_space.seed(0)
    actions = [envs.action_space.sample() for _ in range(HOST_CHUNK)]

    def repeat(count: int) -> None:
        for _ in range(count):
            for action in actions:
                envs.step(action)

    return Probe(work=float(num_envs * HOST_CHUNK), repeat=repeat)


def flops_per_step(config: AlgorithmConfig) -> float:
    """Operations of a whole train batch of jaxrl's program, over its environment steps.

    Nothing is compiled. What a peer with the same network computes differs by little.
    """
    assembly = assemble(config)
    runner = assembly.in_graph_runner
    params: Any = assembly.made.params  # pyright: ignore[reportAttributeAccessIssue]
    state = jax.eval_shape(runner.init, jax.random.key(0), params)
    flops = count_flops(jax.make_jaxpr(runner.step)(state))
    return flops / (assembly.plan.num_envs * assembly.plan.rollout_fragment_length)


def _counted(item: dict[str, Any], known: dict[str, float]) -> float | None:
    """Operations of an environment step of one peer; those of equal settings are counted once."""
    if item["arithmetic"] is None:
        return None
    values = {k: v for k, v in item["setting"].items() if k not in ("num_updates", "env_steps")}
    name = json.dumps([item["kind"], values], sort_keys=True)
    if name not in known:
        known[name] = _count(item["kind"], item["setting"])
    return known[name]


def _count(kind: str, setting: dict[str, Any]) -> float:
    if kind == "Setting":
        return flops_per_step(jaxrl_worker.config(Setting.from_dict(setting)))
    replay_setting = ReplaySetting.from_dict(setting)
    if kind == "products":
        networks, batches = products_worker.arguments(replay_setting, obs_size=3, action_size=1)
        first = [rows[0] for rows in batches]
        return count_flops(jax.make_jaxpr(products_worker.update)(networks, first))
    return flops_per_step(jaxrl_replay_worker.config(replay_setting))


def _over(
    devices: list[Any], fn: Callable[..., Any], in_specs: Any, out_specs: Any
) -> tuple[Callable[..., Any], Callable[[Any, PartitionSpec], Any]]:
    """A jitted function of each device's part, and what puts arguments where it wants them."""
    mesh = Mesh(np.asarray(devices), (AXIS,))
    run = jax.jit(
        jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    )

    def place(tree: Any, spec: PartitionSpec) -> Any:
        return jax.tree.map(lambda leaf: jax.device_put(leaf, NamedSharding(mesh, spec)), tree)

    return run, place


def _wait(result: Any) -> None:
    jax.block_until_ready(result)


def main() -> None:
    peer = LimitsPeer()
    serve({"info": peer.info, "setup": peer.setup, "run": peer.run})


if __name__ == "__main__":
    main()
