"""What each library recommends for PPO on CartPole, and where it says so.

Each peer trains as its own authors would; its worker has the numbers. What is computed for a step
differs from peer to peer, and so does what has been learned after a number of steps.

Standard library only, because peers with an environment of their own import it too.
"""

from __future__ import annotations

import dataclasses

from benchmarks.settings import Setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recommended:
    """One library's own choice.

    Args:
        source: Where it is published.
        batch: Environments x steps of a train batch.
        learning: What is done with it.
        env_steps: Of one measurement.
    """

    source: str
    batch: str
    learning: str
    env_steps: int


JAXRL, REJAX, SB3, RLLIB = "jaxrl", "rejax", "sb3", "rllib-2x16"
RECOMMENDED = {
    JAXRL: Recommended(
        source="../../configs/classic/cartpole-ppo.yaml",
        batch="4 x 128",
        learning="4 epochs x 4 minibatches of 128",
        env_steps=512_000,
    ),
    REJAX: Recommended(
        source="https://github.com/keraJLi/rejax/blob/main/configs/gymnax/cartpole.yaml",
        batch="5 x 100",
        learning="5 epochs x 5 minibatches of 100",
        env_steps=400_000,
    ),
    SB3: Recommended(
        source="https://github.com/DLR-RM/rl-baselines3-zoo/blob/master/hyperparams/ppo.yml",
        batch="8 x 32",
        learning="20 epochs of the whole batch of 256",
        env_steps=10_240,
    ),
    RLLIB: Recommended(
        source="https://github.com/ray-project/ray/blob/master/rllib/examples/algorithms/ppo/"
        "cartpole_ppo.py",
        batch="32 x 125",
        learning="6 epochs x 32 minibatches of 128, one linear layer of 32 that both share",
        env_steps=16_000,
    ),
}

CARTPOLE_CONFIG = "configs/classic/cartpole-ppo.yaml"
"""jaxrl's own, from the root of the repository."""


def in_batches(env_steps: int, *, num_envs: int, num_steps: int) -> Setting:
    """The length of a measurement in whole train batches; its hyperparameters are not looked at."""
    batch = num_envs * num_steps
    return Setting(num_envs=num_envs, num_steps=num_steps, num_updates=max(1, env_steps // batch))
