"""A backend without processes: actors, their faults and the clock are simulated."""

import dataclasses
import heapq
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxrl.core.types import Rollout
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.ray.start import ExceptionInfo, RunnerDiedError
from jaxrl.training.episode_stats import EpisodeRecord

STEPS = 10


def fragment(worker_index: int, number: int, version: int, steps: int = STEPS) -> Fragment:
    empty = np.zeros((steps, 1))
    return Fragment(
        worker_index=worker_index,
        number=number,
        weights_version=version,
        rollout=Rollout(
            obs=empty,
            action=empty,
            reward=empty,
            terminated=empty,
            truncated=empty,
            final_obs=empty,
            is_first=empty,
            mask=empty,
            extras={},
        ),
        record=EpisodeRecord(
            ended=empty,
            episode_return=empty,
            episode_length=empty,
            env_step=empty,
            fault=empty,
        ),
        env_index=np.arange(1),
        num_env_steps=steps,
        seconds=1.0,
        env_seconds=0.5,
    )


@dataclasses.dataclass(eq=False)
class Future:
    at: float
    value: Any


@dataclasses.dataclass(eq=False)
class Actor:
    worker_index: int
    incarnation: int
    free_at: float
    env_steps: int = 0
    version: int = -1
    number: int = 0
    dies_at: float = float("inf")
    killed: bool = False
    kept: list[Any] = dataclasses.field(default_factory=list)
    pending: list[Future] = dataclasses.field(default_factory=list)


DIED = object()
Behaviour = Callable[[Actor, int], Any]
"""For an actor and the number of a fragment: seconds that it takes, DIED, or Raised."""


class Simulation:
    """Actors take one second to start and one for a fragment, unless their behaviour differs."""

    def __init__(self, behaviour: Behaviour | None = None, start: Behaviour | None = None) -> None:
        self.time = 0.0
        self.actors: list[Actor] = []
        self.put_versions: list[int] = []
        self.closed = 0
        self._behaviour = behaviour or (lambda actor, number: 1.0)
        self._start = start or (lambda actor, number: 1.0)

    def alive(self) -> list[Actor]:
        return [actor for actor in self.actors if not actor.killed and self.time < actor.dies_at]

    def now(self) -> float:
        return self.time

    def start(self, worker_index: int, incarnation: int, env_steps: int) -> tuple[Actor, Future]:
        actor = Actor(worker_index, incarnation, self.time, env_steps=env_steps)
        self.actors.append(actor)
        return actor, self._task(actor, self._start(actor, incarnation), lambda: None)

    def call(self, handle: Actor, method: str, *args: Any) -> Future:
        number, handle.number = handle.number, handle.number + 1
        what = self._behaviour(handle, number)
        if method == "close":
            return self._task(handle, what, lambda: (handle.worker_index, *args))
        weights, kept, *others = args
        handle.kept += [] if kept is None else [kept]
        if weights is not None:
            handle.version = weights.version
        if method == "apply":
            return self._task(handle, what, lambda: (handle.worker_index, *others))
        if method == "evaluate":
            return self._task(handle, what, lambda: (handle.worker_index, handle.version, *others))
        assert method == "sample"
        made = fragment(handle.worker_index, number, handle.version)
        return self._task(handle, what, lambda: made)

    def _task(self, actor: Actor, what: Any, value: Callable[[], Any]) -> Future:
        actor.free_at = max(actor.free_at, self.time)
        if what is DIED:
            actor.dies_at = min(actor.dies_at, actor.free_at + 0.5)
            what = 1.0
        if isinstance(what, ExceptionInfo):
            actor.free_at += 0.5
            future = Future(actor.free_at, what)
        else:
            actor.free_at += what
            future = Future(actor.free_at, value())
        if future.at >= actor.dies_at:
            future.at, future.value = max(actor.dies_at, self.time), DIED
        actor.pending.append(future)
        return future

    def put(self, weights: Any) -> Any:
        if isinstance(weights, Weights):
            self.put_versions.append(weights.version)
        return weights

    def wait(self, futures: Sequence[Future], timeout_s: float) -> list[Future]:
        first = min((future.at for future in futures), default=float("inf"))
        until = min(max(first, self.time), self.time + timeout_s)
        assert until < float("inf"), "this would wait for ever"
        self.time = until
        return heapq.nsmallest(
            len(futures), (f for f in futures if f.at <= self.time), key=lambda f: f.at
        )

    def get(self, future: Future) -> Any:
        assert future.at <= self.time, "it is not ready"
        if future.value is DIED:
            raise RunnerDiedError("the worker was killed by a signal (SIGKILL)")
        return future.value

    def kill(self, handle: Actor) -> None:
        handle.killed = True
        for future in handle.pending:
            if future.at > self.time:
                future.at, future.value = self.time, DIED

    def close(self) -> None:
        self.closed += 1
