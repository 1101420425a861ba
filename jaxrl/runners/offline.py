"""Learners and loops of runs that learn from recorded data, alone or beside what they sample."""

import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jaxtyping import Array, Float, UInt32

from jaxrl.assembly.assemble import Assembly
from jaxrl.assembly.offline import (
    describe_chosen,
    get_fingerprint,
    limit_dataset_size,
    load_dataset,
    make_blank_dataset,
    open_sources,
)
from jaxrl.buffers.dataset import Dataset, DatasetPosition, DatasetSampler, compute_returns_to_go
from jaxrl.config.batch_plan import OfflinePlan
from jaxrl.config.offline import describe_held_out
from jaxrl.core.hparams import current_values
from jaxrl.core.keys import make_key, split_run_key
from jaxrl.core.struct import replace
from jaxrl.core.types import Device, Key, PyTree
from jaxrl.errors import ConfigError, DataError
from jaxrl.metrics import TIMERS
from jaxrl.runners.compiled_runner import CompiledEnvRunner
from jaxrl.runners.curriculum import Curriculum
from jaxrl.runners.hooks import RunnerHooks
from jaxrl.runners.host_memory import get_host_device
from jaxrl.runners.in_graph_loop import DispatchStrategy, InGraphLoop
from jaxrl.runners.learner_group import DeviceDataset, LearnerGroup, LocalLearnerGroup
from jaxrl.runners.learner_steps import LearnerSteps, StepResult
from jaxrl.runtime.program import Program
from jaxrl.training.offline import (
    BatchDraws,
    BatchRows,
    MixedTrainStep,
    OfflineTrainStep,
    draw_batch,
)
from jaxrl.training.report import IterationTotals, StepReports, TrainReport, merge_results, to_host
from jaxrl.training.sharding import (
    DEVICE_AXIS,
    REPLICATED,
    batch_rows_specs,
    make_rows_program,
    state_shardings,
)
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.config import Config
    from jaxrl.config.settings.run import ReportingSettings
    from jaxrl.runners.ray.offline import RayOfflineLearnerGroup


ROWS_WAIT_SECONDS = "rows_wait_s"
"""Timer of the time that learners waited for recorded rows."""


class RowSource(Protocol):
    """Source of the rows of train batches, in host memory."""

    @property
    def programs(self) -> list[Program]:
        """Compiled programs."""
        ...

    def compute_statistics(self, runner: OfflineTrainStep) -> PyTree:
        """Return the statistics of the observation connectors over all rows."""
        ...

    def seek(self, state: TrainState) -> None:
        """Go to the train batch that follows a state."""
        ...

    def take(self, state: TrainState) -> BatchRows:
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


