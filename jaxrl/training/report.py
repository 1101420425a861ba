"""Reports fetched from the device, and the result dictionary with RLlib's keys."""

import dataclasses
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl.buffers.dataset import DatasetSampler
from jaxrl.buffers.sequence import AnyReplayBuffer
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import PyTree
from jaxrl.envs.vector import BREACHES, FAULT_NAMES
from jaxrl.errors import EnvError
from jaxrl.metrics import ALL_MODULES, DEFAULT_MODULE, EMPTY_EPISODE_METRICS, REPLAY_BUFFER
from jaxrl.training.agent_report import (
    AgentTotals,
    ModuleTotals,
    compute_agent_means,
    counter_to_int,
)
from jaxrl.training.episode_metrics import add_sums, compute_episode_metrics
from jaxrl.training.episode_stats import EpisodeSums
from jaxrl.training.evaluate import EvaluationResult
from jaxrl.training.nonfinite import select_counts
from jaxrl.training.train_state import (
    RecordedRollouts,
    ReportRow,
    Summary,
    TrainState,
    make_report_row,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DispatchResult:
    """Train batches of one dispatch.

    `pending` is the learners' handle to the report, yet to be fetched. `seconds` is the duration of
    the train batches and `wait_seconds` their share of the time spent waiting; `ahead_seconds` is the part of it
    that passed before they were requested (or after, if negative). `num_unreported_episodes` counts the
    episodes that were not passed to the user's callbacks because there were too many.
    """

    pending: object
    train_batches: int
    env_steps: int
    seconds: float
    wait_seconds: float
    ahead_seconds: float = 0.0
    num_unreported_episodes: int = 0


@pytree
class StepReports:
    """Reports of consecutive steps of a training step."""

    rows: tuple[ReportRow, ...]

    def as_train_report(self) -> "TrainReport":
        """Return fetched reports as one of a dispatch."""
        return TrainReport(summaries=[row.summary for row in self.rows], latest=self.rows[-1])

    def count_env_steps(self) -> int:
        """Return the number of sampled environment steps, waiting for the sampling alone."""
        return sum(int(row.summary.env_steps) for row in self.rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainReport:
    """Everything that the host reads, fetched in one transfer.

    `summaries` cover one dispatch each, `latest` is the report after the last of them. `seconds` is
    the duration of the train batches if it differs from the time until the report arrived, and
    `wait_seconds` their share of the time spent waiting for them and others. `recorded` has the
    rollouts of train batches in the compiled program, if they are recorded.
    """

    summaries: Sequence[Summary]
    latest: ReportRow
    seconds: float | None = None
    wait_seconds: float = 0.0
    recorded: RecordedRollouts | None = None

    def count_env_steps(self) -> int:
        """Return the number of sampled environment steps."""
        return sum(int(summary.env_steps) for summary in self.summaries)

    @staticmethod
    def fetch(
        state: TrainState,
        summaries: "Sequence[Summary | StepReports]",
        to_numpy: Callable[[PyTree], PyTree] | None = None,
    ) -> "TrainReport":
        """Copy a report to the host.

        Arrays are copied, since a live view would defeat donation.

        Args:
            state: State after the dispatches.
            summaries: Summaries of the dispatches, or reports of single steps.
            to_numpy: Function that copies arrays; None for arrays of this process.
        """
        each = [
            summary
            for x in summaries
            for summary in ([r.summary for r in x.rows] if isinstance(x, StepReports) else [x])
        ]
        row = make_report_row(state, each[-1])
        before, latest = (to_numpy or to_host)((each[:-1], row))
        return TrainReport(summaries=[*before, latest.summary], latest=latest)

    @staticmethod
    def from_row(
        rows: ReportRow, index: int, seconds: float | None = None, wait_seconds: float = 0.0
    ) -> "TrainReport":
        """Build the report of one row of fetched `[R, ...]` rows."""
        row = jax.tree.map(lambda x: x[index], rows)
        return TrainReport(
            summaries=[row.summary], latest=row, seconds=seconds, wait_seconds=wait_seconds
        )

    @staticmethod
    def merge(pending: "Sequence[TrainReport | StepReports]") -> "TrainReport":
        """Merge reports of consecutive dispatches into one, fetching those still on the devices."""
        reports = [
            x if isinstance(x, TrainReport) else jax.device_get(x).as_train_report()
            for x in pending
        ]
        summaries = [summary for report in reports for summary in report.summaries]
        return dataclasses.replace(reports[-1], summaries=summaries)


def to_host(tree: PyTree) -> PyTree:
    """Copy all leaves to NumPy arrays; typed keys are not supported."""
    return jax.tree.map(np.array, jax.device_get(tree))


def compute_guard_metrics(report: TrainReport) -> dict[str, Any]:
    """Return the divergence guard's counts since the start of the run."""
    faults = report.latest.faults
    count = int(faults.count.astype(np.int64).sum())
    result: dict[str, Any] = {
        "num_nonfinite_updates": int(report.latest.num_nonfinite),
        "num_nonfinite_updates_in_a_row": int(report.latest.in_a_row),
        "num_rollbacks": int(report.latest.num_rollbacks),
        "num_nonfinite_env_steps": count,
    }
    if count:
        seen = np.where(faults.count > 0, faults.env_step.astype(np.int64), -1)
        shard = int(np.argmax(seen))
        result["last_nonfinite_env_step"] = {
            "env_index": int(faults.env_index[shard]),
            "env_step": int(faults.env_step[shard]),
            "what": FAULT_NAMES[int(faults.kind[shard])],
        }
    return result


def check_declarations(report: TrainReport, env: str) -> None:
    """Check what an environment declares of its agents, as far as its steps showed.

    Raises:
        EnvError: If a declaration was wrong.
    """
    faults = report.latest.faults
    shard = int(np.argmax(faults.kind))
    breach = BREACHES.get(int(faults.kind[shard]))
    if breach is not None:
        index, step = int(faults.env_index[shard]), int(faults.env_step[shard])
        raise EnvError(f"{env}: at step {step} of environment {index}, {breach}.")


def compute_evaluation_metrics(
    result: EvaluationResult, patterns: Sequence[Mapping[str, str]] = ()
) -> dict[str, Any]:
    """Compute RLlib's `evaluation/env_runners` results.

    Args:
        result: Episodes of the evaluation.
        patterns: Module of each agent in copies of the environment; empty for a single agent.
    """
    if patterns and result.agents is not None:
        returns = compute_agent_means(result.agents, patterns)
        return {**compute_evaluation_metrics(replace(result, agents=None)), **returns}
    played = jax.tree.map(lambda x: x[result.episodes.count > 0], result.episodes)
    number = int(played.count.sum(dtype=np.int64))
    metrics: dict[str, Any] = {
        "num_episodes": number,
        "num_env_steps_sampled": int(result.env_steps),
        "num_nonfinite_env_steps": int(result.num_nonfinite),
        "num_episodes_cut": int(result.num_cut),
    }
    if not number:
        return {**metrics, **EMPTY_EPISODE_METRICS, "episode_return_std": math.nan}
    means = played.mean_return.astype(np.float64)
    mean = (played.count * means).sum() / number
    squares = played.squares.astype(np.float64) + played.count * np.square(means - mean)
    return {
        **metrics,
        "episode_return_mean": float(mean),
        "episode_return_min": float(played.min_return.min()),
        "episode_return_max": float(played.max_return.max()),
        "episode_return_std": math.sqrt(squares.sum() / number),
        "episode_len_mean": float(played.sum_length.sum(dtype=np.float64) / number),
        "episode_len_min": int(played.min_length.min()),
        "episode_len_max": int(played.max_length.max()),
    }


MAX_PENDING = 256
"""Maximum number of unfetched dispatches, whose reports stay in device memory until fetched."""


@dataclasses.dataclass
class IterationTotals:
    """Totals over the dispatches of one iteration.

    Reports are fetched when a value is needed, or once `MAX_PENDING` of them are waiting.

    Args:
        fetch: Function from the `pending` handles of dispatches to their report.
        source: Replay buffer or dataset that updates draw from; None if each sampled step is
            learned from once.
        patterns: Module of each agent in copies of the environment; empty for a single agent.
        buffers: Replay buffer of each of several modules that has one.
    """

    fetch: Callable[[Sequence[Any]], TrainReport]
    source: AnyReplayBuffer | DatasetSampler | None = None
    patterns: dataclasses.InitVar[Sequence[Mapping[str, str]]] = ()
    buffers: dataclasses.InitVar[Mapping[str, AnyReplayBuffer]] = types.MappingProxyType({})
    train_batches: int = 0
    env_steps: int = 0
    seconds: float = 0.0
    wait_seconds: float = 0.0
    ahead_seconds: float = 0.0
    learned: ModuleTotals = dataclasses.field(default_factory=ModuleTotals)
    episode_sums: EpisodeSums | None = None
    num_unreported_episodes: int = 0
    latest: TrainReport | None = None
    pending: list[Any] = dataclasses.field(default_factory=list)
    agents: AgentTotals = dataclasses.field(init=False)

    def __post_init__(
        self, patterns: Sequence[Mapping[str, str]], buffers: Mapping[str, AnyReplayBuffer]
    ) -> None:
        """Begin with no totals of agents."""
        self.agents = AgentTotals(patterns, buffers)

    def add(self, dispatch: DispatchResult) -> None:
        """Add a dispatch."""
        self.train_batches += dispatch.train_batches
        self.env_steps += dispatch.env_steps
        self.seconds += dispatch.seconds
        self.wait_seconds += dispatch.wait_seconds
        self.ahead_seconds += dispatch.ahead_seconds
        self.num_unreported_episodes += dispatch.num_unreported_episodes
        self.pending.append(dispatch.pending)
        if len(self.pending) == MAX_PENDING:
            self._fetch()

    def fetch_report(self) -> TrainReport:
        """Fetch pending reports and return the one after the latest dispatch."""
        self._fetch()
        assert self.latest is not None
        return self.latest

    def _fetch(self) -> None:
        if not self.pending:
            return
        pending, self.pending = self.pending, []
        self.latest = self.fetch(pending)
        for summary in self.latest.summaries:
            self._add(summary)

    def _add(self, summary: Summary) -> None:
        self.learned.add(summary)
        self.episode_sums = add_sums(self.episode_sums, summary.episodes)
        self.agents.add(summary)

    @property
    def env_steps_trained(self) -> int:
        """Number of rows in all gradient steps.

        With a replay buffer or a dataset, a row counts once per draw.
        """
        if self.source is None:
            return self.env_steps
        self._fetch()
        return self.learned.updates * self.source.rows_per_update

    @property
    def nonfinite_counts(self) -> dict[str, float]:
        """Number of skipped updates in which each metric was not finite."""
        self._fetch()
        return select_counts(self.learned.metrics) | self.agents.nonfinite_counts

    def make_result(self, smoothing: int) -> dict[str, Any]:
        """Return the part of a result that comes from training.

        Args:
            smoothing: Number of episodes that returns and lengths are averaged over.
        """
        report, sums = self.fetch_report(), self.episode_sums
        assert sums is not None
        source = self.source
        is_offline = isinstance(source, DatasetSampler)
        steps = 0 if is_offline else counter_to_int(report.latest.env_steps)
        sampled = {
            **compute_episode_metrics(report.latest.ring, sums, smoothing),
            "num_episodes_not_reported": self.num_unreported_episodes,
            "num_env_steps_sampled": self.env_steps,
            "num_env_steps_sampled_lifetime": steps,
            "num_env_steps_sampled_per_second": self.env_steps / max(self.seconds, 1e-9),
        }
        learned = self.learned.compute_means()
        trained = (
            steps
            if source is None
            else counter_to_int(report.latest.updates) * source.rows_per_update
        )
        learned["num_module_steps_trained_lifetime"] = trained
        learned["num_updates_lifetime"] = counter_to_int(report.latest.updates)
        buffer = (
            {}
            if source is None or is_offline
            else {REPLAY_BUFFER: self._buffer_metrics(source, report)}
        )
        learners = {DEFAULT_MODULE: learned}
        if self.agents.modules:
            learners = self.agents.make_learners_result(report.latest, self.env_steps)
            trained = learners[ALL_MODULES]["num_module_steps_trained_lifetime"]
            sampled |= self.agents.make_agents_result(report.latest, smoothing)
            if self.agents.buffers:
                buffer = {REPLAY_BUFFER: self.agents.make_buffers_result(report.latest)}
        return {
            "env_runners": sampled,
            "learners": learners,
            **buffer,
            "fault_tolerance": compute_guard_metrics(report),
            "num_env_steps_sampled_lifetime": steps,
            "num_env_steps_trained_lifetime": trained,
            "num_training_step_calls_per_iteration": self.train_batches,
        }

    def _buffer_metrics(self, replay: AnyReplayBuffer, report: TrainReport) -> dict[str, Any]:
        """Return RLlib's `replay_buffer` results; rows of updates count as sampled."""
        place, is_full = report.latest.buffer_position
        if is_full is None:  # a user's own, which counts transitions
            stored = int(place)
        else:
            stored = replay.num_envs * (replay.length if is_full else int(place))
        capacity = replay.num_envs * replay.length
        return {
            "capacity": capacity,
            "num_env_steps_stored": stored,
            "fill": stored / capacity,
            "num_env_steps_added": self.env_steps,
            "num_env_steps_added_lifetime": counter_to_int(report.latest.env_steps),
            "num_env_steps_sampled": self.env_steps_trained,
            "num_env_steps_sampled_lifetime": counter_to_int(report.latest.updates)
            * replay.rows_per_update,
        }


def merge_results(result: dict[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested results; where both have an entry, the second one wins."""
    joined = dict(result)
    for name, value in other.items():
        old: Any = joined.get(name)
        nested = isinstance(old, dict) and isinstance(value, Mapping)
        joined[name] = merge_results(old, value) if nested else value
    return joined
