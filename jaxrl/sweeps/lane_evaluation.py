"""Evaluation of lanes: one program runs the episodes of all lanes of a group."""

from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp

from jaxrl.config.sweep import Lane
from jaxrl.core.types import Device, Key, Keys, PyTree
from jaxrl.evaluation.compiled import JaxEvaluation
from jaxrl.runtime.program import Program
from jaxrl.sweeps.lanes import get_vmap_axes, shard_lanes, stack_trees
from jaxrl.training.evaluate import EvaluationInputs, EvaluationResult, Evaluator
from jaxrl.training.report import to_host
from jaxrl.training.train_state import TrainState


class SharedEvaluations:
    """Evaluations of a group's lanes, their programs, and the latest results of all lanes.

    Args:
        programs: Compiled programs by number of episodes; None starts without any.
    """

    def __init__(self, programs: dict[int | None, Program] | None = None) -> None:
        self.programs: dict[int | None, Program] = {} if programs is None else programs
        self.members: dict[int, LaneEvaluation] = {}
        self.results_key: tuple[int, int | None, int] | None = None
        """Version of the states, number of episodes and iteration of `results`."""
        self.results: EvaluationResult | None = None

    def copy_without_results(self) -> "SharedEvaluations":
        """Return an instance without lanes and results that shares the programs."""
        return SharedEvaluations(self.programs)


class _Group(Protocol):
    """Attributes of a LaneGroup that evaluation uses."""

    evaluations: SharedEvaluations
    devices: list[Device]
    states: TrainState
    version: int
    lanes: list[Lane]


class LaneEvaluation:
    """Evaluation of one lane; the first lane to be evaluated evaluates all lanes of its group.

    Args:
        evaluation: Environment and functions of the lane's evaluation.
        group: Group of the lane.
        slot: Position of the lane in the group.
        make_key: Function from an iteration to the lane's evaluation key.
    """

    def __init__(
        self,
        evaluation: JaxEvaluation,
        group: _Group,
        slot: int,
        make_key: Callable[[int], Key],
    ) -> None:
        self._evaluation, self._group, self._slot = evaluation, group, slot
        self.make_key = make_key
        group.evaluations.members[slot] = self

    @property
    def programs(self) -> list[Program]:
        return list(self._group.evaluations.programs.values())

    def run(self, policy: EvaluationInputs, num_episodes: int | None) -> EvaluationResult:
        shared = self._group.evaluations
        moment = self._group.version, num_episodes, policy.iteration
        if shared.results_key != moment:
            shared.results = self._evaluate_all(policy.iteration, num_episodes)
            shared.results_key = moment
        return jax.tree.map(lambda x: x[self._slot], shared.results)

    def compile(self, policy: EvaluationInputs) -> None:
        self._get_program(None).get_executable(*self._make_arguments(policy.iteration))

    def get_deferred_tasks(
        self, policy: Callable[[], EvaluationInputs]
    ) -> list[Callable[[], None]]:
        del policy  # lanes are not trained by `Algorithm.fit`, which calls these functions
        return []

    def stop(self) -> None:
        """Do nothing: there are no resources to release."""

    @property
    def env_params(self) -> PyTree:
        """Parameters of the environment that `evaluation_config` names, or else of the lane's own."""
        return self._evaluation.made.params

    def _evaluate_all(self, iteration: int, num_episodes: int | None) -> EvaluationResult:
        return to_host(self._get_program(num_episodes)(*self._make_arguments(iteration)))

    def _make_arguments(self, iteration: int) -> tuple[TrainState, PyTree, Keys]:
        slots = range(len(self._group.lanes))
        members = [self._group.evaluations.members.get(slot, self) for slot in slots]
        keys = jnp.stack([member.make_key(iteration) for member in members])
        is_in_state = self._evaluation.is_same_env and self._evaluation.assembly.is_in_graph
        params = None if is_in_state else stack_trees([member.env_params for member in members])
        return self._group.states, params, keys

    def _get_program(self, num_episodes: int | None) -> Program:
        programs = self._group.evaluations.programs
        if num_episodes not in programs:
            programs[num_episodes] = self._evaluation.make_program(
                num_episodes, self._make_function
            )
        return programs[num_episodes]

    def _make_function(self, evaluator: Evaluator) -> Callable[..., EvaluationResult]:
        runner = self._evaluation.assembly.train_step

        def evaluate_one(state: TrainState, params: PyTree, key: Key) -> EvaluationResult:
            params = self._evaluation.get_params(state.env_params) if params is None else params
            return evaluator(runner.make_actor_state(state), params, key)

        def evaluate_all(states: TrainState, params: PyTree, keys: Keys) -> EvaluationResult:
            return jax.vmap(evaluate_one, in_axes=(get_vmap_axes(states), 0, 0))(
                states, params, keys
            )

        return shard_lanes(evaluate_all, self._group.states, self._group.devices)