class HostRows:
    """Dataset in host memory, of which NumPy picks the rows that a program draws.

    They are those, to the bit, that a program with the dataset on the device draws.

    Args:
        dataset: Dataset of NumPy arrays.
        runner: Functions of the run.
        jit: Whether to compile.
    """

    def __init__(self, dataset: Dataset, runner: OfflineTrainStep, *, jit: bool) -> None:
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

    def compute_statistics(self, runner: OfflineTrainStep) -> PyTree:
        compute = jax.jit(runner.compute_statistics)
        return to_host(compute(jax.device_put(self.dataset, self._place)))

    def seek(self, state: TrainState) -> None:
        position = state.buffer if isinstance(state.buffer, DatasetPosition) else None
        # Copies, since the memory of the state is donated to the next one.
        inputs = jax.random.key_data(state.key), position, state.progress.train_batches.low
        key_data, self._position, self._train_batches = to_host(inputs)
        with jax.default_device(self._host_device):
            self._key = jax.random.wrap_key_data(key_data, impl=jax.random.key_impl(state.key))

    def take(self, state: TrainState) -> BatchRows:
        with jax.default_device(self._host_device):
            draws = self._draw_program(self._position, self._key, self._train_batches)
        self._position, self._train_batches = draws.position, self._train_batches + 1
        drawn, max_steps = jax.tree.map(np.asarray, (draws.drawn, draws.max_steps))
        flat, limits = jax.tree.map(lambda x: x.reshape(-1), (drawn, max_steps))
        picked = self._sampler.pick(self.dataset, flat, limits, self._get_returns(state))
        shape = max_steps.shape
        return BatchRows(
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


class RowsLearnerGroup(LocalLearnerGroup):
    """Learner from recorded data in this process that a source gives the rows of each train batch.

    Args:
        config: Config of the run.
        assembly: Pure functions of the run.
        devices: Local devices of the learner.
        source: Source of the rows; None if the recorded data are missing, and the run is not trained.
        fingerprint: Digest of the recorded data.
        missing: Error of the data that are missing.
    """

    def __init__(
        self,
        config: "Config",
        assembly: Assembly,
        devices: list[Device],
        *,
        source: RowSource | None,
        fingerprint: str | None = None,
        missing: DataError | None = None,
    ) -> None:
        self._source = source
        self._sought_generation: int | None = None
        self._wait_seconds = 0.0
        super().__init__(config, assembly, devices)
        self.fingerprint, self._missing = fingerprint, missing

    def _build(
        self, config: "Config", assembly: Assembly, devices: list[Device]
    ) -> tuple[Program, Program, TrainState]:
        debugging, runner = config.debugging_settings, assembly.offline_step
        statistics = runner.policy_step.obs_pipeline.init()
        if self._source is not None and runner.needs_statistics:
            statistics = self._source.compute_statistics(runner)
        key = make_key(debugging.run_seed)

        def init(key: Key, statistics: PyTree) -> TrainState:
            return runner.init_with(split_run_key(key), statistics)

        shapes = jax.eval_shape(init, key, statistics)
        options: dict[str, Any] = {
            "program_cache": assembly.program_cache,
            "enabled": debugging.compiles,
        }
        first = Program(
            "init",
            init,
            out_shardings=state_shardings(shapes, devices),
            **options,
        )
        main = make_rows_program(
            runner,
            shapes,
            devices,
            max_retraces=debugging.max_retraces,
            jit=debugging.compiles,
            program_cache=assembly.program_cache,
        )
        return first, main, first(key, statistics)

    @property
    def source(self) -> RowSource:
        """Source of the rows.

        Raises:
            DataError: If there are no data.
        """
        self._check_data()
        assert self._source is not None
        return self._source

    @property
    def programs(self) -> list[Program]:
        return [*super().programs, *(self._source.programs if self._source is not None else ())]

    def run_batches(
        self, num_batches: int, on_phase: Callable[[str], None], *, max_iterations: int = 1
    ) -> TrainReport:
        del max_iterations  # nothing is computed ahead
        source, reports = self.source, []
        if self._sought_generation != self._generation:
            source.seek(self._state)
            self._sought_generation = self._generation
        for _ in range(num_batches):
            started = time.perf_counter()
            rows = place_batch_rows(source.take(self._state), self._devices)
            self._wait_seconds += time.perf_counter() - started
            self._state, report = self._dispatch(self._state, rows, on_phase=on_phase)
            reports.append(report)
        return merge_reports(StepReports(rows=tuple(reports)))

    def fetch_report(self, pending: Sequence[TrainReport]) -> TrainReport:
        return TrainReport.merge(pending)

    def take_metrics(self) -> dict[str, Any]:
        """Return the entries of results on the rows and the time to wait for them, since the last call."""
        seconds, self._wait_seconds = self._wait_seconds, 0.0
        timers = {TIMERS: {ROWS_WAIT_SECONDS: seconds}}
        return timers if self._source is None else merge_results(timers, self._source.get_metrics())

    def stop(self) -> None:
        if self._source is not None:
            self._source.stop()


def merge_reports(reports: StepReports) -> TrainReport:
    """Fetch the reports on consecutive train batches as one of all of them."""
    rows = jax.device_get(reports).rows
    total = functools.reduce(lambda x, y: x.merge(y), (row.summary for row in rows))
    total = to_host(total)
    return TrainReport(summaries=[total], latest=replace(rows[-1], summary=total))


def place_batch_rows(rows: BatchRows, devices: list[Device]) -> BatchRows:
    """Move the rows of a train batch to the devices, to each those of its shards."""
    if len(devices) == 1:
        return jax.device_put(rows, SingleDeviceSharding(devices[0]))
    mesh = Mesh(np.asarray(devices), (DEVICE_AXIS,))
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), batch_rows_specs(rows))
    return jax.device_put(rows, shardings)


logger = logging.getLogger("jaxrl")


