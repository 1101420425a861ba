"""Recorded transitions, and draws of rows from them on a device or in host memory."""

import dataclasses
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import (
    Columns,
    Key,
    ObsSequence,
    PyTree,
    ReturnColumns,
    SuccessorObs,
    Transition,
)
from jaxrl.ops.shuffle import draw_shuffle_constants, shuffle_index

AnyArray = Array | np.ndarray


@pytree
class RowEnds:
    """Ends of the parts of rows `[N]`: what is between each row and them, and what comes after.

    `return_to_go` is the discounted sum of the rewards from the row to the end, `num_steps` their
    number.
    """

    return_to_go: Float[Array, " N"]
    num_steps: Int[Array, " N"]
    terminated: Bool[Array, " N"]
    obs: PyTree


@pytree
class PickedRows:
    """Rows `[N]`, or sequences `[N, L]`, with the rewards of up to n steps from each.

    `num_steps` is the number of steps that are one transition, and `next_obs` comes after them;
    `terminated` is whether the last of them ended the task. `sequence` has the observations of
    sequences, `obs` is then empty. `learns` is False where a row is not learned from.
    """

    obs: PyTree
    action: PyTree
    rewards: Float[Array, "*N n"]
    num_steps: Int[Array, "*N"]
    terminated: Bool[Array, "*N"]
    next_obs: PyTree
    learns: Bool[Array, "*N"]
    extras: dict[str, PyTree]
    ends: RowEnds | None = None
    sequence: ObsSequence | None = None


def fold_rows(picked: PickedRows, gamma: Float[Array, ""]) -> Transition:
    """Fold the rewards of each picked row into one transition.

    Sequences for a module without memory become their rows `[N * L]`, but for the extras of where
    parts end, which stay `[N, L]`.
    """
    if picked.sequence is None and picked.learns.ndim == 2:
        picked = _flatten(picked)
    reward, discount = picked.rewards[..., 0], gamma
    for k in range(1, picked.rewards.shape[-1]):
        is_step = picked.num_steps > k
        reward = reward + jnp.where(is_step, discount * picked.rewards[..., k], 0.0)
        discount = discount * gamma
    steps = picked.num_steps.astype(jnp.float32)
    return Transition(
        obs=picked.obs if picked.sequence is None else picked.sequence,
        action=picked.action,
        reward=reward,
        discount=_discount(picked.terminated, gamma**steps),
        next_obs=_get_next_obs(picked),
        weight=picked.learns.astype(jnp.float32),
        extras=picked.extras | _get_return_columns(picked.ends, gamma),
    )


def _flatten(picked: PickedRows) -> PickedRows:
    """Flatten sequences to rows, except the extras with where parts end."""
    ends = {name: picked.extras[name] for name in (Columns.TERMINATEDS, Columns.TRUNCATEDS)}
    rows = jax.tree.map(lambda x: jnp.asarray(x).reshape(-1, *x.shape[2:]), picked)
    return replace(rows, extras=rows.extras | ends)


def _get_next_obs(picked: PickedRows) -> PyTree:
    if picked.sequence is None:
        return picked.next_obs
    place = jnp.arange(picked.num_steps.shape[-1], dtype=jnp.int32)[None]
    after = place + picked.num_steps.astype(jnp.int32) - 1
    return SuccessorObs(obs=picked.next_obs, after=after, sequence=picked.sequence)


def _get_return_columns(ends: RowEnds | None, gamma: Float[Array, ""]) -> dict[str, PyTree]:
    """Return the extras of `ReturnColumns`, if the learner needs them."""
    if ends is None:
        return {}
    factor = gamma ** ends.num_steps.astype(jnp.float32)
    return {
        ReturnColumns.RETURN_TO_GO: ends.return_to_go,
        ReturnColumns.END_DISCOUNT: _discount(ends.terminated, factor),
        ReturnColumns.END_OBS: ends.obs,
    }


