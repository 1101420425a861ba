"""Uniformly random actions, with which algorithms that replay fill their buffer at first."""

from collections.abc import Mapping
from typing import Any, cast

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float

from jaxrl.core.types import Counter, Key, Params, Progress, PyTree
from jaxrl.distributions.from_space import action_distribution
from jaxrl.errors import SpaceError
from jaxrl.modules.networks import Initializer


def warming_up(hparams: Mapping[str, Any], progress: Progress) -> Bool[Array, ""]:
    """Whether the run has taken fewer steps than `initial_random_timesteps`, if there are any.

    Args:
        hparams: Current values by name.
        progress: Of the run, all environments together.
    """
    until = hparams.get("initial_random_timesteps", 0)
    return progress.env_steps.is_below(until if isinstance(until, Counter) else Counter.of(until))


def draw_random(action_space: gymnasium.Space[Any], keys: Key) -> PyTree:
    """What uniformly random actions draw, one for each of the typed keys `[B]`.

    Consumes the keys.
    """
    if isinstance(action_space, spaces.Box):
        shape = action_space.shape
        return jax.vmap(lambda key: jax.random.uniform(key, shape, jnp.float32))(keys)
    return jax.vmap(action_distribution(action_space).noise)(keys)


def random_action(
    action_space: gymnasium.Space[Any], draws: PyTree, mask: Bool[Array, "B n"] | None = None
) -> tuple[PyTree, Float[Array, " B"]]:
    """Uniformly random legal actions `[B, ...]` and the log of their probability or density.

    Actions are a module's: 0 .. n-1 of a discrete space, whatever its start.

    Args:
        action_space: Discrete, MultiDiscrete or a Box with finite bounds.
        draws: What `draw_random` made of one key per action.
        mask: Which discrete actions are legal, the choices of a MultiDiscrete one after another;
            None for all of them.

    Raises:
        SpaceError: For a Box without finite bounds, or a space without a distribution.
    """
    if isinstance(action_space, spaces.Box):
        return _random_point(action_space, draws)
    distribution = action_distribution(action_space)
    batch = jax.tree.leaves(draws)[0].shape[0]
    uniform = distribution.from_inputs(jnp.zeros((batch, distribution.input_dim)), mask)
    actions = uniform.pick(draws)
    return actions, uniform.log_prob(actions)


def check_random(action_space: gymnasium.Space[Any]) -> None:
    """Refuse a Box that has no uniformly random point.

    Raises:
        SpaceError: A bound is infinite.
    """
    if isinstance(action_space, spaces.Box):
        _bounds(action_space)


def _random_point(space: spaces.Box, draws: Array) -> tuple[Array, Float[Array, " B"]]:
    low, high = _bounds(space)
    width = high - low
    # Rounding may step over the upper bound by one unit, which the space would refuse.
    actions = jnp.asarray(low)[None] + draws * jnp.asarray(width)[None]
    actions = jnp.minimum(actions, jnp.asarray(high)[None])
    log_density = -float(np.sum(np.log(np.where(width > 0.0, width, 1.0))))
    return actions, jnp.full(draws.shape[:1], log_density, jnp.float32)


def _bounds(space: spaces.Box) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    low, high = np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise SpaceError(
            f"The action space {space} has an infinite bound, so that no action is uniformly "
            "random; give it finite bounds or set initial_random_timesteps=0."
        )
    return low, high


NOISE = "noise"
_SPREAD = "kernel_sigma"
_lecun = nn.initializers.lecun_normal()


class NoisyDense(nn.Module):
    """y = x W + b + f(ε_out) ((x f(ε_in)) W_σ + b_σ)  (eq. 9-11), called as `flax.linen.Dense` is.

    That is a layer with the weights W + W_σ f(ε_in) f(ε_out)ᵀ, different ones for every row, for
    the price of two matrix products. W_σ and b_σ start at sigma0 / sqrt(inputs).
    """

    features: int
    kernel_init: Initializer = _lecun
    bias_init: Initializer = nn.initializers.zeros
    sigma0: float = 0.5

    @nn.compact
    def __call__(self, x: Float[Array, "*batch n"]) -> Float[Array, "*batch m"]:
        size = x.shape[-1]
        spread = nn.initializers.constant(self.sigma0 / np.sqrt(size))
        kernel = self.param("kernel", self.kernel_init, (size, self.features))
        bias = self.param("bias", self.bias_init, (self.features,))
        kernel_sigma = self.param(_SPREAD, spread, (size, self.features))
        bias_sigma = self.param("bias_sigma", spread, (self.features,))
        one = (1,) * (x.ndim - 1)
        y = x @ kernel + bias.reshape(*one, -1)
        if not self.has_variable(NOISE, "inputs"):
            return y
        inputs = cast(Array, self.get_variable(NOISE, "inputs"))
        outputs = cast(Array, self.get_variable(NOISE, "outputs"))
        return y + outputs * ((x * inputs) @ kernel_sigma + bias_sigma.reshape(*one, -1))


def noise_sizes(params: Params) -> dict[str, Any]:
    """How many numbers each noisy layer draws, for its inputs and its outputs.

    Args:
        params: A network's parameters, or their shapes.
    """
    sizes: dict[str, Any] = {}
    for name, part in cast(Mapping[str, Any], params).items():
        if not isinstance(part, Mapping):
            continue
        layer = cast(Mapping[str, Any], part)
        if _SPREAD in layer:
            inputs, outputs = layer[_SPREAD].shape
            sizes[name] = {"inputs": inputs, "outputs": outputs}
        elif below := noise_sizes(layer):
            sizes[name] = below
    return sizes


def draw_noise(sizes: dict[str, Any], key: Key) -> PyTree:
    """The noise of every layer for one row, all in one draw. Consumes the key.

    Args:
        sizes: From `noise_sizes`.
        key: The row's.
    """
    return as_noise(sizes, jax.random.normal(key, (noise_width(sizes),)))


def noise_width(sizes: dict[str, Any]) -> int:
    """Normal draws of one row."""
    return sum(jax.tree.leaves(sizes))


def as_noise(sizes: dict[str, Any], normal: Float[Array, "*batch w"]) -> PyTree:
    """f(ε) for every layer, f(x) = sign(x) sqrt(|x|), from draws with the layers' leading axes."""
    leaves, tree = jax.tree.flatten(sizes)
    scaled = jnp.sign(normal) * jnp.sqrt(jnp.abs(normal))
    return tree.unflatten(jnp.split(scaled, np.cumsum(leaves)[:-1].tolist(), axis=-1))
