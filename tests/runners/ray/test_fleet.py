"""Groups whose runners are slow, die, hang or raise, in simulated time."""

import dataclasses
import json
import math
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl import PPOConfig
from jaxrl.core.types import Progress
from jaxrl.errors import EnvError, EnvRunnerError
from jaxrl.runners.fragment import Fragment, RunnerFault, Weights
from jaxrl.runners.ray import group as group_module
from jaxrl.runners.ray.fleet import (
    MAX_REPORTED_RESTARTS,
    MAX_TRACEBACK_CHARS,
    EvaluationRound,
    FaultPolicy,
    Fleet,
    Phase,
    append_traceback,
    call_all,
)
from jaxrl.runners.ray.group import (
    AsyncSampler,
    FragmentQueue,
    RayEnvRunnerGroup,
    RunnerStandIn,
    SyncSampler,
)
from jaxrl.runners.ray.kept_params import KeptParamsSplitter, join_kept_params
from jaxrl.runners.ray.start import ExceptionInfo
from jaxrl.runners.step_ledger import NOT_SAVED, STALE, DeliveryError, StepLedger, check_delivery
from jaxrl.training.rollout import ActorState
from tests.multi_agent.test_host_training import make_config
from tests.runners.ray.simulation import DIED, STEPS, Actor, Behaviour, Simulation, fragment

POLICY = FaultPolicy(
    restart=True,
    ignore=False,
    max_restarts=1000,
    max_delay_s=60.0,
    failures_tolerance=100,
    sample_timeout_s=10.0,
    probe_timeout_s=5.0,
    restore_timeout_s=100.0,
)
IGNORE: dict[str, Any] = {"restart": False, "ignore": True}
NEITHER: dict[str, Any] = {"restart": False, "ignore": False}
BOOM = ExceptionInfo(message="ValueError: boom", traceback="Traceback: line 7 of env.py\nboom")


class Group:
    """A fleet of simulated runners and the batches made of what they deliver."""

    def __init__(
        self,
        behaviour: Behaviour | None = None,
        start: Behaviour | None = None,
        size: int = 3,
        max_in_flight: int = 1,
        rounds: int = 1,
        **policy: Any,
    ) -> None:
        self.backend = Simulation(behaviour, start)
        self.fleet = Fleet(
            self.backend, dataclasses.replace(POLICY, **policy), size, "Toy-v0", STEPS, 1
        )
        self.size = size * rounds
        self.sampling = SyncSampler(self.fleet, self.size, max_in_flight)
        self.fleet.start()
        self.fleet.wait_until_started()

    def batch(self, version: int) -> list[tuple[int, int]]:
        """Return the runner and the fragment of each place of the batch."""
        self.fleet.publish(Weights(version=version, actor=None))
        before = self.fleet.ledger
        batch = self.sampling.next_batch()
        assert len(batch) == self.size
        assert all(fragment.weights_version == version for fragment in batch)
        after = self.fleet.ledger
        assert after.trained == before.trained + STEPS * len(batch)
        return [(fragment.worker_index, fragment.number) for fragment in batch]

    def phases(self) -> list[Phase]:
        return [member.phase for member in self.fleet.members]


def on(worker_index: int, number: int, what: Any, incarnation: int = 0) -> Behaviour:
    """One second a fragment, but for one of them."""

    def behaviour(actor: Actor, asked: int) -> Any:
        here = (actor.worker_index, actor.incarnation, asked) == (worker_index, incarnation, number)
        return what if here else 1.0

    return behaviour


def test_each_runner_does_its_share_with_the_newest_weights_sent_once() -> None:
    group = Group()
    assert group.batch(0) == [(1, 0), (2, 0), (3, 0)]
    assert group.batch(1) == [(1, 1), (2, 1), (3, 1)]
    assert group.backend.put_versions == [0, 1]
    assert [actor.version for actor in group.backend.actors] == [1, 1, 1]
    assert group.backend.time == 3.0  # all at once: a second to start, one for each batch


