"""How a train batch comes together out of what runners deliver: in turns, or all the time."""

import collections
import math
import threading
import time
from typing import Any

from jaxrl.runners.fragment import Fragment
from jaxrl.runners.ray.fleet import Arrival, Fleet
from jaxrl.runners.step_ledger import STALE, TIMEOUT

_POLL_S = 0.2
"""The longest that the sampling thread waits before it looks whether it shall end."""
_LOOK_S = 0.02
"""How often it is looked whether the thread has brought the runners back."""


class SyncSampling:
    """Runners sample when a batch is asked for, all with the newest weights.

    Each does an equal share. The share of one that is late, dead or not yet back is done by the
    others, so that a batch always has as many fragments.

    Args:
        fleet: The runners.
        size: Fragments of a batch.
        max_in_flight: Fragments that one runner may owe.
    """

    def __init__(self, fleet: Fleet, size: int, max_in_flight: int) -> None:
        self._fleet, self._size, self._max_in_flight = fleet, size, max_in_flight

    def next_batch(self) -> list[Fragment]:
        """One batch, in order of the runners' indices; what came too late for it is discarded."""
        own: dict[int, Fragment] = {}
        extra: list[Fragment] = []
        while len(own) + len(extra) < self._size:
            self._fleet.raise_if_lost()
            self._ask(own, self._size - len(own) - len(extra))
            for arrival in self._fleet.poll(math.inf):
                self._sort(arrival, own, extra)
        batch = self._in_order(own, extra)
        self._fleet.train(batch)
        return batch

    def _ask(self, own: dict[int, Fragment], missing: int) -> None:
        """Ask for what is missing and not under way in time: own shares first, then extra ones."""
        fleet = self._fleet
        healthy, version = fleet.healthy(), fleet.weights_version
        missing -= sum(
            request.weights_version == version for member in healthy for request in member.requests
        )
        for _ in range(missing):
            free = [member for member in healthy if len(member.requests) < self._max_in_flight]
            if not free:
                return
            fleet.request(
                min(free, key=lambda m: (len(m.requests), m.worker_index in own, m.worker_index))
            )

    def _sort(self, arrival: Arrival, own: dict[int, Fragment], extra: list[Fragment]) -> None:
        fragment, index = arrival.value, arrival.member.worker_index
        if fragment.weights_version != self._fleet.weights_version:
            self._fleet.discard(fragment, TIMEOUT)
        elif len(own) + len(extra) == self._size:
            self._fleet.discard(fragment, STALE)
        elif index in own:
            extra.append(fragment)
        else:
            own[index] = fragment

    def _in_order(self, own: dict[int, Fragment], extra: list[Fragment]) -> list[Fragment]:
        substitutes = collections.deque(extra)
        batch: list[Fragment] = []
        for member in self._fleet.members:
            if member.worker_index in own:
                batch.append(own[member.worker_index])
            elif substitutes:
                batch.append(substitutes.popleft())
        return [*batch, *substitutes]

    def settle(self, timeout_s: float) -> None:
        """Wait until every runner that may come back is there and at rest, if it is in time."""
        fleet = self._fleet
        deadline = fleet.backend.now() + timeout_s
        while fleet.is_unsettled() and (left := deadline - fleet.backend.now()) > 0:
            for arrival in fleet.poll(left):
                fleet.discard(arrival.value, TIMEOUT)

    def forget(self) -> None:
        """Nothing is kept between batches."""

    def metrics(self) -> dict[str, Any]:
        return {}

    def stop(self) -> None:
        """There is nothing that runs."""


class FragmentQueue:
    """What waits for the learner: first in, first out, and never more than fits."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: collections.deque[Fragment] = collections.deque()
        self._changed = threading.Condition()
        self._error: BaseException | None = None

    def __len__(self) -> int:
        return len(self._items)

    def room(self) -> int:
        """How many more fit."""
        return self._capacity - len(self._items)

    def wait_for_room(self, timeout_s: float) -> None:
        """Return as soon as one fits, or after the time."""
        with self._changed:
            self._changed.wait_for(lambda: self.room() > 0, timeout_s)

    def put(self, fragments: list[Fragment]) -> None:
        """Add fragments; the one producer has looked whether they fit."""
        with self._changed:
            self._items.extend(fragments)
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Nothing more will come, and why."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def take(self, count: int) -> list[Fragment]:
        """The oldest so many; waits for them, and raises what the producer ended with."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or len(self) >= count)
            if self._error is not None:
                raise self._error
            taken = [self._items.popleft() for _ in range(count)]
            self._changed.notify_all()
        return taken

    def clear(self) -> list[Fragment]:
        """Everything that waited."""
        with self._changed:
            taken = list(self._items)
            self._items.clear()
            self._changed.notify_all()
        return taken


