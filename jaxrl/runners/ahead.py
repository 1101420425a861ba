"""Iterations that are computed before they are asked for, and how many of them are worth it.

One dispatch of the compiled program runs several iterations and reports on each, so that a user who
asks for one iteration a call pays for dispatching and fetching once in many calls. The state is then
further than the results that were given out. Whoever looks at it gets the state of the latest result
nevertheless: the iterations that were given out are run again from a copy of the state before the
dispatch, which gives the same bits. How often the state is looked at decides how far to go ahead.

The next dispatch runs in a thread while the rows of the last one are given out, so that results are
written and callbacks called beside it. It too is undone by a copy where the state is looked at.
"""

import dataclasses

import numpy as np

from jaxrl.training.train_state import Row, TrainState

AHEAD_SECONDS = 0.5
"""What is computed ahead takes no longer; nor does computing it again."""
MAX_COPY_BYTES = 64 * 2**20
"""A larger state is not copied, so nothing is computed ahead of it."""


@dataclasses.dataclass(kw_only=True)
class Window:
    """The rows of one dispatch, each the report on an iteration.

    Attributes:
        state: After all of them.
        rows: `[R, ...]`, fetched at once, of which `number` are filled.
        number: Rows of the dispatch.
        batches: Train batches of each.
        before: The state before the dispatch; None if it was not kept.
        seconds: What computing each row took.
        waited: What was waited for each of them, in the end.
        taken: Rows that were given out.
    """

    state: TrainState
    rows: Row
    number: int
    batches: int
    before: TrainState | None
    seconds: float
    waited: float = 0.0
    taken: int = 0

    def has(self, batches: int) -> bool:
        """Tell whether another row of so many train batches is there to be given out."""
        return self.taken < self.number and self.batches == batches

    @property
    def updates(self) -> int:
        """Updates of the last row."""
        return int(np.asarray(self.rows.summary.updates)[self.number - 1])


class Pace:
    """Decide how many rows the next dispatch computes.

    They are doubled from dispatch to dispatch, as long as nobody looks at the state. Where it was
    looked at after so many rows, a dispatch ends there the next time.

    Args:
        max_rows: Rows of a dispatch, at most.
        seconds: Of a dispatch, at most.
    """

    def __init__(self, max_rows: int, seconds: float = AHEAD_SECONDS) -> None:
        self._max_rows, self._seconds = max_rows, seconds
        self._grown = 1
        self._since_look = 0
        self._interval: int | None = None
        self._seconds_per_row: float | None = None

    def rows(self, at_most: int) -> int:
        """Rows of the next dispatch; `at_most` so many are known to be wanted."""
        if self._seconds_per_row is None:
            return 1  # how long a row takes is not known yet
        until_look = at_most
        if self._interval is not None:
            while self._interval <= self._since_look:
                self._interval *= 2  # the look that was due did not come
            until_look = self._interval - self._since_look
        return max(1, min(self._grown, self._max_rows, self._in_time, at_most, until_look))

    def rows_after(self, number: int, at_most: int) -> int:
        """Rows of a dispatch to run while `number` rows are given out, 0 if there is to be none.

        Args:
            number: Rows that are there.
            at_most: As many are known to be wanted after them.
        """
        if self._seconds_per_row is None or self._max_rows == 1:
            return 0
        since = self._since_look + number
        until_look = at_most if self._interval is None else self._interval - since
        return max(0, min(2 * self._grown, self._max_rows, self._in_time, at_most, until_look))

    @property
    def _in_time(self) -> int:
        """Rows that a dispatch has time for."""
        assert self._seconds_per_row is not None
        return int(self._seconds / max(self._seconds_per_row, 1e-9))

    def ran(self, seconds_per_row: float) -> None:
        """Note how long the rows of a dispatch took."""
        self._seconds_per_row = seconds_per_row

    def took(self, *, is_last: bool) -> None:
        """Note that a row was given out, perhaps the last of its dispatch."""
        self._since_look += 1
        if is_last:
            self._grown = min(2 * self._grown, self._max_rows)

    def looked(self, *, in_vain: bool) -> None:
        """Note that somebody looks at the state, for which rows were perhaps computed in vain."""
        if self._since_look:
            self._interval = self._since_look
        self._since_look = 0
        if in_vain:
            self._grown = 1