def _discount(terminated: Bool[Array, "*n"], factor: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Return the factor of the value of the observation after rows, 0 after a termination."""
    return factor * (1.0 - jnp.asarray(terminated).astype(jnp.float32))


def take_step(picked: PickedRows, step: Int[Array, ""]) -> PickedRows:
    """Return the rows of one of several gradient steps `[U, N, ...]`.

    They are gathered, as from a dataset, and not sliced: what the compiler makes of the arithmetic
    after it, to the last digit, depends on that.
    """
    num_rows = picked.learns.shape[1]
    rows = step * num_rows + jnp.arange(num_rows, dtype=jnp.int32)
    rows = jax.lax.optimization_barrier(rows)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[rows], picked)


Order = Literal["uniform", "epochs"]
_EPOCH_SALT = 0x65706F63
"""Constant folded into the run's key for the order of rows in epochs."""


@pytree
class Dataset:
    """N recorded transitions in P consecutive parts of episodes, laid end to end.

    A part has one observation more than transitions: row i was acted on at `obs[obs_index[i]]`, and
    its successor is `obs[obs_index[i] + 1]`. `last` is the last row of each row's part, which is
    either terminated or truncated; parts that were cut count as truncated. `is_first` marks the
    first row of each part. Rows of source s are those from `source_start[s]` to
    `source_start[s + 1]`. `statistics` are those of the observation connectors that observations
    have passed already; () where observations are the environment's own.
    """

    obs: PyTree
    obs_index: Int[Array, " N"]
    action: PyTree
    reward: Float[Array, " N"]
    terminated: Bool[Array, " N"]
    truncated: Bool[Array, " N"]
    is_first: Bool[Array, " N"]
    last: Int[Array, " N"]
    source_start: Int[Array, " S+1"]
    extras: dict[str, PyTree] = dataclasses.field(default_factory=dict[str, PyTree])
    statistics: PyTree = ()

    @property
    def num_rows(self) -> int:
        """Number of transitions N."""
        return self.reward.shape[0]

    def get_obs(self, rows: Int[AnyArray, "*n"]) -> PyTree:
        """Return the observations that were acted on."""
        return jax.tree.map(lambda x: x[self.obs_index[rows]], self.obs)

    def get_next_obs(self, rows: Int[AnyArray, "*n"]) -> PyTree:
        """Return the successors of rows, which for an episode's last row is its final observation."""
        return jax.tree.map(lambda x: x[self.obs_index[rows] + 1], self.obs)


class DatasetExtent(Protocol):
    """Number of rows of a dataset, and the first row of each of its sources, `[S + 1]`."""

    @property
    def num_rows(self) -> int: ...

    @property
    def source_start(self) -> Int[AnyArray, " S+1"]: ...


@pytree
class DatasetPosition:
    """Progress in the order of rows: the current epoch, and the number of its rows already drawn."""

    epoch: UInt32[AnyArray, ""]
    offset: UInt32[AnyArray, ""]

    @staticmethod
    def start() -> "DatasetPosition":
        """Return the position before the first draw."""
        return DatasetPosition(epoch=jnp.zeros((), jnp.uint32), offset=jnp.zeros((), jnp.uint32))


@pytree
class DrawnRows:
    """Drawn rows `[N]`, or first rows of sequences; `learns` is False where a row is left out."""

    rows: Int[AnyArray, " N"]
    learns: Bool[AnyArray, " N"]


def compute_returns_to_go(data: Dataset, gamma: Float[Array, ""]) -> Float[Array, " N"]:
    """Compute the discounted sum of the rewards of each row and of those after it in its part."""
    is_last = jnp.arange(data.num_rows, dtype=data.last.dtype) == data.last
    factors = jnp.where(is_last, 0.0, gamma)

    def combine(later: tuple[Array, Array], earlier: tuple[Array, Array]) -> tuple[Array, Array]:
        return earlier[0] * later[0], earlier[1] + earlier[0] * later[1]

    return jax.lax.associative_scan(combine, (factors, data.reward), reverse=True)[1]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class DatasetSampler:
    """Draws of the rows of gradient steps from a dataset.

    Args:
        batch_size: Number of samples per gradient step over all devices: rows, or sequences.
        num_updates: Number of gradient steps per train batch.
        num_shards: Number of logical shards, which draw equally many rows.
        order: "uniform" draws with replacement; "epochs" draws every row once before any again.
        n_step: Minimum and maximum number of steps of a transition.
        sequence_length: Number of rows per sample that are learned from; None for single rows.
        burn_in: Number of rows before a sequence that only the recurrent state is computed from.
        has_memory: Whether sequences are for a module with memory, `[N, L]`; without one, they are
            gathered as their rows, `[N * L]`.
        needs_returns: Whether rows have the extras of `ReturnColumns`.
        source_sizes: Number of samples per gradient step of each source of the dataset; None draws
            from all rows alike.
    """

    batch_size: int
    num_updates: int
    num_shards: int
    order: Order = "uniform"
    n_step: tuple[int, int] = (1, 1)
    sequence_length: int | None = None
    burn_in: int = 0
    has_memory: bool = True
    needs_returns: bool = False
    source_sizes: tuple[int, ...] | None = None

    @property
    def rows_per_update(self) -> int:
        """Rows per gradient step, over all devices."""
        return self.batch_size * (self.sequence_length or 1)

    def as_single_rows(self) -> "DatasetSampler":
        """Return the sampler of single rows that are one step each."""
        return dataclasses.replace(
            self, sequence_length=None, burn_in=0, n_step=(1, 1), needs_returns=False
        )

    def count_samples(self, data: DatasetExtent) -> int:
        """Return the number of samples in an epoch: rows, or sequences side by side."""
        return -(-data.num_rows // (self.sequence_length or 1))

    def init_position(self) -> DatasetPosition | None:
        """Return the position before the first draw; None if draws are independent of each other."""
        return DatasetPosition.start() if self.order == "epochs" else None

    def advance(
        self, data: DatasetExtent, position: DatasetPosition | None
    ) -> DatasetPosition | None:
        """Return the position after one gradient step."""
        if position is None:
            return None
        size = jnp.uint32(self.count_samples(data))
        end = position.offset + jnp.uint32(self.batch_size)
        return DatasetPosition(epoch=position.epoch + end // size, offset=end % size)

    def draw(
        self,
        data: DatasetExtent,
        position: DatasetPosition | None,
        key: Key,
        run_key: Key | None = None,
        axis_name: str | None = None,
    ) -> DrawnRows:
        """Draw the rows of one gradient step that this device learns from.

        They do not depend on the number of devices. Consumes the key.

        Args:
            data: Dataset to draw from, or its extent, of at least `batch_size` samples for epochs.
            position: Position in the epochs; None to draw with replacement.
            key: Key of the draw, the same on every device.
            run_key: Key of the run, from which the order of each epoch derives; None to draw with
                replacement.
            axis_name: Mesh axis that the shards are sharded over, or None.
        """
        if position is not None:
            assert run_key is not None
            return self._draw_next(data, position, run_key, axis_name)
        shards = self._get_local_shards(axis_name)
        keys = jax.vmap(lambda shard: jax.random.fold_in(key, shard))(shards)
        rows = jax.vmap(lambda k: self._draw_shard(data, k))(keys).reshape(-1)
        return DrawnRows(rows=rows, learns=jnp.ones(rows.shape, jnp.bool_))

    def _draw_shard(self, data: DatasetExtent, key: Key) -> Int[Array, " n"]:
        """Draw the rows of one shard with replacement, of each source as many as it has a share."""
        if self.source_sizes is None:
            return jax.random.randint(
                key, (self.batch_size // self.num_shards,), 0, data.num_rows, jnp.int32
            )
        start = data.source_start
        drawn = [
            jax.random.randint(
                jax.random.fold_in(key, i),
                (size // self.num_shards,),
                start[i],
                start[i + 1],
                jnp.int32,
            )
            for i, size in enumerate(self.source_sizes)
        ]
        return jnp.concatenate(drawn)

    def _draw_next(
        self, data: DatasetExtent, position: DatasetPosition, run_key: Key, axis_name: str | None
    ) -> DrawnRows:
        """Return the next samples in the order of the epoch, which may go on in the next one."""
        size, share = self.count_samples(data), self.batch_size // self.num_shards
        shards = self._get_local_shards(axis_name)
        places = shards[:, None] * share + jnp.arange(share, dtype=jnp.int32)[None]
        places = places.reshape(-1).astype(jnp.uint32) + position.offset
        is_next = places >= size
        base = jax.random.fold_in(run_key, _EPOCH_SALT)

        def shuffle(epoch: UInt32[AnyArray, ""]) -> Array:
            constants = draw_shuffle_constants(jax.random.fold_in(base, epoch))
            return shuffle_index(constants, places % jnp.uint32(size), size)

        samples = jnp.where(is_next, shuffle(position.epoch + 1), shuffle(position.epoch))
        rows = samples.astype(jnp.int32) * (self.sequence_length or 1)
        return DrawnRows(rows=rows, learns=jnp.ones(rows.shape, jnp.bool_))

    def _get_local_shards(self, axis_name: str | None) -> Int[Array, " S"]:
        """Return the logical shards of this device."""
        if axis_name is None:
            return jnp.arange(self.num_shards, dtype=jnp.int32)
        here = self.num_shards // jax.lax.axis_size(axis_name)
        return jax.lax.axis_index(axis_name) * here + jnp.arange(here, dtype=jnp.int32)

    def gather(
        self,
        data: Dataset,
        drawn: DrawnRows,
        returns: Float[Array, " N"] | None,
        gamma: Float[Array, ""],
        key: Key,
        axis_name: str | None = None,
    ) -> Transition:
        """Gather the drawn rows, with up to n steps folded into each. Consumes the key.

        Args:
            data: Dataset.
            drawn: Drawn rows, or first rows of sequences.
            returns: `compute_returns_to_go` of all rows; None if the learner does not need them.
            gamma: Discount factor.
            key: Key of the numbers of steps.
            axis_name: Mesh axis that the shards are sharded over, or None.
        """
        max_steps = self.draw_max_steps(key, axis_name)
        return fold_rows(self.pick(data, drawn, max_steps, returns), gamma)

    def pick(
        self,
        data: Dataset,
        drawn: DrawnRows,
        max_steps: Int[AnyArray, " N"],
        returns: Float[AnyArray, " N"] | None = None,
    ) -> PickedRows:
        """Pick drawn rows from a dataset, of JAX's arrays or, with all arguments, of NumPy's.

        The steps of a row end with its part, and then bootstrap from its final observation unless
        the episode terminated. Sequences run over the borders of parts, and over the end of the
        dataset to its beginning; rows after the end are not learned from in epochs, which begin
        with them.

        Args:
            data: Dataset.
            drawn: Drawn rows, or first rows of sequences.
            max_steps: Maximum number of steps of each.
            returns: `compute_returns_to_go` of all rows; None if the learner does not need them.
        """
        xp = _get_module(drawn.rows)
        rows, learns, sequence = drawn.rows, xp.asarray(drawn.learns), None
        limit = max_steps
        if self.sequence_length is not None:
            place = xp.arange(self.sequence_length, dtype=xp.int32)[None]
            sequence = self._pick_sequence(data, rows) if self.has_memory else None
            following = rows[:, None] + place
            learns = xp.broadcast_to(learns[:, None], following.shape)
            if self.order == "epochs":
                learns = learns & (following < data.num_rows)
            rows = following % data.num_rows
            limit = xp.minimum(max_steps[:, None], self.sequence_length - place)
        end = data.last[rows]
        num_steps = xp.minimum(limit, end - rows + 1)
        last = rows + num_steps - 1
        ahead = xp.arange(self.n_step[1], dtype=xp.int32).reshape((1,) * rows.ndim + (-1,))
        extras = _take(data.extras, rows)
        if self.sequence_length is not None:
            extras |= {
                Columns.TERMINATEDS: data.terminated[rows],
                Columns.TRUNCATEDS: data.truncated[rows],
            }
        return PickedRows(
            obs=data.get_obs(rows) if sequence is None else (),
            action=_take(data.action, rows),
            rewards=data.reward[xp.minimum(rows[..., None] + ahead, end[..., None])],
            num_steps=num_steps,
            terminated=data.terminated[last],
            next_obs=data.get_next_obs(last),
            learns=learns,
            extras=extras,
            ends=None if returns is None else self._pick_ends(data, rows, returns, sequence),
            sequence=sequence,
        )

    def _pick_sequence(self, data: Dataset, first: Int[AnyArray, " N"]) -> ObsSequence:
        """Pick the observations of sequences and of the rows before them, `[N, burn_in + L]`.

        The recurrent state is reset at the start of every part.
        """
        assert self.sequence_length is not None
        xp = _get_module(first)
        ahead = xp.arange(-self.burn_in, self.sequence_length, dtype=xp.int32)[None]
        window = (first[:, None] + ahead) % data.num_rows
        return ObsSequence(
            obs=data.get_obs(window),
            carry=None,
            is_first=data.is_first[window],
            burn_in=self.burn_in,
        )

    def _pick_ends(
        self,
        data: Dataset,
        rows: Int[AnyArray, " N *L"],
        returns: Float[AnyArray, " D"],
        sequence: ObsSequence | None,
    ) -> RowEnds:
        """Pick the ends of the parts of rows."""
        last = data.last[rows]
        obs = data.get_next_obs(last)
        return RowEnds(
            return_to_go=returns[rows],
            num_steps=last - rows + 1,
            terminated=data.terminated[last],
            obs=obs if sequence is None else self._remember_ends(data, rows, sequence, obs),
        )

    def _remember_ends(
        self, data: Dataset, rows: Int[AnyArray, "N L"], sequence: ObsSequence, end_obs: PyTree
    ) -> SuccessorObs:
        """Return the final observations of the rows' parts, with the recurrent state before them.

        It is that of the sequence itself where a part ends in it. Otherwise, it is computed over
        the last rows of the part, as many as the sequence has with its burn-in, in front of which
        the state is the initial one, as in front of a sequence. These rows are appended to the
        sequence.
        """
        xp = _get_module(rows)
        length, last = rows.shape[1], data.last[rows]
        reach = self.burn_in + length
        tail = (last[:, -1:] + xp.arange(1 - reach, 1, dtype=xp.int32)[None]) % data.num_rows
        both = jax.tree.map(
            lambda x, y: xp.concatenate([x, y], axis=1), sequence.obs, data.get_obs(tail)
        )
        begins = data.is_first[tail] | (xp.arange(reach) == 0)[None]
        place = xp.arange(length, dtype=xp.int32)[None] + (last - rows)
        return SuccessorObs(
            obs=end_obs,
            after=xp.where(place < length, place, length + reach - 1),
            sequence=replace(
                sequence, obs=both, is_first=xp.concatenate([sequence.is_first, begins], axis=1)
            ),
        )

    def draw_max_steps(self, key: Key, axis_name: str | None = None) -> Int[Array, " N"]:
        """Draw the maximum number of steps of each sample. Consumes the key."""
        low, high = self.n_step
        shards = self._get_local_shards(axis_name)
        share = self.batch_size // self.num_shards
        if low == high:
            return jnp.full((shards.shape[0] * share,), high, jnp.int32)
        keys = jax.vmap(lambda shard: jax.random.fold_in(key, shard))(shards)
        return jax.vmap(lambda k: jax.random.randint(k, (share,), low, high + 1, jnp.int32))(
            keys
        ).reshape(-1)


def _get_module(array: AnyArray) -> Any:
    """Return NumPy for an array of its own, else JAX's."""
    return np if isinstance(array, np.ndarray) else jnp


def _take(tree: PyTree, rows: Int[AnyArray, "*n"]) -> PyTree:
    return jax.tree.map(lambda x: x[rows], tree)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class DatasetSource:
    """Rows of a dataset, drawn for every gradient step; the memory is the position in the epochs.

    It is the counterpart of `training.replay_updates.BufferSource`.
    """

    sampler: DatasetSampler
    data: Dataset
    position: DatasetPosition | None
    returns: Float[Array, " N"] | None
    run_key: Key | None
    axis_name: str | None

    def init_state(self) -> DatasetPosition | None:
        return self.position

    def sample_rows(
        self,
        source_state: DatasetPosition | None,
        step: Int[Array, ""],
        gamma: Float[Array, ""],
        key: Key,
    ) -> tuple[None, Transition]:
        del step
        draw_key, fold_key = jax.random.split(key)
        drawn = self.sampler.draw(self.data, source_state, draw_key, self.run_key, self.axis_name)
        batch = self.sampler.gather(self.data, drawn, self.returns, gamma, fold_key, self.axis_name)
        return None, batch

    def record_td_error(
        self,
        source_state: DatasetPosition | None,
        step: Int[Array, ""],
        indices: None,
        td_error: Float[Array, " N *L"],
    ) -> DatasetPosition | None:
        del step, indices, td_error
        return self.sampler.advance(self.data, source_state)
