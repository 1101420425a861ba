"""A script for RLlib's PolicyClient trains with nothing but its import renamed."""

import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest

from tests.external.served import make_config

SCRIPT = """
import argparse

import gymnasium as gym

IMPORT

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, default=9900)
parser.add_argument("--inference-mode", default="local", choices=["local", "remote"])
parser.add_argument("--no-train", action="store_true")
args = parser.parse_args()

env = gym.make("CartPole-v1")
client = PolicyClient(f"http://localhost:{args.port}", inference_mode=args.inference_mode)
obs, info = env.reset()
episode = client.start_episode(training_enabled=not args.no_train)
total = 0.0
while True:
    action = client.get_action(episode, obs)
    obs, reward, terminated, truncated, info = env.step(action)
    total += reward
    client.log_returns(episode, reward, info=info)
    if terminated or truncated:
        print("total reward", total, flush=True)
        total = 0.0
        client.end_episode(episode, obs)
        obs, info = env.reset()
        episode = client.start_episode(training_enabled=not args.no_train)
"""

IMPORTS = {
    "local": "from jaxrl.env.policy_client import PolicyClient",
    "remote": "from jaxrl.external import PolicyClient",
}


@pytest.mark.parametrize("mode", IMPORTS)
def test_trains_with_only_its_import_renamed(mode: str, tmp_path: Path) -> None:
    env = gymnasium.make("CartPole-v1")
    config = make_config(train_batch_size=64, minibatch_size=32).environment(
        observation_space=env.observation_space, action_space=env.action_space
    )
    algorithm = config.build()
    script = tmp_path / "cartpole_client.py"
    script.write_text(SCRIPT.replace("IMPORT", IMPORTS[mode]))
    port = algorithm.env_runner_group.address.split(":")[1]
    with subprocess.Popen(
        [sys.executable, str(script), "--port", port, "--inference-mode", mode],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as simulator:
        results = [algorithm.train() for _ in range(2)]
        algorithm.stop()
        printed, complained = simulator.communicate(timeout=60)
    counts, runners = results[-1]["fault_tolerance"], results[-1]["env_runners"]
    assert counts["num_env_steps_trained_lifetime"] == 128
    assert counts["num_parts_refused"] == 0
    assert counts["num_env_steps_discarded_lifetime"] == {}
    totals = [float(line.split()[-1]) for line in printed.splitlines()]
    assert min(totals) <= runners["episode_return_mean"] <= max(totals)
    assert complained.count("end_episode() without terminated and truncated") == 1
    assert complained.splitlines()[-1].endswith("RunEndedError: The run has ended.")
