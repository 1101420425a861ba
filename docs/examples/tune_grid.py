"""Ray Tune: a grid of learning rates, one trial each (`pip install 'jaxrl[tune]'`).

Use it for environments on the host and for Tune's schedulers. For environments in JAX,
`sweep_lanes.py` trains the same grid in one program.
"""

import argparse

from ray import tune

from jaxrl import PPO, Algorithm, PPOConfig


def main(iterations: int, rates: list[float]) -> None:
    """Run the trials, and evaluate the best one's checkpoint."""
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=8)
        .training(train_batch_size=256, minibatch_size=64, num_epochs=2, lr=tune.grid_search(rates))
        .rl_module(model_config={"fcnet_hiddens": [16]})
        .evaluation(evaluation_duration=4)
    )
    results = tune.Tuner(
        PPO,
        param_space=config,
        tune_config=tune.TuneConfig(metric="env_runners/episode_return_mean", mode="max"),
        run_config=tune.RunConfig(
            stop={"training_iteration": iterations},
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
            verbose=0,
        ),
    ).fit()
    best = results.get_best_result()
    with Algorithm.from_checkpoint(best.checkpoint.path) as algo:
        evaluated = algo.evaluate()["env_runners"]
        print("best lr", algo.config.lr, "return", evaluated["episode_return_mean"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 1e-4])
    main(**vars(parser.parse_args()))
