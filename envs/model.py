"""Environments as models for search: the state is a part of the observation, from which steps go on.

`with_state` makes a model of an environment that a run has made. Whatever passes observations (rollouts,
actors, evaluation, leagues, servers, exported policies) then passes states.
"""

import dataclasses
from typing import Any, TypeAlias, TypeVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float, Int

from jaxrl.core.spaces import STATE, without_parts
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, PyTree, TimeStep
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.multi.base import ALL, MultiAgentJaxEnv, MultiStart, MultiStep
from jaxrl.envs.multi.made import MadeMultiEnv, MultiAgentWrapper
from jaxrl.envs.registry import MadeEnv
from jaxrl.errors import EnvError

OBS = "obs"
"""Name of an observation that is no Dict, beside the state."""
SEAT = "(seat)"
"""Number of the agent that is to move, among the parts of a state; no field has such a name."""
MAX_STATE_BYTES = 2**16
"""Largest state that search copies for each simulation of each environment."""
_KEY_SIZES = (2, 4)
"""Numbers of words of raw keys."""

Packed: TypeAlias = dict[str, Array]
"""State as a part of an observation: its leaves by their paths."""


class WithState(JaxEnv[Any, Any]):
    """Wrapper that adds the state to observations, as the part `"state"` of a Dict.

    An observation that is no Dict becomes the part `"obs"` of it.
    """

    def __init__(
        self, env: JaxEnv[Any, Any], params: PyTree, max_episode_steps: int | None
    ) -> None:
        """Wrap `env`, whose time limit is known.

        Raises:
            EnvError: If its state cannot be observed, or not be searched.
        """
        self.env, self.name = env, env.name
        self.max_episode_steps = max_episode_steps
        self.reset_mode, self.render_fps = env.reset_mode, env.render_fps
        state = jax.eval_shape(lambda: env.reset(jax.random.key(0), params)[0])
        _check_state(env, state, [self.env.observation_space(params)])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WithState) and self.env == other.env

    def __hash__(self) -> int:
        return hash((WithState, self.env))

    @property
    def default_params(self) -> PyTree:
        return self.env.default_params

    def observation_space(self, params: PyTree) -> gymnasium.Space[Any]:
        state = jax.eval_shape(lambda: self.env.reset(jax.random.key(0), params)[0])
        return _add_to_space(self.env.observation_space(params), make_state_space(state))

    def action_space(self, params: PyTree) -> gymnasium.Space[Any]:
        return self.env.action_space(params)

    def reset(self, key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        state, obs = self.env.reset(key, params)
        return state, _add(obs, pack(state))

    def step(
        self, key: Key, state: PyTree, action: PyTree, params: PyTree
    ) -> tuple[PyTree, TimeStep]:
        state, step = self.env.step(key, state, action, params)
        return state, replace(step, obs=_add(step.obs, pack(state)))

    def render(self, state: PyTree, params: PyTree) -> np.ndarray:
        return self.env.render(state, params)


class MultiWithState(MultiAgentWrapper):
    """`WithState` of a game of one or of two in turns, whose state says who is to move, too."""

    def __init__(self, env: MultiAgentJaxEnv[Any, Any], params: PyTree) -> None:
        """Wrap `env`.

        Raises:
            EnvError: If its state cannot be observed or searched, or it is no such game.
        """
        super().__init__(env)
        _check_game(env, params)
        state = jax.eval_shape(lambda: env.reset(jax.random.key(0), params)[0])
        agents = env.possible_agents
        _check_state(env, state, [env.observation_space(agent, params) for agent in agents])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MultiWithState) and self.env == other.env

    def __hash__(self) -> int:
        return hash((MultiWithState, self.env))

    def observation_space(self, agent: str, params: PyTree) -> gymnasium.Space[Any]:
        state = jax.eval_shape(lambda: self.env.reset(jax.random.key(0), params)[0])
        packed = make_state_space(state)
        seats = spaces.Box(0, len(self.possible_agents) - 1, (), np.int32)
        packed = spaces.Dict({**packed.spaces, SEAT: seats})
        return _add_to_space(self.env.observation_space(agent, params), packed)

    def reset(self, key: Key, params: PyTree) -> tuple[PyTree, MultiStart]:
        state, start = self.env.reset(key, params)
        return state, replace(start, obs=self._add_to_all(state, start))

    def step(
        self, key: Key, state: PyTree, actions: dict[str, PyTree], params: PyTree
    ) -> tuple[PyTree, MultiStep]:
        state, step = self.env.step(key, state, actions, params)
        return state, replace(step, obs=self._add_to_all(state, step))

    def _add_to_all(self, state: PyTree, scene: MultiStart | MultiStep) -> dict[str, PyTree]:
        packed = {**pack(state), SEAT: find_mover(self.possible_agents, scene.acts)}
        return {agent: _add(obs, packed) for agent, obs in scene.obs.items()}

    def global_state(self, state: PyTree, params: PyTree) -> PyTree:
        return self.env.global_state(state, params)

    def render(self, state: PyTree, params: PyTree) -> np.ndarray:
        return self.env.render(state, params)


