"""Slots of a config whose agents are not known before the run."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from jaxrl.config.agent_mapping import accept_worker
from jaxrl.config.host_mapping import call_host_mapping
from jaxrl.config.settings.multi_agent import PolicySpec
from jaxrl.core.types import PyTree
from jaxrl.envs.adapters.barrier import close_quietly
from jaxrl.envs.adapters.host_spaces import to_runner_actions, to_runner_space
from jaxrl.envs.adapters.precheck_multi import make_checked, sample_actions
from jaxrl.envs.context import EnvContext
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.envs.multi.host_slots import AgentSlotPlan, SpacePair
from jaxrl.errors import ConfigError
from jaxrl.metrics import DEFAULT_MODULE

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

logger = logging.getLogger(__name__)

_NUM_STEPS = 200
"""Number of random steps in which agents are counted."""


def give_slots(
    config: "AlgorithmConfig", made: MadeMultiHostEnv, policies: Mapping[str, object]
) -> MadeMultiHostEnv:
    """Return the environment with slots for its agents, if a config says how many.

    Args:
        config: Config of the run.
        made: Its environment.
        policies: Specification of each module; empty if none are named.

    Raises:
        ConfigError: If agents are known, a setting names them, or a module's spaces are not known.
    """
    settings = config.multi_agent_settings
    number = settings.max_agents
    if number is None:
        return made
    if made.has_all_agents:
        raise ConfigError(
            f"max_agents={number!r} has no effect: {made.id} names its agents "
            f"({len(made.possible_agents)} possible_agents), each of which has rows of its own; leave "
            "it out, or leave possible_agents empty."
        )
    for name, instead in (
        ("mapping", "set policy_mapping_fn, which is called for each of them"),
        ("observe_agent_id", "leave it out"),
        ("share_rewards", "leave it out, and share them in the environment"),
    ):
        if value := vars(settings)[name]:
            raise ConfigError(
                f"{name}={value!r} is of agents that are known before the run, and max_agents="
                f"{number!r} is for others: {instead}."
            )
    spaces = _find_spaces(config, made, policies)
    if number == "auto":
        number = _count_agents(made)
    function = settings.policy_mapping_fn
    plan = AgentSlotPlan(
        number=number, spaces=spaces, mapping_fn=function and accept_worker(function)
    )
    return made.with_slots(plan)


def _find_spaces(
    config: "AlgorithmConfig", made: MadeMultiHostEnv, policies: Mapping[str, object]
) -> dict[str, SpacePair]:
    """Return the spaces of each module: those that it is given, or of a first agent that it plays."""
    function, ids = config.multi_agent_settings.policy_mapping_fn, list(policies)
    first = {a: (made.observation_spaces[a], made.action_spaces[a]) for a in made.possible_agents}
    if function is None:
        if len(ids) > 1:
            raise ConfigError(
                f"policies has {', '.join(ids)}, and nothing says which agents they play: set "
                "policy_mapping_fn, which is called for each agent that comes."
            )
        choices = dict.fromkeys(first, (ids[0] if ids else DEFAULT_MODULE,))
    else:
        choices = call_host_mapping(function, made, ids)
    found: dict[str, SpacePair] = {}
    for agent, modules in choices.items():
        for module in modules:
            found.setdefault(module, first[agent])
    for module, spec in policies.items():
        if isinstance(spec, PolicySpec) and spec.observation_space and spec.action_space:
            found[module] = (
                to_runner_space(spec.observation_space),
                to_runner_actions(spec.action_space),
            )
    for module in found:
        if ids and module not in ids:
            raise ConfigError(
                f"policy_mapping_fn gives an agent the module {module!r}, but policies has "
                f"{', '.join(ids)}: name it there."
            )
    missing = next((module for module in ids if module not in found), None)
    if missing is not None:
        raise ConfigError(
            f"The module {missing!r} plays none of the agents of a first episode, "
            f"{', '.join(first)}, so its spaces are not known: give them, policies={{{missing!r}: "
            "PolicySpec(observation_space=..., action_space=...), ...}."
        )
    return found


def _count_agents(made: MadeMultiHostEnv) -> int:
    """Return twice the largest number of agents that are present in random steps."""
    env = make_checked(made, EnvContext(made.env_config))
    try:
        obs: dict[str, PyTree] = {}
        largest, over = 1, True
        for step in range(_NUM_STEPS):
            if over:
                obs, over = env.reset(seed=step).obs, False
                present = set(obs)
            else:
                taken = env.step(sample_actions(env, obs, step))
                obs, over = taken.obs, taken.is_over
                present = {*taken.present, *taken.joined}
            largest = max(largest, len(present))
    finally:
        close_quietly(made.id, env)
    logger.info(
        "%s: at most %d agents were present in %d random steps; max_agents is %d",
        made.id,
        largest,
        _NUM_STEPS,
        2 * largest,
    )
    return 2 * largest
