"""Python environments of several agents, as gymnasium's creators make them."""

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxrl.envs.adapters.barrier import close_quietly
from jaxrl.envs.adapters.host_creators import Creator, TimeLimitCreator
from jaxrl.envs.adapters.host_spaces import describe_casts
from jaxrl.envs.adapters.host_state import get_time_limit, unwrap_layers
from jaxrl.envs.adapters.pettingzoo import wrap_pettingzoo
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import EnvRequest
from jaxrl.envs.multi.checked import CheckedMultiAgentEnv
from jaxrl.envs.multi.host_env import MultiAgentEnv, is_multi_agent_env
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.errors import EnvError


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MultiAgentCreator:
    """Creator of the environment of several agents inside what another creator makes.

    Gymnasium puts wrappers of a single agent around every environment of its registry.
    """

    create: Callable[[EnvContext], Any]

    def __call__(self, context: EnvContext) -> MultiAgentEnv:
        env = find_multi_agent_layer(wrap_pettingzoo(self.create(context)))
        assert env is not None  # it was found when the creator was first called
        return env


def find_multi_agent_layer(env: object) -> MultiAgentEnv | None:
    """Return the environment of several agents inside gymnasium's wrappers, None if there is none."""
    layers: list[Any] = unwrap_layers(env)  # pyright: ignore[reportArgumentType]
    return next((layer for layer in layers if is_multi_agent_env(layer)), None)


def describe_multi_env(
    env_id: str, create: Creator, request: EnvRequest, env: Any
) -> MadeMultiHostEnv:
    """Read agents, spaces and limits of one environment, and close it.

    Where the environment does not say who may take part, the agents are those of a first episode's
    first observations.

    Raises:
        EnvError: If it names no agent, or an agent has no valid space.
    """
    if request.is_atari:
        raise EnvError(
            f"{env_id} has several agents, so is_atari=True has no effect; leave it out."
        )
    inner = find_multi_agent_layer(env)
    assert inner is not None
    _check_layers(env_id, env, inner)
    try:
        checked = CheckedMultiAgentEnv(inner, env_id)
        agents = checked.possible_agents
        has_all_agents = bool(agents)
        if not has_all_agents:
            agents = tuple(checked.reset(seed=0).obs)
        if not agents:
            raise EnvError(
                f"{env_id} names no agent: set self.possible_agents in __init__ to the ids of all "
                "that may take part."
            )
        own_limit = get_time_limit(env)
        notes = _describe_casts(checked, agents)
        return MadeMultiHostEnv(
            id=env_id,
            create=MultiAgentCreator(
                create=create.create if isinstance(create, TimeLimitCreator) else create
            ),
            observation_spaces={name: checked.get_observation_space(name) for name in agents},
            action_spaces={name: checked.get_action_space(name) for name in agents},
            max_episode_steps=request.max_episode_steps or own_limit,
            env_config=dict(request.context),
            state_space=checked.state_space,
            has_all_agents=has_all_agents,
            notes=notes,
            own_ids={name: checked.agents.get_own_id(name) for name in agents},
        )
    finally:
        close_quietly(env_id, env)


def _check_layers(env_id: str, env: Any, inner: MultiAgentEnv) -> None:
    """Raise EnvError if a wrapper of the user's is around an environment, which would be left out."""
    layers: list[Any] = unwrap_layers(env)
    for layer in layers[: layers.index(inner)]:
        if not type(layer).__module__.startswith("gymnasium."):
            raise EnvError(
                f"{env_id}: {type(layer).__name__} wraps an environment of several agents, and gymnasium's "
                "wrappers do not take their dictionaries: write it as a MultiAgentEnv that holds the "
                "other one."
            )


def _describe_casts(checked: CheckedMultiAgentEnv, agents: tuple[str, ...]) -> tuple[str, ...]:
    """Return a sentence for each Box that modules see in another dtype, of equal agents once."""
    notes: dict[str, str] = {}
    for agent in agents:
        own = checked.agents.get_own_id(agent)
        spaces = {
            "observation": checked.env.get_observation_space(own),
            "action": checked.env.get_action_space(own),
        }
        for what, space in spaces.items():
            for note in describe_casts("", space):
                notes.setdefault(f"{what}{note}", f"the {what} of agent {agent!r}{note}")
    return tuple(f"{checked.name}: {note}" for note in notes.values())
