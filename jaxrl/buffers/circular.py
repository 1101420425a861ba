"""Circular buffer of the latest train batches, each reused several times at random ages."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, PyTree


@pytree
class CircularBufferState:
    """Batches `[N, ...]`, remaining uses of each, and the slot of the next one.

    `draws_left` counts down from K to the next `add`; `filled` is the number of stored batches.
    """

    batches: PyTree
    uses_left: Int[Array, " N"]
    next_slot: Int[Array, ""]
    filled: Int[Array, ""]
    draws_left: Int[Array, ""]


@pytree
class SampledBatch:
    """Batch drawn from the buffer; `valid` is False if there was none to draw yet."""

    batch: PyTree
    index: Int[Array, ""]
    valid: Bool[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CircularBuffer:
    """Buffer of N batches, each drawn at most K times (Luo et al. 2020, section 3.2).

    A batch is drawn with a probability proportional to its remaining uses, as in RLlib, except that
    the oldest batches are drawn exclusively when they would otherwise be overwritten unused. With K
    draws after each `add`, every batch is therefore drawn exactly K times and no experience is
    lost. The first draws are withheld until half of the buffer is filled; from then on, K (N // 2)
    uses remain after each round, and a batch waits for N // 2 rounds on average.
    """

    num_batches: int
    iterations_per_batch: int

    def init(self, shapes: PyTree) -> CircularBufferState:
        """Return an empty buffer for batches of these shapes and dtypes."""
        size = self.num_batches
        zero = jnp.zeros((), jnp.int32)
        return CircularBufferState(
            batches=jax.tree.map(lambda x: jnp.zeros((size, *x.shape), x.dtype), shapes),
            uses_left=jnp.zeros((size,), jnp.int32),
            next_slot=zero,
            filled=zero,
            draws_left=zero,
        )

    def add(self, state: CircularBufferState, batch: PyTree) -> CircularBufferState:
        """Store a batch in the oldest slot, writing only that slot."""
        slot, uses = state.next_slot, jnp.int32(self.iterations_per_batch)

        def write(stored: Array, new: Array) -> Array:
            return jax.lax.dynamic_update_index_in_dim(stored, new, slot, axis=0)

        return CircularBufferState(
            batches=jax.tree.map(write, state.batches, batch),
            uses_left=state.uses_left.at[slot].set(uses),
            next_slot=(slot + 1) % self.num_batches,
            filled=jnp.minimum(state.filled + 1, self.num_batches),
            draws_left=uses,
        )

    def sample(
        self, state: CircularBufferState, key: Key
    ) -> tuple[CircularBufferState, SampledBatch]:
        """Sample one batch. Consumes the key."""
        # Ordered by age, beginning with the oldest, which the next `add` overwrites.
        slots = (state.next_slot + jnp.arange(self.num_batches, dtype=jnp.int32)) % self.num_batches
        uses = jnp.cumsum(state.uses_left[slots])
        rounds = jnp.arange(self.num_batches, dtype=jnp.int32) * self.iterations_per_batch
        due = uses >= rounds + jnp.maximum(state.draws_left, 1)  # no draws left for younger ones
        total = jnp.where(due.any(), uses[jnp.argmax(due)], uses[-1])
        ticket = jax.random.randint(key, (), 0, jnp.maximum(total, 1), jnp.int32)
        index = slots[jnp.argmax(uses > ticket)]
        valid = (state.filled > self.num_batches // 2) & (total > 0)
        after = dataclasses.replace(
            state,
            uses_left=state.uses_left.at[index].add(-valid.astype(jnp.int32)),
            draws_left=state.draws_left - 1,
        )
        batch = jax.tree.map(
            lambda x: jax.lax.dynamic_index_in_dim(x, index, axis=0, keepdims=False), state.batches
        )
        return after, SampledBatch(batch=batch, index=index, valid=valid)
