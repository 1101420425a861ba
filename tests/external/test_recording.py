"""Recording of what simulators send: once, as it was, and to be learned from."""

import contextlib
import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl import Algorithm, BCConfig, DQNConfig, EpisodeWriter
from jaxrl.episodes.packing import EpisodePart
from jaxrl.external import LinkError, PolicyClient
from jaxrl.external.frames import Kind
from jaxrl.offline.recorded import open_data
from tests.external.served import ACTIONS, OBS, SMALL, Network, Served, Walk, make_config, wait_for
from tests.external.test_faults import connected
from tests.recorded_data import make_part


class Logging(Walk):
    """Episodes whose actions are noted in order."""

    def __init__(self) -> None:
        super().__init__()
        self.actions: list[int] = []

    def step(self, action: Any) -> Any:
        self.actions.append(int(action))
        return super().step(action)


def read(folder: Path) -> dict[str, list[EpisodePart]]:
    """Return the parts of each episode, in the order in which they were written."""
    episodes: dict[str, list[EpisodePart]] = {}
    for part in open_data(str(folder)).iter_parts():
        episodes.setdefault(part.episode_id, []).append(part)
    return episodes


def check_walks(episodes: dict[str, list[EpisodePart]], actions: list[int]) -> int:
    """Check that the episodes are walks, none of whose steps is missing or twice there.

    Returns:
        The number of their steps.
    """
    found: list[int] = []
    for parts in episodes.values():
        steps = [part.t_started + i for part in parts for i in range(len(part))]
        assert steps == list(range(len(steps)))
        for part in parts:
            times = part.t_started + np.arange(len(part) + 1)
            np.testing.assert_array_equal(part.obs, np.stack([times, times], axis=1))
            assert (part.reward == 1.0).all()
            assert (part.extras["action_logp"] < 0.0).all()
            found += part.action.tolist()
        assert parts[-1].terminated == (len(steps) == 6)
    assert found == actions[: len(found)]
    return len(found)


def play(algorithm: Algorithm, env: Logging, iterations: int, *, is_disturbed: bool) -> None:
    """Train on what a client sends in a thread, until the run is stopped."""
    network = Network(algorithm.env_runner_group.address)

    def run() -> None:
        # A client whose connection is broken as the run stops finds no server.
        with (
            contextlib.suppress(LinkError),
            PolicyClient(network.address, "remote", timeout_s=20.0) as client,
        ):
            client.run(env)

    player, stopped = threading.Thread(target=run), threading.Event()

    def break_connections() -> None:
        while is_disturbed and not stopped.wait(0.2):
            network.break_connections()

    breaker = threading.Thread(target=break_connections)
    player.start()
    breaker.start()
    try:
        for _ in range(iterations):
            algorithm.train()
    finally:
        stopped.set()
        breaker.join()
        algorithm.stop()
        player.join()
        network.close()


def test_a_run_is_recorded_through_broken_connections(tmp_path: Path) -> None:
    """A resumed run adds to the recording, of which nothing is removed."""
    output, env = tmp_path / "data", Logging()
    config = make_config().offline_data(output=str(output)).debugging(loggers=[])
    algorithm = config.build()
    group = algorithm.env_runner_group
    play(algorithm, env, 3, is_disturbed=True)
    received = group.inbox.ledger.received
    assert received >= 96
    first = read(output)
    assert check_walks(first, env.actions) == received
    versions = np.concatenate([part.version for parts in first.values() for part in parts])
    assert (np.diff(versions) >= 0).all()
    assert len(set(versions)) > 1
    assert open_data(str(output)).has_density

    resumed = Algorithm.from_checkpoint(algorithm.save(tmp_path / "checkpoint"))
    other = Logging()
    play(resumed, other, 1, is_disturbed=False)
    both = read(output)
    assert {name: both[name] for name in first}.keys() == first.keys()
    later = {name: parts for name, parts in both.items() if name not in first}
    assert check_walks(later, other.actions) >= 32


@pytest.fixture(name="served")
def make_served(tmp_path: Path) -> Any:
    served = Served(make_config().offline_data(output=str(tmp_path / "data")))
    yield served
    served.group.stop()


