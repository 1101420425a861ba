"""SAC, TQC and TD3 from their shipped files, and mistakes that their thresholds notice.

`python -m pytest -m slow tests/learning/test_actor_critics.py -s` prints every seed.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import pytest

from jaxrl import SACConfig
from jaxrl.algorithms.sac import SACLearner
from jaxrl.algorithms.td3 import TD3Learner
from jaxrl.algorithms.tqc import TQCLearner
from jaxrl.learners import actor_critic
from jaxrl.modules.networks import ResidualMLP
from tests.learning.test_thresholds import SEEDS, all_seeds, evaluated, interquartile_mean

pytestmark = pytest.mark.slow

THRESHOLDS: dict[str, tuple[int, float]] = {
    "classic/pendulum-sac": (20_000, -250.0),
    "classic/pendulum-td3": (20_000, -250.0),
    "classic/pendulum-fast-td3": (51_200, -200.0),
    "classic/pendulum-tqc": (200_000, -200.0),
    "classic/pendulum-crossq": (6_000, -200.0),
    "classic/pendulum-redq": (3_000, -200.0),
    "classic/pendulum-c51-sac": (10_000, -200.0),
    "classic/cartpole-sac": (200_000, 400.0),
}
"""Environment steps, and the least interquartile mean over five seeds."""


@pytest.mark.parametrize("name", THRESHOLDS)
def test_five_seeds(name: str) -> None:
    steps, least = THRESHOLDS[name]
    assert interquartile_mean(all_seeds(name, steps)) >= least


def temperature_that_runs_away(patch: pytest.MonkeyPatch) -> None:
    """Descends the other way: the more entropy, the more it is wanted."""
    honest = SACLearner.alpha_loss

    def broken(self: Any, *arguments: Any) -> Any:
        loss, metrics = honest(self, *arguments)
        return -loss, metrics

    patch.setattr(SACLearner, "alpha_loss", broken)


def endless_episodes(patch: pytest.MonkeyPatch) -> None:
    """Bootstraps through terminations."""
    honest = SACLearner.compute_td_targets

    def broken(self: Any, next_out: Any, batch: Any, *arguments: Any) -> Any:
        endless = replace(batch, discount=jnp.full_like(batch.discount, 0.99))
        return honest(self, next_out, endless, *arguments)

    patch.setattr(SACLearner, "compute_td_targets", broken)


def policy_of_old_actions(patch: pytest.MonkeyPatch) -> None:
    """The critics value the action of the buffer: the policy gets no gradient."""

    def broken(self: Any, policy: Any, critic: Any, batch: Any) -> Any:
        q = self.module.compute_first_q_values(critic, batch.obs, batch.action)
        return -jnp.mean(batch.weight * q), {}

    patch.setattr(TD3Learner, "actor_loss", broken)


def targets_of_the_present(patch: pytest.MonkeyPatch) -> None:
    """The bootstrap is of the observation that was acted on."""
    honest = TQCLearner.step_critics

    def broken(self: Any, state: Any, batch: Any, *arguments: Any) -> Any:
        return honest(self, state, replace(batch, next_obs=batch.obs), *arguments)

    patch.setattr(TQCLearner, "step_critics", broken)


def moments_that_never_move(patch: pytest.MonkeyPatch) -> None:
    """The policy sees critics that are normalized by the moments of the start."""
    patch.setattr(actor_critic, "_name_leaves", lambda moments: {})


def targets_without_rewards(patch: pytest.MonkeyPatch) -> None:
    """The atoms are discounted, and no reward shifts them."""
    honest = actor_critic.categorical_projection

    def broken(reward: Any, *arguments: Any) -> Any:
        return honest(jnp.zeros_like(reward), *arguments)

    patch.setattr(actor_critic, "categorical_projection", broken)


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("classic/pendulum-sac", temperature_that_runs_away),
        ("classic/cartpole-sac", endless_episodes),
        ("classic/pendulum-td3", policy_of_old_actions),
        ("classic/pendulum-fast-td3", policy_of_old_actions),
        ("classic/pendulum-tqc", targets_of_the_present),
        ("classic/pendulum-crossq", moments_that_never_move),
        ("classic/pendulum-c51-sac", targets_without_rewards),
    ],
)
def test_a_mistake_fails_the_threshold(
    name: str, mistake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    steps, least = THRESHOLDS[name]
    score = evaluated(name, steps, 0)
    print(f"\n{name} with {mistake.__name__}: {score:.1f}")
    assert score < least


BLOCKS = {"fcnet_block": "simba", "fcnet_hiddens": [32], "critic_fcnet_hiddens": [64]}
LEAST_OF_BLOCKS = -770.0


def return_of_first_steps(seed: int, **model_config: Any) -> float:
    """The mean return of SAC's first 25 episodes of Pendulum, one update for each step."""
    config = SACConfig().environment("Pendulum-v1").debugging(seed=seed, loggers=[])
    config.env_runners(num_envs_per_env_runner=1, rollout_fragment_length=1)
    config.training(
        train_batch_size=64,
        training_intensity=64.0,
        num_steps_sampled_before_learning_starts=300,
        initial_random_timesteps=300,
        replay_buffer_config={"type": "uniform", "capacity": 10_000},
        **dict.fromkeys(("actor_lr", "critic_lr", "alpha_lr"), 1e-3),
    )
    config.rl_module(model_config=model_config)
    config.reporting(min_sample_timesteps_per_iteration=5000)
    with config.build() as algorithm:
        result = algorithm.train()["env_runners"]
        assert result["num_episodes"] == 25
        return result["episode_return_mean"]


def test_residual_blocks_need_fewer_steps() -> None:
    scores = [return_of_first_steps(seed, **BLOCKS) for seed in SEEDS]
    layers = [return_of_first_steps(seed, fcnet_hiddens=[64, 64]) for seed in SEEDS]
    print(f"\nblocks {scores}, layers {layers}")
    assert interquartile_mean(scores) >= LEAST_OF_BLOCKS
    assert interquartile_mean(layers) < LEAST_OF_BLOCKS


def test_blocks_that_add_nothing_need_more(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ResidualMLP._apply_dense

    def broken(self: Any, name: str, *arguments: Any) -> Any:
        return honest(self, name, *arguments) * (not name.startswith("dense_"))

    monkeypatch.setattr(ResidualMLP, "_apply_dense", broken)
    score = return_of_first_steps(0, **BLOCKS)
    print(f"\nblocks that add nothing {score:.1f}")
    assert score < LEAST_OF_BLOCKS
