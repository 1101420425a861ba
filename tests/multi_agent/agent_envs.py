"""Environments of several agents for tests, and a single-agent one in their form."""

import dataclasses
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, PyTree
from jaxrl.envs.multi.base import ALL, MultiAgentJaxEnv, MultiStart, MultiStep
from jaxrl.envs.registry import MadeEnv, make

NO, YES = jnp.zeros((), bool), jnp.ones((), bool)


class OneAgent(MultiAgentJaxEnv[Any, Any]):
    """An environment of a single agent as one of several."""

    possible_agents = ("only",)

    def __init__(self, env_id: str = "CartPole-v1") -> None:
        made = make(env_id)
        assert isinstance(made, MadeEnv)
        self._made = made
        self.name, self.reset_mode = f"one {env_id}", made.env.reset_mode

    @property
    def default_params(self) -> Any:
        return self._made.params

    def observation_space(self, agent: str, params: PyTree) -> gymnasium.Space[Any]:
        return self._made.env.observation_space(params)

    def action_space(self, agent: str, params: PyTree) -> gymnasium.Space[Any]:
        return self._made.env.action_space(params)

    def reset(self, key: Key, params: PyTree) -> tuple[Any, MultiStart]:
        state, obs = self._made.env.reset(key, params)
        return state, MultiStart(obs={"only": obs}, acts={"only": YES})

    def step(
        self, key: Key, state: Any, actions: dict[str, PyTree], params: PyTree
    ) -> tuple[Any, MultiStep]:
        state, step = self._made.env.step(key, state, actions["only"], params)
        return state, MultiStep(
            obs={"only": step.obs},
            acts={"only": YES},
            reward={"only": jnp.asarray(step.reward, jnp.float32)},
            terminated={"only": NO, ALL: jnp.asarray(step.terminated)},
            truncated={"only": NO, ALL: jnp.asarray(step.truncated)},
        )


@pytree
class StreamState:
    """Clock of a torture environment, and its episode's number."""

    time: Int[Array, ""]
    episode: Float[Array, ""]
    present: dict[str, Array]
    clocks: dict[str, Array]


class Torture(MultiAgentJaxEnv[Any, Any]):
    """Agents that act, come, leave, die and are paid at random times.

    An observation is (episode, agent, time), so that a row tells where it comes from; a reward is
    a function of agent and time. It does not declare that not everybody acts.
    """

    possible_agents = ("a", "b", "c")
    name = "torture"

    def observation_space(self, agent: str, params: PyTree) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Box(0.0, 1e6, (3,), np.float32)

    def action_space(self, agent: str, params: PyTree) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Discrete(3)

    def _observe(self, state: StreamState) -> dict[str, Array]:
        time = state.time.astype(jnp.float32)
        return {
            agent: jnp.stack([state.episode, jnp.float32(i), time])
            for i, agent in enumerate(self.possible_agents)
        }

    def reset(self, key: Key, params: PyTree) -> tuple[StreamState, MultiStart]:
        number_key, acts_key = jax.random.split(key)
        acts = self._draw(acts_key, 0.5)
        state = StreamState(
            time=jnp.zeros((), jnp.int32),
            episode=jnp.floor(jax.random.uniform(number_key) * 1e5),
            present=acts,
            clocks={agent: jnp.zeros((), jnp.int32) for agent in self.possible_agents},
        )
        return state, MultiStart(obs=self._observe(state), acts=acts)

    def _draw(self, key: Key, probability: float) -> dict[str, Array]:
        flags = jax.random.bernoulli(key, probability, (len(self.possible_agents),))
        return {agent: flags[i] for i, agent in enumerate(self.possible_agents)}

    def step(
        self, key: Key, state: StreamState, actions: dict[str, PyTree], params: PyTree
    ) -> tuple[StreamState, MultiStep]:
        acts_key, dies_key, leaves_key, ends_key = jax.random.split(key, 4)
        dies, leaves = self._draw(dies_key, 0.1), self._draw(leaves_key, 0.1)
        draw = jax.random.uniform(ends_key)
        over, cut = draw < 0.05, (draw >= 0.05) & (draw < 0.1)
        reward = {
            agent: (1.0 + i) * 0.1 + jnp.sin(state.time.astype(jnp.float32))
            for i, agent in enumerate(self.possible_agents)
        }
        gone = {agent: dies[agent] | leaves[agent] for agent in self.possible_agents}
        wants = self._draw(acts_key, 0.5)
        acts = {agent: wants[agent] & ~gone[agent] for agent in self.possible_agents}
        after = StreamState(
            time=state.time + 1,
            episode=state.episode,
            present={
                agent: (state.present[agent] & ~gone[agent]) | acts[agent]
                for agent in self.possible_agents
            },
            clocks=state.clocks,
        )
        return after, MultiStep(
            obs=self._observe(after),
            acts=acts,
            reward=reward,
            terminated={**dies, ALL: over},
            truncated={
                **{agent: leaves[agent] & ~dies[agent] for agent in self.possible_agents},
                ALL: cut,
            },
        )


class Targets(MultiAgentJaxEnv[Any, Any]):
    """Each agent is paid for the action of its own index, in episodes of 8 steps that are cut."""

    possible_agents = ("a", "b")
    teams = {"both": ("a", "b")}
    max_episode_steps = 8
    terminates = False
    name = "targets"

    def observation_space(self, agent: str, params: PyTree) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def action_space(self, agent: str, params: PyTree) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Discrete(2)

    def _observe(self, time: Array) -> dict[str, Array]:
        return {
            agent: jnp.stack([time / 8.0, jnp.float32(i)])
            for i, agent in enumerate(self.possible_agents)
        }

    def reset(self, key: Key, params: PyTree) -> tuple[Array, MultiStart]:
        acts = dict.fromkeys(self.possible_agents, YES)
        return jnp.zeros((), jnp.float32), MultiStart(obs=self._observe(jnp.float32(0)), acts=acts)

    def step(
        self, key: Key, state: Array, actions: dict[str, PyTree], params: PyTree
    ) -> tuple[Array, MultiStep]:
        flags = dict.fromkeys((*self.possible_agents, ALL), NO)
        return state + 1, MultiStep(
            obs=self._observe(state + 1),
            acts=dict.fromkeys(self.possible_agents, YES),
            reward={
                agent: (actions[agent] == i).astype(jnp.float32)
                for i, agent in enumerate(self.possible_agents)
            },
            terminated={**flags, ALL: self.terminates & (state >= 7)},
            truncated=flags,
        )


class Ending(Targets):
    """The same in episodes of 8 steps that terminate."""

    max_episode_steps = None
    terminates = True


class Rare(Targets):
    """`b` acts alone at every eighth step, and `a` at all others."""

    acting = "some"
    max_acting = 1
    max_episode_steps = 48

    def _find_acting(self, time: Array) -> dict[str, Array]:
        return {"a": time % 8 != 0, "b": time % 8 == 0}

    def reset(self, key: Key, params: PyTree) -> tuple[Array, MultiStart]:
        state, start = super().reset(key, params)
        return state, MultiStart(obs=start.obs, acts=self._find_acting(state))

    def step(
        self, key: Key, state: Array, actions: dict[str, PyTree], params: PyTree
    ) -> tuple[Array, MultiStep]:
        after, step = super().step(key, state, actions, params)
        acts = self._find_acting(state)
        reward = {agent: acts[agent] * x for agent, x in step.reward.items()}
        flags = dict.fromkeys((*self.possible_agents, ALL), NO)
        return after, dataclasses.replace(
            step, acts=self._find_acting(after), reward=reward, terminated=flags
        )
