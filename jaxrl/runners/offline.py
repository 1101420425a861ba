"""Learners and loops of runs that learn from recorded data, alone or beside what they sample."""

import abc
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding

from jaxrl.assembly.assemble import Assembly
from jaxrl.assembly.dataset_storage import (
    describe_chosen,
    limit_dataset_size,
)
from jaxrl.assembly.offline import (
    get_fingerprint,
    load_dataset,
    make_blank_dataset,
    open_config_data,
)
from jaxrl.buffers.dataset import Dataset, DatasetSampler
from jaxrl.config.batch_plan import OfflinePlan
from jaxrl.config.offline import describe_held_out
from jaxrl.core.types import Device
from jaxrl.errors import CheckpointError, ConfigError, DataError
from jaxrl.metrics import TIMERS
from jaxrl.runners.compiled_runner import CompiledEnvRunner
from jaxrl.runners.counts import DATA
from jaxrl.runners.curriculum import Curriculum
from jaxrl.runners.fed_group import FedLearnerGroup, HostFeed, RowFeed
from jaxrl.runners.fragment import Fragment
from jaxrl.runners.hooks import RunnerHooks
from jaxrl.runners.host_loop import HostLoop
from jaxrl.runners.in_graph_group import InGraphLearnerGroup, ProgramInputs
from jaxrl.runners.in_graph_loop import DispatchStrategy, InGraphLoop, OwnDispatches
from jaxrl.runners.learner_group import LearnerGroup, LocalLearnerGroup
from jaxrl.runners.learner_steps import LearnerSteps, StepBatch, StepResult
from jaxrl.runners.protocols import Fill
from jaxrl.runtime.program import Program
from jaxrl.training.mixed import MixedRunner, MixedTrainStep
from jaxrl.training.report import IterationTotals, StepReports, TrainReport, merge_results
from jaxrl.training.sharding import DEVICE_AXIS, REPLICATED
from jaxrl.training.train_state import Summary, TrainState

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig
    from jaxrl.config.settings.run import ReportingSettings

logger = logging.getLogger("jaxrl")


_NO_STEPS = (
    "update() needs a sampled batch or a replay buffer, and this run learns from recorded data, "
    "input_=...: call super().training_step(), which runs gradient steps on them."
)
ROWS_WAIT_SECONDS = "rows_wait_s"
"""Timer of the time that learners waited for recorded rows."""


def is_fed(assembly: Assembly) -> bool:
    """Return whether the learners of a run from recorded data are fed with rows."""
    return assembly.storage is not None and assembly.storage.name != "device"


class RecordedLearners(LearnerGroup, Protocol):
    """Learners from recorded data, of which they know the digest; None if there are no data."""

    @property
    def fingerprint(self) -> str | None: ...


class FedLearners(RecordedLearners, Protocol):
    """Learners that are fed with rows, and say how long they waited for them."""

    def get_metrics(self) -> dict[str, Any]:
        """Return the entries that results have of the rows, since the last call."""
        ...

    def take_wait_seconds(self) -> float:
        """Return the time that they waited for rows since the last call."""
        ...


def read_dataset(
    config: "AlgorithmConfig", assembly: Assembly, sampler: DatasetSampler, device: Device
) -> tuple[Dataset, str]:
    """Return the dataset of a config in NumPy, and the digest of its data.

    Raises:
        JaxrlError: If there are no data, or they are damaged, too large, or do not fit.
    """
    data = open_config_data(config, assembly.made.spaces)
    storage = assembly.storage.name if assembly.storage is not None else "device"
    count = limit_dataset_size(config, data, storage, device)
    pipeline = assembly.train_step.learner_pipeline
    dataset = load_dataset(
        config,
        data,
        assembly.policy_step,
        pipeline,
        sampler,
        assembly.episode_split,
        count,
    )
    return dataset, get_fingerprint(data, config.evaluation_settings.held_out_share)


def make_offline_learners(
    config: "AlgorithmConfig", assembly: Assembly, devices: list[Device]
) -> RecordedLearners:
    """Make the learners of a run from recorded data alone, where its rows are."""
    if not is_fed(assembly):
        return OfflineLearnerGroup(config, assembly, devices)
    try:
        if config.learners_settings.num_learners:
            from jaxrl.runners.ray.offline import RayOfflineLearnerGroup

            return RayOfflineLearnerGroup(config, assembly)
        feed, fingerprint = _make_feed(config, assembly, devices)
    except DataError as error:
        _note_missing(assembly, error)
        return FedLearnerGroup(config, assembly, devices, feed=None, missing=error)
    return FedLearnerGroup(config, assembly, devices, feed=feed, fingerprint=fingerprint)


