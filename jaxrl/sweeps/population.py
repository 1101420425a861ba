"""Population: a sweep whose lanes share compiled programs."""

import contextlib
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl.algorithm import Algorithm, Result
from jaxrl.compat.lookup import answer_arguments
from jaxrl.config.imports import Trust, TrustSpec
from jaxrl.config.pbt import check_mutable, make_scheduler
from jaxrl.config.serialize import decode_numbers, deserialize_config, encode_numbers
from jaxrl.config.stop import parse_fit_criteria, warn_of_missing
from jaxrl.config.sweep import Lane, get_mutations
from jaxrl.core.types import Device
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.registry import MadeEnv, MadeMultiEnv
from jaxrl.errors import DivergenceError, summarize_exception
from jaxrl.loggers import RunFolder
from jaxrl.loggers.recorder import SaveSchedule
from jaxrl.runs.checkpoint import get_path
from jaxrl.runs.exploits import Exploit, PBTScheduler, read_schedule
from jaxrl.runs.run_folder import is_run_folder
from jaxrl.runtime.lock import single_threaded, until_stopped
from jaxrl.runtime.process import prepare_process
from jaxrl.sweeps import state as sweep_state
from jaxrl.sweeps.base import SweepRuns, read_and_check_sweep
from jaxrl.sweeps.grouping import (
    CompatibleLanes,
    check_can_be_lanes,
    compute_lanes_per_turn,
    group_lanes,
    select_devices,
)
from jaxrl.sweeps.lane_group import LaneData, LaneGroup, LaneRun, read_lane_data
from jaxrl.sweeps.lanes import choose_lane_devices
from jaxrl.sweeps.pbt import check_population
from jaxrl.sweeps.points import SweepPoint, check_mode, group_points

if TYPE_CHECKING:
    from jaxrl.config.config import Config


