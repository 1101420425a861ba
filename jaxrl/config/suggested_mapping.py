"""Mapping that a message proposes where agents of one module have different spaces."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium

from jaxrl.core.spaces import is_same_space

_NUMBER = re.compile(r"[_-]?\d+$")
_MAX_WRITTEN = 16
"""Number of agents up to which a message has the whole mapping."""

Spaces = Mapping[str, gymnasium.Space[Any]]


def suggest_mapping(observation_spaces: Spaces, action_spaces: Spaces) -> dict[str, str]:
    """Return a module for each agent, which agents of equal spaces share.

    A module has the name of its agents without their numbers, `"adversary"` for `"adversary_0"` and
    `"adversary_1"`.

    Args:
        observation_spaces: Observation spaces by agent.
        action_spaces: Action spaces by agent.
    """
    groups: list[list[str]] = []
    for agent in observation_spaces:
        for group in groups:
            if all(
                is_same_space(by[agent], by[group[0]]) for by in (observation_spaces, action_spaces)
            ):
                group.append(agent)
                break
        else:
            groups.append([agent])
    names = _name_groups(groups)
    by_agent = {agent: name for name, group in zip(names, groups, strict=True) for agent in group}
    return {agent: by_agent[agent] for agent in observation_spaces}


def describe_suggestion(observation_spaces: Spaces, action_spaces: Spaces) -> str:
    """Return the mapping as one writes it, of many agents one of each module."""
    mapping = suggest_mapping(observation_spaces, action_spaces)
    if len(mapping) <= _MAX_WRITTEN:
        return f".multi_agent(mapping={mapping})"
    first = {module: agent for agent, module in reversed(mapping.items())}
    shown = ", ".join(f"{agent!r}: {module!r}" for module, agent in reversed(first.items()))
    return f".multi_agent(mapping={{{shown}, ...}}) with an entry for each agent"


def _name_groups(groups: Sequence[Sequence[str]]) -> list[str]:
    """Return distinct names of groups, made of those of their agents."""
    kinds = [tuple(dict.fromkeys(_NUMBER.sub("", agent) for agent in own)) for own in groups]
    names = ["_".join(own) for own in kinds]
    are_short = all(all(own) and len(own) <= 3 for own in kinds)
    is_each_once = len(set(names)) == len(names)
    return names if are_short and is_each_once else [f"policy_{i}" for i in range(len(groups))]
