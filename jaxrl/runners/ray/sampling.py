"""Synchronous and asynchronous collection of train batches from a fleet of runners."""

import collections
import math
import threading
import time
from typing import Any

from jaxrl.runners.fragment import Fragment
from jaxrl.runners.ray.fleet import Fleet, Reply
from jaxrl.runners.ray.health import FleetMember
from jaxrl.runners.step_ledger import STALE, TIMEOUT

_POLL_S = 0.2
"""Maximum wait of the sampling thread between checks of whether to stop."""
_CHECK_INTERVAL_S = 0.02
"""Interval between checks of whether the thread has recovered all runners."""


class SyncSampler:
    """Sampling on request, with the newest weights on all runners.

    Each runner does an equal share, one fragment or several. The share of a runner that is late, dead or restarting is done
    by the others, so the number of fragments per batch is constant.

    Args:
        fleet: Fleet of runners.
        size: Number of fragments per batch.
        max_in_flight: Maximum number of pending fragments per runner.
    """

    def __init__(self, fleet: Fleet, fragments_per_batch: int, max_in_flight: int) -> None:
        self._fleet, self._size, self._max_in_flight = fleet, fragments_per_batch, max_in_flight

    def next_batch(self) -> list[Fragment]:
        """Return one batch, in rounds of one fragment of each runner, ordered by runner index.

        Fragments that come too late are discarded.
        """
        received: dict[int, list[Fragment]] = {}
        missing = self._size
        while missing:
            self._fleet.raise_if_lost()
            self._request_missing(received, missing)
            for arrival in self._fleet.poll(math.inf):
                if self._is_needed(arrival.value, missing):
                    received.setdefault(arrival.member.worker_index, []).append(arrival.value)
                    missing -= 1
        batch = self._order_batch(received)
        self._fleet.mark_trained(batch)
        return batch

    def _request_missing(self, received: dict[int, list[Fragment]], missing: int) -> None:
        """Request the missing fragments, an equal share of each healthy runner."""
        fleet = self._fleet
        healthy, version = fleet.get_healthy(), fleet.weights_version

        def count_pending(member: FleetMember) -> int:
            return sum(request.weights_version == version for request in member.requests)

        def count_share(member: FleetMember) -> int:
            return count_pending(member) + len(received.get(member.worker_index, ()))

        missing -= sum(map(count_pending, healthy))
        share = math.ceil(self._size / max(1, len(healthy)))
        for _ in range(missing):
            free = [
                member
                for member in healthy
                if len(member.requests) < self._max_in_flight and count_share(member) < share
            ]
            if not free:
                return
            fleet.request_fragment(min(free, key=lambda m: (count_share(m), m.worker_index)))

    def _is_needed(self, fragment: Fragment, missing: int) -> bool:
        """Return whether a fragment belongs to the batch; otherwise it is discarded."""
        if fragment.weights_version != self._fleet.weights_version:
            self._fleet.mark_discarded(fragment, TIMEOUT)
            return False
        if missing == 0:
            self._fleet.mark_discarded(fragment, STALE)
            return False
        return True

    def _order_batch(self, received: dict[int, list[Fragment]]) -> list[Fragment]:
        """Order fragments by round and runner; substitutes take the places of missing ones."""
        runners = [member.worker_index for member in self._fleet.members]
        rounds = math.ceil(self._size / len(runners))
        places = [
            fragments[i] if i < len(fragments := received.get(runner, [])) else None
            for i in range(rounds)
            for runner in runners
        ]
        extra = collections.deque(
            f for runner in runners for f in received.get(runner, [])[rounds:]
        )
        filled = [extra.popleft() if place is None and extra else place for place in places]
        return [*(fragment for fragment in filled if fragment is not None), *extra]

    def wait_for_recovery(self, timeout_s: float) -> None:
        """Wait until all recoverable runners are healthy and idle, or until the timeout."""
        fleet = self._fleet
        deadline = fleet.backend.now() + timeout_s
        while fleet.is_recovering() and (left := deadline - fleet.backend.now()) > 0:
            for arrival in fleet.poll(left):
                fleet.mark_discarded(arrival.value, TIMEOUT)

    def discard_pending(self) -> None:
        """Do nothing; no fragments are kept between batches."""

    def get_metrics(self) -> dict[str, Any]:
        return {}

    def stop(self) -> None:
        """Do nothing; there is no thread."""


