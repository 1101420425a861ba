"""jaxrl's PPO as a peer, through the public API, with `algo.train()` as a user calls it."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import flax
import jax
import numpy as np
import optax

import jaxrl
from benchmarks.machine import ROOT
from benchmarks.peers.protocol import Peer, Request, serve_peer
from benchmarks.settings import CARTPOLE_CONFIG, Setting, make_recommended_setting
from jaxrl import Algorithm
from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.load import load_experiment
from jaxrl.runs import results


class AlgorithmPeer(Peer):
    """Peer with one Algorithm, whose training continues from run to run."""

    def __init__(self) -> None:
        self._algorithm: Algorithm | None = None
        self._env_steps = 0
        self._result: dict[str, Any] = {}

    def info(self, request: Request) -> dict[str, Any]:
        """Return versions and the number of devices, which the first build claims."""
        self.make_probe().build().stop()
        return {"versions": get_versions(), "devices": len(jax.local_devices())}

    def make_probe(self) -> AlgorithmConfig:
        """Return a small config."""
        return make_config(Setting(num_envs=64, num_steps=32, num_updates=1))

    def run(self, request: Request) -> dict[str, Any]:
        """Run one measurement: one `train()`."""
        seconds = self.time_train()
        sampled = self._result["env_runners"]["num_env_steps_sampled"]
        if sampled != self._env_steps:
            raise RuntimeError(f"train() made {sampled} steps, expected {self._env_steps}")
        return {"seconds": seconds, "env_steps": sampled}

    def time_train(self) -> float:
        """Train for an iteration, before which nothing is computed, and return the seconds."""
        assert self._algorithm is not None
        wait_for_state(self._algorithm)
        start = time.perf_counter()
        self._result = self._algorithm.train()
        return time.perf_counter() - start

    def evaluate(self, request: Request) -> dict[str, Any]:
        """Return the mean return of the latest training episodes."""
        return {"return_mean": results.get_number(self._result, results.RETURN_MEAN)}

    def close(self) -> None:
        """Stop the Algorithm, if there is one."""
        if self._algorithm is not None:
            self._algorithm.stop()


class JaxrlPeer(AlgorithmPeer):
    """Peer that trains PPO, or what a function makes of its setting.

    Args:
        configure: Function from a setting to a config.
    """

    def __init__(self, configure: Callable[[Setting], AlgorithmConfig]) -> None:
        super().__init__()
        self._configure = configure
        self._num_updates = 0

    def setup(self, request: Request) -> dict[str, Any]:
        """Build with new parameters for a setting, and compile.

        The first `train()` compiles; the time of a second one is subtracted. `program_s` is the
        time to trace, lower, and compile the train program; `compile_s` is the total.
        """
        setting = self._use(Setting.from_dict(request["setting"]))
        return self._build(self._configure(setting))

    def recommend(self, request: Request) -> dict[str, Any]:
        """Set up with jaxrl's shipped config for CartPole, without its evaluations."""
        chosen = self._configure_recommended(request)
        chosen.reporting(min_sample_timesteps_per_iteration=self._env_steps)
        return self._build(chosen)

    def recommend_single(self, request: Request) -> dict[str, Any]:
        """Set up with the shipped config and one train batch per iteration, as in the file."""
        return self._build(self._configure_recommended(request))

    def _configure_recommended(self, request: Request) -> AlgorithmConfig:
        chosen = load_recommended_config()
        plan = chosen.plan()
        self._use(
            make_recommended_setting(
                request["setting"]["env_steps"],
                num_envs=plan.num_envs,
                num_steps=plan.rollout_fragment_length,
            )
        )
        return chosen

    def _use(self, setting: Setting) -> Setting:
        self._env_steps, self._num_updates = setting.env_steps, setting.num_updates
        return setting

    def _build(self, chosen: AlgorithmConfig) -> dict[str, Any]:
        self.close()
        start = time.perf_counter()
        self._algorithm = chosen.build()
        compiled = self._algorithm.train()["timers"]["compile_s"]
        first = time.perf_counter()
        self._algorithm.train()
        second = time.perf_counter()
        return {"compile_s": (first - start) - (second - first), "program_s": compiled}

    def run_single(self, request: Request) -> dict[str, Any]:
        """Run one measurement: one `train()` per train batch."""
        assert self._algorithm is not None
        wait_for_state(self._algorithm)
        start = time.perf_counter()
        for _ in range(self._num_updates):
            self._result = self._algorithm.train()
        return {"seconds": time.perf_counter() - start, "env_steps": self._env_steps}

    def bare(self, request: Request) -> dict[str, Any]:
        """Run one measurement of the compiled program of `run`, without `train()` around it."""
        assert self._algorithm is not None
        seconds = time_bare_loop(self._algorithm, self._num_updates)
        return {"seconds": seconds, "env_steps": self._env_steps}


