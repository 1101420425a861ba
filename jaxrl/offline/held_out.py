"""Episodes that are held out from training, chosen by a hash of their ids."""

import hashlib
import re
from collections.abc import Iterable, Iterator

from jaxrl.episodes.packing import EpisodePart

_HASH_BYTES = 8
_REPEATED = re.compile(r"#\d+$")
"""End of the id that readers give to an episode with the id of an earlier one."""


def hash_episode(episode_id: str) -> int:
    """Return the hash of an episode's id, by which it is held out; the same for all of one id."""
    digest = hashlib.sha256(_REPEATED.sub("", episode_id).encode()).digest()
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
