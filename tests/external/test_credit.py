"""Credit, names and sizes: a client that may record always can, and loses nothing when it may not."""

import threading
from typing import Any

import gymnasium
import numpy as np
import pytest

from jaxrl.external import LinkError, PolicyClient
from jaxrl.external.connection import RefusedError, list_continued
from jaxrl.external.frames import BusyError, Kind
from jaxrl.external.spaces import SpaceLeaves, describe_space
from jaxrl.runners.external.schema import Schema
from tests.external.served import Network, Served, make_config, wait_for
from tests.external.test_faults import Raw, connected, read_all, refusal

X = np.zeros(2, np.float32)


@pytest.fixture
def served(start: Any) -> Served:
    """A server that remembers clients for as long as a test takes."""
    return start(resume_window_s=60.0)


def play(client: PolicyClient, name: str, num_steps: int) -> None:
    for _ in range(num_steps):
        client.get_action(name, X)
        client.log_returns(name, 1.0)


def test_one_thread_plays_several_episodes_in_turns(served: Served) -> None:
    with served.connect(timeout_s=5.0) as client, served.learning():
        names = [client.start_episode() for _ in range(4)]
        for _ in range(12):  # more steps than wait for the learner
            for name in names:
                play(client, name, 1)
        assert client.link.max_steps <= client.link.num_recorded + 32


def test_room_that_stale_steps_leave_is_granted(served: Served) -> None:
    slow, fast = served.connect(), served.connect()
    name = slow.start_episode()
    play(slow, name, 10)
    for _ in range(3):
        served.publish()
    slow.end_episode(name, X, truncated=True)
    slow.close()

    def record() -> None:
        for _ in range(10):
            name = fast.start_episode()
            play(fast, name, 4)
            fast.end_episode(name, X, truncated=True)

    thread = threading.Thread(target=record, daemon=True)
    thread.start()
    wait_for(lambda: served.ledger.queued == 32)
    served.take()
    thread.join(10.0)
    fast.close()
    assert served.ledger.discarded == {"stale": 10}


def test_an_episode_that_may_not_go_on_can_end(served: Served) -> None:
    client = served.connect(block=False)
    name = client.start_episode()
    with pytest.raises(LinkError, match="accepts no more than"):
        play(client, name, 100)
    client.end_episode(name, X, terminated=True)
    client.close()
    assert [part.terminated for part in served.group.inbox.parts if part.is_last] == [True]
    assert not any(s.episodes for s in served.sessions.by_id.values())


def test_a_step_that_is_refused_can_be_repeated(served: Served) -> None:
    with served.connect(block=False) as client:

        def play_on() -> None:
            while client.link.num_recorded < 100:
                client.step(X, 1.0)

        def refuse() -> None:
            for _ in range(2):
                with pytest.raises(LinkError, match="accepts no more than"):
                    play_on()

        refuse()
        client.step(X, 1.0, truncated=True)
        number = client.link.num_recorded
        wait_for(lambda: served.ledger.queued == number)
        rewards = [part.reward for part in served.group.inbox.parts]
        np.testing.assert_array_equal(np.concatenate(rewards), np.ones(number))
        refuse()  # at the first step of an episode
        served.take()
        wait_for(lambda: client.link.max_steps > client.link.num_recorded)
        client.step(X, 1.0)
        client.step(X, 2.0, truncated=True)
        wait_for(lambda: served.ledger.queued == number - 32 + 1)
        assert served.group.inbox.parts[-1].reward.tolist() == [2.0]


def lose_connection(served: Served, network: Network) -> None:
    """Cut all connections, and forget the clients as a new process does."""
    network.cut()
    wait_for(lambda: all(s.lost_at is not None for s in served.sessions.by_id.values()))
    served.group.server.ask(lambda sessions: sessions.by_id.clear())


def test_many_unacknowledged_episodes_survive_a_restart(served: Served, network: Network) -> None:
    served.group.inbox.capacity = 2000
    client = served.connect(network.address, inference_mode="local")
    wait_for(lambda: client.link.max_steps >= 1100 or served.group.server.grant())
    lose_connection(served, network)
    for _ in range(1100):
        name = client.start_episode()
        client.get_action(name, X)
        client.end_episode(name, X, terminated=True)
    network.restore(served.group.address)
    wait_for(lambda: served.ledger.received == 1100)
    client.close()


def test_open_episodes_with_long_names_survive_a_restart(served: Served, network: Network) -> None:
    client = served.connect(network.address, inference_mode="local")
    for i in range(1000):
        client.start_episode(f"{i:0200}")
    lose_connection(served, network)
    network.restore(served.group.address)
    wait_for(lambda: client.link.get_state()["is_connected"])
    play(client, f"{0:0200}", 1)
    client.close()


