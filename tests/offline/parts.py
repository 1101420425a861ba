"""Parts of episodes for tests of recorded data."""

from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

from jaxrl.core.spaces import map_leaves
from jaxrl.episodes.packing import EpisodePart
from jaxrl.offline.columns import flatten_paths

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)
DISCRETE = spaces.Discrete(4)
NESTED = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (2, 3), np.uint8),
        "inner": spaces.Tuple([spaces.MultiBinary(3), spaces.Box(-np.inf, np.inf, (), np.float64)]),
        "nothing": spaces.Box(0.0, 1.0, (0,)),
        "which": spaces.MultiDiscrete([3, 2], start=[1, 0]),
    }
)
NESTED_ACTIONS = spaces.Dict(
    {"button": spaces.Discrete(3, start=-1), "stick": spaces.Box(-2.0, 2.0, (2,), np.float32)}
)


def sample(space: gymnasium.Space[Any], number: int, rng: np.random.Generator) -> Any:
    """Values of a space `[number, ...]`, typed as in a program."""

    def draw(leaf: Any) -> np.ndarray:
        leaf.seed(int(rng.integers(2**31)))
        rows = [np.asarray(leaf.sample()) for _ in range(number)]
        values = np.stack(rows) if rows else np.zeros((0, *leaf.shape))
        dtype = {"i8": "i4", "f8": "f4"}.get(np.dtype(leaf.dtype).str[1:], leaf.dtype)
        return values.astype(dtype)

    return map_leaves(draw, space)


def make_part(
    length: int = 5,
    *,
    episode_id: str = "a",
    t_started: int = 0,
    observation_space: gymnasium.Space[Any] = BOX,
    action_space: gymnasium.Space[Any] = DISCRETE,
    seed: int = 0,
    **changes: Any,
) -> EpisodePart:
    """A part of random values."""
    rng = np.random.default_rng([seed, length, t_started])
    fields = {
        "obs": sample(observation_space, length + 1, rng),
        "action": sample(action_space, length, rng),
        "reward": rng.normal(size=length).astype(np.float32),
        "extras": {"action_logp": -np.abs(rng.normal(size=length)).astype(np.float32)},
        "version": np.arange(length, dtype=np.int64),
        **changes,
    }
    return EpisodePart(episode_id=episode_id, t_started=t_started, **fields)


def assert_same(part: EpisodePart, other: EpisodePart) -> None:
    """Equal in every field, types of arrays included."""
    for name in ("episode_id", "t_started", "terminated", "truncated", "is_cut"):
        assert getattr(part, name) == getattr(other, name), name
    for name in ("obs", "action", "extras", "reward", "version", "carry"):
        mine, theirs = (dict(flatten_paths(getattr(x, name))) for x in (part, other))
        assert mine.keys() == theirs.keys(), name
        for path, leaf in mine.items():
            assert leaf.dtype == theirs[path].dtype, (name, path)
            np.testing.assert_array_equal(leaf, theirs[path], err_msg=f"{name} {path}")


def join(parts: list[EpisodePart]) -> dict[str, EpisodePart]:
    """The parts of each episode as one part."""
    episodes: dict[str, list[EpisodePart]] = {}
    for part in parts:
        episodes.setdefault(part.episode_id, []).append(part)
    return {name: _join_episode(group) for name, group in episodes.items()}


def _join_episode(parts: list[EpisodePart]) -> EpisodePart:
    first, last = parts[0], parts[-1]

    def concatenate(name: str) -> Any:
        trees = [getattr(part, name) for part in parts]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *trees)

    heads = [jax.tree.map(lambda x: x[:-1], part.obs) for part in parts[:-1]]
    obs = jax.tree.map(lambda *leaves: np.concatenate(leaves), *heads, last.obs)
    return EpisodePart(
        episode_id=first.episode_id,
        t_started=first.t_started,
        obs=obs,
        **{name: concatenate(name) for name in ("action", "reward", "extras", "version")},
        terminated=last.terminated,
        truncated=last.truncated,
        is_cut=last.is_cut,
        carry=first.carry,
    )


RLLIB_ROWS: dict[str, list[Any]] = {
    "eps_id": ["a", "a", "b"],
    "t": [0, 1, 0],
    "obs": [[0.0, 0.0], [1.0, 1.0], [5.0, 5.0]],
    "new_obs": [[1.0, 1.0], [2.0, 2.0], [6.0, 6.0]],
    "actions": [0, 1, 2],
    "rewards": [1.0, 2.0, 3.0],
    "terminateds": [False, True, False],
    "truncateds": [False, False, True],
}
"""Columns of two episodes by RLlib's names."""
