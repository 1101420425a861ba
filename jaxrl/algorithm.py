"""`Algorithm`: the stateful facade over the pure functions of a run."""

import contextlib
import importlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import jax
import numpy as np

from jaxrl.assembly.assemble import Assembly, assemble_run
from jaxrl.assembly.device_trial import DeviceTrials, open_device_trials
from jaxrl.assembly.env import change_env_params
from jaxrl.assembly.offline import check_statistics_may_change
from jaxrl.assembly.opponents import describe_opponents
from jaxrl.assembly.search import add_planner, get_policy_step
from jaxrl.callbacks import CallbackList
from jaxrl.compat.lookup import RLlibNames, answer_arguments, is_defined_by_user, load
from jaxrl.config.agent_mapping import Mapped, follow
from jaxrl.config.imports import TrustSpec
from jaxrl.config.multi_agent import find_searchers
from jaxrl.config.placement import describe_idle_settings, resolve_placement
from jaxrl.config.serialize import get_config_class_path
from jaxrl.config.stop import (
    StopCriteria,
    count_iterations_left,
    count_until_multiple,
    find_reached_criterion,
    parse_fit_criteria,
    warn_of_missing,
)
from jaxrl.core.keys import PurposeKeys
from jaxrl.core.struct import replace
from jaxrl.core.types import Device, Key, PyTree
from jaxrl.envs.multi.made import MadeMultiEnv
from jaxrl.envs.registry import MadeEnv
from jaxrl.errors import (
    CheckpointError,
    ConfigError,
    DivergenceError,
    EnvError,
    UnknownNameError,
    did_you_mean,
    mark_has_checkpoint_path,
)
from jaxrl.estimation.held_out import open_estimated, open_held_out, resolve_explore
from jaxrl.evaluation.evaluation import Evaluation, run_custom_evaluation
from jaxrl.evaluation.host import EvaluationRunners
from jaxrl.loggers import RunFolder
from jaxrl.loggers.plots import preload_matplotlib
from jaxrl.loggers.python_log import get_system_usage, set_log_level
from jaxrl.loggers.recorder import Recorder, RunRecord, SaveSchedule, note_close_failure
from jaxrl.metrics import DEFAULT_MODULE, HELD_OUT_PARTS, TIMERS
from jaxrl.policy.actions import ActionOptions, make_actions
from jaxrl.policy.host_modules import HostModules, ModulesChange
from jaxrl.policy.inference import Inference, check_names, read_input_dict
from jaxrl.policy.league import RunLeague
from jaxrl.policy.policy import Policy
from jaxrl.policy.recording import DEFAULT_NUM_ENVS, DEFAULT_NUM_STEPS, record_run
from jaxrl.policy.views import LocalRunnerView, attach_policies, attach_writer, make_writer
from jaxrl.run_parts import OwnActingState, SharedParts
from jaxrl.runners.compiled_runner import CompiledRunnerGroup
from jaxrl.runners.counts import DATA, check_data
from jaxrl.runners.data_flow import DispatchedDataFlow, check_updates_alone, raise_without_progress
from jaxrl.runners.factories import make_learner_group, make_loop
from jaxrl.runners.hooks import AlgorithmHooks
from jaxrl.runners.in_graph_group import InGraphLearnerGroup
from jaxrl.runners.in_graph_loop import OwnDispatches
from jaxrl.runners.learner_group import LearnerGroup
from jaxrl.runners.learner_steps import StepBatch
from jaxrl.runners.num_envs_tuning import resolve_num_envs
from jaxrl.runners.placement import check_memory, choose_devices, resolve_microbatch_size
from jaxrl.runners.protocols import EnvRunnerGroup, LearnerMetrics
from jaxrl.runs import checkpoint as ckpt
from jaxrl.runs import host_state as host
from jaxrl.runs.host_state import SavedRun
from jaxrl.runs.league_table import LeagueTable, PayoffTable
from jaxrl.runs.opponents import NewMapping
from jaxrl.runs.results import RunResult, to_plain
from jaxrl.runs.weights import (
    check_fits,
    get_weights,
    list_modules,
    refresh_snapshot,
    restore_modules,
    set_first_versions,
    set_weights,
)
from jaxrl.runtime.lock import ExclusiveLock, single_threaded, until_stopped
from jaxrl.runtime.process import prepare_process
from jaxrl.runtime.program import Program, make_compile_report, total_compile_seconds
from jaxrl.training.data_flow import DataFlow
from jaxrl.training.evaluate import EvaluationInputs
from jaxrl.training.in_graph import CompiledRun
from jaxrl.training.nonfinite import NonfiniteMonitor
from jaxrl.training.report import (
    IterationTotals,
    check_declarations,
    merge_results,
    to_host,
)
from jaxrl.training.sharding import RunnerPrograms
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig
    from jaxrl.config.config import Config
    from jaxrl.estimation.estimate import EstimateReport
    from jaxrl.modules.rl_module import RLModule, RLModuleSpec
    from jaxrl.offline.recorded import RecordedData, Source
    from jaxrl.runners.env_runner import EnvRunner

TRAINABLE_METHODS = ("setup", "log_result", "save_checkpoint", "load_checkpoint", "cleanup")
"""Methods of Ray Tune's Trainable that an Algorithm calls, so that a subclass may override them."""

_RLLIB_EXPORT_FORMATS = ("checkpoint", "model")

_EVALUATION_SALT = 0x6576616C
"""Constant folded into the seed's key for evaluation draws."""

Result = dict[str, Any]


