"""Learners from recorded data that Ray Data streams: in this process, or one in each of several."""

import contextlib
import dataclasses
import functools
import hashlib
import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import gymnasium
import jax
import numpy as np
import ray
import ray.data
import ray.exceptions
from jax.sharding import NamedSharding

from jaxrl.assembly.assemble import Assembly
from jaxrl.assembly.offline import (
    ActionConversion,
    concatenate_sources,
    get_fingerprint,
    make_action_conversion,
    make_blank_dataset,
    open_source,
    open_sources,
    select_parts,
)
from jaxrl.buffers.dataset import (
    AnyArray,
    Dataset,
    DatasetPosition,
    DatasetSampler,
    DrawnRows,
    PickedRows,
    compute_returns_to_go,
)
from jaxrl.config.offline import describe_storage
from jaxrl.config.settings.offline import OfflineDataSettings
from jaxrl.connectors.learning import ClipRewards
from jaxrl.connectors.pipelines import LearnerPipeline
from jaxrl.core.struct import replace
from jaxrl.core.types import Columns, PyTree
from jaxrl.errors import ConfigError, DataError, JaxrlError, RayError, summarize_exception
from jaxrl.metrics import TIMERS
from jaxrl.offline.held_out import leave_out
from jaxrl.offline.recorded import RecordedData
from jaxrl.offline.stitch import merge_ended_parts
from jaxrl.runners.hang_watch import SlowWatch
from jaxrl.runners.offline import ROWS_WAIT_SECONDS, merge_reports
from jaxrl.runners.ray.learner import RayLearner
from jaxrl.runners.ray.learner_group import RayLearnerGroup
from jaxrl.runners.ray.start import ensure_ray, make_learner_bundle
from jaxrl.runtime.env_vars import make_actor_env_vars
from jaxrl.runtime.program import Program
from jaxrl.training.offline import BatchRows, OfflineTrainStep
from jaxrl.training.report import StepReports, TrainReport
from jaxrl.training.sharding import batch_rows_specs, make_rows_program, state_shardings
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.config import Config