class AsyncSampling:
    """Runners sample all the time; a batch is whatever was ready first.

    A thread asks and receives, so that runners are kept busy while the learner learns. When the
    queue is full they are asked for no more. No fragment is thrown away: how stale it is is
    measured, and the algorithm corrects for it.

    Args:
        fleet: The runners.
        size: Fragments of a batch.
        max_in_flight: Fragments that one runner may owe.
        queue_batches: Batches that may wait for the learner.
    """

    def __init__(self, fleet: Fleet, size: int, max_in_flight: int, queue_batches: int) -> None:
        self._fleet, self._size = fleet, size
        self._queue = FragmentQueue(queue_batches * size)
        self._end = threading.Event()
        self._thread = threading.Thread(
            target=_sample_until,
            args=(self._end, fleet, self._queue, max_in_flight),
            name="jaxrl-sampling",
            daemon=True,
        )
        self._published_version, self._batches_since = -1, 0
        self._staleness: list[int] = []

    def next_batch(self) -> list[Fragment]:
        """The next fragments in the order of their arrival."""
        self._start()
        batch = self._queue.take(self._size)
        self._fleet.train(batch)
        self._measure_staleness(batch)
        return batch

    def _start(self) -> None:
        if self._thread.ident is None and not self._end.is_set():
            self._thread.start()

    def _measure_staleness(self, batch: list[Fragment]) -> None:
        """Train batches that the learner was ahead of the weights that sampled, of each."""
        if self._published_version != self._fleet.weights_version:
            self._published_version, self._batches_since = self._fleet.weights_version, 0
        version = self._published_version + self._batches_since
        self._batches_since += 1
        self._staleness += [max(0, version - fragment.weights_version) for fragment in batch]

    def settle(self, timeout_s: float) -> None:
        """Wait until every runner that may come back is there, if it is in time."""
        self._start()
        deadline = time.monotonic() + timeout_s
        while self._fleet.is_unsettled(at_rest=False) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)

    def forget(self) -> None:
        """Discard what waits: the learner was set to another state."""
        for fragment in self._queue.clear():
            self._fleet.discard(fragment, STALE)

    def metrics(self) -> dict[str, Any]:
        """Since the last call: how stale fragments were, in train batches; what waits now."""
        taken, self._staleness = self._staleness, []
        metrics: dict[str, Any] = {"num_fragments_queued": len(self._queue)}
        if taken:
            metrics["staleness_mean"] = sum(taken) / len(taken)
            metrics["staleness_max"] = max(taken)
        return metrics

    def stop(self) -> None:
        """End the thread; may be called twice, and by the thread itself (garbage collection)."""
        self._end.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()


def _sample_until(
    end: threading.Event, fleet: Fleet, queue: FragmentQueue, max_in_flight: int
) -> None:
    """What the thread does. It knows no more than this, so that a group can become garbage."""
    try:
        while not end.is_set():
            queue.put([arrival.value for arrival in _ask_and_hear(fleet, queue, max_in_flight)])
            fleet.raise_if_lost()
    except BaseException as error:  # noqa: BLE001  (raised again where the learner waits)
        queue.fail(error)


def _ask_and_hear(fleet: Fleet, queue: FragmentQueue, max_in_flight: int) -> list[Arrival]:
    """Keep runners busy and take what they have; with a full queue, look after them alone."""
    room = queue.room()
    if room <= 0:
        queue.wait_for_room(_POLL_S)
        return fleet.poll(0.0, 0)
    for member in fleet.healthy():
        for _ in range(max_in_flight - len(member.requests)):
            fleet.request(member)
    return fleet.poll(_POLL_S, room)
