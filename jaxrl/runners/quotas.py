"""Episodes that a runner on the host plays for an evaluation: a fixed quota in each environment.

Taking the first n episodes to end would favour short ones, so every environment has its own number
of episodes or steps, whatever the others do.
"""

import dataclasses
import time
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from jaxtyping import Bool, Int

from jaxrl.envs.vector import NO_FAULT
from jaxrl.runners.fragment import Fragment
from jaxrl.training.evaluate import EvaluationResult

CHUNK = 16
"""Vector steps between two looks at which environments are done."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """What one runner plays, the same in whichever runner plays it.

    Args:
        seed: Of the evaluation.
        first_index: Place of the runner's first environment among all of the evaluation.
        episodes: Of each environment, 0 for none; None plays steps instead.
        steps: Of each environment; with `episodes` a bound, else as many as it plays.
        timeout_s: After so many seconds it ends with what there is.
        goes_on: Go on with the episodes of the share before rather than start anew.
    """

    seed: int
    first_index: int
    episodes: tuple[int, ...] | None
    steps: tuple[int, ...]
    timeout_s: float
    goes_on: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Played:
    """Episodes that were played out, and what else happened.

    `num_cut` episodes were asked for or begun and not played out; `timed_out` says that the time
    ended first. `seconds` is what it took, `metrics` what callbacks logged, a part a fragment.
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


class Plays(Protocol):
    """As much as is needed of an EnvRunner."""

    num_envs: int

    def restart(self, seed: int, env_index: Int[np.ndarray, " B"]) -> None: ...

    def hold(self, held: Bool[np.ndarray, " B"]) -> None: ...

    def sample(self, num_steps: int) -> Fragment: ...


def play(runner: Plays, share: Share, *, can_hold: bool = True) -> Played:
    """Plays a share out.

    Args:
        runner: With weights.
        share: For as many environments as it has.
        can_hold: Environments that are done can wait for the others; else they play on, and it
            does not count.
    """
    begin = time.perf_counter()
    if not share.goes_on:
        index = np.arange(runner.num_envs, dtype=np.int32) + share.first_index
        runner.restart(share.seed, index)
    tally = _Tally(runner.num_envs, share)
    timed_out = False
    try:
        while not tally.done.all() and not timed_out:
            if can_hold:
                runner.hold(tally.done.copy())
            tally.add(runner.sample(tally.next_chunk))
            timed_out = time.perf_counter() - begin > share.timeout_s
    finally:
        if can_hold:
            runner.hold(np.zeros(runner.num_envs, np.bool_))
    return tally.played(timed_out and not tally.done.all(), time.perf_counter() - begin)


class _Tally:
    """What counts of the fragments of a share."""

    def __init__(self, num_envs: int, share: Share) -> None:
        self._by_steps = share.episodes is None
        self._most = np.array(share.steps, np.int64)
        self._wanted = np.array(share.steps if share.episodes is None else share.episodes, np.int64)
        self._ended = np.zeros(num_envs, np.int64)
        self._steps = np.zeros(num_envs, np.int64)
        self._rows = np.zeros(num_envs, np.int64)
        self._in_episode = np.zeros(num_envs, np.bool_)
        self._returns: list[float] = []
        self._lengths: list[int] = []
        self._metrics: list[dict[str, Any]] = []
        self._num_nonfinite = 0
        self._num_restarts = 0

    @property
    def done(self) -> Bool[np.ndarray, " B"]:
        """Which environments have played what they should."""
        # Rows that are no transitions must end some time, too.
        spent = (self._steps >= self._most) | (self._rows >= 2 * self._most + CHUNK)
        return spent | (self._ended >= self._wanted)

    @property
    def next_chunk(self) -> int:
        """Vector steps to go on with; few numbers occur, as each is compiled for."""
        if not self._by_steps:
            return CHUNK
        return min(CHUNK, max(1, int((self._most - self._steps)[~self.done].max(initial=1))))

    def add(self, fragment: Fragment) -> None:
        record, mask = fragment.record, fragment.rollout.mask
        self._metrics += [fragment.metrics] * bool(fragment.metrics)
        self._num_restarts += sum(fault.what == "raised" for fault in fragment.faults)
        for b in np.flatnonzero(~self.done):
            for t in range(len(mask)):
                self._rows[b] += 1
                self._num_nonfinite += int(record.fault[t, b] != NO_FAULT)
                if mask[t, b]:
                    self._steps[b] += 1
                    self._in_episode[b] = not record.ended[t, b]
                if record.ended[t, b]:
                    self._ended[b] += 1
                    self._returns.append(float(record.episode_return[t, b]))
                    self._lengths.append(int(record.episode_length[t, b]))
                if self._is_done(b):
                    break

    def _is_done(self, b: Any) -> bool:
        return bool(self._ended[b] >= self._wanted[b] or self._steps[b] >= self._most[b])

    def played(self, timed_out: bool, seconds: float) -> Played:
        if self._by_steps:
            num_cut = int(self._in_episode.sum())
        else:
            num_cut = int(np.maximum(self._wanted - self._ended, 0).sum())
        return Played(
            episode_return=tuple(self._returns),
            episode_length=tuple(self._lengths),
            env_steps=int(self._steps.sum()),
            num_nonfinite=self._num_nonfinite,
            num_cut=num_cut,
            num_sub_env_restarts=self._num_restarts,
            timed_out=timed_out,
            seconds=seconds,
            metrics=tuple(self._metrics),
        )


def as_result(parts: Iterable[Played], num_missing: int = 0) -> EvaluationResult:
    """All parts as one, in the form of the compiled evaluation.

    Args:
        parts: Of all runners.
        num_missing: Episodes that nothing was heard of.
    """
    parts = list(parts)
    returns = [value for part in parts for value in part.episode_return]
    lengths = [value for part in parts for value in part.episode_length]
    result: Any = EvaluationResult  # its fields hold arrays of either kind
    return result(
        episode_return=np.array([returns], np.float32),
        episode_length=np.array([lengths], np.int32),
        ended=np.ones((1, len(returns)), np.bool_),
        env_steps=np.int64(sum(part.env_steps for part in parts)),
        num_nonfinite=np.int64(sum(part.num_nonfinite for part in parts)),
        num_cut=np.int64(sum(part.num_cut for part in parts) + num_missing),
    )


def quotas(total: int, num_envs: int) -> tuple[int, ...]:
    """`total` over so many environments, as equally as it goes, the first ones getting more."""
    share, rest = divmod(total, num_envs)
    return tuple(share + (place < rest) for place in range(num_envs))


def of_runner(values: Sequence[int], runner: int, num_envs: int) -> tuple[int, ...]:
    """The part of one runner, counted from 0."""
    return tuple(values[runner * num_envs : (runner + 1) * num_envs])
