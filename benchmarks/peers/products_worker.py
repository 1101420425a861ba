"""The matrix products of one SAC update and nothing else: what no SAC with them can be faster than.

Two critics and a policy with two hidden layers. Three of the large products are of the targets,
six of the critics' loss (forwards, and backwards to the weights and to the hidden layer), seven of
the policy's (its forward, the critics' forward and backward to the action, and its own backward).
There are no biases, activations or optimiser, and products that do not need one another's results
in an update may not here either.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers.protocol import serve
from benchmarks.replay_settings import ReplaySetting

NUM_BATCHES = 16
"""So that no product is of the same numbers in every update, and taken out of the loop."""

Layers = tuple[jax.Array, ...]


class ProductsPeer:
    """An environment step is an update, as in SAC with one environment."""

    def __init__(self) -> None:
        self._setting: ReplaySetting | None = None
        self._run: Any = None
        self._arguments: Any = None

    def info(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"versions": {"jax": jax.__version__}, "devices": jax.local_device_count()}

    def setup(self, request: dict[str, Any]) -> dict[str, Any]:
        """Compile a loop of as many updates as a measurement has."""
        self._setting = ReplaySetting.from_dict(request["setting"])
        self._arguments = arguments(self._setting, obs_size=3, action_size=1)
        steps = self._setting.env_steps
        start = time.perf_counter()
        compiled = jax.jit(lambda networks, batches: updates(networks, batches, steps))
        self._run = compiled.lower(*self._arguments).compile()
        return {"compile_s": time.perf_counter() - start}

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """One measurement."""
        assert self._setting is not None
        start = time.perf_counter()
        jax.block_until_ready(self._run(*self._arguments))
        return {"seconds": time.perf_counter() - start, "env_steps": self._setting.env_steps}

    def evaluate(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"return_mean": None}


def arguments(setting: ReplaySetting, *, obs_size: int, action_size: int) -> tuple[Any, Any]:
    """Random networks, and batches of observations with an action and of next observations."""
    random = np.random.default_rng(setting.seed)
    width = setting.hidden_size

    def layers(inputs: int, outputs: int) -> Layers:
        shapes = ((inputs, width), (width, width), (width, outputs))
        return tuple(jnp.asarray(random.normal(size=s) / s[0] ** 0.5, jnp.float32) for s in shapes)

    critics = [layers(obs_size + action_size, 1) for _ in range(4)]
    networks = {
        "policy": layers(obs_size, 2 * action_size),
        "critics": critics[:2],
        "targets": critics[2:],
    }
    rows = (NUM_BATCHES, setting.batch_size, obs_size + action_size)
    batches = [jnp.asarray(random.normal(size=rows), jnp.float32) for _ in range(2)]
    return networks, batches


def updates(networks: Any, batches: Any, count: int) -> Any:
    """The products of so many updates; the last ones' results."""
    first = jax.eval_shape(update, networks, [rows[0] for rows in batches])
    results = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), first)

    def body(index: jax.Array, _: Any) -> Any:
        return update(networks, [rows[index % NUM_BATCHES] for rows in batches])

    return jax.lax.fori_loop(0, count, body, results)


def update(networks: Any, batch: Any) -> Any:
    """The products of one update; all that would be an estimate, a gradient or a target."""
    inputs, next_inputs = batch
    policy, obs_size = networks["policy"], networks["policy"][0].shape[0]
    next_policy = forward(policy, next_inputs[:, :obs_size])[-1]
    targets = [forward(target, next_inputs)[-1] for target in networks["targets"]]
    critic_gradients, action_gradients = [], []
    for critic in networks["critics"]:
        activations = forward(critic, inputs)
        critic_gradients.append(weight_gradients(critic, activations, activations[-1]))
        value = forward(critic, next_inputs)[-1]  # of the policy's actions in the update
        to_input = hidden_gradients(critic, value)[-1] @ critic[0].T
        action_gradients.append(to_input[:, : policy[-1].shape[1]])
    activations = forward(policy, inputs[:, :obs_size])
    policy_gradients = weight_gradients(
        policy, activations, sum(action_gradients[1:], action_gradients[0])
    )
    outputs = (next_policy, targets, activations[-1])
    return (*outputs, critic_gradients, policy_gradients)


def forward(layers: Layers, inputs: jax.Array) -> list[jax.Array]:
    """The input of each layer, and the last one's output."""
    activations = [inputs]
    for weights in layers:
        activations.append(activations[-1] @ weights)
    return activations


def hidden_gradients(layers: Layers, gradient: jax.Array) -> list[jax.Array]:
    """The gradients of each layer's output, the last layer's first."""
    gradients = [gradient]
    for weights in reversed(layers[1:]):
        gradients.append(gradients[-1] @ weights.T)
    return gradients


def weight_gradients(layers: Layers, activations: list[jax.Array], gradient: jax.Array) -> Layers:
    """The gradient of each layer's weights."""
    outputs = reversed(hidden_gradients(layers, gradient))
    return tuple(x.T @ g for x, g in zip(activations[:-1], outputs, strict=True))


def main() -> None:
    peer = ProductsPeer()
    serve({"info": peer.info, "setup": peer.setup, "run": peer.run, "evaluate": peer.evaluate})


if __name__ == "__main__":
    main()
