"""From what the device reports to the result dictionary, with RLlib's keys."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl.buffers.sequence import AnyReplay
from jaxrl.core.types import Counter, PyTree
from jaxrl.envs.vector import FAULT_NAMES
from jaxrl.metrics import DEFAULT_MODULE, NO_EPISODE, REPLAY_BUFFER
from jaxrl.training.episode_stats import EndedEpisode, EpisodeRing, EpisodeSums
from jaxrl.training.evaluate import EvaluationResult
from jaxrl.training.nonfinite import only_counts, without_counts
from jaxrl.training.train_state import Row, Summary, TrainState, observed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dispatched:
    """Train batches that were run.

    `pending` is what the learners report on. `seconds` is what they took and `waited` their share of the
    time that was waited; `lent` of it passed before they were asked for (or after, if it is negative).
    `not_reported` counts the episodes that the user's hooks were not told of, because there were too many.
    """

    pending: Any
    train_batches: int
    env_steps: int
    seconds: float
    waited: float
    lent: float = 0.0
    not_reported: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that the host looks at, fetched in one transfer.

    `summaries` are those of single dispatches, `latest` is what there is to see after the last of
    them. `seconds` is what the train batches took, where that is not the time until the report came,
    and `waited` their share of the time that was waited for them and others.
    """

    summaries: Sequence[Summary]
    latest: Row
    seconds: float | None = None
    waited: float = 0.0

    @staticmethod
    def fetch(
        state: TrainState,
        summaries: Sequence[Summary],
        to_numpy: Callable[[PyTree], PyTree] | None = None,
    ) -> "Report":
        """Copy to the host, as arrays of its own: a live view would defeat donation.

        Args:
            state: After the dispatches.
            summaries: Theirs.
            to_numpy: How arrays are copied; None for those of this process.
        """
        row = observed(state, summaries[-1])
        before, latest = (to_numpy or to_host)((list(summaries[:-1]), row))
        return Report(summaries=[*before, latest.summary], latest=latest)

    @staticmethod
    def of_row(
        rows: Row, index: int, seconds: float | None = None, waited: float = 0.0
    ) -> "Report":
        """The report on one row of fetched `[R, ...]` rows."""
        row = jax.tree.map(lambda x: x[index], rows)
        return Report(summaries=[row.summary], latest=row, seconds=seconds, waited=waited)

    @staticmethod
    def joined(reports: "Sequence[Report]") -> "Report":
        """One of all the dispatches that several report on."""
        summaries = [summary for report in reports for summary in report.summaries]
        return dataclasses.replace(reports[-1], summaries=summaries)


def to_host(tree: PyTree) -> PyTree:
    """NumPy copies of all leaves, none of which may be a typed key."""
    return jax.tree.map(np.array, jax.device_get(tree))


def counted(counter: Counter) -> int:
    """A fetched counter as an integer."""
    return (int(counter.high) << 32) + int(counter.low)


def new_episodes(ring: EpisodeRing, counts_before: np.ndarray) -> tuple[list[EndedEpisode], int]:
    """The episodes since the counts, in order of time, and how many the ring did not hold."""
    size = ring.env_index.shape[1]
    episodes: list[EndedEpisode] = []
    missed = 0
    for shard, (before, after) in enumerate(zip(counts_before, ring.count, strict=True)):
        fresh = int((int(after) - int(before)) % 2**32)
        missed += max(0, fresh - size)
        first = int(after) - min(fresh, size)
        for ordinal in range(first, int(after)):
            place = ordinal % size
            episodes.append(
                EndedEpisode(
                    float(ring.episode_return[shard, place]),
                    int(ring.episode_length[shard, place]),
                    int(ring.env_index[shard, place]),
                    int(ring.env_step[shard, place]),
                )
            )
    episodes.sort(key=lambda episode: (episode.env_step, episode.env_index))
    return episodes, missed


def episode_metrics(ring: EpisodeRing, sums: EpisodeSums, smoothing: int) -> dict[str, Any]:
    """Means over the last `smoothing` episodes, or over all of the iteration's if these are more.

    Until an episode has ended they are NaN.
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
        returns, lengths = _latest(ring, smoothing)
        low, high, mean_return = returns.min(), returns.max(), returns.mean(dtype=np.float64)
        shortest, longest, mean_length = lengths.min(), lengths.max(), lengths.mean()
    else:
        return {**result, **NO_EPISODE}
    return {
        **result,
        "episode_return_mean": float(mean_return),
        "episode_return_min": float(low),
        "episode_return_max": float(high),
        "episode_len_mean": float(mean_length),
        "episode_len_min": int(shortest),
        "episode_len_max": int(longest),
    }


def _latest(ring: EpisodeRing, number: int) -> tuple[Any, Any]:
    """Returns and lengths of the newest episodes of all shards together."""
    size = ring.env_index.shape[1]
    held = np.arange(size)[None, :] < np.minimum(ring.count, size)[:, None]
    newest = np.argsort(-ring.env_step[held].astype(np.int64), kind="stable")[:number]
    return ring.episode_return[held][newest], ring.episode_length[held][newest]


def guard_metrics(report: Report) -> dict[str, Any]:
    """What the divergence guard saw over the run's life."""
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


