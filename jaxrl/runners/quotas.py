"""Evaluation episodes on host runners, with a fixed quota per environment.

Using the first n episodes that end would favor short ones, so every environment plays its own
number of episodes or steps, independently of the others.
"""

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from jaxtyping import Bool

from jaxrl.envs.vector import NO_FAULT
from jaxrl.runners.fragment import Fragment
from jaxrl.runners.multi.tally import AgentEpisodes, AgentTally
from jaxrl.training.evaluate import EpisodeMoments, EvaluationResult

if TYPE_CHECKING:
    from jaxrl.runners.host_runner import AnyRunner

CHUNK_STEPS = 16
"""Number of vector steps between checks of which environments are done."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalShare:
    """Part of an evaluation that one runner plays; the result does not depend on which runner.

    Args:
        seed: Seed of the evaluation.
        first_index: Index of the runner's first environment among all those of the evaluation.
        episodes: Number of episodes per environment, 0 for none; None to play steps instead.
        steps: Number of steps per environment if `episodes` is None, else their upper bound.
        timeout_s: Time limit in seconds, after which the episodes played so far are returned.
        is_continuation: Whether to continue the episodes of the previous share instead of new ones.
    """

    seed: int
    first_index: int
    episodes: tuple[int, ...] | None
    steps: tuple[int, ...]
    timeout_s: float
    is_continuation: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalEpisodes:
    """Completed episodes of an evaluation share, with counts and metrics.

    `num_cut` counts the episodes that were requested or begun but not completed. `timed_out` is
    whether the time limit was reached first. `seconds` is the elapsed time. `metrics` holds the
    metrics logged by callbacks, one entry per fragment. `agents` has the agent-episodes of several
    agents. `first_index` is that of the share, which tells parts of one runner.
    """

    episode_return: tuple[float, ...]
    episode_length: tuple[int, ...]
    env_steps: int
    num_nonfinite: int
    num_cut: int
    num_sub_env_restarts: int
    timed_out: bool
    seconds: float
    metrics: tuple[dict[str, Any], ...] = ()
    agents: AgentEpisodes | None = None
    first_index: int = 0


def play_share(
    runner: "AnyRunner",
    share: EvalShare,
    *,
    can_pause: bool = True,
    keep: Callable[[Fragment], None] = lambda fragment: None,
) -> EvalEpisodes:
    """Play all episodes of a share.

    Args:
        runner: Runner whose weights have been set.
        share: Share for as many environments as the runner has.
        can_pause: Whether finished environments can be paused; otherwise they keep playing and
            their further episodes are ignored.
        keep: Function that is called with every fragment.
    """
    begin = time.perf_counter()
    if runner.tracker is not None:
        runner.tracker.begin_share(share.episodes)
    if not share.is_continuation:
        index = np.arange(runner.num_envs, dtype=np.int32) + share.first_index
        runner.restart(share.seed, index)
    tally = _QuotaTally(runner.num_envs, share, runner.make_tally())
    timed_out = False
    try:
        while not tally.done.all() and not timed_out:
            if can_pause:
                runner.pause(tally.done.copy())
            fragment = runner.sample_fragment(tally.next_chunk)
            tally.add(fragment)
            keep(fragment)
            timed_out = time.perf_counter() - begin > share.timeout_s
        if runner.tracker is not None:
            runner.tracker.finish_share()
            tally.add_metrics(runner.metrics.take())
    finally:
        if can_pause:
            runner.pause(np.zeros(runner.num_envs, np.bool_))
        if runner.tracker is not None:
            runner.tracker.end_share()
    return tally.to_played(timed_out and not tally.done.all(), time.perf_counter() - begin)


class _QuotaTally:
    """Accumulator of the fragments of a share, up to the quota of each environment."""

    def __init__(self, num_envs: int, share: EvalShare, agents: AgentTally | None) -> None:
        self._agents, self._first_index = agents, share.first_index
        self._is_by_steps = share.episodes is None
        self._max_steps = np.array(share.steps, np.int64)
        self._quota = np.array(share.steps if share.episodes is None else share.episodes, np.int64)
        self._num_ended = np.zeros(num_envs, np.int64)
        self._num_steps = np.zeros(num_envs, np.int64)
        self._num_rows = np.zeros(num_envs, np.int64)
        self._is_in_episode = np.zeros(num_envs, np.bool_)
        self._returns: list[float] = []
        self._lengths: list[int] = []
        self._metrics: list[dict[str, Any]] = []
        self._num_nonfinite = 0
        self._num_restarts = 0

    @property
    def done(self) -> Bool[np.ndarray, " B"]:
        """Return whether each environment has reached its quota, `[B]`."""
        # The bound on rows ends environments that produce no valid transitions.
        spent = (self._num_steps >= self._max_steps) | (
            self._num_rows >= 2 * self._max_steps + CHUNK_STEPS
        )
        return spent | (self._num_ended >= self._quota)

    @property
    def next_chunk(self) -> int:
        """Number of vector steps to sample next; few values occur, as each one is compiled."""
        if not self._is_by_steps:
            return CHUNK_STEPS
        return min(
            CHUNK_STEPS, max(1, int((self._max_steps - self._num_steps)[~self.done].max(initial=1)))
        )

    def add(self, fragment: Fragment) -> None:
        record, mask = fragment.record, fragment.rollout.mask
        self.add_metrics(fragment.metrics)
        self._num_restarts += sum(fault.what == "raised" for fault in fragment.faults)
        for b in np.flatnonzero(~self.done):
            for t in range(len(mask)):
                self._num_rows[b] += 1
                self._num_nonfinite += int(record.fault[t, b] != NO_FAULT)
                if mask[t, b]:
                    self._num_steps[b] += 1
                    self._is_in_episode[b] = not record.ended[t, b]
                if self._agents is not None:
                    self._agents.add(fragment.rollout, t, int(b))
                if record.ended[t, b]:
                    self._num_ended[b] += 1
                    self._returns.append(float(record.episode_return[t, b]))
                    self._lengths.append(int(record.episode_length[t, b]))
                if self._is_done(b):
                    break

    def add_metrics(self, metrics: dict[str, Any]) -> None:
        self._metrics += [metrics] * bool(metrics)

    def _is_done(self, b: np.intp) -> bool:
        return bool(
            self._num_ended[b] >= self._quota[b] or self._num_steps[b] >= self._max_steps[b]
        )

    def to_played(self, timed_out: bool, seconds: float) -> EvalEpisodes:
        if self._is_by_steps:
            num_cut = int(self._is_in_episode.sum())
        else:
            num_cut = int(np.maximum(self._quota - self._num_ended, 0).sum())
        return EvalEpisodes(
            episode_return=tuple(self._returns),
            episode_length=tuple(self._lengths),
            env_steps=int(self._num_steps.sum()),
            num_nonfinite=self._num_nonfinite,
            num_cut=num_cut,
            num_sub_env_restarts=self._num_restarts,
            timed_out=timed_out,
            seconds=seconds,
            metrics=tuple(self._metrics),
            agents=None if self._agents is None else self._agents.episodes,
            first_index=self._first_index,
        )


def to_evaluation_result(parts: Iterable[EvalEpisodes], num_missing: int = 0) -> EvaluationResult:
    """Merge the episodes of all runners into a result like that of the compiled evaluation.

    It has a row for each episode instead of each environment.

    Args:
        parts: Episodes of each runner.
        num_missing: Number of requested episodes for which no runner replied.
    """
    parts = list(parts)
    returns = np.array([x for part in parts for x in part.episode_return], np.float64)
    lengths = np.array([x for part in parts for x in part.episode_length], np.int64)
    # Their fields hold arrays of either kind.
    make = cast("Callable[..., EvaluationResult]", EvaluationResult)
    make_moments = cast("Callable[..., EpisodeMoments]", EpisodeMoments)
    return make(
        episodes=make_moments(
            count=np.ones_like(lengths),
            mean_return=returns,
            squares=np.zeros_like(returns),
            min_return=returns,
            max_return=returns,
            sum_length=lengths,
            min_length=lengths,
            max_length=lengths,
        ),
        env_steps=np.int64(sum(part.env_steps for part in parts)),
        num_nonfinite=np.int64(sum(part.num_nonfinite for part in parts)),
        num_cut=np.int64(sum(part.num_cut for part in parts) + num_missing),
        fault=np.int32(NO_FAULT),
    )


def split_evenly(total: int, num_envs: int) -> tuple[int, ...]:
    """Split `total` over the environments as evenly as possible; the first ones get the rest."""
    share, rest = divmod(total, num_envs)
    return tuple(share + (index < rest) for index in range(num_envs))


def slice_for_runner(values: Sequence[int], runner: int, num_envs: int) -> tuple[int, ...]:
    """Return the values of one runner's environments, with runners counted from 0."""
    return tuple(values[runner * num_envs : (runner + 1) * num_envs])
