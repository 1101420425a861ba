"""Action distributions: pytrees whose leaves have leading batch axes.

Illegal actions have logits of -1e9, not -inf: their probability is exactly 0 in float32, and
entropy, KL and gradients stay finite. A distribution can be vmapped over, one key per row:
`jax.vmap(lambda d, k: d.sample(k))(distribution, keys)`.
"""

import math
from typing import Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float, Int

from jaxrl.core.struct import pytree, static
from jaxrl.core.types import ActionMask, Key, PyTree, TreeStructure
from jaxrl.errors import SpaceError

ILLEGAL_LOGIT = -1e9
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
MAX_SQUASHED_LOG_STD = 2.0
"""Upper limit of the log standard deviation, as in the code of Haarnoja et al. 2018.

Above it nearly every sample is at a bound.
"""
_TANH_EDGE = 1.0 - 1e-6  # its atanh is 7.25 in float32; that of the next float32 is infinite


class Distribution(Protocol):
    """Interface of action distributions; results have the batch's shape."""

    def sample_noise(self, key: Key) -> PyTree:
        """Draw the noise of a sample, which depends on shapes alone. Consumes the key."""
        ...

    def from_noise(self, noise: PyTree) -> PyTree:
        """Return the action that the noise selects."""
        ...

    def sample(self, key: Key) -> PyTree:
        """Sample one action per batch element as `from_noise(sample_noise(key))`. Consumes the key."""
        ...

    def log_prob(self, action: PyTree) -> Float[Array, "*batch"]:
        """Compute the log of the probability (or density) of `action`."""
        ...

    def entropy(self) -> Float[Array, "*batch"]:
        """Compute the entropy in nats."""
        ...

    def kl(self, other: Self) -> Float[Array, "*batch"]:
        """Compute KL(self || other) in nats."""
        ...

    def mode(self) -> PyTree:
        """Return the most likely action, which inference uses."""
        ...


def mask_logits(
    logits: Float[Array, "*batch n"], mask: ActionMask | None
) -> Float[Array, "*batch n"]:
    """Set the logits of illegal entries (mask 0 or False) to -1e9.

    If all are illegal, the distribution is uniform.
    """
    if mask is None:
        return logits
    return jnp.where(mask.astype(jnp.bool_), logits, ILLEGAL_LOGIT)


@pytree
class Categorical:
    """One of n actions, 0 .. n-1.

    The start of a `Discrete(n, start=...)` is added by a connector, see
    `jaxrl.distributions.from_space.get_action_start`.
    """

    logits: Float[Array, "*batch n"]

    @classmethod
    def from_inputs(
        cls, inputs: Float[Array, "*batch n"], mask: ActionMask | None = None
    ) -> "Categorical":
        return cls(logits=mask_logits(inputs, mask))

    def sample_noise(self, key: Key) -> Float[Array, "*batch n"]:
        """Draw Gumbel noise: the largest perturbed logit is a sample (Maddison et al. 2014)."""
        return jax.random.gumbel(key, self.logits.shape, self.logits.dtype)

    def from_noise(self, noise: Float[Array, "*batch n"]) -> Int[Array, "*batch"]:
        return jnp.argmax(self.logits + noise, axis=-1).astype(jnp.int32)

    def sample(self, key: Key) -> Int[Array, "*batch"]:
        return self.from_noise(self.sample_noise(key))

    def log_prob(self, action: Int[Array, "*batch"]) -> Float[Array, "*batch"]:
        """Compute the log-probability of `action`, which must lie in 0 .. n-1 (not checked)."""
        # Sum against the one-hot: the gradient of a gather is a serial scatter on a CPU.
        chosen = jax.nn.one_hot(action, self.logits.shape[-1], dtype=jnp.bool_)
        return jnp.sum(jnp.where(chosen, self.log_probs(), 0.0), axis=-1)

    def entropy(self) -> Float[Array, "*batch"]:
        log_probs = self.log_probs()
        return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)

    def kl(self, other: "Categorical") -> Float[Array, "*batch"]:
        log_probs = self.log_probs()
        return jnp.sum(jnp.exp(log_probs) * (log_probs - other.log_probs()), axis=-1)

    def mode(self) -> Int[Array, "*batch"]:
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def probs(self) -> Float[Array, "*batch n"]:
        return jnp.exp(self.log_probs())

    def log_probs(self) -> Float[Array, "*batch n"]:
        """Return the log-probabilities of all actions."""
        return jax.nn.log_softmax(self.logits, axis=-1)


