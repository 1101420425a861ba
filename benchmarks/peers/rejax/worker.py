"""Rejax's PPO as a peer, in its own virtual environment (see requirements.txt).

Rejax's evaluation is not timed. These differences from the setting remain: gradients are clipped
per element, Adam's epsilon is 1e-8, value losses are clipped at `clip_eps`, advantages are
normalized per minibatch, and a time limit counts as a termination.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
from rejax import PPO  # pyright: ignore[reportAttributeAccessIssue]
from rejax.evaluate import evaluate  # pyright: ignore[reportMissingImports]

from benchmarks.peers.protocol import serve_peer
from benchmarks.recommended import make_setting
from benchmarks.settings import Setting


class RejaxPeer:
    """Peer with one compiled setting, whose training continues from run to run."""

    num_evaluation_episodes = 128

    def __init__(self) -> None:
        self._env_steps = 0
        self._algorithm: Any = None
        self._train: Any = None
        self._state: Any = None

    def info(self, request: dict[str, Any]) -> dict[str, Any]:
        packages = ("rejax", "gymnax", "jax", "flax", "optax")
        return {"versions": {name: version(name) for name in packages}, "devices": 1}

    def setup(self, request: dict[str, Any]) -> dict[str, Any]:
        """Compile Rejax's own `train` for a setting and initialize new parameters."""
        setting = Setting.from_dict(request["setting"])
        return self._compile(create(setting), setting)

    def recommend(self, request: dict[str, Any]) -> dict[str, Any]:
        """Set up with the hyperparameters of Rejax's config for CartPole."""
        setting = make_setting(request["setting"]["env_steps"], num_envs=5, num_steps=100)
        return self._compile(create_recommended(setting.env_steps), setting)

    def _compile(self, algorithm: Any, setting: Setting) -> dict[str, Any]:
        self._algorithm, self._env_steps = algorithm, setting.env_steps
        self._state = jax.jit(self._algorithm.init_state)(jax.random.PRNGKey(setting.seed))
        start = time.perf_counter()
        train = jax.jit(lambda state: self._algorithm.train(train_state=state)[0])
        self._train = train.lower(self._state).compile()
        return {"compile_s": time.perf_counter() - start}

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one measurement."""
        start = time.perf_counter()
        self._state = jax.block_until_ready(self._train(self._state))
        return {"seconds": time.perf_counter() - start, "env_steps": self._env_steps}

    def evaluate(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the mean return of new episodes with Rejax's acting policy."""
        algorithm = self._algorithm
        _, returns = evaluate(
            algorithm.make_act(self._state),
            jax.random.PRNGKey(1),
            algorithm.env,
            algorithm.env_params,
            self.num_evaluation_episodes,
            algorithm.env_params.max_steps_in_episode,
        )
        return {"return_mean": float(np.mean(returns))}


def create(setting: Setting) -> Any:
    """Create Rejax's PPO at a setting, without its evaluation."""
    algorithm = PPO.create(
        env="CartPole-v1",
        num_envs=setting.num_envs,
        num_steps=setting.num_steps,
        num_epochs=setting.num_epochs,
        num_minibatches=setting.num_minibatches,
        total_timesteps=setting.env_steps,
        eval_freq=setting.env_steps,
        skip_initial_evaluation=True,
        learning_rate=setting.lr,
        gamma=setting.gamma,
        gae_lambda=setting.gae_lambda,
        clip_eps=setting.clip_param,
        vf_coef=setting.vf_loss_coeff,
        ent_coef=setting.entropy_coeff,
        max_grad_norm=setting.max_grad_norm,
        agent_kwargs={
            "activation": "tanh",
            "hidden_layer_sizes": (setting.hidden_size, setting.hidden_size),
        },
    )
    return algorithm.replace(eval_callback=lambda algorithm, state, rng: ())


def create_recommended(env_steps: int) -> Any:
    """Create Rejax's PPO with the values of `configs/gymnax/cartpole.yaml`, without evaluation."""
    algorithm = PPO.create(
        env="CartPole-v1",
        agent_kwargs={"activation": "tanh"},
        num_envs=5,
        num_steps=100,
        num_epochs=5,
        num_minibatches=5,
        learning_rate=0.00075,
        max_grad_norm=0.5,
        total_timesteps=env_steps,
        eval_freq=env_steps,
        skip_initial_evaluation=True,
        gamma=0.99,
        gae_lambda=0.95,
        clip_eps=0.2,
        ent_coef=0.01,
        vf_coef=0.5,
    )
    return algorithm.replace(eval_callback=lambda algorithm, state, rng: ())


def main() -> None:
    peer = RejaxPeer()
    serve_peer(peer, "recommend")


if __name__ == "__main__":
    main()