@pytest.mark.parametrize("max_in_flight", [1, 2])
def test_several_rounds_are_equal_shares_in_order_whatever_the_speed(max_in_flight: int) -> None:
    group = Group(
        lambda actor, number: float(actor.worker_index), rounds=2, max_in_flight=max_in_flight
    )
    assert group.batch(0) == [(1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (3, 1)]
    assert group.batch(1) == [(1, 2), (2, 2), (3, 2), (1, 3), (2, 3), (3, 3)]
    assert not group.fleet.ledger.discarded


def test_the_rounds_of_a_dead_runner_are_divided_over_the_others() -> None:
    group = Group(on(2, 1, DIED), rounds=2)
    assert group.batch(0) == [(1, 0), (2, 0), (3, 0), (1, 1), (1, 2), (3, 1)]


def test_a_dead_runners_share_is_done_by_another_and_it_comes_back() -> None:
    group = Group(on(2, 1, DIED))
    group.batch(0)
    assert group.batch(1) == [(1, 1), (1, 2), (3, 1)]
    assert group.fleet.ledger.maybe_lost == STEPS
    assert group.batch(2)[0] == (1, 3)
    while group.fleet.num_restarts == 0:
        group.batch(group.fleet.weights_version + 1)
    assert group.fleet.pop_recreated() == [2]
    assert group.fleet.pop_recreated() == []
    assert group.batch(9)[1][0] == 2
    latest, died, *_ = group.fleet.log.get_messages()
    assert latest == "EnvRunner 2 (environment Toy-v0) was restarted (restart 1)."
    assert died.startswith("EnvRunner 2 (environment Toy-v0) died.")
    assert "SIGKILL" in died


def test_a_hung_runner_is_passed_over_and_its_late_fragment_is_counted() -> None:
    group = Group(on(2, 1, 13.0))
    group.batch(0)
    assert group.batch(1) == [(1, 1), (1, 2), (3, 1)]
    assert group.phases() == [Phase.HEALTHY, Phase.SUSPECT, Phase.HEALTHY]
    assert group.backend.time == pytest.approx(2 + POLICY.sample_timeout_s + 1)
    version = 1
    while group.phases()[1] is Phase.SUSPECT:
        version += 1
        group.batch(version)
    assert group.fleet.num_restarts == 0
    assert dict(group.fleet.ledger.discarded) == {"timeout": STEPS}
    assert group.batch(version + 1)[1] == (2, 2)


def test_a_late_fragment_is_used_while_its_batch_still_needs_it() -> None:
    group = Group(lambda actor, number: 12.0 if number == 1 else 1.0)
    group.batch(0)
    assert group.batch(1) == [(1, 1), (2, 1), (3, 1)]
    assert group.phases() == [Phase.HEALTHY] * 3
    assert not group.fleet.ledger.discarded


def test_a_runner_that_hangs_for_good_is_killed_and_started_again() -> None:
    group = Group(on(2, 1, 1e9))
    for version in range(10):
        group.batch(version)
    assert group.fleet.num_restarts == 1
    assert group.backend.actors[1].killed
    assert "hangs" in group.fleet.log.get_messages()[1]
    assert "sample_timeout_s=10" in group.fleet.log.get_messages()[1]
    assert group.fleet.ledger.maybe_lost == STEPS


def test_the_original_traceback_is_reported() -> None:
    group = Group(on(3, 1, BOOM))
    group.batch(0)
    assert group.batch(1) == [(1, 1), (2, 1), (1, 2)]
    assert any(s.endswith(BOOM.traceback) for s in group.fleet.log.get_messages())


def test_a_broken_contract_is_raised_at_once_and_not_tried_again() -> None:
    broken = ExceptionInfo(
        message="Toy-v0: the reward is a str.", traceback="", user_error_class=EnvError
    )
    group = Group(on(3, 0, broken))
    with pytest.raises(EnvError, match=r"EnvRunner 3 .*failed: Toy-v0: the reward is a str"):
        group.batch(0)
    assert len(group.backend.actors) == 3


def test_ignoring_goes_on_with_fewer_until_none_is_left() -> None:
    group = Group(lambda actor, n: DIED if n == actor.worker_index else 1.0, **IGNORE)
    assert group.batch(0) == [(1, 0), (2, 0), (3, 0)]
    assert {index for index, _ in group.batch(1)} <= {2, 3}
    with pytest.raises(EnvRunnerError, match=r"All 3 EnvRunners of Toy-v0 are lost") as caught:
        [group.batch(version) for version in range(2, 9)]
    assert "SIGKILL" in str(caught.value)
    assert group.phases() == [Phase.GONE] * 3
    assert len(group.backend.actors) == 3


def test_neither_ignoring_nor_restarting_raises_the_first_failure() -> None:
    group = Group(on(2, 1, BOOM), **NEITHER)
    group.batch(0)
    with pytest.raises(EnvRunnerError, match=r"EnvRunner 2 .*boom") as caught:
        group.batch(1)
    assert "restart_failed_env_runners" in str(caught.value)
    assert BOOM.traceback in str(caught.value)


def test_one_runner_alone_is_waited_for() -> None:
    group = Group(on(1, 1, DIED), size=1)
    group.batch(0)
    assert group.batch(1) == [(1, 0)]
    assert group.fleet.num_restarts == 1


def test_a_runner_that_cannot_start_is_an_error_at_once() -> None:
    with pytest.raises(EnvRunnerError, match=r"EnvRunner 2 .*cannot start: ValueError: boom"):
        Group(start=lambda actor, n: BOOM if actor.worker_index == 2 else 1.0)
    with pytest.raises(EnvRunnerError, match=r"env_runner_restore_timeout_s=100 "):
        Group(start=lambda actor, n: 1e9)


def test_restarts_back_off_from_nothing_to_the_limit() -> None:
    policy = dataclasses.replace(POLICY, max_delay_s=5.0)
    assert [policy.get_restart_delay(n) for n in range(7)] == [0.0, 0.0, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert policy.get_restart_delay(10**6) == 5.0
    group = Group(on(1, 1, DIED), lambda a, n: BOOM if 0 < n < 4 else 1.0, size=1, max_delay_s=5.0)
    group.batch(0)
    before = group.backend.time
    group.batch(1)
    # It dies after 0.5; starts fail after 0, 1 and 2 seconds of waiting and half a second each;
    # the fourth comes after 4 and takes one, the fragment another.
    assert group.backend.time - before == pytest.approx(0.5 + 0.5 + 1.5 + 2.5 + 4 + 2)
    assert [actor.incarnation for actor in group.backend.actors] == [0, 1, 2, 3, 4]


def test_failures_without_a_fragment_in_between_end_the_run() -> None:
    group = Group(lambda a, n: BOOM, size=2, failures_tolerance=3)
    with pytest.raises(EnvRunnerError, match="num_consecutive_env_runner_failures_tolerance=3"):
        group.batch(0)
    recovering = Group(lambda a, n: DIED if n == 1 else 1.0, size=2, failures_tolerance=3)
    for version in range(20):
        recovering.batch(version)
    assert recovering.fleet.num_restarts > 10


def test_restarts_are_limited_for_each_runner() -> None:
    group = Group(on(2, 0, DIED), lambda a, n: 1.0, max_restarts=0)
    assert group.batch(0) == [(1, 0), (1, 1), (3, 0)]
    assert group.phases()[1] is Phase.GONE
    alone = Group(lambda a, n: DIED, size=1, max_restarts=2)
    with pytest.raises(EnvRunnerError, match="max_num_env_runner_restarts"):
        alone.batch(0)
    assert len(alone.backend.actors) == 3


def test_several_requests_in_flight_fill_faster() -> None:
    slow = Group(on(2, 1, 1e9), size=2, sample_timeout_s=4.0)
    fast = Group(lambda a, n: 1e9 if a.worker_index > 1 else 1.0, size=4, max_in_flight=3)
    slow.batch(0)
    slow.batch(1)
    fast.batch(0)
    assert fast.batch(1) == [(1, number) for number in range(4, 8)]
    assert max(len(m.requests) for m in slow.fleet.members) == 1


def test_accounts_name_sub_environments_that_were_restarted() -> None:
    group = Group(size=1)
    fault = RunnerFault(worker_index=1, env_index=4, what="raised", detail="Traceback: x")
    group.fleet.publish(Weights(version=0, actor=None))
    group.fleet.request_fragment(group.fleet.members[0])
    head = group.fleet.members[0].requests[0].future
    silent = dataclasses.replace(fault, silent=True)
    nan = dataclasses.replace(fault, what="reward")
    head.value = dataclasses.replace(head.value, faults=(fault, silent, nan))
    group.fleet.poll(math.inf)
    assert group.fleet.counts.num_sub_env_restarts == 2
    (sentence,) = group.fleet.log.get_messages()
    assert sentence.startswith("EnvRunner 1 restarted its environment 4 of Toy-v0")
    assert sentence.endswith("Traceback: x")


def test_the_log_is_bounded() -> None:
    group = Group(size=1)
    for number in range(3 * MAX_REPORTED_RESTARTS):
        group.fleet.log.add(f"restart {number}")
    assert len(group.fleet.log.get_messages()) == MAX_REPORTED_RESTARTS
    assert group.fleet.log.get_messages()[0] == f"restart {3 * MAX_REPORTED_RESTARTS - 1}"
    long = append_traceback("It died.", "x" * 10 * MAX_TRACEBACK_CHARS + " the cause")
    assert long.endswith("the cause")
    assert len(long) < 2 * MAX_TRACEBACK_CHARS


def test_stop_kills_every_actor_and_closes() -> None:
    group = Group()
    group.batch(0)
    group.fleet.stop()
    group.fleet.stop()
    assert not group.backend.alive()
    assert group.backend.closed == 2
    assert group.fleet.poll(1.0) == []


WHAT = st.sampled_from([1.0, 1.0, 1.0, 0.1, 3.0, 12.0, 40.0, DIED, BOOM])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(WHAT, min_size=1, max_size=12), min_size=1, max_size=4),
    st.lists(st.sampled_from([1.0, 1.0, 5.0, DIED, BOOM]), max_size=6),
    st.integers(1, 3),
)
def test_under_any_faults_batches_are_whole_and_accounts_balance(
    faults: list[list[Any]], starts: list[Any], max_in_flight: int
) -> None:
    """Runner i's n-th fragment behaves as faults[i][n]; restarts as `starts`; later all is well."""

    def behaviour(actor: Actor, number: int) -> Any:
        plan = faults[actor.worker_index - 1]
        place = number + 3 * actor.incarnation
        return plan[place] if place < len(plan) else 1.0

    def start(actor: Actor, incarnation: int) -> Any:
        return starts[incarnation - 1] if 0 < incarnation <= len(starts) else 1.0

    group = Group(behaviour, start, size=len(faults), max_in_flight=max_in_flight)
    for version in range(12):
        group.batch(version)  # its size and version are looked at there
        ledger = group.fleet.ledger
        in_flight = sum(len(member.requests) for member in group.fleet.members)
        asked = STEPS * sum(actor.number for actor in group.backend.actors)
        # Every fragment that was ever asked for is in exactly one place.
        assert asked == ledger.received + ledger.maybe_lost + STEPS * in_flight
        assert ledger.queued == 0