def load_recommended_config() -> AlgorithmConfig:
    """Load jaxrl's shipped config for CartPole, without evaluation, as for the other peers."""
    chosen = load_experiment(ROOT / CARTPOLE_CONFIG).config
    return chosen.evaluation(evaluation_interval=None)


def get_versions() -> dict[str, str]:
    """Return the versions of jaxrl and its numerical dependencies."""
    return {module.__name__: module.__version__ for module in (jaxrl, jax, flax, optax)}


def make_config(setting: Setting) -> PPOConfig:
    """Build jaxrl's config of a setting. Its value loss has no factor of 1/2."""
    return (
        PPOConfig()
        .environment(setting.env)
        .env_runners(num_envs_per_env_runner=setting.num_envs)
        .training(
            train_batch_size=setting.train_batch_size,
            minibatch_size=setting.minibatch_size,
            num_epochs=setting.num_epochs,
            lr=setting.lr,
            gamma=setting.gamma,
            lambda_=setting.gae_lambda,
            clip_param=setting.clip_param,
            vf_clip_param=float("inf"),
            vf_loss_coeff=setting.vf_loss_coeff / 2,
            entropy_coeff=setting.entropy_coeff,
            use_kl_loss=False,
            grad_clip=setting.max_grad_norm,
            grad_clip_by="global_norm",
            optimizer={"name": "adam", "eps": setting.adam_eps},
        )
        .rl_module(
            model_config={
                "fcnet_hiddens": [setting.hidden_size],
                "fcnet_activation": "tanh",
                "vf_share_layers": False,
                **make_conv_config(setting),
                **({"free_log_std": True} if setting.env.startswith("brax:") else {}),
                **make_second_layer_config(setting),
            }
        )
        .reporting(min_sample_timesteps_per_iteration=setting.env_steps)
        .debugging(seed=setting.seed)
    )


def make_conv_config(setting: Setting) -> dict[str, Any]:
    """Return the model config of the convolutions before the dense layers, if there are any."""
    filters = [list(layer) for layer in setting.conv_filters]
    is_flat = setting.env.startswith("xminigrid:")  # tiles are flattened, as by hand
    return {"conv_filters": filters} if filters or is_flat else {}


def make_second_layer_config(setting: Setting) -> dict[str, Any]:
    """Return the model config of the second layer: dense, or recurrent with the first's size."""
    if setting.memory is None:
        second = setting.second_size or setting.hidden_size
        return {"fcnet_hiddens": [setting.hidden_size, second]}
    return {
        "use_lstm": True,
        "recurrent_layer_type": setting.memory,
        "lstm_cell_size": setting.hidden_size,
        "max_seq_len": setting.max_seq_len,
    }


def wait_for_state(algorithm: Algorithm) -> None:
    """Wait for the latest state, so that no iteration has been computed before it is timed."""
    jax.block_until_ready(algorithm.state.learner)


def time_bare_loop(algorithm: Algorithm, num_updates: int) -> float:
    """Time `num_updates` train batches of the compiled program alone, in seconds.

    The program is the one that `train()` uses, called once with a wait for its result. Training
    continues from the resulting state.
    """
    numbers = np.int32(1), np.int32(num_updates)
    program = algorithm.programs.run.get_executable(algorithm.state, *numbers)
    start = time.perf_counter()
    algorithm.state = jax.block_until_ready(program(algorithm.state, *numbers))[0]
    return time.perf_counter() - start


def _unroll(number: int) -> None:
    """Unroll every scan that does not set `unroll`, as an experiment; jaxrl has no such setting."""
    scan: Any = jax.lax.scan

    def unrolled(*args: Any, **kwargs: Any) -> Any:
        return scan(*args, **{"unroll": number, **kwargs})

    jax.lax.scan = unrolled


def serve_jaxrl(peer: AlgorithmPeer, *others: str) -> None:
    """Serve a peer whose runs are written to a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="jaxrl-benchmark-") as folder:
        os.environ["JAXRL_RESULTS_DIR"] = folder
        serve_peer(peer, *others)


if __name__ == "__main__":
    if "JAXRL_BENCHMARK_UNROLL" in os.environ:
        _unroll(int(os.environ["JAXRL_BENCHMARK_UNROLL"]))
    serve_jaxrl(JaxrlPeer(make_config), "recommend", "recommend_single", "run_single", "bare")
