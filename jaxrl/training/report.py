"""Reports fetched from the device, and the result dictionary with RLlib's keys."""

import dataclasses
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np
from jaxtyping import Array, Int

from jaxrl.buffers.dataset import DatasetSampler
from jaxrl.buffers.sequence import AnyReplayBuffer
from jaxrl.config.agent_mapping import DRAWN
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Counter, PyTree
from jaxrl.envs.multi.base import is_slot
from jaxrl.envs.vector import BREACHES, FAULT_NAMES
from jaxrl.errors import EnvError
from jaxrl.metrics import (
    ALL_MODULES,
    DEFAULT_MODULE,
    EMPTY_EPISODE_METRICS,
    EPISODE_RETURN_MEAN,
    REPLAY_BUFFER,
)
from jaxrl.training.episode_stats import (
    AgentReturns,
    AgentSums,
    EndedEpisode,
    EpisodeStatsBuffer,
    EpisodeSums,
)
from jaxrl.training.evaluate import EvaluationResult
from jaxrl.training.nonfinite import drop_counts, select_counts
from jaxrl.training.train_state import (
    RecordedRollouts,
    ReportRow,
    Summary,
    TrainState,
    make_report_row,
)


def collect_episodes(
    ring: EpisodeStatsBuffer, counts_before: np.ndarray
) -> tuple[list[EndedEpisode], int]:
    """Collect the episodes that ended since `counts_before`.

    Returns:
        Episodes in order of time, and the number of episodes that the ring had already overwritten.
    """
    size = ring.env_index.shape[1]
    episodes: list[EndedEpisode] = []
    places: list[tuple[int, int]] = []
    missed = 0
    for shard, (before, after) in enumerate(zip(counts_before, ring.count, strict=True)):
        fresh = int((int(after) - int(before)) % 2**32)
        missed += max(0, fresh - size)
        first = int(after) - min(fresh, size)
        for ordinal in range(first, int(after)):
            place = ordinal % size
            places.append((shard, place))
            episodes.append(
                EndedEpisode(
                    float(ring.episode_return[shard, place]),
                    int(ring.episode_length[shard, place]),
                    int(ring.env_index[shard, place]),
                    int(ring.env_step[shard, place]),
                )
            )
    if not episodes:
        return episodes, missed
    at = tuple(np.asarray(places).T)
    order = np.lexsort((ring.env_index[at], ring.row[at], _count_since(ring.arrival[at])))
    return [episodes[i] for i in order], missed


def add_agents(
    episodes: Sequence[EndedEpisode],
    rings: EpisodeStatsBuffer,
    patterns: Sequence[Mapping[str, str]],
) -> tuple[list[EndedEpisode], int]:
    """Add the returns and lengths of their agents to episodes.

    An agent may end several times in an episode, so that its ring goes back less far than that of
    episodes. Those that it may not cover are left out.

    Args:
        episodes: Episodes of environments.
        rings: Latest agent-episodes of each agent, `[A, G, K]`.
        patterns: Module of each agent, in their order, in copies of the environment.

    Returns:
        The episodes, and the number of those that are left out.
    """
    agents = list(patterns[0])
    size = rings.env_index.shape[2]
    steps, count = np.asarray(rings.env_step), np.asarray(rings.count)
    oldest = np.take_along_axis(steps, count[:, :, None] % size, axis=2)[..., 0]
    held = np.arange(size)[None, None] < rings.count[:, :, None]
    found: list[EndedEpisode] = []
    for episode in episodes:
        reach = (np.uint32(episode.env_step) - oldest).astype(np.int32)
        if ((count > size) & (reach < len(episode))).any():
            continue
        ago = (np.uint32(episode.env_step) - rings.env_step).astype(np.uint32)
        of_it = held & (rings.env_index == episode.env_index) & (ago < len(episode))
        took_part = [i for i in range(len(agents)) if of_it[i].any()]
        mapping = patterns[episode.env_index % len(patterns)]
        lengths = {agents[i]: int(rings.episode_length[i][of_it[i]].sum()) for i in took_part}
        returns = {agents[i]: float(rings.episode_return[i][of_it[i]].sum()) for i in took_part}
        found.append(
            dataclasses.replace(
                episode, agent_returns=returns, agent_lengths=lengths, mapping=mapping
            )
        )
    return found, len(episodes) - len(found)


