"""Learner group whose program is fed with the rows of one train batch at a time."""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jaxtyping import Array, Float, UInt32

from jaxrl.assembly.assemble import Assembly
from jaxrl.buffers.dataset import Dataset, DatasetPosition, DatasetSampler, compute_returns_to_go
from jaxrl.core.hparams import current_values
from jaxrl.core.keys import make_key
from jaxrl.core.struct import replace
from jaxrl.core.types import Device, Key, PyTree
from jaxrl.errors import DataError
from jaxrl.runners.host_replay import get_host_device
from jaxrl.runners.learner_group import LocalLearnerGroup
from jaxrl.runtime.program import Program
from jaxrl.training.offline import BatchDraws, FedRows, OfflineRunner, draw_batch
from jaxrl.training.report import StepReports, TrainReport, to_host
from jaxrl.training.sharding import DEVICE_AXIS, fed_specs, make_fed_program, state_shardings
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


class RowFeed(Protocol):
    """Source of the rows of train batches, in host memory."""

    @property
    def programs(self) -> list[Program]:
        """Compiled programs."""
        ...

    def compute_statistics(self, runner: OfflineRunner) -> PyTree:
        """Return the statistics of the observation connectors over all rows."""
        ...

    def seek(self, state: TrainState) -> None:
        """Go to the train batch that follows a state."""
        ...

    def take(self, state: TrainState) -> FedRows:
        """Return the rows of the next train batch, in NumPy.

        Args:
            state: State before it.
        """
        ...

    def get_metrics(self) -> dict[str, Any]:
        """Return the entries that results have of it, since the last call."""
        ...

    def stop(self) -> None:
        """Release all resources; safe to call more than once."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedExtent:
    """Extent of a dataset as constants of a program."""

    num_rows: int
    source_start: np.ndarray


class HostFeed:
    """Dataset in host memory, of which NumPy picks the rows that a program draws.

    They are those, to the bit, that a program with the dataset on the device draws.

    Args:
        dataset: Dataset of NumPy arrays.
        runner: Functions of the run.
        jit: Whether to compile.
    """

    def __init__(self, dataset: Dataset, runner: OfflineRunner, *, jit: bool) -> None:
        self.dataset, self._sampler = dataset, runner.experience
        self._host_device = get_host_device("dataset_storage='host'")
        self._place = SingleDeviceSharding(self._host_device)
        extent = FixedExtent(
            num_rows=dataset.num_rows, source_start=np.asarray(dataset.source_start)
        )
        self._draw_program = Program(
            "draw_rows", functools.partial(_draw, self._sampler, extent), enabled=jit
        )
        self._returns_program = Program("returns_to_go", compute_returns_to_go, enabled=jit)
        self._gamma_program = Program("gamma", _get_gamma, enabled=jit)
        self._returns: tuple[float, np.ndarray] | None = None
        self._key: Key | None = None
        self._position: DatasetPosition | None = None
        self._train_batches = np.zeros((), np.uint32)

    @property
    def programs(self) -> list[Program]:
        others = [self._returns_program, self._gamma_program] if self._sampler.needs_returns else []
        return [self._draw_program, *others]

    def compute_statistics(self, runner: OfflineRunner) -> PyTree:
        compute = jax.jit(runner.compute_statistics)
        return to_host(compute(jax.device_put(self.dataset, self._place)))

    def seek(self, state: TrainState) -> None:
        position = state.buffer if isinstance(state.buffer, DatasetPosition) else None
        # Copies, since the memory of the state is donated to the next one.
        inputs = jax.random.key_data(state.key), position, state.progress.train_batches.low
        key_data, self._position, self._train_batches = to_host(inputs)
        with jax.default_device(self._host_device):
            self._key = jax.random.wrap_key_data(key_data, impl=jax.random.key_impl(state.key))

    def take(self, state: TrainState) -> FedRows:
        with jax.default_device(self._host_device):
            draws = self._draw_program(self._position, self._key, self._train_batches)
        self._position, self._train_batches = draws.position, self._train_batches + 1
        drawn, max_steps = jax.tree.map(np.asarray, (draws.drawn, draws.max_steps))
        flat, limits = jax.tree.map(lambda x: x.reshape(-1), (drawn, max_steps))
        picked = self._sampler.pick(self.dataset, flat, limits, self._get_returns(state))
        shape = max_steps.shape
        return FedRows(
            picked=jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), picked),
            position=jax.tree.map(np.asarray, draws.position),
        )

    def _get_returns(self, state: TrainState) -> np.ndarray | None:
        """Return the returns of all rows with the current discount factor, if they are needed."""
        if not self._sampler.needs_returns:
            return None
        gamma = float(self._gamma_program(state.learner.hparams, state.progress))
        if self._returns is None or self._returns[0] != gamma:
            inputs = jax.device_put((self.dataset, np.float32(gamma)), self._place)
            self._returns = gamma, np.asarray(self._returns_program(*inputs))
        return self._returns[1]

    def get_metrics(self) -> dict[str, Any]:
        return {}

    def stop(self) -> None:
        """Do nothing; there are no resources to release."""


def _draw(
    sampler: DatasetSampler,
    extent: FixedExtent,
    position: DatasetPosition | None,
    run_key: Key,
    train_batches: UInt32[Array, ""],
) -> BatchDraws:
    return draw_batch(sampler, extent, position, run_key, train_batches)


def _get_gamma(hparams: PyTree, progress: Any) -> Float[Array, ""]:
    return current_values(hparams, progress)["gamma"]


class FedLearnerGroup(LocalLearnerGroup):
    """Learner from recorded data in this process that a feed gives the rows of each train batch.

    Args:
        config: Config of the run.
        assembly: Pure functions of the run.
        devices: Local devices of the learner.
        feed: Source of the rows; None if the recorded data are missing, and the run is not trained.
        fingerprint: Digest of the recorded data.
        missing: Error of the data that are missing.
    """

    def __init__(
        self,
        config: "AlgorithmConfig",
        assembly: Assembly,
        devices: list[Device],
        *,
        feed: RowFeed | None,
        fingerprint: str | None = None,
        missing: DataError | None = None,
    ) -> None:
        self._feed, self.fingerprint, self._missing = feed, fingerprint, missing
        self._fed_generation: int | None = None
        self.wait_seconds = 0.0
        super().__init__(config, assembly, devices)

    def _build(
        self, config: "AlgorithmConfig", assembly: Assembly, devices: list[Device]
    ) -> tuple[Program, Program, TrainState]:
        debugging, runner = config.debugging_settings, assembly.offline_runner
        statistics = runner.policy_step.obs_pipeline.init()
        if self._feed is not None and runner.needs_statistics:
            statistics = self._feed.compute_statistics(runner)
        key = make_key(debugging.run_seed)
        shapes = jax.eval_shape(runner.init_with, key, statistics)
        options: dict[str, Any] = {
            "program_cache": assembly.program_cache,
            "enabled": debugging.compiles,
        }
        first = Program(
            "init",
            runner.init_with,
            out_shardings=state_shardings(shapes, devices),
            **options,
        )
        main = make_fed_program(
            runner,
            shapes,
            devices,
            max_retraces=debugging.max_retraces,
            jit=debugging.compiles,
            program_cache=assembly.program_cache,
        )
        return first, main, first(key, statistics)

    @property
    def feed(self) -> RowFeed:
        """Source of the rows.

        Raises:
            DataError: If there are no data.
        """
        if self._feed is None:
            assert self._missing is not None
            raise self._missing
        return self._feed

    @property
    def programs(self) -> list[Program]:
        return [*super().programs, *(self._feed.programs if self._feed is not None else ())]

    def run_batches(
        self, num_batches: int, on_phase: Callable[[str], None], *, max_iterations: int = 1
    ) -> TrainReport:
        del max_iterations  # nothing is computed ahead
        feed, reports = self.feed, []
        if self._fed_generation != self._generation:
            feed.seek(self._state)
            self._fed_generation = self._generation
        for _ in range(num_batches):
            started = time.perf_counter()
            rows = place_fed_rows(feed.take(self._state), self._devices)
            self.wait_seconds += time.perf_counter() - started
            self._state, report = self._dispatch(self._state, rows, on_phase=on_phase)
            reports.append(report)
        return merge_reports(StepReports(rows=tuple(reports)))

    def fetch_report(self, pending: Sequence[TrainReport]) -> TrainReport:
        return TrainReport.merge(pending)

    def get_metrics(self) -> dict[str, Any]:
        """Return the entries that results have of the feed, since the last call."""
        return {} if self._feed is None else self._feed.get_metrics()

    def take_wait_seconds(self) -> float:
        """Return the time that the learner waited for rows since the last call."""
        seconds, self.wait_seconds = self.wait_seconds, 0.0
        return seconds

    def stop(self) -> None:
        if self._feed is not None:
            self._feed.stop()


def merge_reports(reports: StepReports) -> TrainReport:
    """Fetch the reports on consecutive train batches as one of all of them."""
    rows = jax.device_get(reports).rows
    total = functools.reduce(lambda x, y: x.merge(y), (row.summary for row in rows))
    total = to_host(total)
    return TrainReport(summaries=[total], latest=replace(rows[-1], summary=total))


def place_fed_rows(rows: FedRows, devices: list[Device]) -> FedRows:
    """Move the rows of a train batch to the devices, to each those of its shards."""
    if len(devices) == 1:
        return jax.device_put(rows, SingleDeviceSharding(devices[0]))
    mesh = Mesh(np.asarray(devices), (DEVICE_AXIS,))
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), fed_specs(rows))
    return jax.device_put(rows, shardings)
