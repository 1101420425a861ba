"""Parts of episodes joined to as much of each episode as is recorded."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import jax
import numpy as np

from jaxrl.core.types import PyTree
from jaxrl.episodes.packing import EpisodePart


def merge_parts(parts: Iterable[EpisodePart]) -> Iterator[EpisodePart]:
    """Join the parts of each episode that follow one another, in the order of their first ones."""
    runs: list[list[EpisodePart]] = []
    unfinished: dict[str, list[EpisodePart]] = {}
    for part in parts:
        run = unfinished.pop(part.episode_id, None)
        if run is None or not _continues(part, run):
            run = []
            runs.append(run)
        run.append(part)
        if not part.is_last:
            unfinished[part.episode_id] = run
    unfinished.clear()
    for i, run in enumerate(runs):
        runs[i] = []
        yield _join(run)


def merge_ended_parts(
    parts: Iterable[EpisodePart], max_unfinished_steps: int, *, overlaps: bool = False
) -> Iterator[EpisodePart]:
    """Join the parts of each episode that follow one another, in the order in which they end.

    Args:
        parts: Parts of episodes, those of one episode in order of time.
        max_unfinished_steps: Number of steps of episodes that have not ended; above it, the one that
            has waited longest for its next part is taken to be over.
        overlaps: Whether what follows such an episode begins with its last step once more, of which
            only then the successor is known. It is for those who leave out last steps. An eighth of
            `max_unfinished_steps` such steps are kept, those of the episodes given up last.
    """
    unfinished: dict[str, list[EpisodePart]] = {}
    tails: dict[str, EpisodePart] = {}
    waiting = 0
    for part in parts:
        run = unfinished.pop(part.episode_id, [])
        waiting -= _count_steps(run)
        tail = tails.pop(part.episode_id, None)
        if tail is not None and _continues(part, [tail]):
            run = [tail]
        if run and not _continues(part, run):
            yield _join(run)
            run = []
        run.append(part)
        if part.is_last:
            yield _join(run)
            continue
        unfinished[part.episode_id] = run
        waiting += _count_steps(run)
        while waiting > max_unfinished_steps and len(unfinished) > 1:
            run = unfinished.pop(next(iter(unfinished)))
            waiting -= _count_steps(run)
            if overlaps:
                tails[run[-1].episode_id] = _copy_last_step(run[-1])
            yield _join(run)
        while len(tails) > max(1, max_unfinished_steps // 8):
            del tails[next(iter(tails))]
    for run in unfinished.values():
        yield _join(run)


def _copy_last_step(part: EpisodePart) -> EpisodePart:
    """Return the last step of a part, in memory of its own."""
    step = part if len(part) == 1 else part.split(len(part) - 1)[1]
    return dataclasses.replace(
        step,
        obs=jax.tree.map(np.copy, step.obs),
        action=jax.tree.map(np.copy, step.action),
        reward=np.copy(step.reward),
        extras=jax.tree.map(np.copy, step.extras),
        version=np.copy(step.version),
        carry=jax.tree.map(np.copy, step.carry),
    )


def _count_steps(run: Sequence[EpisodePart]) -> int:
    return run[-1].t_started + len(run[-1]) - run[0].t_started if run else 0


def _continues(part: EpisodePart, run: Sequence[EpisodePart]) -> bool:
    """Return whether a part follows the last of others of its episode, which has not ended."""
    return part.t_started == run[-1].t_started + len(run[-1])


def _join(run: list[EpisodePart]) -> EpisodePart:
    if len(run) == 1:
        return run[0]
    first, last = run[0], run[-1]

    def concatenate(*trees: PyTree) -> PyTree:
        return jax.tree.map(lambda *x: np.concatenate(x), *trees)

    heads = [jax.tree.map(lambda x: x[:-1], part.obs) for part in run[:-1]]
    return EpisodePart(
        episode_id=first.episode_id,
        t_started=first.t_started,
        obs=concatenate(*heads, last.obs),
        action=concatenate(*(part.action for part in run)),
        reward=np.concatenate([part.reward for part in run]),
        extras=concatenate(*(part.extras for part in run)),
        version=np.concatenate([part.version for part in run]),
        terminated=last.terminated,
        truncated=last.truncated,
        is_cut=last.is_cut,
        agent_id=first.agent_id,
        module_id=first.module_id,
        multi_agent_episode_id=first.multi_agent_episode_id,
    )
