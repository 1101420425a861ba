"""Groups of lanes with one compiled program: a dispatch trains all lanes of the group.

Each lane of a group gets its part of a dispatch's report.
"""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxrl.algorithm import Algorithm, Result
from jaxrl.assembly.assemble import Assembly
from jaxrl.buffers.dataset import Dataset
from jaxrl.config.multi_agent import get_module_overrides
from jaxrl.config.settings.multi_agent import MultiAgentSettings
from jaxrl.config.sweep import Lane
from jaxrl.core.hparams import HParams, to_leaf
from jaxrl.core.keys import make_key
from jaxrl.core.seeds import split_seed
from jaxrl.core.types import Device, Key, Keys, PyTree
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.registry import MadeEnv, MadeMultiEnv
from jaxrl.errors import ConfigError, DivergenceError, mark_has_checkpoint_path
from jaxrl.evaluation.compiled import JaxEvaluation
from jaxrl.loggers import RunFolder
from jaxrl.loggers.recorder import RunRecord
from jaxrl.metrics import ALL_MODULES, DEFAULT_MODULE
from jaxrl.run_parts import LoadLeaves, SharedParts
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.in_graph_loop import InGraphLoop
from jaxrl.runners.learner_group import LearnerGroup
from jaxrl.runners.offline import read_dataset
from jaxrl.runners.protocols import Loop
from jaxrl.runs import checkpoint as ckpt
from jaxrl.runs import host_state as host
from jaxrl.runtime.program import Program
from jaxrl.sweeps.grouping import get_lane_numbers
from jaxrl.sweeps.lanes import (
    LanePrograms,
    Lanes,
    choose_lane_devices,
    count_slots,
    get_vmap_axes,
    is_per_lane,
    make_lane_programs,
    place_for_all,
    shard_lanes,
    stack_trees,
)
from jaxrl.training.evaluate import EvaluationInputs, EvaluationResult, Evaluator
from jaxrl.training.report import IterationTotals, TrainReport, to_host
from jaxrl.training.rollout import ActorState
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.config import Config


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SharedDataset:
    """Recorded rows, and the digest of the data that they were read from."""

    dataset: Dataset
    fingerprint: str

    @property
    def num_bytes(self) -> int:
        """Size of the rows in bytes, on one device."""
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.dataset))


class LaneData:
    """Datasets of a sweep. Programs that learn from equal rows on the same devices share them."""

    def __init__(self) -> None:
        self._placed: dict[tuple[str, tuple[Device, ...]], Dataset] = {}

    def place(self, data: SharedDataset, devices: Sequence[Device]) -> SharedDataset:
        """Return the data with their rows on each of the devices, where equal ones may be already."""
        key = _hash_arrays(data.dataset), tuple(devices)
        if key not in self._placed:
            self._placed[key] = place_for_all(data.dataset, devices)
        return dataclasses.replace(data, dataset=self._placed[key])


def read_lane_data(config: "Config", assembly: Assembly, device: Device) -> SharedDataset | None:
    """Read the recorded data of lanes into host memory; None if lanes step environments.

    Args:
        config: Config of one of the lanes.
        assembly: Functions of the lanes.
        device: Device that is to hold the rows.

    Raises:
        JaxrlError: If there are no data, or they are damaged, too large, or do not fit.
    """
    if not assembly.is_offline:
        return None
    sampler = assembly.offline_step.experience
    dataset, fingerprint = read_dataset(config, assembly, sampler, device)
    return SharedDataset(dataset=dataset, fingerprint=fingerprint)


def _hash_arrays(dataset: Dataset) -> str:
    """Return a digest of the rows as they are learned from."""
    leaves, structure = jax.tree.flatten(dataset)
    digest = hashlib.sha256(str(structure).encode())
    for leaf in leaves:
        digest.update(f"{leaf.shape} {leaf.dtype}".encode())
        digest.update(np.ascontiguousarray(leaf).data)
    return digest.hexdigest()


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


