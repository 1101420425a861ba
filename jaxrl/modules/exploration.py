"""Exploration: uniformly random actions while replay buffers warm up, and noisy layers."""

from collections.abc import Mapping
from typing import Any, cast

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxrl.core.types import ActionMask, Counter, Key, Keys, Params, Progress, PyTree
from jaxrl.distributions.from_space import ActionDistribution, make_action_distribution
from jaxrl.modules.networks import Initializer
from jaxrl.modules.rl_module import Moment


def is_warming_up(hparams: Mapping[str, Any], progress: Progress) -> Bool[Array, ""]:
    """Return whether the run has taken fewer steps than `initial_random_timesteps`, if set."""
    num_steps = hparams.get("initial_random_timesteps", 0)
    return progress.env_steps.is_below(
        num_steps if isinstance(num_steps, Counter) else Counter.from_number(num_steps)
    )


def compute_env_position(env_index: Int[Array, " B"], num_envs: int) -> Float[Array, " B"]:
    """Compute the places of environments among the N of a run: i / (N - 1) of the i-th, at most 1."""
    last = max(num_envs - 1, 1)
    return jnp.minimum(env_index, last).astype(jnp.float32) / last


def compute_epsilons(moment: Moment, algorithm_config: Mapping[str, Any]) -> Float[Array, " B"]:
    """Compute ε, or ε^(1 + α i / (N − 1)) of environment i of N (Horgan et al. 2018).

    While the run warms up it is 1.

    Args:
        moment: Moment with the hyperparameters `epsilon` and, for α, `epsilon_ladder` if it is set.
        algorithm_config: Settings of the algorithm, of which a ladder reads the number N of
            environments of the run, `num_envs`.
    """
    hparams, index = moment.hparams, moment.env_index
    epsilon = jnp.broadcast_to(hparams["epsilon"], index.shape)
    if "epsilon_ladder" in hparams:
        position = compute_env_position(index, algorithm_config["num_envs"])
        epsilon = epsilon ** (1.0 + hparams["epsilon_ladder"] * position)
    return jnp.where(is_warming_up(hparams, moment.progress), 1.0, epsilon)


def draw_random_noise(action_space: gymnasium.Space[Any], keys: Keys) -> PyTree:
    """Draw the noise of uniformly random actions, one per typed key `[B]`. Consumes the keys."""
    return jax.vmap(make_uniform_distribution(action_space).sample_noise)(keys)


def make_random_action(
    action_space: gymnasium.Space[Any], draws: PyTree, mask: ActionMask | None = None
) -> tuple[PyTree, Float[Array, "*batch"]]:
    """Return uniformly random legal actions `[B, ...]` and their log-probability or log density.

    Actions are a module's: 0 .. n-1 of a discrete space, whatever its start.

    Args:
        action_space: Discrete, MultiDiscrete, MultiBinary, a Box with finite bounds, or a Dict or
            Tuple of these.
        draws: Noise made by `draw_random_noise` from one key per action.
        mask: Mask of legal discrete actions, the choices of a MultiDiscrete concatenated; None if
            all are legal.

    Raises:
        SpaceError: If a Box has infinite bounds, or a space has no distribution.
    """
    distribution = make_uniform_distribution(action_space)
    batch = jax.tree.leaves(draws)[0].shape[0]
    uniform = distribution.from_inputs(
        jnp.zeros((batch, distribution.input_dim), jnp.float32), mask
    )
    actions = uniform.from_noise(draws)
    return actions, uniform.log_prob(actions)


def make_uniform_distribution(action_space: gymnasium.Space[Any]) -> ActionDistribution:
    """Return the distribution of an action space that is uniform where its inputs are 0.

    Raises:
        SpaceError: If a Box has infinite bounds, or a space has no distribution.
    """
    return make_action_distribution(action_space, continuous="uniform")


NOISE = "noise"
_KERNEL_SIGMA = "kernel_sigma"
_lecun = nn.initializers.lecun_normal()


class NoisyDense(nn.Module):
    """Noisy linear layer (Fortunato et al. 2018), with the call signature of `flax.linen.Dense`.

    y = x W + b + f(ε_out) ((x f(ε_in)) W_σ + b_σ)  (eq. 9-11), that is, a layer with the weights W
    + W_σ f(ε_in) f(ε_out)ᵀ, separate ones for every row, at the cost of two matrix products. W_σ
    and b_σ start at sigma0 / sqrt(inputs).
    """

    features: int
    kernel_init: Initializer = _lecun
    bias_init: Initializer = nn.initializers.zeros
    sigma0: float = 0.5

    @nn.compact
    def __call__(self, x: Float[Array, "*batch n"]) -> Float[Array, "*batch m"]:
        num_inputs = x.shape[-1]
        sigma_init = nn.initializers.constant(self.sigma0 / np.sqrt(num_inputs))
        kernel = self.param("kernel", self.kernel_init, (num_inputs, self.features), jnp.float32)
        bias = self.param("bias", self.bias_init, (self.features,), jnp.float32)
        kernel_sigma = self.param(
            _KERNEL_SIGMA, sigma_init, (num_inputs, self.features), jnp.float32
        )
        bias_sigma = self.param("bias_sigma", sigma_init, (self.features,), jnp.float32)
        leading = (1,) * (x.ndim - 1)
        y = x @ kernel + bias.reshape(*leading, -1)
        if not self.has_variable(NOISE, "inputs"):
            return y
        inputs = cast(Array, self.get_variable(NOISE, "inputs"))
        outputs = cast(Array, self.get_variable(NOISE, "outputs"))
        return y + outputs * ((x * inputs) @ kernel_sigma + bias_sigma.reshape(*leading, -1))


def get_noise_sizes(params: Params) -> dict[str, Any]:
    """Return the number of noise values of each noisy layer, for its inputs and its outputs.

    Args:
        params: Parameters of a network, or their shapes.
    """
    sizes: dict[str, Any] = {}
    for name, child in cast(Mapping[str, Any], params).items():
        if not isinstance(child, Mapping):
            continue
        layer = cast(Mapping[str, Any], child)
        if _KERNEL_SIGMA in layer:
            inputs, outputs = layer[_KERNEL_SIGMA].shape
            sizes[name] = {"inputs": inputs, "outputs": outputs}
        elif nested := get_noise_sizes(layer):
            sizes[name] = nested
    return sizes


def draw_noise(sizes: dict[str, Any], key: Key) -> PyTree:
    """Draw the noise of every layer for one row at once. Consumes the key.

    Args:
        sizes: Sizes returned by `get_noise_sizes`.
        key: Key of the row.
    """
    return as_noise(sizes, jax.random.normal(key, (get_noise_width(sizes),), jnp.float32))


def get_noise_width(sizes: dict[str, Any]) -> int:
    """Return the number of normal draws of one row."""
    return sum(jax.tree.leaves(sizes))


def as_noise(sizes: dict[str, Any], normal: Float[Array, "*batch w"]) -> PyTree:
    """Convert normal draws to the noise f(ε) of every layer, f(x) = sign(x) sqrt(|x|).

    Leading axes are kept.
    """
    leaves, tree = jax.tree.flatten(sizes)
    scaled = jnp.sign(normal) * jnp.sqrt(jnp.abs(normal))
    return tree.unflatten(jnp.split(scaled, np.cumsum(leaves)[:-1].tolist(), axis=-1))