PATH = "path"
CHUNK_BYTES = 2**24
"""Default of `chunk_bytes`."""
_UNFINISHED_CHUNKS = 8
"""Size of the episodes that have not ended and wait for the next part, in chunks."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RowLayout:
    """Columns of a stream: the leaves of picked rows, in order.

    Args:
        example: Picked rows `[1]` of the same structure, types and shapes, in NumPy.
    """

    example: PickedRows

    def split(self, picked: PickedRows) -> dict[str, np.ndarray]:
        """Return the columns of picked rows; leaves without a number have none.

        Raises:
            DataError: If they have another structure.
        """
        if jax.tree.structure(picked) != jax.tree.structure(self.example):
            raise DataError(
                "The rows of one stream differ in what they have of a step, such as 'action_logp': name "
                "files of one kind, and keep the extras of parts in input_transform."
            )
        leaves = jax.tree.leaves(picked)
        return {f"{i}": np.asarray(leaf) for i, leaf in enumerate(leaves) if leaf[:1].size}

    def join(self, columns: dict[str, np.ndarray], num_rows: int) -> PickedRows:
        """Return the rows of columns."""
        leaves, tree = jax.tree.flatten(self.example)
        blank = [np.zeros((num_rows, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
        found = [
            columns[f"{i}"].reshape(leaf.shape).astype(leaf.dtype, copy=False)
            if f"{i}" in columns
            else leaf
            for i, leaf in enumerate(blank)
        ]
        return jax.tree.unflatten(tree, found)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RowTask:
    """Function of a batch of paths that yields the columns of their rows, shuffled in chunks.

    Chunks and their order are the same whenever a task is run again, so that Ray can restart it.

    Attributes:
        observation_space: Space of the observations.
        action_space: Space of the environment's actions.
        action_mask_key: Key of the action mask in a Dict of observations; None for none.
        settings: How the files are read.
        held_out_share: Share of the episodes that no rows are made of.
        sampler: What a row, or a sequence, is.
        action_conversion: Function of recorded actions that returns the module's.
        learner_pipeline: Connectors of rewards, which look at single ones.
        gamma: Discount factor of the returns to go.
        layout: Columns.
        chunk_bytes: Size of the parts that rows are made of at once, if an episode is not longer.
    """

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    action_mask_key: str | None
    settings: OfflineDataSettings
    held_out_share: float
    sampler: DatasetSampler
    action_conversion: ActionConversion
    learner_pipeline: LearnerPipeline
    gamma: float
    layout: RowLayout
    chunk_bytes: int

    def __call__(self, batch: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
        """Yield the columns of the rows of files, a chunk at a time."""
        for path in batch[PATH]:
            for number, chunk in enumerate(self._iter_chunks(str(path))):
                yield self.layout.split(self._make_rows(chunk, _make_generator(str(path), number)))

    def open(self, path: str) -> RecordedData:
        """Open one file."""
        return open_source(
            path,
            self.settings,
            (self.observation_space, self.action_space),
            action_mask_key=self.action_mask_key,
            is_tried=True,
        )

    def _iter_chunks(self, path: str) -> Iterator[Dataset]:
        data = self.open(path)
        parts, size = [], 0
        recorded = leave_out(data.iter_parts(), self.held_out_share)
        most = _UNFINISHED_CHUNKS * self.chunk_bytes // data.step_bytes
        merge = functools.partial(
            merge_ended_parts,
            max_unfinished_steps=most,
            overlaps=self.settings.ignore_final_observation,
        )
        for part in select_parts(self.settings, data, recorded, merge):
            parts.append(part)
            size += len(part) * data.step_bytes
            if size >= self.chunk_bytes:
                yield concatenate_sources([parts])
                parts, size = [], 0
        if parts:
            yield concatenate_sources([parts])

    def _make_rows(self, chunk: Dataset, rng: np.random.Generator) -> PickedRows:
        chunk = self._keep_columns(self._apply_connectors(chunk))
        first = rng.permutation(self.sampler.count_samples(chunk)).astype(np.int32)
        low, high = self.sampler.n_step
        max_steps = rng.integers(low, high + 1, size=len(first), dtype=np.int32)
        returns = self._compute_returns(chunk) if self.sampler.needs_returns else None
        drawn = DrawnRows(
            rows=first * np.int32(self.sampler.sequence_length or 1),
            learns=np.ones(first.shape, np.bool_),
        )
        return self.sampler.pick(chunk, drawn, max_steps, returns)

    def _keep_columns(self, chunk: Dataset) -> Dataset:
        """Return a chunk with the extras of the layout alone."""
        kept = self.layout.example.extras
        return replace(chunk, extras={name: x for name, x in chunk.extras.items() if name in kept})

    def _apply_connectors(self, chunk: Dataset) -> Dataset:
        chunk = replace(chunk, action=self.action_conversion(chunk.action))
        if len(self.learner_pipeline):
            reward: PyTree = _pad(chunk.reward)
            for connector in self.learner_pipeline.connectors:
                assert isinstance(connector, ClipRewards)  # the others are refused for streams
                reward = connector.clip(reward)
            chunk = replace(chunk, reward=np.asarray(reward)[: chunk.num_rows])
        return chunk

    def _compute_returns(self, chunk: Dataset) -> np.ndarray:
        number = len(_pad(chunk.reward))
        last = np.arange(number, dtype=np.int32)
        last[: chunk.num_rows] = chunk.last
        padded = replace(chunk, reward=_pad(chunk.reward), last=last)
        small = replace(padded, obs=(), action=(), extras={})
        return np.asarray(_compute_returns(small, np.float32(self.gamma)))[: chunk.num_rows]


_compute_returns = jax.jit(compute_returns_to_go)


def _pad(values: AnyArray) -> np.ndarray:
    """Return values with zeros after them, so that programs see few different lengths."""
    padded = np.zeros(1 << (len(values) - 1).bit_length(), values.dtype)
    padded[: len(values)] = values
    return padded


def _make_generator(path: str, number: int) -> np.random.Generator:
    """Return the generator of a chunk: another one in each task, the same if it is run again."""
    task = ray.get_runtime_context().get_task_id() or ""
    digest = hashlib.sha256(f"{task} {path} {number}".encode()).digest()
    return np.random.default_rng(np.frombuffer(digest, np.uint32))


def make_row_task(
    config: "Config", assembly: "Assembly", data: RecordedData, sampler: DatasetSampler
) -> RowTask:
    """Make the function that reads the rows of a run.

    Args:
        config: Config of the run.
        assembly: Its functions.
        data: Its recorded data.
        sampler: What a row is.

    Raises:
        ConfigError: If the recorded actions cannot be converted to the module's.
    """
    policy_step = assembly.policy_step
    blank = jax.tree.map(np.asarray, make_blank_dataset(policy_step))
    has_logp = any(column.path[-1:] == (Columns.ACTION_LOGP,) for column in data.columns.leaves)
    if has_logp:
        blank = replace(blank, extras={Columns.ACTION_LOGP: np.zeros(1, np.float32)})
    one = DrawnRows(rows=np.zeros(1, np.int32), learns=np.ones(1, np.bool_))
    returns = np.zeros(1, np.float32) if sampler.needs_returns else None
    example = sampler.pick(blank, one, np.ones(1, np.int32), returns)
    return RowTask(
        observation_space=data.observation_space,
        action_space=data.action_space,
        action_mask_key=config.environment_settings.action_mask_key,
        settings=config.offline_data_settings,
        held_out_share=config.evaluation_settings.held_out_share,
        sampler=sampler,
        action_conversion=make_action_conversion(
            policy_step, are_normalized=data.actions_are_normalized
        ),
        learner_pipeline=assembly.train_step.learner_pipeline,
        gamma=config.training_settings.gamma,
        layout=RowLayout(example=example),
        chunk_bytes=CHUNK_BYTES,
    )


def get_paths(data: RecordedData) -> Sequence[dict[str, str]]:
    """Return the items of the stream: a path each."""
    return [{PATH: str(path)} for path in data.files]


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

RowColumns = dict[str, np.ndarray]


def make_stream(config: "Config", data: "RecordedData", task: RowTask) -> "ray.data.Dataset":
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
    stream: "ray.data.Dataset", layout: RowLayout, runner: OfflineTrainStep
) -> PyTree:
    """Compute the statistics of the observation connectors in a pass over all rows of a stream."""
    update = jax.jit(runner.update_statistics)
    state: PyTree = runner.policy_step.obs_pipeline.init()
    for columns in _iter_translated(stream.iterator(), STATISTICS_ROWS, 0):
        number = _count_rows(columns)
        obs = layout.join(columns, number).obs
        padded = jax.tree.map(lambda x, n=number: _pad_rows(x, STATISTICS_ROWS - n), obs)
        state = update(state, padded, np.arange(STATISTICS_ROWS) < number)
    return jax.tree.map(np.asarray, state)


def _pad_rows(rows: np.ndarray, number: int) -> np.ndarray:
    return np.concatenate([rows, np.zeros((number, *rows.shape[1:]), rows.dtype)])


def _count_rows(columns: RowColumns) -> int:
    return len(next(iter(columns.values())))


def _iter_translated(
    iterator: "ray.data.DataIterator", batch_size: int, shuffle_buffer_size: int
) -> Iterator[RowColumns]:
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
        yield from cast("Iterator[RowColumns]", batches)
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
        layout: RowColumns of the stream.
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
        self._batches: Iterator[RowColumns] | None = None
        self._other_readers: set[threading.Thread] = set()
        self._rest: RowColumns | None = None
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

    def _take(self, number: int) -> RowColumns:
        """Return the columns of the next rows, which may go on in the next epoch."""
        taken: list[RowColumns] = []
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

    def _get_columns(self) -> RowColumns:
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


class StreamRows:
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

    def compute_statistics(self, runner: OfflineTrainStep) -> PyTree:
        return compute_statistics(*self._statistics, runner)

    def seek(self, state: TrainState) -> None:
        self._stream.seek(jax.device_get(state.buffer))

    def take(self, state: TrainState) -> BatchRows:
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


def take_batch(stream: RowStream, num_updates: int) -> BatchRows:
    """Return the rows of a train batch from a stream, in NumPy."""
    picked = stream.take()
    shaped = jax.tree.map(lambda x: x.reshape(num_updates, -1, *x.shape[1:]), picked)
    return BatchRows(picked=shaped, position=stream.position)


class _Streams:
    """Streams of a run's recorded data.

    Args:
        config: Config of the run.
        assembly: Its functions.

    Attributes:
        fingerprint: Digest of the data.
        layout: RowColumns of `rows`.

    Raises:
        JaxrlError: If the data cannot be opened, or no CPU of Ray is left for reading them.
    """

    def __init__(self, config: "Config", assembly: Assembly) -> None:
        self._config, self._assembly = config, assembly
        self._data = open_sources(
            config.offline_data_settings, config.environment_settings, assembly.made.spaces
        )[0]
        share = config.evaluation_settings.held_out_share
        self.fingerprint = get_fingerprint([self._data], share, is_quick=True)
        self._sampler = assembly.offline_step.experience
        task = make_row_task(config, assembly, self._data, self._sampler)
        self.layout: RowLayout = task.layout
        ensure_ray(config)
        _check_cpus(config)
        self.rows = make_stream(config, self._data, task)

    @property
    def single_rows(self) -> "tuple[ray.data.Dataset, RowLayout]":
        """Stream of single rows, and its layout: every observation once."""
        sampler = self._sampler.as_single_rows()
        task = make_row_task(self._config, self._assembly, self._data, sampler)
        return make_stream(self._config, self._data, task), task.layout

    def count_samples(self, num_learners: int) -> int:
        """Return the number of samples of a train batch for each learner."""
        return self._sampler.num_updates * self._sampler.batch_size // num_learners


def _check_cpus(config: "Config") -> None:
    """Raise if learners take every CPU of Ray, and so nothing can read."""
    number = config.learners_settings.num_learners
    taken = number * make_learner_bundle(config)["CPU"]
    total = ray.cluster_resources().get("CPU", 0.0)
    if total - taken < 1:
        raise ConfigError(
            f"{describe_storage(config)} reads in tasks of one CPU each, and the learners of "
            f"num_learners={number} leave {total - taken:g} of Ray's {total:g} CPUs: set fewer "
            "learners, or lower num_cpus_per_learner."
        )


def open_stream_rows(config: "Config", assembly: Assembly) -> tuple[StreamRows, str]:
    """Open the stream of a learner in this process; also return the digest of its data."""
    streams = _Streams(config, assembly)
    rows = RowStream(
        streams.rows.iterator(),
        streams.layout,
        streams.count_samples(1),
        shuffle_buffer_size=config.offline_data_settings.shuffle_buffer_size,
    )
    updates = assembly.offline_step.experience.num_updates
    return StreamRows(rows, updates, streams.single_rows), streams.fingerprint


class RayOfflineLearner(RayLearner):
    """Actor of one of several learners from recorded data, with its share of the stream."""

    def _make_programs(self, assembly: Assembly, shapes: PyTree) -> None:
        self._num_updates = assembly.offline_step.experience.num_updates
        self._main = make_rows_program(
            assembly.offline_step, shapes, self._devices, max_retraces=None, jit=True
        )
        self._shardings = state_shardings(shapes, self._devices)
        self._stream: RowStream | None = None
        self._is_placed = False

    def open_stream(
        self,
        iterators: "list[ray.data.DataIterator]",
        layout: RowLayout,
        statistics: PyTree,
        options: dict[str, Any],
    ) -> None:
        """Open this learner's share of the stream, and take over the connectors' statistics."""
        rank = jax.process_index()
        self._stream = RowStream(iterators[rank], layout, **options)
        plain = self.get_state()
        connectors = replace(plain.connectors, obs=statistics)
        self.set_state(replace(plain, connectors=connectors))

    def set_state(self, state: PyTree) -> None:
        super().set_state(state)
        self._is_placed = False

    def run_rows(self, batches: int) -> tuple[TrainReport, float, dict[str, Any]]:
        """Run train batches.

        Returns:
            The report, how long this learner waited for rows, and what results have of the stream.
        """
        assert self._stream is not None
        started, waited, rows = time.perf_counter(), 0.0, []
        if not self._is_placed:
            self._stream.seek(self._gather(self._state.buffer))
            self._is_placed = True
        before = self._stream.num_rows
        for _ in range(batches):
            since = time.perf_counter()
            batch = self._place_rows(take_batch(self._stream, self._num_updates))
            waited += time.perf_counter() - since
            self._state, row = self._main(self._state, batch)
            rows.append(row)
        report = merge_reports(self._gather(StepReports(rows=tuple(rows))))
        number = (self._stream.num_rows - before) * jax.process_count()
        speed = number / max(time.perf_counter() - started, 1e-9)
        return report, waited, make_metrics(self._stream, speed)

    def _place_rows(self, rows: BatchRows) -> BatchRows:
        """Return the global arrays of which rows are this learner's part."""

        def place(leaf: np.ndarray, spec: Any) -> jax.Array:
            return jax.make_array_from_process_local_data(NamedSharding(self._mesh, spec), leaf)

        return jax.tree.map(place, rows, batch_rows_specs(rows))


