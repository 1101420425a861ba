"""A lane of a sweep with everything that a run by itself has: results, evaluation, checkpoints."""

from typing import TYPE_CHECKING

from jaxrl.algorithm import Algorithm, Result
from jaxrl.core.types import Device
from jaxrl.errors import DivergenceError
from jaxrl.metrics import DEFAULT_MODULE
from jaxrl.runners.assemble import Assembly
from jaxrl.runners.evaluation import Evaluation
from jaxrl.runners.hooks import OF_DISPATCHES, AlgorithmHooks, RunnerHooks
from jaxrl.runners.lane_group import LaneDispatcher, LaneGroup, LaneLearner

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


class LaneRun(Algorithm):
    """One lane of a group: everything of an Algorithm but its state and its programs.

    Args:
        config: The lane's.
        group: Where the lane lives.
        place: In the group.
    """

    def __init__(self, config: "AlgorithmConfig", group: LaneGroup, place: int) -> None:
        self._group, self._place = group, place
        self._updates = 0
        super().__init__(config)

    def leave(self) -> None:
        """Take no more part in the group's dispatches."""
        self._group.leave(self._place)

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
        if self._updates - before >= tolerance and "grad_norm" not in learned and lost >= tolerance:
            raise DivergenceError(
                f"None of the {self._updates - before} updates of iteration {self.iteration} had a "
                f"finite loss and gradient; the lane is saved in {self.save()}."
            )
        return result

    def _assembled(self) -> tuple[Assembly, list[Device], str]:
        number = len(self._group.lanes)
        why = f"Lane {self._place} of {number} in one program."
        return self._group.assembly, self._group.devices[:1], why

    def _evaluation_with(self, hooks: RunnerHooks) -> Evaluation:
        shared = self._group.evaluations
        return Evaluation(self.config, self._assembly, hooks, programs=shared)

    def _learner_group(self) -> LaneLearner:
        return LaneLearner(self._group, self._place)

    def _loop_of(self) -> LaneDispatcher:
        hooks = AlgorithmHooks(self._callbacks, self, OF_DISPATCHES)
        runner, replay = self._assembly.in_graph_runner, self._assembly.replay
        steps = runner.batch_steps
        trained = steps if replay is None else replay.num_updates * replay.rows_per_update
        return LaneDispatcher(self._learners, steps, trained, hooks)
