"""Where the states of lanes live: one dispatch moves all of them, and each lane takes its part."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.config.sweep import Lane
from jaxrl.core.hparams import numbers_of
from jaxrl.core.types import Device, PyTree
from jaxrl.envs.registry import MadeEnv
from jaxrl.errors import ConfigError
from jaxrl.runners.assemble import Assembly, make_env
from jaxrl.runners.devices import memory_limit
from jaxrl.runners.dispatch import Dispatcher
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.lanes import Lanes, compile_lanes, is_per_lane, lane_of, with_lane
from jaxrl.runners.placement import required_bytes
from jaxrl.runners.program import Program
from jaxrl.runners.results import IterationTotals, Report
from jaxrl.runners.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.run_groups import Reporting


class LaneGroup:
    """Lanes of one compiled program.

    Args:
        lanes: Whose settings differ in numbers alone.
        assembly: Of the first of them; in-graph.
        devices: The local devices; as many are used as divide the lanes.
    """

    def __init__(self, lanes: Sequence[Lane], assembly: Assembly, devices: list[Device]) -> None:
        self.lanes, self.assembly = list(lanes), assembly
        shares = [n for n in range(1, len(devices) + 1) if len(lanes) % n == 0]
        self.devices = devices[: shares[-1]]
        self._check_memory()
        pure = Lanes(runner=assembly.in_graph_runner)
        arguments = self._arguments()
        shapes = jax.eval_shape(pure.init, *jax.tree.map(jax.typeof, arguments))
        jit = lanes[0].config.debugging_settings.jit
        self._compiled = compile_lanes(pure, shapes, self.devices, jit=jit)
        self.states: TrainState = self._compiled.init(*arguments)
        self._own = is_per_lane(self.states)
        self._taken: list[int | None] = [0] * len(lanes)
        """How many dispatches each lane has taken; None for one that takes no more."""
        self._reports: dict[int, tuple[int, Report]] = {}
        """The batches and the report, of all lanes, of dispatches that some lane has to take."""
        self._made = 0
        self.evaluations: dict[int | None, Program] = {}
        """The programs that evaluate a lane, by their numbers of episodes."""

    @property
    def programs(self) -> list[Program]:
        """What is compiled."""
        return [self._compiled.init, self._compiled.run]

    def _arguments(self) -> tuple[Any, PyTree, Mapping[str, PyTree]]:
        """Of `Lanes.init`: keys, the environments' parameters and the training settings' numbers."""
        configs = [lane.config for lane in self.lanes]
        params = [
            _env_params(self.assembly.made if i == 0 else make_env(c))
            for i, c in enumerate(configs)
        ]
        numbers = [numbers_of(config.training_settings) for config in configs]
        keys = jax.vmap(jax.random.key)(jnp.asarray([lane.seed for lane in self.lanes], jnp.uint32))
        return keys, _stacked(params), _stacked(numbers)

    def _check_memory(self) -> None:
        limit, number = memory_limit(self.devices[0]), len(self.lanes)
        shared = self.devices[0].platform == "cpu"
        needed = required_bytes(self.assembly)
        total = needed * number / (1 if shared else len(self.devices))
        if limit is not None and total > limit:
            fit = int(limit / needed) * (1 if shared else len(self.devices))
            raise ConfigError(
                f"{number} lanes need at least {total / 2**30:.1f} GiB, and the device has "
                f"{limit / 2**30:.1f} GiB: sweep at most {fit} lanes at once, or lower "
                "train_batch_size."
            )

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

        updates = of_lane(report.updates) if self._own.progress.updates.low else report.updates
        return dataclasses.replace(
            report,
            summaries=of_lane(report.summaries),
            ring=of_lane(report.ring),
            faults=of_lane(report.faults),
            in_a_row=report.in_a_row[place],
            num_rollbacks=report.num_rollbacks[place],
            num_nonfinite=report.num_nonfinite[place],
            updates=updates,
        )

    def leave(self, place: int) -> None:
        """A lane takes no more dispatches; its state goes on with the others, unread."""
        self._taken[place] = None

    def state(self, place: int) -> TrainState:
        """One lane's state; a copy."""
        return lane_of(self.states, place)

    def put(self, place: int, state: TrainState) -> None:
        """Another state in the place of one; counters that all lanes share stay as they are."""
        self.states = with_lane(self.states, place, state)


def _env_params(made: Any) -> PyTree:
    assert isinstance(made, MadeEnv)
    return made.params


def _stacked(trees: Sequence[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(x) for x in leaves]), *trees)


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

    @property
    def state(self) -> TrainState:
        return self._group.state(self._place)

    @state.setter
    def state(self, state: TrainState) -> None:
        self._group.put(self._place, state)
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

    def run(self, batches: int, on_phase: Callable[[str], None]) -> int:
        return self._group.run(self._place, batches, on_phase)

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
    """Dispatches of a lane: those that another lane has made before come first."""

    def wanted(self, reporting: "Reporting", totals: IterationTotals, elapsed: float) -> int:
        learner: Any = self._learners
        waiting: int | None = learner.waiting()
        return super().wanted(reporting, totals, elapsed) if waiting is None else waiting
