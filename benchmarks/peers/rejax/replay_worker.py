"""Rejax's DQN and SAC as a peer, in its own virtual environment.

Rejax's evaluation is not timed. Rejax makes one update per vector step, so the four environment
steps per update of DQN are one step of each of four environments. These differences from the
setting remain: batches are sampled without replacement, DQN's loss is the squared error, a time
limit counts as a termination, and the first actions of SAC come from the policy.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
from rejax import DQN, SAC  # pyright: ignore[reportAttributeAccessIssue]
from rejax.evaluate import evaluate  # pyright: ignore[reportMissingImports]

from benchmarks.peers.protocol import serve
from benchmarks.replay_settings import ReplaySetting

NUM_EVALUATION_EPISODES = 32


class RejaxReplayPeer:
    """Peer with one compiled setting, whose training continues from run to run."""

    def __init__(self) -> None:
        self._setting: ReplaySetting | None = None
        self._algorithm: Any = None
        self._train: Any = None
        self._state: Any = None

    def info(self, request: dict[str, Any]) -> dict[str, Any]:
        packages = ("rejax", "gymnax", "jax", "flax", "optax")
        return {"versions": {name: version(name) for name in packages}, "devices": 1}

    def setup(self, request: dict[str, Any]) -> dict[str, Any]:
        """Compile Rejax's own `train`, and train until updates have begun.

        The state is donated, as is usual; otherwise each call would copy the buffer.
        """
        self._setting = ReplaySetting.from_dict(request["setting"])
        self._algorithm = create(self._setting)
        key = jax.random.PRNGKey(self._setting.seed)
        self._state = jax.jit(self._algorithm.init_state)(key)
        start = time.perf_counter()
        train = jax.jit(lambda state: self._algorithm.train(train_state=state)[0], donate_argnums=0)
        self._train = train.lower(self._state).compile()
        seconds = time.perf_counter() - start
        for _ in range(-(-self._setting.warmup_steps // self._setting.env_steps)):
            self.run({})
        return {"compile_s": seconds}

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one measurement."""
        assert self._setting is not None
        start = time.perf_counter()
        self._state = jax.block_until_ready(self._train(self._state))
        return {"seconds": time.perf_counter() - start, "env_steps": self._setting.env_steps}

    def evaluate(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the mean return of new episodes with Rejax's acting policy."""
        algorithm = self._algorithm
        _, returns = evaluate(
            algorithm.make_act(self._state),
            jax.random.PRNGKey(1),
            algorithm.env,
            algorithm.env_params,
            NUM_EVALUATION_EPISODES,
            algorithm.env_params.max_steps_in_episode,
        )
        return {"return_mean": float(np.mean(returns))}


def create(setting: ReplaySetting) -> Any:
    """Create Rejax's algorithm at a setting, without its evaluation.

    Raises:
        ValueError: If the setting does not have one update per vector step.
    """
    if setting.steps_per_update != setting.num_envs:
        raise ValueError(
            "Rejax makes one update per vector step, so steps_per_update must be "
            f"num_envs={setting.num_envs}, got {setting.steps_per_update}"
        )
    common: dict[str, Any] = {
        "env": setting.env,
        "num_envs": setting.num_envs,
        "num_epochs": 1,
        "buffer_size": setting.capacity,
        "fill_buffer": setting.learning_starts,
        "batch_size": setting.batch_size,
        "total_timesteps": setting.env_steps,
        "eval_freq": setting.env_steps,
        "skip_initial_evaluation": True,
        "learning_rate": setting.lr,
        "gamma": setting.gamma,
        "polyak": 1.0 - setting.tau,
        "target_update_freq": setting.target_update_freq,
    }
    if setting.algorithm == "DQN":  # Rejax's DQN always has two layers of 64 units
        algorithm = DQN.create(
            **common,
            ddqn=False,
            eps_end=setting.final_epsilon,
            exploration_fraction=setting.epsilon_steps / setting.env_steps,
            agent_kwargs={"activation": "relu"},
        )
    else:
        width = (setting.hidden_size, setting.hidden_size)
        algorithm = SAC.create(
            **common, hidden_layer_sizes=width, agent_kwargs={"activation": "relu"}
        )
    return algorithm.replace(eval_callback=lambda algorithm, state, rng: ())


def main() -> None:
    peer = RejaxReplayPeer()
    serve({"info": peer.info, "setup": peer.setup, "run": peer.run, "evaluate": peer.evaluate})


if __name__ == "__main__":
    main()