def test_memory_of_an_episode_is_not_begun_anew(
    served: Served, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Schema, "has_state", True)
    client = served.connect(network.address)
    name, other = client.start_episode(), client.start_episode()
    play(client, name, 2)
    lose_connection(served, network)
    network.restore(served.group.address)
    with pytest.raises(LinkError, match=r"memory of the episode .* start another one"):
        play(client, name, 1)
    play(client, other, 1)  # which had no action
    client.close()


def give_up(served: Served, name: str) -> None:
    served.group.server.ask(
        lambda sessions: [sessions.give_up(session, name) for session in sessions.by_id.values()]
    )


def test_steps_of_an_episode_that_was_given_up_take_no_credit(served: Served) -> None:
    with served.connect(timeout_s=2.0) as client:
        for _ in range(2):
            name = client.start_episode()
            play(client, name, 8)
            give_up(served, name)
            for _ in range(2):
                with pytest.raises(LinkError, match="was given up"):
                    client.get_action(name, X)
            assert client.link.num_recorded == 0
        name = client.start_episode()
        play(client, name, 8)
        give_up(served, name)
        with pytest.raises(LinkError, match="was given up"):
            client.get_action(name, X)
    assert served.ledger.maybe_lost == 0


@pytest.mark.parametrize("num_threads", [3, 5, 7])
def test_threads_in_lockstep_do_not_wait_for_each_other(served: Served, num_threads: int) -> None:
    barrier = threading.Barrier(num_threads, timeout=10.0)
    num_played = [0] * num_threads

    def run(client: PolicyClient, i: int) -> None:
        name = client.start_episode()
        for _ in range(30):
            play(client, name, 1)
            num_played[i] += 1
            barrier.wait()

    client = served.connect(timeout_s=5.0)
    with served.learning():
        threads = [
            threading.Thread(target=run, args=(client, i), daemon=True) for i in range(num_threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(15.0)
    assert num_played == [30] * num_threads
    client.close()


def test_an_episode_can_end_after_a_failed_action(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = served.connect()
    client.link.welcome["part_length"] = 4
    name = client.start_episode()
    play(client, name, 4)

    def fail(*args):
        raise LinkError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(client, "_act_remotely", fail)
        with pytest.raises(LinkError, match="no answer"):
            client.get_action(name, X)
    client.end_episode(name, X, terminated=True)
    client.close()
    (part,) = served.group.inbox.parts
    assert (len(part), part.terminated) == (4, True)


def test_the_end_of_an_episode_does_not_hold_up_a_fetch_of_weights(served: Served) -> None:
    with served.connect(inference_mode="local") as client:
        name = client.start_episode()
        play(client, name, 1)
        assert client.local is not None
        with client.local._lock:  # as another thread has it while it fetches
            thread = threading.Thread(
                target=client.end_episode, args=(name, X), kwargs={"truncated": True}, daemon=True
            )
            thread.start()
            wait_for(lambda: not client.episodes)
            assert client.link.changed.acquire(timeout=5.0)
            client.link.changed.release()
        thread.join(5.0)


@pytest.mark.parametrize("num_parts", [1, 2])
def test_a_server_need_not_know_episodes_that_are_sent_from_their_start(num_parts: int) -> None:
    def part(name: str, t: int) -> dict[str, object]:
        return {"episode_id": name, "t_started": t, "training_enabled": True}

    parts = [part(name, t) for name in ("a", "open") for t in range(num_parts)]
    continued = list_continued({"open": [num_parts, True]}, [part("b", 1), part("b", 2), *parts])
    assert continued == {"open": [0, True], "b": [1, True]}


@pytest.mark.parametrize("name", ["num_recorded", "num_open"])
def test_wrong_counts_leave_nothing_at_the_run(
    served: Served, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    known = served.connect()
    secret = known.link.welcome["secret"]
    (session,) = served.sessions.by_id.values()
    for client_id, head in ((known.client_id, {"secret": secret}), ("new", {})):
        with pytest.raises(LinkError, match=f"{name} must be a whole number"):
            served.group.server.ask(lambda s: s.open(client_id, {**head, name: "x"}))  # noqa: B023
    assert list(served.sessions.by_id.values()) == [session]
    episodes = {"a": [0, True], "b": "wrong"}
    with pytest.raises(LinkError, match="must map names"):
        served.group.server.ask(lambda s: s.open("new", {"open_episodes": episodes}))
    assert not served.sessions.slots
    known.close()


def expire_all(served: Served) -> None:
    served.group.server.ask(lambda s: [s.expire(session) for session in list(s.by_id.values())])


@pytest.mark.parametrize("num_recorded", [2**40, 2**62 - 1])
def test_a_new_client_grants_itself_nothing(served: Served, num_recorded: int) -> None:
    for i in range(3):
        with pytest.raises(RefusedError, match="more than the 2080 that this run grants"):
            Raw(served, f"greedy{i}", num_recorded=num_recorded)
    with connected(served, secret="x", num_recorded=20) as known:
        secret = known.welcome["secret"]
        with pytest.raises(RefusedError, match="more than the 32 that it was granted"):
            Raw(served, secret=secret, num_recorded=num_recorded)
        known.send(Kind.PING, {"num_recorded": num_recorded})
        assert "more than the 32 that it was granted" in refusal(read_all(known.channel.socket))
    expire_all(served)
    assert served.ledger.maybe_lost == 0


def test_steps_recorded_elsewhere_are_no_loss_of_this_run(served: Served) -> None:
    for i in range(3):
        with connected(served, f"old{i}", num_recorded=1000):
            expire_all(served)
    assert served.ledger.maybe_lost == 0
    with connected(served, num_recorded=20) as client:
        client.send(Kind.PING, {"num_recorded": 30})
        assert client.read()[0] == Kind.PONG
        expire_all(served)
    assert served.ledger.maybe_lost == 10


def test_clients_that_come_and_go_do_not_fill_the_memory(served: Served) -> None:
    for i in range(3):
        with connected(served, f"old{i}", num_recorded=1000) as client:
            client.send_part(served, length=1000, head={"num_recorded": 1000})
            assert client.read()[0] == Kind.ACK
            expire_all(served)
    with pytest.raises(BusyError, match="queue is full of steps"):
        Raw(served, "old3", num_recorded=1000)
    assert served.ledger.queued == 3000


def test_clients_that_wait_to_send_leave_no_room_for_others(served: Served) -> None:
    with connected(served, "a", num_recorded=1500), connected(served, "b", num_recorded=1500):
        with pytest.raises(BusyError, match="queue is full of steps"):
            Raw(served, "c", num_recorded=1)
        served.connect(timeout_s=5.0).close()


@pytest.mark.parametrize("name", ["", "x" * 201])
def test_names_are_checked_where_they_arise(served: Served, name: str) -> None:
    with served.connect() as client:
        with pytest.raises(LinkError, match="1 to 200 characters"):
            client.start_episode(name)
        play(client, client.start_episode("x" * 200), 1)


@pytest.mark.parametrize(
    ("reward", "message"), [(1e39, "float32"), (None, "must be a number"), ("one", "must be a")]
)
def test_rewards_are_checked_where_they_arise(served: Served, reward, message: str) -> None:
    with served.connect() as client:
        name = client.start_episode()
        play(client, name, 1)
        with pytest.raises(LinkError, match=message):
            client.log_returns(name, reward)


def test_a_step_without_an_action_is_not_counted(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served.connect() as client:

        def fail(*args):
            raise LinkError("no answer")

        monkeypatch.setattr(client, "_act_remotely", fail)
        with pytest.raises(LinkError, match="no answer"):
            client.get_action(client.start_episode(), X)
        assert client.link.num_recorded == 0


def test_parts_of_large_observations_fit_into_messages() -> None:
    space = gymnasium.spaces.Box(-1.0, 1.0, (1000,), np.float32)
    config = make_config(train_batch_size=64).environment(observation_space=space)
    served = Served(config.external(max_message_bytes=50_000))
    obs = np.zeros(space.shape, np.float32)
    with served.connect() as client:
        assert 8 <= client.link.welcome["part_length"] < 16
        name = client.start_episode()
        for _ in range(17):
            client.get_action(name, obs)
        client.end_episode(name, obs, truncated=True)
    assert served.ledger.received == 17
    served.group.stop()


def test_long_descriptions_of_spaces_are_received(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = {"kind": "Box", "low": [1 / 3] * 10_000}
    welcome = {**served.group.server.welcome, "unused": text}
    monkeypatch.setattr(served.group.server, "welcome", welcome)
    served.connect(timeout_s=2.0).close()


INTEGERS = gymnasium.spaces.Box(-(2**31), 2**31 - 1, (2,), np.int32)
PIXELS = gymnasium.spaces.Box(0, (1 + np.arange(2000) % 99).astype(np.uint8), dtype=np.uint8)
REALS = gymnasium.spaces.Box(-np.arange(2000, dtype=np.float32), 1.0, dtype=np.float32)


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (INTEGERS, [0.5, 1], "whole numbers"),
        (INTEGERS, [29, 4 + 2**-40], r"whole numbers, got 4\.0000000000009\d* at \[1\]"),
        (INTEGERS, [2**31 + 100, 1], "outside its bounds"),
        (PIXELS, np.full(2000, 300), r"is 300 at \[0\], outside its bounds \[0, 255\]"),
        (REALS, np.full(2000, 1e39), "outside its bounds"),
        (INTEGERS, [[1], [2, 3]], "unequal parts"),
    ],
)
def test_values_that_a_type_cannot_hold_are_refused(space, value, message: str) -> None:
    with pytest.raises(LinkError, match=message):
        SpaceLeaves(describe_space(space), "obs").flatten(value)


def test_whole_numbers_may_be_floats() -> None:
    leaves = SpaceLeaves(describe_space(INTEGERS), "obs").flatten(np.asarray([3.0, -1.0]))
    np.testing.assert_array_equal(leaves["obs.0"], [3, -1])