class LaneGroup:
    """Lanes of one compiled program, with their states.

    Args:
        lanes: Lanes that can share a program.
        env_params: Parameters of each lane's environment.
        assembly: Functions shared by all lanes; in-graph.
        devices: Local devices among which the lanes are divided. If they have no equal shares, lanes
            are added: copies of the last one that are never read.
        varying_settings: Names of the settings that differ between lanes.
        data: Recorded data that all lanes learn from; None if they step environments.
        template: Group whose programs are reused; its settings differ only in numbers. It has at
            least as many lanes; this group is padded to its size.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        env_params: Sequence[PyTree],
        assembly: Assembly,
        devices: list[Device],
        varying_settings: Collection[str],
        data: SharedDataset | None = None,
        template: "LaneGroup | None" = None,
    ) -> None:
        self.assembly, self.data = assembly, data
        self.shared: dict[str, Any] = {} if template is None else template.shared
        """Objects by name that all lanes share."""
        self.num_lanes = len(lanes)
        """Number of lanes without copies that are never read."""
        slots = count_slots(len(lanes), len(devices)) if template is None else len(template.lanes)
        padding = slots - len(lanes)
        self.lanes = [*lanes, *[lanes[-1]] * padding]
        """Lanes and copies; the index is the slot."""
        self.devices = choose_lane_devices(devices, slots)
        self._inputs = () if data is None else (data.dataset,)
        arguments = self._make_arguments([*env_params, *[env_params[-1]] * padding])
        self._compiled = (
            self._compile(arguments, varying_settings) if template is None else template._compiled
        )
        self.states: TrainState = self._compiled.init(*arguments)
        self._is_per_lane = is_per_lane(self.states)
        self._num_taken: list[int | None] = [*[0] * len(lanes), *[None] * padding]
        """Number of dispatches that each lane has consumed; None for inactive lanes."""
        self._reports: dict[int, tuple[int, TrainReport]] = {}
        """Batches and report of each dispatch that some lane has yet to consume, by number."""
        self._counts: dict[int, Array] = {}
        """Number of ended episodes in each shard of each lane before these dispatches."""
        self._num_dispatches = 0
        self.version = 0
        """Version of the states, incremented whenever one changes."""
        self.evaluations = (
            SharedEvaluations() if template is None else template.evaluations.copy_without_results()
        )

    @property
    def programs(self) -> list[Program]:
        """Compiled programs of the group."""
        return list(vars(self._compiled).values())

    def _make_arguments(self, env_params: Sequence[PyTree]) -> tuple[PyTree, ...]:
        """Return the arguments of `Lanes.init`, of all lanes."""
        numbers = [get_lane_numbers(lane.config) for lane in self.lanes]
        keys = jax.vmap(make_key)(np.stack([split_seed(lane.seed) for lane in self.lanes]))
        return keys, stack_trees(env_params), stack_trees(numbers), *self._inputs

    def _compile(self, arguments: tuple[Any, ...], own_numbers: Collection[str]) -> LanePrograms:
        lanes = Lanes.from_run(self.assembly.run, own_numbers)
        shapes = jax.eval_shape(lanes.init, *jax.tree.map(jax.typeof, arguments))
        jit = self.lanes[0].config.debugging_settings.compiles
        return make_lane_programs(lanes, shapes, self.devices, jit=jit)

    def get_pending_batches(self, slot: int) -> int | None:
        """Return the train batches of the next dispatch that a lane has to consume.

        Returns:
            The number of train batches; None if the lane has consumed all dispatches.
        """
        report = self._reports.get(self._num_taken[slot] or 0)
        return None if report is None else report[0]

    def get_episode_counts(self, slot: int) -> np.ndarray:
        """Return the episodes that ended in a lane's shards before the next dispatch to consume."""
        before = self._counts.get(self._num_taken[slot] or 0, self.states.ring.count)
        return np.asarray(before)[slot]

    def run_batches(self, slot: int, num_batches: int, on_phase: Callable[[str], None]) -> int:
        """Consume a lane's next dispatch, running it unless another lane has done so.

        Args:
            slot: Position of the lane in the group.
            num_batches: Number of train batches, if the dispatch has to be run.
            on_phase: Callback for the phases "compiling" and "training".

        Returns:
            The number of the dispatch.
        """
        number = self._num_taken[slot]
        assert number is not None
        if number == self._num_dispatches:
            self._dispatch(num_batches, on_phase)
        self._num_taken[slot] = number + 1
        return number

    def _dispatch(self, batches: int, on_phase: Callable[[str], None]) -> None:
        run, count = self._compiled.run, np.int32(batches)
        if not run.compile_stats:
            on_phase("compiling")
        compiled = run.get_executable(self.states, count, *self._inputs)
        on_phase("training")
        self._counts[self._num_dispatches] = jnp.copy(self.states.ring.count)
        self.states, summary = compiled(self.states, count, *self._inputs)
        self._reports[self._num_dispatches] = batches, TrainReport.fetch(self.states, [summary])
        self._num_dispatches += 1
        self.version += 1

    def fetch_report(self, slot: int, numbers: Sequence[int]) -> TrainReport:
        """Return a lane's report of dispatches that it consumed."""
        reports = [self._select_lane(self._reports[number][1], slot) for number in numbers]
        active = [taken for taken in self._num_taken if taken is not None]
        oldest = min(active, default=self._num_dispatches)
        for number in [n for n in self._reports if n < oldest]:
            del self._reports[number], self._counts[number]
        return TrainReport.merge(reports)

    def _select_lane(self, report: TrainReport, slot: int) -> TrainReport:
        """Return one lane's part of a report; shared counters have no axis of lanes."""

        def select(tree: PyTree) -> PyTree:
            return jax.tree.map(lambda x: x[slot], tree)

        row = report.latest
        updates = select(row.updates) if self._is_per_lane.progress.updates.low else row.updates
        latest = dataclasses.replace(
            select(dataclasses.replace(row, updates=(), buffer_position=())),
            updates=updates,
            buffer_position=row.buffer_position,
        )
        return dataclasses.replace(report, summaries=[latest.summary], latest=latest)

    def deactivate(self, slot: int) -> None:
        """Deactivate a lane: it consumes no more dispatches, but its state is still trained."""
        self._num_taken[slot] = None

    def get_state(self, slot: int, *, buffer: bool = True) -> TrainState:
        """Return a copy of a lane's state, with or without its buffer."""
        take = self._compiled.take if buffer else self._compiled.take_without_buffer
        return take(self.states, np.int32(slot))

    def set_state(self, slot: int, state: TrainState, *, counters: bool = False) -> None:
        """Replace the state of a lane; see `put_lane`."""
        put = self._compiled.put_with_counters if counters else self._compiled.put
        self.states = put(self.states, np.int32(slot), state)
        self.version += 1

    def copy_member(
        self, slot: int, source: TrainState, hparams: Mapping[str, float], salt: int
    ) -> None:
        """Replace a lane by a copy of another one's state and reactivate it; see `copy_member`."""
        values = self._to_leaves(self.lanes[slot].config.multi_agent_settings, hparams)
        self.states = self._compiled.copy_member(
            self.states, np.int32(slot), source, values, np.uint32(salt)
        )
        self._num_taken[slot] = self._num_dispatches
        self.version += 1

    def _to_leaves(
        self, settings: MultiAgentSettings, hparams: Mapping[str, float]
    ) -> dict[str, HParams]:
        """Return numbers as leaves for each module without a value of its own."""
        states = self.states.modules or {"": self.states}
        leaves: dict[str, HParams] = {}
        for module, state in states.items():
            own = get_module_overrides(settings, module) if module else {}
            leaves[module] = {
                name: to_leaf(value, state.learner.hparams[name])
                for name, value in hparams.items()
                if name not in own
            }
        return leaves