@pytree
class MultiCategorical:
    """Independent choices, one for each entry of a `MultiDiscrete`.

    `logits` are padded with -1e9 to the m options of the largest choice. Actions have the space's
    shape.
    """

    logits: Float[Array, "*batch k m"]
    event_shape: tuple[int, ...] = static()

    @classmethod
    def from_inputs(
        cls,
        inputs: Float[Array, "*batch n"],
        mask: ActionMask | None = None,
        *,
        num_choices: tuple[int, ...],
        event_shape: tuple[int, ...],
    ) -> "MultiCategorical":
        """Build from the concatenated logits of the choices (`n` = sum of `num_choices`)."""
        flat = mask_logits(inputs, mask)
        largest = max(num_choices)
        if min(num_choices) == largest:
            logits = flat.reshape(*flat.shape[:-1], len(num_choices), largest)
            return cls(logits=logits, event_shape=event_shape)
        ends = np.cumsum(num_choices)
        width = [(0, 0)] * (flat.ndim - 1)
        rows = [
            jnp.pad(
                flat[..., end - n : end], [*width, (0, largest - n)], constant_values=ILLEGAL_LOGIT
            )
            for end, n in zip(ends.tolist(), num_choices, strict=True)
        ]
        return cls(logits=jnp.stack(rows, axis=-2), event_shape=event_shape)

    def sample_noise(self, key: Key) -> Float[Array, "*batch k m"]:
        return self._choices().sample_noise(key)

    def from_noise(self, noise: Float[Array, "*batch k m"]) -> Int[Array, "*batch_and_event"]:
        return self._to_event(self._choices().from_noise(noise))

    def sample(self, key: Key) -> Int[Array, "*batch_and_event"]:
        return self.from_noise(self.sample_noise(key))

    def log_prob(self, action: Int[Array, "*batch_and_event"]) -> Float[Array, "*batch"]:
        flat = action.reshape(self.logits.shape[:-1])
        return jnp.sum(self._choices().log_prob(flat), axis=-1)

    def entropy(self) -> Float[Array, "*batch"]:
        return jnp.sum(self._choices().entropy(), axis=-1)

    def kl(self, other: "MultiCategorical") -> Float[Array, "*batch"]:
        return jnp.sum(self._choices().kl(other._choices()), axis=-1)

    def mode(self) -> Int[Array, "*batch_and_event"]:
        return self._to_event(self._choices().mode())

    def _choices(self) -> Categorical:
        return Categorical(logits=self.logits)

    def _to_event(self, flat: Int[Array, "*batch k"]) -> Int[Array, "*batch_and_event"]:
        return flat.reshape(*flat.shape[:-1], *self.event_shape)


def _sum_event(x: Array, event_shape: tuple[int, ...]) -> Array:
    return jnp.sum(x, axis=tuple(range(-len(event_shape), 0))) if event_shape else x


def _split_mean_log_std(
    inputs: Float[Array, "*batch m"], event_shape: tuple[int, ...], log_std_clip: float
) -> tuple[Array, Array]:
    """Split the inputs into halves of the event's shape, log_std clamped to [-clip, clip]."""
    mean, log_std = jnp.split(inputs, 2, axis=-1)
    if math.isfinite(log_std_clip):
        log_std = jnp.clip(log_std, -log_std_clip, log_std_clip)
    shape = (*inputs.shape[:-1], *event_shape)
    return mean.reshape(shape), log_std.reshape(shape)


