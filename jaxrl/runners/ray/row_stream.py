"""Rows of recorded data as a stream of Ray Data, epoch after epoch."""

import contextlib
import logging
import threading
import time
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np
import ray
import ray.data
import ray.exceptions

from jaxrl.buffers.dataset import DatasetPosition
from jaxrl.buffers.dataset_rows import PickedRows
from jaxrl.core.types import PyTree
from jaxrl.errors import DataError, JaxrlError, RayError, summarize_exception
from jaxrl.runners.hang_watch import SlowWatch
from jaxrl.runners.ray.row_tasks import RowLayout, RowTask, get_paths
from jaxrl.runtime.env_vars import make_actor_env_vars
from jaxrl.runtime.program import Program
from jaxrl.training.offline import FedRows, OfflineRunner
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig
    from jaxrl.offline.recorded import RecordedData

logger = logging.getLogger("jaxrl")

STALL_SECONDS = 30.0
"""Time without rows after which a stream says that it stalls."""
PREFETCH_BATCHES = 2
STATISTICS_ROWS = 8192
"""Number of rows of a step of the pass over all rows for the statistics of connectors."""

READER_THREAD = "iter_threaded"
"""Name of the threads of Ray Data that prepare the batches of a pass."""
READER_SECONDS = 2.0
"""Time limit for the end of such threads, which look for it every tenth of a second."""

DATASET = "dataset"
"""Key of results for the rows of recorded data."""

Columns = dict[str, np.ndarray]


def make_stream(
    config: "AlgorithmConfig", data: "RecordedData", task: RowTask
) -> "ray.data.Dataset":
    """Make the stream of the rows of all files, of which each is read by a task.

    Args:
        config: Config of the run.
        data: Recorded data.
        task: Function that reads files.
    """
    _quiet_ray_data()
    extra = config.python_environment_settings.extra_python_environs_for_worker
    paths = get_paths(data)
    files = ray.data.from_items(list(paths), override_num_blocks=len(paths))
    return files.randomize_block_order().map_batches(
        cast("Any", task),  # Ray's annotation has batches of every format
        batch_size=None,
        batch_format="numpy",
        zero_copy_batch=True,
        num_cpus=1,
        runtime_env={"env_vars": make_actor_env_vars(1, extra)},
    )


def _quiet_ray_data() -> None:
    """Leave the progress of Ray Data out of the output, and its warnings about its own settings."""
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        ray.data.DataContext.get_current().enable_progress_bars = False


def compute_statistics(
    stream: "ray.data.Dataset", layout: RowLayout, runner: OfflineRunner
) -> PyTree:
    """Compute the statistics of the observation connectors in a pass over all rows of a stream."""
    update = jax.jit(runner.update_statistics)
    state: PyTree = runner.policy_step.obs_pipeline.init()
    for columns in _iter_translated(stream.iterator(), STATISTICS_ROWS, 0):
        number = _count_rows(columns)
        obs = layout.join(columns, number).obs
        padded = jax.tree.map(lambda x, n=number: _pad(x, STATISTICS_ROWS - n), obs)
        state = update(state, padded, np.arange(STATISTICS_ROWS) < number)
    return jax.tree.map(np.asarray, state)


def _pad(rows: np.ndarray, number: int) -> np.ndarray:
    return np.concatenate([rows, np.zeros((number, *rows.shape[1:]), rows.dtype)])


def _count_rows(columns: Columns) -> int:
    return len(next(iter(columns.values())))


def _iter_translated(
    iterator: "ray.data.DataIterator", batch_size: int, shuffle_buffer_size: int
) -> Iterator[Columns]:
    """Yield the batches of one pass, with the errors of tasks as they were raised.

    Raises:
        JaxrlError: If a file cannot be read, or Ray fails.
    """
    batches = iterator.iter_batches(
        batch_size=batch_size,
        batch_format="numpy",
        prefetch_batches=PREFETCH_BATCHES,
        drop_last=False,
        local_shuffle_buffer_size=shuffle_buffer_size or None,
    )
    try:
        yield from cast("Iterator[Columns]", batches)
    except JaxrlError:
        raise
    except (ray.exceptions.RayError, RuntimeError, ValueError) as error:
        raise _find_cause(error) from error


