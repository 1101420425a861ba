"""jaxrl's DQN and SAC as a peer, through the public API, with the replay buffer on the device."""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

import jax

from benchmarks.peers.jaxrl_worker import get_versions, wait_for_state
from benchmarks.peers.protocol import serve
from benchmarks.replay_settings import ReplaySetting, make_replay_settings
from jaxrl import Algorithm
from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.registry import get_algorithm_config_class
from jaxrl.runs import results


class JaxrlReplayPeer:
    """Peer with one Algorithm, whose training continues from run to run."""

    def __init__(self) -> None:
        self._setting: ReplaySetting | None = None
        self._algorithm: Algorithm | None = None
        self._result: dict[str, Any] = {}

    def info(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return versions and the number of devices, which the first build claims."""
        make_config(next(iter(make_replay_settings("dqn", steps=4).values()))).build().stop()
        return {"versions": get_versions(), "devices": len(jax.local_devices())}

    def setup(self, request: dict[str, Any]) -> dict[str, Any]:
        """Build for a setting and train until updates have begun. The first `train()` compiles."""
        setting = self._setting = ReplaySetting.from_dict(request["setting"])
        self.close()
        start = time.perf_counter()
        self._algorithm = make_config(setting).build()
        built = time.perf_counter() - start
        runs = max(2, -(-setting.warmup_steps // setting.env_steps))
        seconds = [self.run({})["seconds"] for _ in range(runs)]
        return {"compile_s": built + seconds[0] - seconds[-1]}

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one measurement: one `train()`."""
        assert self._algorithm is not None
        assert self._setting is not None
        wait_for_state(self._algorithm)
        start = time.perf_counter()
        self._result = self._algorithm.train()
        seconds = time.perf_counter() - start
        sampled = self._result["env_runners"]["num_env_steps_sampled"]
        if sampled != self._setting.env_steps:
            raise RuntimeError(f"train() made {sampled} steps, expected {self._setting.env_steps}")
        return {"seconds": seconds, "env_steps": sampled}

    def evaluate(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the mean return of the latest training episodes."""
        return {"return_mean": results.get_number(self._result, results.RETURN_MEAN)}

    def close(self) -> None:
        """Stop the Algorithm, if there is one."""
        if self._algorithm is not None:
            self._algorithm.stop()


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


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="jaxrl-benchmark-") as folder:
        os.environ["JAXRL_RESULTS_DIR"] = folder
        peer = JaxrlReplayPeer()
        serve({"info": peer.info, "setup": peer.setup, "run": peer.run, "evaluate": peer.evaluate})


if __name__ == "__main__":
    main()
