"""Two policies that learn RLlib's MultiAgentCartPole, written in Python, from gymnasium's CartPole."""

import pytest

from jaxrl.algorithms.ppo import PPOConfig
from tests.multi_agent.host_envs import CartPoles

ENOUGH = 600.0
"""Return of both agents, which RLlib's example asks for."""


@pytest.mark.slow
def test_two_policies_reach_what_rllibs_example_asks_for() -> None:
    config = (
        PPOConfig()
        .environment(CartPoles)
        .env_runners(num_envs_per_env_runner=16)
        .training(
            train_batch_size=1024,
            minibatch_size=128,
            num_epochs=8,
            lr=1e-3,
            lambda_=0.98,
            entropy_coeff=0.005,
            use_kl_loss=False,
            vf_clip_param=float("inf"),
        )
        .rl_module(model_config={"fcnet_hiddens": [64, 64]})
        .multi_agent(
            policies={"p0", "p1"},
            policy_mapping_fn=lambda agent_id, episode, **kwargs: f"p{agent_id}",
        )
        .debugging(loggers=[], seed=1)
    )
    best = 0.0
    with config.build() as algorithm:
        for _ in range(73):  # 75,000 steps
            result = algorithm.train()["env_runners"]
            if result["episode_return_mean"] > best:
                best = result["episode_return_mean"]
            if best >= ENOUGH:
                break
    assert best >= ENOUGH
    assert min(result["agent_episode_returns_mean"].values()) > 200.0
