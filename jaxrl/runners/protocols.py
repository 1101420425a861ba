"""Interfaces between an Algorithm, its training loop and its env runners."""

import dataclasses
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, cast, runtime_checkable

from jaxrl.compat.lookup import RLlibNames
from jaxrl.core.types import PyTree
from jaxrl.errors import ConfigError
from jaxrl.metrics import DEFAULT_MODULE
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.learner_steps import LearnerSteps, StepBatch, StepResult
from jaxrl.runtime.program import Program
from jaxrl.training.nonfinite import drop_counts
from jaxrl.training.report import DispatchResult, IterationTotals, TrainReport
from jaxrl.training.rollout import PolicyStep
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.config import Config
    from jaxrl.config.settings.run import ReportingSettings
    from jaxrl.envs.multi.host_made import MadeMultiHostEnv
    from jaxrl.policy.policy import Policy, RunnerPolicies
    from jaxrl.runners.compiled_runner import CompiledRunnerGroup
    from jaxrl.runners.env_runner import EnvRunner


Fill: TypeAlias = Callable[[str, Callable[[], PyTree]], PyTree]
"""Function that maps the name of a part of the state, and a function returning its current value,
to the saved value; None if nothing was saved."""


class EnvRunnerGroup(Protocol):
    """Env runners of a run: one in this process, or actors.

    `notes` holds messages for `explain()`; `is_compiled` is whether environments are part of the
    compiled program, so that the runners only stand in for it.
    """

    is_compiled: ClassVar[bool]
    notes: list[str]

    @property
    def task(self) -> PyTree:
        """Latest task that was set, as `HostVector.set_task` takes it; None for none."""
        ...

    @property
    def programs(self) -> list[Program]:
        """Programs compiled in this process for acting."""
        ...

    def set_policies(self, policies: Mapping[str, Any]) -> None:
        """Take the run's policies by id, for what stands in for runners."""
        ...

    def sync_weights(self, weights: Weights) -> None:
        """Set the weights to act with, and the task if they come with one."""
        ...

    def set_task(self, task: PyTree) -> None:
        """Change the task of all environments at once; see `HostVector.set_task`."""
        ...

    def next_batch(self) -> list[Fragment]:
        """Return the fragments of the next train batch, in the order of its columns."""
        ...

    def get_metrics(self) -> dict[str, Any]:
        """Return entries for the result, since the last call except for lifetime counts."""
        ...

    def get_state(self) -> PyTree:
        """Return the state of all environments, in the order of their indices."""
        ...

    def set_state(self, state: PyTree) -> None:
        """Restore a state returned by `get_state`."""
        ...

    def get_counts(self) -> dict[str, Any]:
        """Return lifetime counts as JSON-compatible data."""
        ...

    def set_counts(self, counts: dict[str, Any]) -> None:
        """Restore counts returned by `get_counts`."""
        ...

    def foreach_env_runner(
        self,
        func: Callable[[Any], Any] | str,
        *,
        kwargs: dict[str, Any] | None = None,
        local_env_runner: bool = True,
    ) -> list[Any]:
        """Call a function, or the method of a name, on each runner and return the results.

        Args:
            func: Function of a runner, or the name of its method.
            kwargs: Keyword arguments.
            local_env_runner: Whether the runner of this process, or what stands in for it, is among
                them.
        """
        ...

    def foreach_env_runner_with_index(
        self, func: Callable[[int, Any], Any]
    ) -> list[tuple[int, Any]]:
        """Call a function of index and runner on each that steps environments."""
        ...

    def stop(self) -> None:
        """Release all resources; safe to call more than once."""
        ...


@runtime_checkable
class ChangingRunners(Protocol):
    """Runners whose modules may change while a run goes on."""

    @property
    def local_config(self) -> "Config":
        """Config of the runner in this process, or of what stands in for it."""
        ...

    def change_modules(
        self, config: "Config", made: "MadeMultiHostEnv", *, has_new_mapping: bool
    ) -> None:
        """Act with the modules of a changed config of several agents, which has all those before.

        Args:
            config: The changed config.
            made: Environment of the agents.
            has_new_mapping: Whether `policy_mapping_fn` has changed; runners otherwise keep theirs.
        """
        ...

    def keep_config(self, config: "Config", made: "MadeMultiHostEnv") -> None:
        """Give runners that start later a config whose modules are the same."""
        ...


