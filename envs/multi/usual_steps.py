"""Quick recognition of the most frequent step: all agents that are present go on."""

from collections.abc import Mapping, Set
from typing import TypeGuard

from jaxrl.envs.multi.base import ALL
from jaxrl.envs.multi.host_env import AgentID


class UsualStep:
    """Step at which all agents that are present, and no others, have each value, and none ends.

    Attributes:
        names: Names of these agents by the environment's own ids.

    Args:
        own_ids: The environment's own ids of the agents that are present, by name.
    """

    def __init__(self, own_ids: Mapping[str, AgentID]) -> None:
        self.names = {agent: name for name, agent in own_ids.items()}
        self._types = {type(agent) for agent in self.names}
        self._no_ends = {**dict.fromkeys(self.names, False), ALL: False}
        self._end_types = {*self._types, str}
        self._named_no_ends = {**dict.fromkeys(own_ids, False), ALL: False}

    def make_flags(self) -> dict[str, bool]:
        """Return that no agent ends, by name."""
        return self._named_no_ends.copy()

    def matches(
        self, obs: object, rewards: object, terminateds: object, truncateds: object, infos: object
    ) -> bool:
        """Return whether what an environment returned is such a step, whatever its values."""
        names, ids, types = self.names.keys(), self._types, {bool}
        return (
            _is_dict_of(obs, names, ids)
            and _is_dict_of(rewards, names, ids)
            and _is_dict_of(infos, names, ids)
            and {*map(type, infos.values())} <= {dict}
            and _is_dict_of(terminateds, self._no_ends.keys(), self._end_types)
            and _is_dict_of(truncateds, self._no_ends.keys(), self._end_types)
            and {*map(type, terminateds.values()), *map(type, truncateds.values())} == types
            and terminateds == truncateds == self._no_ends
        )


def _is_dict_of(
    value: object, keys: Set[AgentID], types: set[type]
) -> TypeGuard[dict[AgentID, object]]:
    """Return whether a value is a dictionary of these keys; True and 1 are different ones."""
    return type(value) is dict and value.keys() == keys and {*map(type, value)} == types
