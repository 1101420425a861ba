"""Epochs of minibatches over a fresh batch, each drawn evenly from every logical shard."""

import dataclasses
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt32

from jaxrl.core.types import Key, PyTree
from jaxrl.ops.shuffle import draw_shuffle_constants, shuffle_index


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnPolicyMinibatches:
    """Schedule that visits every row of a train batch once per epoch, in equal minibatches.

    The environments are divided into `num_shards` logical shards. A minibatch takes an equal part
    of each shard, in the shard's own order, so which rows share a minibatch depends on the shards
    and not on how many devices hold them. The order is a bijection computed per index (see
    `ops.shuffle`): no sort, and no copy of the batch except for the minibatch's rows. Without
    `reshuffle`, every epoch repeats the minibatches of the first.

    If minibatches do not divide the batch, the rows of all epochs are one sequence, as in RLlib's
    MiniBatchCyclicIterator: a minibatch at the end of an epoch continues in the next, and the last
    one in an additional epoch. Every minibatch then has the same size.
    """

    num_epochs: int
    num_minibatches: int | Fraction
    """Number of minibatches per epoch: the size of the train batch divided by a minibatch's."""
    num_shards: int
    reshuffle: bool = True

    @property
    def num_updates(self) -> int:
        """Number of minibatches per train batch, over all epochs."""
        return math.ceil(self.num_epochs * self.num_minibatches)

    @property
    def num_updates_of_last_epoch(self) -> int:
        """Number of minibatches with rows of the last epoch."""
        return math.ceil(self.num_minibatches)

    @property
    def num_orders(self) -> int:
        """Number of epochs of which any rows are used, without `reshuffle` 1."""
        return math.ceil(self.num_updates / self.num_minibatches) if self.reshuffle else 1

    def sample_orders(
        self, key: Key, shards: Int[Array, " S"]
    ) -> UInt32[Array, "epochs S 2 rounds"]:
        """Sample the order of every epoch and shard, as constants of the shuffle. Consumes the key.

        Args:
            key: Shuffling key of the train batch, the same on every device.
            shards: Logical shards on this device.
        """
        epochs = jnp.arange(self.num_orders, dtype=jnp.int32)

        def sample_order(epoch: Int[Array, ""], shard: Int[Array, ""]) -> UInt32[Array, "2 rounds"]:
            number = epoch * self.num_shards + shard
            return draw_shuffle_constants(jax.random.fold_in(key, number))

        return jax.vmap(jax.vmap(sample_order, (None, 0)), (0, None))(epochs, shards)

    def minibatch_rows(
        self,
        update: Int[Array, ""],
        orders: UInt32[Array, "epochs S 2 rounds"],
        num_steps: int,
        num_envs: int,
    ) -> Int[Array, " N"]:
        """Return the row indices of a minibatch in data of shape `[num_steps * num_envs, ...]`.

        Args:
            update: Index of the minibatch within the train batch.
            orders: Orders of the train batch, for the S shards on this device.
            num_steps: Length T of the rollout.
            num_envs: Number of environments B on this device, divided among the shards in order.
        """
        num_shards = orders.shape[1]
        envs_per_shard = num_envs // num_shards
        size = num_steps * envs_per_shard

        def shard_rows(local: Int[Array, ""], index: UInt32[Array, " n"]) -> Array:
            index = index.astype(jnp.int32)
            step, env = index // envs_per_shard, index % envs_per_shard
            return step * num_envs + local * envs_per_shard + env

        local = jnp.arange(num_shards, dtype=jnp.int32)
        indices = self._shuffle(update, orders, size)
        return jax.vmap(shard_rows)(local, indices).reshape(-1)

    def _shuffle(
        self, update: Int[Array, ""], orders: UInt32[Array, "epochs S 2 rounds"], size: int
    ) -> UInt32[Array, "S n"]:
        """Return the indices of a minibatch within each shard of `size` rows."""
        part = int(size / Fraction(self.num_minibatches))
        epoch, start = self._locate(update, part, size)
        positions = (start + jnp.arange(part, dtype=jnp.int32)).astype(jnp.uint32)

        def shuffle(epoch: Int[Array, ""], positions: UInt32[Array, " n"]) -> Array:
            order = orders[epoch if self.reshuffle else 0]
            return jax.vmap(lambda constants: shuffle_index(constants, positions, size))(order)

        if size % part == 0:
            return shuffle(epoch, positions)
        is_next = positions >= size
        inside = jnp.where(is_next, positions - size, positions)
        following = jnp.minimum(epoch + 1, self.num_orders - 1)
        return jnp.where(is_next, shuffle(following, inside), shuffle(epoch, inside))

    def _locate(
        self, update: Int[Array, ""], part: int, size: int
    ) -> tuple[Int[Array, ""], Int[Array, ""]]:
        """Return the epoch in which a minibatch starts, and its first position in that epoch."""
        if size % part == 0:
            number = size // part
            return update // number, update % number * part
        starts = np.arange(self.num_updates, dtype=np.int64) * part  # may exceed 32 bits
        epochs = jnp.asarray((starts // size).astype(np.int32))
        return epochs[update], jnp.asarray((starts % size).astype(np.int32))[update]


def flatten_time(tree: PyTree) -> PyTree:
    """Reshape leaves `[T, B, ...]` to `[T * B, ...]`, without a copy."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)


def take_rows(tree: PyTree, rows: Int[Array, " N"]) -> PyTree:
    """Gather the given rows of every leaf."""
    return jax.tree.map(lambda x: jnp.take(x, rows, axis=0, mode="clip"), tree)
