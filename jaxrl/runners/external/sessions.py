"""Clients of a run, their episodes and credit, and the queue of their steps, with its accounts."""

import dataclasses
import itertools
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from jaxtyping import Int

from jaxrl.core.struct import replace
from jaxrl.core.types import PyTree
from jaxrl.envs.vector import NO_FAULT
from jaxrl.episodes.packing import EpisodePart, PackedParts, Tail, pack
from jaxrl.external.frames import Arrays, BusyError, Head, LinkError
from jaxrl.external.spaces import check_array
from jaxrl.runners.external.acting import ActingEpisode
from jaxrl.runners.external.schema import Schema
from jaxrl.runners.fragment import Fragment
from jaxrl.runners.step_ledger import STALE, StepLedger
from jaxrl.training.episode_stats import EpisodeRecord

_ENDS = (None, "terminated", "truncated", "cut")
_SOURCES = ("policy", "log")


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
        self.parts: list[EpisodePart] = []
        self._received: list[EpisodePart] | None = [] if keeps_received else None
        self.ended: dict[str, EndedStats] = {}
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
            self.parts.append(part)
            if self._received is not None:
                self._received.append(part)
            if ended is not None:
                self.ended[part.episode_id] = ended
            self.ledger = self.ledger.receive(len(part))
            self.changed.notify_all()

    def cut(self, episode_id: str) -> None:
        """Note that nothing more of an episode will come, although it did not end."""
        with self.changed:
            for i in reversed(range(len(self.parts))):
                if self.parts[i].episode_id == episode_id:
                    self.parts[i] = dataclasses.replace(self.parts[i], is_cut=True)
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
            packed = pack(self.parts, self._num_steps, self._num_columns, self._tails)
            self.parts, self._tails = list(packed.rest), packed.tails
            self.ledger = self.ledger.train(int(packed.rollout.mask.sum()))
            return self._make_fragment(packed, started)

    def _discard_stale(self) -> None:
        """Discard the steps that were chosen by weights that are too old."""
        if self._max_lag is None:
            return
        oldest = self.version - self._max_lag
        kept: list[EpisodePart] = []
        for part in self.parts:
            stale = 1 + int(np.max(np.flatnonzero(part.version < oldest), initial=-1))
            if stale:
                self.ledger = self.ledger.discard(stale, STALE)
            if stale < len(part):
                kept.append(part.split(stale)[1] if stale else part)
            elif part.is_last:  # of an episode that goes on, later parts may be trained on
                self.ended.pop(part.episode_id, None)
        self.parts = kept

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
            stats = self.ended.pop(part.episode_id, None)
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
            self.parts, self.ended = [], {}
            self._tails = (None,) * self._num_columns
            self.ledger = StepLedger.from_state(counts.get("ledger", {}))
            saved: Sequence[int] = counts.get("env_steps", [])
            last = max(saved, default=0)
            self._next_step = np.full(self._num_columns, last + 1, np.uint32)


class BadPartError(LinkError):
    """Part of an episode that is refused; the connection goes on, and the episode is given up."""

    def __init__(self, message: str, episode_id: str) -> None:
        super().__init__(message)
        self.episode_id = episode_id


@dataclasses.dataclass(kw_only=True, eq=False)
class Episode:
    """Open episode of a client.

    `uid` names it among all episodes of the run; a client may use a name again. `is_known` is
    whether all of its steps were received here, so that its return is known.
    """

    uid: str
    acting: ActingEpisode
    training_enabled: bool
    t: int = 0
    episode_return: float = 0.0
    is_known: bool = True


