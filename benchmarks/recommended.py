"""Recommendations of each library for PPO on CartPole, with their sources.

Each peer trains as its authors recommend; the hyperparameters are in its worker. The work per step
and the learning progress after a number of steps differ between peers.

Uses the standard library alone, because peers in their own virtual environments import it too.
"""

from __future__ import annotations

import dataclasses

from benchmarks.settings import Setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recommendation:
    """Recommendation of one library.

    Args:
        source: Place of publication.
        batch: Environments x steps of a train batch.
        learning: Description of the epochs and minibatches.
        env_steps: Environment steps per measurement.
    """

    source: str
    batch: str
    learning: str
    env_steps: int


JAXRL, REJAX, SB3, RLLIB = "jaxrl", "rejax", "sb3", "rllib-2x16"
RECOMMENDATIONS = {
    JAXRL: Recommendation(
        source="../../configs/classic/cartpole-ppo.yaml",
        batch="4 x 128",
        learning="4 epochs x 4 minibatches of 128",
        env_steps=512_000,
    ),
    REJAX: Recommendation(
        source="https://github.com/keraJLi/rejax/blob/main/configs/gymnax/cartpole.yaml",
        batch="5 x 100",
        learning="5 epochs x 5 minibatches of 100",
        env_steps=400_000,
    ),
    SB3: Recommendation(
        source="https://github.com/DLR-RM/rl-baselines3-zoo/blob/master/hyperparams/ppo.yml",
        batch="8 x 32",
        learning="20 epochs of the whole batch of 256",
        env_steps=10_240,
    ),
    RLLIB: Recommendation(
        source="https://github.com/ray-project/ray/blob/master/rllib/examples/algorithms/ppo/"
        "cartpole_ppo.py",
        batch="32 x 125",
        learning="6 epochs x 32 minibatches of 128, one shared linear layer of 32 units",
        env_steps=16_000,
    ),
}

CARTPOLE_CONFIG = "configs/classic/cartpole-ppo.yaml"
"""Path of jaxrl's own config, relative to the root of the repository."""


def make_setting(env_steps: int, *, num_envs: int, num_steps: int) -> Setting:
    """Return a setting whose measurement has `env_steps` in whole train batches.

    Only the sizes of the setting are used, not its hyperparameters.
    """
    batch = num_envs * num_steps
    return Setting(num_envs=num_envs, num_steps=num_steps, num_updates=max(1, env_steps // batch))
