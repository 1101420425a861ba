"""Where the states of lanes live: one dispatch moves all of them, and each lane takes its part."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl.assembly.assemble import Assembly
from jaxrl.config.sweep import Lane
from jaxrl.core.hparams import leaf_of, numbers_of
from jaxrl.core.seeds import seed_key, seed_words
from jaxrl.core.types import Device, PyTree
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.in_graph_loop import Dispatcher
from jaxrl.runtime.program import Program
from jaxrl.sweeps.lane_evaluation import SharedEvaluations
from jaxrl.sweeps.lanes import CompiledLanes, Lanes, compile_lanes, is_per_lane, stacked
from jaxrl.training.report import IterationTotals, Report
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.settings.run import Reporting


class LaneGroup:
    """Lanes of one compiled program.

    Args:
        lanes: Which can share a program.
        env_params: Of each one's environment.
        assembly: Of all of them; in-graph.
        devices: The local devices; as many are used as divide the lanes.
        own_numbers: The names of settings that each lane has its own numbers of.
        like: Another group with the same settings but for numbers, whose programs are used. It has
            at least as many lanes; this one is filled up with copies that nobody looks at.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        env_params: Sequence[PyTree],
        assembly: Assembly,
        devices: list[Device],
        own_numbers: Collection[str],
        like: "LaneGroup | None" = None,
    ) -> None:
        self.assembly = assembly
        size = len(lanes) if like is None else len(like.lanes)
        spare = size - len(lanes)
        self.lanes = [*lanes, *[lanes[-1]] * spare]
        shares = [n for n in range(1, len(devices) + 1) if size % n == 0]
        self.devices = devices[: shares[-1]]
        arguments = self._arguments([*env_params, *[env_params[-1]] * spare])
        self._compiled = self._compile(arguments, own_numbers) if like is None else like._compiled
        self.states: TrainState = self._compiled.init(*arguments)
        self._own = is_per_lane(self.states)
        self._taken: list[int | None] = [*[0] * len(lanes), *[None] * spare]
        """How many dispatches each lane has taken; None for one that takes no more."""
        self._reports: dict[int, tuple[int, Report]] = {}
        """The batches and the report, of all lanes, of dispatches that some lane has to take."""
        self._made = 0
        self.version = 0
        """Another whenever a state changes."""
        self.evaluations = SharedEvaluations() if like is None else like.evaluations.anew()

    @property
    def programs(self) -> list[Program]:
        """What is compiled."""
        return list(vars(self._compiled).values())

    def _arguments(self, env_params: Sequence[PyTree]) -> tuple[Any, PyTree, Mapping[str, PyTree]]:
        """Of `Lanes.init`: keys, the environments' parameters and the training settings' numbers."""
        numbers = [numbers_of(lane.config.training_settings) for lane in self.lanes]
        keys = jax.vmap(seed_key)(np.stack([seed_words(lane.seed) for lane in self.lanes]))
        return keys, stacked(env_params), stacked(numbers)

    def _compile(self, arguments: tuple[Any, ...], own_numbers: Collection[str]) -> CompiledLanes:
        pure = Lanes.of(self.assembly.in_graph_runner, own_numbers)
        shapes = jax.eval_shape(pure.init, *jax.tree.map(jax.typeof, arguments))
        jit = self.lanes[0].config.debugging_settings.jit
        return compile_lanes(pure, shapes, self.devices, jit=jit)

    def waiting(self, place: int) -> int | None:
        """The train batches of a dispatch that this lane has to take; None if there is none."""
        report = self._reports.get(self._taken[place] or 0)
        return None if report is None else report[0]

    def run(self, place: int, batches: int, on_phase: Callable[[str], None]) -> int:
        """The number of the lane's next dispatch, which is made unless another lane did."""
        number = self._taken[place]
        assert number is not None
        if number == self._made:
            self._dispatch(batches, on_phase)
        self._taken[place] = number + 1
        return number

    def _dispatch(self, batches: int, on_phase: Callable[[str], None]) -> None:
        run, count = self._compiled.run, np.int32(batches)
        if not run.figures:
            on_phase("compiling")
        compiled = run.compiled_for(self.states, count)
        on_phase("training")
        self.states, summary = compiled(self.states, count)
        self._reports[self._made] = batches, Report.fetch(self.states, [summary])
        self._made += 1
        self.version += 1

    def report(self, place: int, numbers: Sequence[int]) -> Report:
        """What a lane is to know of dispatches that it took."""
        reports = [self._part(self._reports[number][1], place) for number in numbers]
        oldest = min((taken for taken in self._taken if taken is not None), default=self._made)
        for number in [n for n in self._reports if n < oldest]:
            del self._reports[number]
        return Report.joined(reports)

    def _part(self, report: Report, place: int) -> Report:
        """One lane's part; counters that all lanes share have no axis of lanes."""

        def of_lane(tree: PyTree) -> PyTree:
            return jax.tree.map(lambda x: x[place], tree)

        row = report.latest
        updates = of_lane(row.updates) if self._own.progress.updates.low else row.updates
        latest = dataclasses.replace(
            of_lane(dataclasses.replace(row, updates=(), replayed=())),
            updates=updates,
            replayed=row.replayed,
        )
        return dataclasses.replace(report, summaries=[latest.summary], latest=latest)

    def leave(self, place: int) -> None:
        """A lane takes no more dispatches; its state goes on with the others, unread."""
        self._taken[place] = None

    def state(self, place: int, *, buffer: bool = True) -> TrainState:
        """One lane's state, with or without what it learns from again; a copy."""
        take = self._compiled.take if buffer else self._compiled.take_to_act
        return take(self.states, np.int32(place))

    def put(self, place: int, state: TrainState, *, counters: bool = False) -> None:
        """Another state in the place of one, see `with_lane`."""
        put = self._compiled.restore if counters else self._compiled.put
        self.states = put(self.states, np.int32(place), state)
        self.version += 1

    def adopt(
        self, place: int, source: TrainState, numbers: Mapping[str, float], salt: int
    ) -> None:
        """A lane goes on as a copy of another one's state, see `adopted`; also one that left."""
        own = self.states.learner.hparams
        values = {name: leaf_of(value, own[name]) for name, value in numbers.items()}
        self.states = self._compiled.adopt(
            self.states, np.int32(place), source, values, np.uint32(salt)
        )
        self._taken[place] = self._made
        self.version += 1


