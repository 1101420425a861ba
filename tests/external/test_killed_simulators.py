"""Four simulators in processes of their own, one of which is killed every ten seconds, train a policy.

Budgets and thresholds are those of the runs with environments in this process (`tests/learning`).
`python -m pytest -m slow tests/external/test_killed_simulators.py -s` prints the scores.
"""

import contextlib
import dataclasses
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxrl.assembly.assemble import assemble
from jaxrl.config.load import load_experiment
from jaxrl.episodes.packing import PackedParts
from jaxrl.external.files import write_client
from jaxrl.runners.external.sessions import Inbox
from jaxrl.runners.fragment import Fragment

CONFIGS = Path(__file__).parents[2] / "configs"
NUM_CLIENTS, KILL_INTERVAL_S = 4, 10.0

SIMULATOR = '''
"""Simulator of a classic task: NumPy, and the copied files of the client."""

import sys

import numpy as np
from link import PolicyClient, RunEndedError


class CartPole:
    observed = slice(None)

    def reset(self, rng):
        self.t, self.state = 0, rng.uniform(-0.05, 0.05, 4)
        return self.observe()

    def observe(self):
        return self.state[self.observed].astype(np.float32)

    def step(self, action):
        _, x_dot, theta, theta_dot = self.state
        sin, cos = np.sin(theta), np.cos(theta)
        push = ((10.0 if action == 1 else -10.0) + 0.05 * theta_dot**2 * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
        change = np.array([x_dot, push - 0.05 * turn * cos / 1.1, theta_dot, turn])
        self.state, self.t = self.state + 0.02 * change, self.t + 1
        terminated = abs(self.state[0]) > 2.4 or abs(self.state[2]) > np.pi / 15.0
        return self.observe(), 1.0, bool(terminated), self.t == 500


class StatelessCartPole(CartPole):
    observed = [0, 2]


class Pendulum:
    def reset(self, rng):
        self.t, self.angle, self.speed = 0, rng.uniform(-np.pi, np.pi), rng.uniform(-1.0, 1.0)
        return self.observe()

    def observe(self):
        return np.array([np.cos(self.angle), np.sin(self.angle), self.speed], np.float32)

    def step(self, action):
        torque = float(np.clip(action[0], -2.0, 2.0))
        angle = (self.angle + np.pi) % (2.0 * np.pi) - np.pi
        reward = -(angle**2 + 0.1 * self.speed**2 + 0.001 * torque**2)
        self.speed += 0.05 * (15.0 * np.sin(self.angle) + 3.0 * torque)
        self.speed = float(np.clip(self.speed, -8.0, 8.0))
        self.angle, self.t = self.angle + 0.05 * self.speed, self.t + 1
        return self.observe(), reward, False, self.t == 200


def play(client, env, rng):
    episode, obs = client.start_episode(), env.reset(rng)
    while True:
        obs, reward, terminated, truncated = env.step(client.get_action(episode, obs))
        client.log_returns(episode, reward)
        if terminated or truncated:
            break
    client.end_episode(episode, obs, terminated=terminated, truncated=truncated)


address, mode, name, seed = sys.argv[1:]
env, rng = globals()[name](), np.random.default_rng(int(seed))
with PolicyClient(address, mode, seed=int(seed)) as client:
    try:
        while True:
            play(client, env, rng)
    except RunEndedError:
        pass
assert client.inference_mode == mode
assert not {"jax", "jaxrl", "gymnasium"} & set(sys.modules)
print("the run has ended")
'''


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """Config file, its budget and threshold, the task's name, and where actions are computed."""

    config: str
    num_steps: int
    least: float
    env: str
    mode: str
    time_limit: int


CASES = {
    "PPO": Case(
        config="classic/cartpole-ppo",
        num_steps=500_000,
        least=490.0,
        env="CartPole",
        mode="local",
        time_limit=500,
    ),
    "SAC": Case(
        config="classic/pendulum-sac",
        num_steps=20_000,
        least=-250.0,
        env="Pendulum",
        mode="local",
        time_limit=200,
    ),
    "PPO, LSTM": Case(
        config="memory/statelesscartpole-ppo",
        num_steps=300_000,
        least=350.0,
        env="StatelessCartPole",
        mode="remote",
        time_limit=500,
    ),
}


