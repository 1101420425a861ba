"""PPO on CartPole-v1: train, evaluate, print the return.

The environment is written in JAX, so sampling and learning are one compiled program.
`jaxrl train file classic/cartpole-ppo` is the tuned version.
"""

import argparse

from jaxrl import PPOConfig


def main(steps: int, num_envs: int, seed: int) -> None:
    """Train, print every iteration, and evaluate the most likely actions."""
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=num_envs)
        .training(
            train_batch_size=32 * num_envs,
            minibatch_size=8 * num_envs,
            num_epochs=4,
            lr=1e-3,
            lambda_=0.95,
            use_kl_loss=False,
            vf_clip_param=float("inf"),
        )
        .rl_module(model_config={"fcnet_hiddens": [64, 64]})
        .evaluation(evaluation_duration=8, evaluation_config={"explore": False})
        .debugging(seed=seed, loggers=[])
    )
    with config.build() as algo:
        for _ in range(-(-steps // config.train_batch_size)):
            result = algo.train()
            sampled, runners = result["num_env_steps_sampled_lifetime"], result["env_runners"]
            print(f"{sampled:,} steps: return {runners['episode_return_mean']:.1f}")
        evaluated = algo.evaluate()["env_runners"]
    print(f"evaluation: {evaluated['episode_return_mean']:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4096)
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