def test_messages_that_come_twice_are_recorded_once(served: Served, tmp_path: Path) -> None:
    with connected(served) as client:
        client.send_part(served, arrays={"extras.action_logp": np.full(3, -1.5, np.float32)})
        client.number = 0
        client.send_part(served)
        client.send_part(served, t_started=3, end="truncated", head={"num_recorded": 6})
        wait_for(lambda: served.ledger.received == 6)
    served.group.stop()
    assert served.recorder is not None
    served.recorder.close()
    (parts,) = read(tmp_path / "data").values()
    assert [(part.t_started, len(part)) for part in parts] == [(0, 3), (3, 3)]
    assert [part.truncated for part in parts] == [False, True]
    assert (parts[0].extras["action_logp"] == -1.5).all()


def test_parts_that_cannot_be_recorded_are_refused(served: Served, tmp_path: Path) -> None:
    """An action that the space does not have ends neither the run nor its recording."""
    with connected(served) as client:
        client.send_part(served, arrays={"action.0": np.full(3, 7, np.int32)})
        kind, head = client.read()
        assert kind == Kind.REFUSED
        assert "action is 7, outside its bounds [0, 2]" in head["error"]
        client.send_part(served, episode_id="good", head={"num_recorded": 6})
        wait_for(lambda: served.ledger.queued == 3)
    served.group.stop()
    assert served.recorder is not None
    served.recorder.close()
    (parts,) = read(tmp_path / "data").values()
    assert [len(part) for part in parts] == [3]


def test_actions_of_simulators_are_recorded_and_imitated(tmp_path: Path) -> None:
    """They have no density, as nobody knows their probabilities."""
    config = make_config(DQNConfig).offline_data(output=str(tmp_path / "data"))
    served = Served(config.training(replay_buffer_config={"capacity": 512}))
    with served.connect() as client, served.learning():
        for _ in range(10):
            name = client.start_episode()
            for t in range(4):
                client.log_action(name, np.full(2, t, np.float32), t % 3)
                client.log_returns(name, 1.0)
            client.end_episode(name, np.full(2, 4, np.float32), terminated=True)
        wait_for(lambda: served.ledger.received == 40)
    served.group.stop()
    assert served.recorder is not None
    served.recorder.close()
    data = open_data(str(tmp_path / "data"))
    assert not data.has_density
    for parts in read(tmp_path / "data").values():
        assert np.concatenate([part.action for part in parts]).tolist() == [0, 1, 2, 0]
        assert parts[-1].terminated
    offline = BCConfig().offline_data(input_=str(tmp_path / "data"), num_updates_per_iteration=300)
    offline.training(train_batch_size=32, lr=0.02).rl_module(model_config=SMALL)
    with offline.debugging(loggers=[], seed=0).build() as algorithm:
        algorithm.train()
        times = np.arange(4, dtype=np.float32)
        actions = [algorithm.compute_single_action(np.full(2, t), explore=False) for t in times]
    assert actions == [0, 1, 2, 0]


@pytest.mark.slow
def test_recorded_rows_are_mixed_with_those_of_simulators(tmp_path: Path) -> None:
    """Half of every gradient step is of a recording, here of ten walks."""
    folder = tmp_path / "data"
    with EpisodeWriter(folder, OBS, ACTIONS) as writer:
        for number in range(10):
            part = make_part(number, 6, terminated=True)
            writer.add_parts([dataclasses.replace(part, obs=np.clip(part.obs, -10.0, 10.0))])
    config = make_config(DQNConfig).offline_data(input_={"sampler": 0.5, str(folder): 0.5})
    config.training(
        train_batch_size=16,
        num_steps_sampled_before_learning_starts=16,
        replay_buffer_config={"capacity": 512},
    ).env_runners(rollout_fragment_length=8)
    config.reporting(min_sample_timesteps_per_iteration=64).debugging(loggers=[])
    algorithm = config.build()
    play(algorithm, Logging(), 1, is_disturbed=False)
    result = algorithm.last_result
    updates = result["learners"]["default_policy"]["num_updates_lifetime"]
    assert updates > 0
    assert result["num_env_steps_trained_lifetime"] == 16 * updates
    assert algorithm.learner_group.dataset.num_rows == 60
