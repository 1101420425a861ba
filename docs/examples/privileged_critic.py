"""A critic that sees more than the policy: CartPole by noisy sensors, with the true state to learn by.

A simulator knows what sensors do not show. The critic may see all of it, since it is needed for
learning alone. The policy acts on its sensors, and so does its export. `--iterations 59` are 60,000
steps; with `--blind-critic` the critic has the sensors alone, too.
"""

import argparse
import tempfile
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array

from jaxrl import PPOConfig
from jaxrl.core.types import Key, PyTree, TimeStep
from jaxrl.envs import JaxEnv
from jaxrl.envs.classic.cartpole import CartPole, CartPoleParams, CartPoleState
from jaxrl.export.numpy_program import NumpyPolicy

NOISE = 0.05


class NoisyCartPole(JaxEnv[CartPoleState, CartPoleParams]):
    """CartPole by sensors with noise, alone or, in a Dict, beside the `state` itself."""

    name = "NoisyCartPole-v0"
    max_episode_steps = 500

    def __init__(self, shows_state: bool = True) -> None:
        self.shows_state, self._env = shows_state, CartPole()

    @property
    def default_params(self) -> CartPoleParams:
        return self._env.default_params

    def observation_space(self, params: CartPoleParams) -> gymnasium.Space[Any]:
        sensors = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        if not self.shows_state:
            return sensors
        return spaces.Dict({"sensors": sensors, "state": self._env.observation_space(params)})

    def action_space(self, params: CartPoleParams) -> gymnasium.Space[Any]:
        return self._env.action_space(params)

    def reset(self, key: Key, params: CartPoleParams) -> tuple[CartPoleState, PyTree]:
        reset_key, noise_key = jax.random.split(key)
        state, obs = self._env.reset(reset_key, params)
        return state, self._observe(noise_key, obs)

    def step(
        self, key: Key, state: CartPoleState, action: Array, params: CartPoleParams
    ) -> tuple[CartPoleState, TimeStep]:
        step_key, noise_key = jax.random.split(key)
        state, step = self._env.step(step_key, state, action, params)
        return state, TimeStep(
            obs=self._observe(noise_key, step.obs),
            reward=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            info=step.info,
        )

    def _observe(self, key: Key, state: Array) -> PyTree:
        sensors = state + NOISE * jax.random.normal(key, state.shape, jnp.float32)
        return {"sensors": sensors, "state": state} if self.shows_state else sensors


def make_config(shows_state: bool, seed: int) -> PPOConfig:
    """Return a config whose critic alone sees the state, if the environment shows it."""
    model: dict[str, Any] = {"fcnet_hiddens": [64, 64]}
    if shows_state:
        model |= {"fusionnet_hiddens": [64], "critic_only_observations": ["state"]}
    return (
        PPOConfig()
        .environment(NoisyCartPole(shows_state))
        .env_runners(num_envs_per_env_runner=8)
        .training(
            train_batch_size=1024,
            minibatch_size=128,
            num_epochs=10,
            lr=1e-3,
            gamma=0.98,
            lambda_=0.8,
            clip_param=0.2,
            use_kl_loss=False,
            grad_clip=0.5,
        )
        .rl_module(model_config=model)
        .debugging(seed=seed, loggers=[])
    )


def main(iterations: int, seed: int, blind_critic: bool) -> None:
    """Train, export, and act on sensors alone."""
    with make_config(not blind_critic, seed).build() as algo:
        for _ in range(iterations):
            runners = algo.train()["env_runners"]
            print(f"return {runners['episode_return_mean']:.1f}")
        with tempfile.TemporaryDirectory() as folder:
            policy = NumpyPolicy(algo.export(folder))
    sensors = np.zeros(4, np.float32)
    print("action:", policy.act(sensors if blind_critic else {"sensors": sensors}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--blind-critic", action="store_true")
    main(**vars(parser.parse_args()))
