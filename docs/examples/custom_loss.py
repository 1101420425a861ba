"""A loss of your own: PPO that also imitates a rule, with a coefficient that becomes a setting.

The rule pushes the cart in the direction in which the pole falls. The coefficient is a traced
number, so a schedule, a sweep, or a value set later does not recompile.
"""

import argparse
from typing import Any

import jax.numpy as jnp

from jaxrl import PPOConfig
from jaxrl.algorithms.ppo import PPOLearner


class ImitatingConfig(PPOConfig):
    """PPO's settings and one more."""

    imitation_coeff: float = 0.5


class ImitatingLearner(PPOLearner):
    """PPO's loss plus the cross-entropy of a rule's actions."""

    def compute_loss(self, params: Any, batch: Any, values: Any, key: Any) -> Any:
        """Add the weighted cross-entropy, and report it."""
        loss, metrics = super().compute_loss(params, batch, values, key)
        out = self.module.forward_train(params, {"obs": batch.obs})
        dist = self.module.action_dist(out["action_dist_inputs"], batch.obs)
        angle, angular_velocity = batch.obs[..., 2], batch.obs[..., 3]
        rule = (angle + angular_velocity > 0).astype(batch.action.dtype)
        imitation = jnp.mean(batch.weight * -dist.log_prob(rule))
        return loss + values.imitation_coeff * imitation, {**metrics, "imitation": imitation}


def main(iterations: int, imitation_coeff: float) -> None:
    """Train with and without the rule, and print both returns."""
    for coeff in (0.0, imitation_coeff):
        config = (
            ImitatingConfig()
            .environment("CartPole-v1")
            .env_runners(num_envs_per_env_runner=16)
            .training(train_batch_size=512, minibatch_size=128, num_epochs=4, lr=1e-3)
            .training(imitation_coeff=coeff)
            .rl_module(model_config={"fcnet_hiddens": [32]})
            .learners(learner_class=ImitatingLearner)
            .debugging(loggers=[])
        )
        with config.build() as algo:
            for _ in range(iterations):
                result = algo.train()
        learned = result["learners"]["default_policy"]
        print(
            f"imitation_coeff={coeff}: return {result['env_runners']['episode_return_mean']:.1f}, "
            f"cross-entropy {learned['imitation']:.2f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--imitation-coeff", type=float, default=0.5)
    main(**vars(parser.parse_args()))
