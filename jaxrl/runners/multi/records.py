"""Statistics of episodes and agent-episodes that a runner of several agents records."""

from collections.abc import Callable
from typing import cast

import numpy as np
from jaxtyping import Bool, UInt32

from jaxrl.core.types import PyTree
from jaxrl.envs.host import HostFault
from jaxrl.runners.multi.state import AgentStepArrays
from jaxrl.runners.rows import FAULT_CODES
from jaxrl.training.episode_stats import EpisodeRecord


class AgentTallies:
    """Returns and lengths so far of ongoing episodes `[B]`, and of agent-episodes `[B, A]`."""

    def __init__(self, num_envs: int, num_agents: int) -> None:
        self.episode_return = np.zeros(num_envs, np.float32)
        self.episode_length = np.zeros(num_envs, np.int32)
        self.agent_return = np.zeros((num_envs, num_agents), np.float32)
        self.agent_length = np.zeros((num_envs, num_agents), np.int32)

    def add(self, step: AgentStepArrays, acted: Bool[np.ndarray, "B A"]) -> None:
        """Add a vector step, given who acted at it."""
        self.agent_return += step.reward
        self.agent_length += acted & step.mask[:, None]
        self.episode_return += step.reward.sum(axis=1) + step.late_reward
        self.episode_length += step.mask

    def clear_ended(self, step: AgentStepArrays, failed: Bool[np.ndarray, " B"]) -> None:
        """Begin anew where an episode or an agent-episode ended, or a copy failed."""
        over = step.over | failed
        if not (over.any() or step.ended.any()):
            return
        gone = step.ended | over[:, None]
        self.agent_return[gone], self.agent_length[gone] = 0.0, 0
        self.episode_return[over], self.episode_length[over] = 0.0, 0

    def get_state(self) -> PyTree:
        """Return everything as arrays with a leading axis B."""
        return {name: value.copy() for name, value in vars(self).items()}

    def set_state(self, state: PyTree) -> None:
        """Restore what `get_state` returned."""
        for name, value in vars(self).items():
            value[...] = np.asarray(state[name])


class FragmentRecords:
    """Records of a fragment: of episodes `[T, B]`, of agent-episodes `[T, B, A]`, and of steps."""

    def __init__(self, num_steps: int, num_envs: int, num_agents: int) -> None:
        self._length = 0
        self._ended = np.zeros((num_steps, num_envs), np.bool_)
        self._return = np.zeros((num_steps, num_envs), np.float32)
        self._lengths = np.zeros((num_steps, num_envs), np.int32)
        self._fault = np.zeros((num_steps, num_envs), np.int32)
        shape = num_steps, num_envs, num_agents
        self._agent_ended = np.zeros(shape, np.bool_)
        self._agent_return = np.zeros(shape, np.float32)
        self._agent_length = np.zeros(shape, np.int32)
        self.mask = np.zeros((num_steps, num_envs), np.bool_)

    def add(self, step: AgentStepArrays, tallies: AgentTallies) -> None:
        """Add a vector step, with the tallies that include it."""
        t, self._length = self._length, self._length + 1
        self.mask[t] = step.mask
        self._ended[t] = step.over & step.mask
        self._return[t], self._lengths[t] = tallies.episode_return, tallies.episode_length
        self._agent_ended[t] = step.ended & (tallies.agent_length > 0)
        self._agent_return[t], self._agent_length[t] = tallies.agent_return, tallies.agent_length

    def add_fault(self, fault: HostFault) -> None:
        """Add a fault, unless the step is a transition and it belongs to the reset after it."""
        t = self._length - 1
        if not self.mask[t, fault.row]:
            self._fault[t, fault.row] = FAULT_CODES[fault.what]

    def build(self, count: UInt32[np.ndarray, " B"]) -> tuple[EpisodeRecord, EpisodeRecord]:
        """Build the records of episodes and of agent-episodes.

        Args:
            count: Number of transitions of each environment before the fragment.
        """
        make = cast("Callable[..., EpisodeRecord]", EpisodeRecord)
        steps = np.arange(len(self.mask), dtype=np.uint32)[:, None]
        env_step = count[None] + steps
        agents = self._agent_ended.shape
        return (
            make(
                ended=self._ended,
                episode_return=self._return,
                episode_length=self._lengths,
                env_step=env_step,
                fault=self._fault,
            ),
            make(
                ended=self._agent_ended,
                episode_return=self._agent_return,
                episode_length=self._agent_length,
                env_step=np.broadcast_to(env_step[..., None], agents).copy(),
                fault=np.zeros(agents, np.int32),
            ),
        )
