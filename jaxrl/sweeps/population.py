"""A sweep over seeds and settings: many runs, as few compiled programs as there are structures."""

import contextlib
import os
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl.algorithm import Algorithm, Result
from jaxrl.config.deserialize import config_from_serializable
from jaxrl.config.imports import Trust, TrustSpec
from jaxrl.config.pbt import mutations_of, scheduler_of
from jaxrl.config.stop import criteria_of_fit
from jaxrl.config.sweep import Lane
from jaxrl.core.types import Device
from jaxrl.errors import DivergenceError, in_one_line
from jaxrl.loggers import RunFolder
from jaxrl.loggers.recorder import SaveTimes
from jaxrl.runs.run_folder import is_run_folder
from jaxrl.runtime.exclusive import one_thread, until_stopped
from jaxrl.runtime.process import prepare_process
from jaxrl.sweeps import state as sweep_state
from jaxrl.sweeps.base import RETURN, SweepRuns, read_saved
from jaxrl.sweeps.grouping import Sharing, devices_of, grouped, lanes_at_once, on_the_host
from jaxrl.sweeps.lane_group import LaneGroup
from jaxrl.sweeps.lane_run import LaneRun
from jaxrl.sweeps.pbt import Exploit, Scheduler, check_population, read_schedule, refuse_fixed_of
from jaxrl.sweeps.points import Point, points_of

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