class Simulators:
    """Processes of a simulator, of which one is killed and started anew every ten seconds."""

    def __init__(self, folder: Path, address: str, case: Case) -> None:
        self._folder, self._arguments = folder, [address, case.mode, case.env]
        write_client(folder / "link")
        (folder / "simulator.py").write_text(SIMULATOR)
        self._num_started, self.num_killed = 0, 0
        self._processes = [self._start() for _ in range(NUM_CLIENTS)]
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._kill_some)

    def _start(self) -> subprocess.Popen[str]:
        self._num_started += 1
        return subprocess.Popen(
            [sys.executable, "simulator.py", *self._arguments, str(self._num_started)],
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _kill_some(self) -> None:
        draw = random.Random(0)
        while not self._stopped.wait(KILL_INTERVAL_S):
            killed = draw.randrange(NUM_CLIENTS)
            process = self._processes[killed]
            assert process.poll() is None, process.communicate()
            process.send_signal(signal.SIGKILL)
            process.communicate()
            self._processes[killed] = self._start()
            self.num_killed += 1

    @contextlib.contextmanager
    def playing(self) -> Iterator[None]:
        """Kill and restart them meanwhile."""
        self._thread.start()
        try:
            yield
        except BaseException:
            for process in self._processes:
                process.kill()
            self.finish()
            raise
        finally:
            self._stopped.set()
            self._thread.join()

    def finish(self) -> list[tuple[str, str]]:
        """Return what each one printed, on both outputs, when the run had ended."""
        return [process.communicate(timeout=60) for process in self._processes]


class Watched:
    """Checks of fragments as they are made: how episodes end, and which are reported."""

    def __init__(self, inbox: Inbox, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
        self._make, self._time_limit = inbox._make_fragment, case.time_limit
        self.num_ended = self.num_cut = 0
        monkeypatch.setattr(inbox, "_make_fragment", self._make_fragment)

    def _make_fragment(self, packed: PackedParts, started: float) -> Fragment:
        fragment = self._make(packed, started)
        rollout, record = fragment.rollout, fragment.record
        starts = {(column, row): part for column, row, part in packed.placed}
        for column, first, part in packed.placed:
            row = first + len(part) - 1
            has_ended = part.terminated or part.truncated
            assert rollout.terminated[row, column] == part.terminated
            assert record.ended[row, column] == has_ended
            following = starts.get((column, row + 1))
            is_continued = following is not None and following.episode_id == part.episode_id
            is_border = row + 1 == len(rollout.reward)  # bootstraps whatever it is
            if not (part.terminated or is_continued or is_border):
                assert rollout.truncated[row, column]
            self.num_ended += has_ended
            self.num_cut += part.is_cut
            assert not (part.is_cut and (has_ended or rollout.terminated[row, column]))
        lengths = record.episode_length[record.ended]
        assert (rollout.terminated[record.ended] | (lengths == self._time_limit)).all()
        return fragment


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_learns_while_simulators_are_killed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    config = load_experiment(CONFIGS / f"{case.config}.yaml").config
    env = config.environment_settings.env
    spaces = assemble(config).made.spaces
    config.environment(env=None, observation_space=spaces[0], action_space=spaces[1])
    config.env_runners(placement="external").external(external_port=0, resume_window_s=1.0)
    config.evaluation(
        evaluation_interval=10**9, evaluation_config={"env": env, "explore": False}
    ).debugging(seed=0, loggers=[])
    with config.build() as algorithm:
        group: Any = algorithm.env_runner_group
        watched = Watched(group.inbox, case, monkeypatch)
        simulators = Simulators(tmp_path, group.address, case)
        num_reported, result = 0, {}
        with simulators.playing():
            while int(algorithm.state.progress.env_steps) < case.num_steps:
                result = algorithm.train()
                num_reported += result["env_runners"]["num_episodes"]
        score = algorithm.evaluate(num_episodes=100)["env_runners"]["episode_return_mean"]
    finished = simulators.finish()
    counts = result["fault_tolerance"]
    print(f"\n{name}: {score:.1f} after {case.num_steps} steps, {simulators.num_killed} killed")
    print(f"{watched.num_ended} episodes ended, {watched.num_cut} were cut; {counts}")
    assert finished == [("the run has ended\n", "")] * NUM_CLIENTS
    assert simulators.num_killed > 0
    assert watched.num_ended == num_reported
    assert counts["num_parts_refused"] == 0, counts["refusals"]
    sampled = result["env_runners"]["num_env_steps_sampled_lifetime"]
    assert counts["num_env_steps_trained_lifetime"] == sampled
    assert counts["num_env_steps_received_lifetime"] == (
        sampled
        + counts["num_env_steps_queued"]
        + sum(counts["num_env_steps_discarded_lifetime"].values())
    )
    assert score >= case.least
