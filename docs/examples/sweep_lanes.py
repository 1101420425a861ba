"""A sweep in one program: learning rates and seeds side by side.

Each run is a lane of the compiled program, with its own results and checkpoints. Lanes that differ
only in numbers share the program, so more lanes do not mean more compilation.
"""

import argparse

from jaxrl import PPOConfig, grid


def main(seeds: int, iterations: int, rates: list[float]) -> None:
    """Train all lanes, print the points from best to worst, and continue with the best lane."""
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=4)
        .training(train_batch_size=128, minibatch_size=64, num_epochs=4, lr=grid(rates))
        .rl_module(model_config={"fcnet_hiddens": [32]})
        .reporting(min_sample_timesteps_per_iteration=1024)
        .checkpointing(checkpoint_at_end=False)
        .debugging(loggers=[])
        .sweep(seeds=seeds)
    )
    with config.build() as sweep:
        sweep.fit({"training_iteration": iterations})
        for point in sweep.points():
            print(point.values, f"{point.score:.1f}", point.lanes)
        best = sweep.lane(sweep.best_lane())
    print("best: lr", best.config.lr, "seed", best.config.seed)
    best.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-2, 1e-3, 1e-4])
    main(**vars(parser.parse_args()))
