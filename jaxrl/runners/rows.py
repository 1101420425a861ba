"""The rows of a fragment as they come from host environments, NumPy."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, UInt32

from jaxrl.core.types import Columns, PyTree, Rollout
from jaxrl.envs.host import HostStep
from jaxrl.envs.vector import NO_FAULT, OBS_FAULT, REWARD_FAULT
from jaxrl.training.episode_stats import EpisodeRecord

FAULT_CODES = {"reward": REWARD_FAULT, "observation": OBS_FAULT, "raised": NO_FAULT}
"""Only what is not finite is counted as such; what was raised is told of as a runner's fault."""


class Rows:
    """Consecutive vector steps, `[T, B, ...]`, kept at full width until the fragment is done.

    Args:
        capacity: Steps that fit before it grows.
        obs: The leaves of the first observations, `[B, ...]`.
        width: Words of a step.
        leaves: From observations to their leaves.
    """

    def __init__(
        self,
        capacity: int,
        obs: Sequence[np.ndarray],
        width: int,
        leaves: Callable[[PyTree], list[Any]],
    ) -> None:
        self.length = 0
        self._leaves = leaves
        rows = len(obs[0])
        self.obs = [np.empty((capacity + 1, *leaf.shape), leaf.dtype) for leaf in obs]
        for buffer, leaf in zip(self.obs, obs, strict=True):
            buffer[0] = leaf
        self.words = np.empty((capacity, rows, width), np.uint32)
        self.reward = np.empty((capacity, rows), np.float32)
        self.terminated = np.empty((capacity, rows), np.bool_)
        self.truncated = np.empty((capacity, rows), np.bool_)
        self.mask = np.empty((capacity, rows), np.bool_)
        self.starts = np.empty((capacity, rows), np.bool_)
        self.fault = np.zeros((capacity, rows), np.int32)
        self._final: list[tuple[int, Bool[np.ndarray, " B"], list[np.ndarray]]] = []

    @property
    def capacity(self) -> int:
        """Steps that fit."""
        return len(self.reward)

    def current(self) -> list[np.ndarray]:
        """The leaves of the observations to act on."""
        return [buffer[self.length] for buffer in self.obs]

    def add(self, words: UInt32[np.ndarray, "B width"], step: HostStep) -> None:
        """One vector step: what acting returned, and what the environments did."""
        t = self.length
        self.words[t] = words
        for buffer, leaf in zip(self.obs, self._leaves(step.obs), strict=True):
            buffer[t + 1] = leaf
        self.reward[t] = step.reward
        self.terminated[t] = step.terminated
        self.truncated[t] = step.truncated
        self.mask[t] = step.mask
        self.starts[t] = step.starts
        for fault in step.faults:
            # A fault beside a transition is one of the reset after it.
            if not step.mask[fault.row]:
                self.fault[t, fault.row] = FAULT_CODES[fault.what]
        over = self.terminated[t] | self.truncated[t]
        if np.count_nonzero(over):  # several times as fast as any()
            final = [np.array(leaf) for leaf in self._leaves(step.final_obs)]
            self._final.append((t, over, final))
        self.length = t + 1

    def grow(self, more: int) -> None:
        """Room for so many steps more."""
        for name in ("words", "reward", "terminated", "truncated", "mask", "starts", "fault"):
            old = getattr(self, name)
            empty = np.zeros((more, *old.shape[1:]), old.dtype)
            setattr(self, name, np.concatenate([old, empty]))
        self.obs = [
            np.concatenate([old, np.zeros((more, *old.shape[1:]), old.dtype)]) for old in self.obs
        ]

    def pad(self, length: int) -> None:
        """Rows that are no transitions, observing what was observed last, up to a length."""
        self.grow(max(length - self.capacity, 0))
        first, self.length = self.length, length
        for buffer in self.obs:
            buffer[first + 1 : length + 1] = buffer[first]
        self.words[first:length] = 0
        self.reward[first:length] = 0.0
        for flags in (self.terminated, self.truncated, self.mask):
            flags[first:length] = False
        self.starts[first:length] = self.starts[first - 1]

    def latest_obs(self) -> list[np.ndarray]:
        """Copies of the leaves of what is to be acted on next."""
        return [buffer[self.length].copy() for buffer in self.obs]

    def rollout(
        self,
        tree: Callable[[Sequence[np.ndarray]], PyTree],
        recorded: dict[str, PyTree],
        starts: Bool[np.ndarray, " B"],
        carry_in: PyTree,
    ) -> Rollout:
        """The rows as the compiled loop gives them.

        Args:
            tree: From leaves to observations.
            recorded: The module's outputs, out of `words`.
            starts: Whether the first observations start episodes.
            carry_in: The carry before the first row.
        """
        end = self.length
        final = [np.array(buffer[1 : end + 1]) for buffer in self.obs]
        for t, over, leaves in self._final:
            for buffer, leaf in zip(final, leaves, strict=True):
                buffer[t][over] = leaf[over]
        extras = {name: column for name, column in recorded.items() if name != Columns.ACTIONS}
        rollout: Any = Rollout  # its fields hold arrays of either kind
        return rollout(
            obs=tree([buffer[:end] for buffer in self.obs]),
            action=recorded[Columns.ACTIONS],
            reward=self.reward[:end],
            terminated=self.terminated[:end],
            truncated=self.truncated[:end],
            final_obs=tree(final),
            is_first=np.concatenate([starts[None], self.starts[: end - 1]]),
            mask=self.mask[:end],
            extras=extras,
            carry_in=carry_in,
        )

    def record(
        self,
        count: UInt32[np.ndarray, " B"],
        returns: Float[np.ndarray, " B"],
        lengths: Int[np.ndarray, " B"],
    ) -> EpisodeRecord:
        """Which episodes ended.

        Args:
            count: Transitions of each environment before the first row.
            returns: Of the episodes that go on; made those after the last row.
            lengths: Theirs, likewise.
        """
        end = self.length
        over = self.terminated[:end] | self.truncated[:end]
        episode_return = np.empty((end, len(count)), np.float32)
        episode_length = np.empty((end, len(count)), np.int32)
        ends: Any = over.any(axis=1)
        for t in range(end):
            returns += self.reward[t]
            lengths += self.mask[t]
            episode_return[t], episode_length[t] = returns, lengths
            if ends[t]:
                returns[over[t]] = 0.0
                lengths[over[t]] = 0
        record: Any = EpisodeRecord
        return record(
            ended=over & self.mask[:end],
            episode_return=episode_return,
            episode_length=episode_length,
            env_step=count[None] + np.arange(end, dtype=np.uint32)[:, None],
            fault=self.fault[:end],
        )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """Rows in the making, and what was before the first of them."""

    rows: Rows
    carry_in: PyTree
    starts: Bool[np.ndarray, " B"]
    begin: float