def compute_episode_metrics(
    ring: EpisodeStatsBuffer, sums: EpisodeSums, smoothing: int
) -> dict[str, Any]:
    """Compute statistics over the last `smoothing` episodes.

    If more episodes ended in the iteration, they are over all of these. Until an episode has ended
    they are NaN.
    """
    count = int(sums.count.sum())
    lifetime = int(ring.count.astype(np.int64).sum())
    result: dict[str, Any] = {"num_episodes": count, "num_episodes_lifetime": lifetime}
    if count >= smoothing:
        low, high = sums.min_return.min(), sums.max_return.max()
        mean_return = sums.sum_return.sum(dtype=np.float64) / count
        mean_length = sums.sum_length.sum(dtype=np.float64) / count
        shortest, longest = sums.min_length.min(), sums.max_length.max()
    elif lifetime:
        returns, lengths = _latest_episodes(ring, smoothing)
        low, high, mean_return = returns.min(), returns.max(), returns.mean(dtype=np.float64)
        shortest, longest, mean_length = lengths.min(), lengths.max(), lengths.mean()
    else:
        return {**result, **EMPTY_EPISODE_METRICS}
    return {
        **result,
        "episode_return_mean": float(mean_return),
        "episode_return_min": float(low),
        "episode_return_max": float(high),
        "episode_len_mean": float(mean_length),
        "episode_len_min": int(shortest),
        "episode_len_max": int(longest),
    }


def _latest_episodes(ring: EpisodeStatsBuffer, number: int) -> tuple[Any, Any]:
    """Return the returns and lengths of the newest episodes of all shards together."""
    size = ring.env_index.shape[1]
    held = np.arange(size)[None, :] < np.minimum(ring.count, size)[:, None]
    newest = np.lexsort((-ring.row[held], -_count_since(ring.arrival[held])))[:number]
    return ring.episode_return[held][newest], ring.episode_length[held][newest]


def _count_since(arrival: Array) -> np.ndarray:
    """Return the signed steps of the run since any one of the episodes; counts begin anew at 0."""
    return (np.asarray(arrival) - np.asarray(arrival)[-1:]).astype(np.int32)


def add_sums(before: EpisodeSums | None, sums: EpisodeSums) -> EpisodeSums:
    """Return the sums of two parts; the first may be None, of no episodes."""
    return sums if before is None else _merge_sums(before, sums)


def _merge_sums(a: EpisodeSums, b: EpisodeSums) -> EpisodeSums:
    low = cast("Callable[..., Array]", np.minimum)
    high = cast("Callable[..., Array]", np.maximum)
    return EpisodeSums(
        count=a.count + b.count,
        sum_return=a.sum_return + b.sum_return,
        sum_length=a.sum_length + b.sum_length,
        min_return=low(a.min_return, b.min_return),
        max_return=high(a.max_return, b.max_return),
        min_length=low(a.min_length, b.min_length),
        max_length=high(a.max_length, b.max_length),
    )


def counter_to_int(counter: Counter) -> int:
    """Convert a fetched counter to an integer."""
    return (int(counter.high) << 32) + int(counter.low)


def counters_to_ints(counter: Counter) -> list[int]:
    """Convert fetched counters to integers."""
    pairs = zip(counter.high, counter.low, strict=True)
    return [(int(high) << 32) + int(low) for high, low in pairs]