def _make_feed(
    config: "AlgorithmConfig", assembly: Assembly, devices: list[Device]
) -> tuple[RowFeed, str]:
    runner = assembly.offline_runner
    assert assembly.storage is not None
    if assembly.storage.name == "stream":
        from jaxrl.runners.ray.offline import open_stream_feed

        return open_stream_feed(config, assembly)
    dataset, fingerprint = read_dataset(config, assembly, runner.experience, devices[0])
    feed = HostFeed(dataset, runner, jit=config.debugging_settings.compiles)
    return feed, fingerprint


def _note_missing(assembly: Assembly, error: DataError) -> None:
    """Log that there are no data; raise if the run is to be trained."""
    if assembly.should_train:
        raise error
    logger.warning("The policy is restored, but it cannot be trained: %s", error)


class _DatasetHolder(abc.ABC):
    """Base of learners in this process whose program has the dataset as an argument.

    Attributes:
        dataset: Recorded rows on the devices.
        fingerprint: Digest of the recorded data; None if a run was restored without them.
    """

    dataset: Dataset
    fingerprint: str | None

    @abc.abstractmethod
    def _get_sampler(self, assembly: Assembly) -> DatasetSampler:
        """Return the draws from the dataset."""

    def _put_dataset(
        self, config: "AlgorithmConfig", assembly: Assembly, devices: list[Device]
    ) -> None:
        """Load the dataset onto the devices; a run that is not trained may lack it."""
        self._missing: DataError | None = None
        sampler = self._get_sampler(assembly)
        try:
            dataset, self.fingerprint = read_dataset(config, assembly, sampler, devices[0])
        except DataError as error:
            _note_missing(assembly, error)
            self._missing, self.fingerprint = error, None
            dataset = make_blank_dataset(assembly.policy_step)
        if len(devices) == 1:
            place = SingleDeviceSharding(devices[0])
        else:
            place = NamedSharding(Mesh(np.asarray(devices), (DEVICE_AXIS,)), REPLICATED)
        self.dataset = jax.device_put(dataset, place)

    def _check_data(self) -> None:
        """Raise DataError if there are no data to train on."""
        if self._missing is not None:
            raise self._missing


class DatasetLearnerGroup(_DatasetHolder, InGraphLearnerGroup):
    """Group of one learner in this process, whose program has the dataset as an argument."""

    def run_batches(
        self, num_batches: int, on_phase: Callable[[str], None], *, max_iterations: int = 1
    ) -> TrainReport:
        self._check_data()
        return super().run_batches(num_batches, on_phase, max_iterations=max_iterations)


class OfflineLearnerGroup(DatasetLearnerGroup):
    """Learner from recorded data alone, which are on its devices."""

    def _get_sampler(self, assembly: Assembly) -> DatasetSampler:
        return assembly.offline_runner.experience

    def _make_inputs(
        self, config: "AlgorithmConfig", assembly: Assembly, devices: list[Device]
    ) -> ProgramInputs:
        self._put_dataset(config, assembly, devices)
        return ProgramInputs(init=self.dataset, run=(self.dataset,))


class MixedLearnerGroup(DatasetLearnerGroup):
    """Learner from recorded data and from what its program samples."""

    def _get_sampler(self, assembly: Assembly) -> DatasetSampler:
        assert isinstance(assembly.train_step, MixedRunner)
        return assembly.train_step.recorded

    def _make_inputs(
        self, config: "AlgorithmConfig", assembly: Assembly, devices: list[Device]
    ) -> ProgramInputs:
        self._put_dataset(config, assembly, devices)
        return ProgramInputs(init=assembly.jax_env.params, run=(self.dataset,))


class MixedHostLearnerGroup(_DatasetHolder, LocalLearnerGroup):
    """Learner from recorded data and from what runners on the host sample."""

    def _get_sampler(self, assembly: Assembly) -> DatasetSampler:
        assert isinstance(assembly.train_step, MixedTrainStep)
        return assembly.train_step.recorded

    def _build(
        self, config: "AlgorithmConfig", assembly: Assembly, devices: list[Device]
    ) -> tuple[Program, Program, TrainState]:
        self._put_dataset(config, assembly, devices)
        self._inputs = (self.dataset,)
        return super()._build(config, assembly, devices)

    def update(
        self, fragments: Sequence[Fragment], on_phase: Callable[[str], None]
    ) -> Summary | StepReports:
        self._check_data()
        return super().update(fragments, on_phase)