class LaneLearner:
    """One lane of a group, as the learners of a run: its state, its reports.

    Args:
        group: Where it lives.
        place: In the group.
    """

    is_remote = False

    def __init__(self, group: LaneGroup, place: int) -> None:
        self._group, self._place = group, place
        self._generation = 0
        self.takes_counters = False
        """Whether a state that is set also sets what all lanes share."""

    @property
    def state(self) -> TrainState:
        return self._group.state(self._place)

    @state.setter
    def state(self, state: TrainState) -> None:
        self._group.put(self._place, state, counters=self.takes_counters)
        self._generation += 1

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def programs(self) -> list[Program]:
        """The group's, told by its first lane."""
        return self._group.programs if self._place == 0 else []

    def waiting(self) -> int | None:
        """See `LaneGroup.waiting`."""
        return self._group.waiting(self._place)

    def run(self, batches: int, on_phase: Callable[[str], None], *, rows_at_most: int = 1) -> int:
        del rows_at_most  # what a scheduler decides may come after any iteration
        return self._group.run(self._place, batches, on_phase)

    def adopt(self, source: TrainState, numbers: Mapping[str, float], salt: int) -> None:
        """See `LaneGroup.adopt`."""
        self._group.adopt(self._place, source, numbers, salt)
        self._generation += 1

    def learn(self, fragments: Sequence[Fragment], on_phase: Callable[[str], None]) -> Any:
        """There are no fragments: environments are in the program."""
        raise NotImplementedError

    def wait(self, pending: int) -> None:
        """Reports are fetched with the dispatch."""

    def report(self, pending: Sequence[int]) -> Report:
        return self._group.report(self._place, pending)

    def weights(self, version: int) -> Weights:
        state = self.state
        return Weights(version=version, actor=self._group.assembly.runner.actor(state))

    def foreach_learner(self, fn: Callable[[Any], Any]) -> list[Any]:
        return [fn(self)]

    def stop(self) -> None:
        """There is nothing to let go."""


class LaneDispatcher(Dispatcher):
    """Dispatches of a lane: those that another lane has made before come first.

    Results have the values that are the lane's own, under "config".
    """

    values: Mapping[str, Any] = MappingProxyType({})

    def wanted(self, reporting: "Reporting", totals: IterationTotals, elapsed: float) -> int:
        learner: Any = self._learners
        waiting: int | None = learner.waiting()
        return super().wanted(reporting, totals, elapsed) if waiting is None else waiting

    def _steps_that_count(self, totals: IterationTotals) -> int:
        """All rows, transitions or not, so that iterations of all lanes have as many batches."""
        return totals.train_batches * self._batch_steps

    def added_to(self, result: dict[str, Any]) -> dict[str, Any]:
        return {**result, "config": dict(self.values)} if self.values else result
