"""Groups of lanes with one compiled program: a dispatch trains all lanes of the group.

Each lane of a group gets its part of a dispatch's report.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxrl.assembly.assemble import Assembly
from jaxrl.config.multi_agent import get_module_overrides
from jaxrl.config.sweep import Lane
from jaxrl.core.hparams import HParams, to_leaf
from jaxrl.core.keys import make_key
from jaxrl.core.seeds import split_seed
from jaxrl.core.types import Device, PyTree
from jaxrl.errors import ConfigError
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.learner_group import LearnerGroup
from jaxrl.runtime.program import Program
from jaxrl.sweeps.grouping import get_lane_numbers
from jaxrl.sweeps.lane_data import SharedDataset
from jaxrl.sweeps.lane_evaluation import SharedEvaluations
from jaxrl.sweeps.lanes import (
    LanePrograms,
    Lanes,
    choose_lane_devices,
    count_slots,
    is_per_lane,
    make_lane_programs,
    stack_trees,
)
from jaxrl.training.report import IterationTotals, TrainReport
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


class LaneGroup:
    """Lanes of one compiled program, with their states.

    Args:
        lanes: Lanes that can share a program.
        env_params: Parameters of each lane's environment.
        assembly: Functions shared by all lanes; in-graph.
        devices: Local devices among which the lanes are divided. If they have no equal shares, lanes
            are added: copies of the last one that are never read.
        varying_settings: Names of the settings that differ between lanes.
        data: Recorded data that all lanes learn from; None if they step environments.
        template: Group whose programs are reused; its settings differ only in numbers. It has at
            least as many lanes; this group is padded to its size.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        env_params: Sequence[PyTree],
        assembly: Assembly,
        devices: list[Device],
        varying_settings: Collection[str],
        data: SharedDataset | None = None,
        template: "LaneGroup | None" = None,
    ) -> None:
        self.assembly, self.data = assembly, data
        self.shared: dict[str, Any] = {} if template is None else template.shared
        """Objects by name that all lanes share."""
        self.num_lanes = len(lanes)
        """Number of lanes without copies that are never read."""
        slots = count_slots(len(lanes), len(devices)) if template is None else len(template.lanes)
        padding = slots - len(lanes)
        self.lanes = [*lanes, *[lanes[-1]] * padding]
        """Lanes and copies; the index is the slot."""
        self.devices = choose_lane_devices(devices, slots)
        self._inputs = () if data is None else (data.dataset,)
        arguments = self._make_arguments([*env_params, *[env_params[-1]] * padding])
        self._compiled = (
            self._compile(arguments, varying_settings) if template is None else template._compiled
        )
        self.states: TrainState = self._compiled.init(*arguments)
        self._is_per_lane = is_per_lane(self.states)
        self._num_taken: list[int | None] = [*[0] * len(lanes), *[None] * padding]
        """Number of dispatches that each lane has consumed; None for inactive lanes."""
        self._reports: dict[int, tuple[int, TrainReport]] = {}
        """Batches and report of each dispatch that some lane has yet to consume, by number."""
        self._counts: dict[int, Array] = {}
        """Number of ended episodes in each shard of each lane before these dispatches."""
        self._num_dispatches = 0
        self.version = 0
        """Version of the states, incremented whenever one changes."""
        self.evaluations = (
            SharedEvaluations() if template is None else template.evaluations.copy_without_results()
        )

    @property
    def programs(self) -> list[Program]:
        """Compiled programs of the group."""
        return list(vars(self._compiled).values())

    def _make_arguments(self, env_params: Sequence[PyTree]) -> tuple[PyTree, ...]:
        """Return the arguments of `Lanes.init`, of all lanes."""
        numbers = [get_lane_numbers(lane.config) for lane in self.lanes]
        keys = jax.vmap(make_key)(np.stack([split_seed(lane.seed) for lane in self.lanes]))
        return keys, stack_trees(env_params), stack_trees(numbers), *self._inputs

    def _compile(self, arguments: tuple[Any, ...], own_numbers: Collection[str]) -> LanePrograms:
        lanes = Lanes.from_runner(self.assembly.compiled_runner, own_numbers)
        shapes = jax.eval_shape(lanes.init, *jax.tree.map(jax.typeof, arguments))
        jit = self.lanes[0].config.debugging_settings.compiles
        return make_lane_programs(lanes, shapes, self.devices, jit=jit)

    def get_pending_batches(self, slot: int) -> int | None:
        """Return the train batches of the next dispatch that a lane has to consume.

        Returns:
            The number of train batches; None if the lane has consumed all dispatches.
        """
        report = self._reports.get(self._num_taken[slot] or 0)
        return None if report is None else report[0]

    def get_episode_counts(self, slot: int) -> np.ndarray:
        """Return the episodes that ended in a lane's shards before the next dispatch to consume."""
        before = self._counts.get(self._num_taken[slot] or 0, self.states.ring.count)
        return np.asarray(before)[slot]

    def run_batches(self, slot: int, num_batches: int, on_phase: Callable[[str], None]) -> int:
        """Consume a lane's next dispatch, running it unless another lane has done so.

        Args:
            slot: Position of the lane in the group.
            num_batches: Number of train batches, if the dispatch has to be run.
            on_phase: Callback for the phases "compiling" and "training".

        Returns:
            The number of the dispatch.
        """
        number = self._num_taken[slot]
        assert number is not None
        if number == self._num_dispatches:
            self._dispatch(num_batches, on_phase)
        self._num_taken[slot] = number + 1
        return number

    def _dispatch(self, batches: int, on_phase: Callable[[str], None]) -> None:
        run, count = self._compiled.run, np.int32(batches)
        if not run.compile_stats:
            on_phase("compiling")
        compiled = run.get_executable(self.states, count, *self._inputs)
        on_phase("training")
        self._counts[self._num_dispatches] = jnp.copy(self.states.ring.count)
        self.states, summary = compiled(self.states, count, *self._inputs)
        self._reports[self._num_dispatches] = batches, TrainReport.fetch(self.states, [summary])
        self._num_dispatches += 1
        self.version += 1

    def fetch_report(self, slot: int, numbers: Sequence[int]) -> TrainReport:
        """Return a lane's report of dispatches that it consumed."""
        reports = [self._select_lane(self._reports[number][1], slot) for number in numbers]
        active = [taken for taken in self._num_taken if taken is not None]
        oldest = min(active, default=self._num_dispatches)
        for number in [n for n in self._reports if n < oldest]:
            del self._reports[number], self._counts[number]
        return TrainReport.merge(reports)

    def _select_lane(self, report: TrainReport, slot: int) -> TrainReport:
        """Return one lane's part of a report; shared counters have no axis of lanes."""

        def select(tree: PyTree) -> PyTree:
            return jax.tree.map(lambda x: x[slot], tree)

        row = report.latest
        updates = select(row.updates) if self._is_per_lane.progress.updates.low else row.updates
        latest = dataclasses.replace(
            select(dataclasses.replace(row, updates=(), buffer_position=())),
            updates=updates,
            buffer_position=row.buffer_position,
        )
        return dataclasses.replace(report, summaries=[latest.summary], latest=latest)

    def deactivate(self, slot: int) -> None:
        """Deactivate a lane: it consumes no more dispatches, but its state is still trained."""
        self._num_taken[slot] = None

    def get_state(self, slot: int, *, buffer: bool = True) -> TrainState:
        """Return a copy of a lane's state, with or without its buffer."""
        take = self._compiled.take if buffer else self._compiled.take_without_buffer
        return take(self.states, np.int32(slot))

    def set_state(self, slot: int, state: TrainState, *, counters: bool = False) -> None:
        """Replace the state of a lane; see `put_lane`."""
        put = self._compiled.put_with_counters if counters else self._compiled.put
        self.states = put(self.states, np.int32(slot), state)
        self.version += 1

    def copy_member(
        self, slot: int, source: TrainState, hparams: Mapping[str, float], salt: int
    ) -> None:
        """Replace a lane by a copy of another one's state and reactivate it; see `copy_member`."""
        values = self._to_leaves(self.lanes[slot].config, hparams)
        self.states = self._compiled.copy_member(
            self.states, np.int32(slot), source, values, np.uint32(salt)
        )
        self._num_taken[slot] = self._num_dispatches
        self.version += 1

    def _to_leaves(
        self, config: "AlgorithmConfig", hparams: Mapping[str, float]
    ) -> dict[str, HParams]:
        """Return numbers as leaves for each module without a value of its own."""
        states = self.states.modules or {"": self.states}
        leaves: dict[str, HParams] = {}
        for module, state in states.items():
            own = get_module_overrides(config.multi_agent_settings, module) if module else {}
            leaves[module] = {
                name: to_leaf(value, state.learner.hparams[name])
                for name, value in hparams.items()
                if name not in own
            }
        return leaves


