"""Stable-Baselines3 in learning suites, with one torch thread, which suits small networks."""

from __future__ import annotations

from collections.abc import Callable

import torch  # pyright: ignore[reportMissingImports]
from stable_baselines3 import DQN, PPO, SAC  # pyright: ignore[reportMissingImports]
from stable_baselines3.common.callbacks import (  # pyright: ignore[reportMissingImports]
    BaseCallback,
)
from stable_baselines3.common.env_util import (  # pyright: ignore[reportMissingImports]
    make_vec_env,
)
from stable_baselines3.common.evaluation import (  # pyright: ignore[reportMissingImports]
    evaluate_policy,
)

from benchmarks.peers import learning
from benchmarks.peers.learning import Run
from benchmarks.peers.sb3 import models


class _CurveCallback(BaseCallback):  # pyright: ignore[reportUntypedBaseClass]
    """Callback that records the mean return of the last hundred episodes at regular intervals."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run, self._next = run, run.interval

    def _on_step(self) -> bool:
        if self.num_timesteps >= self._next:
            self._next = self.num_timesteps + self._run.interval
            returns = [episode["r"] for episode in self.model.ep_info_buffer]
            mean = sum(returns) / len(returns) if returns else None
            self._run.add_point(self.num_timesteps, mean)
        return True


def train(run: Run, library: models.Library) -> Callable[[], float]:
    """Train to the budget and return a function that evaluates the model.

    Args:
        run: Run to train.
        library: Library that trains.
    """
    model = models.create(run, library)
    model.learn(run.job.budget, callback=_CurveCallback(run), log_interval=10**9)

    def evaluate() -> float:
        envs = make_vec_env(learning.get_gymnasium_id(run.job), 8, seed=run.seed + 10_000)
        mean, _ = evaluate_policy(model, envs, run.job.episodes, deterministic=True)
        return float(mean)

    return evaluate


if __name__ == "__main__":
    torch.set_num_threads(1)
    library = models.Library(
        algorithms={"PPO": PPO, "DQN": DQN, "SAC": SAC},
        activations={"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU},
        adam=torch.optim.Adam,
    )
    learning.main(
        lambda run: train(run, library),
        ("stable-baselines3", "torch", "gymnasium"),
        ["cpu"],
    )
