"""Rejax's PPO as a peer, in its own virtual environment (see requirements.txt).

Rejax's evaluation is not timed. These differences from the setting remain: gradients are clipped
per element, Adam's epsilon is 1e-8, value losses are clipped at `clip_eps`, advantages are
normalized per minibatch, and a time limit counts as a termination.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from rejax import PPO  # pyright: ignore[reportAttributeAccessIssue]
from rejax.evaluate import evaluate  # pyright: ignore[reportMissingImports]

from benchmarks.peers.compiled import CompiledPeer
from benchmarks.peers.protocol import Request, serve_peer
from benchmarks.settings import Setting, make_recommended_setting


class RejaxPeer(CompiledPeer):
    """Peer with one compiled setting, whose training continues from run to run."""

    packages = ("rejax", "gymnax", "jax", "flax", "optax")
    num_evaluation_episodes = 128

    def __init__(self) -> None:
        super().__init__()
        self._algorithm: Any = None

    def setup(self, request: Request) -> dict[str, Any]:
        """Compile Rejax's own `train` for a setting and initialize new parameters."""
        setting = Setting.from_dict(request["setting"])
        return self.compile_train(create(setting), setting.env_steps, setting.seed)

    def recommend(self, request: Request) -> dict[str, Any]:
        """Set up with the hyperparameters of Rejax's config for CartPole."""
        steps = request["setting"]["env_steps"]
        setting = make_recommended_setting(steps, num_envs=5, num_steps=100)
        algorithm = create_recommended(setting.env_steps)
        return self.compile_train(algorithm, setting.env_steps, setting.seed)

    def compile_train(
        self, algorithm: Any, env_steps: int, seed: int, *, is_donated: bool = False
    ) -> dict[str, Any]:
        """Compile Rejax's own `train` from a new state."""
        self._algorithm = algorithm
        state = jax.jit(algorithm.init_state)(jax.random.PRNGKey(seed))
        return self.compile(
            lambda state: algorithm.train(train_state=state)[0],
            state,
            env_steps=env_steps,
            is_donated=is_donated,
        )

    def evaluate(self, request: Request) -> dict[str, Any]:
        """Return the mean return of new episodes with Rejax's acting policy."""
        algorithm = self._algorithm
        _, returns = evaluate(
            algorithm.make_act(self.state),
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


if __name__ == "__main__":
    serve_peer(RejaxPeer(), "recommend")