def _find_cause(error: BaseException) -> JaxrlError:
    """Return the error of this library that a task raised, or one that says what Ray did."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, JaxrlError):
            return seen
        seen = getattr(seen, "cause", None) or seen.__cause__
    return RayError(f"The stream of recorded data failed: {summarize_exception(error)}.")


def _find_readers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == READER_THREAD}


class StallWatch(SlowWatch):
    """Watch of the time that a stream takes for its next rows."""

    def __init__(self, stream: "RowStream", limit_s: float) -> None:
        super().__init__(limit_s)
        self._stream = stream

    def warn(self) -> None:
        logger.warning(self._stream.describe_stall(self._limit_s))


class RowStream:
    """Rows of an iterator of Ray Data, as many at a time as are asked for.

    Args:
        iterator: Iterator over the share of one learner.
        layout: Columns of the stream.
        batch_size: Number of samples that are asked for at once.
        num_splits: Number of learners that share the stream.
        shuffle_buffer_size: Number of rows that are shuffled together.
        stall_s: Time in seconds without rows after which a warning is logged.

    Attributes:
        num_rows: Number of rows that have been taken.
    """

    def __init__(
        self,
        iterator: "ray.data.DataIterator",
        layout: RowLayout,
        batch_size: int,
        *,
        num_splits: int = 1,
        shuffle_buffer_size: int = 0,
        stall_s: float = STALL_SECONDS,
    ) -> None:
        self._iterator, self._layout, self._batch_size = iterator, layout, batch_size
        self._num_splits, self._shuffle_buffer_size = num_splits, shuffle_buffer_size
        self._epoch, self._offset = 0, 0
        self._batches: Iterator[Columns] | None = None
        self._other_readers: set[threading.Thread] = set()
        self._rest: Columns | None = None
        self._watch = StallWatch(self, stall_s)
        self.num_rows = 0

    def seek(self, position: DatasetPosition) -> None:
        """Go to a position: the rows of the epoch before it are read and left out."""
        self.close()
        self._epoch = int(position.epoch)
        to_skip = int(position.offset) // self._num_splits
        self._offset = 0
        while to_skip > 0:
            number = min(to_skip, self._batch_size)
            self._take(number)
            to_skip -= number

    def take(self) -> PickedRows:
        """Return the next rows."""
        columns = self._take(self._batch_size)
        self.num_rows += self._batch_size
        return self._layout.join(columns, self._batch_size)

    @property
    def position(self) -> DatasetPosition:
        """Position after the rows that were taken, of all learners together."""
        return DatasetPosition(
            epoch=np.asarray(self._epoch, np.uint32),
            offset=np.asarray(self._offset * self._num_splits, np.uint32),
        )

    def _take(self, number: int) -> Columns:
        """Return the columns of the next rows, which may go on in the next epoch."""
        taken: list[Columns] = []
        missing = number
        while missing > 0:
            columns = self._get_columns()
            available = _count_rows(columns)
            used = min(available, missing)
            taken.append({name: x[:used] for name, x in columns.items()})
            self._rest = {n: x[used:] for n, x in columns.items()} if used < available else None
            self._offset += used
            missing -= used
        if len(taken) == 1:
            return taken[0]
        return {name: np.concatenate([each[name] for each in taken]) for name in taken[0]}

    def _get_columns(self) -> Columns:
        """Return the next columns of any number of rows, at least one."""
        if self._rest is not None:
            return self._rest
        while True:
            if self._batches is None:
                self._other_readers = _find_readers()
                self._batches = _iter_translated(
                    self._iterator, self._batch_size, self._shuffle_buffer_size
                )
            with self._watch:
                columns = next(self._batches, None)
            if columns is not None and _count_rows(columns):
                return columns
            if columns is None:
                self._begin_epoch()

    def _begin_epoch(self) -> None:
        if not self._offset:
            raise DataError(
                "The recorded data have no rows to learn from for each learner: name data with more "
                "transitions, or check input_transform."
            )
        self._batches = None
        self._epoch, self._offset = self._epoch + 1, 0

    def describe_stall(self, seconds: float) -> str:
        """Return a sentence on what the stream waits for."""
        stage = "reading files"
        if self._shuffle_buffer_size and not self._offset:
            stage = f"reading files into shuffle_buffer_size={self._shuffle_buffer_size} rows"
        free = "an unknown number of"
        with contextlib.suppress(ray.exceptions.RayError):
            idle, total = ray.available_resources(), ray.cluster_resources()
            free = f"{idle.get('CPU', 0.0):g} of {total.get('CPU', 0.0):g}"
        return (
            f"The stream of recorded data stalls: 0 rows/s for {seconds:g} seconds, after "
            f"{self._offset} rows of epoch {self._epoch}; it waits for {stage}, by tasks of one CPU "
            f"each, and {free} CPUs of Ray are free."
        )

    def close(self) -> None:
        """End the current pass and its threads; safe to call more than once.

        Ray ends the process, with exit code 1, if a thread is in the middle of a pass at
        `ray.shutdown()`.
        """
        batches, self._batches, self._rest = self._batches, None, None
        if batches is None:
            return
        batches.close()  # pyright: ignore[reportAttributeAccessIssue]
        end = time.monotonic() + READER_SECONDS
        for thread in _find_readers() - self._other_readers:
            thread.join(max(0.0, end - time.monotonic()))

    def stop(self) -> None:
        """End the stream."""
        self.close()
        self._watch.stop()


class StreamFeed:
    """Feed of a learner in this process from a stream.

    Args:
        stream: Stream of rows.
        num_updates: Number of gradient steps of a train batch.
        statistics: Stream of single rows for the statistics of connectors, and its layout.
    """

    def __init__(
        self,
        stream: RowStream,
        num_updates: int,
        statistics: "tuple[ray.data.Dataset, RowLayout]",
    ) -> None:
        self._stream, self._num_updates, self._statistics = stream, num_updates, statistics
        self._started, self._counted = time.perf_counter(), 0

    @property
    def programs(self) -> list[Program]:
        """Empty: tasks read the rows."""
        return []

    def compute_statistics(self, runner: OfflineRunner) -> PyTree:
        return compute_statistics(*self._statistics, runner)

    def seek(self, state: TrainState) -> None:
        self._stream.seek(jax.device_get(state.buffer))

    def take(self, state: TrainState) -> FedRows:
        del state
        return take_batch(self._stream, self._num_updates)

    def get_metrics(self) -> dict[str, Any]:
        now, rows = time.perf_counter(), self._stream.num_rows
        speed = (rows - self._counted) / max(now - self._started, 1e-9)
        self._started, self._counted = now, rows
        return {DATASET: make_metrics(self._stream, speed)}

    def stop(self) -> None:
        self._stream.stop()


def make_metrics(stream: RowStream, rows_per_s: float) -> dict[str, Any]:
    """Return the entries of results on a stream: its position, and the rows per second of late."""
    position = stream.position
    return {
        "epoch": int(position.epoch),
        "num_rows_of_epoch": int(position.offset),
        "num_rows_per_second": rows_per_s,
    }


def take_batch(stream: RowStream, num_updates: int) -> FedRows:
    """Return the rows of a train batch from a stream, in NumPy."""
    picked = stream.take()
    shaped = jax.tree.map(lambda x: x.reshape(num_updates, -1, *x.shape[1:]), picked)
    return FedRows(picked=shaped, position=stream.position)
