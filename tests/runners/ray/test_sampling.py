"""Sampling beside the learner: bounded, measured, each fragment once."""

import threading
import time
from collections.abc import Callable

import pytest

from jaxrl.errors import EnvRunnerError
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.ray.fleet import Fleet
from jaxrl.runners.ray.group import AsyncSampler, FragmentQueue
from tests.runners.ray.simulation import DIED, STEPS, Behaviour, Simulation, fragment
from tests.runners.ray.test_fleet import POLICY


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 20.0
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_the_queue_is_first_in_first_out_and_tells_when_there_is_room() -> None:
    queue = FragmentQueue(3)
    first = [fragment(1, number, 0) for number in range(3)]
    queue.put(first)
    assert queue.count_free() == 0
    taken: list[Fragment] = []
    taker = threading.Timer(0.05, lambda: taken.extend(queue.take(2)))
    taker.start()
    queue.wait_for_room(20.0)
    assert queue.count_free() == 2
    taker.join()
    assert taken == first[:2]
    putter = threading.Timer(0.05, lambda: queue.put([fragment(1, 3, 0)]))
    putter.start()
    assert [item.number for item in queue.take(2)] == [2, 3]
    putter.join()
    queue.put(first)
    assert queue.clear() == first
    assert len(queue) == 0
    queue.fail(EnvRunnerError("lost"))
    with pytest.raises(EnvRunnerError, match="lost"):
        queue.take(1)


class Asynchronous:
    """Two simulated runners, batches of two fragments, a queue of three batches."""

    def __init__(self, behaviour: Behaviour | None = None, max_in_flight: int = 2) -> None:
        self.backend = Simulation(behaviour)
        self.fleet = Fleet(self.backend, POLICY, 2, "Toy-v0", STEPS, 1)
        self.fleet.start()
        self.fleet.wait_until_started()
        self.sampling = AsyncSampler(self.fleet, 2, max_in_flight, max_queued_batches=3)

    def publish(self, version: int) -> None:
        self.fleet.publish(Weights(version=version, actor=None))

    def queued(self) -> int:
        return self.sampling.get_metrics()["num_fragments_queued"]


def test_the_queue_fills_and_then_runners_are_asked_for_no_more() -> None:
    run = Asynchronous()
    run.publish(0)
    run.sampling.next_batch()
    wait_until(lambda: run.queued() == 6)
    time.sleep(0.3)  # longer than the thread waits for room
    assert run.queued() == 6
    assert run.fleet.ledger.queued == 6 * STEPS
    assert all(len(member.requests) <= 2 for member in run.fleet.members)
    run.sampling.next_batch()
    wait_until(lambda: run.queued() == 6)
    run.sampling.stop()
    assert run.fleet.ledger.trained == 4 * STEPS
    run.sampling.discard_pending()
    assert dict(run.fleet.ledger.discarded) == {"stale": 6 * STEPS}
    assert run.fleet.ledger.queued == 0


def test_staleness_counts_batches_from_sampling_to_learning() -> None:
    run = Asynchronous(lambda actor, number: 1.0 if actor.worker_index == 1 else 3.7)
    expected: list[int] = []
    seen: set[tuple[int, int]] = set()
    for version in range(30):
        if version % 3 == 0:  # weights are broadcast after every third batch
            run.publish(version)
        batch = run.sampling.next_batch()
        assert seen.isdisjoint((item.worker_index, item.number) for item in batch)
        seen |= {(item.worker_index, item.number) for item in batch}
        expected += [version - item.weights_version for item in batch]
    metrics = run.sampling.get_metrics()
    assert metrics["staleness_max"] == max(expected) > 2
    assert metrics["staleness_mean"] == pytest.approx(sum(expected) / len(expected))
    assert "staleness_mean" not in run.sampling.get_metrics()
    run.sampling.stop()


def test_the_learner_is_told_what_ended_the_sampling() -> None:
    run = Asynchronous(lambda actor, number: DIED)
    run.fleet.policy = run.fleet.policy.__class__(
        **{**vars(POLICY), "failures_tolerance": 4, "max_delay_s": 0.0}
    )
    run.publish(0)
    with pytest.raises(EnvRunnerError, match="num_consecutive_env_runner_failures_tolerance=4"):
        run.sampling.next_batch()
    run.sampling.stop()
    run.sampling.stop()


def test_dead_runners_cost_no_fragment_of_the_others() -> None:
    run = Asynchronous(lambda actor, number: DIED if number == 3 else 1.0, max_in_flight=1)
    run.publish(0)
    for _ in range(40):
        run.sampling.next_batch()
    run.sampling.stop()
    ledger = run.fleet.ledger
    assert run.fleet.num_restarts > 5
    assert ledger.trained == 80 * STEPS
    in_flight = sum(len(member.requests) for member in run.fleet.members)
    asked = STEPS * sum(actor.number for actor in run.backend.actors)
    assert asked == ledger.received + ledger.maybe_lost + STEPS * in_flight
    # A new actor goes on drawing where the one before it may have come to.
    for actor in run.backend.actors[2:]:
        assert actor.env_steps == 4 * STEPS * actor.incarnation
