"""Returns of agent-episodes in evaluations on the host."""

import dataclasses
import math
from collections.abc import Iterable, Sequence

import numpy as np

from jaxrl.envs.multi.base import is_slot
from jaxrl.training.agent_rows import AgentRows
from jaxrl.training.multi_rollout import MultiRollout


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentEpisodes:
    """Agent-episodes of an evaluation: agent, module and return of each, and whom there are."""

    agents: tuple[str, ...]
    modules: tuple[str, ...]
    returns: list[tuple[str, str, float]] = dataclasses.field(
        default_factory=list[tuple[str, str, float]]
    )


class AgentTally:
    """Accumulator of agent-episodes, given which steps count.

    Args:
        rows: Agents in the rows of modules.
    """

    def __init__(self, rows: AgentRows) -> None:
        self._rows = rows
        self.episodes = AgentEpisodes(agents=rows.agents, modules=rows.modules)

    def add(self, rollout: object, step: int, env: int) -> None:
        """Add the agent-episodes that ended at a step of an environment."""
        assert isinstance(rollout, MultiRollout)
        for i in np.flatnonzero(rollout.agents.ended[step, env]):
            value = float(rollout.agents.episode_return[step, env, i])
            module = self._find_module(rollout, step, env, int(i))
            self.episodes.returns.append((self._rows.agents[i], module, value))

    def _find_module(self, rollout: MultiRollout, step: int, env: int, agent: int) -> str:
        """Return the module that played an agent."""
        if rollout.plays is None:
            return self._rows.mapping[self._rows.agents[agent]]
        for module, plays in rollout.plays.items():
            positions = self._rows.get_positions(module)
            if agent in positions and plays[step, env * len(positions) + positions.index(agent)]:
                return module
        raise AssertionError


def compute_agent_returns(parts: Iterable[AgentEpisodes | None]) -> dict[str, dict[str, float]]:
    """Return the mean return of each agent's episodes, and of each module's; NaN without any.

    The result is empty for a single agent.
    """
    found = [part for part in parts if part is not None]
    if not found:
        return {}
    returns = [entry for part in found for entry in part.returns]
    return {
        "agent_episode_returns_mean": {
            agent: _mean([value for own, _, value in returns if own == agent])
            for agent in found[0].agents
            if not is_slot(agent)
        },
        "module_episode_returns_mean": {
            module: _mean([value for _, own, value in returns if own == module])
            for module in found[0].modules
        },
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
