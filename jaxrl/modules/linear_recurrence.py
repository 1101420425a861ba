"""Linear recurrences that are computed in parallel over time, and their initialisers."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Complex, Float

from jaxrl.core.types import Key
from jaxrl.modules.networks import Initializer

FULL_CIRCLE = 2.0 * math.pi


def diagonal_recurrence(
    decay: Complex[Array, " m"],
    inputs: Complex[Array, "T B m"],
    state: Complex[Array, "B m"],
    is_first: Bool[Array, "T B"],
) -> Complex[Array, "T B m"]:
    """xₜ = λ xₜ₋₁ + uₜ for all rows at once, from `state`, and from 0 where an episode starts.

    A start is a factor of 0 in place of λ: the operator of Lu et al. 2023, which sets
    the state anew there, for a new state of 0.
    """
    factors = jnp.where(is_first[..., None], 0.0, decay[None, None])
    inputs = inputs.at[0].add(factors[0] * state)

    def one_after_another(
        earlier: tuple[Array, Array], later: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        (a, u), (b, v) = earlier, later
        return b * a, b * u + v

    return jax.lax.associative_scan(one_after_another, (factors, inputs))[1]


def log_decay_in_ring(min_radius: float, max_radius: float) -> Initializer:
    """Initialises ν with exp(-exp(ν)) = |λ|, λ uniform on the ring between the radii.

    Orvieto et al. 2023, lemma 3.2.
    """

    def initialise(key: Key, shape: tuple[int, ...], dtype: jnp.dtype) -> Float[Array, " m"]:
        inner, outer = min_radius**2, max_radius**2
        squared = jax.random.uniform(key, shape, dtype, inner, outer)
        return jnp.log(-0.5 * jnp.log(squared))

    return initialise


def log_phase_below(max_phase: float) -> Initializer:
    """Initialises θ with exp(θ) = arg λ, uniform between 0 and `max_phase`."""

    def initialise(key: Key, shape: tuple[int, ...], dtype: jnp.dtype) -> Float[Array, " m"]:
        smallest = 1e-6 * max_phase  # log(0) would be no parameter
        return jnp.log(jax.random.uniform(key, shape, dtype, smallest, max_phase))

    return initialise


def eigenvalues(
    log_decay: Float[Array, " m"], log_phase: Float[Array, " m"]
) -> Complex[Array, " m"]:
    """λ = exp(-exp(ν) + i exp(θ)): inside of the unit circle whatever the parameters are."""
    return jnp.exp(jax.lax.complex(-jnp.exp(log_decay), jnp.exp(log_phase)))


def log_normaliser(log_decay: Float[Array, " m"]) -> Float[Array, " m"]:
    """The logarithm of γ = sqrt(1 - |λ|²), with which states have the inputs' variance."""
    return 0.5 * jnp.log(-jnp.expm1(-2.0 * jnp.exp(log_decay)))
