"""Groups whose runners are slow, die, hang or raise, in simulated time."""

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.errors import EnvError, EnvRunnerError
from jaxrl.runners.fragment import RunnerFault, Weights
from jaxrl.runners.ray.fleet import (
    MAX_REPORTED_RESTARTS,
    MAX_TRACEBACK_CHARS,
    FaultPolicy,
    Fleet,
    Phase,
    append_traceback,
)
from jaxrl.runners.ray.group import SyncSampler
from jaxrl.runners.ray.start import ExceptionInfo
from tests.runners.ray.simulation import DIED, STEPS, Actor, Behaviour, Simulation

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