def test_kept_parameters_go_to_each_actor_once_and_to_one_that_takes_its_place() -> None:
    group = Group(on(2, 1, DIED), size=2)
    group.fleet.publish(Weights(version=0, actor=None), {"old": 1})
    for version in range(1, 6):
        group.batch(version)
    first, second, third = group.backend.actors
    assert third.worker_index == 2
    assert first.kept == second.kept == third.kept == [{"old": 1}]
    assert group.fleet.num_kept_params_sent == 3
    group.fleet.publish(Weights(version=6, actor=None), {"old": 2})
    for version in range(7, 9):
        group.batch(version)
    assert first.kept == third.kept == [{"old": 1}, {"old": 2}]
    assert group.fleet.num_kept_params_sent == 5


# --- evaluations and other calls of all runners, in simulated time ---


SHARES = [{"seed": seed} for seed in range(5)]


def fleet_of(behaviour: Behaviour | None = None, size: int = 2, **policy: Any) -> Fleet:
    fleet = Fleet(
        Simulation(behaviour), dataclasses.replace(POLICY, **policy), size, "Toy-v0", STEPS, 1
    )
    fleet.start()
    fleet.wait_until_started()
    fleet.publish(Weights(version=7, actor=None))
    return fleet


def seeds(results: list[Any]) -> list[int]:
    assert {(version, method) for _, version, method, _ in results} <= {(7, "run")}
    return [kwargs["seed"] for _, _, _, kwargs in results]