@dataclasses.dataclass
class ModuleTotals:
    """Totals of one module over the dispatches of an iteration."""

    learned_batches: int = 0
    updates: int = 0
    rows: int = 0
    metrics: dict[str, float] = dataclasses.field(default_factory=dict[str, float])
    episode_sums: EpisodeSums | None = None

    def add(self, summary: Summary) -> None:
        """Add a dispatch."""
        self.learned_batches += int(summary.learned_batches)
        self.updates += int(summary.updates)
        self.rows += int(summary.env_steps)
        for name, value in summary.metrics.items():
            self.metrics[name] = self.metrics.get(name, 0.0) + float(value)
        self.episode_sums = add_sums(self.episode_sums, summary.episodes)

    def compute_means(self) -> dict[str, Any]:
        """Return the means of the metrics, NaN if every update was skipped."""
        batches = self.learned_batches
        return {
            name: value / batches if batches else np.nan
            for name, value in sorted(drop_counts(self.metrics).items())
            if batches or self.updates
        }


@dataclasses.dataclass
class AgentTotals:
    """Totals of agents and modules over the dispatches of an iteration.

    Args:
        patterns: Module of each agent, in the copies of the environment in turn; empty for a single
            agent, which has no totals.
        buffers: Replay buffer of each module that has one.
    """

    patterns: Sequence[Mapping[str, str]] = ()
    buffers: Mapping[str, AnyReplayBuffer] = dataclasses.field(
        default_factory=dict[str, AnyReplayBuffer]
    )
    modules: dict[str, ModuleTotals] = dataclasses.field(default_factory=dict[str, ModuleTotals])
    sums: AgentSums | None = None

    def add(self, summary: Summary) -> None:
        """Add a dispatch."""
        for name, module in summary.modules.items():
            self.modules.setdefault(name, ModuleTotals()).add(module)
        if summary.agents is not None:
            before = self.sums
            self.sums = AgentSums(
                episodes=add_sums(before and before.episodes, summary.agents.episodes),
                steps=summary.agents.steps + (0 if before is None else before.steps),
            )

    @property
    def nonfinite_counts(self) -> dict[str, float]:
        """Number of skipped updates in which each metric of each module was not finite."""
        return {
            f"{name}/{metric}": count
            for name, module in self.modules.items()
            for metric, count in select_counts(module.metrics).items()
        }

    def make_learners_result(self, latest: ReportRow, env_steps: int) -> dict[str, Any]:
        """Return the results of every module that was trained, and of all together."""
        trained = {name: own for name, own in self.modules.items() if own.updates}
        sampled = self._count_module_steps(latest)
        results: dict[str, Any] = {}
        for name, own in trained.items():
            updates, buffer = counter_to_int(latest.modules[name].updates), self.buffers.get(name)
            rows, lifetime = own.rows, sampled[name]
            if buffer is not None:  # a row counts once per draw
                rows, lifetime = (n * buffer.rows_per_update for n in (own.updates, updates))
            results[name] = {
                **own.compute_means(),
                "num_module_steps_trained": rows,
                "num_module_steps_trained_lifetime": lifetime,
                "num_updates_lifetime": updates,
            }
        totals = {
            key: sum(result[key] for result in results.values())
            for key in ("num_module_steps_trained", "num_module_steps_trained_lifetime")
        }
        results[ALL_MODULES] = {
            "num_env_steps_trained": env_steps,
            **totals,
            "num_updates_lifetime": counter_to_int(latest.updates),
        }
        return results

    def make_buffers_result(self, latest: ReportRow) -> dict[str, Any]:
        """Return RLlib's `replay_buffer` results of every module; rows of updates count as sampled."""
        lifetime = self._count_module_steps(latest)
        results: dict[str, Any] = {}
        for name, buffer in self.buffers.items():
            own, row = self.modules[name], latest.modules[name]
            place, is_full = row.buffer_position
            if is_full is None:
                stored = int(place.sum())
            else:  # all columns are written at the same position
                stored = buffer.num_envs * (buffer.length if is_full else int(place))
            capacity = buffer.num_envs * buffer.length
            results[name] = {
                "capacity": capacity,
                "num_module_steps_stored": stored,
                "fill": stored / capacity,
                "num_module_steps_added": own.rows,
                "num_module_steps_added_lifetime": lifetime[name],
                "num_module_steps_sampled": own.updates * buffer.rows_per_update,
                "num_module_steps_sampled_lifetime": counter_to_int(row.updates)
                * buffer.rows_per_update,
            }
        return results

    def _count_module_steps(self, latest: ReportRow) -> dict[str, int]:
        """Return the number of rows that each module ever had."""
        if latest.agents.module_steps:  # whose agents change
            by_module: Mapping[str, Counter] = latest.agents.module_steps
            return {name: counter_to_int(steps) for name, steps in by_module.items()}
        steps = counters_to_ints(latest.agents.steps)
        totals = dict.fromkeys(self.modules, 0)
        for module, number in zip(self.patterns[0].values(), steps, strict=True):
            if module in totals:
                totals[module] += number
        return totals

    def make_agents_result(self, latest: ReportRow, smoothing: int) -> dict[str, Any]:
        """Return RLlib's results of every agent and module below `env_runners`."""
        assert self.sums is not None
        agents = tuple(self.patterns[0])
        agent_steps = dict(zip(agents, counters_to_ints(latest.agents.steps), strict=True))
        agent_returns: dict[str, float] = {}
        sampled = dict(zip(agents, map(int, self.sums.steps), strict=True))
        for i, agent in enumerate(agents):
            if is_slot(agent):  # of other agents one after the other: modules have the results
                del agent_steps[agent], sampled[agent]
                continue
            ring, sums = jax.tree.map(lambda x, i=i: x[i], (latest.agents.ring, self.sums.episodes))
            metrics = compute_episode_metrics(ring, sums, smoothing)
            agent_returns[agent] = metrics[EPISODE_RETURN_MEAN]
        module_returns: dict[str, float] = {}
        for name, own in self.modules.items():
            assert own.episode_sums is not None
            metrics = compute_episode_metrics(
                latest.modules[name].ring, own.episode_sums, smoothing
            )
            module_returns[name] = metrics[EPISODE_RETURN_MEAN]
        return {
            "agent_episode_returns_mean": agent_returns,
            "module_episode_returns_mean": module_returns,
            "num_agent_steps_sampled": sampled,
            "num_agent_steps_sampled_lifetime": agent_steps,
            "num_module_steps_sampled": {name: own.rows for name, own in self.modules.items()},
            "num_module_steps_sampled_lifetime": self._count_module_steps(latest),
        }


