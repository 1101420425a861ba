"""Memories of episodes, which clients name by an id."""

import contextlib
from collections import OrderedDict
from collections.abc import Generator, Sequence

from jaxrl.serve.backend import RequestError, State


class Sessions:
    """States of the most recently used episodes.

    Args:
        max_sessions: Number of episodes that are kept; the one unused for longest is dropped.
    """

    def __init__(self, max_sessions: int) -> None:
        self._max = max_sessions
        self._states: OrderedDict[str, State] = OrderedDict()
        self._busy: set[str] = set()

    def __len__(self) -> int:
        return len(self._states)

    @contextlib.contextmanager
    def use(self, ids: Sequence[str], starts: Sequence[bool]) -> Generator[list[State | None]]:
        """Yield the states of episodes, None for those that start, and reserve them meanwhile.

        Args:
            ids: Ids of the episodes.
            starts: Whether each of them starts.

        Raises:
            RequestError: If an episode is unknown (404), is named twice, or another request of it
                is being answered (409).
        """
        for episode_id, start in zip(ids, starts, strict=True):
            if not start and episode_id not in self._states:
                raise RequestError(
                    f"The episode {episode_id!r} is unknown: it was dropped for newer ones, ended, "
                    "or never began; send is_first=true with its first observation.",
                    404,
                )
        if len(set(ids)) < len(ids):
            raise RequestError("An episode id occurs twice in the request.")
        self._check_idle(ids)
        self._busy.update(ids)
        try:
            yield [
                None if start else self._states[episode_id]
                for episode_id, start in zip(ids, starts, strict=True)
            ]
        finally:
            self._busy.difference_update(ids)

    def store(self, episode_id: str, state: State) -> None:
        """Store the state after an action; the episode becomes the most recently used one."""
        self._states[episode_id] = state
        self._states.move_to_end(episode_id)
        while len(self._states) > self._max:
            self._states.popitem(last=False)

    def end(self, episode_id: str) -> None:
        """Forget an episode.

        Raises:
            RequestError: If it is unknown (404), or a request of it is being answered (409).
        """
        self._check_idle([episode_id])
        if self._states.pop(episode_id, None) is None:
            raise RequestError(f"The episode {episode_id!r} is unknown.", 404)

    def _check_idle(self, ids: Sequence[str]) -> None:
        busy = self._busy.intersection(ids)
        if busy:
            raise RequestError(
                f"Another request of the episode {min(busy)!r} is being answered: wait for its "
                "action, which the next observation follows.",
                409,
            )

    def clear(self) -> None:
        """Forget all episodes."""
        self._states.clear()
