"""Queue of recorded steps between the server's thread and the training loop, with its accounts."""

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from jaxtyping import Int

from jaxrl.core.struct import replace
from jaxrl.core.types import PyTree
from jaxrl.envs.vector import NO_FAULT
from jaxrl.episodes.packing import EpisodePart, PackedParts, Tail, pack
from jaxrl.runners.fragment import Fragment
from jaxrl.runners.step_ledger import STALE, StepLedger
from jaxrl.training.episode_stats import EpisodeRecord

REFUSED = "refused"
"""Reason: not in the spaces, not finite, or not the continuation of what was sent before."""


@dataclasses.dataclass(frozen=True)
class EndedStats:
    """Return and length of an episode that has ended."""

    episode_return: float
    length: int


class Inbox:
    """Recorded steps that wait for the learner, packed into fragments of one shape.

    Args:
        num_steps: Number of rows of a fragment.
        num_columns: Number of its columns.
        capacity: Number of steps that may wait.
        max_lag: Maximum number of versions that a step's weights may be behind; None for any.
        make_blank_carry: Function that returns the carry of episode starts, for a policy without
            memory.
        keeps_received: Whether parts are kept for `pop_received`.
    """

    def __init__(
        self,
        num_steps: int,
        num_columns: int,
        capacity: int,
        max_lag: int | None,
        make_blank_carry: Callable[[int], PyTree],
        *,
        keeps_received: bool = False,
    ) -> None:
        self._num_steps, self._num_columns = num_steps, num_columns
        self.capacity, self._max_lag = capacity, max_lag
        self._make_blank_carry = make_blank_carry
        self._parts: list[EpisodePart] = []
        self._received: list[EpisodePart] | None = [] if keeps_received else None
        self._ends: dict[str, EndedStats] = {}
        self._tails: tuple[Tail | None, ...] = (None,) * num_columns
        self._next_step = np.zeros(num_columns, np.uint32)
        self._number = 0
        self._error: BaseException | None = None
        self._staleness: list[int] = []
        self.version = -1
        self.ledger = StepLedger()
        self.changed = threading.Condition()

    # --- for the server's thread ---

    def add(self, part: EpisodePart, ended: EndedStats | None) -> None:
        """Add a part.

        Args:
            part: Part of an episode, after those before it.
            ended: Statistics of the episode if this is its last part and all of it is known.
        """
        with self.changed:
            self._parts.append(part)
            if self._received is not None:
                self._received.append(part)
            if ended is not None:
                self._ends[part.episode_id] = ended
            self.ledger = self.ledger.receive(len(part))
            self.changed.notify_all()

    def cut(self, episode_id: str) -> None:
        """Note that nothing more of an episode will come, although it did not end."""
        with self.changed:
            for i in reversed(range(len(self._parts))):
                if self._parts[i].episode_id == episode_id:
                    self._parts[i] = dataclasses.replace(self._parts[i], is_cut=True)
                    return

    def refuse(self, num_steps: int) -> None:
        """Count steps that were received and cannot be used."""
        with self.changed:
            self.ledger = self.ledger.receive(num_steps).discard(num_steps, REFUSED)

    def lose(self, num_steps: int) -> None:
        """Count steps that a client recorded and never sent."""
        with self.changed:
            self.ledger = self.ledger.lose(num_steps)

    def fail(self, error: BaseException) -> None:
        """Raise an error in the training loop."""
        with self.changed:
            self._error = error
            self.changed.notify_all()

    # --- for the training loop ---

    def set_version(self, version: int) -> None:
        """Set the version of the newest weights."""
        with self.changed:
            self.version = version

    def take(self, timeout_s: float) -> Fragment | None:
        """Return the next fragment; None if it is not complete in time."""
        started = time.perf_counter()
        size = self._num_steps * self._num_columns

        def is_ready() -> bool:
            self._discard_stale()  # what arrives meanwhile may be old, too
            return self._error is not None or self.ledger.queued >= size

        with self.changed:
            was_ready = self.changed.wait_for(is_ready, timeout_s)
            if self._error is not None:
                raise self._error
            if not was_ready:
                return None
            packed = pack(self._parts, self._num_steps, self._num_columns, self._tails)
            self._parts, self._tails = list(packed.rest), packed.tails
            self.ledger = self.ledger.train(int(packed.rollout.mask.sum()))
            return self._make_fragment(packed, started)

    def _discard_stale(self) -> None:
        """Discard the steps that were chosen by weights that are too old."""
        if self._max_lag is None:
            return
        oldest = self.version - self._max_lag
        kept: list[EpisodePart] = []
        for part in self._parts:
            stale = 1 + int(np.max(np.flatnonzero(part.version < oldest), initial=-1))
            if stale:
                self.ledger = self.ledger.discard(stale, STALE)
            if stale < len(part):
                kept.append(part.split(stale)[1] if stale else part)
            elif part.is_last:  # of an episode that goes on, later parts may be trained on
                self._ends.pop(part.episode_id, None)
        self._parts = kept

    def _make_fragment(self, packed: PackedParts, started: float) -> Fragment:
        rollout = packed.rollout
        if rollout.carry_in is None:
            rollout = replace(rollout, carry_in=self._make_blank_carry(self._num_columns))
        versions = np.concatenate([part.version for _, _, part in packed.placed])
        self._staleness += [max(0, self.version - int(versions.min()))]
        self._number += 1
        num_env_steps = int(rollout.mask.sum())
        return Fragment(
            worker_index=0,
            number=self._number - 1,
            weights_version=int(versions.min()),
            rollout=rollout,
            record=self._make_record(packed),
            env_index=np.arange(self._num_columns, dtype=np.int32),
            num_env_steps=num_env_steps,
            seconds=time.perf_counter() - started,
            env_seconds=0.0,
        )

    def _make_record(self, packed: PackedParts) -> EpisodeRecord:
        shape = packed.ended.shape
        ended, returns, lengths = (
            np.zeros(shape, np.bool_),
            np.zeros(shape, np.float32),
            np.zeros(shape, np.int32),
        )
        for column, first, part in packed.placed:
            if not (part.terminated or part.truncated):
                continue
            stats = self._ends.pop(part.episode_id, None)
            if stats is None:  # its beginning was not recorded by this run
                continue
            row = first + len(part) - 1
            ended[row, column] = True
            returns[row, column], lengths[row, column] = stats.episode_return, stats.length
        make = cast("Callable[..., EpisodeRecord]", EpisodeRecord)
        return make(
            ended=ended,
            episode_return=returns,
            episode_length=lengths,
            env_step=self._count_steps(packed),
            fault=np.full(shape, NO_FAULT, np.int32),
        )

    def _count_steps(self, packed: PackedParts) -> Int[np.ndarray, "T B"]:
        """Return the number of each row in its column, with a gap where a column does not continue.

        A replay buffer cuts a column where its numbers have a gap.
        """
        first = self._next_step + np.where(packed.continues, 0, 1).astype(np.uint32)
        numbers = first[None] + np.arange(self._num_steps, dtype=np.uint32)[:, None]
        self._next_step = first + np.uint32(self._num_steps)
        return numbers

    def pop_received(self) -> list[EpisodePart]:
        """Return the parts that were added since the last call, if they are kept."""
        with self.changed:
            taken = self._received or []
            self._received = None if self._received is None else []
            return taken

    def pop_staleness(self) -> list[int]:
        """Return how many versions each fragment since the last call was behind."""
        with self.changed:
            taken, self._staleness = self._staleness, []
            return taken

    def get_counts(self) -> dict[str, Any]:
        """Return lifetime counts, for a checkpoint."""
        with self.changed:
            counts = self._next_step.tolist()
            return {"ledger": self.ledger.to_state(), "env_steps": counts}

    def set_counts(self, counts: dict[str, Any]) -> None:
        """Restore counts; what was queued when they were saved is lost."""
        with self.changed:
            self._parts, self._ends = [], {}
            self._tails = (None,) * self._num_columns
            self.ledger = StepLedger.from_state(counts.get("ledger", {}))
            saved: Sequence[int] = counts.get("env_steps", [])
            last = max(saved, default=0)
            self._next_step = np.full(self._num_columns, last + 1, np.uint32)
