"""Independent copies of a single-agent environment as one environment of several agents."""

import inspect
from collections.abc import Mapping
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from jaxrl.core.struct import pytree, where_rows
from jaxrl.core.types import Key, Keys, PyTree
from jaxrl.envs.adapters.barrier import derive_seed
from jaxrl.envs.adapters.gymnasium import create_env
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.multi.base import ALL, Acting, MultiAgentJaxEnv, MultiStart, MultiStep
from jaxrl.envs.multi.host_env import AgentDict, MultiAgentEnv
from jaxrl.envs.params import check_count
from jaxrl.envs.registry import EnvSpec, MadeEnv, make
from jaxrl.errors import EnvError


class HostCopies(MultiAgentEnv):
    """Base class of what `make_multi_agent` returns for a Python environment: an agent in each copy.

    Agents are the ints from 0 on, as in RLlib. An agent ends with its own copy, and the episode
    with the last of them. Agent 0 has the seed of the reset itself; the other copies have seeds of
    their own, so that they differ.
    """

    copied: EnvSpec = ""

    def __init__(self, config: EnvContext | None = None) -> None:
        """Make the copies.

        Args:
            config: `num_agents` (default: 1), and the copied environment's own arguments.

        Raises:
            EnvError: If the number is not positive, or the environment cannot be made.
        """
        context = EnvContext() if config is None else config
        arguments = dict(context)
        count = arguments.pop("num_agents", 1)
        check_count("num_agents", count)
        made = make(self.copied, arguments)
        if not isinstance(made, MadeHostEnv):
            raise EnvError(f"{made.id} is written in JAX with these arguments, and not without.")
        if isinstance(context, EnvContext):
            inner = context.copy_with_overrides(arguments)
        else:
            inner = EnvContext(arguments)
        self.envs = [create_env(made.id, made.create, inner) for _ in range(count)]
        self.agents = self.possible_agents = list(range(count))
        super().__init__()
        self.observation_spaces = {i: env.observation_space for i, env in enumerate(self.envs)}
        self.action_spaces = {i: env.action_space for i, env in enumerate(self.envs)}
        self.render_mode = self.envs[0].render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        super().reset(seed=seed)
        obs: AgentDict = {}
        infos: AgentDict = {}
        for index, env in enumerate(self.envs):
            own = seed if seed is None or index == 0 else derive_seed(seed, index)
            obs[index], infos[index] = env.reset(seed=own, options=options)
        self.agents = list(self.possible_agents)
        return obs, infos

    def step(
        self, action_dict: AgentDict
    ) -> tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]:
        obs: AgentDict = {}
        rewards: AgentDict = {}
        terminateds: AgentDict = {}
        truncateds: AgentDict = {}
        infos: AgentDict = {}
        for agent, action in action_dict.items():
            result = self.envs[agent].step(action)
            obs[agent], rewards[agent], terminateds[agent], truncateds[agent] = result[:4]
            infos[agent] = result[4]
        ended = {a for a in action_dict if terminateds[a] or truncateds[a]}
        self.agents = [agent for agent in self.agents if agent not in ended]
        over, by_itself = not self.agents, any(terminateds.values())
        terminateds[ALL] = over and by_itself
        truncateds[ALL] = over and not by_itself
        return obs, rewards, terminateds, truncateds, infos

    def render(self) -> np.ndarray | None:
        """Return the copies' pictures side by side, None if they have none."""
        frames = [frame for env in self.envs if isinstance(frame := env.render(), np.ndarray)]
        return np.concatenate(frames, axis=1) if len(frames) == len(self.envs) else None

    def close(self) -> None:
        for env in self.envs:
            env.close()


def make_host_class(env: EnvSpec, env_id: str) -> type[HostCopies]:
    """Return the class of copies of a Python environment."""
    attributes = {
        "__doc__": f"Independent copies of {env_id}.",
        "copied": staticmethod(env) if inspect.isfunction(env) else env,
    }
    return type("HostMultiAgentCopies", (HostCopies,), attributes)


@pytree
class CopiesState:
    """The copies' states, and which copies have not ended yet."""

    copies: PyTree
    alive: Bool[Array, " n"]