class Population(SweepRuns):
    """All runs of a sweep, trained together; returned by `config.build()` if `sweep` is set.

    Lanes whose settings differ only in numbers are one compiled program with a leading axis of
    lanes. Lanes that differ otherwise (layer sizes, environments) are grouped, with one program
    per group. A lane's results, evaluation and checkpoints are those of a single run with its
    settings.
    """

    def __init__(self, config: "Config", *, run_folder: RunFolder | None = None) -> None:
        """Initialize the population; use `config.build()` or `from_checkpoint` instead.

        Args:
            config: Config of the sweep, which is frozen.
            run_folder: Folder of the sweep to resume; None creates one.
        """
        super().__init__(config, run_folder=run_folder)
        prepare_process(config)
        scheduler = make_scheduler(config.sweep_settings.scheduler)
        self._mutations = get_mutations(config)
        sharing = group_lanes(self.lanes)
        self._data = LaneData()
        self._scheduler: PBTScheduler | None = None
        if scheduler is not None:
            check_population(scheduler, config, [group.lanes for group in sharing])
            self._scheduler = PBTScheduler(
                scheduler, self._mutations, config.debugging_settings.run_seed
            )
        self._groups = [self._make_turns(group) for group in sharing]
        runs: dict[int, LaneRun] = {}
        for group, turns in zip(sharing, self._groups, strict=True):
            size = turns[0].num_lanes
            for number, lane in enumerate(group.lanes):
                turn, slot = divmod(number, size)
                made = group.envs[number].train_env
                runs[lane.index] = self._make_run(lane, turns[turn], slot, made)
        self._runs = [runs[lane.index] for lane in self.lanes]

    def _make_turns(self, group: CompatibleLanes) -> list[LaneGroup]:
        """Split the lanes of one program into as many turns as memory requires."""
        config = group.lanes[0].config
        varying = {*group.find_varying_settings(), *self._mutations}
        assembly = group.assemble(varying)
        check_can_be_lanes(config, assembly, varying)
        for part in assembly.parts.values() if self._mutations else ():
            check_mutable(self._mutations, part.state_shapes.learner)
        devices = select_devices(config.learners_settings)
        max_lanes = self.config.sweep_settings.max_lanes_per_program
        data = read_lane_data(config, assembly, devices[0])
        shared_bytes = 0 if data is None else data.num_bytes
        size = compute_lanes_per_turn(
            len(group.lanes),
            assembly.state_bytes,
            assembly.batch_bytes,
            devices,
            max_lanes,
            shared_bytes=shared_bytes,
        )
        if data is not None:
            data = self._data.place(data, choose_lane_devices(devices, size))
        turns: list[LaneGroup] = []
        for part in group.split(size):
            like = turns[0] if turns else None
            lanes, params = part.lanes, part.env_params
            turns.append(LaneGroup(lanes, params, assembly, devices, varying, data, template=like))
        return turns

    def _make_run(
        self, lane: Lane, group: LaneGroup, slot: int, made: MadeEnv | MadeMultiEnv | MadeHostEnv
    ) -> LaneRun:
        """Return the run of a lane, which logs to its own folder and not to the console."""
        sinks = [s for s in lane.config.debugging_settings.loggers if s != "console"]
        name = self.format_lane_name(lane.index)
        path = self.folder.path / name
        config = lane.config.debugging(
            results_dir=str(self.folder.path), run_name=name, loggers=sinks
        )
        values = {**lane.values, **{name: config[name] for name in self._mutations}}
        folder = RunFolder.open(path) if self._is_resumed and is_run_folder(path) else None
        return LaneRun(config, group, slot, made, values, folder)

    @property
    def devices(self) -> list[Device]:
        """Devices that share the lanes of the first program."""
        return list(self._groups[0][0].devices)

    @property
    def notes(self) -> list[str]:
        """Sentences to show before training: programs, turns and defaults that were adapted."""
        lanes, programs = len(self.lanes), len(self._groups)
        summary = f"{lanes} lanes in {_count_programs(programs)}"
        summary += f", {lanes / programs:g} in each on average." if programs > 1 else "."
        turns = [
            f"{turns[0].assembly.made.id}: {len(turns)} turns of {turns[0].num_lanes} lanes."
            for turns in self._groups
            if len(turns) > 1
        ]
        return [summary, *turns, *self._runs[0].algorithm.notes]

    @property
    def schedule(self) -> list[Exploit]:
        """Exploit steps so far, in order; empty without a scheduler.

        They are also written to `pbt.jsonl` in the sweep's folder.
        """
        return [] if self._scheduler is None else list(self._scheduler.schedule)

    # --- training ---

    @until_stopped
    @answer_arguments
    def train(self) -> Result:
        """Train every active lane for one iteration.

        The scheduler acts on the previous results before the iteration, so that afterwards the
        lanes are in the states that their results describe.

        Returns:
            `{"lanes": {index: result of Algorithm.train()}, "diverged": {index: reason}, ...}`,
            with the mean over lanes as `env_runners/episode_return_mean`. `config` in a lane's
            result has the lane's own numbers.

        Raises:
            DivergenceError: If all lanes have diverged.
        """
        self._exploit_if_due()
        self.iteration += 1
        for index in self.active_indices:
            self._runs[index].algorithm.begin_league_round()
        for index in self.active_indices:
            try:
                self._results[index] = self._runs[index].train()
            except DivergenceError as error:
                self.diverged[index] = str(error)
                self._runs[index].deactivate()
        if not self.active_indices:
            last = get_last_error(self.diverged)
            raise DivergenceError(f"All {self.num_lanes} lanes have diverged; the last: {last}")
        return self._combine_results()

    def _exploit_if_due(self) -> None:
        latest = {index: self._results[index] for index in self.active_indices if self._results}
        if self._scheduler is None or not latest:
            return
        values = [run.current_values for run in self._runs]
        exploits = self._scheduler.select_exploits(latest, values, self.diverged)
        for exploit in exploits:
            salt = (self.iteration * self.num_lanes + exploit.lane + 1) % 2**32
            self._runs[exploit.lane].exploit(self._runs[exploit.source], exploit.new, salt)
            self.diverged.pop(exploit.lane, None)
        if exploits:
            self._scheduler.write_schedule(self.folder.path)

    @until_stopped
    @answer_arguments
    def fit(
        self,
        stop: Mapping[str, Any] | None = None,
        *,
        on_iteration: Callable[[Result], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Result:
        """Train until every active lane has reached a criterion, saving checkpoints as configured.

        Args:
            stop: Thresholds of result keys, as for `Algorithm.fit`; stored in the folder.
            on_iteration: Callback for each result of `train`.
            should_stop: Callback that ends the sweep if it returns True; called between iterations.

        Returns:
            The latest result of `train`.
        """
        criteria = parse_fit_criteria(
            stop, should_stop, on_iteration, is_offline=self.config.is_offline
        )
        if stop is not None:
            for folder in (self.folder, *(run.algorithm.run_folder for run in self._runs)):
                folder.save_stop_criterion(criteria)
        settings = self.config.checkpointing_settings
        stop_requested = should_stop or (lambda: False)
        result: Result = self._combine_results() if any(self._results.values()) else {}
        times, is_first = SaveSchedule(settings), True
        with self._save_on_error():
            while not stop_requested() and not (result and self.has_reached(criteria)):
                result = self.train()
                if is_first:
                    warn_of_missing(next(iter(result["lanes"].values())), criteria)
                    is_first = False
                if on_iteration is not None:
                    on_iteration(result)
                self._save_if_due(times)
        if settings.checkpoint_at_end and result:
            self.save()
        return result

    def _save_if_due(self, times: SaveSchedule) -> None:
        if times.is_due(self.iteration):
            with times.time_save():
                self.save()

    @contextlib.contextmanager
    def _save_on_error(self) -> Generator[None]:
        """Save all lanes at the same iteration if the block raises; add a note to the error.

        See `Algorithm.save_on_error`.
        """
        try:
            yield
        except BaseException as error:
            completed = [self._runs[i].last_iteration for i in self.active_indices]
            if min(completed, default=0) and self.config.checkpointing_settings.checkpoint_at_end:
                error.add_note(self._save_at(min(completed)))
            raise

    def _save_at(self, iteration: int) -> str:
        """Save the lanes' current states as those of an iteration that all have completed.

        Returns:
            A sentence with the path, or with the reason why saving failed.
        """
        self.iteration = iteration
        try:
            for index in self.active_indices:
                self._runs[index].rewind_to(iteration)
            return f"The sweep is saved in {self.save()}."
        except Exception as problem:  # noqa: BLE001  (must not replace the original error)
            return f"The sweep could not be saved after it ({summarize_exception(problem)})."

    # --- results ---

    def points(self, metric: str | None = None, mode: str = "max") -> list[SweepPoint]:
        """Return the sweep's points, best first, scored by their lanes' latest results.

        Diverged lanes have no score. With a scheduler, each lane is a point with its current
        values.

        Args:
            metric: Path of the score in a lane's result; None for `default_metric`.
            mode: "max" or "min", whether a high or a low score is better.

        Raises:
            ConfigError: If `mode` is neither "max" nor "min", or the score is not a number.
        """
        check_mode(mode)
        if self._scheduler is None:
            return super().points(metric, mode)
        metric = self.default_metric if metric is None else metric
        results = {index: self._results[index] for index in self.active_indices if self._results}
        lanes = [(index, run.current_values) for index, run in enumerate(self._runs)]
        return group_points(lanes, results, metric, mode)

    @single_threaded
    def lane(self, index: int) -> Algorithm:
        """Return a copy of a lane in its current state as an independent Algorithm.

        Raises:
            UnknownNameError: If there is no such lane.
        """
        self._check_index(index)
        run = self._runs[index]
        config = run.algorithm.config.copy(copy_frozen=False)
        alone = (config.algo_class or Algorithm)(config)
        alone.set_state(run.algorithm.get_state())
        return alone

    @single_threaded
    def export(
        self,
        index: int,
        folder: str | os.PathLike[str],
        formats: Sequence[str] = ("numpy",),
        explore: Sequence[bool] = (False, True),
    ) -> str:
        """Export the current policy of a lane; see `Algorithm.export`.

        Raises:
            UnknownNameError: If there is no such lane.
            ExportError: If the policy cannot be exported.
        """
        self._check_index(index)
        return self._runs[index].algorithm.export(folder, formats, explore)

    @single_threaded
    def evaluate(self, *, num_episodes: int | None = None) -> Result:
        """Evaluate every active lane, all lanes of a program at once.

        Args:
            num_episodes: Number of episodes per lane, instead of `evaluation_duration`.

        Returns:
            A result like that of `train`, with the result of `Algorithm.evaluate` for each lane.
        """
        results = {
            i: self._runs[i].algorithm.evaluate(num_episodes=num_episodes)
            for i in self.active_indices
        }
        return self._combine_results(results)

    # --- checkpoints ---

    @until_stopped
    def save(self) -> str:
        """Write a checkpoint of every active lane and return the path of the sweep's folder."""
        for index in self.active_indices:
            self._runs[index].algorithm.save()
        scheduler = self._scheduler
        values = [encode_numbers(run.current_values) for run in self._runs]
        state = {
            "training_iteration": self.iteration,
            "diverged": {str(index): why for index, why in self.diverged.items()},
            "swept": sorted({*self.lanes[0].values, *self._mutations}),
            "values": None if scheduler is None else values,
            "last_time": 0.0 if scheduler is None else scheduler.last_time,
        }
        sweep_state.write_sweep(self.folder.path, self.config, state)
        for index in self.active_indices:
            self._runs[index].keep_checkpoint()
        return str(self.folder.path)

    @classmethod
    def from_checkpoint(
        cls,
        path: str | os.PathLike[str],
        *,
        run_folder: RunFolder | None = None,
        trust: TrustSpec = None,
        **overrides: object,
    ) -> "Population":
        """Return the sweep saved in a folder, every lane at the iteration of the last `save`.

        Args:
            path: Folder of the sweep.
            run_folder: Folder of the sweep to resume in place; None creates a new one.
            trust: Trust in a sweep that another user wrote, see `Algorithm.from_checkpoint`.
            **overrides: Settings that replace the saved ones, see `Algorithm.from_checkpoint`.
                Settings that differ between lanes cannot be replaced.

        Raises:
            CheckpointError: If the sweep is damaged, or a setting that was not saved is missing.
        """
        folder = get_path(path).resolve()
        saved = read_and_check_sweep(folder, overrides)
        trusted = Trust.from_argument(trust, is_own=sweep_state.is_own(saved), source=folder)
        config = deserialize_config(saved["config"], overrides, trust=trusted)
        sweep = cls(config, run_folder=run_folder)
        sweep._resume_from(folder, saved, overrides)
        return sweep

    def _resume_from(
        self, folder: Path, saved: Mapping[str, Any], overrides: Mapping[str, Any]
    ) -> None:
        self.iteration = saved["training_iteration"]
        self.diverged = {int(index): why for index, why in saved["diverged"].items()}
        # Diverged lanes come first: shared counters must end up with the values of active lanes.
        for index in [*self.diverged, *self.active_indices]:
            run, has_diverged = self._runs[index], index in self.diverged
            lane = folder / self.format_lane_name(index)
            checkpoint = sweep_state.find_checkpoint_at(
                lane, None if has_diverged else self.iteration
            )
            values = saved["values"] and decode_numbers(saved["values"][index])
            run.resume_from(checkpoint, values, overrides)
            self._results[index] = run.algorithm.last_result
            if has_diverged:
                run.deactivate()
        if self._is_resumed:
            active = [folder / self.format_lane_name(index) for index in self.active_indices]
            sweep_state.set_aside_later(active, self.iteration)
        if self._scheduler is not None:
            schedule = read_schedule(folder, before=self.iteration)
            self._scheduler.restore(schedule, saved["last_time"])
            self._scheduler.write_schedule(self.folder.path)

    def explain(self) -> str:
        """Describe the lanes and the programs that they share."""
        lines = [f"{self.num_lanes} lanes in {_count_programs(len(self._groups))}:"]
        lines += [f"  {lane}" for lane in self.lanes]
        return "\n".join([*lines, self._runs[0].algorithm.explain()])

    def stop(self) -> None:
        """Stop all lanes, finish pending writes and release the folder; idempotent."""
        for run in self._runs:
            run.algorithm.stop()
        super().stop()


def get_last_error(diverged: Mapping[int, str]) -> str:
    """Return the reason why the last lane diverged."""
    return list(diverged.values())[-1]


def _count_programs(number: int) -> str:
    return f"{number} program{'s' * (number > 1)}"
