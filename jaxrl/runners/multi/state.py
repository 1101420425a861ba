"""Rows of a group of modules in a runner of several agents: what they observe, and who acts next."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Bool, Float

from jaxrl.core.types import PyTree, TreeStructure
from jaxrl.envs.multi.base import ALL
from jaxrl.envs.multi.checked import HostMultiStep
from jaxrl.runners.host_policy import PrevStep
from jaxrl.runners.multi.rows import Pending, RowStep


class GroupState:
    """Rows of a group of modules, `[R, ...]`, between the steps of a runner.

    Attributes:
        width: Number of rows of an environment.
        obs: Leaves of the latest observations.
        central: What the central critics of the modules see with them; empty without any.
        acts: Whether a row's agent acts next.
        is_first: Whether a row's agent is not present; if it acts, it begins an agent-episode.
        plays: Whether a row's agent is played by the row's module in the ongoing episode.
        reward: Reward of the latest complete row.
        pending: Rows that are not complete.

    Args:
        obs: Leaves of all-zero observations.
        outputs: Leaves of what acting records, all-zero.
        carry: Leaves of the carry.
        structures: Structures of observations, of what acting records, and of the carry.
        width: Number of rows of an environment.
        is_fixed: Whether agents are always played by the same modules.
        central: All-zero inputs of a central critic; empty without one.
    """

    def __init__(
        self,
        obs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        carry: Sequence[np.ndarray],
        structures: tuple[TreeStructure, ...],
        width: int,
        *,
        is_fixed: bool,
        central: Sequence[np.ndarray] = (),
    ) -> None:
        rows = len(obs[0])
        self.width, self._is_fixed, self.structures = width, is_fixed, structures
        self.obs, self.central = list(obs), list(central)
        self.acts = np.zeros(rows, np.bool_)
        self.is_first = np.ones(rows, np.bool_)
        self.plays = np.full(rows, is_fixed)
        self.reward = np.zeros(rows, np.float32)
        self.pending = Pending.make_none(self.recorded, outputs, carry)

    @property
    def recorded(self) -> list[np.ndarray]:
        """Leaves of what is learned from: observations, and what a central critic sees."""
        return [*self.obs, *self.central]

    def clear(self) -> int:
        """Begin with no agent in any environment; return the number of pending rows dropped."""
        self.acts[:], self.is_first[:], self.plays[:] = False, True, self._is_fixed
        self.reward[:] = 0.0
        return self.pending.drop()

    @property
    def num_pending(self) -> int:
        """Number of rows that are not complete."""
        return int(self.pending.has_row.sum())

    def begin_episode(self, env: int) -> None:
        """Clear the rows of an environment, whose episode ended."""
        own = self.get_rows(env)
        self.acts[own], self.is_first[own], self.plays[own] = False, True, self._is_fixed

    def get_rows(self, env: int) -> slice:
        """Return the rows of an environment."""
        return slice(env * self.width, (env + 1) * self.width)

    def make_prev(self, is_paused: Bool[np.ndarray, " B"]) -> PrevStep:
        """Return the reward and flags that come with the observations to act on."""
        return PrevStep(
            reward=self.reward,
            is_first=self.is_first,
            paused=~self.get_active(is_paused),
        )

    def get_active(self, is_paused: Bool[np.ndarray, " B"]) -> Bool[np.ndarray, " R"]:
        """Return which rows act now: none of a paused environment."""
        return self.acts & ~np.repeat(is_paused, self.width)

    def observe(self, row: int, leaves: Sequence[np.ndarray]) -> None:
        """Set what an agent observes that acts next."""
        for kept, leaf in zip(self.obs, leaves, strict=True):
            kept[row] = leaf
        self.acts[row] = True
        self.plays[row] = True

    def go_on(self, step: RowStep) -> None:
        """Set what agents observe that are present after a step and act next."""
        rows = np.flatnonzero(step.acts_next)
        for kept, leaf in zip(self.obs, step.final_obs[: len(self.obs)], strict=True):
            kept[rows] = leaf[rows]
        self.acts[rows] = True
        self.plays[rows] = True

    def make_step(self) -> RowStep:
        """Return a step that means nothing to any row, to be filled in."""
        return RowStep.make_empty(self.recorded)

    def get_state(self) -> PyTree:
        """Return everything as arrays `[B, width, ...]`."""
        return jax.tree.map(self._by_env, self._get_tree())

    def set_state(self, state: PyTree) -> None:
        """Restore what `get_state` returned."""

        def fill(to: np.ndarray, saved: np.ndarray) -> None:
            to[...] = np.asarray(saved).reshape(to.shape)

        jax.tree.map(fill, self._get_tree(), state)

    def _get_tree(self) -> PyTree:
        pending = self.pending
        return {
            "obs": self.obs,
            "flags": [self.acts, self.is_first, self.plays],
            "reward": self.reward,
            "pending": {
                "has_row": pending.has_row,
                "reward": pending.reward,
                "is_first": pending.is_first,
                "obs": pending.obs,
                "outputs": pending.outputs,
                "carry": pending.carry,
            },
        }

    def _by_env(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(-1, self.width, *x.shape[1:]).copy()


def count_pending_rows(state: PyTree) -> int:
    """Return the number of rows that are not complete in the state of a runner of several agents."""
    return sum(int(np.sum(own["pending"]["has_row"])) for own in state["modules"].values())


def move_places(
    before: Sequence[str], after: Sequence[str], values: PyTree, blank: PyTree
) -> PyTree:
    """Return arrays `[B, agents, ...]` in which agents have other places.

    Args:
        before: Agents of the values.
        after: Agents of the result, which are these and may be more.
        values: Arrays to move.
        blank: Arrays for agents that were not there.
    """
    places = [after.index(agent) for agent in before]

    def move(value: np.ndarray, filled: np.ndarray) -> np.ndarray:
        moved = np.array(filled)
        moved[:, places] = value
        return moved

    return jax.tree.map(move, values, blank)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class AgentStepArrays:
    """Rewards and ends of all agents at a vector step, `[B, A]`, and which copies stepped, `[B]`."""

    reward: Float[np.ndarray, "B A"]
    late_reward: Float[np.ndarray, " B"]
    ended: Bool[np.ndarray, "B A"]
    over: Bool[np.ndarray, " B"]
    mask: Bool[np.ndarray, " B"]

    @staticmethod
    def make_empty(num_envs: int, num_agents: int) -> "AgentStepArrays":
        """Return arrays in which nothing happens."""
        return AgentStepArrays(
            reward=np.zeros((num_envs, num_agents), np.float32),
            late_reward=np.zeros(num_envs, np.float32),
            ended=np.zeros((num_envs, num_agents), np.bool_),
            over=np.zeros(num_envs, np.bool_),
            mask=np.zeros(num_envs, np.bool_),
        )

    def add(self, env: int, step: HostMultiStep, position: dict[str, int]) -> None:
        """Add what happened in a copy."""
        self.mask[env], self.over[env] = True, step.is_over
        for agent in step.present:
            self.ended[env, position[agent]] = step.terminated[agent] or step.truncated[agent]
        for agent, reward in step.reward.items():
            if agent in step.terminated and agent != ALL:
                self.reward[env, position[agent]] = reward
            else:
                self.late_reward[env] += reward
