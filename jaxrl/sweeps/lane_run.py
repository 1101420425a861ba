"""A lane of a sweep: an Algorithm whose state and programs belong to the lane's group."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl.algorithm import Algorithm, Result
from jaxrl.assembly.assemble import Assembly
from jaxrl.assembly.device_trial import DeviceTrials
from jaxrl.core.types import Device, Key, PyTree
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.registry import MadeEnv, MadeMultiEnv
from jaxrl.errors import DivergenceError, mark_has_checkpoint_path
from jaxrl.evaluation.compiled import JaxEvaluation
from jaxrl.evaluation.evaluation import Evaluation
from jaxrl.loggers import RunFolder
from jaxrl.loggers.recorder import RunRecord
from jaxrl.metrics import ALL_MODULES, DEFAULT_MODULE
from jaxrl.run_parts import ActingState, LoadLeaves
from jaxrl.runners.factories import make_in_graph_loop
from jaxrl.runners.hooks import AlgorithmHooks, RunnerHooks
from jaxrl.runners.in_graph_loop import InGraphLoop
from jaxrl.runners.learner_group import LearnerGroup
from jaxrl.runners.offline import OfflineLoop
from jaxrl.runs import checkpoint as ckpt
from jaxrl.runs import host_state as host
from jaxrl.runtime.program import Program
from jaxrl.sweeps.lane_evaluation import LaneEvaluation
from jaxrl.sweeps.lane_group import LaneDispatches, LaneGroup, LaneLearner
from jaxrl.training.rollout import ActorState

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


class LaneActingState:
    """Acting state of a lane, taken from the states of its group.

    Args:
        group: Group of the lane.
        slot: Position of the lane in the group.
    """

    def __init__(self, group: LaneGroup, slot: int) -> None:
        self._group, self._slot = group, slot
        self._cache: tuple[int, ActorState] | None = None
        """Version of the group's states and the actor of that version."""

    @property
    def programs(self) -> list[Program]:
        """No programs: those of the group are reported by its learners."""
        return []

    def fetch(self) -> tuple[ActorState, PyTree]:
        state = self._group.get_state(self._slot, buffer=False)
        return self._group.assembly.train_step.make_actor_state(state), state.env_params

    def get_actor_state(self) -> ActorState:
        version = self._group.version
        if self._cache is None or self._cache[0] != version:
            self._cache = version, self.fetch()[0]
        return self._cache[1]


class LaneParts:
    """Parts of a lane's Algorithm: those of its group.

    Args:
        group: Group of the lane.
        slot: Position of the lane in the group.
        made: Environment of the lane.

    Attributes:
        learner: Learner of the lane.
        shared: Objects by name that all lanes of the group share.
        dispatches: Dispatches of the group, as the lane consumes them.
        loop: Loop of the lane's Algorithm, available once that is built.
        record: Record of it.
        load: Function that restores a checkpoint into it.
    """

    loop: InGraphLoop
    record: RunRecord
    load: LoadLeaves

    def __init__(
        self, group: LaneGroup, slot: int, made: MadeEnv | MadeMultiEnv | MadeHostEnv
    ) -> None:
        self._group, self._slot, self._made = group, slot, made
        self.learner, self.shared = LaneLearner(group, slot), group.shared
        self.dispatches = LaneDispatches(self.learner)

    def open_device_trials(self, config: "AlgorithmConfig") -> DeviceTrials:
        del config  # lanes share the devices of their program
        return DeviceTrials(None)

    def assemble(
        self, config: "AlgorithmConfig", trials: DeviceTrials, *, should_train: bool
    ) -> tuple[Assembly, list[Device], str]:
        del config, trials, should_train
        number = self._group.num_lanes
        why = f"Lane {self._slot} of {number} in one program."
        assembly = self._group.assembly
        if assembly.is_offline:  # no state has the parameters of the lane's environment
            assembly = dataclasses.replace(assembly, made=self._made)
        return assembly, self._group.devices[:1], why

    def make_evaluation(
        self,
        config: "AlgorithmConfig",
        assembly: Assembly,
        hooks: RunnerHooks,
        make_key: Callable[[int], Key],
    ) -> Evaluation:
        def make_compiled(evaluation: JaxEvaluation) -> LaneEvaluation:
            return LaneEvaluation(evaluation, self._group, self._slot, make_key)

        return Evaluation(config, assembly, hooks, make_compiled)

    def make_learner_group(
        self, config: "AlgorithmConfig", assembly: Assembly, devices: list[Device]
    ) -> LearnerGroup:
        del config, assembly, devices
        return self.learner

    def make_loop(
        self,
        config: "AlgorithmConfig",
        assembly: Assembly,
        learners: LearnerGroup,
        callbacks: RunnerHooks,
        algorithm: object,
    ) -> InGraphLoop:
        if assembly.is_offline:
            hooks = AlgorithmHooks(callbacks, algorithm)
            self.loop = OfflineLoop(config, assembly, self.learner, hooks, self.dispatches)
        else:
            self.loop = make_in_graph_loop(
                config, assembly, learners, callbacks, algorithm, self.dispatches
            )
        return self.loop

    def make_acting_state(
        self,
        config: "AlgorithmConfig",
        assembly: Assembly,
        learners: LearnerGroup,
        devices: list[Device],
    ) -> ActingState:
        del config, assembly, learners, devices
        return LaneActingState(self._group, self._slot)

    def attach(self, record: RunRecord, load: LoadLeaves) -> None:
        self.record, self.load = record, load