class Algorithm(RLlibNames):
    """A training run that is built from a config and can be trained, evaluated, saved and restored.

    Subclasses may override `training_step`, or `compiled_training_step` with a function of a
    `DataFlow` that is part of the compiled program; pass them as `PPOConfig(algo_class=...)`. Of
    the methods of RLlib's Trainable, `setup`, `log_result`, `save_checkpoint`, `load_checkpoint`
    and `cleanup` may be overridden as well.

    Attributes:
        config: Frozen config of the run.
        metrics: Logger of values that are added to the next result, as RLlib's.
        on_phase: Function called with "compiling", "training", "evaluating" or "saving" at the
            start of each phase.
        league: Opponents that are drawn in the compiled program, and the league they are in.
        trial_id: Id of the trial of Ray Tune, "default" outside of it.
    """

    trial_id: str = "default"
    _rllib_kind = "algorithm"

    if TYPE_CHECKING:

        @staticmethod
        def compiled_training_step(flow: DataFlow, /) -> None: ...

    else:
        compiled_training_step = None

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Refuse methods that RLlib calls, and that have no effect here.

        Raises:
            ConfigError: If there is one; the message says what to write instead.
        """
        super().__init_subclass__(**kwargs)
        if is_defined_by_user(cls):
            load("rllib.attributes").refuse_uncalled_methods(cls)

    def __init__(
        self,
        config: "Config",
        *,
        run_folder: RunFolder | None = None,
        read_only: bool = False,
        _parts: SharedParts | None = None,
    ) -> None:
        """Initialize the run; call `config.build()` or `from_checkpoint` instead.

        Args:
            config: Config of the run; it is frozen here.
            run_folder: Folder of the run to continue; None creates one on the first write.
            read_only: Whether to skip the check that a run folder can be created, and the
                start of runners, which only training needs.
            _parts: Parts that lanes of a sweep share; None makes the run's own.
        """
        if type(self) is not Algorithm and config.algo_class is None:
            config = config.copy(copy_frozen=False)
            config.algo_class = type(self)
        config.prepare()
        self._use, self._is_in_checkpoint = ExclusiveLock("Algorithm"), False
        self._keeps_modules = False
        self.on_phase: Callable[[str], None] = lambda phase: None
        set_log_level(config.debugging_settings.log_level)
        self._notes = prepare_process(config)
        if not read_only:
            Recorder(config, run_folder).check_writable()
        config, measured = resolve_num_envs(config)
        self._parts = _parts
        trials = open_device_trials(config) if _parts is None else DeviceTrials(None)
        config = resolve_microbatch_size(config, trials)
        config.freeze()
        self.config = cast("AlgorithmConfig", config)
        self._record = RunRecord(config, run_folder)
        self._recorder, self.metrics = self._record.recorder, self._record.metrics
        self._callbacks = CallbackList(config.callbacks_settings)
        self._assembly, self._devices, self._placement_reason = (
            self._assemble(trials, should_train=not read_only)
            if _parts is None
            else (_parts.assembly, _parts.devices, _parts.placement_reason)
        )
        self._notes += [*measured, *trials.notes, *self._assembly.describe_buffers()]
        self._notes += describe_opponents(self._assembly.pool)
        if self._assembly.is_in_graph and not config.evaluation_settings.evaluation_num_env_runners:
            self._callbacks.check_no_host_hooks(has_several_agents=config.is_multi_agent)
        made = self._assembly.made
        placement = resolve_placement(config, made.id, is_jax_env=made.is_jax)
        idle = describe_idle_settings(config, placement)
        self._assembly.log(config.algo_name, idle, [self._placement_reason, *self._notes])
        self._nonfinite = NonfiniteMonitor(config.fault_tolerance_settings)
        self._should_stop: Callable[[], bool] = lambda: False
        self._start()
        try:
            self._connect()
            if _parts is not None:
                _parts.attach(self._record, self._loop, self._load)
            if not read_only:
                self._loop.prepare()
                if config.evaluation_settings.evaluation_interval:
                    self._evaluation.start()
            self.setup(self.config)
            self._call("on_algorithm_init")
        except BaseException as error:
            with note_close_failure(error):
                self._loop.stop()  # a folder that is recorded to is free again
            raise

    def _assemble(
        self, trials: DeviceTrials, *, should_train: bool
    ) -> tuple[Assembly, list[Device], str]:
        """Return the functions of the run, its devices and the reason for choosing them."""
        config = self.config
        assembly = assemble_run(config, should_train=should_train)
        devices, why = choose_devices(
            config.learners_settings,
            assembly.plan,
            config.preferred_devices,
            is_in_graph=assembly.is_in_graph,
            compiles=config.debugging_settings.compiles,
            trials=trials,
        )
        check_memory(assembly, devices)
        return assembly, devices, why

    def _start(self) -> None:
        config, assembly, devices = self.config, self._assembly, self._devices
        parts, callbacks = self._parts, self._callbacks
        self._keys = PurposeKeys(config.debugging_settings.run_seed)
        self._searching: dict[str, Evaluation] = {}
        hooks = AlgorithmHooks(callbacks, self)
        if parts is None:
            self._evaluation = Evaluation(config, assembly, hooks)
            self._held_out = open_held_out(config, assembly, devices, {})
            self._learners = make_learner_group(config, assembly, devices)
            dispatches = OwnDispatches()
        else:
            make = partial(parts.make_evaluation, self._get_evaluation_key)
            self._evaluation = Evaluation(config, assembly, hooks, make)
            self._held_out = open_held_out(config, assembly, devices, parts.objects)
            self._learners, dispatches = parts.learners, parts.dispatches
        self._loop = make_loop(config, assembly, self._learners, callbacks, self, dispatches)
        self._batches_to_run = 1
        self._count_fit_iterations_left: Callable[[], int] = lambda: sys.maxsize

    def _connect(self) -> None:
        """Make what follows from the learners, the first ones or those of changed modules."""
        config, assembly = self.config, self._assembly
        attach_writer(self, self._learners)
        if self._assembly.is_in_graph:
            attach_policies(self, self._loop.runners)
        self._evaluation.log_to(self._record.evaluation_metrics)
        self._totals = self._make_totals()
        self._flow = DispatchedDataFlow(config, assembly.train_step, self._learners, self._loop)
        if self._parts is None:
            actor = assembly.make_actor_program(config.debugging_settings.compiles)
            self._acting = OwnActingState(self._learners, actor, len(self._devices))
        else:
            self._acting = self._parts.acting
        self._actions = make_actions(
            config.debugging_settings, assembly, self._acting, self._keys, self._record, self._use
        )
        self._connect_league()

    def _connect_league(self) -> None:
        self.league = RunLeague(
            self.config, self._assembly, self._learners, self._loop, self._record
        )

    def _make_totals(self) -> IterationTotals:
        assembly = self._assembly
        source, patterns, buffers = assembly.row_source, assembly.patterns, assembly.module_buffers
        return IterationTotals(self._loop.fetch_report, source, patterns, buffers)

    @property
    def state(self) -> TrainState:
        """Full TrainState of the run, to be replaced and never mutated.

        With host runners it excludes the environment states, which `get_state` includes.
        """
        return self._learners.state

    @state.setter
    def state(self, state: TrainState) -> None:
        self._learners.state = state

    @property
    def learner_group(self) -> LearnerGroup:
        """Learners that own the TrainState."""
        return self._learners

    @property
    def env_runner_group(self) -> EnvRunnerGroup | CompiledRunnerGroup:
        """Runners of environments on the host, or what there is to read of compiled ones.

        Runners on the host have the weights that they are going to act with.
        """
        runners = self._loop.runners
        attach_policies(self, runners)
        self._loop.broadcast_if_due()
        return runners

    @property
    def iteration(self) -> int:
        """Number of completed `train` calls, including those before a restore."""
        return self._record.iteration

    @property
    def last_result(self) -> Result:
        """Latest result; after a restore, the numeric values of the restored run's last result."""
        return self._record.last_result

    @property
    def runner(self) -> CompiledRun:
        """Pure functions of the run, `init` and `step`, ready to be jitted, vmapped or scanned.

        Raises:
            ConfigError: If the environments are not part of the compiled program.
        """
        if not self._assembly.is_in_graph:
            raise ConfigError(
                f"{self._assembly.made.id} is stepped by runners on the host, so the run is not a "
                "pure function; env_runner_group and learner_group hold its two halves."
            )
        return self._assembly.run

    @property
    def programs(self) -> RunnerPrograms:
        """Compiled programs of `runner`."""
        assert isinstance(self._learners, InGraphLearnerGroup)
        return self._learners.runner_programs

    @property
    def _programs(self) -> list[Program]:
        """All compiled programs of the run."""
        held_out = [] if self._held_out is None else self._held_out.programs
        searches = (own for found in self._searching.values() for own in found.programs)
        others = (*self._evaluation.programs, *searches, *held_out, *self._actions.programs)
        return [*self._learners.programs, *self._loop.programs, *others, *self._acting.programs]

    @property
    def env_params(self) -> PyTree:
        """Current environment parameters as NumPy arrays, in the form `runner.init` accepts."""
        self._assembly.require_jax_env("env_params")
        return to_host(self.state.env_params)

    @single_threaded
    def set_env_params(self, params: PyTree = None, /, **fields: object) -> None:
        """Replace the environment parameters, e.g. for a curriculum.

        Nothing is recompiled. The new values apply from the next step on, also to evaluation unless
        `evaluation_config` sets its own environment, and are stored in checkpoints.

        Args:
            params: Full set of parameters with the structure of `env_params`; None for the current
                ones.
            **fields: Individual parameters by name.

        Raises:
            UnknownNameError: If a parameter does not exist.
            EnvError: If the structure, a shape or a type differs, a space would change, or the policy
                searches in the environment.
        """
        made, state = self._assembly.require_jax_env("set_env_params()"), self.state
        searchers = find_searchers(self.config.multi_agent_settings.policies)
        if made.model is not None and (searchers or self.config.get_planner() is not None):
            who = f"{next(iter(searchers))!r}" if searchers else "the policy"
            raise EnvError(
                f"set_env_params() changes {made.id}, and {who} searches in the environment that the "
                "run began with: begin another one with the parameters as env_config."
            )
        changed = change_env_params(made, state.env_params, params, fields)
        self.state = replace(state, env_params=changed)

    @property
    def devices(self) -> list[Device]:
        """Devices that the run uses."""
        return list(self._devices)

    @property
    def notes(self) -> list[str]:
        """Messages to show before training: the chosen environment and the adapted defaults."""
        return [*self._assembly.made.notes, *self._assembly.plan.notes]

    def explain(self) -> str:
        """Return the config's `explain()`, extended by facts that are known only after building."""
        made = self._assembly.made
        return self.config.explain(
            platform=self._devices[0].platform,
            devices=(len(self._devices), self._placement_reason),
            placement=resolve_placement(self.config, made.id, is_jax_env=made.is_jax),
            env_notes=made.notes,
            notes=[*self._notes, *self._loop.notes],
            module_table="\n".join(self.get_module(m).summary() for m in list_modules(self.state)),
        )

    # --- training ---

    @until_stopped
    @answer_arguments
    def train(self) -> Result:
        """Run one iteration: as many train batches as `reporting` requires, at least one.

        Returns:
            Result with RLlib's keys; it is also written to the run folder.

        Raises:
            DivergenceError: If training diverged and `on_nonfinite="raise"`; a checkpoint is saved
                first.
            RetraceError: If a program would be compiled more often than `max_retraces` allows.
            EnvError: If steps showed that the environment declares something wrong of its agents.
        """
        started = time.perf_counter()
        self._follow_changes()
        self.league.begin_round()
        self._recorder.begin(self._devices)
        if self.config.evaluation_settings.evaluation_parallel_to_training:
            self._begin_evaluation_if_due()
        compiled_before = total_compile_seconds(self._programs)
        reporting = self.config.reporting_settings
        self._totals = totals = self._make_totals()
        self._loop.set_lookahead(self._count_iterations_to_state_read())
        self._keeps_modules = True
        try:
            returned = self._run_steps(totals, started)
        finally:
            self._keeps_modules = False
        self._record.iteration += 1
        check_declarations(totals.fetch_report(), self._assembly.made.id)
        trained = totals.make_result(reporting.metrics_num_episodes_for_smoothing)
        self._nonfinite.warn_once(totals)
        timers = {"training_step_s": totals.wait_seconds}
        own = {**merge_results(returned, trained), TIMERS: timers}
        result = RunResult(self._loop.extend_result(own))
        self._evaluate_if_due(result)
        self._record.extend_result(result)
        result[TIMERS]["compile_s"] = total_compile_seconds(self._programs) - compiled_before
        elapsed = time.perf_counter() - started + totals.ahead_seconds
        result |= self._record.host.get_auto_filled_metrics(elapsed)
        result.unwritten = self._record.make_unwritten(self.config, self.trial_id)
        result["compile"] = make_compile_report(self._programs)
        if self.config.debugging_settings.log_sys_usage:
            result["system"] = get_system_usage(self._devices)
        self.league.advance(result)
        self._record.begin_result(result, self._loop.choose_task)
        self._call("on_train_result", result=result)
        self.log_result(result)
        self._record.add_result(result)
        return result

    def _run_steps(self, totals: IterationTotals, started: float) -> dict[str, Any]:
        """Run training steps until the iteration that started at this time is complete.

        Returns:
            The dictionary that the last one returned, empty for metrics of the learners.
        """
        reporting = self.config.reporting_settings
        returned: dict[str, Any] = {}
        self._flow.set_counting(True)
        while not (totals.train_batches and self._should_stop()):
            elapsed = time.perf_counter() - started
            self._batches_to_run = self._loop.next_num_batches(reporting, totals, elapsed)
            if self._batches_to_run == 0:
                break
            num_before = totals.train_batches
            values: object = self.training_step()
            returned = dict(values) if isinstance(values, dict) else returned
            has_own_steps = self._flow.add_to(totals, 1)
            self._raise_if_diverged(totals)
            if not has_own_steps and totals.train_batches == num_before:
                raise_without_progress(type(self))
            if self._flow.only_updated and not totals.env_steps:
                check_updates_alone(type(self), reporting)
                break
        self._flow.set_counting(False)
        return returned

    @until_stopped
    def training_step(self) -> Mapping[str, float]:
        """Run one dispatch of the compiled program: roll out, compute targets, update.

        This is the method to override: call `super().training_step()` and add code before or after
        it, or replace it by calls of `sample`, `add_to_buffer`, `update` and `sync_weights`. Change
        `self.state` only by replacing it, and keep no reference to a state from before the call,
        because its memory is donated to the next one (`get_state` copies).

        Returns:
            Learner metrics of the dispatch, averaged over its train batches and fetched on access.
            The keys of a dictionary that a method of one's own returns are in the result.
        """
        with self._record.save_on_runner_failure(self._save_or_explain):
            if (step := self._assembly.compiled_step) and not self._assembly.is_in_graph:
                return self._flow.run(step)
            self._flow.add_to(self._totals, num_train_batches=0)
            dispatched = self._loop.run_batches(self._batches_to_run, self.on_phase)
        self._totals.add(dispatched)
        return LearnerMetrics(self._loop, dispatched)

    @until_stopped
    def sample(self) -> Any:
        """Sample one train batch, with the weights of the latest `sync_weights`.

        For a `training_step` of one's own. Whatever is sampled counts towards the iteration.

        Returns:
            Batch to pass to `update` or `add_to_buffer`, any number of times. If the learners are
            in this process, it is a `RolloutBatch` of arrays that may be replaced by others of the
            same shapes.
        """
        with self._record.save_on_runner_failure(self._save_or_explain):
            return self._flow.sample()

    @until_stopped
    def add_to_buffer(self, batch: "StepBatch") -> None:
        """Add a sampled batch to the replay buffer, or to the buffer of train batches.

        Raises:
            ConfigError: If the algorithm has no buffer.
        """
        self._flow.add_to_buffer(batch)

    @until_stopped
    def update(
        self, batch: "StepBatch | None" = None, *, num_updates: int | None = None
    ) -> Mapping[str, float]:
        """Update the learner, from a sampled batch or from its buffer.

        Args:
            batch: Sampled batch; None if the algorithm draws from a buffer.
            num_updates: Number of gradient steps on rows of a replay buffer; None for the number
                per train batch that `training_intensity` gives.

        Returns:
            Metrics of the updates, fetched on access.

        Raises:
            ConfigError: If the algorithm has no use for the arguments, or needs others.
        """
        return self._flow.update(batch, num_updates=num_updates)

    @until_stopped
    def sync_weights(self) -> None:
        """Act with the learner's newest weights from the next `sample` on."""
        self._flow.sync_weights()

    def _raise_if_diverged(self, totals: IterationTotals) -> None:
        problem = self._nonfinite.describe_divergence(totals)
        if problem is not None:
            # Reset the count so that a run restored from this checkpoint can continue.
            guard = replace(self.state.guard, in_a_row=self.state.guard.in_a_row * 0)
            self.state = replace(self.state, guard=guard)
            self._record.iteration += 1
            saved = f"the last finite parameters are saved in {self.save()}."
            raise mark_has_checkpoint_path(DivergenceError(f"{problem}; {saved}"))

    def _begin_evaluation_if_due(self) -> None:
        """Start an evaluation in parallel to this iteration, with the weights from before it."""
        if self.config.evaluation_settings.is_due(self.iteration + 1):
            self._call("on_evaluate_start")
            self._evaluation.start_parallel(self._make_evaluation_inputs())

    def _count_iterations_to_state_read(self) -> int:
        """Return the number of iterations, including this one, until the state is read."""
        settings = self.config.evaluation_settings
        # A parallel evaluation starts with the weights from before its iteration.
        since = self.iteration + int(settings.evaluation_parallel_to_training)
        if self.config.multi_agent_settings.league is not None:
            return 1
        return min(
            count_until_multiple(since, settings.evaluation_interval or 0),
            count_until_multiple(self.iteration, settings.offline_evaluation_interval or 0),
            self._count_fit_iterations_left(),
        )

    def _evaluate_if_due(self, result: dict[str, Any]) -> None:
        """Run the evaluations that are due, and attach the latest ones to a result."""
        settings, timers = self.config.evaluation_settings, result[TIMERS]
        latest, fresh = self._record.host.last_evaluation, dict[str, Any]()
        kept = {name: latest[name] for name in HELD_OUT_PARTS if name in latest}
        if settings.is_due(self.iteration):
            begin = time.perf_counter()
            fresh = to_plain(
                self._finish_evaluation()
                if self._evaluation.is_parallel_running
                else self.evaluate()
            )
            latest = {**kept, **fresh}
            timers["evaluation_s"] = time.perf_counter() - begin
        if settings.is_offline_evaluation_due(self.iteration):
            begin = time.perf_counter()
            found = to_plain(self.evaluate_held_out())
            latest, fresh = {**latest, **found}, {**fresh, **found}
            timers["offline_evaluation_s"] = time.perf_counter() - begin
        self._record.host.last_evaluation = latest
        attached = latest if settings.always_attach_evaluation_results else fresh
        if attached:
            result["evaluation"] = attached

    def _finish_evaluation(self) -> Result:
        self.on_phase("evaluating")
        result = self._evaluation.finish_parallel(self._get_video_folder(None))
        self._call("on_evaluate_end", evaluation_metrics=result)
        return result

    @until_stopped
    @answer_arguments
    def fit(
        self,
        stop: Mapping[str, Any] | None = None,
        *,
        on_iteration: Callable[[Result], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Result:
        """Train until a stop criterion is reached, saving checkpoints as configured.

        Args:
            stop: Thresholds of result keys, e.g. `{"env_runners/episode_return_mean": 450}`. The
                first one reached ends the run, including one that a restored run had reached
                already. Without thresholds, `should_stop` must end the run. They are stored in the
                run folder for `resume`.
            on_iteration: Function called with each result.
            should_stop: Function polled between dispatches; True ends the run cleanly.

        Returns:
            Last result. A plot of the learning curve is written to the run folder.
        """
        criteria = parse_fit_criteria(
            stop, should_stop, on_iteration, is_offline=self.config.is_offline
        )
        settings = self.config.checkpointing_settings
        if settings.checkpoint_at_end or settings.checkpoint_frequency:
            get_config_class_path(self.config)
        if stop is not None:
            self.run_folder.save_stop_criterion(criteria)
        self._should_stop = should_stop or (lambda: False)
        self._count_fit_iterations_left = lambda: min(
            count_iterations_left(self._record.last_result, criteria),
            count_until_multiple(self.iteration, settings.checkpoint_frequency),
        )
        try:
            with self.save_on_error():
                result = self._fit(criteria, on_iteration or (lambda result: None))
        finally:
            self._should_stop = lambda: False
            self._count_fit_iterations_left = lambda: sys.maxsize
            self._recorder.flush()
        if settings.checkpoint_at_end and result:
            self._save_in_run(wait=True)
        self._recorder.draw_learning_curve()
        return result

    def _fit(self, criteria: StopCriteria, on_iteration: Callable[[Result], None]) -> Result:
        """Run iterations and save checkpoints in between."""
        result, times = self._record.last_result, SaveSchedule(self.config.checkpointing_settings)
        deferred = [
            preload_matplotlib,
            lambda: warn_of_missing(self._record.last_result, criteria),
            *self._evaluation.get_deferred_tasks(self._make_evaluation_inputs),
        ]
        while (
            not (criteria and find_reached_criterion(result, criteria)) and not self._should_stop()
        ):
            result = self.train()
            while deferred:
                deferred.pop()()
            on_iteration(result)
            if times.is_due(self.iteration):
                with times.time_save():
                    self._save_in_run(wait=False)
        return result

    @contextlib.contextmanager
    def save_on_error(self) -> Generator[None]:
        """Save the run if the block raises, including KeyboardInterrupt and SystemExit.

        The exception propagates with a note giving the checkpoint's path, or the reason why the run
        could not be saved.
        """
        try:
            yield
        except BaseException as error:
            has_trained = self._totals.train_batches > 0
            self._record.save_after_error(error, self._save_or_explain, has_trained=has_trained)
            raise

    def _save_or_explain(self) -> str:
        return self._recorder.try_save(lambda: self._save_in_run(wait=True))

    @until_stopped
    def compile(self) -> dict[str, dict[str, Any]]:
        """Compile the programs of training and evaluation, and return their costs.

        Nothing is trained if the environments are part of the compiled program and the learner runs
        in this process. Otherwise the programs depend on sampled data, so one iteration is trained;
        it counts towards the run.

        Returns:
            Value of a result's "compile" key: seconds, operations and bytes by program.
        """
        if isinstance(self._learners, InGraphLearnerGroup):
            self.on_phase("compiling")
            self._learners.compile()
        else:
            self.train()
        if self.config.evaluation_settings.custom_evaluation_function is None:
            self._evaluation.compile(self._make_evaluation_inputs())
        return make_compile_report(self._programs)

    # --- evaluation and actions ---

    @single_threaded
    @answer_arguments
    def evaluate(
        self,
        *,
        num_episodes: int | None = None,
        duration_fn: Callable[[int], int] | None = None,
        video_folder: str | os.PathLike[str] | None = None,
        opponents: Sequence[str | os.PathLike[str]] | None = None,
        seats: str | Sequence[str] = "both",
        module_id: str | None = None,
        planner: Mapping[str, Any] | None = None,
    ) -> Result:
        """Play episodes with the current policy, without affecting training.

        Connector statistics are used but not updated, the random keys of training are not touched,
        and equal weights give equal results.

        Args:
            num_episodes: Number of episodes; None for `evaluation_duration`.
            duration_fn: RLlib's function from the number of episodes that were played to the number
                left to play, called once with 0, in the place of `num_episodes`.
            video_folder: Folder for videos if `record_video` is set; None for `videos` in the run
                folder.
            opponents: Ids of modules, or paths of checkpoints, that a module of two agents plays
                `num_episodes` episodes against in each seat; None for the run's mapping.
            seats: Agents that it plays against them, "both" in turn.
            module_id: The module; None for the only one that is trained.
            planner: Search by which the policies that are trained act, in an environment in JAX, such
                as `{"num_simulations": 64}`, with `"search"` as in AlphaZero if it is another one than
                in training; 0 simulations act by the network alone. None acts as in training.

        Returns:
            `{"env_runners": {"episode_return_mean": ..., ...}}`, with the paths of `videos` if any
            were recorded, or the return value of `custom_evaluation_function`; with opponents
            `{"opponents": {opponent: {seat: {"wins": ..., "draws": ..., "losses": ..., ...}}}}`.

        Raises:
            ConfigError: If `custom_evaluation_function` did not return a dictionary, or if
                `num_episodes` is combined with it.
        """
        if duration_fn is not None:
            num_episodes = duration_fn(0)
        custom = self.config.evaluation_settings.custom_evaluation_function
        if custom is not None and num_episodes is not None:
            raise ConfigError(
                f"num_episodes={num_episodes} has no effect on a custom_evaluation_function, which "
                "chooses its own episodes: leave num_episodes out."
            )
        if custom is not None and planner is not None:
            raise ConfigError(
                f"planner={planner!r} has no effect on a custom_evaluation_function, which acts itself: "
                "call get_policy(planner=...) in it, and leave planner out here."
            )
        self._recorder.flush()
        self.on_phase("evaluating")
        evaluation = self._get_evaluation(planner)
        if opponents is not None or seats != "both" or module_id is not None:
            return self.league.evaluate(
                evaluation,
                self._make_evaluation_inputs,
                opponents,
                seats,
                module_id,
                num_episodes,
            )
        self._call("on_evaluate_start")
        folder = self._get_video_folder(video_folder)
        if custom is not None:
            played = run_custom_evaluation(custom, self, self.eval_env_runner_group)
            result = self._evaluation.add_videos(played, self._make_evaluation_inputs(), folder)
        else:
            result = evaluation.run(self._make_evaluation_inputs(), num_episodes, folder)
        self._call("on_evaluate_end", evaluation_metrics=result)
        return result

    def _check_model_is_current(self) -> None:
        """Check that a search would imagine the environment as it is now.

        Raises:
            EnvError: If its parameters have changed since the run began.
        """
        made = self._assembly.made
        if not isinstance(made, MadeEnv | MadeMultiEnv):
            return
        now, first = map(jax.tree.leaves, (self.state.env_params, made.params))
        if not all(map(np.array_equal, now, first)):
            raise EnvError(
                f"A planner searches in {made.id} as the run began with it, and its parameters have "
                "changed: leave planner out, or begin another run with them as env_config."
            )

    def _get_evaluation(self, planner: Mapping[str, Any] | None) -> Evaluation:
        """Return the evaluation by a search, made on first use; that of the run without one."""
        if planner is None:
            return self._evaluation
        self._check_model_is_current()
        name = repr(planner)
        if name not in self._searching:
            made = Evaluation(self.config, self._assembly, planner=planner)
            self._searching[name] = made
        return self._searching[name]

    def evaluate_offline(
        self,
        input_: "Source | None" = None,
        methods: Sequence[str] | None = None,
        *,
        gamma: float | None = None,
        explore: bool | None = None,
        confidence: float = 0.95,
        fqe: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> "EstimateReport":
        """Estimate the value of the current policy from recorded data, without an environment.

        Args:
            input_: Recorded data: a folder, file or pattern, or a list of these; None for the episodes
                that the run holds out (`offline_evaluation_interval`), or else for those that it learns
                from, which flatter it.
            methods: "is", "pdis", "wis", "wpdis", "dm" (or "fqe", the same) and "dr"; None for "wis"
                and "dr" if the data and the policy have probabilities of actions, else for "dm"; for
                "wis" alone if actions are neither Discrete nor a Box.
            gamma: Discount factor; None for the config's.
            explore: Whether the policy samples its actions; None for the config's `explore`, if it
                samples with known probabilities.
            confidence: Probability that the intervals contain the value.
            fqe: Settings of fitted Q evaluation: `num_updates`, `batch_size`, `lr`, `tau`.
            seed: Seed of resampling, sampled actions and fits.

        Raises:
            ConfigError: If a setting or method is invalid, or there are no data.
            DataError: If the data are damaged, of other spaces, or lack what a method needs.
        """
        from jaxrl.estimation.estimate import estimate  # imports SciPy's statistics
        from jaxrl.estimation.target import Target

        config, policy = self.config, self.get_policy()
        step, inference = policy.inference.policy_step, policy.inference
        spaces = inference.observation_space, inference.action_space
        return estimate(
            Target(
                policy_step=step,
                actor=policy.actor,
                explore=resolve_explore(config.env_runners_settings.explore, step.module, explore),
            ),
            open_estimated(config, input_, self._held_out, spaces),
            gamma=config.training_settings.gamma if gamma is None else gamma,
            methods=methods,
            confidence=confidence,
            fqe=fqe,
            seed=seed,
            ignore_final_observation=config.offline_data_settings.ignore_final_observation,
        )

    @single_threaded
    def evaluate_held_out(self) -> dict[str, Any]:
        """Evaluate the current policy on the held-out episodes, as every offline_evaluation_interval.

        Returns:
            What a result has under "evaluation": `{"offline_eval_runners": {...}}` with the losses or
            the estimate of `offline_evaluation_type`, and the estimates of
            `off_policy_estimation_methods` under "off_policy_estimator".

        Raises:
            ConfigError: If no episodes are held out.
            DataError: If the run was restored without its data.
        """
        if self._held_out is None:
            raise ConfigError(
                "evaluate_held_out() has no held-out episodes: set offline_evaluation_interval, or call "
                "evaluate_offline('path/to/data')."
            )
        self.on_phase("evaluating")
        self._call("on_evaluate_offline_start")
        result = self._held_out.evaluate(
            self.state,
            lambda: self.get_policy().actor,
            gamma=self.config.training_settings.gamma,
            seed=self.config.debugging_settings.run_seed,
        )
        self._call("on_evaluate_offline_end", evaluation_metrics=result)
        return result

    @property
    def eval_env_runner_group(self) -> EvaluationRunners | None:
        """Runners for evaluation, with the current weights; None if evaluation is compiled."""
        return self._evaluation.get_runners(self._make_evaluation_inputs())

    def _get_video_folder(self, chosen: str | os.PathLike[str] | None) -> Path | None:
        """Return the folder for videos; None without recording, to avoid creating a run folder."""
        if not self.config.evaluation_settings.record_video:
            return None
        return self.run_folder.videos if chosen is None else Path(chosen)

    def _make_evaluation_inputs(self) -> EvaluationInputs:
        actor, env_params = self._acting.fetch()
        return EvaluationInputs(
            actor=actor,
            env_params=env_params,
            key=self._get_evaluation_key(self.iteration),
            iteration=self.iteration,
            task=self._loop.task,
        )

    def _get_evaluation_key(self, iteration: int) -> Key:
        return jax.random.fold_in(self._keys.get(_EVALUATION_SALT), iteration)

    def get_policy(
        self,
        policy_id: str = DEFAULT_MODULE,
        *,
        explore: bool | None = None,
        seed: int = 0,
        planner: Mapping[str, Any] | None = None,
    ) -> Policy | Any:
        """Return the current policy as an object that keeps the state of an episode.

        It has a copy of the parameters, so later training does not change it. As in RLlib, there is
        no policy, None, where no module has the id.

        Args:
            policy_id: Id of the module, in a run of several agents.
            explore: Whether to sample actions; False takes the mode, None uses the config's
                `explore`.
            seed: Seed of the sampled actions.
            planner: Search by which the policy acts, as in `evaluate`. Its observations have the
                environment's state as the part `"state"`.

        Raises:
            ConfigError: If the seed is invalid, or no id is given in a run of several agents.
        """
        try:
            policy = self._actions.get_policy(policy_id, self._resolve_explore(explore), seed)
        except UnknownNameError:
            return None
        if planner is None:
            return policy
        self._check_model_is_current()
        step = get_policy_step(add_planner(self._assembly, planner), policy_id)
        debugging = self.config.debugging_settings
        return policy.with_inference(
            Inference(step, max_retraces=debugging.max_retraces, jit=debugging.compiles)
        )

    def compute_single_action(
        self,
        observation: object = None,
        state: PyTree = None,
        *,
        explore: bool | None = None,
        full_fetch: bool = False,
        policy_id: str = DEFAULT_MODULE,
        unsquash_action: bool | None = None,
        clip_action: bool | None = None,
        prev_action: object = None,
        prev_reward: float | None = None,
        input_dict: Mapping[str, Any] | None = None,
        **ignored: object,
    ) -> PyTree:
        """Compute the action for one observation, including all connectors.

        Args:
            observation: Observation as returned by the environment, NumPy.
            state: State that `full_fetch` returned for the previous observation, if the module or
                a connector (stacked frames, previous rewards) is stateful; None at an episode's
                start.
            explore: Whether to sample the action; False takes the mode, None uses the config's
                `explore`.
            full_fetch: Whether to also return the new state and the module's outputs.
            policy_id: Id of the module, in a run of several agents.
            unsquash_action: Whether to unsquash a Box action; False leaves it in the module's
                range, None is as configured.
            clip_action: Whether to clip a Box action that is not unsquashed; None is as configured.
            prev_action: Action that the environment executed, if it is not the one computed with
                `state`; for connectors that read it, and ignored by others.
            prev_reward: Reward of the previous step, likewise.
            input_dict: Dictionary with the observation as "obs" and, by RLlib's names of columns,
                `state`, `prev_action` and `prev_reward`, for those that are not given.
            **ignored: RLlib's other inputs (`info`, `episode`, `timestep`), which nothing reads.

        Returns:
            The environment action; `(action, state_out, outputs)` with `full_fetch` or a `state`.

        Raises:
            SpaceError: If the observation is not in the observation space.
            ConfigError: If there is no observation, or a state that a connector needs is missing.
        """
        check_names("compute_single_action", ignored)
        given = {"state": state, "prev_action": prev_action, "prev_reward": prev_reward}
        obs, past = read_input_dict("compute_single_action", observation, given, input_dict)
        explore = self._resolve_explore(explore)
        options = ActionOptions(explore, full_fetch, unsquash_action, clip_action)
        return self._actions.compute_one(obs, past.pop("state"), past, policy_id, options)

    def compute_actions(
        self,
        observations: Sequence[Any] | Mapping[Any, Any],
        state: PyTree = None,
        *,
        explore: bool | None = None,
        full_fetch: bool = False,
        policy_id: str = DEFAULT_MODULE,
        unsquash_action: bool | None = None,
        clip_action: bool | None = None,
        prev_action: object = None,
        prev_reward: object = None,
        **ignored: object,
    ) -> PyTree:
        """Compute actions for several observations: a dictionary for a dictionary, else a batch.

        `state`, `prev_action`, `prev_reward` and the values that `full_fetch` returns are also by
        name, or have a leading batch axis. The other arguments are those of
        `compute_single_action`.
        """
        check_names("compute_actions", ignored)
        past = {"prev_action": prev_action, "prev_reward": prev_reward}
        explore = self._resolve_explore(explore)
        options = ActionOptions(explore, full_fetch, unsquash_action, clip_action)
        return self._actions.compute_several(observations, state, past, policy_id, options)

    def _resolve_explore(self, explore: bool | None) -> bool:
        return self.config.env_runners_settings.explore if explore is None else explore

    # --- opponents and modules ---

    @property
    def env_runner(self) -> "EnvRunner | LocalRunnerView":
        """Runner of this process; with several agents in Python, its modules have the weights."""
        if self.league.is_on_host:
            return LocalRunnerView(self)
        return self._loop.runners.local_env_runner  # pyright: ignore

    @property
    def opponents(self) -> list[str]:
        """Ids of the opponents that are drawn, in the order of their slots."""
        return self.league.opponents

    @single_threaded
    def snapshot(self, module_id: str, *, as_: str) -> None:
        """Add a copy of a module as an opponent, with its connectors' statistics.

        It is drawn from the next episodes on, where the mapping has a Draw without ids, and never
        changes.

        Args:
            module_id: Module that is trained.
            as_: Id of the opponent.

        Raises:
            UnknownNameError: If there is no such module.
            ConfigError: If the id is taken, there is no room, or the module could not play where
                opponents are drawn.
        """
        self.league.snapshot(module_id, as_=as_)

    @single_threaded
    def add_module(
        self,
        module_id: str,
        module_spec: "RLModuleSpec | None" = None,
        *,
        state: PyTree = None,
        new_agent_to_module_mapping_fn: NewMapping | Mapped | None = None,
        new_should_module_be_updated: Collection[str] | Callable[..., Any] | None = None,
        **others: object,
    ) -> None:
        """Add a module, with RLlib's arguments.

        With environments in Python, it is a module like the others, whose programs are compiled again.
        In the compiled program, it is an opponent that is drawn.

        Args:
            module_id: Its id.
            module_spec: Its module; None is that of the first module that is trained. That of an
                opponent that is drawn is of an architecture that is there.
            state: Its parameters, in the form of one entry of `get_weights`; None draws new ones.
            new_agent_to_module_mapping_fn: Mapping from the next episodes on, a function or, of
                opponents that are drawn, a value; see `set_mapping`.
            new_should_module_be_updated: The modules that are trained, or a function of an id; None
                leaves them as they are. Opponents that are drawn are never trained.
            **others: RLlib's `config_overrides`, for a module that is trained, and `add_to_...`, at
                their defaults.

        Raises:
            ConfigError: If the id is taken, or the run cannot have the module: there is no room, it
                would be trained, or is of an architecture that is not there.
            ModuleError: If the parameters do not fit.
        """
        mapping, wanted = new_agent_to_module_mapping_fn, new_should_module_be_updated
        if not self.league.is_on_host:
            self.league.add(module_id, module_spec, state, mapping, wanted, others)
            return
        self._follow_changes()
        self._change_modules(
            self._host_modules.add(module_id, module_spec, state, mapping, wanted, others)
        )

    @single_threaded
    def remove_module(
        self,
        module_id: str,
        *,
        new_agent_to_module_mapping_fn: NewMapping | Mapped | None = None,
        new_should_module_be_updated: Collection[str] | Callable[..., Any] | None = None,
        **others: object,
    ) -> None:
        """Remove an opponent. Episodes that have begun against it go on to their end.

        Args:
            module_id: Its id.
            new_agent_to_module_mapping_fn: Mapping from the next episodes on; see `set_mapping`.
            new_should_module_be_updated: The modules that are trained, which cannot change.
            **others: RLlib's `remove_from_...`, at their defaults.

        Raises:
            UnknownNameError: If there is no such opponent.
            ConfigError: If nothing would be left to draw, or the module is trained.
        """
        mapping, wanted = new_agent_to_module_mapping_fn, new_should_module_be_updated
        self.league.remove(module_id, mapping, wanted, others)

    @single_threaded
    def set_mapping(self, mapping: NewMapping | Mapped) -> None:
        """Draw other opponents from the next episodes on; those that go on keep theirs.

        Args:
            mapping: Mapping as in `multi_agent(mapping=...)`, or a function as `policy_mapping_fn`,
                with the run's own modules in the same seats.

        Raises:
            ConfigError: If a module of the run has another seat.
            UnknownNameError: If the mapping names an opponent that there is not.
        """
        self.league.set_mapping(mapping)

    def get_league(self) -> LeagueTable | PayoffTable:
        """Return the games of the learners and their snapshots, with shares and ratings.

        Raises:
            ConfigError: If the run has no league.
        """
        return self.league.get_table()

    def begin_league_round(self) -> None:
        """Replace the learners of the lowest ratings before an iteration, if a round is due.

        After the iteration before, learners and games are still those of its result.
        """
        self.league.begin_round()

    @property
    def _host_modules(self) -> HostModules:
        return HostModules(
            self.config, self._assembly, self._learners, self._loop, keeps=self._keeps_modules
        )

    def _follow_changes(self) -> None:
        """Apply what was set on the configs of the local runner and of the learner."""
        self._change_modules(self._host_modules.follow())

    def _change_modules(self, change: ModulesChange | None) -> None:
        """Continue the run with a changed config, and its programs if there are others.

        Evaluation keeps its function that chooses modules, unless there is a new one for the run.
        """
        if change is None:
            return
        config, assembly = change.config, change.assembly
        if assembly is None:
            self.config = cast("AlgorithmConfig", config)
            self._connect_league()
            return
        modules = self._host_modules
        mapping_fn = self._evaluation.mapping_fn or partial(follow, modules.agents.mapping)
        self._learners = modules.continue_run(change, self._devices)
        self.config, self._assembly = cast("AlgorithmConfig", config), assembly
        self._evaluation.stop()
        self._searching = {}
        hooks = AlgorithmHooks(self._callbacks, self)
        self._evaluation = Evaluation(config, assembly, hooks)
        if not change.has_new_mapping and config.multi_agent_settings.policy_mapping_fn is not None:
            self._evaluation.set_mapping_fn(mapping_fn)
        self._connect()
        self.state = change.init(self.state)

    def get_module(self, module_id: str = DEFAULT_MODULE) -> "RLModule":
        """Return the RLModule; calls with a batch, as in RLlib, use the current weights."""
        module = self._actions.get_module(module_id)
        write = make_writer(self)
        vars(module)["_set_params"] = lambda params: write({module_id: params})
        return module

    @single_threaded
    def get_weights(self, module_ids: Sequence[str] | None = None) -> dict[str, PyTree]:
        """Return `{module_id: parameters}` as NumPy copies, for all or the given modules."""
        state = self.state
        names = [module_ids] if isinstance(module_ids, str) else module_ids
        selected = list_modules(state) if names is None else names
        owners = {x: self.league.find_owner(self._actions.check_id(x)) for x in selected}
        found = get_weights(state, list(dict.fromkeys(owners.values())))
        return {name: found[owner] for name, owner in owners.items()}

    @single_threaded
    def set_weights(self, weights: Mapping[str, PyTree], *, strict: bool = True) -> list[str]:
        """Replace the module's parameters, e.g. for a warm start from another run.

        A target network becomes a copy of them; optimizers keep their state.

        Args:
            weights: Weights in the form returned by `get_weights` of this or another Algorithm.
            strict: Whether to raise on mismatches. False loads the matching parameters and keeps
                the others.

        Returns:
            One phrase per mismatch; empty if all parameters matched.

        Raises:
            ModuleError: If `strict` and any parameter does not match.
        """
        self.league.check_owners(weights)
        self.state, problems = set_weights(self.state, weights, strict=strict)
        return problems

    def import_policy_model_from_h5(
        self, import_file: str | os.PathLike[str], policy_id: str = DEFAULT_MODULE
    ) -> None:
        """Set a module's parameters to those of RLlib's default network, which Keras saved.

        Args:
            import_file: File of HDF5, by `model.base_model.save_weights(file)` in RLlib.
            policy_id: Id of the module, in a run of several agents.

        Raises:
            ModuleError: If the file cannot be read, or does not fit the module.
            UnknownNameError: If there is no such module.
        """
        higher = importlib.import_module("jaxrl.interop.importing")  # by name: a higher layer
        higher.import_keras_weights(self, import_file, policy_id)

    # --- recording and export ---

    def record(
        self,
        output: str | os.PathLike[str],
        *,
        num_steps: int = DEFAULT_NUM_STEPS,
        num_envs: int = DEFAULT_NUM_ENVS,
        explore: bool | None = None,
        seed: int | None = None,
    ) -> "RecordedData | dict[str, RecordedData]":
        """Record the current policy in its environment, without learning.

        Several agents have the policies of all modules recorded, each in the folder of its id. The
        environment has the run's current task. Without an environment to train in, that of the
        evaluation is taken.

        Args:
            output: Folder of recorded data; one that has data of the same spaces and module
                outputs is appended to.
            num_steps: Least number of environment steps; whole rollouts of all environments are
                recorded. Episodes that have not ended are cut.
            num_envs: Number of environments that are stepped side by side.
            explore: Whether the policy explores; None for the config's `explore`.
            seed: Seed of the environments and actions; None for the config's, to which the number of
                files in the folder is added, so that what is appended is new.

        Returns:
            The data in the folder, by module for several agents.

        Raises:
            ConfigError: If there is no environment, or a number is below 1.
            EnvError: If the environment makes no valid step.
            DataError: If the folder has other data, or cannot be written.
        """
        return record_run(
            self.config,
            self._assembly,
            lambda: self.get_policy().inference.policy_step,
            self._make_evaluation_inputs,
            output,
            num_steps=num_steps,
            num_envs=num_envs,
            explore=explore,
            seed=seed,
        )

    def export(
        self,
        folder: str | os.PathLike[str],
        formats: Sequence[str] = ("numpy",),
        explore: Sequence[bool] = (False, True),
        policy_id: str = DEFAULT_MODULE,
        planner: Mapping[str, Any] | None = None,
    ) -> str:
        """Write the current policy as files that run without jaxrl, and return their folder.

        Connectors, masks, memory and the conversion of actions are inside. `export/numpy_program.py`
        runs the files with NumPy alone; its `NumpyPolicy` has the methods of `Policy`.

        Args:
            folder: New or empty folder.
            formats: "numpy", for any language that reads JSON and arrays; "stablehlo", for JAX;
                "onnx", for runtimes of ONNX.
            explore: Actions to export: the most likely one (False), a sampled one (True), or both.
            policy_id: Id of the module, in a run of several agents.
            planner: Search by which the exported policy acts, as in `evaluate`; only "stablehlo" has
                it.

        Raises:
            ExportError: If the module has an operation without a counterpart, the folder is not
                empty, or a format is unknown.
        """
        return self._export(folder, formats, explore, policy_id=policy_id, planner=planner)

    def _export(
        self,
        folder: str | os.PathLike[str],
        formats: Sequence[str],
        explore: Sequence[bool] = (False, True),
        opset: int | None = None,
        policy_id: str = DEFAULT_MODULE,
        planner: Mapping[str, Any] | None = None,
    ) -> str:
        from jaxrl.export.artifact import describe_run, make_export

        policy = self.get_policy(policy_id, planner=planner)
        self.get_module(policy_id)  # raises for an unknown id
        source = describe_run(self.config, self.iteration)
        exported = make_export(
            policy.inference,
            policy.actor,
            formats=formats,
            explore=explore,
            source=source,
            opset=opset,
        )
        return str(exported.write(folder))

    def export_policy_model(
        self, export_dir: str, policy_id: str = DEFAULT_MODULE, onnx: int | None = None
    ) -> str:
        """Export the policy; RLlib's name of `export`.

        Args:
            export_dir: New or empty folder.
            policy_id: Id of the module, in a run of several agents.
            onnx: Version of ONNX's operators to write ONNX files of as well, at least 17, which is
                written for older ones; None writes none.

        Raises:
            ExportError: As `export`, or if onnx does not know the version.
        """
        formats = ("numpy",) if onnx is None else ("numpy", "onnx")
        return self._export(export_dir, formats, opset=onnx, policy_id=policy_id)

    def export_policy_checkpoint(self, export_dir: str, policy_id: str = DEFAULT_MODULE) -> str:
        """Export the policy; RLlib's name of `export`."""
        return self.export(export_dir, policy_id=policy_id)

    def export_model(
        self, export_formats: str | Sequence[str], export_dir: str | None = None
    ) -> dict[str, str]:
        """Export in RLlib's formats, and return the path of each.

        Args:
            export_formats: "model", for `export`, and "checkpoint", for `save`.
            export_dir: Folder of the checkpoint and of the folder `exported`; None is the run's.

        Raises:
            ConfigError: If there is no such format.
        """
        names = [export_formats] if isinstance(export_formats, str) else export_formats
        for name in names:
            if name not in _RLLIB_EXPORT_FORMATS:
                raise ConfigError(
                    f"There is no export format {name!r}; formats are {', '.join(_RLLIB_EXPORT_FORMATS)}."
                    f"{did_you_mean(name, _RLLIB_EXPORT_FORMATS)}"
                )
        folder = export_dir or self.run_dir
        return {
            name: self.save(folder)
            if name == "checkpoint"
            else self.export(os.path.join(folder, "exported"))
            for name in names
        }

    # --- state ---

    @single_threaded
    def get_state(self) -> dict[str, Any]:
        """Return the contents of a checkpoint: all leaves of the TrainState and the metadata."""
        return {
            "train_state": ckpt.fetch_leaves(self._get_full_state()),
            "metadata": self._make_metadata(),
        }

    def _get_full_state(self) -> TrainState:
        """Return the TrainState including environment states, even if host runners keep them."""
        self._record.decide()
        return self._loop.full_state(self._assembly.select_saved_state(self.state))

    @single_threaded
    def set_state(self, state: Mapping[str, Any], component: str | None = None) -> None:
        """Replace the state, without merging, by one returned by `get_state`.

        Args:
            state: Return value of `get_state`.
            component: "rl_module", "learner" or "connectors" to restore only that part; None for
                all.

        Raises:
            CheckpointError: If the state does not fit; nothing is changed.
        """
        if isinstance(state, Mapping) and "learner_group" in state:
            weights = load("rllib.modules").read_weights(state)
            self.set_weights(weights)
            return
        host.check_state(state)
        saved: Mapping[str, np.ndarray] = state["train_state"]
        prefixes = host.get_component_prefixes(component, self.state.modules)
        if component == "connectors" and self._assembly.is_offline:
            check_statistics_may_change(self._assembly.policy_step)
        restored = host.RunMetadata.from_metadata(state["metadata"])
        counts = dict(restored.runner_counts)
        data = counts.pop(DATA, None)
        envs = self._loop.env_leaves(saved, counts)
        leaves = {name: leaf for name, leaf in saved.items() if name not in envs}
        before = self.state
        has_own_step = type(self).training_step is not Algorithm.training_step
        template = self._assembly.select_expected_state(before, leaves, has_own_step=has_own_step)
        check_fits(template, leaves, prefixes)
        if component is not None:
            filled = ckpt.fill(before, leaves, prefixes)
            self.state = set_first_versions(refresh_snapshot(filled), list(filled.modules))
        else:
            check_data(self._learners.fingerprint, data)
            self._loop.check_counts(counts)
            filled = ckpt.fill(template, leaves, prefixes)
            self.state = self._assembly.restore_empty_buffer(filled, before)
            self._record.host = restored
            self._loop.restore(partial(host.restore_part, envs), counts)
            if has_own_step:
                self._flow.resume()
            self._record.resume_after(state["metadata"]["env_steps"])

    def _make_metadata(self) -> dict[str, Any]:
        steps, made = int(self.state.progress.env_steps), self._assembly.made
        fingerprint = self._learners.fingerprint
        data = {} if fingerprint is None else {DATA: fingerprint}
        self._record.store_counts({**self._loop.get_counts(), **data})
        session = self._record.recorder.describe_session(self._devices)
        return host.make_checkpoint_metadata(self.config, self._record.host, steps, session, made)

    # --- checkpoints ---

    @single_threaded
    def save(self, checkpoint_dir: str | os.PathLike[str] | None = None) -> str:
        """Write a checkpoint, wait until it is on disk, and return its path.

        Args:
            checkpoint_dir: Parent folder of `checkpoint_<iteration>`; None for the run's folder.
        """
        self._recorder.flush()
        if checkpoint_dir is None:
            self._use.raise_if_stopped("save()")
            return ckpt.SavedPath(self._save_in_run(wait=True))
        self.on_phase("saving")
        writer = ckpt.CheckpointWriter(checkpoint_dir)
        state, metadata = self._get_full_state(), self._make_metadata()
        path = writer.save(self.iteration, state, metadata, files=self._write_own_files())
        writer.close()
        return ckpt.SavedPath(path)

    def _save_in_run(self, *, wait: bool) -> Path:
        self.on_phase("saving")
        state, metadata = self._get_full_state(), self._make_metadata()
        return self._record.save(state, metadata, self._write_own_files(), wait=wait)

    def _write_own_files(self) -> Path | None:
        """Return a new folder with the files that a subclass saves; None if it saves none."""
        if type(self).save_checkpoint is Algorithm.save_checkpoint:
            return None
        folder = Path(tempfile.mkdtemp(prefix="jaxrl_"))
        try:
            with self._within_checkpoint():
                given = self.save_checkpoint(str(folder))
            if not isinstance(given, str | os.PathLike | None):
                raise CheckpointError(
                    f"{type(self).__name__}.save_checkpoint() must write files into the folder that "
                    f"it is given, got {given!r}."
                )
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder

    @contextlib.contextmanager
    def _within_checkpoint(self) -> Generator[None]:
        """Let the overridden methods of Trainable be for the files of a subclass alone."""
        self._is_in_checkpoint = True
        try:
            yield
        finally:
            self._is_in_checkpoint = False

    @single_threaded
    def restore(
        self,
        path: str | os.PathLike[str] | None = None,
        component: str | None = None,
        *,
        checkpoint_path: str | os.PathLike[str] | None = None,
    ) -> None:
        """Continue from a checkpoint of the same algorithm, module and environments.

        Args:
            path: Checkpoint, or a folder or run, whose newest checkpoint is used; it may be a
                Checkpoint of Ray Tune's.
            component: "rl_module", "learner" or "connectors" to restore only that part; None for
                all.
            checkpoint_path: RLlib's name of `path`.

        Raises:
            CheckpointError: If the checkpoint is damaged, foreign or does not fit; nothing is
                changed.
        """
        given = [one for one in (path, checkpoint_path) if one is not None]
        if len(given) != 1:
            raise CheckpointError(f"restore() takes one checkpoint, got {given or 'none'}.")
        found = ckpt.find_checkpoint(given[0])
        metadata = ckpt.read_metadata(found)
        if component is None:
            host.check_algorithm(metadata, self.config.algo_name, found)
        self._load(found, metadata, ckpt.read_leaves(found, metadata), component)

    def _load(
        self,
        found: Path,
        metadata: dict[str, Any],
        leaves: Mapping[str, np.ndarray],
        component: str | None = None,
    ) -> None:
        try:
            self.set_state({"train_state": leaves, "metadata": metadata}, component)
        except CheckpointError as error:
            raise CheckpointError(f"{found} does not fit: {error}") from error
        if component is None:
            host.warn_of_differences(metadata, self._devices)
        if component is None and type(self).load_checkpoint is not Algorithm.load_checkpoint:
            own = found / ckpt.OWN_FILES
            with self._within_checkpoint():
                self.load_checkpoint(str(own if own.is_dir() else found))
        self._call("on_checkpoint_loaded")

    @classmethod
    def from_checkpoint(
        cls,
        path: str | os.PathLike[str],
        *,
        component: str | None = None,
        policy_ids: Sequence[str] | None = None,
        run_folder: RunFolder | None = None,
        trust: TrustSpec = None,
        **overrides: object,
    ) -> "Algorithm":
        """Rebuild the Algorithm that wrote a checkpoint, in its saved state.

        Args:
            path: Checkpoint, or a folder or run, whose newest checkpoint is used; it may be a
                Checkpoint of Ray Tune's.
            component: "rl_module", "learner" or "connectors" to restore only that part into a new
                run of the same config; None for all.
            policy_ids: Modules to restore into a new run of several agents; None for the whole run.
            run_folder: Folder of the run to continue; None creates a new one.
            trust: Packages whose classes and functions a checkpoint may import if this user did
                not write it on this machine, or True to allow every import. Without it, such a
                checkpoint may refer only to jaxrl and modules that are already imported, and its
                settings of folders and environment variables are ignored.
            **overrides: Settings that replace the saved ones, such as an `env` that cannot be
                imported, or another `lr`. Hyperparameters and environment parameters given here
                are not restored, nor are random keys if another `seed` is.

        Raises:
            CheckpointError: If the checkpoint is damaged or foreign, or a setting must be supplied.
        """
        saved = SavedRun.read(path, component, trust, overrides, is_whole=policy_ids is None)
        algorithm_class = saved.config.algo_class or cls
        algorithm = algorithm_class(saved.config, run_folder=run_folder, read_only=True)
        leaves = saved.leaves
        if overrides and component is None:
            own = ckpt.fetch_leaves(algorithm.state)
            settings = saved.metadata["config"]["settings"]
            leaves = host.apply_overrides(leaves, own, saved.config, overrides, settings)
        if policy_ids is not None:
            algorithm.state = restore_modules(
                algorithm.state, saved.path, leaves, policy_ids, component
            )
        else:
            algorithm._load(saved.path, saved.metadata, leaves, component)
        algorithm._change_modules(algorithm._host_modules.train_others(saved.trained))
        return algorithm

    # --- methods of RLlib's Trainable, which a subclass may override ---

    def setup(self, config: "AlgorithmConfig") -> None:
        """Prepare what a subclass adds; called once, when the run has been built.

        Args:
            config: Frozen config of the run.
        """

    def log_result(self, result: Result) -> None:
        """Receive each result, after the callbacks and before it is written.

        Args:
            result: Result, which may be changed.
        """

    def save_checkpoint(self, checkpoint_dir: str) -> object:
        """Write a checkpoint into a folder, as `save(checkpoint_dir)`.

        Where a subclass overrides it, each checkpoint has a folder for the files of the subclass,
        with which it is called; `super().save_checkpoint` then writes nothing.

        Args:
            checkpoint_dir: Folder.
        """
        return None if self._is_in_checkpoint else self.save(checkpoint_dir)

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Restore a checkpoint, as `restore(checkpoint_dir)`.

        Where a subclass overrides it, it is called when a checkpoint has been restored, with the
        folder of the subclass's files; `super().load_checkpoint` then does nothing.

        Args:
            checkpoint_dir: Folder.
        """
        if not self._is_in_checkpoint:
            self.restore(checkpoint_dir)

    def cleanup(self) -> None:
        """End the run, as `stop()`, which calls the method of a subclass before all else."""
        self.stop()

    # --- the end ---

    @property
    def run_folder(self) -> RunFolder:
        """Run folder, created on first access."""
        return self._recorder.folder

    @property
    def run_dir(self) -> str:
        """Path of the run folder."""
        return str(self.run_folder.path)

    def stop(self) -> None:
        """Finish pending writes, stop all actors and release the run folder.

        Safe to call more than once.
        """
        was_stopped, self._use.is_stopped = self._use.is_stopped, True
        with contextlib.ExitStack() as stack:
            stack.callback(self._learners.stop)
            stack.callback(self._loop.stop)
            stack.callback(self._evaluation.stop)
            stack.callback(self._recorder.close)
            if not was_stopped and type(self).cleanup is not Algorithm.cleanup:
                self.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with note_close_failure(error):
            self.stop()

    def _call(self, hook: str, **kwargs: object) -> None:
        self._callbacks.call(hook, algorithm=self, metrics_logger=self.metrics, **kwargs)
        self._follow_changes()