def compute_agent_means(
    returns: AgentReturns, patterns: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """Return the mean return of each agent's episodes, and of each module's; NaN without any.

    Args:
        returns: Sums of the agents in each pattern.
        patterns: Module of each agent, DRAWN where it is drawn.
    """
    means: dict[str, dict[str, float]] = {}
    labels = np.array([list(own.values()) for own in patterns])
    agents = list(patterns[0])
    modules = sorted({str(module) for module in labels.flat if module != DRAWN})
    for name, labels_of, wanted in (
        ("agent_episode_returns_mean", np.array([agents] * len(patterns)), agents),
        ("module_episode_returns_mean", labels, modules),
    ):
        means[name] = {}
        for label in wanted:
            chosen = labels_of == label
            count = int(returns.count[chosen].sum())
            total = float(returns.total[chosen].sum(dtype=np.float64))
            means[name][label] = total / count if count else math.nan
    return means


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
    index, step = int(faults.env_index[shard]), int(faults.env_step[shard])
    check_fault(faults.kind[shard], env, f" at step {step} of environment {index},")


def check_fault(fault: Int[Array, ""], env: str, place: str = "") -> None:
    """Check that a fault is no breach of the contract.

    Args:
        fault: Number of a fault.
        env: Name of the environment.
        place: Words on where it was.

    Raises:
        EnvError: If a declaration was wrong.
    """
    breach = BREACHES.get(int(fault))
    if breach is not None:
        raise EnvError(f"{env}:{place} {breach}.")


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