class LaneRun:
    """One lane of a group: its Algorithm, and the lane's place in the group.

    Args:
        config: Config of the lane.
        group: Group of the lane.
        slot: Position of the lane in the group.
        made: Environment of the lane.
        values: Values of the settings that differ between lanes, by name; numbers among them are
            reported in the lane's results.
        run_folder: Folder of the lane to resume; None creates one.

    Attributes:
        algorithm: Algorithm with the results, evaluation and checkpoints of the lane; `train` here
            also recognizes a lane that has diverged.
        current_values: Current values of the settings that differ between lanes.
    """

    def __init__(
        self,
        config: "AlgorithmConfig",
        group: LaneGroup,
        slot: int,
        made: MadeEnv | MadeMultiEnv | MadeHostEnv,
        values: Mapping[str, Any],
        run_folder: RunFolder | None = None,
    ) -> None:
        self._group, self._slot = group, slot
        self._num_updates = 0
        self._parts = LaneParts(group, slot, made)
        self.current_values: dict[str, Any] = {}
        self.algorithm = Algorithm(config, run_folder=run_folder, _parts=self._parts)
        self._set_values(values)

    def _set_values(self, values: Mapping[str, Any]) -> None:
        self.current_values = dict(values)
        self._parts.dispatches.reported_values = {
            name: value
            for name, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }

    @property
    def last_iteration(self) -> int:
        """Iteration of the latest result; 0 before the first."""
        return self._parts.record.last_iteration

    def rewind_to(self, iteration: int) -> None:
        """Label the current state with an earlier iteration; a resume discards later results."""
        self._parts.record.iteration = iteration

    # --- training ---

    def deactivate(self) -> None:
        """Stop taking part in the group's dispatches."""
        self._group.deactivate(self._slot)

    def exploit(self, source: "LaneRun", hparams: Mapping[str, float], salt: int) -> None:
        """Replace this lane by a copy of another one, except for its keys and some settings.

        Args:
            source: Lane whose state, counters and other values are copied.
            hparams: New values of training settings, by name.
            salt: Data to fold into this lane's keys.
        """
        self._parts.learner.copy_member(source.algorithm.state, hparams, salt)
        values = {**source.current_values, **hparams}
        self._update_config(values)
        self._set_values(values)
        self._num_updates = source._num_updates
        self._parts.record.copy_progress(source._parts.record)
        self._parts.loop.curriculum.copy_state(source._parts.loop.curriculum)
        logged = source._parts.loop.metrics_logger.get_state()
        self._parts.loop.metrics_logger.set_state(logged)

    def _update_config(self, numbers: Mapping[str, Any]) -> None:
        """Copy the state's hyperparameters into the config stored with checkpoints."""
        config = self.algorithm.config.copy(copy_frozen=False).update_from_dict(numbers)
        config.freeze()
        self.algorithm.config = config

    def train(self) -> Result:
        """Train for one iteration.

        Raises:
            DivergenceError: If none of the iteration's updates was finite, or under the conditions
                of `on_nonfinite="raise"`.
        """
        algorithm, previous = self.algorithm, self._num_updates
        result = algorithm.train()
        modules = dict(result["learners"])
        common = modules.pop(ALL_MODULES, None) or modules[DEFAULT_MODULE]
        self._num_updates = common["num_updates_lifetime"]
        num_updates = self._num_updates - previous
        tolerance = algorithm.config.fault_tolerance_settings.nonfinite_updates_tolerance
        num_nonfinite = result["fault_tolerance"]["num_nonfinite_updates"]
        norms = [metrics.get("grad_norm", math.nan) for metrics in modules.values()]
        all_skipped = all(map(math.isnan, norms))
        if num_updates >= tolerance and all_skipped and num_nonfinite >= tolerance:
            error = DivergenceError(
                f"None of the {num_updates} updates of iteration {algorithm.iteration} had a "
                f"finite loss and gradient; the lane is saved in {algorithm.save()}."
            )
            raise mark_has_checkpoint_path(error)
        return result

    # --- checkpoints ---

    def keep_checkpoint(self) -> None:
        """Protect this iteration's checkpoint from removal until another one is protected."""
        self._parts.record.recorder.protect_checkpoint(self.algorithm.iteration)

    def resume_from(
        self, checkpoint: Path, values: Mapping[str, Any] | None, overrides: Mapping[str, Any]
    ) -> None:
        """Restore the lane's state, including the counters that all lanes share.

        Args:
            checkpoint: Checkpoint of the lane.
            values: Saved values of the settings that differ between lanes; None if they are still
                the initial ones.
            overrides: Settings that are not restored, see `Algorithm.from_checkpoint`.
        """
        metadata = ckpt.read_metadata(checkpoint)
        leaves: Mapping[str, Any] = ckpt.read_leaves(checkpoint, metadata)
        if overrides:
            current = ckpt.fetch_leaves(self.algorithm.state)
            settings = metadata["config"]["settings"]
            config = self.algorithm.config
            leaves = host.apply_overrides(leaves, current, config, overrides, settings)
        self._parts.learner.should_set_counters = True
        self._parts.load(checkpoint, metadata, leaves)
        self._parts.learner.should_set_counters = False
        if values is not None:
            self._update_config(values)
            self._set_values(values)
        self._num_updates = int(self.algorithm.state.progress.updates)
        self.keep_checkpoint()
