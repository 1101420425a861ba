"""A lane of a sweep as an Algorithm with its own results, evaluation and checkpoints."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl.algorithm import Algorithm, Result
from jaxrl.assembly.assemble import Assembly
from jaxrl.assembly.device_trial import DeviceTrials
from jaxrl.core.types import Device, PyTree
from jaxrl.errors import DivergenceError, mark_has_checkpoint_path
from jaxrl.loggers import RunFolder
from jaxrl.metrics import DEFAULT_MODULE
from jaxrl.runners.hooks import DISPATCH_HOOKS, AlgorithmHooks, RunnerHooks
from jaxrl.runs import checkpoint as ckpt
from jaxrl.runs import host_state as host
from jaxrl.sweeps.lane_evaluation import LaneEvaluation
from jaxrl.sweeps.lane_group import LaneDispatcher, LaneGroup, LaneLearner
from jaxrl.training.rollout import ActorState

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


class LaneRun(Algorithm):
    """One lane of a group: an Algorithm whose state and programs belong to the group.

    Args:
        config: Config of the lane.
        group: Group of the lane.
        slot: Position of the lane in the group.
        values: Values of the settings that differ between lanes, by name; numbers among them are
            reported in the lane's results.
        run_folder: Folder of the lane to resume; None creates one.

    Attributes:
        current_values: Current values of these settings.
    """

    def __init__(
        self,
        config: "AlgorithmConfig",
        group: LaneGroup,
        slot: int,
        values: Mapping[str, Any],
        run_folder: RunFolder | None = None,
    ) -> None:
        self._group, self._slot = group, slot
        self._num_updates = 0
        self.current_values: dict[str, Any] = {}
        self._cached_actor: tuple[int, ActorState] | None = None
        """Version of the group's states and the actor of that version."""
        super().__init__(config, run_folder=run_folder)
        self._set_values(values)

    def _set_values(self, values: Mapping[str, Any]) -> None:
        self.current_values = dict(values)
        self._dispatcher.reported_values = {
            name: value
            for name, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }

    @property
    def last_result(self) -> Result:
        """Latest result; after a restore, the numbers of the saved one."""
        return self._last_result

    @property
    def last_iteration(self) -> int:
        """Iteration of the latest result; 0 before the first."""
        return int(self._last_result.get("training_iteration", 0))

    def rewind_to(self, iteration: int) -> None:
        """Label the current state with an earlier iteration; a resume discards later results."""
        self._host.iteration = iteration

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
        self._lane_learner.copy_member(source.state, hparams, salt)
        values = {**source.current_values, **hparams}
        self._update_config(values)
        self._set_values(values)
        self._num_updates = source._num_updates
        self._last_result = source._last_result
        previous = self._host
        self._host = dataclasses.replace(
            source._host, time_total_s=previous.time_total_s, actions_drawn=previous.actions_drawn
        )

    def _update_config(self, numbers: Mapping[str, Any]) -> None:
        """Copy the state's hyperparameters into the config stored with checkpoints."""
        config = self.config.copy(copy_frozen=False).update_from_dict(numbers)
        config.freeze()
        self.config = config

    def train(self) -> Result:
        """Train for one iteration.

        Raises:
            DivergenceError: If none of the iteration's updates was finite, or under the conditions
                of `on_nonfinite="raise"`.
        """
        previous = self._num_updates
        result = super().train()
        learner_metrics = result["learners"][DEFAULT_MODULE]
        self._num_updates = learner_metrics["num_updates_lifetime"]
        num_updates = self._num_updates - previous
        tolerance = self.config.fault_tolerance_settings.nonfinite_updates_tolerance
        num_nonfinite = result["fault_tolerance"]["num_nonfinite_updates"]
        all_skipped = math.isnan(learner_metrics.get("grad_norm", math.nan))
        if num_updates >= tolerance and all_skipped and num_nonfinite >= tolerance:
            error = DivergenceError(
                f"None of the {num_updates} updates of iteration {self.iteration} had a finite "
                f"loss and gradient; the lane is saved in {self.save()}."
            )
            raise mark_has_checkpoint_path(error)
        return result

    # --- checkpoints ---

    def keep_checkpoint(self) -> None:
        """Protect this iteration's checkpoint from removal until another one is protected."""
        self._recorder.protect_checkpoint(self.iteration)

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
            current = ckpt.fetch_leaves(self.state)
            leaves = host.apply_overrides(leaves, current, self.config, overrides)
        self._lane_learner.should_set_counters = True
        self._load(checkpoint, metadata, leaves)
        self._lane_learner.should_set_counters = False
        if values is not None:
            self._update_config(values)
            self._set_values(values)
        self._num_updates = int(self.state.progress.updates)
        self.keep_checkpoint()

    # --- parts of the Algorithm ---

    def _open_device_trials(self, config: "AlgorithmConfig") -> DeviceTrials:
        del config  # lanes share the devices of their program
        return DeviceTrials(None)

    def _assemble(
        self, trials: DeviceTrials, should_train: bool
    ) -> tuple[Assembly, list[Device], str]:
        del should_train
        number = len(self._group.lanes)
        why = f"Lane {self._slot} of {number} in one program."
        return self._group.assembly, self._group.devices[:1], why

    def _make_evaluation(self, hooks: RunnerHooks) -> LaneEvaluation:
        return LaneEvaluation(
            self.config, self._assembly, hooks, self._group, self._slot, self._get_evaluation_key
        )

    def _get_acting_state(self) -> tuple[ActorState, PyTree]:
        state = self._group.get_state(self._slot, buffer=False)
        return self._assembly.runner.make_actor_state(state), state.env_params

    def _get_actor_state(self) -> ActorState:
        version = self._group.version
        if self._cached_actor is None or self._cached_actor[0] != version:
            self._cached_actor = version, self._get_acting_state()[0]
        return self._cached_actor[1]

    def _make_learner_group(self) -> LaneLearner:
        self._lane_learner = LaneLearner(self._group, self._slot)
        return self._lane_learner

    def _make_loop(self) -> LaneDispatcher:
        hooks = AlgorithmHooks(self._callbacks, self, DISPATCH_HOOKS)
        runner, replay = self._assembly.in_graph_runner, self._assembly.replay
        steps = runner.batch_steps
        trained_steps = steps if replay is None else replay.num_updates * replay.rows_per_update
        self._dispatcher = LaneDispatcher(self._learners, steps, trained_steps, hooks)
        return self._dispatcher
