"""Algorithm: the one stateful façade over a run's pure functions."""

import contextlib
import os
import sys
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import jax
import numpy as np

from jaxrl.assembly.assemble import Assembly, announce, assemble_run, spaces_of
from jaxrl.assembly.device_trial import DeviceTrials, device_trials
from jaxrl.assembly.env_params import changed_params
from jaxrl.assembly.replay import buffer_notes, expected, to_save, with_buffer
from jaxrl.callbacks import CallbackList
from jaxrl.config.deserialize import config_from_serializable
from jaxrl.config.imports import TrustSpec
from jaxrl.config.placement import resolve_placement
from jaxrl.config.serialize import check_class
from jaxrl.config.stop import (
    Stop,
    criteria_of_fit,
    iterations_left,
    stop_reached,
    until_multiple,
)
from jaxrl.config.synonyms import unknown_method
from jaxrl.core.seeds import folded, seed_key
from jaxrl.core.struct import replace
from jaxrl.core.types import Device, Key, PyTree
from jaxrl.envs.registry import MadeEnv
from jaxrl.errors import (
    CheckpointError,
    ConfigError,
    DivergenceError,
    EnvRunnerError,
    LearnerError,
    naming_checkpoint,
)
from jaxrl.evaluation.evaluation import Evaluation, custom_evaluation
from jaxrl.evaluation.host import EvaluationRunners
from jaxrl.loggers import RunFolder
from jaxrl.loggers.plots import import_for_pictures
from jaxrl.loggers.python_log import set_log_level, system_usage
from jaxrl.loggers.recorder import Recorder, SaveTimes, closing_after
from jaxrl.metrics import DEFAULT_MODULE, TIMERS
from jaxrl.policy.compute_actions import ComputesActions, check_module_id
from jaxrl.policy.inference import Inference
from jaxrl.runners.factories import learner_group, loop_of
from jaxrl.runners.hooks import AlgorithmHooks, RunnerHooks
from jaxrl.runners.in_graph_group import InGraphLearnerGroup
from jaxrl.runners.learner_group import LearnerGroup, what_acts
from jaxrl.runners.num_envs_tuning import settle_width
from jaxrl.runners.placement import check_memory, choose_devices, settle_parts
from jaxrl.runners.protocols import EnvRunnerGroup, LearnerMetrics, Loop
from jaxrl.runs import checkpoint as ckpt
from jaxrl.runs import host_state as host
from jaxrl.runs.results import to_plain
from jaxrl.runs.weights import by_module, get_parameters, set_parameters, with_fresh_snapshot
from jaxrl.runtime.exclusive import Exclusive, one_thread, until_stopped
from jaxrl.runtime.process import prepare_process
from jaxrl.runtime.program import Program, compile_report, compile_seconds
from jaxrl.training import nonfinite
from jaxrl.training.evaluate import Evaluated
from jaxrl.training.in_graph import InGraph
from jaxrl.training.report import IterationTotals, to_host
from jaxrl.training.rollout import Actor
from jaxrl.training.sharding import Compiled
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig
    from jaxrl.modules.rl_module import RLModule

_EVALUATION = 0x6576616C
"""What the seed's key is folded with for draws that are no part of training: far from the small
numbers that `split` and the counters of training fold in."""

Result = dict[str, Any]


