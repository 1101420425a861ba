"""Two networks of your own: a flax module passed as `network`, and an RLModule.

`network` suffices for a policy and a value function. An RLModule also controls how observations are
read and which outputs a loss receives.
"""

import argparse
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxrl import PPOConfig, RLModule, RLModuleSpec
from jaxrl.core.types import Columns


class Residual(nn.Module):
    """Two residual blocks with a policy head and a value head."""

    num_outputs: int
    width: int = 32

    @nn.compact
    def __call__(self, obs: Array) -> tuple[Array, Array]:
        """Return the inputs of the action distribution, and the value."""
        x = nn.Dense(self.width)(obs)
        for _ in range(2):
            x = x + nn.Dense(self.width)(nn.silu(nn.LayerNorm()(x)))
        small = nn.initializers.variance_scaling(0.01, "fan_in", "normal")
        return nn.Dense(self.num_outputs, kernel_init=small)(x), nn.Dense(1)(x)[..., 0]


class Mirrored(RLModule):
    """A module that treats CartPole's mirror images alike.

    It sees the observation and its mirror image, and swaps the two actions' logits for the latter.
    """

    def setup(self) -> None:
        """Create the network; parameters are created by `init`."""
        self.network = Residual(self.distribution.input_dim, self.model_config.get("width", 32))

    def _forward(self, params: Any, obs: Array) -> dict[str, Any]:
        logits, value = self.network.apply({"params": params}, jnp.asarray(obs, jnp.float32))
        swapped, mirrored = self.network.apply({"params": params}, -jnp.asarray(obs, jnp.float32))
        return {
            Columns.ACTION_DIST_INPUTS: 0.5 * (logits + swapped[..., ::-1]),
            Columns.VF_PREDS: 0.5 * (value + mirrored),
        }


def main(iterations: int, width: int) -> None:
    """Train with each of the two, and print the size of the module."""
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=8)
        .training(train_batch_size=256, minibatch_size=64, num_epochs=4, lr=1e-3)
        .debugging(loggers=[])
    )
    mirrored = RLModuleSpec(module_class=Mirrored, model_config={"width": width})
    for name, chosen in {
        "network": config.copy().rl_module(network=Residual, model_config={"width": width}),
        "RLModule": config.copy().rl_module(rl_module_spec=mirrored),
    }.items():
        with chosen.build() as algo:
            for _ in range(iterations):
                result = algo.train()
            params = jax.tree.leaves(algo.get_weights())
        number = sum(leaf.size for leaf in params)
        print(f"{name}: {number} parameters, {result['env_runners']['episode_return_mean']:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--width", type=int, default=16)
    main(**vars(parser.parse_args()))
