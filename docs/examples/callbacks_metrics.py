"""Callbacks and metrics of your own: a metric over episodes, and a stop criterion on it.

Environments in the compiled program give callbacks the return and length of each episode. On the
host, callbacks also receive its observations and actions, and log metrics in the runners.
"""

import argparse
from typing import Any

import numpy as np

from jaxrl import Algorithm, PPOConfig
from jaxrl.callbacks import Callbacks


class LongEpisodes(Callbacks):
    """Count the episodes of more than 20 steps, in the compiled program."""

    def __init__(self) -> None:
        """Start at 0."""
        self.count = 0

    def on_episode_end(self, *, episode: Any, **others: Any) -> None:
        """Count an episode."""
        self.count += episode.episode_length > 20

    def on_train_result(self, *, algorithm: Algorithm, result: dict[str, Any]) -> None:
        """Add the count to the result, which is logged and can be a stop criterion."""
        result["custom_metrics"] = {"long_episodes": self.count}


class PoleAngles(Callbacks):
    """Log the largest angle of the pole in every episode, on the host."""

    def on_episode_end(self, *, episode: Any, metrics_logger: Any, **others: Any) -> None:
        """Log it; values are reduced over episodes and runners."""
        angles = np.abs(np.stack(episode.get_observations())[:, 2])
        metrics_logger.log_value("pole_angle", float(angles.max()), reduce=("mean", "max"))


def main(long_episodes: int, iterations: int) -> None:
    """Train until enough long episodes were counted, then once with callbacks on the host."""
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=8)
        .training(train_batch_size=256, minibatch_size=64, num_epochs=2)
        .rl_module(model_config={"fcnet_hiddens": [16]})
        .checkpointing(checkpoint_at_end=False)
        .debugging(loggers=[])
    )
    stop = {"custom_metrics/long_episodes": long_episodes, "training_iteration": iterations}
    with config.copy().callbacks(LongEpisodes).build() as algo:
        result = algo.fit(stop)
    print("iterations", result["training_iteration"], "metrics", result["custom_metrics"])
    on_host = config.copy().env_runners(placement="host").callbacks(PoleAngles)
    with on_host.build() as algo:
        runners = algo.train()["env_runners"]
    print("angle", round(runners["pole_angle_mean"], 3), round(runners["pole_angle_max"], 3))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--long-episodes", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=20)
    main(**vars(parser.parse_args()))
