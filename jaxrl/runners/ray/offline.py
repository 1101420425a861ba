"""Learners from recorded data that Ray Data streams: in this process, or one in each of several."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import ray
from jax.sharding import NamedSharding

from jaxrl.assembly.assemble import Assembly
from jaxrl.assembly.offline import get_fingerprint, open_config_data
from jaxrl.config.offline import describe_storage
from jaxrl.core.struct import replace
from jaxrl.core.types import PyTree
from jaxrl.errors import ConfigError
from jaxrl.runners.fed_group import merge_reports
from jaxrl.runners.ray.learner import RayLearner
from jaxrl.runners.ray.learner_group import RayLearnerGroup
from jaxrl.runners.ray.row_stream import (
    DATASET,
    RowStream,
    StreamFeed,
    compute_statistics,
    make_metrics,
    make_stream,
    take_batch,
)
from jaxrl.runners.ray.row_tasks import RowLayout, make_row_task
from jaxrl.runners.ray.start import ensure_ray, make_learner_bundle
from jaxrl.training.offline import FedRows
from jaxrl.training.report import StepReports, TrainReport
from jaxrl.training.sharding import fed_specs, make_fed_program, state_shardings

if TYPE_CHECKING:
    import ray.data

    from jaxrl.config.base import AlgorithmConfig


class _Streams:
    """Streams of a run's recorded data.

    Args:
        config: Config of the run.
        assembly: Its functions.

    Attributes:
        fingerprint: Digest of the data.
        layout: Columns of `rows`.

    Raises:
        JaxrlError: If the data cannot be opened, or no CPU of Ray is left for reading them.
    """

    def __init__(self, config: "AlgorithmConfig", assembly: Assembly) -> None:
        self._config, self._assembly = config, assembly
        self._data = open_config_data(config, assembly.made.spaces)[0]
        share = config.evaluation_settings.held_out_share
        self.fingerprint = get_fingerprint([self._data], share, is_quick=True)
        self._sampler = assembly.offline_runner.experience
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


def _check_cpus(config: "AlgorithmConfig") -> None:
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


def open_stream_feed(config: "AlgorithmConfig", assembly: Assembly) -> tuple[StreamFeed, str]:
    """Open the stream of a learner in this process; also return the digest of its data."""
    streams = _Streams(config, assembly)
    rows = RowStream(
        streams.rows.iterator(),
        streams.layout,
        streams.count_samples(1),
        shuffle_buffer_size=config.offline_data_settings.shuffle_buffer_size,
    )
    updates = assembly.offline_runner.experience.num_updates
    return StreamFeed(rows, updates, streams.single_rows), streams.fingerprint


class RayOfflineLearner(RayLearner):
    """Actor of one of several learners from recorded data, with its share of the stream."""

    def _make_programs(self, assembly: Assembly, shapes: PyTree) -> None:
        self._num_updates = assembly.offline_runner.experience.num_updates
        self._main = make_fed_program(
            assembly.offline_runner, shapes, self._devices, max_retraces=None, jit=True
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

    def run_fed(self, batches: int) -> tuple[TrainReport, float, dict[str, Any]]:
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
            fed = self._place_rows(take_batch(self._stream, self._num_updates))
            waited += time.perf_counter() - since
            self._state, row = self._main(self._state, fed)
            rows.append(row)
        report = merge_reports(self._gather(StepReports(rows=tuple(rows))))
        number = (self._stream.num_rows - before) * jax.process_count()
        speed = number / max(time.perf_counter() - started, 1e-9)
        return report, waited, make_metrics(self._stream, speed)

    def _place_rows(self, rows: FedRows) -> FedRows:
        """Return the global arrays of which rows are this learner's part."""

        def place(leaf: np.ndarray, spec: Any) -> jax.Array:
            return jax.make_array_from_process_local_data(NamedSharding(self._mesh, spec), leaf)

        return jax.tree.map(place, rows, fed_specs(rows))


class RayOfflineLearnerGroup(RayLearnerGroup):
    """Learners from recorded data as Ray actors, that share the rows of every epoch equally.

    Args:
        config: Config of the run.
        assembly: Pure functions of the run.

    Attributes:
        fingerprint: Digest of the recorded data.
    """

    learner_class = RayOfflineLearner

    def __init__(self, config: "AlgorithmConfig", assembly: Assembly) -> None:
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
        runner, number = self._assembly.offline_runner, self._num_learners
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
        report, waited, metrics = self.call_step("run_fed", num_batches)
        self._wait_seconds += waited
        self._metrics = {DATASET: metrics}
        return report

    def get_metrics(self) -> dict[str, Any]:
        """Return the entries that results have of the stream."""
        return self._metrics

    def take_wait_seconds(self) -> float:
        """Return the time that the first learner waited for rows since the last call."""
        seconds, self._wait_seconds = self._wait_seconds, 0.0
        return seconds
