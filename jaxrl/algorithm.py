"""Algorithm: the one stateful façade over a run's pure functions."""

import dataclasses
import datetime
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from typing_extensions import Self

from jaxrl import checkpoint as ckpt
from jaxrl.callbacks import CallbackList
from jaxrl.config.plan import choose_num_devices
from jaxrl.config.serialize import config_from_serializable, restorable_dict
from jaxrl.config.stop import parse_stop, stop_reached
from jaxrl.core.types import Columns, Key, PyTree
from jaxrl.errors import (
    CheckpointError,
    ConfigError,
    DivergenceError,
    UnknownNameError,
    did_you_mean,
)
from jaxrl.logging import RunFolder
from jaxrl.logging.system import system_usage
from jaxrl.metrics import DEFAULT_MODULE
from jaxrl.recorder import Recorder
from jaxrl.runners.assemble import Assembly, assemble, make_env, make_evaluator, required_bytes
from jaxrl.runners.devices import claim_cpu_devices, memory_limit
from jaxrl.runners.dispatch import Dispatcher
from jaxrl.runners.in_graph import InGraph, TrainState
from jaxrl.runners.inference import Inference
from jaxrl.runners.program import Program, enable_compilation_cache
from jaxrl.runners.results import (
    IterationTotals,
    Report,
    counted,
    evaluation_metrics,
    new_episodes,
    to_host,
)
from jaxrl.runners.rollout import Actor
from jaxrl.runners.sharding import compile_runner
from jaxrl.weights import by_module, get_parameters, set_parameters

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig
    from jaxrl.core.rl_module import RLModule

logger = logging.getLogger("jaxrl")

_EVALUATION, _ACTIONS = 1, 2
"""What the seed's key is folded with for draws that are no part of training."""

Result = dict[str, Any]


