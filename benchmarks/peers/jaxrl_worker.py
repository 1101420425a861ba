"""jaxrl's PPO as a peer, through its public API only: what a user gets from `algo.train()`."""

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
from benchmarks.peers.protocol import serve
from benchmarks.recommended import CARTPOLE_CONFIG, in_batches
from benchmarks.settings import Setting
from benchmarks.worker import ROOT
from jaxrl import Algorithm
from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.load import load_experiment
from jaxrl.runs import results


class JaxrlPeer:
    """One Algorithm at a time; learning goes on from run to run.

    Args:
        configure: The config of a setting.
    """

    def __init__(self, configure: Callable[[Setting], AlgorithmConfig]) -> None:
        self._configure = configure
        self._setting: Setting | None = None
        self._algorithm: Algorithm | None = None
        self._result: dict[str, Any] = {}

    def info(self, request: dict[str, Any]) -> dict[str, Any]:
        """Versions; devices are claimed by the first build, so one is made."""
        config(Setting(num_envs=64, num_steps=32, num_updates=1)).build().stop()
        return {"versions": versions(), "devices": len(jax.local_devices())}

    def setup(self, request: dict[str, Any]) -> dict[str, Any]:
        """Build for a setting, from fresh parameters, and compile.

        The first `train()` compiles; what the second takes is not compiling. `program_s` is what
        tracing, lowering and compiling the train program took, `compile_s` everything.
        """
        self._setting = Setting.from_dict(request["setting"])
        return self._build(self._configure(self._setting))

    def recommend(self, request: dict[str, Any]) -> dict[str, Any]:
        """The same with the config for CartPole that comes with jaxrl, but for its evaluations."""
        chosen = self._own(request)
        assert self._setting is not None
        chosen.reporting(min_sample_timesteps_per_iteration=self._setting.env_steps)
        return self._build(chosen)

    def recommend_single(self, request: dict[str, Any]) -> dict[str, Any]:
        """The same with one train batch an iteration, as a user's file has it."""
        return self._build(self._own(request))

    def _own(self, request: dict[str, Any]) -> AlgorithmConfig:
        chosen = own_config()
        plan = chosen.plan()
        self._setting = in_batches(
            request["setting"]["env_steps"],
            num_envs=plan.num_envs,
            num_steps=plan.rollout_fragment_length,
        )
        return chosen

    def _build(self, chosen: AlgorithmConfig) -> dict[str, Any]:
        self.close()
        start = time.perf_counter()
        self._algorithm = chosen.build()
        compiled = self._algorithm.train()["timers"]["compile_s"]
        first = time.perf_counter()
        self._algorithm.train()
        second = time.perf_counter()
        return {"compile_s": (first - start) - (second - first), "program_s": compiled}

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """One measurement: one `train()`."""
        assert self._algorithm is not None
        assert self._setting is not None
        settle(self._algorithm)
        start = time.perf_counter()
        self._result = self._algorithm.train()
        seconds = time.perf_counter() - start
        sampled = self._result["env_runners"]["num_env_steps_sampled"]
        if sampled != self._setting.env_steps:
            raise RuntimeError(f"train() made {sampled} steps, asked for {self._setting.env_steps}")
        return {"seconds": seconds, "env_steps": sampled}

    def run_single(self, request: dict[str, Any]) -> dict[str, Any]:
        """One measurement: one `train()` for each train batch."""
        assert self._algorithm is not None
        assert self._setting is not None
        settle(self._algorithm)
        start = time.perf_counter()
        for _ in range(self._setting.num_updates):
            self._result = self._algorithm.train()
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "env_steps": self._setting.env_steps}

    def bare(self, request: dict[str, Any]) -> dict[str, Any]:
        """What `run` computes, without what `train()` does around it."""
        assert self._algorithm is not None
        assert self._setting is not None
        seconds = bare_loop(self._algorithm, self._setting.num_updates)
        return {"seconds": seconds, "env_steps": self._setting.env_steps}

    def evaluate(self, request: dict[str, Any]) -> dict[str, Any]:
        """Mean return of the training episodes that ended last."""
        return {"return_mean": results.number(self._result, results.RETURN_MEAN)}

    def close(self) -> None:
        """Stop the Algorithm, if there is one."""
        if self._algorithm is not None:
            self._algorithm.stop()


def own_config() -> AlgorithmConfig:
    """The config for CartPole that comes with jaxrl; other peers do not evaluate either."""
    chosen = load_experiment(ROOT / CARTPOLE_CONFIG).config
    return chosen.evaluation(evaluation_interval=None)


def versions() -> dict[str, str]:
    """Of jaxrl and what it computes with."""
    return {module.__name__: module.__version__ for module in (jaxrl, jax, flax, optax)}


def config(setting: Setting) -> PPOConfig:
    """The setting in jaxrl's terms. Its value loss has no factor of a half of its own."""
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
                **images(setting),
                **second_layer(setting),
            }
        )
        .reporting(min_sample_timesteps_per_iteration=setting.env_steps)
        .debugging(seed=setting.seed)
    )


def images(setting: Setting) -> dict[str, Any]:
    """The convolutions before the dense layers, if there are any."""
    filters = [list(layer) for layer in setting.conv_filters]
    return {"conv_filters": filters} if filters else {}


def second_layer(setting: Setting) -> dict[str, Any]:
    """A dense layer, or a memory as wide as the first."""
    if setting.memory is None:
        second = setting.second_size or setting.hidden_size
        return {"fcnet_hiddens": [setting.hidden_size, second]}
    return {
        "use_lstm": True,
        "recurrent_layer_type": setting.memory,
        "lstm_cell_size": setting.hidden_size,
        "max_seq_len": setting.max_seq_len,
    }


def settle(algorithm: Algorithm) -> None:
    """Bring the state to the latest result, so that no iteration was computed before it is timed."""
    jax.block_until_ready(algorithm.state.learner)


def bare_loop(algorithm: Algorithm, num_updates: int) -> float:
    """Seconds of `num_updates` train batches by the compiled program alone.

    It is the very program that `train()` dispatches, in one dispatch, waiting for its result; the
    Algorithm goes on from the state it leaves.
    """
    numbers = np.int32(1), np.int32(num_updates)
    program = algorithm.programs.run.compiled_for(algorithm.state, *numbers)
    start = time.perf_counter()
    algorithm.state = jax.block_until_ready(program(algorithm.state, *numbers))[0]
    return time.perf_counter() - start


def _unroll(number: int) -> None:
    """Unroll every scan that says nothing of it: a lever to try, no setting of jaxrl."""
    scan: Any = jax.lax.scan

    def unrolled(*args: Any, **kwargs: Any) -> Any:
        return scan(*args, **{"unroll": number, **kwargs})

    jax.lax.scan = unrolled


def main() -> None:
    if "JAXRL_BENCHMARK_UNROLL" in os.environ:
        _unroll(int(os.environ["JAXRL_BENCHMARK_UNROLL"]))
    with tempfile.TemporaryDirectory(prefix="jaxrl-benchmark-") as folder:
        os.environ["JAXRL_RESULTS_DIR"] = folder
        peer = JaxrlPeer(config)
        serve(
            {
                "info": peer.info,
                "setup": peer.setup,
                "recommend": peer.recommend,
                "recommend_single": peer.recommend_single,
                "run": peer.run,
                "run_single": peer.run_single,
                "bare": peer.bare,
                "evaluate": peer.evaluate,
            }
        )


if __name__ == "__main__":
    main()