class LaneLearner:
    """Learner group of a single lane, backed by the lane's group.

    Args:
        group: Group of the lane.
        slot: Position of the lane in the group.
    """

    is_remote = False

    def __init__(self, group: LaneGroup, slot: int) -> None:
        self._group, self._slot = group, slot
        self._generation = 0
        self.should_set_counters = False
        """Whether setting `state` also sets the counters that all lanes share."""

    @property
    def state(self) -> TrainState:
        return self._group.get_state(self._slot)

    @state.setter
    def state(self, state: TrainState) -> None:
        self._group.set_state(self._slot, state, counters=self.should_set_counters)
        self._generation += 1

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def fingerprint(self) -> str | None:
        """Digest of the recorded data that the lane learns from; None if it steps environments."""
        return None if self._group.data is None else self._group.data.fingerprint

    @property
    def programs(self) -> list[Program]:
        """Programs of the group, reported by its first lane only."""
        return self._group.programs if self._slot == 0 else []

    def get_pending_batches(self) -> int | None:
        """Return the train batches of the next dispatch to consume, or None; see `LaneGroup`."""
        return self._group.get_pending_batches(self._slot)

    def get_episode_counts(self) -> np.ndarray:
        """Return the episodes that ended in each shard; see `LaneGroup.get_episode_counts`."""
        return self._group.get_episode_counts(self._slot)

    def run_batches(
        self, num_batches: int, on_phase: Callable[[str], None], *, max_iterations: int = 1
    ) -> int:
        del max_iterations  # a scheduler may act after any iteration
        return self._group.run_batches(self._slot, num_batches, on_phase)

    def copy_member(self, source: TrainState, hparams: Mapping[str, float], salt: int) -> None:
        """Replace the lane by a copy of another one's state; see `LaneGroup.copy_member`."""
        self._group.copy_member(self._slot, source, hparams, salt)
        self._generation += 1

    @property
    def user_buffer(self) -> None:
        """None: a buffer of a user's own needs a learner of one run in this process."""

    @property
    def steps(self) -> NoReturn:
        """Raise ConfigError: a step of one lane alone cannot be dispatched."""
        raise ConfigError(
            "A training_step of one's own cannot be used where several lanes share a program; "
            "train the lanes with jaxrl.tune, each in a process."
        )

    def update(self, fragments: Sequence[Fragment], on_phase: Callable[[str], None]) -> NoReturn:
        """Raise NotImplementedError: in-graph environments produce no fragments."""
        raise NotImplementedError

    def wait(self, pending: int) -> None:
        """Do nothing: reports are fetched with the dispatch."""

    def fetch_report(self, pending: Sequence[int]) -> TrainReport:
        return self._group.fetch_report(self._slot, pending)

    def get_weights(self, version: int) -> Weights:
        state = self.state
        return Weights(
            version=version, actor=self._group.assembly.train_step.make_actor_state(state)
        )

    def foreach_learner(self, func: Callable[[Any], Any]) -> list[Any]:
        return [func(self)]

    def stop(self) -> None:
        """Do nothing: there are no resources to release."""


