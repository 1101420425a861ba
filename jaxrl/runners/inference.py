"""Actions for observations that come from outside: the whole pipeline, on NumPy arrays."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.connectors.actions import ClipActions, UnsquashActions
from jaxrl.connectors.base import ActionConnector, ActionPipeline
from jaxrl.core.types import Columns, Key, PyTree
from jaxrl.errors import ConfigError, SpaceError, did_you_mean
from jaxrl.runners.program import Program
from jaxrl.runners.rollout import Acting, Actor, initial_env_index

NOT_READ = ("prev_action", "prev_reward", "info", "input_dict", "timestep", "episode")
"""Arguments of RLlib's that no module here reads."""

Fetched = tuple[PyTree, PyTree, dict[str, Any]]
"""The environment's actions, the module's state after them, and the module's outputs."""

TOLERANCE = 1e-4
"""How far past a Box's bounds a value may lie, relative to the bound: rounding, not error."""


class Inference:
    """Compiled forward passes of the sampler's module, connectors included.

    Args:
        sampler: Module and connectors of the run.
        observation_space: The environment's.
        max_retraces: See `Program`; another number of observations is another program.
        jit: False runs operation by operation.
    """

    def __init__(
        self,
        sampler: Acting,
        observation_space: gymnasium.Space[Any],
        *,
        max_retraces: int | None = None,
        jit: bool = True,
    ) -> None:
        self._sampler = sampler
        self._space = observation_space
        self._max_retraces = max_retraces
        self._jit = jit
        self._programs: dict[tuple[bool, bool | None, bool | None], Program] = {}

    @property
    def programs(self) -> list[Program]:
        """One for each way of acting that was asked for."""
        return list(self._programs.values())

    def _program(self, explore: bool, unsquash: bool | None, clip: bool | None) -> Program:
        asked = (explore, unsquash, clip)
        if asked not in self._programs:
            pipeline = adjusted(self._sampler.action_pipeline, unsquash, clip)
            name = f"compute_actions_{'sample' if explore else 'mode'}"
            name += "" if unsquash is None else f"_unsquash_{unsquash}"
            name += "" if clip is None else f"_clip_{clip}"
            self._programs[asked] = Program(
                name,
                self._fn(explore, pipeline),
                max_retraces=self._max_retraces,
                enabled=self._jit,
            )
        return self._programs[asked]

    def _fn(self, explore: bool, pipeline: ActionPipeline) -> Any:
        def compute(actor: Actor, obs: PyTree, carry: PyTree, keys: Key) -> Fetched:
            index = initial_env_index(keys.shape[0])
            draws = self._sampler.module.draw(keys)
            out = dict(self._sampler.act(actor, obs, carry, index, draws, explore))
            return pipeline(out[Columns.ACTIONS]), out.pop(Columns.STATE_OUT, None), out

        return compute

    def __call__(
        self,
        actor: Actor,
        observations: list[Any],
        carry: PyTree,
        key: Key,
        explore: bool,
        *,
        unsquash: bool | None = None,
        clip: bool | None = None,
    ) -> Fetched:
        """What was computed, as NumPy arrays with a leading batch axis.

        Args:
            actor: Parameters and connector statistics.
            observations: Unbatched observations, each checked against the space.
            carry: The module's recurrent state, batched; None at an episode's start.
            key: Consumed.
            explore: Sample, or take the mode.
            unsquash: See `adjusted`.
            clip: See `adjusted`.
        """
        if not observations:
            raise SpaceError("The observations are empty; give at least one.")
        checked = [conform(self._space, obs) for obs in observations]
        batch = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *checked)
        if carry is None:
            carry = self._sampler.module.initial_carry(len(checked))
        keys = jax.random.split(key, len(checked))
        program = self._program(explore, unsquash, clip)
        return jax.tree.map(np.asarray, program(actor, batch, carry, keys))


def adjusted(pipeline: ActionPipeline, unsquash: bool | None, clip: bool | None) -> ActionPipeline:
    """The pipeline with unsquashing and clipping switched for a Box; None leaves them as they are.

    An action is unsquashed or else, if asked, clipped; connectors of the user's always stay.

    Raises:
        ConfigError: To unsquash what the module does not squash.
    """
    space = pipeline.space
    if not isinstance(space, spaces.Box) or (unsquash is None and clip is None):
        return pipeline
    squashed = any(isinstance(c, UnsquashActions) for c in pipeline.connectors)
    clipped = any(isinstance(c, ClipActions) for c in pipeline.connectors)
    if unsquash and not squashed:
        raise ConfigError(
            "unsquash_action=True has nothing to unsquash: this module acts in the environment's "
            "own range (normalize_actions=False, or an infinite bound); leave it out."
        )
    kept: list[ActionConnector] = [
        c for c in pipeline.connectors if not isinstance(c, UnsquashActions | ClipActions)
    ]
    if squashed and unsquash is not False:
        kept.append(UnsquashActions(space))
    elif clip or (clip is None and clipped):
        kept.append(ClipActions(space))
    return ActionPipeline(tuple(kept), space)


def refuse_inputs(method: str, given: Mapping[str, Any]) -> None:
    """Let RLlib's inputs that nothing here reads pass if they are None.

    Raises:
        ConfigError: One has a value, or is no argument at all.
    """
    for name, value in given.items():
        if name not in NOT_READ:
            raise ConfigError(f"{method}() has no argument '{name}'.{did_you_mean(name, NOT_READ)}")
        if value is not None:
            raise ConfigError(
                f"{method}({name}={value!r}) has no effect here: a module reads the observation "
                f"and its state; leave {name} out."
            )


def as_batch(trees: Sequence[PyTree]) -> PyTree:
    """Equal trees stacked along a new leading axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def row(batch: PyTree, place: int) -> PyTree:
    """One entry of a batch."""
    return jax.tree.map(lambda leaf: leaf[place], batch)


def by_name(fetched: Fetched, names: Sequence[Hashable] | None) -> PyTree:
    """Each part of a batch as a dictionary of its rows; as it is if there are no names."""
    if names is None:
        return fetched
    return tuple({name: row(part, i) for i, name in enumerate(names)} for part in fetched)


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