def find_mover(agents: tuple[str, ...], acts: dict[str, Bool[Array, ""]]) -> Int[Array, ""]:
    """Return the number of the agent that acts; 0 if none does."""
    return jnp.argmax(jnp.stack([acts[agent] for agent in agents])).astype(jnp.int32)


@pytree
class Imagined:
    """Result of a step of a model.

    `obs` is that of who moves next, with the state. `discount` is 1 where the same player moves next,
    -1 where the other one does, and 0 after the end: the value of what follows to who has moved is
    `reward + gamma * discount * value(obs)`.
    """

    obs: PyTree
    reward: Float[Array, ""]
    discount: Float[Array, ""]
    is_over: Bool[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class EnvModel:
    """Environment whose steps go on from any state that was observed.

    A time limit is no end: search looks beyond it.

    Attributes:
        env: Environment whose observations have the state.
        params: Its parameters.
    """

    env: "WithState | MultiWithState"
    params: PyTree

    @property
    def num_players(self) -> int:
        """Number of players whose moves are searched, 1 or 2."""
        return 1 if isinstance(self.env, WithState) else 2

    def get_plain_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        """Return the space of observations without the state."""
        assert isinstance(space, spaces.Dict)
        return space.spaces[OBS] if self._is_bare else without_parts(space, [STATE])

    def get_plain(self, obs: PyTree) -> PyTree:
        """Return observations without the state."""
        rest = {name: part for name, part in obs.items() if name != STATE}
        return rest[OBS] if self._is_bare else rest

    @property
    def _is_bare(self) -> bool:
        """True if the environment observes no Dict."""
        env = self.env
        if isinstance(env, WithState):
            return not isinstance(env.env.observation_space(self.params), spaces.Dict)
        agent = env.possible_agents[0]
        return not isinstance(env.env.observation_space(agent, self.params), spaces.Dict)

    def unpack(self, packed: Packed) -> PyTree:
        """Return the state that was observed."""
        shapes = jax.eval_shape(lambda: self.env.env.reset(jax.random.key(0), self.params)[0])
        leaves, structure = jax.tree_util.tree_flatten_with_path(shapes)
        return structure.unflatten(
            [packed[_name(path)].astype(leaf.dtype) for path, leaf in leaves]
        )

    def step(self, key: Key, packed: Packed, action: Int[Array, "*event"]) -> Imagined:
        """Take one step from an observed state. Consumes the key.

        Args:
            key: Key of chance moves.
            packed: State, the part of an observation.
            action: Action of who is to move.
        """
        state, env = self.unpack(packed), self.env
        if isinstance(env, WithState):
            _, step = env.step(key, state, action, self.params)
            over = jnp.asarray(step.terminated, bool)
            return Imagined(
                obs=step.obs,
                reward=jnp.asarray(step.reward, jnp.float32),
                discount=1.0 - over.astype(jnp.float32),
                is_over=over,
            )
        agents, mover = env.possible_agents, packed[SEAT]
        _, after = env.step(key, state, dict.fromkeys(agents, action), self.params)
        over = after.terminated[ALL]
        next_mover = find_mover(agents, after.acts)
        sign = jnp.where(next_mover == mover, 1.0, -1.0)
        return Imagined(
            obs=_select(next_mover, [after.obs[agent] for agent in agents]),
            reward=_select(mover, [jnp.float32(after.reward[agent]) for agent in agents]),
            discount=jnp.where(over, 0.0, sign).astype(jnp.float32),
            is_over=over,
        )


MadeT = TypeVar("MadeT", MadeEnv, MadeMultiEnv)


def with_state(made: MadeT) -> MadeT:
    """Return an environment whose observations have the state, with its model.

    Raises:
        EnvError: If its state cannot be observed or searched, or several agents play no game of two
            in turns.
    """
    env: WithState | MultiWithState
    if isinstance(made, MadeEnv):
        env = WithState(made.env, made.params, made.max_episode_steps)
    else:
        env = MultiWithState(made.env, made.params)
    return dataclasses.replace(made, env=env, model=EnvModel(env=env, params=made.params))


def pack(state: PyTree) -> Packed:
    """Return the leaves of a state by their paths; bools are numbers."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {
        _name(path): leaf.astype(jnp.uint8) if leaf.dtype == bool else leaf for path, leaf in leaves
    }


def make_state_space(state: PyTree) -> spaces.Dict:
    """Return the space of a packed state, given its shapes and types."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return spaces.Dict({_name(path): _make_box(leaf) for path, leaf in leaves})


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/") or "value"


def _make_box(leaf: jax.ShapeDtypeStruct) -> spaces.Box:
    dtype = np.dtype(leaf.dtype)
    if dtype == np.bool_:
        return spaces.Box(0, 1, leaf.shape, np.uint8)
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        return spaces.Box(limits.min, limits.max, leaf.shape, dtype.type)
    return spaces.Box(-np.inf, np.inf, leaf.shape, dtype.type)


def _add_to_space(space: gymnasium.Space[Any], state: spaces.Dict) -> spaces.Dict:
    own = space.spaces if isinstance(space, spaces.Dict) else {OBS: space}
    return spaces.Dict({**own, STATE: state})


def _add(obs: PyTree, packed: Packed) -> dict[str, PyTree]:
    own = obs if isinstance(obs, dict) else {OBS: obs}
    return {**own, STATE: packed}


def _select(index: Int[Array, ""], trees: list[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves)[index], *trees)


def _check_game(env: MultiAgentJaxEnv[Any, Any], params: PyTree) -> None:
    """Raise EnvError if this is no game of one player, or of two in turns."""
    agents = env.possible_agents
    if len(agents) > 2 or env.agent_kinds:
        raise EnvError(
            f"{env.name} has {len(agents)} agents, and search knows one, or two that play each other in "
            "turns: use PPO, with a league if there are opponents."
        )
    if env.max_acting != 1:
        raise EnvError(
            f"{env.name} does not say that its agents act in turns, which search needs: set "
            "max_acting=1 if they do, or use PPO."
        )
    if any(len(members) > 1 for members in env.teams.values()):
        raise EnvError(
            f"The agents of {env.name} are a team, and search takes what one wins for the other's loss: "
            "use PPO with share_rewards='team'."
        )
    first, *others = (env.action_space(agent, params) for agent in agents)
    if others and first != others[0]:
        raise EnvError(
            f"The players of {env.name} have different action spaces, {first} and {others[0]}, and "
            "search plays both by one module: use PPO."
        )


def _check_state(
    env: JaxEnv[Any, Any] | MultiAgentJaxEnv[Any, Any],
    state: PyTree,
    observed: list[gymnasium.Space[Any]],
) -> None:
    """Raise EnvError if a state cannot be a part of observations, or should not be searched."""
    if env.has_hidden_state:
        raise EnvError(
            f"The state of {env.name} holds what its agents do not see, and a search from it would play "
            "with open cards: use PPO, with a league if there are opponents."
        )
    for space in observed:
        if isinstance(space, spaces.Dict) and STATE in space.spaces:
            raise EnvError(
                f"The observations of {env.name} have a part {STATE!r} of their own, the place of the "
                "state that search needs: rename it."
            )
    size = 0
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        name = _name(path)
        is_raw = leaf.dtype == np.uint32 and leaf.shape[-1:] in [(n,) for n in _KEY_SIZES]
        named = any(word in name.rpartition("/")[2].lower() for word in ("key", "rng"))
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) or (is_raw and named):
            raise EnvError(
                f"The state of {env.name} has the key {name!r}, from which search would know the chance "
                "moves to come: keys come to step, not from the state."
            )
        size += leaf.size * leaf.dtype.itemsize
    if size > MAX_STATE_BYTES:
        raise EnvError(
            f"The state of {env.name} has {size} bytes, and search copies it for every simulation of "
            f"every environment, up to {MAX_STATE_BYTES}: use PPO, or a smaller state."
        )
