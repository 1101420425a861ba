"""An environment whose agents come, act, wait, die, leave and come again at random."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.core.struct import pytree
from jaxrl.envs import MultiAgentJaxEnv, MultiStart, MultiStep
from jaxrl.envs.params import scalar

CROWD = 3


@pytree
class ComersParams:
    """Probabilities by step: of acting, of dying, of leaving, of each end of the episode."""

    acts: Any = scalar(0.6)
    dies: Any = scalar(0.1)
    leaves: Any = scalar(0.1)
    over: Any = scalar(0.05)


@pytree
class ComersState:
    """The number of steps, a number of the episode, and who acts."""

    time: Any
    episode: Any
    acts: Any


class Comers(MultiAgentJaxEnv[Any, ComersParams]):
    """One agent of its own, and a kind of three, who observe the time and an episode's number.

    All that happens is drawn for everybody, whether present or not.
    """

    name = "Comers"
    possible_agents = ("hermit", "crowd_0", "crowd_1", "crowd_2")
    agent_kinds = {"crowd": CROWD}
    acting = "some"
    teams = {"red": ("hermit", "crowd_0"), "blue": ("crowd_1", "crowd_2")}

    @property
    def default_params(self) -> ComersParams:
        return ComersParams()

    def observation_space(self, agent: str, params: Any) -> Any:
        return spaces.Box(-np.inf, np.inf, (2 if agent == "hermit" else 3,), np.float32)

    def action_space(self, agent: str, params: Any) -> Any:
        return spaces.Discrete(3 if agent == "hermit" else 2)

    def state_space(self, params: Any) -> Any:
        return spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def global_state(self, state: ComersState, params: Any) -> Any:
        return jnp.stack([state.episode, state.time.astype(jnp.float32)])

    def observe(self, state: ComersState) -> Any:
        seen = jnp.stack([state.episode, state.time.astype(jnp.float32)])
        own = jnp.arange(CROWD, dtype=jnp.float32)[:, None]
        crowd = jnp.broadcast_to(seen[None], (CROWD, 2))
        return {"hermit": seen, "crowd": jnp.concatenate([crowd, own], axis=1)}

    def reset(self, key: Any, params: ComersParams) -> Any:
        state = ComersState(
            time=jnp.zeros((), jnp.int32),
            episode=jax.random.uniform(key, (), jnp.float32),
            acts=jnp.array([True, True, False, False]),
        )
        acts = {"hermit": state.acts[0], "crowd": state.acts[1:]}
        return state, MultiStart(obs=self.observe(state), acts=acts)

    def step(self, key: Any, state: ComersState, actions: Any, params: ComersParams) -> Any:
        drawn = jax.random.uniform(key, (4, CROWD + 1))
        died, left = drawn[0] < params.dies, drawn[1] < params.leaves
        acts = (drawn[2] < params.acts) & ~(died | left)
        over = drawn[3] < params.over
        chosen = jnp.concatenate([actions["hermit"][None], actions["crowd"]])
        paid = state.time + 1 + jnp.where(state.acts, chosen, 0)
        state = ComersState(time=state.time + 1, episode=state.episode, acts=acts)
        return state, MultiStep(
            obs=self.observe(state),
            acts={"hermit": acts[0], "crowd": acts[1:]},
            reward={"hermit": paid[0], "crowd": paid[1:].astype(jnp.float32)},
            terminated={"hermit": died[0], "crowd": died[1:], "__all__": over[0]},
            truncated={"hermit": left[0], "crowd": left[1:], "__all__": over[1]},
        )
