"""Fresh data as epochs of minibatches, each drawn evenly from every logical shard."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, UInt32

from jaxrl.core.types import Key, PyTree
from jaxrl.ops.shuffle import shuffle_constants, shuffled_index


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnPolicy:
    """Every row of a train batch once an epoch, in `num_minibatches` equal parts.

    The environments are divided into `num_shards` logical shards. A minibatch takes an equal part
    of each shard, in an order of the shard's own, so which rows share a minibatch depends on the
    shards and not on how many devices hold them. The order is a bijection computed per index
    (see `ops.shuffle`): no sort, and no copy of the batch but the rows at hand. Without
    `reshuffle` every epoch repeats the minibatches of the first.
    """

    num_epochs: int
    num_minibatches: int
    num_shards: int
    reshuffle: bool = True

    @property
    def num_updates(self) -> int:
        """Minibatches of one train batch, all epochs."""
        return self.num_epochs * self.num_minibatches

    def orders(self, key: Key, shards: Int[Array, " S"]) -> UInt32[Array, "epochs S 2 rounds"]:
        """The order of every epoch and shard, as the constants that choose it. Consumes the key.

        Args:
            key: The train batch's key for shuffling, the same on every device.
            shards: Which logical shards are here.
        """
        epochs = jnp.arange(self.num_epochs if self.reshuffle else 1, dtype=jnp.int32)

        def of(epoch: Int[Array, ""], shard: Int[Array, ""]) -> UInt32[Array, "2 rounds"]:
            number = epoch * self.num_shards + shard
            return shuffle_constants(jax.random.fold_in(key, number))

        return jax.vmap(jax.vmap(of, (None, 0)), (0, None))(epochs, shards)

    def rows(
        self,
        update: Int[Array, ""],
        orders: UInt32[Array, "epochs S 2 rounds"],
        num_steps: int,
        num_envs: int,
    ) -> Int[Array, " N"]:
        """The rows of a minibatch in data of shape `[num_steps * num_envs, ...]`.

        Args:
            update: Number of the minibatch within the train batch.
            orders: The train batch's, of the S shards that are here.
            num_steps: Length T of the rollout.
            num_envs: Environments B that are here, divided among the shards in order.
        """
        num_shards = orders.shape[1]
        envs_per_shard = num_envs // num_shards
        size = num_steps * envs_per_shard
        part = size // self.num_minibatches
        epoch, minibatch = update // self.num_minibatches, update % self.num_minibatches
        positions = (minibatch * part + jnp.arange(part, dtype=jnp.int32)).astype(jnp.uint32)

        def of_shard(local: Int[Array, ""], order: UInt32[Array, "2 rounds"]) -> Array:
            index = shuffled_index(order, positions, size).astype(jnp.int32)
            step, env = index // envs_per_shard, index % envs_per_shard
            return step * num_envs + local * envs_per_shard + env

        local = jnp.arange(num_shards, dtype=jnp.int32)
        order = orders[epoch if self.reshuffle else 0]
        return jax.vmap(of_shard)(local, order).reshape(-1)


def flatten_time(tree: PyTree) -> PyTree:
    """`[T, B, ...]` to `[T * B, ...]`, without a copy."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)


def take_rows(tree: PyTree, rows: Int[Array, " N"]) -> PyTree:
    """The given rows of every leaf."""
    return jax.tree.map(lambda x: jnp.take(x, rows, axis=0, mode="clip"), tree)
