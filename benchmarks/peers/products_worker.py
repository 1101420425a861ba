"""Peer that computes only the matrix products of SAC updates, an upper bound of SAC's speed.

There are two critics and a policy with two hidden layers. Of the large products, three belong to
the targets, six to the critics' loss (forward, and backward to the weights and to the hidden
layer), and seven to the policy's loss (its forward pass, the critics' forward pass and backward
pass to the action, and its own backward pass). There are no biases, activations, or optimizer, and
products that are independent in an update are independent here too.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers.compiled import CompiledPeer
from benchmarks.peers.protocol import Request, serve_peer
from benchmarks.settings import ReplaySetting

NUM_BATCHES = 16
"""Number of different batches, so that the compiler cannot hoist any product out of the loop."""

Layers = tuple[jax.Array, ...]


class ProductsPeer(CompiledPeer):
    """Peer that counts one environment step per update, as in SAC with one environment."""

    packages = ("jax",)
    has_report = True

    def count_devices(self) -> int:
        """Return the number of devices."""
        return jax.local_device_count()

    def setup(self, request: Request) -> dict[str, Any]:
        """Compile a loop of the updates of a measurement."""
        setting = ReplaySetting.from_dict(request["setting"])
        arguments = make_arguments(setting, obs_size=3, action_size=1)
        steps = setting.env_steps

        def run(state: Any, networks: Any, batches: Any) -> Any:
            return state, run_updates(networks, batches, steps)

        return self.compile(run, (), *arguments, env_steps=steps)


def make_arguments(setting: ReplaySetting, *, obs_size: int, action_size: int) -> tuple[Any, Any]:
    """Sample networks, and batches of observations and next observations with their actions."""
    generator = np.random.default_rng(setting.seed)
    width = setting.hidden_size

    def sample_layers(inputs: int, outputs: int) -> Layers:
        shapes = ((inputs, width), (width, width), (width, outputs))
        return tuple(
            jnp.asarray(generator.normal(size=s) / s[0] ** 0.5, jnp.float32) for s in shapes
        )

    critics = [sample_layers(obs_size + action_size, 1) for _ in range(4)]
    networks = {
        "policy": sample_layers(obs_size, 2 * action_size),
        "critics": critics[:2],
        "targets": critics[2:],
    }
    rows = (NUM_BATCHES, setting.batch_size, obs_size + action_size)
    batches = [jnp.asarray(generator.normal(size=rows), jnp.float32) for _ in range(2)]
    return networks, batches


def run_updates(networks: Any, batches: Any, count: int) -> Any:
    """Compute the products of `count` updates and return those of the last one."""
    first = jax.eval_shape(compute_update, networks, [rows[0] for rows in batches])
    results = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), first)

    def body(index: jax.Array, _: Any) -> Any:
        return compute_update(networks, [rows[index % NUM_BATCHES] for rows in batches])

    return jax.lax.fori_loop(0, count, body, results)


def compute_update(networks: Any, batch: Any) -> Any:
    """Compute the products of one update.

    Returns:
        The products in the place of estimates, targets, and gradients.
    """
    inputs, next_inputs = batch
    policy, obs_size = networks["policy"], networks["policy"][0].shape[0]
    next_policy = forward(policy, next_inputs[:, :obs_size])[-1]
    targets = [forward(target, next_inputs)[-1] for target in networks["targets"]]
    critic_gradients, action_gradients = [], []
    for critic in networks["critics"]:
        activations = forward(critic, inputs)
        critic_gradients.append(compute_weight_gradients(critic, activations, activations[-1]))
        value = forward(critic, next_inputs)[-1]  # of the policy's actions in a real update
        to_input = compute_hidden_gradients(critic, value)[-1] @ critic[0].T
        action_gradients.append(to_input[:, : policy[-1].shape[1]])
    activations = forward(policy, inputs[:, :obs_size])
    policy_gradients = compute_weight_gradients(
        policy, activations, sum(action_gradients[1:], action_gradients[0])
    )
    outputs = (next_policy, targets, activations[-1])
    return (*outputs, critic_gradients, policy_gradients)


def forward(layers: Layers, inputs: jax.Array) -> list[jax.Array]:
    """Return the input of each layer and the output of the last one."""
    activations = [inputs]
    for weights in layers:
        activations.append(activations[-1] @ weights)
    return activations


def compute_hidden_gradients(layers: Layers, gradient: jax.Array) -> list[jax.Array]:
    """Return the gradients of the layers' outputs, starting with the last layer."""
    gradients = [gradient]
    for weights in reversed(layers[1:]):
        gradients.append(gradients[-1] @ weights.T)
    return gradients


def compute_weight_gradients(
    layers: Layers, activations: list[jax.Array], gradient: jax.Array
) -> Layers:
    """Return the gradient of each layer's weights."""
    outputs = reversed(compute_hidden_gradients(layers, gradient))
    return tuple(x.T @ g for x, g in zip(activations[:-1], outputs, strict=True))


if __name__ == "__main__":
    serve_peer(ProductsPeer())
