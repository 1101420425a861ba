"""Actions for observations that come from outside: the whole pipeline, on NumPy arrays."""

import functools
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, UInt32

from jaxrl.connectors.actions import ClipActions, UnsquashActions, has_box
from jaxrl.connectors.base import ActionConnector
from jaxrl.connectors.pipelines import ActionPipeline
from jaxrl.connectors.temporal import TemporalConnector
from jaxrl.core.spaces import map_spaces
from jaxrl.core.struct import pytree, replace, where_rows
from jaxrl.core.types import Columns, Key, PyTree
from jaxrl.errors import ConfigError, SpaceError
from jaxrl.policy.observations import TOLERANCE, conformer
from jaxrl.policy.requests import Asked, Fetched, as_batch, mapped
from jaxrl.runtime.program import Program
from jaxrl.training.rollout import Acting, Actor, Carry, initial_env_index


@pytree
class _Inputs:
    obs: PyTree
    carry: Carry
    is_first: Any  # of NumPy's before the program
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
        self._conform = conformer(observation_space, "obs")
        self._max_retraces = max_retraces
        self._jit = jit
        self._programs: dict[tuple[bool, bool | None, bool | None, bool], Program] = {}
        self._known: dict[tuple[Any, ...], tuple[weakref.ref[Actor], Callable[..., Fetched]]] = {}
        self._starts: dict[int, Carry] = {}

    @property
    def programs(self) -> list[Program]:
        """One for each way of acting that was asked for."""
        return list(self._programs.values())

    def _program(self, asked: Asked) -> Program:
        way = _way(asked)
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
                waited_for=True,
                enabled=self._jit,
            )
        return self._programs[way]

    def _fn(self, explore: bool, pipeline: ActionPipeline) -> Any:
        acting = self._acting

        def compute(
            actor: Actor, inputs: _Inputs, stream: Key, number: UInt32[Array, ""]
        ) -> Fetched:
            num = inputs.is_first.shape[0]
            keys = jax.random.split(jax.random.fold_in(stream, number), num)
            index = initial_env_index(num)
            carry = with_previous(inputs.carry, inputs.prev_action, pipeline)
            draws = acting.module.draw(keys)
            out = dict(acting.act(actor, inputs.obs, carry, inputs.is_first, index, draws, explore))
            after: Carry = out.pop(Columns.STATE_OUT)
            return pipeline(out[Columns.ACTIONS]), self._kept(after), out

        return compute

    def __call__(
        self, actor: Callable[[], Actor], asked: Asked, stream: Key, number: int
    ) -> Fetched:
        """What was computed, as NumPy arrays with a leading batch axis.

        Args:
            actor: Gives parameters and connector statistics once the observations were checked;
                they are never changed, others are another object.
            asked: Observations are checked against the space.
            stream: What the draw's key is folded from.
            number: Of the draw; with it the key is consumed.

        Raises:
            SpaceError: An observation, or a previous action, is not in its space.
            ConfigError: Something that a connector remembers by is missing, or is of no use.
        """
        if not asked.observations:
            raise SpaceError("The observations are empty; give at least one.")
        inputs = self._inputs(asked)
        args = (actor(), inputs, stream, np.uint32(number))
        actions, state, out = self._compiled(asked, args)(*args)
        return (
            mapped(np.asarray, actions),
            jax.tree.map(np.asarray, state) if asked.keeps_state else None,
            jax.tree.map(np.asarray, out) if asked.wants_outputs else {},
        )

    def _compiled(self, asked: Asked, args: tuple[Any, ...]) -> Callable[..., Fetched]:
        """The executable for what is asked; that of the same actor and shapes is known.

        What the space and the number of observations do not fix are the shapes of a state.
        """
        leaves, structure = jax.tree.flatten(args[1].carry)
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        way = (*_way(asked), len(asked.observations), structure, shapes)
        known = self._known.get(way)
        if known is None or known[0]() is not args[0]:
            known = weakref.ref(args[0]), self._program(asked).compiled_for(*args)
            self._known[way] = known
        return known[1]

    def reads(self) -> Collection[str]:
        """Which of RLlib's arguments `prev_action` and `prev_reward` a connector looks at."""
        return self._reads

    @functools.cached_property
    def _reads(self) -> frozenset[str]:
        temporal = self._temporal
        read = {"prev_action"} if any(c.reads_action for c in temporal) else set[str]()
        return frozenset(
            read | ({"prev_reward"} if any(c.reads_reward for c in temporal) else set())
        )

    @functools.cached_property
    def _temporal(self) -> tuple[TemporalConnector, ...]:
        """The connectors that remember the episode."""
        return self._acting.obs_pipeline.temporal

    @functools.cached_property
    def _remembers(self) -> tuple[str, ...]:
        """The names of the connectors and of the module that remember the episode."""
        module = self._acting.module
        names = [c.name for c in self._temporal]
        return (*names, type(module).__name__) if module.is_stateful else tuple(names)

    @functools.cached_property
    def _conform_action(self) -> Callable[[Any], PyTree]:
        """The check of a previous action; a Box's may lie outside its bounds."""
        unbounded = map_spaces(
            lambda leaf: (
                spaces.Box(-np.inf, np.inf, leaf.shape, leaf.dtype.type)
                if isinstance(leaf, spaces.Box)
                else leaf
            ),
            self._acting.action_pipeline.space,
        )
        return conformer(unbounded, "prev_action")

    def initial_state(self) -> PyTree:
        """What one episode begins with, `[1, ...]`."""
        return self._kept(self._acting.initial_carry(1))

    def _kept(self, carry: Carry) -> PyTree:
        """What callers keep from one observation to the next."""
        return carry if self._temporal else carry.module

    def _start(self, num: int) -> Carry:
        """The carry at the start of so many episodes, made once for each number of them."""
        if num not in self._starts:
            carry = self._acting.initial_carry(num)
            self._starts[num] = jax.tree.map(np.asarray, carry)
        return self._starts[num]

    def _inputs(self, asked: Asked) -> _Inputs:
        num = len(asked.observations)
        obs = _stacked([self._conform(obs) for obs in asked.observations])
        starts = asked.state is None
        carry = self._start(num)
        self._check_kept(asked)
        if self._temporal:
            self._check_remembered(asked)
            carry = carry if starts else jax.tree.map(_narrow, asked.state)
            if asked.prev_reward is not None:
                reward = np.asarray(list(asked.prev_reward), np.float32)
                if reward.shape != (num,):
                    raise SpaceError(
                        f"prev_reward must be one number an observation, got shape {reward.shape} "
                        f"for {num}."
                    )
                carry = replace(carry, reward=reward)
        elif not starts:
            carry = replace(carry, module=jax.tree.map(_narrow, asked.state))
        actions = None
        if asked.prev_action is not None:
            actions = _stacked([self._conform_action(action) for action in asked.prev_action])
        return _Inputs(obs=obs, carry=carry, is_first=np.full(num, starts), prev_action=actions)

    def _check_kept(self, asked: Asked) -> None:
        """Who asks an agent that remembers has to keep what it remembers."""
        names = self._remembers
        if names and asked.state is None and not asked.keeps_state:
            raise ConfigError(
                f"{' and '.join(names)} {'remembers' if len(names) == 1 else 'remember'} the "
                "episode: let get_policy() keep that, or call with full_fetch=True, and pass the "
                "state that is returned along with the next observation."
            )

    def _check_remembered(self, asked: Asked) -> None:
        """What connectors remember has to come along from the observation before."""
        names = ", ".join(c.name for c in self._temporal)
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


def _way(asked: Asked) -> tuple[bool, bool | None, bool | None, bool]:
    """What of a question takes a program of its own."""
    return bool(asked.explore), asked.unsquash, asked.clip, asked.prev_action is not None


def _stacked(trees: Sequence[PyTree]) -> PyTree:
    if len(trees) == 1:
        return mapped(lambda leaf: leaf[None], trees[0])
    return as_batch(trees)


def _narrow(leaf: Any) -> np.ndarray:
    """A leaf of a caller's state, of 32 bits at most as everything in a program."""
    array = np.asarray(leaf)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


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