@dataclasses.dataclass(kw_only=True, eq=False)
class Session:
    """Client, which may have lost its connection and return.

    `secret` is known to the connected client alone, so that nobody else takes its place.
    `num_received` counts messages, `num_steps` the steps in them, and `max_steps` those it may
    record. The first `num_elsewhere` of them it had recorded before it had a session here, which
    this run did not grant. `num_open` steps wait for successors and cannot be sent yet, of which the client says how
    many when it waits. `lost_at` is the time at which its connection was lost; None while it is
    connected.
    """

    client_id: str
    secret: str = dataclasses.field(default_factory=lambda: secrets.token_hex(16))
    num_received: int = 0
    num_steps: int = 0
    num_recorded: int = 0
    num_elsewhere: int = 0
    max_steps: int = 0
    num_open: int = 0
    lost_at: float | None = None
    episodes: dict[str, Episode] = dataclasses.field(default_factory=dict[str, Episode])
    given_up: set[str] = dataclasses.field(default_factory=set[str])


class Sessions:
    """Clients of a run.

    Args:
        schema: Arrays of a step.
        inbox: Queue of what is trained on.
        may_log: Whether the run learns from actions that simulators choose themselves.
        explores: Whether to explore in training and in evaluation.
    """

    def __init__(
        self,
        schema: Schema,
        inbox: Inbox,
        *,
        may_log: bool,
        explores: Mapping[bool, bool],
    ) -> None:
        self._schema, self._inbox, self._may_log = schema, inbox, may_log
        self._explores = explores
        self._numbers = itertools.count()
        self.slots: set[int] = set()
        self.by_id: dict[str, Session] = {}
        self.evaluated: list[EndedStats] = []
        self.num_refused, self.latest_refusals = 0, list[str]()
        self.had_clients = False

    @property
    def num_connected(self) -> int:
        """Number of clients with a connection."""
        return sum(session.lost_at is None for session in self.by_id.values())

    # --- connections ---

    def open(self, client_id: str, head: Head) -> Session:
        """Return the session of a client that has proven who it is.

        Args:
            client_id: Its name.
            head: Head of AUTH.

        Raises:
            LinkError: If another client of that name is connected, or it claims steps that no run
                has granted.
            BusyError: If the queue has no room now for the steps that it recorded elsewhere.
        """
        num_open = _get_count(head, "num_open")
        session = self.by_id.get(client_id)
        if session is not None and session.secret != head.get("secret"):
            if session.lost_at is None:
                raise LinkError(
                    f"A client with client_id={client_id!r} is connected already: give each one a "
                    "name of its own, or none."
                )
            self.expire(session)
            session = None
        if session is None:
            session = Session(client_id=client_id)
            try:
                self._resume_elsewhere(session, head)
            except LinkError:
                for name in list(session.episodes):
                    self._close_episode(session, name)
                raise
            self.by_id[client_id] = session
        self.note_recorded(session, head)
        session.lost_at = None
        session.num_open = self._limit_open(num_open)
        self.had_clients = True
        return session

    def _resume_elsewhere(self, session: Session, head: Head) -> None:
        """Accept the episodes that a client began with another server, or before it was given up."""
        session.num_received = _get_count(head, "next_number")
        session.num_steps = _get_count(head, "num_delivered")
        session.num_elsewhere = session.num_recorded = _get_count(head, "num_recorded")
        session.max_steps = session.num_elsewhere
        self._check_elsewhere(session)
        episodes = head.get("open_episodes", {})
        if not isinstance(episodes, dict) or len(episodes) > self._schema.limits.max_open_episodes:
            raise LinkError("open_episodes must map the names of open episodes to time steps.")
        for name, entry in episodes.items():
            t = entry[0] if isinstance(entry, list) and len(entry) == 2 else None
            if type(t) is not int or not 0 <= t < 2**62:
                raise LinkError("open_episodes must map names to time step and training_enabled.")
            episode = self._start(session, name, bool(entry[1]))
            episode.t, episode.is_known = t, t == 0
            episode.acting.latest_t = t - 1
            if t and self._schema.has_state:  # what the policy remembered is lost
                session.given_up.add(name)
                self._close_episode(session, name)
            episode.acting.is_resumed = self._schema.has_state

    def _check_elsewhere(self, session: Session) -> None:
        """Check that a client brings no more steps than a run grants, and that the queue takes them.

        Others' steps are sent at once, whether there is room or not: without a limit, clients that
        come again and again would fill the memory.
        """
        num_unsent = session.num_elsewhere - session.num_steps
        if num_unsent < 0:
            raise LinkError("num_delivered exceeds num_recorded.")
        most = self._inbox.capacity + self._limit_open(num_unsent)
        if num_unsent > most:
            raise LinkError(
                f"The client says that it recorded {num_unsent} steps elsewhere and did not send "
                f"them, more than the {most} that this run grants: connect a new client."
            )
        expected = sum(max(0, s.num_elsewhere - s.num_steps) for s in self.by_id.values())
        if num_unsent and self._inbox.ledger.queued + expected >= self._inbox.capacity + 2 * (
            self._schema.limits.max_open_episodes
        ):
            raise BusyError(
                "The run's queue is full of steps that were recorded before: try again later."
            )

    def disconnect(self, session: Session, now: float) -> None:
        """Note that a client's connection was lost."""
        session.lost_at = now

    def expire(self, session: Session) -> None:
        """End a session: open episodes are cut; what it was granted and never sent is lost."""
        for name in list(session.episodes):
            self._inbox.cut(session.episodes[name].uid)
            self._close_episode(session, name)
        num_accounted = max(session.num_steps, session.num_elsewhere)
        self._inbox.lose(max(0, session.num_recorded - num_accounted))
        if self.by_id.get(session.client_id) is session:
            del self.by_id[session.client_id]

    def expire_lost(self, now: float, window_s: float) -> None:
        """End the sessions of clients that did not return in time."""
        for session in list(self.by_id.values()):
            if session.lost_at is not None and now - session.lost_at >= window_s:
                self.expire(session)

    def note_recorded(self, session: Session, head: Head) -> None:
        """Note the number of steps that a client says it has recorded."""
        num_recorded = _get_count(head, "num_recorded")
        if num_recorded > session.max_steps:
            raise LinkError(
                f"The client recorded {num_recorded} steps, more than the {session.max_steps} that "
                "it was granted."
            )
        session.num_recorded = max(session.num_recorded, num_recorded)

    def note_open(self, session: Session, head: Head) -> None:
        """Note the number of steps that a client cannot send yet, if its message says so."""
        if "num_open" in head:
            session.num_open = self._limit_open(_get_count(head, "num_open"))

    def _limit_open(self, num_open: int) -> int:
        """Return a number of open steps that a client may have: one of each episode, and the next."""
        return min(2 * self._schema.limits.max_open_episodes, num_open)

    def grant(self) -> list[Session]:
        """Divide the room in the queue among the connected clients; return those that got more.

        Steps that cannot be sent yet take no room, or a client would wait for what it has itself.
        """
        connected = [session for session in self.by_id.values() if session.lost_at is None]
        room = self._inbox.capacity - self._inbox.ledger.queued
        share = math.ceil(max(0, room) / max(1, len(connected)))
        granted: list[Session] = []
        for session in connected:
            unsent = max(0, session.num_recorded - session.num_steps)
            allowed = session.num_steps + min(session.num_open, unsent) + share
            if allowed > session.max_steps:
                session.max_steps = allowed
                granted.append(session)
        return granted

    # --- episodes ---

    def get_acting(self, session: Session, head: Head) -> list[ActingEpisode]:
        """Return the episodes of an ACT message, started where they are new.

        Raises:
            LinkError: If one of them is unknown, or was asked for another time step.
        """
        names, steps = _get_list(head, "episode_ids"), _get_list(head, "t")
        enabled = _get_list(head, "training_enabled")
        if not 0 < len(names) == len(steps) == len(enabled) <= self._schema.limits.max_parts:
            raise LinkError("ACT needs equally many episode_ids, t and training_enabled.")
        if len(set(map(str, names))) < len(names):
            raise LinkError("ACT names an episode twice.")
        found: list[ActingEpisode] = []
        for name, t, is_enabled in zip(names, steps, enabled, strict=True):
            episode = self._find(session, name, t, bool(is_enabled))
            acting = episode.acting
            if type(t) is not int or t < acting.latest_t or t >= 2**62:
                raise LinkError(
                    f"The episode {name!r} had an action for time step {acting.latest_t}, and one "
                    f"for {t} was asked for."
                )
            if acting.is_resumed and acting.latest_t < 0 < t:
                self.give_up(session, name)
                raise BadPartError(
                    f"The policy's memory of the episode {name!r} went with the former process of "
                    "the run: start another one.",
                    name,
                )
            found.append(acting)
        return found

    def _find(self, session: Session, name: object, t: object, is_enabled: bool) -> Episode:
        self._check_name(name)
        assert isinstance(name, str)
        episode = session.episodes.get(name)
        if episode is None and t == 0:
            return self._start(session, name, is_enabled)
        if episode is None:
            reason = "was given up" if name in session.given_up else "is not known to the run"
            raise BadPartError(f"The episode {name!r} {reason}: start another one.", name)
        return episode

    def _check_name(self, name: object) -> None:
        limit = self._schema.limits.max_id_length
        if not isinstance(name, str) or not 0 < len(name) <= limit:
            raise LinkError(f"The name of an episode must be a text of 1 to {limit} characters.")

    def _start(self, session: Session, name: str, training_enabled: bool) -> Episode:
        self._check_name(name)
        limit = self._schema.limits.max_open_episodes
        if len(session.episodes) >= limit:
            raise LinkError(f"{limit} episodes of this client are open, the most that are allowed.")
        slot = next(slot for slot in itertools.count() if slot not in self.slots)
        self.slots.add(slot)
        session.given_up.discard(name)
        acting = ActingEpisode(slot=slot, explore=self._explores[training_enabled])
        episode = Episode(
            uid=f"{next(self._numbers)}", acting=acting, training_enabled=training_enabled
        )
        session.episodes[name] = episode
        return episode

    def _close_episode(self, session: Session, name: str) -> None:
        self.slots.discard(session.episodes.pop(name).acting.slot)

    def give_up(self, session: Session, name: str) -> None:
        """Cut an episode of which something was refused; the rest of it is ignored."""
        session.given_up.add(name)
        if name in session.episodes:
            self._inbox.cut(session.episodes[name].uid)
            self._close_episode(session, name)

    # --- parts ---

    def receive(self, session: Session, head: Head, arrays: Arrays) -> list[BadPartError]:
        """Receive a message of parts, unless it was received before.

        Returns:
            The parts that are refused.

        Raises:
            LinkError: If the message is not one that a client of this protocol sends.
        """
        number, parts = head.get("number"), _get_list(head, "parts")
        if type(number) is not int or number > session.num_received:
            raise LinkError(
                f"The message {number!r} came before number {session.num_received}: messages of "
                "parts must arrive in order."
            )
        if number < session.num_received:
            return []  # sent again because its acknowledgement was lost
        if len(parts) > self._schema.limits.max_parts:
            raise LinkError(
                f"A message of {len(parts)} parts exceeds {self._schema.limits.max_parts}."
            )
        self.note_recorded(session, head)
        session.num_received += 1
        refused: list[BadPartError] = []
        for i, part in enumerate(parts):
            if not isinstance(part, dict):
                raise LinkError("A part must be an object.")
            try:
                self._receive_part(session, part, arrays, f"{i}.")
            except BadPartError as error:
                self._refuse(session, error)
                refused.append(error)
        return refused

    def _refuse(self, session: Session, error: BadPartError) -> None:
        self.give_up(session, error.episode_id)
        self.num_refused += 1
        self.latest_refusals = [f"{session.client_id}: {error}", *self.latest_refusals[:19]]

    def _receive_part(self, session: Session, head: Head, arrays: Arrays, prefix: str) -> None:
        name, length, end = head.get("episode_id"), head.get("length"), head.get("end")
        self._check_name(name)
        assert isinstance(name, str)
        is_training = bool(head.get("training_enabled"))
        if type(length) is not int or not 0 < length < 2**31:
            raise BadPartError(f"A part of {name!r} has the length {length!r}.", name)
        if is_training:
            num_steps = session.num_steps + length
            if num_steps > session.max_steps:
                raise LinkError(
                    f"The client sent {num_steps} steps, more than the {session.max_steps} that it "
                    "was granted."
                )
            session.num_steps = num_steps
        if end not in _ENDS or head.get("source") not in _SOURCES:
            raise BadPartError(f"A part of {name!r} ends with {end!r}.", name)
        try:
            part, episode = self._read_part(session, name, length, head, arrays, prefix)
        except LinkError as error:
            if is_training:
                self._inbox.refuse(length)
            if isinstance(error, BadPartError):
                raise
            raise BadPartError(f"Episode {name!r}: {error}", name) from None
        episode.t += length
        episode.episode_return += float(part.reward.sum(dtype=np.float64))
        has_ended = end in ("terminated", "truncated")
        stats = EndedStats(episode.episode_return, episode.t)
        is_reported = has_ended and episode.is_known
        if episode.training_enabled:
            self._inbox.add(part, stats if is_reported else None)
        elif is_reported:
            self.evaluated.append(stats)
        if end is not None:
            self._close_episode(session, name)

    def _read_part(
        self, session: Session, name: str, length: int, head: Head, arrays: Arrays, prefix: str
    ) -> tuple[EpisodePart, Episode]:
        t_started, end = head.get("t_started"), head.get("end")
        episode = self._find(session, name, t_started, bool(head.get("training_enabled")))
        if t_started != episode.t:
            raise LinkError(f"a part begins at time step {t_started}, and {episode.t} is next.")
        if bool(head.get("training_enabled")) != episode.training_enabled:
            raise LinkError("training_enabled differs between its parts.")
        schema = self._schema
        schema.obs_leaves.check(arrays, prefix, length + 1)
        check_array(arrays, f"{prefix}reward", np.dtype("<f4"), (length,))
        check_array(arrays, f"{prefix}version", np.dtype("<i8"), (length,))
        reward, version = arrays[f"{prefix}reward"], arrays[f"{prefix}version"]
        if not np.isfinite(reward).all():
            t = int(np.argmin(np.isfinite(reward)))
            raise LinkError(f"the reward at time step {episode.t + t} is {reward[t]}.")
        is_own = head.get("source") == "log"
        if is_own and not self._may_log:
            raise LinkError("this run cannot learn from actions that a simulator chose itself.")
        read = schema.read_own_actions if is_own else schema.read_columns
        _check_return(episode, reward)
        return EpisodePart(
            episode_id=episode.uid,
            t_started=episode.t,
            obs=schema.obs.unflatten(arrays, prefix),
            reward=reward,
            # Newer ones than the newest are of a run before it was restored.
            version=np.where(version > self._inbox.version, -1, version),
            terminated=end == "terminated",
            truncated=end == "truncated",
            is_cut=end == "cut",
            **read(arrays, prefix, length),
        ), episode


def _check_return(episode: Episode, reward: np.ndarray) -> None:
    """Check that the return remains one that float32 can hold, as results and learners have it.

    Raises:
        LinkError: If it does not at one of the steps.
    """
    returns = episode.episode_return + np.cumsum(reward, dtype=np.float64)
    if (is_large := np.abs(returns) > np.finfo(np.float32).max).any():
        t = int(np.argmax(is_large))
        raise LinkError(
            f"the return is {returns[t]:.3g} at time step {episode.t + t}, which float32 cannot "
            "hold: scale the rewards."
        )


def _get_count(head: Head, name: str) -> int:
    value: object = head.get(name, 0)
    if type(value) is not int or not 0 <= value < 2**62:
        raise LinkError(f"{name} must be a whole number of at least 0, got {str(value)[:80]}.")
    return value


def _get_list(head: Head, name: str) -> list[Any]:
    value: object = head.get(name)
    if not isinstance(value, list):
        raise LinkError(f"{name} must be a list.")
    return value