@pytree
class DiagGaussian:
    """Independent normal actions, unbounded; a connector clips them or maps them to the space."""

    mean: Float[Array, "*batch_and_event"]
    log_std: Float[Array, "*batch_and_event"]
    event_shape: tuple[int, ...] = static()

    @classmethod
    def from_inputs(
        cls,
        inputs: Float[Array, "*batch m"],
        mask: None = None,
        *,
        event_shape: tuple[int, ...],
        log_std_clip: float = 20.0,
    ) -> "DiagGaussian":
        """Build from all means, then all log standard deviations (clamped to ±`log_std_clip`)."""
        mean, log_std = _split_mean_log_std(inputs, event_shape, log_std_clip)
        return cls(mean=mean, log_std=log_std, event_shape=event_shape)

    def sample_noise(self, key: Key) -> Float[Array, "*batch_and_event"]:
        return jax.random.normal(key, self.mean.shape, self.mean.dtype)

    def from_noise(
        self, noise: Float[Array, "*batch_and_event"]
    ) -> Float[Array, "*batch_and_event"]:
        return self.mean + jnp.exp(self.log_std) * noise

    def sample(self, key: Key) -> Float[Array, "*batch_and_event"]:
        return self.from_noise(self.sample_noise(key))

    def log_prob(self, action: Float[Array, "*batch_and_event"]) -> Float[Array, "*batch"]:
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return _sum_event(-0.5 * jnp.square(z) - self.log_std - _HALF_LOG_2PI, self.event_shape)

    def entropy(self) -> Float[Array, "*batch"]:
        return _sum_event(self.log_std + (0.5 + _HALF_LOG_2PI), self.event_shape)

    def kl(self, other: "DiagGaussian") -> Float[Array, "*batch"]:
        """Compute Σ log σ₂/σ₁ + (σ₁² + (μ₁ − μ₂)²) / 2σ₂² − 1/2."""
        log_ratio = self.log_std - other.log_std
        z = (self.mean - other.mean) * jnp.exp(-other.log_std)
        kl = 0.5 * (jnp.exp(2.0 * log_ratio) + jnp.square(z) - 1.0) - log_ratio
        return _sum_event(kl, self.event_shape)

    def mode(self) -> Float[Array, "*batch_and_event"]:
        return self.mean


