"""Clients over loopback: what they record arrives once, in order, and as it was."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import numpy as np
import pytest

from jaxrl import DQNConfig, IMPALAConfig, PPOConfig
from jaxrl.external import LinkError, PolicyClient, RunEndedError
from jaxrl.runners.external.group import resolve_max_lag
from tests.external.served import OBS, Network, Served, Walk, make_config, wait_for


def test_episodes_arrive_as_they_were_played(served: Served) -> None:
    with served.connect() as client:
        returns: list[float] = []
        thread = threading.Thread(target=lambda: returns.extend(client.run(Walk(), num_episodes=6)))
        thread.start()
        fragment = served.take()
        thread.join()
    rollout, record = fragment.rollout, fragment.record
    assert returns == [6.0] * 6
    assert rollout.mask.all()
    np.testing.assert_array_equal(rollout.obs[..., 0] + 1, rollout.final_obs[..., 0])
    np.testing.assert_array_equal(rollout.terminated, rollout.final_obs[..., 0] == 6)
    np.testing.assert_array_equal(rollout.is_first, rollout.obs[..., 0] == 0)
    np.testing.assert_array_equal(record.ended, rollout.terminated)
    assert set(record.episode_return[record.ended]) == {6.0}
    assert set(record.episode_length[record.ended]) == {6}
    assert (rollout.extras["action_logp"] < 0).all()
    assert set(np.unique(rollout.action)) <= {0, 1, 2}
    assert fragment.weights_version == 0
    assert fragment.num_env_steps == 32


def test_accounts_are_exact(served: Served) -> None:
    with served.connect() as client, served.learning():
        client.run(Walk(), num_episodes=20)
        wait_for(lambda: served.ledger.received == 120)
    wait_for(lambda: not served.sessions.by_id)
    ledger = served.ledger
    trained = sum(int(fragment.rollout.mask.sum()) for fragment in served.fragments)
    assert ledger.trained == trained
    assert ledger.received == 120 == trained + ledger.queued + sum(ledger.discarded.values())
    assert ledger.maybe_lost == 0


def test_reward_of_several_calls_is_summed(served: Served) -> None:
    with served.connect() as client:
        name = client.start_episode()
        for t in range(3):
            client.get_action(name, np.full(2, t, np.float32))
            client.log_returns(name, 0.5)
            client.log_returns(name, 0.25)
        client.end_episode(name, np.zeros(2), truncated=True)
        wait_for(lambda: served.ledger.received == 3)
        (part,) = served.group.inbox.parts
    np.testing.assert_array_equal(part.reward, [0.75] * 3)
    assert part.truncated
    assert not part.terminated


def test_step_starts_and_ends_episodes(served: Served) -> None:
    with served.connect() as client:
        assert client.step(np.zeros(2)) in (0, 1, 2)
        assert client.step(np.ones(2), 1.0) in (0, 1, 2)
        assert client.step(np.ones(2), 2.0, terminated=True) is None
        assert client.step(np.zeros(2)) in (0, 1, 2)
        wait_for(lambda: served.ledger.received == 2)
        (part,) = served.group.inbox.parts
        assert part.reward.tolist() == [1.0, 2.0]
        assert part.terminated


def test_evaluation_episodes_are_reported_and_never_trained_on(served: Served) -> None:
    with served.connect() as client:
        client.run(Walk(), num_episodes=3, training_enabled=False)
        wait_for(lambda: len(served.sessions.evaluated) == 3)
    metrics = served.group.get_metrics()
    assert served.ledger.received == 0
    assert metrics["evaluation"]["env_runners"]["episode_return_mean"] == 6.0
    assert metrics["evaluation"]["env_runners"]["num_episodes"] == 3
    assert "evaluation" not in served.group.get_metrics()


def test_several_episodes_are_open_at_a_time(served: Served) -> None:
    with served.connect() as client, served.learning():
        names = [client.start_episode() for _ in range(5)]
        for t in range(4):
            for i, name in enumerate(names):
                client.get_action(name, np.asarray([t, i], np.float32))
                client.log_returns(name, float(i))
        for i, name in enumerate(names):
            client.end_episode(name, np.asarray([4, i], np.float32), truncated=True)
        wait_for(lambda: served.ledger.received == 20)
    parts = served.group.inbox.parts
    for part in parts:  # never a row of another episode
        assert len(set(part.obs[:, 1])) == 1
        np.testing.assert_array_equal(part.reward, part.obs[:-1, 1])


def test_threads_of_one_client_share_calls_of_the_policy(served: Served) -> None:
    served.group.acting.window_s = 0.05
    with served.connect() as client, served.learning():
        threads = [
            threading.Thread(target=lambda: client.run(Walk(3), num_episodes=2)) for _ in range(8)
        ]
        before = served.group.acting.num_calls
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_for(lambda: served.ledger.received == 48)
    assert served.group.acting.num_calls - before < 48 / 2
    assert {size for size, _ in served.group.acting.policies} <= {1, 2, 4, 8}


def test_client_waits_for_credit(served: Served) -> None:
    capacity = served.group.inbox.capacity
    with served.connect(block=False) as client:
        with pytest.raises(LinkError, match="accepts no more than"):
            client.run(Walk(), num_episodes=200)
        wait_for(lambda: served.ledger.queued >= capacity - Walk().length)
        assert served.ledger.queued <= 2 * capacity
        served.take()  # makes room
        wait_for(lambda: client.link.max_steps > client.link.num_recorded)
        client.get_action(client.start_episode(), np.zeros(2))


def test_stale_steps_are_discarded_and_counted(served: Served) -> None:
    with served.connect() as client:
        client.run(Walk(), num_episodes=2)
        wait_for(lambda: served.ledger.received == 12)
        served.publish()
        served.publish()  # two versions behind, of which one is allowed
        wait_for(lambda: client.weights_version == 2)
        fragment = served.take_from(client)
    assert fragment.weights_version == 2
    assert served.ledger.discarded == {"stale": 12}


def test_steps_that_arrive_stale_while_a_fragment_is_waited_for_are_discarded(
    served: Served,
) -> None:
    with served.connect() as slow, served.connect() as client:
        name = slow.start_episode()
        for t in range(5):
            slow.get_action(name, np.full(2, t / 2, np.float32))
            slow.log_returns(name, 1.0)
        served.publish()
        served.publish()
        wait_for(lambda: client.weights_version == served.version)

        def complete_with_old_steps() -> None:
            client.run(Walk(), num_episodes=5)  # 30 steps of a fragment of 32
            slow.end_episode(name, np.zeros(2), terminated=True)
            wait_for(lambda: served.ledger.discarded == {"stale": 5})
            client.run(Walk(), num_episodes=1)

        thread = threading.Thread(target=complete_with_old_steps)
        thread.start()
        fragment = served.take()
        thread.join()
    assert fragment.weights_version == 2
    assert served.ledger.discarded == {"stale": 5}


def test_returns_of_episodes_with_stale_parts_are_reported(served: Served) -> None:
    with served.connect() as client:
        name = client.start_episode()
        for t in range(17):  # more than a part
            client.get_action(name, np.full(2, t / 2, np.float32))
            client.log_returns(name, 1.0)
        wait_for(lambda: served.ledger.received == 16)
        served.publish()
        served.publish()
        wait_for(lambda: client.weights_version == 2)
        client.get_action(name, np.zeros(2))
        client.log_returns(name, 1.0)
        client.end_episode(name, np.zeros(2), terminated=True)
        wait_for(lambda: served.ledger.received == 18)
        record = served.take_from(client).record  # without the first part
    assert served.ledger.discarded == {"stale": 17}
    assert 18.0 in record.episode_return[record.ended]


def test_lost_connection_cuts_and_never_terminates(served: Served) -> None:
    code = textwrap.dedent(
        f"""
        import numpy as np, time
        from jaxrl.external import PolicyClient
        client = PolicyClient({served.group.address!r}, "remote")
        name = client.start_episode()
        for t in range(19):
            client.get_action(name, np.full(2, t / 2, np.float32))
            client.log_returns(name, 1.0)
        print("ready", flush=True)
        time.sleep(60)
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        wait_for(lambda: served.ledger.received == 16)  # a part; three steps are not sent
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    wait_for(lambda: served.ledger.maybe_lost > 0)
    (part,) = served.group.inbox.parts
    assert part.is_cut
    assert served.ledger.maybe_lost == 3
    with served.connect() as client:  # training goes on
        rollout = served.take_from(client, num_episodes=4).rollout
    (t, column), *others = np.argwhere(rollout.final_obs[..., 0] == 8.0)
    assert not others
    assert not rollout.terminated[t, column]
    is_border = t == len(rollout.reward) - 1
    assert is_border or rollout.truncated[t, column]


