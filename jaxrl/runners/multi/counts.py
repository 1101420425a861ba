"""Counts of what became of no row in a run of several agents on the host."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxrl.runners.fragment import Fragment


@dataclasses.dataclass
class AgentCounts:
    """Lifetime counts of a run of several agents.

    Attributes:
        num_agent_steps_lost: Actions of agents that became no row, because a copy or an actor failed
            before the row was complete.
        num_rewards_without_action: Rewards of agents that were not present, which are learned from
            by none.
    """

    num_agent_steps_lost: int = 0
    num_rewards_without_action: int = 0

    def add(self, fragment: Fragment) -> None:
        """Add a fragment."""
        self.num_agent_steps_lost += fragment.num_agent_steps_lost
        self.num_rewards_without_action += fragment.rewards_without_action

    def describe(self) -> dict[str, int]:
        """Return the counts by name, for results and checkpoints."""
        return dataclasses.asdict(self)

    @staticmethod
    def make_if(has_several_agents: bool) -> "AgentCounts | None":
        """Return counts of nothing; None for a single agent, whose rows are steps."""
        return AgentCounts() if has_several_agents else None

    @staticmethod
    def from_counts(counts: Mapping[str, Any]) -> "AgentCounts":
        """Return the counts of a checkpoint."""
        names = [field.name for field in dataclasses.fields(AgentCounts)]
        return AgentCounts(**{name: int(counts.get(name, 0)) for name in names})