class Copies(MultiAgentJaxEnv[CopiesState, Any]):
    """Base class of what `make_multi_agent` returns: one agent in each copy, named by its number.

    An agent ends with its own copy, and the episode with the last of them.
    """

    acting: Acting | None = "all"  # those whose copy has not ended
    spec: EnvSpec = ""

    def __init__(
        self, config: Mapping[str, Any] | None = None, *, num_agents: int = 1, **arguments: Any
    ) -> None:
        """Create the environment.

        Args:
            config: The same settings in a dictionary, as RLlib's class takes them.
            num_agents: Number of agents and copies.
            **arguments: Constructor arguments of the copied environment.

        Raises:
            EnvError: If the number is not positive, or the environment is no `JaxEnv`.
        """
        if config is not None:
            arguments = {"num_agents": num_agents, **arguments, **config}
            num_agents = arguments.pop("num_agents")
        check_count("num_agents", num_agents)
        made = make(self.spec, arguments)
        if not isinstance(made, MadeEnv):
            raise EnvError(f"{made.id} is stepped in Python with these arguments, and not without.")
        self.env: JaxEnv[Any, Any] = made.env
        self._params = made.params
        self.possible_agents = tuple(str(index) for index in range(num_agents))
        self.max_episode_steps = made.max_episode_steps
        self.reset_mode, self.render_fps = made.env.reset_mode, made.env.render_fps

    @property
    def default_params(self) -> PyTree:
        return self._params

    def observation_space(self, agent: str, params: PyTree) -> gymnasium.Space[Any]:
        return self.env.observation_space(params)

    def action_space(self, agent: str, params: PyTree) -> gymnasium.Space[Any]:
        return self.env.action_space(params)

    def reset(self, key: Key, params: PyTree) -> tuple[CopiesState, MultiStart]:
        """Reset every copy; the first one draws what it draws alone from the same key."""
        copies, obs = jax.vmap(self.env.reset, (0, None))(self._split(key), params)
        alive = jnp.ones((len(self.possible_agents),), bool)
        state = CopiesState(copies=copies, alive=alive)
        return state, MultiStart(obs=self._by_agent(obs), acts=self._by_agent(alive))

    def step(
        self, key: Key, state: CopiesState, actions: dict[str, PyTree], params: PyTree
    ) -> tuple[CopiesState, MultiStep]:
        """Step the copies that have not ended; the others stay as they are."""
        rows = [actions[agent] for agent in self.possible_agents]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)
        copies, step = jax.vmap(self.env.step, (0, 0, 0, None))(
            self._split(key), state.copies, stacked, params
        )
        terminated, truncated = step.terminated & state.alive, step.truncated & state.alive
        alive = state.alive & ~(terminated | truncated)
        over, by_itself = ~alive.any(), terminated.any()
        state = CopiesState(copies=where_rows(state.alive, copies, state.copies), alive=alive)
        return state, MultiStep(
            obs=self._by_agent(step.obs),
            acts=self._by_agent(alive),
            reward=self._by_agent(step.reward),
            terminated={**self._by_agent(terminated), ALL: over & by_itself},
            truncated={**self._by_agent(truncated), ALL: over & ~by_itself},
        )

    def render(self, state: CopiesState, params: PyTree) -> np.ndarray:
        """Render the copies from left to right; those that ended are dimmed."""
        frames: list[np.ndarray] = []
        for index, alive in enumerate(np.asarray(state.alive)):
            copy = jax.tree.map(lambda leaf, index=index: leaf[index], state.copies)
            frame = self.env.render(copy, params)
            frames.append(frame if alive else frame // 2 + 64)
        return np.concatenate(frames, axis=1)

    def _split(self, key: Key) -> Keys:
        """Return a key for each copy; the first copy's is the key itself."""
        others = jnp.arange(1, len(self.possible_agents), dtype=jnp.uint32)
        return jnp.concatenate([key[None], jax.vmap(jax.random.fold_in, (None, 0))(key, others)])

    def _by_agent(self, stacked: PyTree) -> dict[str, PyTree]:
        return {
            agent: jax.tree.map(lambda leaf, index=index: leaf[index], stacked)
            for index, agent in enumerate(self.possible_agents)
        }


def make_multi_agent(env: EnvSpec) -> type[Copies] | type[HostCopies]:
    """Return a class of environments with any number of copies of a single-agent one, as RLlib's.

    Its config takes `num_agents` (default: 1) beside the settings of the copied environment. Agents
    are called "0", "1", ...; the dictionaries of a copied Python environment have ints, as RLlib's.

    Args:
        env: Id, class path, class or instance of a `JaxEnv` or of a Python environment of a single
            agent, or a creator, as in `make`.
    """
    made = make(env)
    if not isinstance(made, MadeEnv):
        return make_host_class(env, made.id)
    parameters = [inspect.Parameter("num_agents", inspect.Parameter.KEYWORD_ONLY, default=1)]
    if not isinstance(env, JaxEnv):
        copied = type(getattr(made.env, "env", made.env))
        parameters += [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(copied).parameters.values()
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        ]
    attributes = {
        "__doc__": f"Independent copies of {made.id}.",
        "__signature__": inspect.Signature(parameters),
        "name": f"MultiAgent({made.id})",
        "spec": staticmethod(env) if inspect.isfunction(env) else env,
    }
    return type("MultiAgentCopies", (Copies,), attributes)


MultiAgentCartPole = make_multi_agent("CartPole-v1")
"""Poles on carts side by side, RLlib's example."""

MultiAgentMountainCar = make_multi_agent("MountainCarContinuous-v0")
"""Cars in valleys of their own, RLlib's example."""

MultiAgentPendulum = make_multi_agent("Pendulum-v1")
"""Pendulums side by side, RLlib's example."""
