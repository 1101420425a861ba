"""Actions for observations that come from outside: the whole pipeline, on NumPy arrays."""

from collections.abc import Sequence
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool

from jaxrl.connectors.actions import ClipActions, UnsquashActions, has_box
from jaxrl.connectors.base import ActionConnector
from jaxrl.connectors.pipelines import ActionPipeline
from jaxrl.core.nested_spaces import map_spaces
from jaxrl.core.space_tree import leaf_dtype
from jaxrl.core.struct import pytree, replace, where_rows
from jaxrl.core.types import Columns, Key, PyTree
from jaxrl.errors import ConfigError, SpaceError
from jaxrl.runners.asking import Asked, Fetched
from jaxrl.runners.program import Program
from jaxrl.runners.rollout import Acting, Actor, Carry, initial_env_index

TOLERANCE = 1e-4
"""How far past a Box's bounds a value may lie, relative to the bound: rounding, not error."""


@pytree
class _Inputs:
    obs: PyTree
    carry: Carry
    is_first: Bool[Array, " B"]
    prev_action: PyTree


class Inference:
    """Compiled forward passes of a module, connectors included.

    Args:
        acting: Module and connectors of the run.
        observation_space: The environment's.
        max_retraces: See `Program`; another number of observations is another program.
        jit: False runs operation by operation.
    """

    def __init__(
        self,
        acting: Acting,
        observation_space: gymnasium.Space[Any],
        *,
        max_retraces: int | None = None,
        jit: bool = True,
    ) -> None:
        self._acting = acting
        self._space = observation_space
        self._max_retraces = max_retraces
        self._jit = jit
        self._programs: dict[tuple[bool, bool | None, bool | None, bool], Program] = {}

    @property
    def programs(self) -> list[Program]:
        """One for each way of acting that was asked for."""
        return list(self._programs.values())

    def _program(self, asked: Asked) -> Program:
        way = (bool(asked.explore), asked.unsquash, asked.clip, asked.prev_action is not None)
        if way not in self._programs:
            pipeline = adjusted(self._acting.action_pipeline, asked.unsquash, asked.clip)
            name = f"compute_actions_{'sample' if asked.explore else 'mode'}"
            name += "" if asked.unsquash is None else f"_unsquash_{asked.unsquash}"
            name += "" if asked.clip is None else f"_clip_{asked.clip}"
            name += "" if asked.prev_action is None else "_after_action"
            self._programs[way] = Program(
                name,
                self._fn(bool(asked.explore), pipeline),
                max_retraces=self._max_retraces,
                enabled=self._jit,
            )
        return self._programs[way]

    def _fn(self, explore: bool, pipeline: ActionPipeline) -> Any:
        acting = self._acting

        def compute(actor: Actor, inputs: _Inputs, keys: Key) -> Fetched:
            index = initial_env_index(keys.shape[0])
            carry = with_previous(inputs.carry, inputs.prev_action, pipeline)
            draws = acting.module.draw(keys)
            out = dict(acting.act(actor, inputs.obs, carry, inputs.is_first, index, draws, explore))
            after: Carry = out.pop(Columns.STATE_OUT)
            return pipeline(out[Columns.ACTIONS]), self._kept(after), out

        return compute

    def __call__(self, actor: Actor, asked: Asked, key: Key) -> Fetched:
        """What was computed, as NumPy arrays with a leading batch axis.

        Args:
            actor: Parameters and connector statistics.
            asked: Observations are checked against the space.
            key: Consumed.

        Raises:
            SpaceError: An observation, or a previous action, is not in its space.
            ConfigError: Something that a connector remembers by is missing, or is of no use.
        """
        if not asked.observations:
            raise SpaceError("The observations are empty; give at least one.")
        inputs = self._inputs(asked)
        keys = jax.random.split(key, len(asked.observations))
        return jax.tree.map(np.asarray, self._program(asked)(actor, inputs, keys))

    def reads(self) -> set[str]:
        """Which of RLlib's arguments `prev_action` and `prev_reward` a connector looks at."""
        temporal = self._acting.obs_pipeline.temporal
        read = {"prev_action"} if any(c.reads_action for c in temporal) else set[str]()
        return read | ({"prev_reward"} if any(c.reads_reward for c in temporal) else set())

    def initial_state(self) -> PyTree:
        """What one episode begins with, `[1, ...]`."""
        return self._kept(self._acting.initial_carry(1))

    def _kept(self, carry: Carry) -> PyTree:
        """What callers keep from one observation to the next."""
        return carry if self._acting.obs_pipeline.temporal else carry.module

    def _inputs(self, asked: Asked) -> _Inputs:
        num = len(asked.observations)
        checked = [conform(self._space, obs) for obs in asked.observations]
        starts = asked.state is None
        carry = self._acting.initial_carry(num)
        self._check_kept(asked)
        if self._acting.obs_pipeline.temporal:
            self._check_remembered(asked)
            carry = carry if starts else asked.state
            if asked.prev_reward is not None:
                reward = np.asarray(list(asked.prev_reward), np.float32)
                if reward.shape != (num,):
                    raise SpaceError(
                        f"prev_reward must be one number an observation, got shape {reward.shape} "
                        f"for {num}."
                    )
                carry = replace(carry, reward=jnp.asarray(reward))
        elif not starts:
            carry = replace(carry, module=asked.state)
        actions = None
        if asked.prev_action is not None:
            space = self._acting.action_pipeline.space
            actions = _stacked([_previous(space, action) for action in asked.prev_action])
        return _Inputs(
            obs=_stacked(checked),
            carry=jax.tree.map(jnp.asarray, carry),
            is_first=jnp.full((num,), starts),
            prev_action=actions,
        )

    def _check_kept(self, asked: Asked) -> None:
        """Who asks an agent that remembers has to keep what it remembers."""
        acting = self._acting
        names = [c.name for c in acting.obs_pipeline.temporal]
        if acting.module.is_stateful:
            names.append(type(acting.module).__name__)
        if names and asked.state is None and not asked.keeps_state:
            raise ConfigError(
                f"{' and '.join(names)} {'remembers' if len(names) == 1 else 'remember'} the "
                "episode: let get_policy() keep that, or call with full_fetch=True, and pass the "
                "state that is returned along with the next observation."
            )

    def _check_remembered(self, asked: Asked) -> None:
        """What connectors remember has to come along from the observation before."""
        names = ", ".join(c.name for c in self._acting.obs_pipeline.temporal)
        if asked.state is None:
            for name in ("prev_action", "prev_reward"):
                if vars(asked)[name] is not None:
                    raise ConfigError(
                        f"{name} is given without a state, which is an episode's start and has "
                        "nothing before it: pass the state that full_fetch=True returned for the "
                        "observation before."
                    )
            return
        if not isinstance(asked.state, Carry):
            raise ConfigError(
                f"state must be what full_fetch=True returned, since {names} remembers the "
                f"episode in it; got {type(asked.state).__name__}."
            )
        if "prev_reward" in self.reads() and asked.prev_reward is None:
            raise ConfigError(
                f"{names} reads the reward of the step before: give prev_reward along with state."
            )
        if asked.prev_action is not None:
            for connector in self._acting.action_pipeline:
                if type(connector).inverse is ActionConnector.inverse:
                    raise ConfigError(
                        f"prev_action cannot be read back through {connector.name}, which has no "
                        "inverse; leave it out where it is the action that was computed, which the "
                        "state holds."
                    )