def test_shares_are_spread_over_the_runners_and_come_back_in_order() -> None:
    fleet = fleet_of(lambda actor, number: float(actor.worker_index))
    ended: list[bool] = []
    begun = fleet.backend.now()
    evaluation = EvaluationRound(fleet, "run", SHARES, lambda: ended.append(True))
    assert not evaluation.is_done
    assert seeds(evaluation.collect()) == [0, 1, 2, 3, 4]
    # The first runner, twice as quick, does three of them.
    assert fleet.backend.now() - begun == 4.0
    assert ended == [True]
    assert fleet.ledger.received == 0


def test_what_is_not_done_in_time_is_left_out_and_is_nothing_to_the_next_round() -> None:
    fleet = fleet_of(lambda actor, number: 5.0 if actor.worker_index == 2 else 1.0)
    first = EvaluationRound(fleet, "run", SHARES)
    assert seeds(first.collect(2.0)) == [0, 2]
    assert not first.is_done
    second = EvaluationRound(fleet, "run", [{"seed": 10}, {"seed": 11}])
    assert seeds(second.collect()) == [10, 11]
    assert second.is_done


@pytest.mark.parametrize("fault", [DIED, BOOM, 1e9])
def test_a_failed_runners_share_is_done_by_another(fault: Any) -> None:
    def behaviour(actor: Actor, number: int) -> Any:
        return fault if (actor.worker_index, actor.incarnation) == (1, 0) else 1.0

    fleet = fleet_of(behaviour)
    assert seeds(EvaluationRound(fleet, "run", SHARES).collect()) == [0, 1, 2, 3, 4]
    lost = fleet_of(lambda actor, number: fault, **IGNORE)
    with pytest.raises(EnvRunnerError, match="All 2 EnvRunners"):
        EvaluationRound(lost, "run", SHARES).collect()


