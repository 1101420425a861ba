"""Actions for observations that come from outside: the whole pipeline, on NumPy arrays."""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.core.types import Columns, Key, PyTree
from jaxrl.errors import SpaceError
from jaxrl.runners.program import Program
from jaxrl.runners.rollout import Actor, Sampler, initial_env_index

TOLERANCE = 1e-4
"""How far past a Box's bounds a value may lie, relative to the bound: rounding, not error."""


class Inference:
    """Compiled forward passes of the sampler's module, connectors included.

    Args:
        sampler: Environment, module and connectors of the run.
        env: For its observation space.
        jit: False runs operation by operation.
    """

    def __init__(
        self, sampler: Sampler, observation_space: gymnasium.Space[Any], *, jit: bool = True
    ) -> None:
        self._sampler = sampler
        self._space = observation_space
        self._programs = {
            explore: Program(f"compute_actions(explore={explore})", self._fn(explore), enabled=jit)
            for explore in (True, False)
        }

    def _fn(self, explore: bool) -> Any:
        def compute(actor: Actor, obs: PyTree, carry: PyTree, keys: Key) -> dict[str, Any]:
            index = initial_env_index(keys.shape[0])
            out = self._sampler.act(actor, obs, carry, index, keys, explore)
            action = self._sampler.action_pipeline(out[Columns.ACTIONS])
            return {**out, "actions_for_env": action}

        return compute

    def __call__(
        self, actor: Actor, observations: list[Any], carry: PyTree, key: Key, explore: bool
    ) -> dict[str, Any]:
        """The module's outputs and `actions_for_env`, as NumPy arrays with a leading batch axis.

        Args:
            actor: Parameters and connector statistics.
            observations: Unbatched observations, each checked against the space.
            carry: The module's recurrent state, batched; None at an episode's start.
            key: Consumed.
            explore: Sample, or take the mode.
        """
        checked = [conform(self._space, obs) for obs in observations]
        batch = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *checked)
        if carry is None:
            carry = self._sampler.module.initial_carry(len(checked))
        keys = jax.random.split(key, len(checked))
        return jax.tree.map(np.asarray, self._programs[explore](actor, batch, carry, keys))


def conform(space: gymnasium.Space[Any], obs: Any, path: str = "obs") -> PyTree:
    """The observation in the space's own types.

    Raises:
        SpaceError: It is not in the space; names the part, what was expected and what was got.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(obs, dict) or set(obs) != set(space.spaces):
            raise SpaceError(f"{path} must be a dict with the keys {list(space.spaces)}, got {obs}")
        return {name: conform(sub, obs[name], f"{path}.{name}") for name, sub in space.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(obs, (tuple, list)) or len(obs) != len(space.spaces):
            raise SpaceError(f"{path} must be a tuple of {len(space.spaces)}, got {obs!r}.")
        return tuple(
            conform(sub, part, f"{path}[{i}]")
            for i, (sub, part) in enumerate(zip(space.spaces, obs, strict=True))
        )
    array = np.asarray(obs)
    if array.shape != (space.shape or ()):
        raise SpaceError(
            f"{path} has shape {array.shape}, but the observation space {space} has {space.shape}."
        )
    if not np.issubdtype(array.dtype, np.number) and array.dtype != np.bool_:
        raise SpaceError(f"{path} must be numbers, got dtype {array.dtype}.")
    if isinstance(space, spaces.Box):
        _check_bounds(space, array, path)
        return array.astype(space.dtype)
    integers = array.astype(np.int64)
    if not (np.all(integers == array) and space.contains(_native(space, integers))):
        raise SpaceError(f"{path} is {obs!r}, which is not in {space}.")
    return integers.astype(np.int32)


def _native(space: gymnasium.Space[Any], value: np.ndarray) -> Any:
    return value.astype(space.dtype) if space.shape else int(value)


def _check_bounds(space: spaces.Box, array: np.ndarray, path: str) -> None:
    if np.any(np.isnan(array)):
        raise SpaceError(f"{path} has NaN at {_first(np.isnan(array))}.")
    slack_low = TOLERANCE * np.maximum(1.0, np.abs(space.low))
    slack_high = TOLERANCE * np.maximum(1.0, np.abs(space.high))
    outside = (array < space.low - slack_low) | (array > space.high + slack_high)
    if np.any(outside):
        place = _first(outside)
        low, high = (np.broadcast_to(b, array.shape)[place] for b in (space.low, space.high))
        raise SpaceError(
            f"{path}{list(place)} is {array[place]:g}, outside its space's bounds "
            f"[{low:g}, {high:g}]."
        )


def _first(where: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(where)[0])