def evaluation_metrics(result: EvaluationResult) -> dict[str, Any]:
    """RLlib's `evaluation/env_runners` part."""
    ended = result.ended
    metrics: dict[str, Any] = {
        "num_episodes": int(ended.sum()),
        "num_env_steps_sampled": int(result.env_steps),
        "num_nonfinite_env_steps": int(result.num_nonfinite),
        "num_episodes_cut": int(result.num_cut),
    }
    if not ended.any():
        return {**metrics, **NO_EPISODE, "episode_return_std": math.nan}
    returns, lengths = result.episode_return[ended], result.episode_length[ended]
    return {
        **metrics,
        "episode_return_mean": float(returns.mean(dtype=np.float64)),
        "episode_return_min": float(returns.min()),
        "episode_return_max": float(returns.max()),
        "episode_return_std": float(returns.std(dtype=np.float64)),
        "episode_len_mean": float(lengths.mean(dtype=np.float64)),
        "episode_len_min": int(lengths.min()),
        "episode_len_max": int(lengths.max()),
    }


MAX_PENDING = 256
"""So many dispatches may wait to be looked at: what they report stays in memory until then."""


@dataclasses.dataclass
class IterationTotals:
    """What the dispatches of one iteration add up to.

    They are fetched when something of them is to be known, and no more than `MAX_PENDING` wait.

    Args:
        fetch: The report on dispatches by their `pending`.
        replay: What is learned from, if not the sampled steps themselves, once each.
    """

    fetch: Callable[[Sequence[Any]], Report]
    replay: AnyReplay | None = None
    train_batches: int = 0
    env_steps: int = 0
    seconds: float = 0.0
    waited: float = 0.0
    lent: float = 0.0
    learned_batches: int = 0
    updates: int = 0
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    sums: EpisodeSums | None = None
    not_reported: int = 0
    latest: Report | None = None
    pending: list[Any] = dataclasses.field(default_factory=list)

    def add(self, dispatched: Dispatched) -> None:
        """One more dispatch."""
        self.train_batches += dispatched.train_batches
        self.env_steps += dispatched.env_steps
        self.seconds += dispatched.seconds
        self.waited += dispatched.waited
        self.lent += dispatched.lent
        self.not_reported += dispatched.not_reported
        self.pending.append(dispatched.pending)
        if len(self.pending) == MAX_PENDING:
            self._fetch()

    def report(self) -> Report:
        """How things are after the latest dispatch, with everything until then added up."""
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
        self.learned_batches += int(summary.learned_batches)
        self.updates += int(summary.updates)
        for name, value in summary.metrics.items():
            self.metrics[name] = self.metrics.get(name, 0.0) + float(value)
        self.sums = summary.episodes if self.sums is None else _joined(self.sums, summary.episodes)

    @property
    def env_steps_trained(self) -> int:
        """The rows of the gradient steps where these are drawn from a buffer."""
        if self.replay is None:
            return self.env_steps
        self._fetch()
        return self.updates * self.replay.rows_per_update

    @property
    def nonfinite(self) -> dict[str, float]:
        """In how many skipped updates each metric was not finite."""
        self._fetch()
        return only_counts(self.metrics)

    def result(self, smoothing: int) -> dict[str, Any]:
        """The part of a result that comes from training."""
        report, sums = self.report(), self.sums
        assert sums is not None
        steps, batches = counted(report.latest.env_steps), self.learned_batches
        sampled = {
            **episode_metrics(report.latest.ring, sums, smoothing),
            "num_episodes_not_reported": self.not_reported,
            "num_env_steps_sampled": self.env_steps,
            "num_env_steps_sampled_lifetime": steps,
            "num_env_steps_sampled_per_second": self.env_steps / max(self.seconds, 1e-9),
        }
        learned: dict[str, Any] = {
            name: value / batches if batches else np.nan
            for name, value in sorted(without_counts(self.metrics).items())
            if batches or self.updates  # all of which were skipped
        }
        replay = self.replay
        trained = (
            steps if replay is None else counted(report.latest.updates) * replay.rows_per_update
        )
        learned["num_module_steps_trained_lifetime"] = trained
        learned["num_updates_lifetime"] = counted(report.latest.updates)
        buffer = {} if replay is None else {REPLAY_BUFFER: self._of_buffer(replay, report)}
        return {
            "env_runners": sampled,
            "learners": {DEFAULT_MODULE: learned},
            **buffer,
            "fault_tolerance": guard_metrics(report),
            "num_env_steps_sampled_lifetime": steps,
            "num_env_steps_trained_lifetime": trained,
            "num_training_step_calls_per_iteration": self.train_batches,
        }

    def _of_buffer(self, replay: AnyReplay, report: Report) -> dict[str, Any]:
        """RLlib's `replay_buffer` part; what is sampled from it are the rows of updates."""
        place, is_full = report.latest.replayed
        stored = replay.num_envs * (replay.length if is_full else int(place))
        capacity = replay.num_envs * replay.length
        return {
            "capacity": capacity,
            "num_env_steps_stored": stored,
            "fill": stored / capacity,
            "num_env_steps_added": self.env_steps,
            "num_env_steps_added_lifetime": counted(report.latest.env_steps),
            "num_env_steps_sampled": self.env_steps_trained,
            "num_env_steps_sampled_lifetime": counted(report.latest.updates)
            * replay.rows_per_update,
        }


def _joined(a: EpisodeSums, b: EpisodeSums) -> EpisodeSums:
    low: Any = np.minimum
    high: Any = np.maximum
    return EpisodeSums(
        count=a.count + b.count,
        sum_return=a.sum_return + b.sum_return,
        sum_length=a.sum_length + b.sum_length,
        min_return=low(a.min_return, b.min_return),
        max_return=high(a.max_return, b.max_return),
        min_length=low(a.min_length, b.min_length),
        max_length=high(a.max_length, b.max_length),
    )


def merged(result: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """A nested result with more entries; where both have one, the second's."""
    joined = dict(result)
    for name, value in more.items():
        old: Any = joined.get(name)
        nested = isinstance(old, dict) and isinstance(value, Mapping)
        joined[name] = merged(old, value) if nested else value
    return joined
