"""Evaluations and other calls of all runners, in simulated time."""

import dataclasses
from typing import Any

import pytest

from jaxrl.errors import EnvRunnerError
from jaxrl.runners.fragment import Weights
from jaxrl.runners.ray.fleet import EvaluationRound, Fleet, Phase, call_all
from tests.runners.ray.simulation import DIED, STEPS, Actor, Behaviour, Simulation
from tests.runners.ray.test_fleet import BOOM, IGNORE, POLICY

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