class Algorithm(ComputesActions):
    """A run: built from a config, trained, evaluated, saved and restored.

    Subclasses may override `training_step`; `PPOConfig(algo_class=...)` builds them.

    Attributes:
        config: The frozen config.
        on_phase: Called with "compiling", "training", "evaluating" or "saving" as they begin.
    """

    def __init__(
        self,
        config: "AlgorithmConfig",
        *,
        run_folder: RunFolder | None = None,
        may_only_read: bool = False,
    ) -> None:
        """Use `config.build()`, or `from_checkpoint`.

        Args:
            config: Gets frozen.
            run_folder: The run to go on with; None makes a folder when something is written.
            may_only_read: Do not ask before training whether a folder could be made.
        """
        config.validate()
        self._use = Exclusive("Algorithm")
        self.on_phase: Callable[[str], None] = lambda phase: None
        set_log_level(config.debugging_settings.log_level)
        self._notes = prepare_process(config)
        if not may_only_read:
            Recorder(config, run_folder).check_writable()
        config, measured = settle_width(config)
        config = settle_parts(config, trials := self._device_trials(config))
        self._notes += measured
        config.freeze()
        self.config = config
        self._recorder = Recorder(config, run_folder)
        self._callbacks = CallbackList(config.callbacks_settings)
        trains = not may_only_read
        self._assembly, self._devices, self._placement = self._assembled(trials, trains)
        self._notes += [*trials.notes, *buffer_notes(self._assembly)]
        if self._assembly.in_graph and not config.evaluation_settings.evaluation_num_env_runners:
            self._callbacks.refuse_host_hooks()
        announce(config, self._assembly, [self._placement, *self._notes])
        self._host = host.HostState()
        self._warned_of_nonfinite = False
        self._last_result: Result = {}
        self._should_stop: Callable[[], bool] = lambda: False
        self._start()
        if not may_only_read:
            self._loop.prepare()
            if config.evaluation_settings.evaluation_interval:
                self._evaluation.start()
        self._call("on_algorithm_init")

    def _start(self) -> None:
        debugging, made = self.config.debugging_settings, self._assembly.made
        hooks = AlgorithmHooks(self._callbacks, self)
        self._evaluation = self._evaluation_with(hooks)
        self._learners = self._learner_group()
        self._loop = self._loop_of()
        self._batches_to_run = 1
        self._iterations_of_fit: Callable[[], int] = lambda: sys.maxsize
        self._totals = IterationTotals(self._loop.report, self._assembly.replay)
        self._streams: dict[int, Key] = {}
        self._to_act = self._assembly.actor_program(debugging.jit)
        self._actor_of: tuple[weakref.ref[TrainState], Actor] | None = None
        """What acts by a state, which is replaced and never changed."""
        self._inference = Inference(
            self._assembly.acting,
            spaces_of(made)[0],
            max_retraces=debugging.max_retraces,
            jit=debugging.jit,
        )

    def _device_trials(self, config: "AlgorithmConfig") -> DeviceTrials:
        return device_trials(config)

    def _assembled(self, trials: DeviceTrials, trains: bool) -> tuple[Assembly, list[Device], str]:
        """The run's functions, the devices that share it, and why it is these."""
        assembly = assemble_run(self.config, trains=trains)
        devices, why = choose_devices(self.config, assembly, trials)
        check_memory(assembly, devices)
        return assembly, devices, why

    def _evaluation_with(self, hooks: RunnerHooks) -> Evaluation:
        return Evaluation(self.config, self._assembly, hooks)

    def _learner_group(self) -> LearnerGroup:
        return learner_group(self.config, self._assembly, self._devices)

    def _loop_of(self) -> Loop:
        return loop_of(self.config, self._assembly, self._learners, self._callbacks, self)

    if not TYPE_CHECKING:  # which the type checker need not be told

        def __getattr__(self, name: str) -> Any:
            raise unknown_method(self, name)

    @property
    def state(self) -> TrainState:
        """The whole TrainState; replaced, never changed.

        Where runners on the host keep the environments, `get_state` has those too.
        """
        return self._learners.state

    @state.setter
    def state(self, state: TrainState) -> None:
        self._learners.state = state

    @property
    def learner_group(self) -> LearnerGroup:
        """Where the state lives and learns."""
        return self._learners

    @property
    def env_runner_group(self) -> EnvRunnerGroup | None:
        """The runners that step environments on the host; None where the program does it."""
        return self._loop.runners

    @property
    def iteration(self) -> int:
        """Calls of `train` so far, over all sessions of the run."""
        return self._host.iteration

    @property
    def last_result(self) -> Result:
        """The latest result; of a restored run the numbers of the one that it goes on from."""
        return self._last_result

    @property
    def runner(self) -> InGraph:
        """The run's pure functions, `init` and `step`, to jit, vmap or scan yourself.

        Raises:
            ConfigError: The environments are not part of the compiled program.
        """
        if not self._assembly.in_graph:
            raise ConfigError(
                f"{self._assembly.made.id} is stepped by runners on the host, so the run is no pure "
                "function; env_runner_group and learner_group hold its two halves."
            )
        return self._assembly.in_graph_runner

    @property
    def programs(self) -> Compiled:
        """The compiled programs of `runner`."""
        assert isinstance(self._learners, InGraphLearnerGroup)
        return self._learners.compiled

    @property
    def _programs(self) -> list[Program]:
        """Everything that is compiled."""
        others = (*self._evaluation.programs, *self._inference.programs)
        return [*self._learners.programs, *self._loop.programs, *others, self._to_act]

    @property
    def env_params(self) -> PyTree:
        """The environment's parameters now, as NumPy arrays, which `runner.init` takes."""
        self._check_in_graph("env_params")
        return to_host(self.state.env_params)

    @one_thread
    def set_env_params(self, params: PyTree = None, /, **fields: Any) -> None:
        """Go on in an environment with other parameters, as a curriculum does.

        Nothing is compiled again. They are used from the next step on, also by evaluation, unless
        `evaluation_config` has an environment of its own; checkpoints hold them.

        Args:
            params: All of them, of the structure of `env_params`; None for those of now.
            **fields: Single ones by name.

        Raises:
            UnknownNameError: There is no such parameter.
            EnvError: Another structure, shape or type, or one that changes a space.
        """
        made = self._check_in_graph("set_env_params()")
        new = changed_params(made, self.state.env_params, params, fields)
        self.state = replace(self.state, env_params=new)

    def _check_in_graph(self, what: str) -> MadeEnv:
        made = self._assembly.made
        if not self._assembly.in_graph or not isinstance(made, MadeEnv):
            raise ConfigError(
                f"{what} is for environments in the compiled program, and {made.id} is stepped by "
                "runners on the host: call a method of your environment's in each with "
                "env_runner_group.foreach_env_runner(...)."
            )
        return made

    @property
    def devices(self) -> list[Device]:
        """The devices that share the work."""
        return list(self._devices)

    @property
    def notes(self) -> list[str]:
        """What to know before training: which environment it is, and which defaults adapted."""
        return [*self._assembly.made.notes, *self._assembly.plan.notes]

    def explain(self) -> str:
        """The config's `explain()` with what only the built Algorithm knows."""
        made = self._assembly.made
        return self.config.explain(
            platform=self._devices[0].platform,
            devices=(len(self._devices), self._placement),
            placement=resolve_placement(self.config, made.id, is_jax_env=isinstance(made, MadeEnv)),
            env_notes=made.notes,
            notes=[*self._notes, *self._loop.notes],
            module_table=self.get_module().summary(),
        )

    # --- training ---

    @until_stopped
    def train(self) -> Result:
        """One iteration: as many train batches as `reporting` asks for, at least one.

        Returns:
            The result, with RLlib's keys; also written to the run folder.

        Raises:
            DivergenceError: With `on_nonfinite="raise"`, after saving a checkpoint.
            RetraceError: A program would be compiled more often than `max_retraces` allows.
        """
        started = time.perf_counter()
        self._recorder.check_writable()
        compiled_before = compile_seconds(self._programs)
        reporting = self.config.reporting_settings
        self._totals = totals = IterationTotals(self._loop.report, self._assembly.replay)
        if self.config.evaluation_settings.evaluation_parallel_to_training:
            self._begin_evaluation_if_due()
        self._loop.expect(self._iterations_to_look())
        while not (totals.train_batches and self._should_stop()):
            elapsed = time.perf_counter() - started
            self._batches_to_run = self._loop.wanted(reporting, totals, elapsed)
            if self._batches_to_run == 0:
                break
            self.training_step()
            self._raise_if_diverged(totals)
        self._host.iteration += 1
        trained = totals.result(reporting.metrics_num_episodes_for_smoothing)
        self._warn_of_nonfinite(totals)
        result = self._loop.added_to({**trained, TIMERS: {"training_step_s": totals.waited}})
        self._evaluate_if_due(result)
        result[TIMERS]["compile_s"] = compile_seconds(self._programs) - compiled_before
        result |= self._host.auto_filled(time.perf_counter() - started + totals.lent)
        result["compile"] = compile_report(self._programs)
        if self.config.debugging_settings.log_sys_usage:
            result["system"] = system_usage(self._devices)
        self._call("on_train_result", result=result)
        self._recorder.write(result)
        self._last_result = result
        self._host.remember(result)
        return result

    def _iterations_to_look(self) -> int:
        """The iterations, from this one on, until the state is known to be looked at."""
        settings = self.config.evaluation_settings
        # Beside training, an evaluation begins with the weights from before its iteration.
        since = self.iteration + int(settings.evaluation_parallel_to_training)
        until_evaluation = until_multiple(since, settings.evaluation_interval or 0)
        return min(until_evaluation, self._iterations_of_fit())

    @until_stopped
    def training_step(self) -> Mapping[str, float]:
        """One dispatch of the compiled program: roll out, prepare, draw, update.

        The override point: call `super().training_step()` and do what you like before and after
        it; change `self.state` only by replacing it, and keep no reference to one from before the
        call, whose memory is given to the next (`get_state` copies).

        Returns:
            The dispatch's learner metrics, means over its train batches, fetched when one is read.
        """
        with self._saving_what_is_left():
            dispatched = self._loop.dispatch(self._batches_to_run, self.on_phase)
        self._totals.add(dispatched)
        return LearnerMetrics(self._loop, dispatched)

    @contextlib.contextmanager
    def _saving_what_is_left(self) -> Generator[None]:
        """What ends a run from outside of it says where the latest checkpoint is."""
        try:
            yield
        except EnvRunnerError as error:
            # The learner has lost nothing; where the environments were is gone with the runners.
            self._host.iteration += 1
            raise naming_checkpoint(
                EnvRunnerError(f"{error} {self._saved_or_why_not()}")
            ) from error
        except LearnerError as error:
            latest = self._recorder.latest_checkpoint
            where = f"is {latest}" if latest else "does not exist: nothing was saved before"
            found = LearnerError(f"{error} The latest checkpoint {where}.")
            raise naming_checkpoint(found) from error

    def _raise_if_diverged(self, totals: IterationTotals) -> None:
        settings = self.config.fault_tolerance_settings
        if settings.on_nonfinite != "raise" or not totals.train_batches:
            return
        in_a_row = int(totals.report().latest.in_a_row)
        if in_a_row >= settings.nonfinite_updates_tolerance:
            # A checkpoint of its own that can be continued: the count starts anew.
            guard = replace(self.state.guard, in_a_row=self.state.guard.in_a_row * 0)
            self.state = replace(self.state, guard=guard)
            self._host.iteration += 1
            error = DivergenceError(
                f"{in_a_row} updates in a row had a non-finite loss or gradient "
                f"(nonfinite_updates_tolerance={settings.nonfinite_updates_tolerance}); the last "
                f"finite parameters are saved in {self.save()}."
            )
            raise naming_checkpoint(error)

    def _warn_of_nonfinite(self, totals: IterationTotals) -> None:
        """Say once which terms were not finite, whatever the loggers are."""
        counts = totals.nonfinite
        if self._warned_of_nonfinite or not any(counts.values()):
            return
        self._warned_of_nonfinite = True
        skipped = int(totals.report().latest.num_nonfinite)
        nonfinite.tell(counts, skipped, self.config.fault_tolerance_settings.on_nonfinite)

    def _evaluates_after(self, iteration: int) -> bool:
        interval = self.config.evaluation_settings.evaluation_interval or 0
        return interval > 0 and iteration % interval == 0

    def _begin_evaluation_if_due(self) -> None:
        """Evaluate beside this iteration's training, with the weights from before it."""
        if self._evaluates_after(self.iteration + 1):
            self._call("on_evaluate_start")
            self._evaluation.begin(self._evaluated())

    def _evaluate_if_due(self, result: Result) -> None:
        due = self._evaluates_after(self.iteration)
        if due:
            begin = time.perf_counter()
            self._host.last_evaluation = to_plain(
                self._end_evaluation() if self._evaluation.is_under_way else self.evaluate()
            )
            result[TIMERS]["evaluation_s"] = time.perf_counter() - begin
        attaches = due or self.config.evaluation_settings.always_attach_evaluation_results
        if self._host.last_evaluation and attaches:
            result["evaluation"] = self._host.last_evaluation

    def _end_evaluation(self) -> Result:
        self.on_phase("evaluating")
        result = self._evaluation.finish(self._video_folder(None))
        self._call("on_evaluate_end", evaluation_metrics=result)
        return result

    @until_stopped
    def fit(
        self,
        stop: Mapping[str, Any] | None = None,
        *,
        on_iteration: Callable[[Result], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Result:
        """Train until a criterion is reached, with the checkpoints that the config asks for.

        Args:
            stop: Thresholds of result keys, `{"env_runners/episode_return_mean": 450}`; the first
                that is reached ends the run, also one that a restored run has reached before.
                Without any, `should_stop` must end it. The run folder keeps them, for `resume`.
            on_iteration: Called with each result.
            should_stop: Looked at between dispatches; True ends the run in order.

        Returns:
            The last result. The run folder has its learning curve as a picture.
        """
        criteria = criteria_of_fit(stop, should_stop)
        settings = self.config.checkpointing_settings
        if settings.checkpoint_at_end or settings.checkpoint_frequency:
            check_class(self.config)
        if stop is not None:
            self.run_folder.save_stop_criterion(criteria)
        self._should_stop = should_stop or (lambda: False)
        self._iterations_of_fit = lambda: min(
            iterations_left(self._last_result, criteria),
            until_multiple(self.iteration, settings.checkpoint_frequency),
        )
        try:
            with self.saved_whatever_ends_it():
                result = self._fit(criteria, on_iteration or (lambda result: None))
        finally:
            self._should_stop = lambda: False
            self._iterations_of_fit = lambda: sys.maxsize
        if settings.checkpoint_at_end and result:
            self._save_in_run(wait=True)
        self._recorder.draw_learning_curve()
        return result

    def _fit(self, criteria: Stop, on_iteration: Callable[[Result], None]) -> Result:
        """Iterations, and checkpoints on the way."""
        result, times = self._last_result, SaveTimes(self.config.checkpointing_settings)
        later = [import_for_pictures, *self._evaluation.needs_later(self._evaluated)]
        while not (criteria and stop_reached(result, criteria)) and not self._should_stop():
            result = self.train()
            while later:
                later.pop()()
            on_iteration(result)
            if times.is_due(self.iteration):
                with times.saving():
                    self._save_in_run(wait=False)
        return result

    @contextlib.contextmanager
    def saved_whatever_ends_it(self) -> Generator[None]:
        """Save the run if anything is raised meanwhile, KeyboardInterrupt and SystemExit included.

        What was raised stays what it is; a note in it says where the run is saved, or why it is not.
        """
        try:
            yield
        except BaseException as error:
            note = self._saved_after(error)
            if note:
                error.add_note(note)
            raise

    def _saved_after(self, error: BaseException) -> str:
        """Save what an error has left, and say where; empty where there is nothing to say."""
        has_learned = bool(self._last_result) or self._totals.train_batches > 0
        if getattr(error, "names_checkpoint", False) or not has_learned:
            return ""
        if not self.config.checkpointing_settings.checkpoint_at_end:
            return ""
        # Train batches of an iteration that has no result count for the next one.
        self._host.iteration = int(self._last_result.get("training_iteration", 0))
        return self._saved_or_why_not()

    def _saved_or_why_not(self) -> str:
        return self._recorder.saved_or_why_not(lambda: self._save_in_run(wait=True))

    @until_stopped
    def compile(self) -> dict[str, dict[str, Any]]:
        """Compile what training and evaluation need, and say what each program took and needs.

        Nothing is trained where the environments are in the compiled program and the learner in
        this process. Elsewhere the programs depend on what runners sample, so one iteration is
        trained, which counts.

        Returns:
            What the key "compile" of a result holds: seconds, operations and bytes by program.
        """
        if isinstance(self._learners, InGraphLearnerGroup):
            self.on_phase("compiling")
            self._learners.compile()
        else:
            self.train()
        if self.config.evaluation_settings.custom_evaluation_function is None:
            self._evaluation.compile(self._evaluated())
        return compile_report(self._programs)

    # --- evaluation and actions ---

    @one_thread
    def evaluate(
        self,
        *,
        num_episodes: int | None = None,
        video_folder: str | os.PathLike[str] | None = None,
    ) -> Result:
        """Play episodes with the current policy, apart from training.

        Statistics of connectors are used and not updated, training's keys are not touched, and
        the same weights give the same result.

        Args:
            num_episodes: Instead of `evaluation_duration`.
            video_folder: Where videos go if `record_video` asks for some; None for `videos` in the
                run's folder.

        Returns:
            `{"env_runners": {"episode_return_mean": ..., ...}}`, with the paths of `videos` if
            there are some; or what the `custom_evaluation_function` returned.

        Raises:
            ConfigError: The `custom_evaluation_function` returned no dictionary, or
                `num_episodes` is given beside it.
        """
        custom = self.config.evaluation_settings.custom_evaluation_function
        if custom is not None and num_episodes is not None:
            raise ConfigError(
                f"num_episodes={num_episodes} has no effect on a custom_evaluation_function, which "
                "decides itself what it plays: leave num_episodes out."
            )
        self.on_phase("evaluating")
        self._call("on_evaluate_start")
        folder = self._video_folder(video_folder)
        if custom is not None:
            played = custom_evaluation(custom, self, self.eval_env_runner_group)
            result = self._evaluation.filmed(played, self._evaluated(), folder)
        else:
            result = self._evaluation.run(self._evaluated(), num_episodes, folder)
        self._call("on_evaluate_end", evaluation_metrics=result)
        return result

    @property
    def eval_env_runner_group(self) -> EvaluationRunners | None:
        """The runners that evaluate, with the current weights; None where that is compiled."""
        return self._evaluation.runners(self._evaluated())

    def _video_folder(self, chosen: str | os.PathLike[str] | None) -> Path | None:
        """None where nothing is recorded, so that no run folder is made for it."""
        if not self.config.evaluation_settings.record_video:
            return None
        return self.run_folder.videos if chosen is None else Path(chosen)

    def _evaluated(self) -> Evaluated:
        actor, env_params = self._acting()
        return Evaluated(
            actor=actor,
            env_params=env_params,
            key=self._evaluation_key(self.iteration),
            iteration=self.iteration,
        )

    def _evaluation_key(self, iteration: int) -> Key:
        return jax.random.fold_in(self._stream(_EVALUATION), iteration)

    def _acting(self) -> tuple[Actor, PyTree]:
        """What acting and the environment need, on one device."""
        state = self.state
        needed = self._to_act(what_acts(state)), state.env_params
        if len(self._devices) == 1:
            return needed
        return jax.tree.map(lambda leaf: leaf.addressable_data(0), needed)

    def _actor(self) -> Actor:
        state = self.state
        if self._actor_of is None or self._actor_of[0]() is not state:
            self._actor_of = weakref.ref(state), self._acting()[0]
        return self._actor_of[1]

    def _stream(self, purpose: int) -> Key:
        if purpose not in self._streams:
            of_the_run = seed_key(self.config.debugging_settings.seed)
            self._streams[purpose] = folded(of_the_run, purpose)
        return self._streams[purpose]

    # --- module, weights, state ---

    def get_module(self, module_id: str = DEFAULT_MODULE) -> "RLModule":
        """The module; its parameters are those of `get_weights`."""
        check_module_id(module_id)
        return self._assembly.module

    @one_thread
    def get_weights(self, module_ids: Sequence[str] | None = None) -> dict[str, PyTree]:
        """`{module_id: parameters}`, NumPy copies, of all modules or those named."""
        wanted = [DEFAULT_MODULE] if module_ids is None else module_ids
        for module_id in wanted:
            check_module_id(module_id)
        return {module_id: get_parameters(self.state) for module_id in wanted}

    @one_thread
    def set_weights(self, weights: Mapping[str, PyTree], *, strict: bool = True) -> list[str]:
        """Replace the module's parameters, as for a warm start from another run.

        Args:
            weights: As `get_weights` returns them, of this or another Algorithm.
            strict: Refuse what does not fit; False takes what fits and leaves the rest.

        Returns:
            What did not fit, a phrase each; empty if everything did.

        Raises:
            ModuleError: With `strict`, if anything does not fit.
        """
        params = by_module(weights, DEFAULT_MODULE)
        self.state, problems = set_parameters(self.state, params, strict=strict)
        return problems

    @one_thread
    def get_state(self) -> dict[str, Any]:
        """All that a checkpoint holds: every leaf of the TrainState, and the metadata."""
        return {"train_state": ckpt.host_leaves(self._whole_state()), "metadata": self._metadata()}

    def _whole_state(self) -> TrainState:
        """The state with that of the environments, also where runners on the host keep them."""
        return self._loop.whole(to_save(self._assembly, self.state))

    @one_thread
    def set_state(self, state: Mapping[str, Any], component: str | None = None) -> None:
        """Replace (never merge) the state by one that `get_state` returned.

        Args:
            state: What `get_state` returned.
            component: "rl_module", "learner" or "connectors" alone; None for the whole.

        Raises:
            CheckpointError: It does not fit; nothing is changed.
        """
        if not isinstance(state, Mapping) or not {"train_state", "metadata"} <= state.keys():
            raise CheckpointError(
                f"A state is what get_state() returned, with train_state and metadata, got {state!r}."
            )
        saved: Mapping[str, np.ndarray] = state["train_state"]
        prefixes = host.component_prefixes(component)
        restored = host.HostState.from_metadata(state["metadata"])
        envs = self._loop.own_leaves(saved, restored.runner_counts)
        leaves = {name: leaf for name, leaf in saved.items() if name not in envs}
        before = self.state
        template = expected(self._assembly, before, leaves)
        problem = ckpt.first_difference(template, leaves, prefixes)
        if problem is not None:
            raise CheckpointError(f"The state does not fit this Algorithm: {problem}.")
        if component is not None:
            self.state = with_fresh_snapshot(ckpt.fill(before, leaves, prefixes))
        else:
            filled = ckpt.fill(template, leaves, prefixes)
            self.state = with_buffer(self._assembly, filled, before.buffer)
            self._host = restored
            self._loop.restore(partial(host.fill_own, envs), restored.runner_counts)
            self._last_result = self._host.last_result
            self._recorder.starts_at(self.iteration, state["metadata"]["env_steps"])

    def _metadata(self) -> dict[str, Any]:
        steps = int(self.state.progress.env_steps)
        self._host.runner_counts = self._loop.get_counts()
        return host.checkpoint_metadata(self.config, self._host, steps, self._devices)

    # --- checkpoints ---

    @one_thread
    def save(self, checkpoint_dir: str | os.PathLike[str] | None = None) -> str:
        """Write a checkpoint, wait until it is on disk, and return its path.

        Args:
            checkpoint_dir: The folder that gets `checkpoint_<iteration>`; None for the run's.
        """
        if checkpoint_dir is None:
            self._use.refuse_stopped("save()")
            return str(self._save_in_run(wait=True))
        self.on_phase("saving")
        writer = ckpt.CheckpointWriter(checkpoint_dir)
        path = writer.save(self.iteration, self._whole_state(), self._metadata())
        writer.close()
        return str(path)

    def _save_in_run(self, *, wait: bool) -> Path:
        self.on_phase("saving")
        state = self._whole_state()
        return self._recorder.save(
            self.iteration, state, self._metadata(), self._last_result, wait=wait
        )

    @one_thread
    def restore(self, path: str | os.PathLike[str], component: str | None = None) -> None:
        """Continue from a checkpoint of the same algorithm, module and environments.

        Args:
            path: A checkpoint, or a folder or run whose newest is meant.
            component: "rl_module", "learner" or "connectors" alone; None for the whole.

        Raises:
            CheckpointError: It is damaged, foreign or does not fit; nothing is changed.
        """
        found = ckpt.find_checkpoint(path)
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
        self._call("on_checkpoint_loaded")

    @classmethod
    def from_checkpoint(
        cls,
        path: str | os.PathLike[str],
        *,
        component: str | None = None,
        run_folder: RunFolder | None = None,
        trust: TrustSpec = None,
        **overrides: Any,
    ) -> "Algorithm":
        """The Algorithm that a checkpoint was written by, in the state that it had.

        Args:
            path: A checkpoint, or a folder or run whose newest is meant.
            component: "rl_module", "learner" or "connectors" alone, in a new run of the same
                config; None for the whole.
            run_folder: The run to go on with; None starts a folder of its own.
            trust: Of a checkpoint that this user did not write on this machine: the packages whose
                classes and functions it may import, or True for all that it says. Without it, it
                may name what jaxrl and modules that are imported already have, and its settings of
                folders and environment variables are not taken.
            **overrides: Settings to take instead of the saved ones, such as an `env` that cannot
                be imported, or another `lr`: hyperparameters and environment parameters that are
                given here are not restored.

        Raises:
            CheckpointError: It is damaged or foreign, or something must be supplied.
        """
        found = ckpt.find_checkpoint(path)
        metadata = ckpt.read_metadata(found)
        host.check_metadata(metadata, found)
        trusted = host.trust_in(found, trust)
        host.component_prefixes(component)  # refuses an unknown name
        host.check_supplied(metadata, overrides, found)
        config = config_from_serializable(metadata["config"], overrides, trust=trusted)
        host.prepare_as_before(config, metadata)
        leaves = ckpt.read_leaves(found, metadata)  # refused, if damaged, before anything compiles
        algorithm_class = config.algo_class or cls
        algorithm = algorithm_class(config, run_folder=run_folder, may_only_read=True)
        if overrides and component is None:
            own = ckpt.host_leaves(algorithm.state)
            leaves = host.with_overrides(leaves, own, config, overrides)
        algorithm._load(found, metadata, leaves, component)
        return algorithm

    # --- the end ---

    @property
    def run_folder(self) -> RunFolder:
        """The run's folder, made if nothing was written yet."""
        return self._recorder.folder

    @property
    def run_dir(self) -> str:
        """Path of the run's folder."""
        return str(self.run_folder.path)

    def stop(self) -> None:
        """Finish what is being written, stop all actors and let the run folder go.

        May be called twice.
        """
        self._use.is_stopped = True
        try:
            self._recorder.close()
        finally:
            self._evaluation.stop()
            self._loop.stop()
            self._learners.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with closing_after(error):
            self.stop()

    def _call(self, hook: str, **kwargs: Any) -> None:
        self._callbacks.call(hook, algorithm=self, **kwargs)
