"""A recurrent policy where one observation is not enough: CartPole without velocities.

The recurrent state is reset where an episode begins. A `Policy` carries it from step to step when
you act outside of training. `jaxrl train file memory/statelesscartpole-ppo` is the tuned version.
"""

import argparse

import gymnasium

from jaxrl import PPOConfig


def main(iterations: int, cell_size: int, layer: str) -> None:
    """Train, then play one episode of gymnasium's CartPole with the policy."""
    config = (
        PPOConfig()
        .environment("StatelessCartPole-v0")
        .env_runners(num_envs_per_env_runner=8, observation_filter="MeanStdFilter")
        .training(train_batch_size=512, minibatch_size=128, num_epochs=4, lr=1e-3)
        .rl_module(
            model_config={
                "fcnet_hiddens": [32],
                "use_lstm": True,
                "recurrent_layer_type": layer,
                "lstm_cell_size": cell_size,
                "max_seq_len": 16,
                "vf_share_layers": True,
            }
        )
        .debugging(loggers=[])
    )
    with config.build() as algo:
        for _ in range(iterations):
            runners = algo.train()["env_runners"]
            print(f"return {runners['episode_return_mean']:.1f}")
        policy = algo.get_policy(explore=False)

    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    policy.reset()
    steps, ended = 0, False
    while not ended:
        action = policy.act(obs[[0, 2]])  # position and angle
        obs, _, terminated, truncated, _ = env.step(int(action))
        steps, ended = steps + 1, terminated or truncated
    print("one episode:", steps, "steps")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--cell-size", type=int, default=16)
    parser.add_argument("--layer", choices=["lstm", "gru", "lru", "mingru"], default="lstm")
    main(**vars(parser.parse_args()))