def read_dataset(
    config: "Config", assembly: Assembly, sampler: DatasetSampler, device: Device
) -> tuple[Dataset, str]:
    """Return the dataset of a config in NumPy, and the digest of its data.

    Raises:
        JaxrlError: If there are no data, or they are damaged, too large, or do not fit.
    """
    data = open_sources(
        config.offline_data_settings, config.environment_settings, assembly.made.spaces
    )
    dataset = load_dataset(
        config,
        data,
        assembly.policy_step,
        assembly.train_step.learner_pipeline,
        sampler,
        assembly.episode_split,
        limit_dataset_size(
            config.offline_data_settings,
            config.evaluation_settings.offline_evaluation_split,
            data,
            assembly.row_storage,
            device,
        ),
    )
    return dataset, get_fingerprint(data, config.evaluation_settings.held_out_share)


def make_offline_learners(
    config: "Config", assembly: Assembly, devices: list[Device]
) -> LearnerGroup:
    """Make the learners of a run from recorded data alone, whose rows are on the host."""
    try:
        if config.learners_settings.num_learners:
            from jaxrl.runners.ray.offline import RayOfflineLearnerGroup

            return RayOfflineLearnerGroup(config, assembly)
        source, fingerprint = _make_row_source(config, assembly, devices)
    except DataError as error:
        _note_missing(assembly, error)
        return RowsLearnerGroup(config, assembly, devices, source=None, missing=error)
    return RowsLearnerGroup(config, assembly, devices, source=source, fingerprint=fingerprint)


def _make_row_source(
    config: "Config", assembly: Assembly, devices: list[Device]
) -> tuple[RowSource, str]:
    if assembly.row_storage == "stream":
        from jaxrl.runners.ray.offline import open_stream_rows

        return open_stream_rows(config, assembly)
    runner = assembly.offline_step
    dataset, fingerprint = read_dataset(config, assembly, runner.experience, devices[0])
    return HostRows(dataset, runner, jit=config.debugging_settings.compiles), fingerprint


def _note_missing(assembly: Assembly, error: DataError) -> None:
    """Log that there are no data; raise if the run is to be trained."""
    if assembly.should_train:
        raise error
    logger.warning("The policy is restored, but it cannot be trained: %s", error)


def load_device_dataset(
    config: "Config", assembly: Assembly, devices: list[Device]
) -> DeviceDataset:
    """Read the data of a config onto the devices; a run that is not trained may lack them."""
    step = assembly.train_step
    sampler = (
        step.recorded if isinstance(step, MixedTrainStep) else assembly.offline_step.experience
    )
    missing, fingerprint = None, None
    try:
        dataset, fingerprint = read_dataset(config, assembly, sampler, devices[0])
    except DataError as error:
        _note_missing(assembly, error)
        missing, dataset = error, make_blank_dataset(assembly.policy_step)
    if len(devices) == 1:
        place = SingleDeviceSharding(devices[0])
    else:
        place = NamedSharding(Mesh(np.asarray(devices), (DEVICE_AXIS,)), REPLICATED)
    dataset = jax.device_put(dataset, place)
    return DeviceDataset(dataset=dataset, fingerprint=fingerprint, missing=missing)


class OfflineLoop(InGraphLoop):
    """Loop over dispatches of gradient steps, a fixed number of them per iteration."""

    def __init__(
        self,
        config: "Config",
        assembly: Assembly,
        learners: LearnerGroup,
        hooks: RunnerHooks,
        strategy: DispatchStrategy,
    ) -> None:
        runner = CompiledEnvRunner(config, assembly)
        curriculum = Curriculum(config, is_jax_env=False)
        super().__init__(learners, 1, 1, hooks, strategy, runner, curriculum)
        assert isinstance(assembly.plan, OfflinePlan)
        self._batches_per_iteration = assembly.plan.batches_per_iteration
        self._gets_rows = assembly.row_storage != "device"
        self.notes = [
            *describe_chosen(assembly.storage),
            *describe_held_out(config.evaluation_settings),
        ]

    def prepare(self) -> None:
        """Do nothing: no environment is made."""

    def sample(self, steps: LearnerSteps) -> tuple[Any, StepResult]:
        """Raise: there is nothing to sample.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "sample() has no environment: this run learns from recorded data, input_=...; call "
            "super().training_step(), which runs gradient steps on them."
        )

    def extend_result(self, result: dict[str, Any]) -> dict[str, Any]:
        """Add how long the learners waited for rows, and what else is known of these."""
        result = super().extend_result(result)
        if not self._gets_rows:
            return result
        learners = cast("RowsLearnerGroup | RayOfflineLearnerGroup", self._learners)
        return merge_results(result, learners.take_metrics())

    def _count_batches_left(self, reporting: "ReportingSettings", totals: IterationTotals) -> int:
        del reporting
        return self._batches_per_iteration - totals.train_batches