def test_reconnects_and_sends_again_what_was_not_acknowledged(start: Any) -> None:
    served = start(resume_window_s=60.0)
    network = Network(served.group.address)
    with served.connect(network.address) as client, served.learning():
        done = threading.Event()

        def break_connections() -> None:
            while not done.wait(0.05):
                network.break_connections()

        breaker = threading.Thread(target=break_connections)
        breaker.start()
        returns = client.run(Walk(), num_episodes=30)
        done.set()
        breaker.join()
        wait_for(lambda: served.ledger.received == 180)
    assert returns == [6.0] * 30
    assert served.ledger.maybe_lost == 0
    ended = [f.record.episode_return[f.record.ended] for f in served.fragments]
    assert set(np.concatenate(ended)) == {6.0}
    network.close()


def test_another_server_continues_open_episodes(served: Served, network: Network) -> None:
    """As after a run that was restored: the steps count, the unknown return does not."""
    with served.connect(network.address, timeout_s=30.0) as client:
        name = client.start_episode()
        for t in range(20):
            client.get_action(name, np.full(2, t / 2, np.float32))
            client.log_returns(name, 1.0)
        wait_for(lambda: served.ledger.received == 16)
        network.cut()  # no farewell: as if the process had died
        served.group.stop()
        other = Served(make_config(), served.assembly)
        network.restore(other.group.address)
        try:
            for t in range(20, 24):
                client.get_action(name, np.full(2, t / 4, np.float32))
                client.log_returns(name, 1.0)
            client.end_episode(name, np.zeros(2), terminated=True)
            wait_for(lambda: other.ledger.received == 8)
            (part,) = other.group.inbox.parts
            assert part.t_started == 16
            assert part.terminated
            assert not other.group.inbox.ended
        finally:
            other.group.stop()


