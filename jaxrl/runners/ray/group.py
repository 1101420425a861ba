"""Group of env runners that are Ray actors."""

import collections
import dataclasses
import math
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, cast

import jax
import numpy as np

from jaxrl.assembly.assemble import Assembly
from jaxrl.config.multi_agent import LIVE_SETTINGS
from jaxrl.core.types import PyTree
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.errors import EnvRunnerError
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.hooks import RunnerHooks
from jaxrl.runners.multi.state import count_pending_rows
from jaxrl.runners.protocols import FormerGroupNames, ReadsPolicies, call_runner
from jaxrl.runners.ray.env_runner import (
    ActorJob,
    change_modules_by_job,
    pack_job,
    start_new_episodes,
)
from jaxrl.runners.ray.fleet import (
    EvaluationRound,
    FaultPolicy,
    Fleet,
    FleetMember,
    RayBackend,
    Reply,
    call_all,
    close_envs,
)
from jaxrl.runners.ray.kept_params import KeptParamsSplitter, find_frozen_modules
from jaxrl.runners.ray.start import (
    ResourceRequest,
    ensure_ray,
    make_actor_options,
    make_runner_bundle,
    reserve_bundles,
)
from jaxrl.runners.step_ledger import STALE, TIMEOUT, StepLedger
from jaxrl.runtime.env_vars import make_actor_env_vars
from jaxrl.runtime.program import Program

if TYPE_CHECKING:
    from jaxrl.config.config import Config


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


