"""Made-up streams of transitions, a plain list that remembers them, and buffers to put them in."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl import ReplayBuffer
from jaxrl.buffers.replay import ReplayState, SampledIndices
from jaxrl.core.types import Rollout

IMAGE = (3, 2)
GAMMA = 0.9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One step of one environment; `number` tells it from every other."""

    number: int
    reward: float
    terminated: bool
    truncated: bool
    is_first: bool
    mask: bool


class Streams:
    """Rows of `num_envs` environments with ends, starts and rows that are no transitions at random.

    An end and the start that follows it are drawn apart: each alone has to end a sequence.
    `held` are the newest `length` of each environment, the oldest first.
    """

    def __init__(
        self, num_envs: int, length: int, seed: int, *, ends: float = 0.1, gaps: float = 0.1
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.length, self.chances = length, [ends, ends, ends, gaps]
        self.held: list[list[Row]] = [[] for _ in range(num_envs)]
        self.added = 0

    def rollout(self, num_steps: int) -> Rollout:
        """The next rows `[T, B]`, which are held from now on."""
        rows = [[self._row(env, self.added + t) for t in range(num_steps)] for env in self.envs]
        for env in self.envs:
            self.held[env] = (self.held[env] + rows[env])[-self.length :]
        self.added += num_steps

        def column(name: str, dtype: Any) -> Any:
            table = [[getattr(row, name) for row in of_env] for of_env in rows]
            return jnp.asarray(np.asarray(table, dtype).T)

        number = np.asarray([[row.number for row in of_env] for of_env in rows]).T
        return Rollout(
            obs=observation(number),
            action=jnp.asarray(number % 7, jnp.int32),
            reward=column("reward", np.float32),
            terminated=column("terminated", np.bool_),
            truncated=column("truncated", np.bool_),
            final_obs=observation(number, after=True),
            is_first=column("is_first", np.bool_),
            mask=column("mask", np.bool_),
            extras={"of_no_use": jnp.zeros((num_steps, len(self.held)))},
            carry_in={"of_no_use": jnp.zeros(len(self.held))},
        )

    @property
    def envs(self) -> range:
        return range(len(self.held))

    def _row(self, env: int, step: int) -> Row:
        terminated, truncated, lost, gap = (self.rng.random(4) < self.chances).tolist()
        return Row(
            number=env * 100_000 + step,
            reward=float(self.rng.normal()),
            terminated=terminated,
            truncated=truncated,
            is_first=lost,
            mask=not gap,
        )

    def slot(self, env: int, place: int) -> tuple[int, Row]:
        """The age rank (0 the oldest) and the row in a place of the ring, which must be written."""
        rows = self.held[env]
        oldest = self.added - len(rows)
        rank = (place - oldest) % self.length
        return rank, rows[rank]

    def folded(self, env: int, rank: int, limit: int, gamma: float) -> tuple[float, float, Row]:
        """Reward, discount and last row of up to `limit` steps from there on."""
        rows = self.held[env]
        reward, discount, last = rows[rank].reward, gamma, rows[rank]
        for row in rows[rank + 1 : rank + limit]:
            if last.terminated or last.truncated or row.is_first or not row.mask:
                break
            reward, discount, last = reward + discount * row.reward, discount * gamma, row
        return reward, 0.0 if last.terminated else discount, last


def observation(number: Any, after: bool = False) -> dict[str, jax.Array]:
    """An image and a vector that tell the row's number; `after` those that follow it."""
    number = np.asarray(number)
    pixels = (number[..., None, None] + np.arange(6).reshape(IMAGE) + 100 * after) % 256
    vector = np.stack([number, np.full_like(number, after)], axis=-1)
    return {
        "image": jnp.asarray(pixels.astype(np.uint8)),
        "vector": jnp.asarray(vector.astype(np.float32)),
    }


class Buffer:
    """A Replay, its functions compiled, with one row of a draw for each row that it holds."""

    def __init__(self, shape: tuple[int, int, int], **changes: Any) -> None:
        self.num_envs, self.length, self.num_steps = shape
        arguments: dict[str, Any] = {
            "length": self.length,
            "num_envs": self.num_envs,
            "num_shards": 1,
            "batch_size": self.num_envs * self.length,
            "num_updates": 1,
            "n_step": (1, 1),
            "learning_starts": 0,
        }
        self.replay = ReplayBuffer(**(arguments | changes))
        self.shards = jnp.arange(self.replay.num_shards)
        self.add = jax.jit(self.replay.add)
        self.gather_transitions = jax.jit(self.replay.gather_transitions)
        self.size = jax.jit(self.replay.size)
        self.update_priorities = jax.jit(self.replay.update_priorities)
        self.draw = jax.jit(self._draw)
        self.draws = jax.jit(self._draws, static_argnums=1)

    def _draw(self, state: ReplayState, seed: Any, env_steps: Any = 0.0) -> SampledIndices:
        key = jax.random.key(seed)
        return self.replay.sample(state, state.priorities, key, self.shards, jnp.float32(env_steps))

    def _draws(self, state: ReplayState, num: int, seed: Any) -> SampledIndices:
        seeds = seed * num + jnp.arange(num, dtype=jnp.int32)
        return jax.vmap(lambda seed: self._draw(state, seed))(seeds)

    def filled(self, streams: Streams, rollouts: int) -> ReplayState:
        state = self.replay.init(Streams(self.num_envs, 1, 0).rollout(self.num_steps))
        for _ in range(rollouts):
            state = self.put(state, streams)
        return state

    def put(self, state: ReplayState, streams: Streams) -> ReplayState:
        steps = streams.added + np.arange(self.num_steps, dtype=np.uint32)
        env_step = np.broadcast_to(steps[:, None], (self.num_steps, self.num_envs))
        env_index = np.arange(self.num_envs, dtype=np.int32)
        return self.add(state, streams.rollout(self.num_steps), env_index, env_step)


@functools.cache
def buffer(shape: tuple[int, int, int], **changes: Any) -> Buffer:
    return Buffer(shape, **changes)


def every_place(shape: tuple[int, int, int]) -> SampledIndices:
    num_envs, length, _ = shape
    env, time = np.divmod(np.arange(num_envs * length, dtype=np.int32), length)
    return SampledIndices(env=env, time=time, weight=np.ones(env.shape, np.float32))


def stored_places(streams: Streams) -> list[tuple[int, int]]:
    """Environment and place of every row that is held."""
    places = range(streams.added - len(streams.held[0]), streams.added)
    return [(env, place % streams.length) for env in streams.envs for place in places]
