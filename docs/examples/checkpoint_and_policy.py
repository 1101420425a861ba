"""Save, resume exactly, and act with the saved policy in gymnasium's environment.

A checkpoint contains the complete state. A resumed run gives the same numbers as one that was never
interrupted, which the script checks.
"""

import argparse
import tempfile

import gymnasium

from jaxrl import Algorithm, PPOConfig


def main(iterations: int) -> None:
    """Train, save, train on; load, train on; compare; play one episode."""
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=16)
        .training(train_batch_size=512, minibatch_size=128, num_epochs=4, lr=1e-3)
        .rl_module(model_config={"fcnet_hiddens": [32]})
        .debugging(loggers=[])
    )
    with tempfile.TemporaryDirectory() as folder:
        with config.build() as algo:
            for _ in range(iterations):
                algo.train()
            path = algo.save(folder)
            uninterrupted = algo.train()["learners"]["default_policy"]["total_loss"]
        with Algorithm.from_checkpoint(path) as algo:
            policy = algo.get_policy(explore=False)
            resumed = algo.train()["learners"]["default_policy"]["total_loss"]
    print("loss of the next iteration:", uninterrupted, resumed)
    assert uninterrupted == resumed, "the resumed run differs"

    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    total, ended = 0.0, False
    while not ended:
        obs, reward, terminated, truncated, _ = env.step(int(policy.act(obs)))
        total, ended = total + float(reward), terminated or truncated
    print("return of one episode:", total)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=4)
    main(**vars(parser.parse_args()))
