"""NumPy buffer for the rows of a fragment, filled from host environments."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from jaxtyping import Bool, Float, Int, UInt32

from jaxrl.core.types import Columns, PyTree, Rollout
from jaxrl.envs.host import HostStep
from jaxrl.envs.vector import NO_FAULT, OBS_FAULT, REWARD_FAULT
from jaxrl.training.episode_stats import EpisodeRecord

FAULT_CODES = {"reward": REWARD_FAULT, "observation": OBS_FAULT, "raised": NO_FAULT}
"""Fault code of each `HostFault.what`. Exceptions are reported as runner faults instead."""


class FragmentBuilder:
    """Consecutive vector steps `[T, B, ...]`, stored packed until the fragment is complete.

    Args:
        capacity: Number of steps that fit before `grow` is needed.
        obs: Leaves of the first observations, `[B, ...]`.
        num_words: Number of words per environment and step.
        flatten_obs: Function that returns the leaves of observations.
        is_first: Whether the first observations start episodes, `[B]`.
        carry: Carry before the first row.
    """

    def __init__(
        self,
        capacity: int,
        obs: Sequence[np.ndarray],
        num_words: int,
        flatten_obs: Callable[[PyTree], list[Any]],
        *,
        is_first: Bool[np.ndarray, " B"],
        carry: PyTree,
    ) -> None:
        self.length = 0
        self._flatten_obs, self._first, self._carry = flatten_obs, is_first, carry
        rows = len(obs[0])
        self.obs = [np.empty((capacity + 1, *leaf.shape), leaf.dtype) for leaf in obs]
        for buffer, leaf in zip(self.obs, obs, strict=True):
            buffer[0] = leaf
        self.words = np.empty((capacity, rows, num_words), np.uint32)
        self.reward = np.empty((capacity, rows), np.float32)
        self.terminated = np.empty((capacity, rows), np.bool_)
        self.truncated = np.empty((capacity, rows), np.bool_)
        self.mask = np.empty((capacity, rows), np.bool_)
        self.starts = np.empty((capacity, rows), np.bool_)
        self.fault = np.zeros((capacity, rows), np.int32)
        self._final_obs: list[tuple[int, Bool[np.ndarray, " B"], list[np.ndarray]]] = []

    @property
    def capacity(self) -> int:
        """Number of steps that fit."""
        return len(self.reward)

    def get_current_obs(self) -> list[np.ndarray]:
        """Return the leaves of the observations to act on."""
        return [buffer[self.length] for buffer in self.obs]

    def add(self, words: UInt32[np.ndarray, "B width"], step: HostStep) -> None:
        """Add a vector step: the packed outputs of acting and the results of the environments."""
        t = self.length
        self.words[t] = words
        for buffer, leaf in zip(self.obs, self._flatten_obs(step.obs), strict=True):
            buffer[t + 1] = leaf
        self.reward[t] = step.reward
        self.terminated[t] = step.terminated
        self.truncated[t] = step.truncated
        self.mask[t] = step.mask
        self.starts[t] = step.starts
        for fault in step.faults:
            # A fault in a row that is a transition belongs to the reset after it.
            if not step.mask[fault.row]:
                self.fault[t, fault.row] = FAULT_CODES[fault.what]
        over = self.terminated[t] | self.truncated[t]
        if np.count_nonzero(over):  # several times as fast as any()
            final = [np.array(leaf) for leaf in self._flatten_obs(step.final_obs)]
            self._final_obs.append((t, over, final))
        self.length = t + 1

    def grow(self, num_steps: int) -> None:
        """Make room for more steps."""
        for name in ("words", "reward", "terminated", "truncated", "mask", "starts", "fault"):
            old = getattr(self, name)
            empty = np.zeros((num_steps, *old.shape[1:]), old.dtype)
            setattr(self, name, np.concatenate([old, empty]))
        self.obs = [
            np.concatenate([old, np.zeros((num_steps, *old.shape[1:]), old.dtype)])
            for old in self.obs
        ]

    def pad(self, length: int) -> None:
        """Pad to a length with masked rows that repeat the last observation."""
        self.grow(max(length - self.capacity, 0))
        first, self.length = self.length, length
        for buffer in self.obs:
            buffer[first + 1 : length + 1] = buffer[first]
        self.words[first:length] = 0
        self.reward[first:length] = 0.0
        for flags in (self.terminated, self.truncated, self.mask):
            flags[first:length] = False
        self.starts[first:length] = self.starts[first - 1]

    def copy_current_obs(self) -> list[np.ndarray]:
        """Return copies of the leaves of the observations to act on next."""
        return [buffer[self.length].copy() for buffer in self.obs]

    def build_rollout(
        self,
        unflatten_obs: Callable[[Sequence[np.ndarray]], PyTree],
        recorded: dict[str, PyTree],
    ) -> Rollout:
        """Build a rollout in the form of the compiled loop.

        Args:
            unflatten_obs: Function that builds observations from their leaves.
            recorded: Outputs of the module, unpacked from `words`.
        """
        end = self.length
        final = [np.array(buffer[1 : end + 1]) for buffer in self.obs]
        for t, over, leaves in self._final_obs:
            for buffer, leaf in zip(final, leaves, strict=True):
                buffer[t][over] = leaf[over]
        extras = {name: column for name, column in recorded.items() if name != Columns.ACTIONS}
        make = cast("Callable[..., Rollout]", Rollout)  # its fields hold arrays of either kind
        return make(
            obs=unflatten_obs([buffer[:end] for buffer in self.obs]),
            action=recorded[Columns.ACTIONS],
            reward=self.reward[:end],
            terminated=self.terminated[:end],
            truncated=self.truncated[:end],
            final_obs=unflatten_obs(final),
            is_first=np.concatenate([self._first[None], self.starts[: end - 1]]),
            mask=self.mask[:end],
            extras=extras,
            carry_in=self._carry,
        )

    def build_record(
        self,
        count: UInt32[np.ndarray, " B"],
        returns: Float[np.ndarray, " B"],
        lengths: Int[np.ndarray, " B"],
    ) -> EpisodeRecord:
        """Build the record of ended episodes.

        Args:
            count: Number of transitions of each environment before the first row, `[B]`.
            returns: Returns so far of the ongoing episodes, `[B]`; updated in place.
            lengths: Lengths so far of the ongoing episodes, `[B]`; updated in place.
        """
        end = self.length
        over = self.terminated[:end] | self.truncated[:end]
        episode_return = np.empty((end, len(count)), np.float32)
        episode_length = np.empty((end, len(count)), np.int32)
        ends = cast(np.ndarray, over.any(axis=1))
        for t in range(end):
            returns += self.reward[t]
            lengths += self.mask[t]
            episode_return[t], episode_length[t] = returns, lengths
            if ends[t]:
                returns[over[t]] = 0.0
                lengths[over[t]] = 0
        make = cast("Callable[..., EpisodeRecord]", EpisodeRecord)
        return make(
            ended=over & self.mask[:end],
            episode_return=episode_return,
            episode_length=episode_length,
            env_step=count[None] + np.arange(end, dtype=np.uint32)[:, None],
            fault=self.fault[:end],
        )