def test_a_call_of_all_leaves_out_the_dead_and_names_who_raised() -> None:
    fleet = fleet_of(lambda actor, number: DIED if actor.worker_index == 2 else 1.0, size=3)
    answers = call_all(fleet, len, ["a", "b", "c"])
    assert [(index, answer[-1]) for index, answer in answers.items()] == [(1, "a"), (3, "c")]
    # The death is known, and followed as the policy says.
    assert [member.phase for member in fleet.members][1] is Phase.WAITING
    strict = fleet_of(lambda actor, number: DIED, restart=False)
    assert call_all(strict, len) == {}
    with pytest.raises(EnvRunnerError, match=r"EnvRunner 1 .*died"):
        strict.raise_if_lost()
    raising = fleet_of(lambda actor, number: BOOM if actor.worker_index == 2 else 1.0)
    with pytest.raises(EnvRunnerError, match=r"EnvRunner 2 raised ValueError: boom") as caught:
        call_all(raising, len)
    assert BOOM.traceback in str(caught.value)
    hanging = fleet_of(lambda actor, number: 1e9 if actor.worker_index == 1 else 1.0)
    assert list(call_all(hanging, len)) == [2]


# --- sampling beside the learner: bounded, measured, each fragment once ---


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


# --- accounts of steps: they balance whatever happens, and survive a checkpoint ---


COUNTS = st.integers(0, 2**40)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("receive"), COUNTS),
        st.tuples(st.just("train"), st.integers(0, 20)),
        st.tuples(st.sampled_from(["stale", "timeout"]), st.integers(0, 20)),
        st.tuples(st.just("lose"), COUNTS),
    ),
    max_size=60,
)


@given(EVENTS)
def test_accounts_equal_those_of_a_list_of_fragments(events: list[tuple[str, int]]) -> None:
    ledger, queue, gone = StepLedger(), [], {"train": 0, "stale": 0, "timeout": 0, "lose": 0}
    received = 0
    for what, number in events:
        if what == "receive":
            ledger = ledger.receive(number)
            queue.append(number)
            received += number
        elif what == "lose":
            ledger = ledger.lose(number)
            gone["lose"] += number
        elif queue:
            steps = queue.pop(number % len(queue))
            gone[what] += steps
            ledger = ledger.train(steps) if what == "train" else ledger.discard(steps, what)
    metrics = ledger.get_metrics()
    assert metrics["num_env_steps_received_lifetime"] == received
    assert metrics["num_env_steps_trained_lifetime"] == gone["train"]
    assert metrics["num_env_steps_queued"] == sum(queue)
    discarded = metrics["num_env_steps_discarded_lifetime"]
    assert discarded.get("stale", 0) == gone["stale"]
    assert discarded.get("timeout", 0) == gone["timeout"]
    assert metrics["num_env_steps_maybe_lost_lifetime"] == gone["lose"]


def test_what_was_not_received_cannot_be_trained_on() -> None:
    with pytest.raises(ValueError, match="negative"):
        StepLedger().receive(5).train(6)
    with pytest.raises(ValueError, match="balance"):
        StepLedger(received=3, trained=2)


