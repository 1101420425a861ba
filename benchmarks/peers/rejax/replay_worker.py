"""Rejax's DQN and SAC as a peer, in its own virtual environment.

Rejax's evaluation is not timed. Rejax makes one update per vector step, so the four environment
steps per update of DQN are one step of each of four environments. These differences from the
setting remain: batches are sampled without replacement, DQN's loss is the squared error, a time
limit counts as a termination, and the first actions of SAC come from the policy.
"""

from __future__ import annotations

from typing import Any

from rejax import DQN, SAC  # pyright: ignore[reportAttributeAccessIssue]

from benchmarks.peers.protocol import Request, serve_peer
from benchmarks.peers.rejax.worker import RejaxPeer
from benchmarks.settings import ReplaySetting


class RejaxReplayPeer(RejaxPeer):
    """Peer with one compiled setting of DQN or SAC."""

    num_evaluation_episodes = 32

    def setup(self, request: Request) -> dict[str, Any]:
        """Compile Rejax's own `train`, and train until updates have begun.

        The state is donated, as is usual; otherwise each call would copy the buffer.
        """
        setting = ReplaySetting.from_dict(request["setting"])
        algorithm, steps = create(setting), setting.env_steps
        reply = self.compile_train(algorithm, steps, setting.seed, is_donated=True)
        for _ in range(-(-setting.warmup_steps // setting.env_steps)):
            self.run({})
        return reply


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


if __name__ == "__main__":
    serve_peer(RejaxReplayPeer())
