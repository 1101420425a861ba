"""Mapping of agents in Python environments, where a function may choose modules by episode."""

from collections.abc import Mapping, Sequence

from jaxrl.config.agent_mapping import (
    AgentMapping,
    EpisodeStub,
    Mapped,
    Pattern,
    accept_worker,
    call_once,
    require_id,
)
from jaxrl.core.spaces import is_same_space
from jaxrl.envs.multi.host_env import AgentID
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.errors import ConfigError, did_you_mean

_NUM_CALLS = 256
"""Number of episodes that a function is asked about, to see whether it chooses."""

Choices = dict[str, tuple[str, ...]]
"""Modules that may play each agent, most often a single one."""


def read_choices(
    mapping: Mapping[str, object], agents: Sequence[str], *, has_function: bool
) -> Choices:
    """Return the modules of each agent that a mapping names.

    Args:
        mapping: An id, or a list of ids that a function chooses from, for each agent.
        agents: Agents of the environment.
        has_function: Whether there is a function that chooses.

    Raises:
        ConfigError: If nothing chooses between several modules.
    """
    found: Choices = {}
    for agent in agents:
        value = mapping[agent]
        if isinstance(value, str):
            found[agent] = (value,)
            continue
        if not isinstance(value, list) or not value or not has_function:
            named = list(value) if isinstance(value, list) else value
            raise ConfigError(
                f"mapping gives the agent {agent!r} the modules {named}, one of which plays it in "
                "each episode: name at least one, and set policy_mapping_fn, which chooses."
            )
        found[agent] = tuple(dict.fromkeys(str(module) for module in value))
    return found


def call_host_mapping(function: Mapped, made: MadeMultiHostEnv, ids: Sequence[str]) -> Choices:
    """Return the modules that a user's function gives each agent.

    An agent for which the function gives several may be played by any module of `policies` that has
    its spaces, but by none that is always another agent's and was never its own.

    Args:
        function: Function of an agent and an episode.
        made: Environment.
        ids: All modules.
    """
    found = {
        agent: _call_often(function, agent, made.own_ids[agent]) for agent in made.possible_agents
    }
    return {
        agent: modules if len(modules) == 1 else _find_choices(agent, found, made, ids)
        for agent, modules in found.items()
    }


def check_choices(function: Mapped, made: MadeMultiHostEnv, ids: Sequence[str]) -> None:
    """Raise ConfigError if a function raises, or names a module that there is none of.

    Args:
        function: Function of an agent and an episode.
        made: Environment.
        ids: All modules.
    """
    for agent in made.possible_agents:
        for module in _call_often(function, agent, made.own_ids[agent]):
            if module not in ids:
                raise ConfigError(
                    f"new_agent_to_module_mapping_fn gives the agent {agent!r} the module {module!r}, "
                    f"but the modules are {', '.join(ids)}.{did_you_mean(module, ids)}"
                )


def _find_choices(
    agent: str, found: Choices, made: MadeMultiHostEnv, ids: Sequence[str]
) -> tuple[str, ...]:
    """Return the modules that may play an agent: those it was given, and others of its spaces."""
    spaces = made.observation_spaces, made.action_spaces

    def may_play(module: str) -> bool:
        others = [other for other, modules in found.items() if module in modules]
        if any(found[other] == (module,) for other in others):
            return False
        return all(is_same_space(by[agent], by[other]) for by in spaces for other in others)

    given = found[agent]
    return (*given, *(module for module in ids if module not in given and may_play(module)))


def _call_often(function: Mapped, agent: str, own_id: AgentID) -> tuple[str, ...]:
    """Return all modules that a user's function gives an agent in several calls."""
    stubs = [EpisodeStub(index, on_host=True) for index in range(_NUM_CALLS)]
    function = accept_worker(function)
    found = [call_once(function, agent, stub, own_id) for stub in stubs for _ in range(2)]
    return tuple(sorted({require_id(module, agent) for module in found}))


def list_choices(agents: AgentMapping) -> dict[str, list[str]]:
    """Return the mapping that says between which modules a function chooses, one or several."""
    return {a: list(agents.choices.get(a, (m,))) for a, m in agents.players[0].items()}


def follow(mapping: Mapping[str, str], agent_id: AgentID, *unused: object, **others: object) -> str:
    """Return the module of an agent by a mapping, as a function with the mapping as its first argument."""
    del unused, others
    return mapping[str(agent_id)]


def take_first(choices: Choices) -> Pattern:
    """Return the first module of each agent."""
    return {agent: names[0] for agent, names in choices.items()}