def test_restoring_drops_what_was_queued(served: Served) -> None:
    with served.connect() as client:
        client.run(Walk(), num_episodes=2)
        wait_for(lambda: served.ledger.queued == 12)
        served.group.set_counts(served.group.get_counts())
        assert served.ledger.queued == 0
        assert served.ledger.discarded == {"not_in_checkpoint": 12}
        fragment = served.take_from(client)
    assert fragment.num_env_steps == 32
    assert served.ledger.trained == 32
    assert fragment.record.env_step.min() > 0


def test_run_ends_with_one_sentence(served: Served) -> None:
    client = served.connect()
    served.group.stop()

    def has_ended() -> bool:
        with contextlib.suppress(RunEndedError):
            client.update_policy_weights()
            return False
        return True

    wait_for(has_ended)
    with pytest.raises(RunEndedError, match="ended"):
        client.start_episode()
    client.close()


def test_end_without_flags_is_a_termination_and_warns_once(served: Served) -> None:
    with served.connect() as client:
        with pytest.warns(UserWarning, match="truncated=True where a time limit"):
            end(client)
        end(client)
        end(client, terminated=True, truncated=True)
        end(client, truncated=True)
        wait_for(lambda: served.ledger.received == 4)
        parts = served.group.inbox.parts
    assert [part.terminated for part in parts] == [True, True, True, False]
    assert [part.truncated for part in parts] == [False, False, False, True]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.get_action("x", np.zeros(2)), "'x' is not open"),
        (lambda c: c.log_returns("x", 1.0), "'x' is not open"),
        (lambda c: c.start_episode("a") and c.start_episode("a"), "'a' is open already"),
        (lambda c: c.get_action(c.start_episode(), np.zeros(3)), r"obs must be .* got .*\(3,\)"),
        (lambda c: c.get_action(c.start_episode(), [0.0, np.nan]), r"obs is nan at \[1\]"),
        (lambda c: c.get_action(c.start_episode(), [0.0, 11.0]), r"obs is 11.0 at \[1\], outside"),
        (lambda c: c.log_returns(c.start_episode(), 1.0), "no action yet"),
        (lambda c: end(c, terminated=False), "needs terminated=True .* or truncated=True"),
        (lambda c: end(c, terminated=False, truncated=False), "terminated=False and truncated=Fal"),
        (lambda c: end(c, terminated=True, again=True), "is not open"),
        (lambda c: reward(c, np.inf), "inf, which is not finite"),
        (lambda c: c.log_action(c.start_episode(), np.zeros(2), 1), "PPO needs the probability"),
        (lambda c: c.run(OtherSpaces()), "observation_space of the environment is"),
    ],
)
def test_mistakes_have_one_sentence(served: Served, call, message: str) -> None:
    with served.connect() as client:
        with pytest.raises(LinkError, match=message):
            call(client)
        client.run(Walk(), num_episodes=1)  # and the client goes on


