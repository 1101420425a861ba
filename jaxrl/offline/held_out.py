"""Episodes that are held out from training, chosen by a hash of their ids."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import ConfigError, DataError
from jaxrl.offline.checks import remove_number
from jaxrl.offline.recorded import RecordedData

_HASH_BYTES = 8


def hash_episode(episode_id: str) -> int:
    """Return the hash of an episode's id, by which it is held out; the same for all of one id."""
    digest = hashlib.sha256(remove_number(episode_id).encode()).digest()
    return int.from_bytes(digest[:_HASH_BYTES], "big")


def is_held_out(episode_id: str, share: float) -> bool:
    """Return whether an episode is held out, which depends on its id and the share alone.

    A larger share holds out the episodes of a smaller one, and others.

    Args:
        episode_id: Id of the episode.
        share: Expected share of the episodes that are held out.
    """
    return hash_episode(episode_id) < share * 2 ** (8 * _HASH_BYTES)


def leave_out(parts: Iterable[EpisodePart], share: float) -> Iterator[EpisodePart]:
    """Yield the parts of the episodes that are not held out."""
    for part in parts:
        if not is_held_out(part.episode_id, share):
            yield part


class EpisodeSplit:
    """Parts of recorded episodes by whether they are held out, which are read once for both uses.

    The use that reads them first leaves the parts of the other one here, until that takes them.
    """

    def __init__(self) -> None:
        self._waiting: dict[bool, list[list[EpisodePart]]] = {}

    def take(
        self,
        data: Sequence[RecordedData],
        share: float,
        *,
        held_out: bool,
        leaves_others: bool,
        count: Callable[[EpisodePart], None] = lambda part: None,
    ) -> list[list[EpisodePart]]:
        """Return the parts of one kind by source, as they are recorded.

        Args:
            data: Recorded data by source.
            share: Share of the episodes that are held out, above 0.
            held_out: Whether the held-out parts are taken, or those to learn from.
            leaves_others: Whether the other parts will be taken, too.
            count: Function that is called with each part of either kind that is kept in memory, as
                soon as it is read.

        Raises:
            ConfigError: If no episode is held out, or none is left.
            DataError: If the data are damaged, or do not say which episode a row is of.
        """
        if held_out in self._waiting:
            return self._waiting.pop(held_out)
        parts: dict[bool, list[list[EpisodePart]]] = {True: [], False: []}
        ids: dict[bool, set[str]] = {True: set(), False: set()}
        for source in data:
            _check_episodes(source)
            own: dict[bool, list[EpisodePart]] = {True: [], False: []}
            for part in source.iter_parts():
                kind = is_held_out(part.episode_id, share)
                ids[kind].add(part.episode_id)
                if kind == held_out or leaves_others:
                    count(part)
                    own[kind].append(part)
            for kind, found in own.items():
                parts[kind].append(found)
        _check_split(share, len(ids[True]), len(ids[False]))
        if leaves_others:
            self._waiting[not held_out] = parts[not held_out]
        return parts[held_out]


def _check_episodes(source: RecordedData) -> None:
    if not source.has_past:
        raise DataError(
            f"{source.files[0]} does not say the episode of each row, by which episodes are held "
            "out (offline_evaluation_interval): name its column in input_read_schema, "
            "{'eps_id': ...}, or leave the interval out."
        )


def _check_split(share: float, num_held_out: int, num_left: int) -> None:
    if not num_held_out or not num_left:
        problem, advice = ("none", "raise") if not num_held_out else ("all", "lower")
        raise ConfigError(
            f"offline_evaluation_split={share} holds out {problem} of the {num_held_out + num_left} "
            f"recorded episodes: {advice} it, record more episodes, or leave "
            "offline_evaluation_interval out."
        )
