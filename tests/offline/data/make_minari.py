"""Write the golden files of Minari, with Minari itself (0.5), whose format is HDF5.

Run in an environment with `minari` and `h5py`: `python tests/offline/data/make_minari.py`.
"""

import os
import shutil
import tempfile
from pathlib import Path

import gymnasium
import minari
import numpy as np
from gymnasium import spaces

HERE = Path(__file__).parent


class Nested(gymnasium.Env):
    """Three steps of an observation with two parts, truncated at the end."""

    observation_space = spaces.Dict(
        {"camera": spaces.Box(0, 255, (3, 3, 1), np.uint8), "speed": spaces.Box(-1.0, 1.0, (2,))}
    )
    action_space = spaces.Tuple([spaces.Discrete(3), spaces.Box(-2.0, 2.0, (1,))])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._observe(), {}

    def step(self, action):
        self.t += 1
        return self._observe(), float(self.t), False, self.t == 3, {}

    def _observe(self):
        camera = np.full((3, 3, 1), self.t, np.uint8)
        return {"camera": camera, "speed": np.asarray([self.t / 8, -self.t / 8], np.float32)}


def write(env: gymnasium.Env, name: str, num_episodes: int) -> None:
    """Record episodes of random actions."""
    collector = minari.DataCollector(env, data_format="hdf5")
    env.action_space.seed(0)
    for seed in range(num_episodes):
        collector.reset(seed=seed)
        ended = False
        while not ended:
            _, _, terminated, truncated, _ = collector.step(env.action_space.sample())
            ended = terminated or truncated
    collector.create_dataset(dataset_id=f"{name}/random-v0", algorithm_name="random")
    source = Path(os.environ["MINARI_DATASETS_PATH"]) / name / "random-v0" / "data"
    shutil.rmtree(HERE / f"minari_{name}", ignore_errors=True)
    shutil.copytree(source, HERE / f"minari_{name}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINARI_DATASETS_PATH"] = folder
        write(gymnasium.make("CartPole-v1"), "cartpole", 2)
        write(Nested(), "nested", 1)