class Algorithm:
    """A run: built from a config, trained, evaluated, saved and restored.

    Subclasses may override `training_step`; `AlgorithmConfig(algo_class=...)` builds them.

    Attributes:
        config: The frozen config.
        state: The whole TrainState; replaced, never changed.
        iteration: Calls of `train` so far, over all sessions of the run.
        on_phase: Called with "compiling", "training", "evaluating" or "saving" as they begin.
    """

    def __init__(self, config: "AlgorithmConfig", *, run_folder: RunFolder | None = None) -> None:
        config.validate()
        config.freeze()
        self.config = config
        self.iteration = 0
        self.on_phase: Callable[[str], None] = lambda phase: None
        logging.getLogger("jaxrl").setLevel(config.debugging_settings.log_level)
        self._device_note = claim_cpu_devices()
        enable_compilation_cache(config.debugging_settings.compilation_cache_dir)
        self._recorder = Recorder(config, run_folder)
        self._callbacks = CallbackList(config.callbacks_settings)
        self._assembly: Assembly = assemble(config)
        self._devices, self._placement = self._choose_devices()
        self._check_memory()
        self._start()
        self._time_total_s = 0.0
        self._last_result: Result = {}
        self._last_evaluation: Result = {}
        self._actions_drawn = 0
        self._should_stop: Callable[[], bool] = lambda: False
        self._call("on_algorithm_init")

    # --- building ---

    def _choose_devices(self) -> tuple[list[jax.Device], str]:
        devices = jax.local_devices()
        requested = self.config.learners_settings.num_devices
        number, why = choose_num_devices(
            self._assembly.plan,
            devices[0].platform,
            len(devices) if self.config.debugging_settings.jit else 1,
            None if requested == "auto" else requested,
        )
        return devices[:number], why

    def _check_memory(self) -> None:
        limit = memory_limit(self._devices[0])
        shared = self._devices[0].platform == "cpu"
        needed = required_bytes(self._assembly) / (1 if shared else len(self._devices))
        if limit is not None and needed > limit:
            plan = self._assembly.plan
            raise ConfigError(
                f"train_batch_size={plan.train_batch_size} needs at least {needed / 2**30:.1f} GiB "
                f"for the state, the rollout and its targets, and the device has "
                f"{limit / 2**30:.1f} GiB: lower train_batch_size (or num_envs_per_env_runner)."
            )

    def _start(self) -> None:
        debugging, assembly = self.config.debugging_settings, self._assembly
        key, params = jax.random.key(debugging.seed), assembly.made.params
        programs = compile_runner(
            assembly.runner,
            jax.eval_shape(assembly.runner.init, key, params),
            self._devices,
            max_retraces=debugging.max_retraces,
            jit=debugging.jit,
        )
        self.state: TrainState = programs.init(key, params)
        self._dispatcher = Dispatcher(programs, self.runner.batch_steps, jit=debugging.jit)
        self._batches_to_run = 1
        space = assembly.made.env.observation_space(assembly.made.params)
        self._inference = Inference(assembly.sampler, space, jit=debugging.jit)
        self._evaluation: tuple[Program, PyTree] | None = None

    @property
    def runner(self) -> InGraph:
        """The run's pure functions, `init` and `step`, to jit, vmap or scan yourself."""
        return self._assembly.runner

    @property
    def env_params(self) -> PyTree:
        """The environment's parameters, which `runner.init` takes."""
        return self._assembly.made.params

    @property
    def devices(self) -> list[jax.Device]:
        """The devices that share the work."""
        return list(self._devices)

    def explain(self) -> str:
        """The config's `explain()` with what only the built Algorithm knows."""
        notes = [] if self._device_note is None else [self._device_note]
        return self.config.explain(
            platform=self._devices[0].platform,
            local_device_count=len(jax.local_devices()),
            env_notes=self._assembly.made.notes,
            notes=notes,
            module_table=self.get_module().summary(),
        )

    # --- training ---

    def train(self) -> Result:
        """One iteration: as many train batches as `reporting` asks for, at least one.

        Returns:
            The result, with RLlib's keys; also written to the run folder.

        Raises:
            DivergenceError: With `on_nonfinite="raise"`, after saving a checkpoint.
            RetraceError: A program would be compiled more often than `max_retraces` allows.
        """
        started = time.perf_counter()
        compiled_before = self._dispatcher.compile_seconds()
        totals = IterationTotals()
        self._totals = totals
        reporting = self.config.reporting_settings
        while True:
            elapsed = time.perf_counter() - started
            self._batches_to_run = self._dispatcher.wanted(reporting, totals, elapsed)
            if self._batches_to_run == 0:
                break
            self.training_step()
            self._raise_if_diverged(totals)
            if self._should_stop():
                break
        self.iteration += 1
        result = totals.result(reporting.metrics_num_episodes_for_smoothing)
        timers: dict[str, float] = {
            "training_step_s": totals.seconds,
            "compile_s": self._dispatcher.compile_seconds() - compiled_before,
        }
        interval = self.config.evaluation_settings.evaluation_interval
        if interval and self.iteration % interval == 0:
            begin = time.perf_counter()
            self._last_evaluation = self.evaluate()
            timers["evaluation_s"] = time.perf_counter() - begin
            result["evaluation"] = self._last_evaluation
        elif self._last_evaluation and (
            self.config.evaluation_settings.always_attach_evaluation_results
        ):
            result["evaluation"] = self._last_evaluation
        elapsed = time.perf_counter() - started
        self._time_total_s += elapsed
        result = {**result, **self._auto_filled(elapsed), "timers": timers}
        result["compile"] = self._dispatcher.figures()
        if self.config.debugging_settings.log_sys_usage:
            result["system"] = system_usage(self._devices)
        self._call("on_train_result", result=result)
        self._recorder.write(result)
        self._last_result = result
        return result

    def training_step(self) -> Result:
        """One dispatch of the compiled program: roll out, prepare, draw, update.

        The override point: call `super().training_step()` and do what you like before and after
        it; change `self.state` only by replacing it.

        Returns:
            The dispatch's learner metrics, means over its train batches.
        """
        before = to_host(self.state.ring.count)
        self.state, report, seconds = self._dispatcher.run(
            self.state, self._batches_to_run, self.on_phase
        )
        done = max(1, int(report.summary.train_batches))
        not_reported = self._tell_of_episodes(report, before)
        self._totals.add(report, self.runner.batch_steps, seconds, not_reported)
        self._call(
            "on_sample_end",
            samples={
                "num_env_steps_sampled": done * self.runner.batch_steps,
                "num_env_steps_sampled_lifetime": counted(report.env_steps),
                "num_episodes": int(report.summary.episodes.count.sum()),
            },
        )
        return {name: float(v) / done for name, v in report.summary.metrics.items()}

    def _tell_of_episodes(self, report: Report, before: np.ndarray) -> int:
        if not self._callbacks.wants("on_episode_end"):
            return 0
        episodes, missed = new_episodes(report.ring, before)
        for episode in episodes:
            self._call("on_episode_end", episode=episode)
        return missed

    def _raise_if_diverged(self, totals: IterationTotals) -> None:
        settings = self.config.fault_tolerance_settings
        report = totals.report
        if settings.on_nonfinite != "raise" or report is None:
            return
        if int(report.in_a_row) >= settings.nonfinite_updates_tolerance:
            path = self.save()
            raise DivergenceError(
                f"{int(report.in_a_row)} updates in a row had a non-finite loss or gradient "
                f"(nonfinite_updates_tolerance={settings.nonfinite_updates_tolerance}); the last "
                f"finite parameters are saved in {path}."
            )

    def _auto_filled(self, elapsed: float) -> Result:
        now = datetime.datetime.now()
        return {
            "training_iteration": self.iteration,
            "time_this_iter_s": elapsed,
            "time_total_s": self._time_total_s,
            "timestamp": int(now.timestamp()),
            "date": now.strftime("%Y-%m-%d_%H-%M-%S"),
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
        }

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
                that is reached ends the run. Without any, `should_stop` must end it.
            on_iteration: Called with each result.
            should_stop: Looked at between dispatches; True ends the run in order.

        Returns:
            The last result.
        """
        criteria = parse_stop(stop)
        if not criteria and should_stop is None:
            raise ConfigError(
                "fit() needs a stop criterion, such as stop={'training_iteration': 10}; got none."
            )
        self._should_stop = should_stop or (lambda: False)
        result = self._last_result
        settings = self.config.checkpointing_settings
        try:
            while not (criteria and stop_reached(result, criteria)) and not self._should_stop():
                result = self.train()
                if on_iteration is not None:
                    on_iteration(result)
                frequency = settings.checkpoint_frequency
                if frequency and self.iteration % frequency == 0:
                    self._save_in_run(wait=False)
        finally:
            self._should_stop = lambda: False
        if settings.checkpoint_at_end and result:
            self._save_in_run(wait=True)
        return result

    # --- evaluation and actions ---

    def evaluate(self, *, num_episodes: int | None = None) -> Result:
        """Play episodes with the current policy, apart from training.

        Statistics of connectors are used and not updated, training's keys are not touched, and
        the same weights give the same result.

        Args:
            num_episodes: Instead of `evaluation_duration`.

        Returns:
            `{"env_runners": {"episode_return_mean": ..., ...}}`.
        """
        self.on_phase("evaluating")
        self._call("on_evaluate_start")
        custom = self.config.evaluation_settings.custom_evaluation_function
        if custom is not None and num_episodes is None:
            result = dict(custom(self))
        else:
            program, params = self._evaluation_program(num_episodes)
            played = program(self._actor(), params, self._key(_EVALUATION, self.iteration))
            result = {"env_runners": evaluation_metrics(to_host(played))}
        self._call("on_evaluate_end", evaluation_metrics=result)
        return result

    def _evaluation_program(self, num_episodes: int | None) -> tuple[Program, PyTree]:
        if num_episodes is None and self._evaluation is not None:
            return self._evaluation
        config = self.config.get_evaluation_config_object()
        assert config is not None
        if num_episodes is not None:
            config.evaluation(
                evaluation_duration=num_episodes,
                evaluation_duration_unit="episodes",
                evaluation_num_envs="auto",
            )
        made = make_env(config)
        trained = self._assembly.sampler
        env = dataclasses.replace(trained.env, env=made.env)
        evaluator = make_evaluator(config, dataclasses.replace(trained, env=env), made)
        program = Program("evaluate", evaluator, enabled=config.debugging_settings.jit)
        if num_episodes is None:
            self._evaluation = (program, made.params)
        return program, made.params

    def _actor(self) -> Actor:
        """What acting needs, on one device."""
        actor = self.runner.actor(self.state)
        if len(self._devices) == 1:
            return actor
        return jax.tree.map(lambda leaf: leaf.addressable_data(0), actor)

    def _key(self, purpose: int, number: int) -> Key:
        seed = jax.random.key(self.config.debugging_settings.seed)
        return jax.random.fold_in(jax.random.fold_in(seed, purpose), number)

    def compute_single_action(
        self,
        obs: Any,
        state: PyTree = None,
        *,
        explore: bool | None = None,
        full_fetch: bool = False,
        policy_id: str = DEFAULT_MODULE,
    ) -> Any:
        """The action for one observation of the environment, through the whole pipeline.

        Args:
            obs: As the environment gives it, NumPy.
            state: The recurrent state of a module that has one.
            explore: Sample, or take the mode; None for the config's `explore`.
            full_fetch: Also return the state after it and the module's outputs.
            policy_id: The module; there is one.

        Returns:
            The action as the environment takes it, or `(action, state_out, outputs)`.

        Raises:
            SpaceError: The observation is not in the observation space.
        """
        carry = None if state is None else jax.tree.map(lambda x: np.asarray(x)[None], state)
        out = self._act([obs], carry, explore, policy_id)
        first = jax.tree.map(lambda x: x[0], out)
        action = first.pop("actions_for_env")
        return (action, first.pop(Columns.STATE_OUT), first) if full_fetch else action

    def compute_actions(
        self,
        observations: Sequence[Any] | Mapping[Any, Any],
        *,
        explore: bool | None = None,
        policy_id: str = DEFAULT_MODULE,
    ) -> Any:
        """Actions for several observations: a dictionary for a dictionary, else a batch."""
        if isinstance(observations, Mapping):
            batch = self._act(list(observations.values()), None, explore, policy_id)
            actions = batch["actions_for_env"]
            return {name: actions[i] for i, name in enumerate(observations)}
        return self._act(list(observations), None, explore, policy_id)["actions_for_env"]

    def _act(
        self, observations: list[Any], carry: PyTree, explore: bool | None, policy_id: str
    ) -> dict[str, Any]:
        self._check_module_id(policy_id)
        self._actions_drawn += 1
        key = self._key(_ACTIONS, self._actions_drawn)
        if explore is None:
            explore = self.config.env_runners_settings.explore
        return self._inference(self._actor(), observations, carry, key, explore)

    # --- module, weights, state ---

    def _check_module_id(self, module_id: str) -> None:
        if module_id != DEFAULT_MODULE:
            raise UnknownNameError(
                f"There is no module '{module_id}'; the only one is '{DEFAULT_MODULE}'."
            )

    def get_module(self, module_id: str = DEFAULT_MODULE) -> "RLModule":
        """The module; its parameters are those of `get_weights`."""
        self._check_module_id(module_id)
        return self._assembly.module

    def get_weights(self) -> dict[str, PyTree]:
        """`{module_id: parameters}`, NumPy copies."""
        return {DEFAULT_MODULE: get_parameters(self.state)}

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

    def get_state(self) -> dict[str, Any]:
        """All that a checkpoint holds: every leaf of the TrainState, and the metadata."""
        return {"train_state": ckpt.host_leaves(self.state), "metadata": self._metadata()}

    def set_state(self, state: Mapping[str, Any], component: str | None = None) -> None:
        """Replace (never merge) the state by one that `get_state` returned.

        Args:
            state: What `get_state` returned.
            component: "rl_module", "learner" or "connectors" alone; None for the whole.

        Raises:
            CheckpointError: It does not fit; nothing is changed.
        """
        leaves: Mapping[str, np.ndarray] = state["train_state"]
        prefixes = ("",) if component is None else _component(component)
        problem = ckpt.first_difference(self.state, leaves, prefixes)
        if problem is not None:
            raise CheckpointError(f"The state does not fit this Algorithm: {problem}.")
        self.state = ckpt.fill(self.state, leaves, prefixes)
        if component is None:
            host = state["metadata"]
            self.iteration = int(host["iteration"])
            self._time_total_s = float(host["time_total_s"])
            self._last_evaluation = dict(host["last_evaluation"])
            self._actions_drawn = int(host["actions_drawn"])
            self._recorder.starts_at(self.iteration, int(host["env_steps"]))

    def _metadata(self) -> dict[str, Any]:
        config, not_saved = restorable_dict(self.config)
        return {
            "algorithm": self.config.algo_name,
            "config": config,
            "not_saved": not_saved,
            "iteration": self.iteration,
            "time_total_s": self._time_total_s,
            "env_steps": int(self.state.progress.env_steps),
            "last_evaluation": self._last_evaluation,
            "actions_drawn": self._actions_drawn,
            "num_devices": len(self._devices),
            "platform": self._devices[0].platform,
            "versions": ckpt.versions(),
        }

    # --- checkpoints ---

    def save(self, checkpoint_dir: str | os.PathLike[str] | None = None) -> str:
        """Write a checkpoint and wait until it is on disk.

        Args:
            checkpoint_dir: The folder that gets `checkpoint_<iteration>`; None for the run's.

        Returns:
            The checkpoint's path.
        """
        if checkpoint_dir is None:
            return str(self._save_in_run(wait=True))
        self.on_phase("saving")
        writer = ckpt.CheckpointWriter(checkpoint_dir)
        path = writer.save(self.iteration, self.state, self._metadata())
        writer.close()
        return str(path)

    def _save_in_run(self, *, wait: bool) -> Path:
        self.on_phase("saving")
        return self._recorder.save(
            self.iteration, self.state, self._metadata(), self._last_result, wait=wait
        )

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
        if component is None and metadata["algorithm"] != self.config.algo_name:
            raise CheckpointError(
                f"{found} is of algorithm {metadata['algorithm']}, this one is "
                f"{self.config.algo_name}; restore(..., component='rl_module') takes the module."
            )
        leaves = ckpt.read_leaves(found, metadata)
        try:
            self.set_state({"train_state": leaves, "metadata": metadata}, component)
        except CheckpointError as error:
            raise CheckpointError(f"{found} does not fit: {error}") from error
        self._warn_of_inexact_resume(metadata)
        self._call("on_checkpoint_loaded")

    def _warn_of_inexact_resume(self, metadata: Mapping[str, Any]) -> None:
        here = {"num_devices": len(self._devices), "platform": self._devices[0].platform}
        for name, value in here.items():
            if metadata[name] != value:
                logger.warning(
                    "The checkpoint was written with %s=%s, this run has %s: it goes on from the "
                    "same state, but not bit for bit as it would have.",
                    name,
                    metadata[name],
                    value,
                )

    @classmethod
    def from_checkpoint(
        cls,
        path: str | os.PathLike[str],
        *,
        run_folder: RunFolder | None = None,
        **overrides: Any,
    ) -> "Algorithm":
        """The Algorithm that a checkpoint was written by, in the state that it had.

        Args:
            path: A checkpoint, or a folder or run whose newest is meant.
            run_folder: The run to go on with; None starts a folder of its own.
            **overrides: Settings to take instead of the saved ones, such as an `env` that cannot
                be imported.

        Raises:
            CheckpointError: It is damaged or foreign, or something must be supplied.
        """
        found = ckpt.find_checkpoint(path)
        metadata = ckpt.read_metadata(found)
        missing = [name for name in metadata["not_saved"] if name not in overrides]
        if missing:
            supply = ", ".join(f"{name}=..." for name in missing)
            raise CheckpointError(
                f"{found} does not hold {' and '.join(missing)}, which had no import path: supply "
                f"it with from_checkpoint(..., {supply})."
            )
        config = config_from_serializable(metadata["config"], overrides)
        algorithm = (config.algo_class or cls)(config, run_folder=run_folder)
        algorithm.restore(found)
        return algorithm

    # --- the end ---

    @property
    def run_folder(self) -> RunFolder:
        """The run's folder, made if nothing was written yet."""
        return self._recorder.folder

    @property
    def run_dir(self) -> str:
        """Path of the run's folder."""
        return str(self._recorder.folder.path)

    def stop(self) -> None:
        """Finish what is being written and let the run folder go; may be called twice."""
        self._recorder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _call(self, hook: str, **kwargs: Any) -> None:
        self._callbacks.call(hook, algorithm=self, **kwargs)


def _component(name: str) -> tuple[str, ...]:
    if name not in ckpt.COMPONENTS:
        raise CheckpointError(
            f"There is no component '{name}'.{did_you_mean(name, ckpt.COMPONENTS)} "
            f"The components are {', '.join(ckpt.COMPONENTS)}."
        )
    return ckpt.COMPONENTS[name]