class Population(SweepRuns):
    """All runs of a sweep, trained together; `config.build()` makes one of a config with `sweep`.

    Lanes whose settings differ in numbers alone are one compiled program with a leading axis; other
    differences (layer sizes, environments) make groups of lanes, a program each. A lane's results,
    evaluation and checkpoints are those of a run by itself with its settings.
    """

    def __init__(self, config: "AlgorithmConfig", *, run_folder: RunFolder | None = None) -> None:
        """Use `config.build()`, or `from_checkpoint`.

        Args:
            config: Gets frozen.
            run_folder: The sweep to go on with; None makes a folder.
        """
        super().__init__(config, run_folder=run_folder)
        prepare_process(config)
        scheduler, self._mutations = scheduler_of(config), mutations_of(config)
        members = grouped(self.lanes)
        self._scheduler: Scheduler | None = None
        if scheduler is not None:
            check_population(scheduler, config, [group.lanes for group in members])
            self._scheduler = Scheduler(scheduler, self._mutations, config.debugging_settings.seed)
        self._groups = [self._turns(group) for group in members]
        runs: dict[int, LaneRun] = {}
        for group, turns in zip(members, self._groups, strict=True):
            size = len(turns[0].lanes)
            for number, lane in enumerate(group.lanes):
                turn, place = divmod(number, size)
                runs[lane.index] = self._run_of(lane, turns[turn], place)
        self._runs = [runs[lane.index] for lane in self.lanes]

    def _turns(self, group: Sharing) -> list[LaneGroup]:
        """The lanes of one program, in as many turns as memory asks for."""
        config = group.lanes[0].config
        own = {*group.numbers(), *self._mutations}
        assembly = group.assemble(own)
        if not assembly.in_graph:
            raise on_the_host(assembly.made)
        refuse_fixed_of(self._mutations, assembly)
        devices, most = devices_of(config), self.config.sweep_settings.max_lanes_per_program
        size = lanes_at_once(len(group.lanes), assembly, devices, most)
        turns: list[LaneGroup] = []
        for part in group.parts(size):
            like = turns[0] if turns else None
            turns.append(LaneGroup(part.lanes, part.env_params, assembly, devices, own, like=like))
        return turns

    def _run_of(self, lane: Lane, group: LaneGroup, place: int) -> LaneRun:
        """A lane writes into a folder of its own in the sweep's, and not to the console."""
        sinks = [s for s in lane.config.debugging_settings.loggers if s != "console"]
        name = self.lane_name(lane.index)
        own = self.folder.path / name
        config = lane.config.debugging(
            results_dir=str(self.folder.path), run_name=name, loggers=sinks
        )
        values = {**lane.values, **{name: config[name] for name in self._mutations}}
        opened = RunFolder.open(own) if self._goes_on and is_run_folder(own) else None
        return LaneRun(config, group, place, values, opened)

    @property
    def devices(self) -> list[Device]:
        """The devices that share the lanes of the first program."""
        return list(self._groups[0][0].devices)

    @property
    def notes(self) -> list[str]:
        """What to know before training."""
        shared = len(self.lanes) / len(self._groups)
        said = f"{len(self.lanes)} lanes in {len(self._groups)} programs, {shared:g} in each on average."
        turns = [
            f"{turns[0].assembly.made.id}: {len(turns)} turns of {len(turns[0].lanes)} lanes."
            for turns in self._groups
            if len(turns) > 1
        ]
        return [said, *turns, *self._runs[0].notes]

    @property
    def schedule(self) -> list[Exploit]:
        """Which lanes went on as copies of which, and with what values; empty without a scheduler.

        The folder has it as `pbt.jsonl`.
        """
        return [] if self._scheduler is None else list(self._scheduler.schedule)

    # --- training ---

    @until_stopped
    def train(self) -> Result:
        """One iteration of every lane that has not diverged.

        A scheduler looks at the results before it: so after it lanes are what their results say.

        Returns:
            `{"lanes": {index: a result as Algorithm.train() gives it}, "diverged": {index: why},
            ...}`, with the mean over lanes as `env_runners/episode_return_mean`. A lane's `config`
            has the numbers that are its own.

        Raises:
            DivergenceError: No lane is left.
        """
        self._exploit_if_due()
        self.iteration += 1
        for index in self.active:
            try:
                self._results[index] = self._runs[index].train()
            except DivergenceError as error:
                self.diverged[index] = str(error)
                self._runs[index].leave()
        if not self.active:
            raise DivergenceError(
                f"All {self.num_lanes} lanes have diverged; the last: {error_of(self.diverged)}"
            )
        return self._result()

    def _exploit_if_due(self) -> None:
        latest = {index: self._results[index] for index in self.active if self._results}
        if self._scheduler is None or not latest:
            return
        values = [run.own_values for run in self._runs]
        done = self._scheduler.decide(latest, values, self.diverged)
        for exploit in done:
            salt = (self.iteration * self.num_lanes + exploit.lane + 1) % 2**32
            self._runs[exploit.lane].adopt(self._runs[exploit.source], exploit.new, salt)
            self.diverged.pop(exploit.lane, None)
        if done:
            self._scheduler.write(self.folder.path)

    @until_stopped
    def fit(
        self,
        stop: Mapping[str, Any] | None = None,
        *,
        on_iteration: Callable[[Result], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Result:
        """Train until every lane has reached a criterion, with the lanes' checkpoints.

        Args:
            stop: Thresholds of result keys, as for `Algorithm.fit`; the folder keeps them.
            on_iteration: Called with each result of `train`.
            should_stop: Looked at between iterations; True ends the sweep in order.
        """
        criteria = criteria_of_fit(stop, should_stop)
        if stop is not None:
            for folder in (self.folder, *(run.run_folder for run in self._runs)):
                folder.save_stop_criterion(criteria)
        settings = self.config.checkpointing_settings
        asked = should_stop or (lambda: False)
        result: Result = self._result() if any(self._results.values()) else {}
        times = SaveTimes(settings)
        with self._saved_whatever_ends_it():
            while not asked() and not (result and self.has_reached(criteria)):
                result = self.train()
                if on_iteration is not None:
                    on_iteration(result)
                self._save_if_due(times)
        if settings.checkpoint_at_end and result:
            self.save()
        return result

    def _save_if_due(self, times: SaveTimes) -> None:
        if times.is_due(self.iteration):
            with times.saving():
                self.save()

    @contextlib.contextmanager
    def _saved_whatever_ends_it(self) -> Generator[None]:
        """As `Algorithm.saved_whatever_ends_it`, with all lanes at the same iteration."""
        try:
            yield
        except BaseException as error:
            done = [self._runs[i].last_iteration for i in self.active]
            if min(done, default=0) and self.config.checkpointing_settings.checkpoint_at_end:
                error.add_note(self._saved_at(min(done)))
            raise

    def _saved_at(self, iteration: int) -> str:
        """Save every lane as it is, as of an iteration of which all have a result; says where."""
        self.iteration = iteration
        try:
            for index in self.active:
                self._runs[index].go_back_to(iteration)
            return f"The sweep is saved in {self.save()}."
        except Exception as problem:  # noqa: BLE001  (the error itself is what has to be told)
            return f"The sweep could not be saved after it ({in_one_line(problem)})."

    # --- results ---

    def points(self, metric: str = RETURN) -> list[Point]:
        """The points of the sweep, best first: what the latest results of their lanes say.

        Lanes that have diverged count for no score. With a scheduler each lane is a point, with the
        values that it has now.
        """
        if self._scheduler is None:
            return super().points(metric)
        results = {index: self._results[index] for index in self.active if self._results}
        own = [(index, run.own_values) for index, run in enumerate(self._runs)]
        return points_of(own, results, metric)

    @one_thread
    def lane(self, index: int) -> Algorithm:
        """A lane as an ordinary Algorithm, in the state that it has now; it trains by itself.

        Raises:
            UnknownNameError: There is no such lane.
        """
        self._check_index(index)
        run = self._runs[index]
        config = run.config.copy(copy_frozen=False)
        alone = (config.algo_class or Algorithm)(config)
        alone.set_state(run.get_state())
        return alone

    @one_thread
    def evaluate(self, *, num_episodes: int | None = None) -> Result:
        """`Algorithm.evaluate` of every lane that has not diverged, in one program.

        Args:
            num_episodes: Of each lane, instead of `evaluation_duration`.

        Returns:
            As `train`, with what `Algorithm.evaluate` gives in the place of each lane's result.
        """
        found = {i: self._runs[i].evaluate(num_episodes=num_episodes) for i in self.active}
        return self._result(found)

    # --- checkpoints ---

    @until_stopped
    def save(self) -> str:
        """A checkpoint of every lane that has not diverged in its folder; the sweep's folder."""
        for index in self.active:
            self._runs[index].save()
        scheduler = self._scheduler
        state = {
            "training_iteration": self.iteration,
            "diverged": {str(index): why for index, why in self.diverged.items()},
            "swept": sorted({*self.lanes[0].values, *self._mutations}),
            "values": None if scheduler is None else [run.own_values for run in self._runs],
            "last_time": 0.0 if scheduler is None else scheduler.last_time,
        }
        sweep_state.write_sweep(self.folder.path, self.config, state)
        for index in self.active:
            self._runs[index].keep_checkpoint()
        return str(self.folder.path)

    @classmethod
    def from_checkpoint(
        cls,
        path: str | os.PathLike[str],
        *,
        run_folder: RunFolder | None = None,
        trust: TrustSpec = None,
        **overrides: Any,
    ) -> "Population":
        """The sweep that was saved in a folder, every lane at the iteration of the last `save`.

        Args:
            path: The folder of the sweep.
            run_folder: The sweep to go on with; None starts a folder of its own.
            trust: Of a sweep that this user did not write, see `Algorithm.from_checkpoint`.
            **overrides: Settings to take instead of the saved ones, see
                `Algorithm.from_checkpoint`; not those that differ between lanes.

        Raises:
            CheckpointError: It is damaged, or something must be supplied.
        """
        folder = Path(path).expanduser().resolve()
        saved = read_saved(folder, overrides)
        trusted = Trust.of(trust, own=sweep_state.is_own(saved), source=folder)
        config = config_from_serializable(saved["config"], overrides, trust=trusted)
        sweep = cls(config, run_folder=run_folder)
        sweep._go_on_from(folder, saved, overrides)
        return sweep

    def _go_on_from(
        self, folder: Path, saved: Mapping[str, Any], overrides: Mapping[str, Any]
    ) -> None:
        self.iteration = saved["training_iteration"]
        self.diverged = {int(index): why for index, why in saved["diverged"].items()}
        # Those left behind first: what all lanes share is as the others have it.
        for index in [*self.diverged, *self.active]:
            run, left = self._runs[index], index in self.diverged
            lane = folder / self.lane_name(index)
            found = sweep_state.checkpoint_at(lane, None if left else self.iteration)
            run.go_on_from(found, saved["values"] and saved["values"][index], overrides)
            self._results[index] = run.last_result
            if left:
                run.leave()
            elif self._goes_on:
                sweep_state.remove_later(lane, self.iteration)
        if self._scheduler is not None:
            schedule = read_schedule(folder, before=self.iteration)
            self._scheduler.go_on(schedule, saved["last_time"])
            self._scheduler.write(self.folder.path)

    def explain(self) -> str:
        """The lanes, and the programs that they share."""
        lines = [f"{self.num_lanes} lanes in {len(self._groups)} programs:"]
        lines += [f"  {lane}" for lane in self.lanes]
        return "\n".join([*lines, self._runs[0].explain()])

    def stop(self) -> None:
        """Finish what is being written; may be called twice."""
        for run in self._runs:
            run.stop()
        super().stop()


def error_of(diverged: Mapping[int, str]) -> str:
    """Why the last lane was left behind."""
    return list(diverged.values())[-1]
