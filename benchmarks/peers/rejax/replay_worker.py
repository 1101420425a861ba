"""Rejax's DQN and SAC as a peer, in its own virtual environment.

Rejax's evaluation is not timed. Rejax makes one update per vector step, so the four environment
steps per update of DQN are one step of each of four environments. These differences from the
setting remain: batches are sampled without replacement, DQN's loss is the squared error, a time
limit counts as a termination, and the first actions of SAC come from the policy.
"""

from __future__ import annotations

import time
from typing import Any

import jax
from rejax import DQN, SAC  # pyright: ignore[reportAttributeAccessIssue]

from benchmarks.peers.protocol import serve_peer
from benchmarks.peers.rejax.worker import RejaxPeer
from benchmarks.replay_settings import ReplaySetting


class RejaxReplayPeer(RejaxPeer):
    """Peer with one compiled setting of DQN or SAC."""

    num_evaluation_episodes = 32

    def setup(self, request: dict[str, Any]) -> dict[str, Any]:
        """Compile Rejax's own `train`, and train until updates have begun.

        The state is donated, as is usual; otherwise each call would copy the buffer.
        """
        setting = ReplaySetting.from_dict(request["setting"])
        self._algorithm, self._env_steps = create(setting), setting.env_steps
        self._state = jax.jit(self._algorithm.init_state)(jax.random.PRNGKey(setting.seed))
        start = time.perf_counter()
        train = jax.jit(lambda state: self._algorithm.train(train_state=state)[0], donate_argnums=0)
        self._train = train.lower(self._state).compile()
        seconds = time.perf_counter() - start
        for _ in range(-(-setting.warmup_steps // setting.env_steps)):
            self.run({})
        return {"compile_s": seconds}


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
    serve_peer(peer)


if __name__ == "__main__":
    main()
