"""jaxrl's DQN and SAC as a peer, through the public API, with the replay buffer on the device."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.peers.jaxrl_worker import AlgorithmPeer, serve_jaxrl
from benchmarks.peers.protocol import Request
from benchmarks.settings import ReplaySetting, make_replay_settings
from jaxrl.config.base import AlgorithmConfig, get_algorithm_config_class


class JaxrlReplayPeer(AlgorithmPeer):
    """Peer that trains DQN or SAC."""

    def make_probe(self) -> AlgorithmConfig:
        """Return a small config."""
        return make_config(next(iter(make_replay_settings("dqn", steps=4).values())))

    def setup(self, request: Request) -> dict[str, Any]:
        """Build for a setting and train until updates have begun. The first `train()` compiles."""
        setting = ReplaySetting.from_dict(request["setting"])
        self.close()
        self._env_steps = setting.env_steps
        start = time.perf_counter()
        self._algorithm = make_config(setting).build()
        built = time.perf_counter() - start
        runs = max(2, -(-setting.warmup_steps // setting.env_steps))
        seconds = [self.run({})["seconds"] for _ in range(runs)]
        return {"compile_s": built + seconds[0] - seconds[-1]}


def make_config(setting: ReplaySetting) -> AlgorithmConfig:
    """Build jaxrl's config of a setting; DQN is plain, as in the other peers."""
    width = [setting.hidden_size, setting.hidden_size]
    made: Any = get_algorithm_config_class(setting.algorithm)()
    made.environment(setting.env).debugging(seed=setting.seed)
    made.env_runners(num_envs_per_env_runner=setting.num_envs)
    made.reporting(min_sample_timesteps_per_iteration=setting.env_steps)
    made.rl_module(model_config={"fcnet_hiddens": width, "fcnet_activation": "relu"})
    made.training(
        gamma=setting.gamma,
        tau=setting.tau,
        n_step=1,
        train_batch_size=setting.batch_size,
        training_intensity=setting.batch_size / setting.steps_per_update,
        replay_buffer_config={"type": "uniform", "capacity": setting.capacity},
        num_steps_sampled_before_learning_starts=setting.learning_starts,
        initial_random_timesteps=setting.learning_starts,
    )
    if setting.algorithm == "DQN":
        return made.training(
            lr=setting.lr,
            double_q=False,
            dueling=False,
            epsilon=[[0, 1.0], [setting.epsilon_steps, setting.final_epsilon]],
            target_network_update_freq=setting.target_update_freq,
        )
    rates = dict.fromkeys(("actor_lr", "critic_lr", "alpha_lr"), setting.lr)
    return made.training(td_error_loss_fn="mse", **rates)


if __name__ == "__main__":
    serve_jaxrl(JaxrlReplayPeer())