_RECOVERY_TIMEOUT_S = 60.0
"""Maximum time to wait for restarting runners when their state is read or restored."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupShape:
    """Size, batch arithmetic and seed of a group of runners.

    Args:
        num_env_runners: Number of runners.
        num_envs: Number of environments per runner.
        fragment_length: Number of steps per environment in a fragment.
        fragments_per_batch: Number of fragments per train batch.
        seed: Seed of all random draws.
        count_setting: Name of the setting of the number of runners, for messages.
        sample_timeout_s: Seconds after which a reply is late; None for the config's value.
    """

    num_env_runners: int
    num_envs: int
    fragment_length: int = 1
    fragments_per_batch: int = 1
    seed: int
    count_setting: str = "num_env_runners"
    sample_timeout_s: float | None = None

    @staticmethod
    def from_config(config: "Config") -> "GroupShape":
        plan = config.plan()
        return GroupShape(
            num_env_runners=plan.num_env_runners,
            num_envs=plan.envs_per_runner,
            fragment_length=plan.rollout_fragment_length,
            fragments_per_batch=plan.fragments_per_batch,
            seed=config.debugging_settings.run_seed,
        )


class RunnerStandIn(ReadsPolicies):
    """Stand-in for a runner of this process, where all are actors: it has a config, and no copies.

    Args:
        config: Config of the run.
    """

    worker_index, num_envs, env = 0, 0, None

    def __init__(self, config: "Config") -> None:
        self.config = config.copy_live(*LIVE_SETTINGS) if config.is_multi_agent else config

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"the runner of this process stands in for actors, and has no {name!r}: pass "
            "local_env_runner=False to call actors alone."
        )


class RayEnvRunnerGroup(FormerGroupNames):
    """Env runners in processes of their own, restarted according to `fault_tolerance`.

    Runner i, from 1 on, has the environments (i - 1) * n to i * n - 1 of the run, so the data are
    the same as those of a single runner in this process with all environments.

    Args:
        config: Config of the run or of its evaluation.
        assembly: Assembled run, which provides the environment.
        hooks: Callbacks for restarted runners; the episode hooks are called in the actors.
        shape: Size of the group; None for that of training.

    Attributes:
        notes: Messages for `explain()`.

    Raises:
        ConfigError: If an object cannot be sent to actors, or Ray lacks the resources.
        EnvRunnerError: If a runner cannot start.
    """

    is_compiled: ClassVar[bool] = False

    def __init__(
        self,
        config: "Config",
        assembly: Assembly,
        hooks: RunnerHooks,
        shape: GroupShape | None = None,
    ) -> None:
        shape = shape or GroupShape.from_config(config)
        self._shape, self._hooks = shape, hooks
        runners = config.env_runners_settings
        job = self._pack_job(config, assembly.made)
        self.stand_in = RunnerStandIn(config)
        self.notes = [ensure_ray(config)]
        policy = FaultPolicy.from_config(config)
        if shape.sample_timeout_s is not None:
            policy = dataclasses.replace(policy, sample_timeout_s=shape.sample_timeout_s)
        self._backend = _make_backend(config, shape, job)
        self._fleet = fleet = Fleet(
            self._backend,
            policy,
            shape.num_env_runners,
            assembly.made.id,
            shape.fragment_length,
            shape.num_envs,
        )
        fleet.counts.has_several_agents = config.is_multi_agent
        batch = shape.fragments_per_batch
        in_flight = runners.max_requests_in_flight_per_env_runner
        if config.is_async:
            queue_size = config.training_settings.learner_queue_size
            self._sampling = AsyncSampler(fleet, batch, in_flight, queue_size)
        else:
            self._sampling = SyncSampler(fleet, batch, in_flight)
        self._kept_params = KeptParamsSplitter(find_frozen_modules(assembly.plan))
        self._waited_s, self._metrics_since = 0.0, fleet.backend.now()
        # Not a bound method, which would keep this object from being garbage-collected.
        self._finalizer = weakref.finalize(self, _release, self._sampling, fleet)
        try:
            fleet.start()
            if runners.validate_env_runners_after_construction:
                fleet.wait_until_started()
        except BaseException:
            self.stop()
            raise

    def _pack_job(self, config: "Config", made: object) -> bytes:
        shape = self._shape
        return pack_job(
            ActorJob(
                config=config,
                made=cast("Any", made),
                num_workers=shape.num_env_runners,
                num_envs=shape.num_envs,
                fragment_length=shape.fragment_length,
                seed=shape.seed,
            )
        )

    def set_policies(self, policies: Mapping[str, Any]) -> None:
        self.stand_in.run_policies = policies

    def local_worker(self) -> RunnerStandIn:
        """Return what stands in for a runner of this process, with the learner's weights."""
        return self.stand_in

    @property
    def local_config(self) -> "Config":
        return self.stand_in.config

    def change_modules(
        self, config: "Config", made: MadeMultiHostEnv, *, has_new_mapping: bool
    ) -> None:
        job = self._pack_job(config, made)
        self._backend.set_job(job)
        policies = self.stand_in.run_policies
        self.stand_in = RunnerStandIn(config)
        self.stand_in.run_policies = policies
        self._kept_params = KeptParamsSplitter(find_frozen_modules(config.plan()))
        self._sampling.wait_for_recovery(_RECOVERY_TIMEOUT_S)
        change = partial(change_modules_by_job, job=job, has_new_mapping=has_new_mapping)
        call_all(self._fleet, change)

    def keep_config(self, config: "Config", made: MadeMultiHostEnv) -> None:
        self._backend.set_job(self._pack_job(config, made))

    @property
    def num_healthy_env_runners(self) -> int:
        """Number of runners that reply in time."""
        return len(self._fleet.get_healthy())

    @property
    def num_env_runners(self) -> int:
        """Number of configured runners."""
        return self._shape.num_env_runners

    @property
    def task(self) -> PyTree:
        """Latest task that was set; None for none."""
        return self._backend.task

    # --- training ---

    def sync_weights(
        self, weights: Weights | None = None, *, policies: Collection[str] | None = None
    ) -> None:
        """Publish the weights to act with; RLlib's call, without any, changes nothing.

        Runners receive the newest weights of all modules before they sample.
        """
        del policies
        if weights is None:
            return
        actor = jax.device_get(weights.actor)
        self._backend.task = weights.task
        self._fleet.publish(*self._kept_params.split(dataclasses.replace(weights, actor=actor)))

    def set_task(self, task: PyTree) -> None:
        self._backend.task = task
        call_all(self._fleet, lambda runner: runner.set_task(task))

    def next_batch(self) -> list[Fragment]:
        begin = self._fleet.backend.now()
        batch = self._sampling.next_batch()
        self._waited_s += self._fleet.backend.now() - begin
        self._call_recreated_hook()
        return batch

    def _call_recreated_hook(self) -> None:
        indices = self._fleet.pop_recreated()
        if indices:
            self._hooks.call(
                "on_env_runners_recreated",
                env_runner_group=self,
                env_runner_indices=indices,
                is_evaluation=self._shape.count_setting != "num_env_runners",
            )

    def get_metrics(self) -> dict[str, Any]:
        """Return wait fractions since the last call, and lifetime counts."""
        fleet, now = self._fleet, self._fleet.backend.now()
        elapsed = max(now - self._metrics_since, 1e-9)
        busy = fleet.pop_busy_seconds() / (elapsed * self._shape.num_env_runners)
        waited, self._waited_s, self._metrics_since = self._waited_s, 0.0, now
        return {
            "env_runners": {
                "learner_wait_fraction": min(1.0, waited / elapsed),
                "env_runners_wait_fraction": max(0.0, 1.0 - busy),
                **self._sampling.get_metrics(),
            },
            "fault_tolerance": {
                **fleet.ledger.get_metrics(),
                "num_healthy_env_runners": len(fleet.get_healthy()),
                "num_env_runner_restarts": fleet.num_restarts,
                "restarts": fleet.log.get_messages(),
                **fleet.counts.describe(),
            },
        }

    # --- evaluation ---

    def evaluate_async(
        self, weights: Weights, method: str, shares: Sequence[dict[str, Any]]
    ) -> EvaluationRound:
        """Start calls of a method on the runners without waiting for the results.

        Args:
            weights: Weights to act with.
            method: Name of the method of the runners.
            shares: Keyword arguments of each call. A runner may process several, one after another;
                those of a failed runner are reassigned.
        """
        self.sync_weights(weights)
        return EvaluationRound(self._fleet, method, shares, self._call_recreated_hook)

    # --- access to the runners and their state ---

    def foreach_env_runner(
        self,
        func: Callable[[Any], Any] | str,
        *,
        kwargs: dict[str, Any] | None = None,
        local_env_runner: bool | None = None,
    ) -> list[Any]:
        """Call a function on each healthy runner; return the results in order of their indices.

        Args:
            func: Function of a runner, or the name of its method.
            kwargs: Keyword arguments.
            local_env_runner: Whether to call it first on the stand-in for a runner of this process,
                which has a config: what is set there holds for runners that start later, too. None is
                True with several agents, where something may be set.
        """
        if local_env_runner is None:
            local_env_runner = self.local_config.is_multi_agent
        local = [call_runner(self.stand_in, func, kwargs)] if local_env_runner else []
        others = call_all(
            self._fleet, lambda runner: call_runner(runner, func, kwargs), sends_weights=True
        )
        return [*local, *others.values()]

    def foreach_env_runner_with_index(
        self, func: Callable[[int, Any], Any]
    ) -> list[tuple[int, Any]]:
        """Call a function of index and runner on healthy actors; return indices and results."""
        indices = list(range(1, self._shape.num_env_runners + 1))
        results = call_all(
            self._fleet, lambda runner, i: func(i, runner), indices, sends_weights=True
        )
        return list(results.items())

    def get_state(self) -> PyTree:
        """Return the state of all environments in order of their indices; None if one is missing.

        Restarting runners are waited for, up to a limit.
        """
        fleet = self._fleet
        for _ in range(2):  # the first call may detect a dead runner
            self._sampling.wait_for_recovery(_RECOVERY_TIMEOUT_S)
            states = call_all(fleet, lambda runner: runner.get_state())
            if len(states) == len(fleet.members):
                return _concatenate_states([states[index] for index in sorted(states)])
        return None

    def set_state(self, state: PyTree) -> None:
        """Restore a state returned by `get_state`.

        With None, all environments start new episodes, with random keys that were not used before
        according to the counts passed to `set_counts`.

        Raises:
            EnvRunnerError: If the state is for another number of environments.
        """
        self._sampling.wait_for_recovery(_RECOVERY_TIMEOUT_S)
        self._sampling.discard_pending()
        members = self._fleet.members
        if state is None:
            counts = [member.env_steps for member in members]
            for member in members:  # its runner counts the rows that it drops
                member.num_pending_rows = 0
            call_all(self._fleet, start_new_episodes, counts)
            return
        size, saved = self._shape.num_envs, len(state["count"])
        if saved != size * len(members):
            raise EnvRunnerError(
                f"The saved state has {saved} environments, and num_env_runners={len(members)} "
                f"with num_envs_per_env_runner={size} have {size * len(members)}: restore with the "
                "saved number."
            )
        rows = [slice(index * size, (index + 1) * size) for index in range(len(members))]
        parts = [jax.tree.map(lambda leaf, r=r: leaf[r], state) for r in rows]
        for member, part in zip(members, parts, strict=True):
            member.env_steps = int(np.max(part["count"]))
            member.num_pending_rows = _count_pending(part)
        call_all(self._fleet, lambda runner, part: runner.set_state(part), parts)

    @property
    def programs(self) -> list[Program]:
        """Empty; the actors compile in their own processes."""
        return []

    def get_counts(self) -> dict[str, Any]:
        return {
            "ledger": self._fleet.ledger.to_state(),
            "env_steps": [member.env_steps for member in self._fleet.members],
            "num_env_runner_restarts": self._fleet.num_restarts,
            **self._fleet.counts.describe(),
        }

    def set_counts(self, counts: dict[str, Any]) -> None:
        """Restore counts returned by `get_counts` of this group or of a local one."""
        fleet = self._fleet
        with fleet.lock:
            fleet.ledger = StepLedger.from_state(counts.get("ledger", {}))
            fleet.num_restarts = counts.get("num_env_runner_restarts", 0)
            fleet.counts.restore(counts)
            # The number of runners may differ, so all continue after the largest count.
            env_steps = max(counts.get("env_steps", []), default=0)
            for member in fleet.members:
                member.env_steps = env_steps

    def stop(self) -> None:
        """Close the environments and kill the actors; safe to call more than once."""
        if self._finalizer.alive:
            self._sampling.stop()
            close_envs(self._fleet)
            self._finalizer()


