"""Lookahead: computing several iterations in one dispatch, before they are requested.

A dispatch of the compiled program may run several iterations and report on each (a row), so that a
user who requests one iteration per call pays the overhead of dispatching and fetching only once in
many calls. The state is then ahead of the results that were returned. A read of the state still
yields that of the latest result: the returned iterations are rerun from a copy of the state before
the dispatch, with the same results to the bit. How often the state is read determines how many
iterations are computed ahead.

The next dispatch runs in a thread while the rows of the previous one are returned, so results are
written and callbacks called in parallel to it. It is undone by a copy as well if the state is read.
"""

import dataclasses

import numpy as np

from jaxrl.training.train_state import RecordedRollouts, ReportRow, TrainState

AHEAD_SECONDS = 0.5
"""Time limit for computing ahead, and hence for computing the same iterations again."""
MAX_COPY_BYTES = 64 * 2**20
"""Maximum size of a state to copy; nothing is computed ahead of larger ones."""


@dataclasses.dataclass(kw_only=True)
class Window:
    """Rows of one dispatch, each the report on an iteration.

    Attributes:
        state: State after all rows.
        rows: Reports `[R, ...]`, fetched in one transfer; only those of the dispatch are filled.
        num_rows: Number of rows.
        num_batches: Number of train batches per row.
        state_before: State before the dispatch; None if it was not copied.
        seconds: Computation time per row.
        wait_seconds: Time per row that the caller waited.
        num_taken: Number of rows that were returned.
        recorded: Rollouts of the train batches, if they are recorded.
    """

    state: TrainState
    rows: ReportRow
    num_rows: int
    num_batches: int
    state_before: TrainState | None
    seconds: float
    wait_seconds: float = 0.0
    num_taken: int = 0
    recorded: RecordedRollouts | None = None

    def has_row(self, num_batches: int) -> bool:
        """Return whether another row with this number of train batches is available."""
        return self.num_taken < self.num_rows and self.num_batches == num_batches

    @property
    def updates(self) -> int:
        """Number of updates of the last row."""
        return int(np.asarray(self.rows.summary.updates)[self.num_rows - 1])


class Pace:
    """Controller of the number of rows per dispatch.

    The number doubles with each dispatch as long as the state is not read. Once the state was read
    after some number of rows, later dispatches end where the next such read is expected.

    Args:
        max_rows: Maximum number of rows per dispatch.
        seconds: Maximum duration of a dispatch.
    """

    def __init__(self, max_rows: int, seconds: float = AHEAD_SECONDS) -> None:
        self._max_rows, self._seconds = max_rows, seconds
        self._grown = 1
        self._since_read = 0
        self._interval: int | None = None
        self._seconds_per_batch: float | None = None

    def choose_num_rows(self, max_rows: int, num_batches: int = 1) -> int:
        """Return the number of rows of the next dispatch.

        Args:
            max_rows: Number of rows that are known to be requested.
            num_batches: Number of train batches per row.
        """
        if self._seconds_per_batch is None:
            return 1  # the duration of a row is not known yet
        until_read = max_rows
        if self._interval is not None:
            while self._interval <= self._since_read:
                self._interval *= 2  # the expected read did not happen
            until_read = self._interval - self._since_read
        in_time = self._count_in_time(num_batches)
        return max(1, min(self._grown, self._max_rows, in_time, max_rows, until_read))

    def choose_num_rows_ahead(self, num_available: int, max_rows: int, num_batches: int = 1) -> int:
        """Return the number of rows to dispatch while earlier rows are returned; 0 for none.

        Args:
            num_available: Number of rows that are available already.
            max_rows: Number of further rows that are known to be requested.
            num_batches: Number of train batches per row.
        """
        if self._seconds_per_batch is None or self._max_rows == 1:
            return 0
        since = self._since_read + num_available
        until_read = max_rows if self._interval is None else self._interval - since
        in_time = self._count_in_time(num_batches)
        return max(0, min(2 * self._grown, self._max_rows, in_time, max_rows, until_read))

    def _count_in_time(self, num_batches: int) -> int:
        """Return the number of rows that fit into the time limit."""
        assert self._seconds_per_batch is not None
        return int(self._seconds / max(self._seconds_per_batch * num_batches, 1e-9))

    def record_duration(self, seconds_per_row: float, num_batches: int = 1) -> None:
        """Record the duration of a dispatch's rows, each of so many train batches."""
        self._seconds_per_batch = seconds_per_row / num_batches

    def record_taken(self, *, is_last: bool) -> None:
        """Record that a row was returned, and whether it is the last of its dispatch."""
        self._since_read += 1
        if is_last:
            self._grown = min(2 * self._grown, self._max_rows)

    def record_state_read(self, *, has_wasted_rows: bool) -> None:
        """Record a read of the state, and whether it made computed rows useless."""
        if self._since_read:
            self._interval = self._since_read
        self._since_read = 0
        if has_wasted_rows:
            self._grown = 1