class LaneLearner:
    """Learner group of a single lane, backed by the lane's group.

    Args:
        group: Group of the lane.
        slot: Position of the lane in the group.
    """

    is_remote = False

    def __init__(self, group: LaneGroup, slot: int) -> None:
        self._group, self._slot = group, slot
        self._generation = 0
        self.should_set_counters = False
        """Whether setting `state` also sets the counters that all lanes share."""

    @property
    def state(self) -> TrainState:
        return self._group.get_state(self._slot)

    @state.setter
    def state(self, state: TrainState) -> None:
        self._group.set_state(self._slot, state, counters=self.should_set_counters)
        self._generation += 1

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def fingerprint(self) -> str | None:
        """Digest of the recorded data that the lane learns from; None if it steps environments."""
        return None if self._group.data is None else self._group.data.fingerprint

    @property
    def programs(self) -> list[Program]:
        """Programs of the group, reported by its first lane only."""
        return self._group.programs if self._slot == 0 else []

    def get_pending_batches(self) -> int | None:
        """Return the train batches of the next dispatch to consume, or None; see `LaneGroup`."""
        return self._group.get_pending_batches(self._slot)

    def get_episode_counts(self) -> np.ndarray:
        """Return the episodes that ended in each shard; see `LaneGroup.get_episode_counts`."""
        return self._group.get_episode_counts(self._slot)

    def run_batches(
        self, num_batches: int, on_phase: Callable[[str], None], *, max_iterations: int = 1
    ) -> int:
        del max_iterations  # a scheduler may act after any iteration
        return self._group.run_batches(self._slot, num_batches, on_phase)

    def copy_member(self, source: TrainState, hparams: Mapping[str, float], salt: int) -> None:
        """Replace the lane by a copy of another one's state; see `LaneGroup.copy_member`."""
        self._group.copy_member(self._slot, source, hparams, salt)
        self._generation += 1

    @property
    def user_buffer(self) -> None:
        """None: a buffer of a user's own needs a learner of one run in this process."""

    @property
    def steps(self) -> NoReturn:
        """Raise ConfigError: a step of one lane alone cannot be dispatched."""
        raise ConfigError(
            "A training_step of one's own cannot be used where several lanes share a program; "
            "train the lanes with jaxrl.tune, each in a process."
        )

    def update(self, fragments: Sequence[Fragment], on_phase: Callable[[str], None]) -> NoReturn:
        """Raise NotImplementedError: in-graph environments produce no fragments."""
        raise NotImplementedError

    def wait(self, pending: int) -> None:
        """Do nothing: reports are fetched with the dispatch."""

    def fetch_report(self, pending: Sequence[int]) -> TrainReport:
        return self._group.fetch_report(self._slot, pending)

    def get_weights(self, version: int) -> Weights:
        state = self.state
        return Weights(
            version=version, actor=self._group.assembly.train_step.make_actor_state(state)
        )

    def foreach_learner(self, func: Callable[[Any], Any]) -> list[Any]:
        return [func(self)]

    def stop(self) -> None:
        """Do nothing: there are no resources to release."""


class LaneDispatches:
    """Strategy of a lane: consume dispatches that other lanes have run before running new ones.

    The lane's own values are reported under "config" in its results.

    Args:
        learner: Learner of the lane.
    """

    def __init__(self, learner: LaneLearner) -> None:
        self._learner = learner
        self.reported_values: dict[str, float] = {}
        """Numbers among the values of settings that differ between lanes."""

    def get_pending_batches(self) -> int | None:
        return self._learner.get_pending_batches()

    def get_episode_counts(self, learners: LearnerGroup) -> np.ndarray:
        """Return the counts of the lane; another lane may have run the next dispatch already."""
        del learners
        return self._learner.get_episode_counts()

    def count_sampled_steps(self, totals: IterationTotals, batch_steps: int) -> int:
        """Count all rows, transitions or not, so that all lanes have equally many batches."""
        return totals.train_batches * batch_steps

    def extend_result(self, result: dict[str, Any]) -> dict[str, Any]:
        return {**result, "config": dict(self.reported_values)} if self.reported_values else result