class RayOfflineLearnerGroup(RayLearnerGroup):
    """Learners from recorded data as Ray actors, that share the rows of every epoch equally.

    Args:
        config: Config of the run.
        assembly: Pure functions of the run.

    Attributes:
        fingerprint: Digest of the recorded data.
    """

    learner_class = RayOfflineLearner

    def __init__(self, config: "Config", assembly: Assembly) -> None:
        streams = _Streams(config, assembly)
        self.fingerprint: str | None = streams.fingerprint
        self._wait_seconds, self._metrics = 0.0, dict[str, Any]()
        super().__init__(config, assembly)
        try:
            self._open_streams(streams)
        except BaseException:
            self.stop()
            raise

    def _open_streams(self, streams: _Streams) -> None:
        runner, number = self._assembly.offline_step, self._num_learners
        statistics = runner.policy_step.obs_pipeline.init()
        if runner.needs_statistics:
            statistics = compute_statistics(*streams.single_rows, runner)
        options = {
            "batch_size": streams.count_samples(number),
            "num_splits": number,
            "shuffle_buffer_size": self._config.offline_data_settings.shuffle_buffer_size,
        }
        iterators = streams.rows.streaming_split(number, equal=True)
        plain = jax.tree.map(np.asarray, statistics)
        self._call_all("open_stream", iterators, streams.layout, plain, options)

    def run_batches(
        self, num_batches: int, on_phase: Callable[[str], None], *, max_iterations: int = 1
    ) -> TrainReport:
        del max_iterations  # learners keep no copy of the state, so nothing is computed ahead
        on_phase("training")
        report, waited, metrics = self.call_step("run_rows", num_batches)
        self._wait_seconds += waited
        self._metrics = {DATASET: metrics}
        return report

    def take_metrics(self) -> dict[str, Any]:
        """Return the entries of results on the stream and the time that the first learner waited."""
        seconds, self._wait_seconds = self._wait_seconds, 0.0
        return {**self._metrics, TIMERS: {ROWS_WAIT_SECONDS: seconds}}
