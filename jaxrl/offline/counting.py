"""Counts of recorded steps, parts and episodes, and the returns of whole episodes."""

from collections.abc import Iterable, Mapping

import numpy as np

from jaxrl.episodes.packing import EpisodePart
from jaxrl.offline.manifest import Counts, FileEntry, Returns, sum_counts

_MAX_UNFINISHED = 4096
"""Largest number of unfinished episodes whose returns are kept; the oldest are forgotten."""

Unfinished = tuple[int, float, bool]
"""Next time step of an episode, its return so far, and whether it is recorded from its start."""


class EpisodeCounter:
    """Counts of the parts that are added.

    Args:
        files: Files of the folder so far.
        unfinished: Episodes that may go on, by id.
    """

    def __init__(
        self, files: Iterable[FileEntry] = (), unfinished: Mapping[str, Unfinished] | None = None
    ) -> None:
        self._before = sum_counts(entry.counts for entry in files)
        self._new = Counts()
        self.unfinished: dict[str, Unfinished] = dict(unfinished or {})

    @property
    def total(self) -> Counts:
        """Return the counts of all parts."""
        return self._before.merge(self._new)

    def take(self) -> Counts:
        """Return the counts since the last call."""
        taken, self._new = self._new, Counts()
        self._before = self._before.merge(taken)
        return taken

    def add(self, part: EpisodePart) -> None:
        """Count a part."""
        t, total, is_known = self.unfinished.pop(part.episode_id, (part.t_started, 0.0, None))
        is_new = is_known is None or t != part.t_started
        if is_new:
            total, is_known = 0.0, part.t_started == 0
        total += float(np.sum(part.reward, dtype=np.float64))
        returns = Returns()
        if (part.terminated or part.truncated) and is_known:
            returns = Returns(num_episodes=1, mean=total, min=total, max=total)
        if not part.is_last:
            self.unfinished[part.episode_id] = part.t_started + len(part), total, bool(is_known)
            if len(self.unfinished) > _MAX_UNFINISHED:
                del self.unfinished[next(iter(self.unfinished))]
        self._new = self._new.merge(
            Counts(num_steps=len(part), num_parts=1, num_episodes=int(is_new), returns=returns)
        )