def test_a_checkpoint_keeps_the_counts_but_not_what_was_queued() -> None:
    ledger = StepLedger().receive(7).receive(5).train(7).receive(3).discard(3, STALE).lose(2)
    restored = StepLedger.from_state(json.loads(json.dumps(ledger.to_state())))
    assert restored.discarded == {STALE: 3, NOT_SAVED: 5}
    assert (restored.received, restored.trained, restored.queued) == (15, 7, 0)
    assert restored.maybe_lost == 2
    drained = ledger.train(5)
    assert StepLedger.from_state(drained.to_state()) == drained


def test_fragments_come_once_and_in_order() -> None:
    assert check_delivery(1, 0, -1, 0) == 0
    for number in (3, 5):
        with pytest.raises(DeliveryError, match=f"fragment {number} after 3"):
            check_delivery(1, 0, 3, number)


# --- parameters of frozen modules, which actors keep, and what becomes of them when modules are trained ---


def make_weights(version: int, **params: float) -> Weights:
    actors: Any = {
        name: ActorState(
            params=np.float32(value), obs_state=(), hparams={}, progress=Progress.zeros()
        )
        for name, value in params.items()
    }
    return Weights(version=version, actor=actors)


def get_params(weights: Any) -> dict[str, float]:
    return {name: float(own.params) for name, own in weights.actor.items()}


def test_frozen_parameters_are_sent_once_and_when_they_change() -> None:
    splitter = KeptParamsSplitter(("old",))
    rest, kept = splitter.split(make_weights(1, main=1.0, old=5.0))
    assert kept is not None
    assert get_params(join_kept_params(rest, kept)) == {"main": 1.0, "old": 5.0}
    rest, again = splitter.split(make_weights(2, main=2.0, old=5.0))
    assert again is None
    assert get_params(join_kept_params(rest, kept)) == {"main": 2.0, "old": 5.0}
    _, changed = splitter.split(make_weights(3, main=2.0, old=6.0))
    assert changed is not None


def test_a_module_that_is_trained_by_now_has_its_new_parameters() -> None:
    _, kept = KeptParamsSplitter(("old",)).split(make_weights(1, main=1.0, old=5.0))
    rest, none = KeptParamsSplitter(()).split(make_weights(2, main=2.0, old=7.0))
    assert none is None
    assert get_params(join_kept_params(rest, kept)) == {"main": 2.0, "old": 7.0}
    rest, _ = KeptParamsSplitter(()).split(make_weights(3, main=3.0))  # the other one is gone
    assert get_params(join_kept_params(rest, kept)) == {"main": 3.0}


# --- stand-in for the runner of this process where all runners are actors ---


def choose(agent_id: Any, episode: Any, **kwargs: Any) -> str:
    return "one"


@pytest.fixture
def make_group(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(group_module, "call_all", lambda fleet, call, **settings: {1: call(fleet)})

    def make(config: PPOConfig, count_setting: str = "num_env_runners") -> Any:
        group = object.__new__(RayEnvRunnerGroup)
        config.freeze()
        actor = SimpleNamespace(config=config.copy_live("policy_mapping_fn"), num_envs=4)
        shape = SimpleNamespace(count_setting=count_setting)
        parts = {"_fleet": actor, "_shape": shape, "stand_in": RunnerStandIn(config)}
        vars(group).update(parts)
        return group

    return make


def test_what_is_set_on_runners_is_set_for_those_that_start_later(make_group: Any) -> None:
    group = make_group(make_config())
    group.foreach_env_runner(func=lambda r: r.config.multi_agent(policy_mapping_fn=choose))
    for config in (group.local_config, group._fleet.config):
        assert config.multi_agent_settings.policy_mapping_fn is choose
    assert group.foreach_env_runner(lambda r: r.num_envs) == [0, 4]
    assert group.foreach_env_runner(lambda r: r.num_envs, local_env_runner=False) == [4]
    with pytest.raises(AttributeError, match="'sample': pass local_env_runner=False"):
        group.foreach_env_runner("sample")


def test_it_is_left_out_where_nothing_can_be_set(make_group: Any) -> None:
    evaluating = make_group(make_config(), "evaluation_num_env_runners")
    evaluating.foreach_env_runner(lambda r: r.config.multi_agent(policy_mapping_fn=choose))
    assert evaluating.local_config.multi_agent_settings.policy_mapping_fn is choose
    alone = make_group(PPOConfig().environment("CartPole-v1"))
    assert alone.foreach_env_runner(lambda r: r.num_envs) == [4]
