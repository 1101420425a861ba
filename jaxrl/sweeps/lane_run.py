"""A lane of a sweep with everything that a run by itself has: results, evaluation, checkpoints."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl.algorithm import Algorithm, Result
from jaxrl.assembly.assemble import Assembly
from jaxrl.assembly.device_trial import DeviceTrials
from jaxrl.core.types import Device, PyTree
from jaxrl.errors import DivergenceError, naming_checkpoint
from jaxrl.loggers import RunFolder
from jaxrl.metrics import DEFAULT_MODULE
from jaxrl.runners.hooks import OF_DISPATCHES, AlgorithmHooks, RunnerHooks
from jaxrl.runs import checkpoint as ckpt
from jaxrl.runs import host_state as host
from jaxrl.sweeps.lane_evaluation import LaneEvaluation
from jaxrl.sweeps.lane_group import LaneDispatcher, LaneGroup, LaneLearner
from jaxrl.training.rollout import Actor

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


class LaneRun(Algorithm):
    """One lane of a group: everything of an Algorithm but its state and its programs.

    Args:
        config: The lane's.
        group: Where the lane lives.
        place: In the group.
        values: What the lane has of its own, by setting; numbers stand in its results.
        run_folder: Of the run that goes on; None makes one.

    Attributes:
        own_values: The values as they are now.
    """

    def __init__(
        self,
        config: "AlgorithmConfig",
        group: LaneGroup,
        place: int,
        values: Mapping[str, Any],
        run_folder: RunFolder | None = None,
    ) -> None:
        self._group, self._place = group, place
        self._updates = 0
        self.own_values: dict[str, Any] = {}
        self._actor_at: tuple[int, Actor] | None = None
        super().__init__(config, run_folder=run_folder)
        self._have(values)

    def _have(self, values: Mapping[str, Any]) -> None:
        self.own_values = dict(values)
        self._dispatcher.values = {
            name: value
            for name, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }

    @property
    def last_result(self) -> Result:
        """The latest result; after a restore its numbers."""
        return self._last_result

    @property
    def last_iteration(self) -> int:
        """The iteration of the latest result; 0 before the first."""
        return int(self._last_result.get("training_iteration", 0))

    def go_back_to(self, iteration: int) -> None:
        """Let the state be that of an earlier iteration; results after it are cut off by a resume."""
        self._host.iteration = iteration

    # --- training ---

    def leave(self) -> None:
        """Take no more part in the group's dispatches."""
        self._group.leave(self._place)

    def adopt(self, source: "LaneRun", numbers: Mapping[str, float], salt: int) -> None:
        """Go on as a copy of another lane: all of it but its keys, and with other numbers.

        Args:
            source: Where the state, what was counted and the other values come from.
            numbers: Training settings that change.
            salt: What this lane's keys are folded with.
        """
        self._lane_learner.adopt(source.state, numbers, salt)
        values = {**source.own_values, **numbers}
        self._change_config(values)
        self._have(values)
        self._updates = source._updates
        self._last_result = source._last_result
        own = self._host
        self._host = dataclasses.replace(
            source._host, time_total_s=own.time_total_s, actions_drawn=own.actions_drawn
        )

    def _change_config(self, numbers: Mapping[str, Any]) -> None:
        """So that checkpoints tell the numbers that the state has."""
        config = self.config.copy(copy_frozen=False).update_from_dict(numbers)
        config.freeze()
        self.config = config

    def train(self) -> Result:
        """One iteration.

        Raises:
            DivergenceError: None of its updates was finite, or as `on_nonfinite="raise"` says.
        """
        before = self._updates
        result = super().train()
        learned = result["learners"][DEFAULT_MODULE]
        self._updates = learned["num_updates_lifetime"]
        tolerance = self.config.fault_tolerance_settings.nonfinite_updates_tolerance
        lost = result["fault_tolerance"]["num_nonfinite_updates"]
        all_skipped = math.isnan(learned.get("grad_norm", math.nan))
        if self._updates - before >= tolerance and all_skipped and lost >= tolerance:
            error = DivergenceError(
                f"None of the {self._updates - before} updates of iteration {self.iteration} had a "
                f"finite loss and gradient; the lane is saved in {self.save()}."
            )
            raise naming_checkpoint(error)
        return result

    # --- checkpoints ---

    def keep_checkpoint(self) -> None:
        """Let the checkpoint of this iteration stay, whatever else, until another is named."""
        self._recorder.keep(self.iteration)

    def go_on_from(
        self, checkpoint: Path, values: Mapping[str, Any] | None, overrides: Mapping[str, Any]
    ) -> None:
        """The state that the lane had, with what all lanes share.

        Args:
            checkpoint: Of the lane.
            values: What it had of its own, where that is not what the sweep began with.
            overrides: Settings that are not restored, see `Algorithm.from_checkpoint`.
        """
        metadata = ckpt.read_metadata(checkpoint)
        leaves: Mapping[str, Any] = ckpt.read_leaves(checkpoint, metadata)
        if overrides:
            own = ckpt.host_leaves(self.state)
            leaves = host.with_overrides(leaves, own, self.config, overrides)
        self._lane_learner.takes_counters = True
        self._load(checkpoint, metadata, leaves)
        self._lane_learner.takes_counters = False
        if values is not None:
            self._change_config(values)
            self._have(values)
        self._updates = int(self.state.progress.updates)
        self.keep_checkpoint()

    # --- what an Algorithm is made of ---

    def _device_trials(self, config: "AlgorithmConfig") -> DeviceTrials:
        del config  # lanes share the devices of their program
        return DeviceTrials(None)

    def _assembled(self, trials: DeviceTrials, trains: bool) -> tuple[Assembly, list[Device], str]:
        del trains
        number = len(self._group.lanes)
        why = f"Lane {self._place} of {number} in one program."
        return self._group.assembly, self._group.devices[:1], why

    def _evaluation_with(self, hooks: RunnerHooks) -> LaneEvaluation:
        group, place = self._group, self._place
        return LaneEvaluation(
            self.config, self._assembly, hooks, group, place, self._evaluation_key
        )

    def _acting(self) -> tuple[Actor, PyTree]:
        state = self._group.state(self._place, buffer=False)
        return self._assembly.runner.actor(state), state.env_params

    def _actor(self) -> Actor:
        version = self._group.version
        if self._actor_at is None or self._actor_at[0] != version:
            self._actor_at = version, self._acting()[0]
        return self._actor_at[1]

    def _learner_group(self) -> LaneLearner:
        self._lane_learner = LaneLearner(self._group, self._place)
        return self._lane_learner

    def _loop_of(self) -> LaneDispatcher:
        hooks = AlgorithmHooks(self._callbacks, self, OF_DISPATCHES)
        runner, replay = self._assembly.in_graph_runner, self._assembly.replay
        steps = runner.batch_steps
        trained = steps if replay is None else replay.num_updates * replay.rows_per_update
        self._dispatcher = LaneDispatcher(self._learners, steps, trained, hooks)
        return self._dispatcher
