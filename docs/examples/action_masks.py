"""Action masks: illegal actions are never taken.

In `minefield-v0`, half of the eight doors are mined at every step, and opening one ends the episode
at a cost of 100. The observation contains the mask under `action_mask`. The script trains once with
the mask and once with `action_mask_key=None`, which makes it an observation like any other.
"""

import argparse

from jaxrl import PPOConfig


def main(iterations: int, num_envs: int) -> None:
    """Train with and without masks, and print the returns."""
    config = (
        PPOConfig()
        .environment("minefield-v0")
        .env_runners(num_envs_per_env_runner=num_envs)
        .training(train_batch_size=16 * num_envs, minibatch_size=4 * num_envs, num_epochs=4)
        .training(lr=1e-3, gamma=0.0)  # a door pays immediately
        .rl_module(model_config={"fcnet_hiddens": [32], "fusionnet_hiddens": [32]})
        .debugging(loggers=[])
    )
    for name, key in {"with masks": "action_mask", "without": None}.items():
        with config.copy().environment(action_mask_key=key).build() as algo:
            for _ in range(iterations):
                runners = algo.train()["env_runners"]
        lowest = runners["episode_return_min"]
        print(f"{name}: return {runners['episode_return_mean']:.1f}, lowest {lowest:.1f}")
        assert key is None or lowest >= 0.0, "a masked action was taken"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--num-envs", type=int, default=32)
    main(**vars(parser.parse_args()))