class FragmentQueue:
    """Bounded FIFO queue of fragments that wait for the learner, with a single producer."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: collections.deque[Fragment] = collections.deque()
        self._condition = threading.Condition()
        self._error: BaseException | None = None

    def __len__(self) -> int:
        return len(self._items)

    def count_free(self) -> int:
        """Return the number of free slots."""
        return self._capacity - len(self._items)

    def wait_for_room(self, timeout_s: float) -> None:
        """Wait for a free slot or until the timeout."""
        with self._condition:
            self._condition.wait_for(lambda: self.count_free() > 0, timeout_s)

    def put(self, fragments: list[Fragment]) -> None:
        """Add fragments; the producer must have checked that there is room."""
        with self._condition:
            self._items.extend(fragments)
            self._condition.notify_all()

    def fail(self, error: BaseException) -> None:
        """Mark the queue as failed: `take` raises the error from now on."""
        with self._condition:
            self._error = error
            self._condition.notify_all()

    def take(self, count: int) -> list[Fragment]:
        """Remove and return the oldest fragments, waiting for them; raise the producer's error."""
        with self._condition:
            self._condition.wait_for(lambda: self._error is not None or len(self) >= count)
            if self._error is not None:
                raise self._error
            taken = [self._items.popleft() for _ in range(count)]
            self._condition.notify_all()
        return taken

    def clear(self) -> list[Fragment]:
        """Remove and return all fragments."""
        with self._condition:
            taken = list(self._items)
            self._items.clear()
            self._condition.notify_all()
        return taken


class AsyncSampler:
    """Continuous sampling; a batch consists of the fragments that are ready first.

    A thread requests and receives fragments, so that runners stay busy during updates. It requests
    nothing while the queue is full. No fragment is discarded for its age: the staleness is
    measured, and the algorithm corrects for it.

    Args:
        fleet: Fleet of runners.
        size: Number of fragments per batch.
        max_in_flight: Maximum number of pending fragments per runner.
        queue_batches: Maximum number of batches that wait for the learner.
    """

    def __init__(
        self, fleet: Fleet, fragments_per_batch: int, max_in_flight: int, max_queued_batches: int
    ) -> None:
        self._fleet, self._size = fleet, fragments_per_batch
        self._queue = FragmentQueue(max_queued_batches * fragments_per_batch)
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=_sample_until,
            args=(self._stopped, fleet, self._queue, max_in_flight),
            name="jaxrl-sampling",
            daemon=True,
        )
        self._published_version, self._batches_since_publish = -1, 0
        self._staleness: list[int] = []

    def next_batch(self) -> list[Fragment]:
        """Return the next batch of fragments, in order of arrival."""
        self._start_thread()
        batch = self._queue.take(self._size)
        self._fleet.mark_trained(batch)
        self._measure_staleness(batch)
        return batch

    def _start_thread(self) -> None:
        if self._thread.ident is None and not self._stopped.is_set():
            self._thread.start()

    def _measure_staleness(self, batch: list[Fragment]) -> None:
        """Record for each fragment how many train batches its weights are behind the learner."""
        if self._published_version != self._fleet.weights_version:
            self._published_version, self._batches_since_publish = self._fleet.weights_version, 0
        version = self._published_version + self._batches_since_publish
        self._batches_since_publish += 1
        self._staleness += [max(0, version - fragment.weights_version) for fragment in batch]

    def wait_for_recovery(self, timeout_s: float) -> None:
        """Wait until all recoverable runners are healthy, or until the timeout."""
        self._start_thread()
        deadline = time.monotonic() + timeout_s
        while self._fleet.is_recovering(until_idle=False) and time.monotonic() < deadline:
            time.sleep(_CHECK_INTERVAL_S)

    def discard_pending(self) -> None:
        """Discard the queued fragments, after the learner state has been replaced."""
        for fragment in self._queue.clear():
            self._fleet.mark_discarded(fragment, STALE)

    def get_metrics(self) -> dict[str, Any]:
        """Return the staleness in train batches since the last call, and the queue length."""
        taken, self._staleness = self._staleness, []
        metrics: dict[str, Any] = {"num_fragments_queued": len(self._queue)}
        if taken:
            metrics["staleness_mean"] = sum(taken) / len(taken)
            metrics["staleness_max"] = max(taken)
        return metrics

    def stop(self) -> None:
        """Stop the thread; safe to call repeatedly and from the thread (garbage collection)."""
        self._stopped.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()


def _sample_until(
    stopped: threading.Event, fleet: Fleet, queue: FragmentQueue, max_in_flight: int
) -> None:
    """Run the sampling thread, without a reference to the group, so it can be garbage-collected."""
    try:
        while not stopped.is_set():
            arrivals = _request_and_poll(fleet, queue, max_in_flight)
            queue.put([arrival.value for arrival in arrivals])
            fleet.raise_if_lost()
    except BaseException as error:  # noqa: BLE001  (raised again where the learner waits)
        queue.fail(error)


def _request_and_poll(fleet: Fleet, queue: FragmentQueue, max_in_flight: int) -> list[Reply]:
    """Request and receive fragments; if the queue is full, only monitor starting runners.

    Before the first weights are published, as while a run is restored, nothing is requested.
    """
    if fleet.weights_version < 0:
        return fleet.poll(_POLL_S, 0)
    room = queue.count_free()
    if room <= 0:
        queue.wait_for_room(_POLL_S)
        return fleet.poll(0.0, 0)
    for member in fleet.get_healthy():
        for _ in range(max_in_flight - len(member.requests)):
            fleet.request_fragment(member)
    return fleet.poll(_POLL_S, room)
