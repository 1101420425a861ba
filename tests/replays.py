"""Small runs with replay, whose buffer is full and wrapped around after one iteration."""

from typing import Any

from jaxrl import DQNConfig

NUM_ENVS, STEPS, ROWS, CAPACITY = 4, 2, 16, 80
"""Sizes of a rollout, an update and the buffer: 20 rows of each environment."""


def replaying(
    env: Any = "CartPole-v1", *, buffer: dict[str, Any] | None = None, **training: Any
) -> Any:
    """4 environments x 2 steps, then 2 updates of 16; 12 of these an iteration."""
    config: Any = DQNConfig().environment(env)
    config.env_runners(num_envs_per_env_runner=NUM_ENVS, rollout_fragment_length=STEPS)
    given = {
        "train_batch_size": ROWS,
        "training_intensity": 4.0,
        "num_steps_sampled_before_learning_starts": 32,
        "target_network_update_freq": 40,
        **training,
    }
    config.training(**given)
    config.training(
        replay_buffer_config={"type": "uniform", "capacity": CAPACITY, **(buffer or {})}
    )
    config.rl_module(model_config={"fcnet_hiddens": [8]})
    config.reporting(min_sample_timesteps_per_iteration=96)
    return config.debugging(loggers=["json"]).learners(num_devices=1)


PRIORITIZED = {"type": "prioritized", "alpha": 0.6, "beta": [[0, 0.4], [1000, 1.0]]}
