"""Population based training in one program.

Every `interval` iterations, the worst quarter of the lanes continue as copies of the best quarter,
with other hyperparameters. States are copied on the device; nothing is restarted.
"""

import argparse

from jaxrl import PopulationBasedTraining, PPOConfig, loguniform


def main(lanes: int, iterations: int, interval: int) -> None:
    """Train the population, and print its exploits and its best lane."""
    scheduler = PopulationBasedTraining(
        hyperparam_mutations={"lr": loguniform(1e-5, 1e-2), "entropy_coeff": [0.0, 0.01, 0.02]},
        perturbation_interval=interval,
    )
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=4)
        .training(train_batch_size=128, minibatch_size=64, num_epochs=2)
        .rl_module(model_config={"fcnet_hiddens": [32]})
        .reporting(min_sample_timesteps_per_iteration=1024)
        .checkpointing(checkpoint_at_end=False)
        .debugging(loggers=[])
        .sweep(num_samples=lanes, scheduler=scheduler)
    )
    with config.build() as sweep:
        result = sweep.fit({"training_iteration": iterations})
        for exploit in sweep.schedule:
            print(
                f"iteration {exploit.training_iteration}: lane {exploit.lane} continues as "
                f"{exploit.source}, {exploit.old} -> {exploit.new}"
            )
        best = sweep.best_lane()
    print("best lane", best, result["lanes"][best]["config"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--interval", type=int, default=1)
    main(**vars(parser.parse_args()))
