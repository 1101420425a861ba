"""Environments of JaxMARL as environments of several agents (https://github.com/FLAIROx/JaxMARL).

`jaxmarl:MPE_simple_spread_v3` and every other id of `jaxmarl.registered_envs`; `env_config` has the
arguments of `jaxmarl.make`, and `truncate_at_max_steps`.
"""

import contextlib
import functools
import importlib
import sys
from collections.abc import Mapping
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.core.space_arrays import get_leaf_dtype
from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, PyTree
from jaxrl.envs.adapters.suite_env import call_package, cast, find_state_dtypes
from jaxrl.envs.multi.base import ALL, Acting, MultiAgentJaxEnv, MultiStart, MultiStep
from jaxrl.envs.params import check_bool
from jaxrl.errors import EnvError

WORLD_STATE = "world_state"
"""JaxMARL's key of the global state among the observations."""
TRUNCATES = "truncate_at_max_steps"


@pytree
class JaxMARLState:
    """State of the environment, its global state if it has one, and which agents are done."""

    inner: PyTree
    world: PyTree
    done: dict[str, jax.Array]


class JaxMARLEnv(MultiAgentJaxEnv[JaxMARLState, None]):
    """An environment of JaxMARL, stepped by `step_env`, which does not reset.

    JaxMARL's `dones` do not tell a time limit from a termination: where all agents are done at the
    environment's `max_steps`, the episode is truncated, unless `truncate_at_max_steps` is False. An
    agent that is done before ends alone, terminated, and takes no further part in the episode.
    `get_avail_actions` becomes the observation's "action_mask" where an environment has discrete
    actions and defines it, and "world_state" among the observations is the global state.
    """

    acting: Acting | None = "all"  # those who are not done

    def __init__(self, env: Any, truncate_at_max_steps: bool = True) -> None:
        """Wrap an environment that `jaxmarl.make` returned."""
        self.env = env
        self.name = f"jaxmarl:{env.name}"
        self.possible_agents = tuple(env.agents)
        self.own_time_limit = getattr(env, "max_steps", None) if truncate_at_max_steps else None
        if self.own_time_limit is not None:
            self.note = (
                f"{self.name}: an episode that ends at max_steps={self.own_time_limit} is truncated; "
                f"env_config={{{TRUNCATES!r}: False}} makes it terminate."
            )

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, JaxMARLEnv)
            and self.env is other.env
            and self.own_time_limit == other.own_time_limit
        )

    def __hash__(self) -> int:
        return hash((JaxMARLEnv, id(self.env), self.own_time_limit))

    def observation_space(self, agent: str, params: None) -> gymnasium.Space[Any]:
        space = self._spaces[agent]
        if not self._has_masks:
            return space
        number = int(self.env.action_space(agent).n)
        return spaces.Dict({"action_mask": spaces.MultiBinary(number), "obs": space})

    def action_space(self, agent: str, params: None) -> gymnasium.Space[Any]:
        with jax.ensure_compile_time_eval():
            return _to_gymnasium(self.env.action_space(agent), self.name)

    def state_space(self, params: None) -> gymnasium.Space[Any] | None:
        world = self._shapes[0].get(WORLD_STATE)
        if world is None:
            return None
        return spaces.Box(-np.inf, np.inf, world.shape, np.float32)

    def global_state(self, state: JaxMARLState, params: None) -> PyTree:
        return state.world

    def reset(self, key: Key, params: None) -> tuple[JaxMARLState, MultiStart]:
        obs, inner = call_package(self.env.reset, key)
        never = dict.fromkeys(self.possible_agents, jnp.zeros((), bool))
        state = self._make_state(inner, obs, never)
        acts = {agent: ~done for agent, done in state.done.items()}
        return state, MultiStart(obs=self._observe(obs, inner), acts=acts)

    def step(
        self, key: Key, state: JaxMARLState, actions: dict[str, PyTree], params: None
    ) -> tuple[JaxMARLState, MultiStep]:
        obs, inner, rewards, dones, _ = call_package(self.env.step_env, key, state.inner, actions)
        over = jnp.asarray(dones[ALL], bool)
        at_limit = over & self._is_at_limit(inner)
        done = {agent: jnp.asarray(dones[agent], bool) for agent in self.possible_agents}
        after = self._make_state(inner, obs, done)
        reward = {a: jnp.asarray(rewards[a], jnp.float32).reshape(()) for a in self.possible_agents}
        return after, MultiStep(
            obs=self._observe(obs, inner),
            acts={agent: ~flag for agent, flag in done.items()},
            reward=reward,
            terminated={**{a: flag & ~at_limit for a, flag in done.items()}, ALL: over & ~at_limit},
            truncated={**{a: flag & at_limit for a, flag in done.items()}, ALL: at_limit},
        )

    def _is_at_limit(self, inner: PyTree) -> jax.Array:
        """Return whether a state is at the environment's time limit; False without one."""
        count = _find_count(inner)
        if self.own_time_limit is None or count is None:
            return jnp.zeros((), bool)
        return jnp.asarray(count).reshape(()) >= self.own_time_limit

    def _make_state(
        self, inner: PyTree, obs: Mapping[str, PyTree], done: dict[str, jax.Array]
    ) -> JaxMARLState:
        world = obs.get(WORLD_STATE, ())
        return JaxMARLState(
            inner=jax.tree.map(cast, inner, self._dtypes),
            world=jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), world),
            done=done,
        )

    def _observe(self, obs: Mapping[str, PyTree], inner: PyTree) -> dict[str, PyTree]:
        own = {a: cast(obs[a], get_leaf_dtype(self._spaces[a])) for a in self.possible_agents}
        if not self._has_masks:
            return own
        masks = call_package(self.env.get_avail_actions, inner)
        return {
            a: {"action_mask": jnp.asarray(masks[a], jnp.int8), "obs": own[a]}
            for a in self.possible_agents
        }

    @functools.cached_property
    def _spaces(self) -> dict[str, gymnasium.Space[Any]]:
        """Observation spaces, with the shapes that a reset's observations have."""
        with jax.ensure_compile_time_eval():
            return {
                a: _to_gymnasium(self.env.observation_space(a), self.name, self._shapes[0][a].shape)
                for a in self.possible_agents
            }

    @functools.cached_property
    def _has_masks(self) -> bool:
        """True if the environment says which actions are available, and all are discrete."""
        if not all(hasattr(self.env.action_space(a), "n") for a in self.possible_agents):
            return False
        try:
            masks = jax.eval_shape(
                functools.partial(call_package, self.env.get_avail_actions), self._shapes[1]
            )
        except (NotImplementedError, AttributeError):
            return False
        return isinstance(masks, Mapping) and all(a in masks for a in self.possible_agents)

    @functools.cached_property
    def _shapes(self) -> tuple[dict[str, Any], PyTree]:
        """Shapes of a reset's observations and state."""
        key = jax.eval_shape(lambda: jax.random.key(0))
        return jax.eval_shape(lambda k: call_package(self.env.reset, k), key)

    @functools.cached_property
    def _dtypes(self) -> PyTree:
        """Structure of the state, with a dtype per leaf that fits both a reset and a step."""

        def reset_and_step(key: Key) -> tuple[PyTree, PyTree]:
            _, first = call_package(self.env.reset, key)
            actions = {
                a: jnp.zeros(space.shape, get_leaf_dtype(space))
                for a, space in ((a, self.action_space(a, None)) for a in self.possible_agents)
            }
            return first, call_package(self.env.step_env, key, first, actions)[1]

        return find_state_dtypes(reset_and_step)


