"""Environments of teams for tests: masks and deaths, rivals, and members that differ."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.core.struct import pytree
from jaxrl.envs import MultiAgentJaxEnv, MultiStart, MultiStep
from jaxrl.envs.multi.base import ALL
from jaxrl.envs.multi.matrix_games import TwoStepAnd

NEVER, ALWAYS = jnp.zeros((), bool), jnp.ones((), bool)


class NoState(TwoStepAnd):
    """The two-step game without a global state."""

    def observation_space(self, agent: str, params: Any) -> Any:
        return super().state_space(params)

    def state_space(self, params: Any) -> Any:
        return None


@pytree
class RiskyState:
    """Time, and who is alive."""

    time: Any
    alive: Any


class Risky(MultiAgentJaxEnv[Any, None]):
    """Three members of whom the last dies after the second step, with masks that change.

    The action `time % 3` is illegal, and costs everything if it is taken. The environment cuts its
    episodes itself.
    """

    possible_agents = ("a", "b", "c")
    name = "risky"
    steps = 5

    def observation_space(self, agent: str, params: None) -> Any:
        box = spaces.Box(0.0, 9.0, (2,), np.float32)
        return spaces.Dict({"action_mask": spaces.MultiBinary(3), "seen": box})

    def action_space(self, agent: str, params: None) -> Any:
        return spaces.Discrete(3)

    def _tell(self, state: RiskyState) -> Any:
        mask = (jnp.arange(3) != state.time % 3).astype(jnp.int8)
        obs: dict[str, Any] = {}
        for index, agent in enumerate(self.possible_agents):
            seen = jnp.stack([state.time, jnp.int32(index)]).astype(jnp.float32)
            obs[agent] = {"action_mask": mask, "seen": seen}
        return obs, dict(zip(self.possible_agents, state.alive, strict=True))

    def reset(self, key: Any, params: None) -> Any:
        state = RiskyState(time=jnp.zeros((), jnp.int32), alive=jnp.ones((3,), bool))
        obs, acts = self._tell(state)
        return state, MultiStart(obs=obs, acts=acts)

    def step(self, key: Any, state: RiskyState, actions: Any, params: None) -> Any:
        taken = jnp.stack([actions[agent] for agent in self.possible_agents])
        paid = jnp.where(taken == state.time % 3, -100.0, 1.0 + jnp.arange(3.0))
        dies = state.alive & (jnp.arange(3) == 2) & (state.time == 1)
        after = RiskyState(time=state.time + 1, alive=state.alive & ~dies)
        obs, acts = self._tell(after)
        over = after.time >= self.steps
        flags = dict.fromkeys(self.possible_agents, NEVER)
        return after, MultiStep(
            obs=obs,
            acts={agent: flag & ~over for agent, flag in acts.items()},
            reward=dict(zip(self.possible_agents, paid, strict=True)),
            terminated={**dict(zip(self.possible_agents, dies, strict=True)), ALL: NEVER},
            truncated={**flags, ALL: over},
        )


class Rivals(TwoStepAnd):
    """Two teams."""

    teams = {"red": ("agent_0",), "blue": ("agent_1",)}


class Unequal(TwoStepAnd):
    """Members with different numbers of actions."""

    def action_space(self, agent: str, params: Any) -> Any:
        return spaces.Discrete(4 if agent == "agent_0" else 3)


class MixedMotives(MultiAgentJaxEnv[Any, None]):
    """One choice of a number each; what a member is paid also depends on the other's.

    By its own reward, the first is best at 0.5 and the second at -0.5; by the sum of both, at 0.
    """

    possible_agents = ("a", "b")
    name = "mixed motives"

    def observation_space(self, agent: str, params: None) -> Any:
        return spaces.Box(0.0, 1.0, (1,), np.float32)

    def action_space(self, agent: str, params: None) -> Any:
        return spaces.Box(-1.0, 1.0, (1,), np.float32)

    def _tell(self) -> Any:
        agents = self.possible_agents
        return dict.fromkeys(agents, jnp.zeros((1,), jnp.float32)), dict.fromkeys(agents, ALWAYS)

    def reset(self, key: Any, params: None) -> Any:
        obs, acts = self._tell()
        return jnp.zeros((), jnp.int32), MultiStart(obs=obs, acts=acts)

    def step(self, key: Any, state: Any, actions: Any, params: None) -> Any:
        a, b = actions["a"][0], actions["b"][0]
        obs, acts = self._tell()
        flags = dict.fromkeys((*self.possible_agents, ALL), NEVER)
        return state, MultiStep(
            obs=obs,
            acts=acts,
            reward={"a": b - jnp.square(a - 0.5), "b": -a - jnp.square(b + 0.5)},
            terminated={**flags, ALL: ALWAYS},
            truncated=flags,
        )
