"""Evaluation of lanes: one program plays the episodes of all lanes of a group at once."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp

from jaxrl.assembly.assemble import Assembly
from jaxrl.config.sweep import Lane
from jaxrl.core.types import Device, Key, PyTree
from jaxrl.envs.registry import MadeEnv
from jaxrl.evaluation.evaluation import Evaluation
from jaxrl.runners.hooks import RunnerHooks
from jaxrl.runtime.program import Program
from jaxrl.sweeps.lanes import divided, lane_axes, stacked
from jaxrl.training.evaluate import Evaluated, EvaluationResult, Evaluator
from jaxrl.training.report import evaluation_metrics, to_host
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


class SharedEvaluations:
    """The evaluations of a group's lanes, their programs, and the latest results of all lanes.

    Args:
        programs: By their numbers of episodes; None begins without.
    """

    def __init__(self, programs: dict[int | None, Program] | None = None) -> None:
        self.programs: dict[int | None, Program] = {} if programs is None else programs
        self.members: dict[int, LaneEvaluation] = {}
        self.moment: Any = None
        """Of which states, episodes and iteration the results are."""
        self.results: EvaluationResult | None = None

    def anew(self) -> "SharedEvaluations":
        """Those of another group, with the same programs."""
        return SharedEvaluations(self.programs)


class _Group(Protocol):
    """What is needed of a LaneGroup."""

    evaluations: SharedEvaluations
    devices: list[Device]
    states: TrainState
    version: int
    lanes: list[Lane]


class LaneEvaluation(Evaluation):
    """One lane's evaluation: the first lane that is asked evaluates all of the group.

    Args:
        config: The lane's.
        assembly: The group's.
        hooks: What is called on the way.
        group: Where the lane lives.
        place: In the group.
        key_of: The key of the lane's evaluation after an iteration.
    """

    def __init__(
        self,
        config: "AlgorithmConfig",
        assembly: Assembly,
        hooks: RunnerHooks,
        group: _Group,
        place: int,
        key_of: Callable[[int], Key],
    ) -> None:
        super().__init__(config, assembly, hooks, programs=group.evaluations.programs)
        self._group, self._place, self._key_of = group, place, key_of
        group.evaluations.members[place] = self

    def _run_compiled(self, policy: Evaluated, num_episodes: int | None) -> dict[str, Any]:
        shared = self._group.evaluations
        moment = self._group.version, num_episodes, policy.iteration
        if shared.moment != moment:
            shared.results = self._results_of_all(policy.iteration, num_episodes)
            shared.moment = moment
        return evaluation_metrics(jax.tree.map(lambda x: x[self._place], shared.results))

    def compile(self, policy: Evaluated) -> None:
        if self._num_env_runners == 0:
            self._program(None).compiled_for(*self._arguments(policy.iteration))

    def needs_later(self, policy: Callable[[], Evaluated]) -> list[Callable[[], None]]:
        del policy  # lanes are not fitted one by one
        return []

    def _results_of_all(self, iteration: int, num_episodes: int | None) -> EvaluationResult:
        return to_host(self._program(num_episodes)(*self._arguments(iteration)))

    def _arguments(self, iteration: int) -> tuple[TrainState, PyTree, Key]:
        places = range(len(self._group.lanes))
        members = [self._group.evaluations.members.get(place, self) for place in places]
        keys = jnp.stack([member._key_of(iteration) for member in members])
        own = None if self._same_env else stacked([member._own_params for member in members])
        return self._group.states, own, keys

    @property
    def _own_params(self) -> PyTree:
        """Of the environment that `evaluation_config` names."""
        assert isinstance(self._made, MadeEnv)
        return self._made.params

    def _function(self, evaluator: Evaluator) -> Callable[..., Any]:
        def one(state: TrainState, own: PyTree, key: Key) -> EvaluationResult:
            params = self._params(state.env_params) if own is None else own
            return evaluator(self._assembly.runner.actor(state), params, key)

        def every(states: TrainState, own: PyTree, keys: Key) -> EvaluationResult:
            return jax.vmap(one, in_axes=(lane_axes(states), 0, 0))(states, own, keys)

        return divided(every, self._group.states, self._group.devices)