@pytree
class SquashedGaussian:
    """Normal distribution squashed by tanh into [low, high].

    `a = low + (high - low) (tanh(u) + 1) / 2`, with u normal. `low` and `high` are the bounds of
    the flattened event, or a single number for all of it.
    """

    mean: Float[Array, "*batch_and_event"]
    log_std: Float[Array, "*batch_and_event"]
    low: tuple[float, ...] = static()
    high: tuple[float, ...] = static()
    event_shape: tuple[int, ...] = static()

    @classmethod
    def from_inputs(
        cls,
        inputs: Float[Array, "*batch m"],
        mask: None = None,
        *,
        low: tuple[float, ...],
        high: tuple[float, ...],
        event_shape: tuple[int, ...],
        log_std_clip: float = 20.0,
    ) -> "SquashedGaussian":
        """Build from all means, then all log standard deviations.

        These are clamped to ±`log_std_clip`, and from above to `MAX_SQUASHED_LOG_STD`.
        """
        mean, log_std = _split_mean_log_std(inputs, event_shape, log_std_clip)
        log_std = jnp.minimum(log_std, MAX_SQUASHED_LOG_STD)
        return cls(mean=mean, log_std=log_std, low=low, high=high, event_shape=event_shape)

    def sample_noise(self, key: Key) -> Float[Array, "*batch_and_event"]:
        return self._gaussian().sample_noise(key)

    def from_noise(
        self, noise: Float[Array, "*batch_and_event"]
    ) -> Float[Array, "*batch_and_event"]:
        return self._squash(self._gaussian().from_noise(noise))

    def sample(self, key: Key) -> Float[Array, "*batch_and_event"]:
        return self.from_noise(self.sample_noise(key))

    def sample_and_log_prob(
        self, key: Key
    ) -> tuple[Float[Array, "*batch_and_event"], Float[Array, "*batch"]]:
        """Sample with the log density, exact even where tanh saturates. Consumes the key."""
        return self.from_noise_and_log_prob(self.sample_noise(key))

    def from_noise_and_log_prob(
        self, noise: Float[Array, "*batch_and_event"]
    ) -> tuple[Float[Array, "*batch_and_event"], Float[Array, "*batch"]]:
        """Return the action of the noise and its log density, exact even where tanh saturates."""
        u = self._gaussian().from_noise(noise)
        # From the noise: u - mean loses digits where the deviation is small compared to the mean.
        gaussian = -0.5 * jnp.square(noise) - self.log_std - _HALF_LOG_2PI
        log_slope = _log_tanh_slope(u) + self._log_half_width()
        return self._squash(u), _sum_event(gaussian - log_slope, self.event_shape)

    def log_prob(self, action: Float[Array, "*batch_and_event"]) -> Float[Array, "*batch"]:
        """Compute the log density of `action`; at a bound, that of the nearest action inside."""
        low, width = self._bounds()
        unit = 2.0 * (action - low) / width - 1.0
        u = jnp.arctanh(jnp.clip(unit, -_TANH_EDGE, _TANH_EDGE))
        return self._unsquashed_log_prob(u)

    def entropy(self) -> Float[Array, "*batch"]:
        """Compute H(u) + E[log da/du], the expectation by Gauss-Hermite quadrature on 64 nodes."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(64)
        weights = weights / weights.sum()
        column = (-1,) + (1,) * self.mean.ndim
        z = jnp.asarray(nodes, self.mean.dtype).reshape(column)
        weight = jnp.asarray(weights, self.mean.dtype).reshape(column)
        u = self.mean[None] + jnp.exp(self.log_std)[None] * z
        log_slope = jnp.sum(weight * _log_tanh_slope(u), axis=0) + self._log_half_width()
        return self._gaussian().entropy() + _sum_event(log_slope, self.event_shape)

    def kl(self, other: "SquashedGaussian") -> Float[Array, "*batch"]:
        """Compute the KL of the base normals, which the shared bijection leaves unchanged.

        Equal bounds are assumed.
        """
        return self._gaussian().kl(other._gaussian())

    def mode(self) -> Float[Array, "*batch_and_event"]:
        """Return the squashed mean, as RLlib does (the density's mode has no closed form)."""
        return self._squash(self.mean)

    def _gaussian(self) -> DiagGaussian:
        return DiagGaussian(mean=self.mean, log_std=self.log_std, event_shape=self.event_shape)

    def _bounds(self) -> tuple[Array, Array]:
        """Return low and width, with as many axes as `mean`."""
        low, high = np.asarray(self.low, np.float32), np.asarray(self.high, np.float32)
        batch_ndim = self.mean.ndim - len(self.event_shape)
        event = self.event_shape if low.size > 1 else (1,) * len(self.event_shape)
        shape = (1,) * batch_ndim + event
        return jnp.asarray(low.reshape(shape)), jnp.asarray((high - low).reshape(shape))

    def _log_half_width(self) -> Array:
        return jnp.log(0.5 * self._bounds()[1])

    def _squash(self, u: Array) -> Array:
        low, width = self._bounds()
        # Rounding may exceed the upper bound by one ulp, which is outside of the space.
        return jnp.clip(low + 0.5 * width * (jnp.tanh(u) + 1.0), low, low + width)

    def _unsquashed_log_prob(self, u: Array) -> Array:
        log_slope = _log_tanh_slope(u) + self._log_half_width()
        return self._gaussian().log_prob(u) - _sum_event(log_slope, self.event_shape)


def _log_tanh_slope(u: Array) -> Array:
    """Compute log(1 − tanh²u) = 2 (log 2 − u − softplus(−2u)), finite for any finite u."""
    return 2.0 * (math.log(2.0) - u - jax.nn.softplus(-2.0 * u))


@pytree
class Deterministic:
    """Point mass: the log-probability is 0 at the value and -inf elsewhere, the entropy 0."""

    value: Float[Array, "*batch_and_event"]
    event_shape: tuple[int, ...] = static()

    @classmethod
    def from_inputs(
        cls,
        inputs: Float[Array, "*batch n"],
        mask: None = None,
        *,
        event_shape: tuple[int, ...],
    ) -> "Deterministic":
        value = inputs.reshape(*inputs.shape[:-1], *event_shape)
        return cls(value=value, event_shape=event_shape)

    def sample_noise(self, key: Key) -> Float[Array, "*batch_and_event"]:
        """Return zeros; the key is not consumed."""
        return jnp.zeros_like(self.value)

    def from_noise(
        self, noise: Float[Array, "*batch_and_event"]
    ) -> Float[Array, "*batch_and_event"]:
        return self.value

    def sample(self, key: Key) -> Float[Array, "*batch_and_event"]:
        """Return the value; the key is not consumed."""
        return self.value

    def log_prob(self, action: Float[Array, "*batch_and_event"]) -> Float[Array, "*batch"]:
        return jnp.where(self._is_equal(action), 0.0, -jnp.inf)

    def entropy(self) -> Float[Array, "*batch"]:
        batch_ndim = self.value.ndim - len(self.event_shape)
        return jnp.zeros(self.value.shape[:batch_ndim], self.value.dtype)

    def kl(self, other: "Deterministic") -> Float[Array, "*batch"]:
        return jnp.where(self._is_equal(other.value), 0.0, jnp.inf)

    def mode(self) -> Float[Array, "*batch_and_event"]:
        return self.value

    def _is_equal(self, value: Array) -> Array:
        axes = tuple(range(-len(self.event_shape), 0))
        return jnp.all(self.value == value, axis=axes)


@pytree
class IndependentBernoulli:
    """Independent bits of a `MultiBinary` action, each a choice of two.

    Inputs and masks have two numbers per bit, for 0 and for 1, one bit after another.
    """

    choices: MultiCategorical

    @classmethod
    def from_inputs(
        cls,
        inputs: Float[Array, "*batch n"],
        mask: ActionMask | None = None,
        *,
        event_shape: tuple[int, ...],
    ) -> "IndependentBernoulli":
        num_choices = (2,) * (inputs.shape[-1] // 2)
        choices = MultiCategorical.from_inputs(
            inputs, mask, num_choices=num_choices, event_shape=event_shape
        )
        return cls(choices=choices)

    def sample_noise(self, key: Key) -> Float[Array, "*batch k 2"]:
        return self.choices.sample_noise(key)

    def from_noise(self, noise: Float[Array, "*batch k 2"]) -> Int[Array, "*batch_and_event"]:
        return self.choices.from_noise(noise).astype(jnp.int8)

    def sample(self, key: Key) -> Int[Array, "*batch_and_event"]:
        return self.from_noise(self.sample_noise(key))

    def log_prob(self, action: Int[Array, "*batch_and_event"]) -> Float[Array, "*batch"]:
        return self.choices.log_prob(action)

    def entropy(self) -> Float[Array, "*batch"]:
        return self.choices.entropy()

    def kl(self, other: "IndependentBernoulli") -> Float[Array, "*batch"]:
        return self.choices.kl(other.choices)

    def mode(self) -> Int[Array, "*batch_and_event"]:
        return self.choices.mode().astype(jnp.int8)


@pytree
class Joint:
    """Independent parts of an action: log-probabilities, entropies and divergences add up.

    `parts` are in the leaf order of `structure`, the tree structure of an action.
    """

    parts: tuple[Distribution, ...]
    structure: TreeStructure = static()

    def sample_noise(self, key: Key) -> tuple[PyTree, ...]:
        keys = jax.random.split(key, len(self.parts))
        return tuple(part.sample_noise(keys[i]) for i, part in enumerate(self.parts))

    def from_noise(self, noise: tuple[PyTree, ...]) -> PyTree:
        pairs = zip(self.parts, noise, strict=True)
        return self.structure.unflatten([part.from_noise(part_noise) for part, part_noise in pairs])

    def sample(self, key: Key) -> PyTree:
        return self.from_noise(self.sample_noise(key))

    def log_prob(self, action: PyTree) -> Float[Array, "*batch"]:
        pairs = zip(self.parts, self.structure.flatten_up_to(action), strict=True)
        return sum_terms([part.log_prob(value) for part, value in pairs])

    def entropy(self) -> Float[Array, "*batch"]:
        return sum_terms([part.entropy() for part in self.parts])

    def kl(self, other: "Joint") -> Float[Array, "*batch"]:
        pairs = zip(self.parts, other.parts, strict=True)
        return sum_terms([part.kl(other_part) for part, other_part in pairs])

    def mode(self) -> PyTree:
        return self.structure.unflatten([part.mode() for part in self.parts])


def sum_terms(terms: list[Array]) -> Array:
    """Sum at least one term."""
    return sum(terms[1:], terms[0])


@pytree
class Uniform:
    """Uniform distribution over a Box; its inputs only set the batch size.

    Directions without width are constants and have no density.
    """

    batch: Float[Array, "*batch"]
    low: tuple[float, ...] = static()
    high: tuple[float, ...] = static()
    event_shape: tuple[int, ...] = static()

    @classmethod
    def from_inputs(
        cls,
        inputs: Float[Array, "*batch n"],
        mask: None = None,
        *,
        low: tuple[float, ...],
        high: tuple[float, ...],
        event_shape: tuple[int, ...],
    ) -> "Uniform":
        batch = jnp.zeros(inputs.shape[:-1], jnp.float32)
        return cls(batch=batch, low=low, high=high, event_shape=event_shape)

    def sample_noise(self, key: Key) -> Float[Array, "*batch_and_event"]:
        return jax.random.uniform(key, self.batch.shape + self.event_shape, jnp.float32)

    def from_noise(
        self, noise: Float[Array, "*batch_and_event"]
    ) -> Float[Array, "*batch_and_event"]:
        low, high = self._bounds
        actions = self._broadcast(low) + noise * self._broadcast(high - low)
        # Rounding may exceed the upper bound by one ulp, which is outside of the space.
        return jnp.minimum(actions, self._broadcast(high))

    def sample(self, key: Key) -> Float[Array, "*batch_and_event"]:
        return self.from_noise(self.sample_noise(key))

    def log_prob(self, action: Float[Array, "*batch_and_event"]) -> Float[Array, "*batch"]:
        low, high = (self._broadcast(bound) for bound in self._bounds)
        axes = tuple(range(-len(self.event_shape), 0))
        is_inside = jnp.all((action >= low) & (action <= high), axis=axes)
        return jnp.where(is_inside, -self.entropy(), -jnp.inf)

    def entropy(self) -> Float[Array, "*batch"]:
        low, high = self._bounds
        width = high - low
        return self.batch + float(np.sum(np.log(np.where(width > 0.0, width, 1.0))))

    def kl(self, other: "Uniform") -> Float[Array, "*batch"]:
        """Return the divergence from another uniform distribution over the same Box, 0."""
        return jnp.zeros_like(other.batch)

    def mode(self) -> Float[Array, "*batch_and_event"]:
        """Return the center of the Box."""
        low, high = self._bounds
        return self._broadcast((low + high) / 2)

    def _broadcast(self, value: Float[np.ndarray, "*event"]) -> Float[Array, "*batch_and_event"]:
        return jnp.broadcast_to(value, self.batch.shape + self.event_shape)

    @property
    def _bounds(self) -> tuple[Float[np.ndarray, "*event"], Float[np.ndarray, "*event"]]:
        low, high = np.asarray(self.low, np.float32), np.asarray(self.high, np.float32)
        return low.reshape(self.event_shape), high.reshape(self.event_shape)


def get_uniform_bounds(space: spaces.Box) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the bounds of the flattened action.

    Raises:
        SpaceError: If a bound is infinite.
    """
    low, high = (np.asarray(bound, np.float32).flatten() for bound in (space.low, space.high))
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise SpaceError(
            f"The action space {space} has an infinite bound, so uniformly random actions are "
            "undefined; give it finite bounds or set initial_random_timesteps=0."
        )
    return tuple(low.tolist()), tuple(high.tolist())