def with_previous(carry: Carry, prev_action: PyTree, pipeline: ActionPipeline) -> Carry:
    """The carry after the environment's action, which is that of the carry or another one."""
    if prev_action is None:
        return carry
    computed = pipeline(carry.action)
    same = jnp.stack(
        [
            jnp.isclose(a, b, rtol=TOLERANCE, atol=TOLERANCE).all(axis=tuple(range(1, a.ndim)))
            for a, b in zip(jax.tree.leaves(computed), jax.tree.leaves(prev_action), strict=True)
        ]
    ).all(axis=0)
    other = jax.tree.map(
        lambda new, old: new.astype(old.dtype), pipeline.inverse(prev_action), carry.action
    )
    return replace(carry, action=where_rows(same, carry.action, other))


def _previous(space: gymnasium.Space[Any], action: Any) -> PyTree:
    """An action of the environment's in its space's types; a Box's may lie outside its bounds."""
    unbounded = map_spaces(
        lambda leaf: (
            spaces.Box(-np.inf, np.inf, leaf.shape, leaf.dtype.type)
            if isinstance(leaf, spaces.Box)
            else leaf
        ),
        space,
    )
    return conform(unbounded, action, "prev_action")


def _stacked(trees: Sequence[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *trees)


def adjusted(pipeline: ActionPipeline, unsquash: bool | None, clip: bool | None) -> ActionPipeline:
    """The pipeline with unsquashing and clipping switched for Boxes; None leaves them as they are.

    An action is unsquashed or else, if asked, clipped; connectors of the user's always stay.

    Raises:
        ConfigError: To unsquash what the module does not squash.
    """
    space = pipeline.space
    if not has_box(space) or (unsquash is None and clip is None):
        return pipeline
    squashed = any(isinstance(c, UnsquashActions) for c in pipeline.connectors)
    clipped = any(isinstance(c, ClipActions) for c in pipeline.connectors)
    if unsquash and not squashed:
        raise ConfigError(
            "unsquash_action=True has nothing to unsquash: this module acts in the environment's "
            "own range (normalize_actions=False, or an infinite bound); leave it out."
        )
    kept: list[ActionConnector] = []
    for connector in pipeline.connectors:
        if isinstance(connector, UnsquashActions | ClipActions):
            unsquashes = isinstance(connector, UnsquashActions) and unsquash is not False
            if not unsquashes and not (clip or (clip is None and clipped)):
                continue
            connector = connector if unsquashes else ClipActions(connector.space)
        kept.append(connector)
    if clip and not (squashed or clipped):
        kept.append(ClipActions(space))
    return ActionPipeline(tuple(kept), space)


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
        return array.astype(leaf_dtype(space))
    integers = array.astype(np.int64)
    if not (np.all(integers == array) and space.contains(_native(space, integers))):
        raise SpaceError(f"{path} is {obs!r}, which is not in {space}.")
    return integers.astype(leaf_dtype(space))


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