def end(client: PolicyClient, *, again: bool = False, **flags: bool) -> None:
    name = client.start_episode()
    client.get_action(name, np.zeros(2))
    client.end_episode(name, np.zeros(2), **flags)
    if again:
        client.end_episode(name, np.zeros(2), **flags)


def reward(client: PolicyClient, value: float) -> None:
    name = client.start_episode()
    client.get_action(name, np.zeros(2))
    client.log_returns(name, value)


class OtherSpaces(Walk):
    observation_space = type(OBS)(-1.0, 1.0, (2,), np.float32)


def test_other_spaces_are_refused_when_connecting(served: Served) -> None:
    env = OtherSpaces()
    with pytest.raises(LinkError, match="spaces are not those of the run"):
        served.connect(observation_space=env.observation_space, action_space=env.action_space)
    served.connect(observation_space=OBS, action_space=env.action_space).close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"address": "::::"}, "address must be 'host:port'"),
        ({"address": "ftp://x:1"}, "address must be 'host:port'"),
        ({"inference_mode": "nearby"}, "must be 'local' or 'remote', got 'nearby'"),
        ({"observation_space": OBS}, "or neither"),
    ],
)
def test_bad_arguments(served: Served, options, message) -> None:
    with pytest.raises(LinkError, match=message):
        PolicyClient(**{"address": served.group.address, **options})


def test_nobody_there() -> None:
    with pytest.raises(LinkError, match="cannot be reached"):
        PolicyClient("127.0.0.1:9", timeout_s=0.2)


@pytest.mark.parametrize(
    ("cls", "setting", "expected"),
    [
        (PPOConfig, "auto", 1),
        (PPOConfig, 0, 0),
        (PPOConfig, None, None),
        (IMPALAConfig, "auto", None),
        (DQNConfig, "auto", None),
        (DQNConfig, 3, 3),
    ],
)
def test_lag_of_the_weights(cls, setting, expected) -> None:
    assert resolve_max_lag(cls().external(max_weights_lag=setting)) == expected


def test_settings_reach_the_server(first: Served) -> None:
    config = make_config().external(
        max_weights_lag=None,
        max_message_bytes=10_000,
        inference_window_s=0.25,
        idle_timeout_s=7.0,
        resume_window_s=8.0,
    )
    new = Served(config, first.assembly)
    with new.connect() as client:
        assert client.link.welcome["limits"]["max_message_bytes"] == 10_000
        assert client.link.welcome["max_weights_lag"] is None
        new.group.acting.num_expected = 2  # as many came together last time
        begin = time.monotonic()
        client.get_action(client.start_episode(), np.zeros(2))
        assert time.monotonic() - begin >= 0.25
    options = new.group.server.options
    assert (options.idle_timeout_s, options.resume_window_s) == (7.0, 8.0)
    new.group.stop()
