"""A gymnasium environment of your own, stepped from Python.

Any `gymnasium.Env` works: the runner steps it in this process, and the rest is the same program as
for environments in JAX. `--num-env-runners 2` steps it in two Ray actors instead.
"""

import argparse
from typing import Any

import gymnasium
import numpy as np

from jaxrl import EnvContext, PPOConfig
from jaxrl.testing import check_env


class Thermostat(gymnasium.Env[np.ndarray, np.ndarray]):
    """Heat or cool a room whose temperature drifts; the target is 20 degrees."""

    def __init__(self, config: EnvContext) -> None:
        """Create the room; `config` contains `env_config` and the index of the runner."""
        self.drift = float(config.get("drift", 0.5))
        self.observation_space = gymnasium.spaces.Box(-50.0, 50.0, (1,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.error = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start up to five degrees off the target."""
        super().reset(seed=seed)
        self.error = float(self.np_random.uniform(-5.0, 5.0))
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Change the temperature; the episode ends where it is ten degrees off."""
        change = float(action[0]) + self.drift * float(self.np_random.normal())
        self.error = float(np.clip(self.error + change, -50.0, 50.0))
        return self._observe(), -abs(self.error), abs(self.error) > 10.0, False, {}

    def _observe(self) -> np.ndarray:
        return np.array([self.error], np.float32)


def make_thermostat(config: EnvContext) -> gymnasium.Env[np.ndarray, np.ndarray]:
    """Return an environment with a time limit, which truncates its episodes."""
    return gymnasium.wrappers.TimeLimit(Thermostat(config), max_episode_steps=50)


def main(iterations: int, num_envs: int, num_env_runners: int) -> None:
    """Check the environment and train on it."""
    check_env(make_thermostat, {"drift": 0.2})
    config = (
        PPOConfig()
        .environment(make_thermostat, env_config={"drift": 0.2})
        .env_runners(num_env_runners=num_env_runners, num_envs_per_env_runner=num_envs)
        .training(train_batch_size=512, minibatch_size=128, num_epochs=4, lr=1e-3, gamma=0.9)
        .rl_module(model_config={"fcnet_hiddens": [32]})
        .debugging(loggers=[])
    )
    with config.build() as algo:
        for _ in range(iterations):
            result = algo.train()
            runners, timers = result["env_runners"], result["timers"]
            print(
                f"return {runners['episode_return_mean']:.1f}, "
                f"sampling {timers['sample_s']:.2f} s, learning {timers['learn_s']:.2f} s"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--num-envs", type=int, default=4)
    parser.add_argument("--num-env-runners", type=int, default=0)
    main(**vars(parser.parse_args()))