class LaneDispatches:
    """Strategy of a lane: consume dispatches that other lanes have run before running new ones.

    The lane's own values are reported under "config" in its results.

    Args:
        learner: Learner of the lane.
    """

    def __init__(self, learner: LaneLearner) -> None:
        self._learner = learner
        self.reported_values: dict[str, float] = {}
        """Numbers among the values of settings that differ between lanes."""

    def get_pending_batches(self) -> int | None:
        return self._learner.get_pending_batches()

    def get_episode_counts(self, learners: LearnerGroup) -> np.ndarray:
        """Return the counts of the lane; another lane may have run the next dispatch already."""
        del learners
        return self._learner.get_episode_counts()

    def count_sampled_steps(self, totals: IterationTotals, batch_steps: int) -> int:
        """Count all rows, transitions or not, so that all lanes have equally many batches."""
        return totals.train_batches * batch_steps

    def extend_result(self, result: dict[str, Any]) -> dict[str, Any]:
        return {**result, "config": dict(self.reported_values)} if self.reported_values else result


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
        config: "Config",
        group: LaneGroup,
        slot: int,
        made: MadeEnv | MadeMultiEnv | MadeHostEnv,
        values: Mapping[str, Any],
        run_folder: RunFolder | None = None,
    ) -> None:
        self._group, self._slot = group, slot
        self._num_updates = 0
        self._learner = LaneLearner(group, slot)
        self._dispatches = LaneDispatches(self._learner)
        self.current_values: dict[str, Any] = {}
        assembly = group.assembly
        if assembly.is_offline:  # no state has the parameters of the lane's environment
            assembly = dataclasses.replace(assembly, made=made)
        parts = SharedParts(
            assembly=assembly,
            devices=group.devices[:1],
            placement_reason=f"Lane {slot} of {group.num_lanes} in one program.",
            learners=self._learner,
            dispatches=self._dispatches,
            acting=LaneActingState(group, slot),
            make_evaluation=self._make_evaluation,
            attach=self._attach,
            objects=group.shared,
        )
        self.algorithm = Algorithm(config, run_folder=run_folder, _parts=parts)
        self._set_values(values)

    def _make_evaluation(
        self, make_key: Callable[[int], Key], evaluation: JaxEvaluation
    ) -> LaneEvaluation:
        return LaneEvaluation(evaluation, self._group, self._slot, make_key)

    def _attach(self, record: RunRecord, loop: Loop, load: LoadLeaves) -> None:
        assert isinstance(loop, InGraphLoop)
        self._record, self._loop, self._load = record, loop, load

    def _set_values(self, values: Mapping[str, Any]) -> None:
        self.current_values = dict(values)
        self._dispatches.reported_values = {
            name: value
            for name, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }

    @property
    def last_iteration(self) -> int:
        """Iteration of the latest result; 0 before the first."""
        return self._record.last_iteration

    def rewind_to(self, iteration: int) -> None:
        """Label the current state with an earlier iteration; a resume discards later results."""
        self._record.iteration = iteration

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
        self._learner.copy_member(source.algorithm.state, hparams, salt)
        values = {**source.current_values, **hparams}
        self._update_config(values)
        self._set_values(values)
        self._num_updates = source._num_updates
        self._record.copy_progress(source._record)
        self._loop.curriculum.copy_state(source._loop.curriculum)
        logged = source._loop.metrics_logger.get_state()
        self._loop.metrics_logger.set_state(logged)

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
        self._record.recorder.protect_checkpoint(self.algorithm.iteration)

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
        self._learner.should_set_counters = True
        self._load(checkpoint, metadata, leaves)
        self._learner.should_set_counters = False
        if values is not None:
            self._update_config(values)
            self._set_values(values)
        self._num_updates = int(self.algorithm.state.progress.updates)
        self.keep_checkpoint()