def call_runner(
    runner: object, fn: Callable[[Any], Any] | str, kwargs: Mapping[str, Any] | None
) -> Any:
    """Call a function on a runner, or its method of a name, with keyword arguments."""
    if isinstance(fn, str):
        return getattr(runner, fn)(**(kwargs or {}))
    return fn(runner, **(kwargs or {}))


def make_policies(
    steps: Mapping[str, PolicyStep], config: "Config", *, explore: bool
) -> "RunnerPolicies":
    """Make the policies that a runner returns, see `jaxrl.policy.policy.RunnerPolicies`."""
    higher = importlib.import_module("jaxrl.policy.policy")  # by name: it is a higher layer
    return higher.RunnerPolicies(steps, config, explore=explore)


class FormerGroupNames(RLlibNames):
    """Base class of groups of runners, with RLlib's former methods."""

    _rllib_kind = "runner_group"

    def set_policies(self, policies: Mapping[str, Any]) -> None:
        """Take the run's policies by id, for what stands in for runners."""

    def local_worker(self) -> "EnvRunner | Any":
        """Return the runner of this process, or what stands in for it."""
        return cast("Any", self).local_env_runner

    def foreach_worker_with_id(self, func: Callable[[int, Any], Any]) -> list[Any]:
        """Call a function of index and runner on each, and return the results."""
        pairs = cast("EnvRunnerGroup", self).foreach_env_runner_with_index(func)
        return [result for _, result in pairs]

    foreach_worker_with_index = foreach_worker_with_id
    """RLlib's older name."""


class ReadsPolicies:
    """Mix-in of what stands in for a runner: its policies are those of the run.

    Attributes:
        run_policies: Policies of the run by id, None until it is built.
    """

    run_policies: "Mapping[str, Policy] | None" = None

    @property
    def policy_map(self) -> "Mapping[str, Policy]":
        """Policies by id with the weights of now, to read."""
        if self.run_policies is None:
            raise ConfigError("The run is not built yet: read policies when build() is over.")
        return self.run_policies

    def get_policy(self, policy_id: str = DEFAULT_MODULE) -> "Policy | Any":
        """Return the policy with the weights of now, to read; None for an unknown id."""
        return self.policy_map.get(policy_id)


