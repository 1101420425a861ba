"""Base class of the episodes of one agent and of several."""

import time
from typing import Any, Self, TypedDict

from jaxrl.compat.lookup import RLlibEpisode
from jaxrl.episodes.lookback import Indices
from jaxrl.errors import EpisodeError


class Reading(TypedDict, total=False):
    """Options with which data are read, see `LookbackBuffer.get`."""

    neg_index_as_lookback: bool
    fill: object


class DiscreteReading(Reading, total=False):
    """Options with which data are read that may be discrete, see `LookbackBuffer.get`."""

    one_hot_discrete: bool


class Writing(TypedDict, total=False):
    """Options with which data are replaced, see `LookbackBuffer.set`."""

    at_indices: Indices
    neg_index_as_lookback: bool


class Episode(RLlibEpisode):
    """Base class of episodes, or chunks of them.

    Attributes:
        id_: Identifier shared by all chunks of an episode.
        is_terminated: Whether the episode has ended.
        is_truncated: Whether the episode was cut off before its end.
        custom_data: Data of callbacks, which is copied to the next chunk.
    """

    def __init__(self, id_: str) -> None:
        self.id_ = id_
        self.is_terminated = self.is_truncated = False
        self.custom_data: dict[str, Any] = {}
        self._start_time: float | None = None
        self._last_step_time: float | None = None

    def __len__(self) -> int:
        """Return the number of steps of this chunk."""
        raise NotImplementedError

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> Self:
        """Return the steps of a slice as an episode; equivalent to `episode[a:b]`."""
        raise NotImplementedError

    @property
    def is_reset(self) -> bool:
        """Return whether the episode has begun."""
        raise NotImplementedError

    @property
    def is_done(self) -> bool:
        """Return whether the episode has ended; of several agents, single ones may end before."""
        return self.is_terminated or self.is_truncated

    def env_steps(self) -> int:
        """Return the number of environment steps of this chunk."""
        return len(self)

    def get_duration_s(self) -> float:
        """Return the seconds from the first observation to the latest step."""
        if self._start_time is None or self._last_step_time is None:
            return 0.0
        return self._last_step_time - self._start_time

    def __getitem__(self, item: "slice") -> Self:
        if not isinstance(item, slice):
            raise EpisodeError(f"Index an episode by a slice such as episode[2:5], got {item!r}.")
        return self.slice(item)

    def _begin(self) -> None:
        """Note the time of the first observation, or raise if there is one."""
        if self.is_reset or self.is_done:
            raise EpisodeError(f"The episode {self.id_} has already begun; create a new one.")
        self._start_time = time.perf_counter()

    def _note_step(self) -> None:
        """Note the time of a step."""
        self._last_step_time = time.perf_counter()
        if self._start_time is None:
            self._start_time = self._last_step_time

    def _check_cut(self, len_lookback_buffer: int) -> None:
        """Raise if the episode is done or has not begun, so that no chunk follows."""
        if self.is_done or not self.is_reset or len_lookback_buffer < 0:
            raise EpisodeError(
                f"The episode {self.id_} cannot be cut with a lookback of {len_lookback_buffer}: "
                "the episode must be ongoing and the lookback at least 0."
            )

    def _read_slice(self, slice_: "slice") -> tuple[int, int]:
        """Return the first step of a slice and its end, or raise if it leaves out steps."""
        if slice_.step not in (None, 1):
            raise EpisodeError(f"An episode has consecutive steps, but the slice is {slice_}.")
        start, stop, _ = slice_.indices(len(self))
        return start, max(start, stop)

    def _check_next(self, other: "Episode", *, start: int, end: int) -> None:
        """Raise if the steps of a chunk, from `start` on, do not follow those of this one up to `end`."""
        if other.id_ != self.id_ or self.is_done or start != end:
            raise EpisodeError(
                f"The chunk of {other.id_} from step {start} on cannot be appended to {self.id_}, "
                f"which {'is done' if self.is_done else 'ends'} at step {end}."
            )

    def _take_over(self, other: "Episode") -> None:
        """Take over the end, the time and the data of callbacks of an appended chunk."""
        self.is_terminated, self.is_truncated = other.is_terminated, other.is_truncated
        self._last_step_time = other._last_step_time or self._last_step_time
        self.custom_data.update(other.custom_data)
