"""Learner group for environments in the compiled program, which runs the whole train batch."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.sharding import Sharding

from jaxrl.assembly.assemble import Assembly
from jaxrl.core.keys import make_key
from jaxrl.core.types import Device
from jaxrl.runners.fragment import Weights
from jaxrl.runners.learner_group import LocalLearnerGroup
from jaxrl.runtime.program import Program
from jaxrl.training.in_graph import MAX_REPORT_ROWS
from jaxrl.training.report import TrainReport
from jaxrl.training.sharding import RunnerPrograms, make_runner_programs
from jaxrl.training.train_state import RecordedRollouts, ReportRow, TrainState

if TYPE_CHECKING:
    from jaxrl.config.config import Config


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


class InGraphLearnerGroup(LocalLearnerGroup):
    """Group of one learner in this process, whose program also steps the environments.

    Several iterations may be computed in one dispatch, see `runners.ahead`; `state` is always the
    state after the latest iteration that was returned.
    """

    def _build(
        self, config: "Config", assembly: Assembly, devices: list[Device]
    ) -> tuple[Program, Program, TrainState]:
        debugging = config.debugging_settings
        first_input = assembly.jax_env.params if assembly.is_in_graph else self.dataset
        key = make_key(debugging.run_seed)
        runner, kept = assembly.run, assembly.program_cache
        first = runner.jitted_init

        def traced() -> TrainState:
            return jax.eval_shape(first, key, first_input)

        shapes = traced() if kept is None else kept.get_or_make("first_state", traced)
        size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes))
        self._has_snapshots = (
            debugging.compiles and size <= MAX_COPY_BYTES and not runner.max_recorded_batches
        )
        self.runner_programs: RunnerPrograms = make_runner_programs(
            runner,
            shapes,
            devices,
            max_retraces=debugging.max_retraces,
            jit=debugging.compiles,
            return_previous=self._has_snapshots,
            program_cache=kept,
        )
        self._pace = Pace(MAX_REPORT_ROWS)
        self._window: Window | None = None
        self._following: tuple[int, Future[Window]] | None = None
        self._undelivered: Window | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="jaxrl-ahead")
        self._compile_thread: threading.Thread | None = None
        if assembly.should_compile_train and debugging.compiles:
            self._start_compile_thread(shapes)
        state = self.runner_programs.init(key, first_input)
        return self.runner_programs.init, self.runner_programs.run, state

    @property
    def state(self) -> TrainState:
        self._sync_state()
        return self._state

    @state.setter
    def state(self, state: TrainState) -> None:
        self._sync_state()
        self._state = state
        self._generation += 1

    def run_batches(
        self, num_batches: int, on_phase: Callable[[str], None], *, max_iterations: int = 1
    ) -> TrainReport:
        self._check_data()
        window = self._window
        if window is None or not window.has_row(num_batches):
            if window is not None and window.num_taken < window.num_rows:
                self._sync_state()
            started = time.perf_counter()
            window = self._take_following(num_batches)
            if window is None:
                number = 1
                if self._has_snapshots:
                    number = self._pace.choose_num_rows(max_iterations, num_batches)
                window = self._dispatch_window(number, num_batches, on_phase)
            self._window, self._state, self._undelivered = window, window.state, None
            window.wait_seconds = (time.perf_counter() - started) / window.num_rows
            if window.updates > 0:  # steps before learning starts are not representative
                self._pace.record_duration(window.seconds, num_batches)
            self._dispatch_following(window, max_iterations - window.num_rows)
        window.num_taken += 1
        self._pace.record_taken(is_last=window.num_taken == window.num_rows)
        report = TrainReport.from_row(
            window.rows, window.num_taken - 1, window.seconds, window.wait_seconds
        )
        return dataclasses.replace(report, recorded=window.recorded)

    def _take_following(self, batches: int) -> Window | None:
        """Return the window that was dispatched ahead, if its rows have so many train batches."""
        if self._following is None or self._following[0] != batches:
            self._discard_following()
            return None
        window = self._following[1].result()
        self._following = None
        return window

    def _dispatch_window(
        self, number: int, batches: int, on_phase: Callable[[str], None] | None = None
    ) -> Window:
        """Dispatch `number` rows from the current state and fetch them."""
        numbers = np.int32(number), np.int32(batches)
        on_phase = on_phase or _ignore_phase
        if self._jit and not self._main.compile_stats:
            on_phase("compiling")
        self._join_compile_thread()
        program = self._main.get_executable(self._state, *self._inputs, *numbers)
        on_phase("training")
        started = time.perf_counter()
        state, rows, *others = program(self._state, *self._inputs, *numbers)
        # The old state was donated; the window keeps the one to return to if anything fails now.
        window = self._undelivered = Window(
            state=state,
            rows=rows,
            num_rows=number,
            num_batches=batches,
            state_before=others[0] if self._has_snapshots else None,
            recorded=None if self._has_snapshots or not others else jax.device_get(others[0]),
            seconds=0.0,
        )
        window.rows = jax.device_get(rows)
        window.seconds = (time.perf_counter() - started) / number
        return window

    def _dispatch_following(self, window: Window, at_most: int) -> None:
        """Dispatch the next window in a thread, while the rows of this one are returned."""
        if not self._has_snapshots:
            return
        number = self._pace.choose_num_rows_ahead(window.num_rows, at_most, window.num_batches)
        if number > 0:
            run = partial(self._dispatch_window, number, window.num_batches)
            self._following = window.num_batches, self._executor.submit(run)

    def _discard_following(self) -> bool:
        """Undo a dispatch whose rows were not returned; return whether the state before is lost."""
        has_failed = self._following is not None and self._following[1].exception() is not None
        window, self._following, self._undelivered = self._undelivered, None, None
        if window is not None:
            self._state = window.state if window.state_before is None else window.state_before
        return has_failed and window is None

    def _sync_state(self) -> None:
        """Bring the state to that after the latest returned row, recomputing rows if necessary."""
        had_following = self._following is not None
        is_lost = self._discard_following()
        window, self._window = self._window, None
        if window is None:
            return
        has_unused_rows = window.num_taken < window.num_rows
        self._pace.record_state_read(has_wasted_rows=has_unused_rows or had_following)
        if not (has_unused_rows or is_lost) or window.state_before is None:
            return
        self._state = window.state_before
        if window.num_taken:
            numbers = np.int32(window.num_taken), np.int32(window.num_batches)
            arguments = self._state, *self._inputs, *numbers
            self._state = self._main.get_executable(*arguments)(*arguments)[0]

    def _start_compile_thread(self, shapes: TrainState) -> None:
        """Compile the train program in a thread, in parallel to creating the initial state."""

        def with_sharding(leaf: jax.ShapeDtypeStruct, sharding: Sharding) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=sharding, weak_type=leaf.weak_type
            )

        state = jax.tree.map(with_sharding, shapes, self.runner_programs.shardings)

        def compile_quietly() -> None:
            with contextlib.suppress(Exception):  # the first dispatch tries again and raises it
                numbers = np.int32(1), np.int32(1)
                self.runner_programs.run.get_executable(state, *self._inputs, *numbers)

        self._compile_thread = threading.Thread(target=compile_quietly, name="jaxrl-compile")
        self._compile_thread.start()

    def _join_compile_thread(self) -> None:
        thread, self._compile_thread = self._compile_thread, None
        if thread is not None:
            thread.join()

    def stop(self) -> None:
        self._join_compile_thread()
        self._executor.shutdown()

    def compile(self) -> None:
        """Compile the program without running it."""
        self._join_compile_thread()
        if self._jit:
            self._main.get_executable(self._state, *self._inputs, np.int32(1), np.int32(1))

    def wait(self, pending: object) -> None:
        """Do nothing; the batches have completed already."""
        del pending

    def fetch_report(self, pending: Sequence[TrainReport]) -> TrainReport:
        return TrainReport.merge(pending)

    def get_weights(self, version: int) -> Weights:
        self._sync_state()
        return super().get_weights(version)


def _ignore_phase(phase: str) -> None:
    del phase