class DatasetLoop(InGraphLoop):
    """Loop over dispatches of updates on recorded data, whose digest checkpoints have."""

    _group: RecordedLearners

    def update(
        self, steps: LearnerSteps, batch: "StepBatch | None", num_updates: int | None
    ) -> StepResult:
        """Raise: the steps of a training step are for sampled batches.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(_NO_STEPS)

    def check_counts(self, counts: Mapping[str, Any]) -> None:
        """Check that the data are those of the checkpoint.

        Raises:
            CheckpointError: If they are others.
        """
        _check_fingerprint(self._group, counts)

    def restore(self, fill: Fill, counts: Mapping[str, Any]) -> None:
        super().restore(fill, {name: value for name, value in counts.items() if name != DATA})

    def get_counts(self) -> dict[str, Any]:
        return super().get_counts() | _count_data(self._group)


def _check_fingerprint(group: RecordedLearners, counts: Mapping[str, Any]) -> None:
    """Compare the digest of the data with that of the learners.

    Raises:
        CheckpointError: If the data are others.
    """
    saved, current = counts.get(DATA), group.fingerprint
    if None not in (saved, current) and saved != current:
        raise CheckpointError(
            "The checkpoint was trained on other recorded data than those that input_ names now, and "
            "that offline_evaluation_split leaves for training: name the same files and split, or "
            "restore a part of it, component='rl_module'."
        )


def _count_data(group: RecordedLearners) -> dict[str, Any]:
    """Return the digest of the data among the counts of a checkpoint; empty without data."""
    return {} if group.fingerprint is None else {DATA: group.fingerprint}


class MixedHostLoop(HostLoop):
    """Loop over train batches of runners on the host, beside which recorded data are learned from."""

    _learners: MixedHostLearnerGroup

    def update(
        self, steps: LearnerSteps, batch: "StepBatch | None", num_updates: int | None
    ) -> StepResult:
        """Raise: gradient steps have rows of the recorded data, too.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(_NO_STEPS)

    def check_counts(self, counts: Mapping[str, Any]) -> None:
        """Check that the data are those of the checkpoint.

        Raises:
            CheckpointError: If they are others.
        """
        _check_fingerprint(self._learners, counts)

    def restore(self, fill: Fill, counts: Mapping[str, Any]) -> None:
        super().restore(fill, {name: value for name, value in counts.items() if name != DATA})

    def get_counts(self) -> dict[str, Any]:
        return super().get_counts() | _count_data(self._learners)


class MixedLoop(DatasetLoop):
    """Loop over dispatches of a program that samples, and learns from recorded data too."""

    def __init__(self, learners: MixedLearnerGroup, *arguments: Any) -> None:
        super().__init__(learners, *arguments)
        self._group = learners


class OfflineLoop(DatasetLoop):
    """Loop over dispatches of gradient steps, a fixed number of them per iteration."""

    def __init__(
        self,
        config: "AlgorithmConfig",
        assembly: Assembly,
        learners: RecordedLearners,
        hooks: RunnerHooks,
        strategy: DispatchStrategy | None = None,
    ) -> None:
        runner = CompiledEnvRunner(config, assembly)
        curriculum = Curriculum(config, is_jax_env=False)
        strategy = OwnDispatches() if strategy is None else strategy
        super().__init__(learners, 1, 1, hooks, strategy, runner, curriculum)
        assert isinstance(assembly.plan, OfflinePlan)
        self._batches_per_iteration = assembly.plan.batches_per_iteration
        self._group = learners
        self._fed = cast("FedLearners", learners) if is_fed(assembly) else None
        self.notes = [*describe_chosen(assembly.storage), *describe_held_out(config)]

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
        if self._fed is None:
            return result
        timers = {TIMERS: {ROWS_WAIT_SECONDS: self._fed.take_wait_seconds()}}
        return merge_results(merge_results(result, timers), self._fed.get_metrics())

    def _count_batches_left(self, reporting: "ReportingSettings", totals: IterationTotals) -> int:
        del reporting
        return self._batches_per_iteration - totals.train_batches