def _make_backend(config: "Config", shape: GroupShape, job: bytes) -> RayBackend:
    """Create the backend with the actors' resources, environment variables and placement."""
    bundle = make_runner_bundle(config)
    custom = config.env_runners_settings.custom_resources_per_env_runner
    extra = config.python_environment_settings.extra_python_environs_for_worker
    wanted = ResourceRequest(
        count=shape.num_env_runners,
        bundle=bundle,
        strategy=config.resources_settings.placement_strategy,
        count_setting=shape.count_setting,
        setting_by_resource={
            "CPU": "num_cpus_per_env_runner",
            **dict.fromkeys(custom, "custom_resources_per_env_runner"),
        },
    )
    options = make_actor_options(bundle, make_actor_env_vars(bundle["CPU"], extra))
    return RayBackend(job, options, reserve_bundles(wanted))


def _count_pending(state: dict[str, PyTree]) -> int:
    """Return the number of agents' rows that go on where a runner's state is restored."""
    goes_on = "modules" in state and state["env"] is not None
    return count_pending_rows(state) if goes_on else 0


def _concatenate_states(parts: list[dict[str, PyTree]]) -> dict[str, PyTree]:
    """Concatenate the states of all runners along the environments."""
    envs = [part.pop("env") for part in parts]
    joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    joined["env"] = None
    if all(env is not None for env in envs):
        joined["env"] = jax.tree.map(lambda *leaves: np.concatenate(leaves), *envs)
    return joined


def _release(sampling: SyncSampler | AsyncSampler, fleet: Fleet) -> None:
    sampling.stop()
    fleet.stop()