def _find_count(inner: PyTree) -> Any:
    """Return the number of steps in a state, which may be within the state of a wrapper."""
    while inner is not None:
        for name in ("step", "time"):
            if hasattr(inner, name):
                return getattr(inner, name)
        inner = getattr(inner, "state", None)
    return None


def _to_gymnasium(
    space: Any, env: str, observed: tuple[int, ...] | None = None
) -> gymnasium.Space[Any]:
    """Convert a space of JaxMARL.

    Args:
        space: Space of JaxMARL.
        env: Name of the environment.
        observed: Shape of the observations, where some environments declare another one; None is
            the declared one.

    Raises:
        EnvError: If there is none that is equal.
    """
    kind = type(space).__name__
    if kind == "Discrete":
        return spaces.Discrete(int(space.n))
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(np.asarray(space.num_categories, np.int64))
    if kind == "Box":
        declared = tuple(np.atleast_1d(np.asarray(space.shape, np.int64)).tolist())
        shape = declared if observed is None or np.ndim(space.low) else observed
        dtype = np.uint8 if np.dtype(space.dtype) == np.uint8 else np.float32
        low = np.broadcast_to(np.asarray(space.low, dtype), shape)
        high = np.broadcast_to(np.asarray(space.high, dtype), shape)
        return spaces.Box(low, high, shape, dtype)
    raise EnvError(f"{env} has a space of the type {kind}, which gymnasium does not have.")


def list_ids() -> list[str]:
    """List the environments of JaxMARL."""
    return list(_open().registered_envs)


def make(name: str, /, truncate_at_max_steps: bool = True, **arguments: object) -> JaxMARLEnv:
    """Make an environment.

    Raises:
        EnvError: If `truncate_at_max_steps` is no bool.
    """
    check_bool(f"jaxmarl:{name}: {TRUNCATES}", truncate_at_max_steps)
    env = _open().make(name, **arguments)
    return JaxMARLEnv(env, truncate_at_max_steps)


def adapt(env: Any) -> JaxMARLEnv:
    """Return an environment that `jaxmarl.make` returned, without a wrapper.

    Raises:
        EnvError: If it is wrapped.
    """
    base = importlib.import_module("jaxmarl.environments.multi_agent_env").MultiAgentEnv
    if not isinstance(env, base):
        raise EnvError(
            f"{type(env).__name__} is a wrapper of JaxMARL, whose work is jaxrl's own: give the "
            "environment that jaxmarl.make returns."
        )
    return JaxMARLEnv(env)


def _open() -> Any:
    """Import the package, one of whose modules replaces both standard streams by the process's."""
    with contextlib.redirect_stdout(sys.stdout), contextlib.redirect_stderr(sys.stderr):
        return importlib.import_module("jaxmarl")