class Loop(Protocol):
    """Training loop of a run, either over the compiled program or over host runners.

    Members that apply to only one of the two return an empty value for the other.
    """

    @property
    def task(self) -> PyTree:
        """Current task of the environments, as `HostVector.set_task` takes it; None for none."""
        ...

    @property
    def runners(self) -> "EnvRunnerGroup | CompiledRunnerGroup":
        """Host runners, or what stands in for them if environments are in the program."""
        ...

    @property
    def notes(self) -> list[str]:
        """Messages for `explain()`."""
        ...

    @property
    def programs(self) -> list[Program]:
        """Compiled programs other than those of the learners."""
        ...

    def broadcast_if_due(self) -> None:
        """Send the weights to act with to runners on the host, as the next batch would."""
        ...

    def prepare(self) -> None:
        """Create everything that training needs, so that errors are raised early."""
        ...

    def next_num_batches(
        self, reporting: "ReportingSettings", totals: IterationTotals, elapsed: float
    ) -> int:
        """Return the number of train batches to dispatch next, 0 if the iteration is complete.

        Args:
            reporting: Required minimum of steps and seconds per iteration.
            totals: Totals of the iteration so far.
            elapsed: Seconds since the start of the iteration.
        """
        ...

    def set_lookahead(self, num_iterations: int) -> None:
        """Set the number of iterations that may be computed before the state is read.

        Args:
            num_iterations: Expected number, including the one that starts now. A wrong value costs
                computation but does not change results.
        """
        ...

    def run_batches(self, num_batches: int, on_phase: Callable[[str], None]) -> DispatchResult:
        """Run train batches and call the hooks for their episodes and samples."""
        ...

    def sample(self, steps: LearnerSteps) -> tuple[Any, StepResult]:
        """Sample one train batch for a training step of one's own, and call the hooks for it."""
        ...

    def update(
        self, steps: LearnerSteps, batch: "StepBatch | None", num_updates: int | None
    ) -> StepResult:
        """Update the learners from a batch, or from their buffer if it is None."""
        ...

    def sync_weights(self, steps: LearnerSteps) -> None:
        """Act with the learners' weights from the next `sample` on."""
        ...

    def resume_steps(self, steps: LearnerSteps) -> None:
        """Expect that a restored run was saved between steps of a training step of one's own."""
        ...

    def fetch_report(self, pending: Sequence[Any]) -> TrainReport:
        """Fetch the report on several dispatches, given their `pending`, in one transfer."""
        ...

    def extend_result(self, result: dict[str, Any]) -> dict[str, Any]:
        """Add the loop's metrics since the last result, including its `timers`, to a result."""
        ...

    def choose_task(self, result: Mapping[str, Any]) -> None:
        """Choose the task of the next iteration from the result of this one."""
        ...

    def full_state(self, state: TrainState) -> TrainState:
        """Return the learner state including environment states that are kept separately."""
        ...

    def env_leaves(self, leaves: Mapping[str, Any], counts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the leaves of a saved full state that do not belong to the learners.

        Args:
            leaves: Leaves of the saved state.
            counts: Return value of `get_counts` at the time of saving.

        Raises:
            CheckpointError: If the counts for these leaves are missing.
        """
        ...

    def check_counts(self, counts: Mapping[str, Any]) -> None:
        """Check that the run can go on from a checkpoint, before anything is changed.

        Args:
            counts: Return value of `get_counts` at the time of saving.

        Raises:
            CheckpointError: If it cannot.
        """
        ...

    def restore(self, fill: Fill, counts: Mapping[str, Any]) -> None:
        """Continue from a checkpoint.

        Args:
            fill: Function that fills a part of the state from the saved leaves.
            counts: Return value of `get_counts` at the time of saving.
        """
        ...

    def get_counts(self) -> dict[str, Any]:
        """Return lifetime counts that are not part of the state, as JSON-compatible data."""
        ...

    def stop(self) -> None:
        """Release all resources; safe to call more than once."""
        ...


def count_steps_left(
    reporting: "ReportingSettings", totals: IterationTotals, env_steps: int
) -> tuple[int, int]:
    """Return the numbers of steps that an iteration still has to sample and to train on.

    They are negative if the iteration has more than enough. With replay, the number of trained
    steps has to be fetched from the device, so it is only used if a minimum is set.

    Args:
        reporting: Required minimum of steps per iteration.
        totals: Totals of the iteration so far.
        env_steps: Number of steps that count as sampled in the iteration.
    """
    to_sample = max(reporting.min_sample_timesteps_per_iteration, 1) - env_steps
    to_train = reporting.min_train_timesteps_per_iteration
    if to_train:
        to_train -= env_steps if totals.source is None else totals.env_steps_trained
    return to_sample, to_train


@dataclasses.dataclass(frozen=True)
class LearnerMetrics(Mapping[str, float]):
    """Learner metrics, averaged over the train batches of a dispatch that were trained on.

    The mapping is empty if there were none. Values are fetched from the learners on access.
    """

    loop: Loop
    dispatched: DispatchResult

    def __getitem__(self, name: str) -> float:
        return self._fetch()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fetch())

    def __len__(self) -> int:
        return len(self._fetch())

    def _fetch(self) -> dict[str, float]:
        summaries = self.loop.fetch_report([self.dispatched.pending]).summaries
        learned = sum(int(summary.learned_batches) for summary in summaries)
        totals: dict[str, float] = {}
        for summary in summaries:
            for name, value in drop_counts(summary.metrics).items():
                totals[name] = totals.get(name, 0.0) + float(value)
        return {name: value / learned for name, value in totals.items() if learned}
