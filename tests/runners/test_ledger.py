"""Accounts of steps: they balance whatever happens, and survive a checkpoint."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl.runners.step_ledger import NOT_SAVED, STALE, DeliveryError, StepLedger, check_delivery

STEPS = st.integers(0, 2**40)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("receive"), STEPS),
        st.tuples(st.just("train"), st.integers(0, 20)),
        st.tuples(st.sampled_from(["stale", "timeout"]), st.integers(0, 20)),
        st.tuples(st.just("lose"), STEPS),
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
