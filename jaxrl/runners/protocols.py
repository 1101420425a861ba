"""What a run's loop is to its Algorithm, wherever the environments are stepped."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from jaxrl.core.types import PyTree
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runtime.program import Program
from jaxrl.training.nonfinite import without_counts
from jaxrl.training.report import Dispatched, IterationTotals, Report
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.settings.run import Reporting


Fill: TypeAlias = Callable[[str, Callable[[], PyTree]], PyTree]
"""From a part's name and what gives it as it is to what was saved of it; None if nothing was."""


class EnvRunnerGroup(Protocol):
    """The runners of a run: one that is in this process, or actors.

    `notes` are sentences for `explain()`.
    """

    notes: list[str]

    @property
    def programs(self) -> list[Program]:
        """What was compiled in this process to act."""
        ...

    def publish(self, weights: Weights) -> None:
        """The weights to act with from now on."""
        ...

    def next_batch(self) -> list[Fragment]:
        """The fragments of one train batch, in the order of its columns."""
        ...

    def metrics(self) -> dict[str, Any]:
        """Parts of the result, since the last call where they are no lifetime counts."""
        ...

    def get_state(self) -> PyTree:
        """Where all the environments are, in the order of their indices."""
        ...

    def set_state(self, state: PyTree) -> None:
        """Go on from what `get_state` returned."""
        ...

    def get_counts(self) -> dict[str, Any]:
        """Lifetime counts, as JSON takes them."""
        ...

    def set_counts(self, counts: dict[str, Any]) -> None:
        """Go on counting from what `get_counts` returned."""
        ...

    def foreach_env_runner(self, fn: Callable[[Any], Any]) -> list[Any]:
        """What a function of each runner returns."""
        ...

    def stop(self) -> None:
        """Let everything go; may be called twice."""
        ...


class Loop(Protocol):
    """Dispatches train batches: of the compiled program, or from runners on the host.

    What only one of the two knows, the other answers with nothing.
    """

    @property
    def runners(self) -> EnvRunnerGroup | None:
        """The runners on the host; None where the environments are in the program."""
        ...

    @property
    def notes(self) -> list[str]:
        """Sentences for `explain()`."""
        ...

    @property
    def programs(self) -> list[Program]:
        """What was compiled beside the learners' programs."""
        ...

    def prepare(self) -> None:
        """Make what dispatching needs, so that whatever is wrong with it is told now."""
        ...

    def wanted(self, reporting: "Reporting", totals: IterationTotals, elapsed: float) -> int:
        """Train batches of the next dispatch, 0 when the iteration has all it was asked for."""
        ...

    def expect(self, iterations: int) -> None:
        """Learn how many iterations may be computed before the state is to be looked at.

        The one that begins is counted. Where more of them are asked for than that, or fewer, nothing
        is wrong but some work.
        """
        ...

    def dispatch(self, batches: int, on_phase: Callable[[str], None]) -> Dispatched:
        """Run so many train batches, and tell the user's hooks of what they sampled."""
        ...

    def report(self, pending: Sequence[Any]) -> Report:
        """What is to be known of several dispatches, by their `pending`, in one transfer."""
        ...

    def added_to(self, result: dict[str, Any]) -> dict[str, Any]:
        """A result with what the loop knows since the last one, below `timers` its seconds."""
        ...

    def whole(self, state: TrainState) -> TrainState:
        """The learners' state with that of environments which are kept apart from it."""
        ...

    def own_leaves(self, leaves: Mapping[str, Any], counts: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the leaves of a saved `whole` state that are not the learners'.

        Args:
            leaves: Of the state.
            counts: What `get_counts` returned then.

        Raises:
            CheckpointError: Leaves are there without the counts that belong to them.
        """
        ...

    def restore(self, fill: Fill, counts: Mapping[str, Any]) -> None:
        """Go on where a checkpoint says.

        Args:
            fill: Fills a part of the `own_leaves`.
            counts: What `get_counts` returned.
        """
        ...

    def get_counts(self) -> dict[str, Any]:
        """What lasts for the run's life and is in no state, as JSON takes it."""
        ...

    def stop(self) -> None:
        """Let everything go; may be called twice."""
        ...


def steps_left(reporting: "Reporting", totals: IterationTotals, env_steps: int) -> tuple[int, int]:
    """The steps that an iteration has still to sample, and those that it has still to train on.

    Negative where it has more than enough. What was trained on has to be fetched where it is not
    what was sampled, so that is looked at only if a number is asked for.

    Args:
        reporting: What was asked for.
        totals: Of the iteration so far.
        env_steps: Those that count as sampled in it.
    """
    to_sample = max(reporting.min_sample_timesteps_per_iteration, 1) - env_steps
    to_train = reporting.min_train_timesteps_per_iteration
    if to_train:
        to_train -= env_steps if totals.replay is None else totals.env_steps_trained
    return to_sample, to_train


@dataclasses.dataclass(frozen=True)
class LearnerMetrics(Mapping[str, float]):
    """Means over the train batches of a dispatch that were learned from; empty if none was.

    They are fetched from the learners when they are looked at.
    """

    loop: Loop
    dispatched: Dispatched

    def __getitem__(self, name: str) -> float:
        return self._fetched()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fetched())

    def __len__(self) -> int:
        return len(self._fetched())

    def _fetched(self) -> dict[str, float]:
        summary = self.loop.report([self.dispatched.pending]).summaries[0]
        learned = int(summary.learned_batches)
        metrics = without_counts(summary.metrics)
        return {name: float(value) / learned for name, value in metrics.items() if learned}
