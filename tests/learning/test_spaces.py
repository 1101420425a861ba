"""Learning from several parts, with parts of actions that agree, and among mines.

`python -m pytest -m slow tests/learning/test_spaces.py -s` prints every seed.
"""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from gymnasium import spaces

from jaxrl import JaxEnv, TimeStep
from jaxrl.config.load import load_experiment
from jaxrl.core.struct import pytree
from jaxrl.envs.minefield import Minefield
from jaxrl.envs.probes import ProbeParams
from jaxrl.envs.three_parts import ThreeParts
from tests.helpers import small
from tests.learning.test_thresholds import CONFIGS, evaluated

BUDGETS = {
    "spaces/threeparts-ppo": 200_000,
    "spaces/threeparts-dqn": 50_000,
    "gymnasium/threeparts-ppo": 200_000,
    "gymnasium/threeparts-dqn": 50_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BUDGETS)
def test_all_three_parts_are_read(name: str) -> None:
    scores = [evaluated(name, BUDGETS[name], seed) for seed in range(3)]
    print(f"\n{name}: {scores}")
    assert min(scores) >= 9.0


@pytest.mark.slow
@pytest.mark.parametrize("part", ["image", "vector", "choice"])
def test_a_part_that_is_blank_fails_the_threshold(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = ThreeParts.sample_code

    def blank(self: Any, key: Any) -> Any:
        code, obs = honest(self, key)
        return code, {**obs, part: jnp.zeros_like(obs[part])}

    monkeypatch.setattr(ThreeParts, "sample_code", blank)
    assert evaluated("spaces/threeparts-ppo", 200_000, 0) <= 6.0


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["ppo", "dqn", "sac"])
def test_no_mine_in_a_million_steps(algo: str) -> None:
    config = load_experiment(CONFIGS / f"spaces/minefield-{algo}.yaml").config.debugging(loggers=[])
    least, last = float("inf"), 0.0
    with config.build() as algorithm:
        while int(algorithm.state.progress.env_steps) < 1_000_000:
            returns = algorithm.train()["env_runners"]
            least = min(least, returns["episode_return_min"])
            last = returns["episode_return_mean"]
            # an episode that a mine ends is shorter, too
            assert returns["episode_len_min"] == returns["episode_len_max"] == 10
    print(f"\nminefield-{algo}: {least:.2f} at least, {last:.2f} in the end")
    assert least >= 0.0
    assert last >= 7.0  # the best of four doors pays 0.8, one at random 0.5


@pytest.mark.slow
def test_without_the_mask_mines_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Minefield,
        "observe",
        lambda self, state: {**observe(self, state), "action_mask": jnp.ones(8, jnp.int8)},
    )
    config = load_experiment(CONFIGS / "spaces/minefield-ppo.yaml").config.debugging(loggers=[])
    with config.build() as algorithm:
        assert algorithm.train()["env_runners"]["episode_return_min"] < -90.0


observe = Minefield.observe


# --- parts of an action that have to agree ---

NUM = 4


@pytree
class LastState:
    """The first part of the action before, which is not observed, and the steps so far."""

    last: Any
    num_steps: Any


class Agree(JaxEnv[LastState, ProbeParams]):
    """1 for two equal parts that are not those of the step before, which nobody sees.

    So the first part has to be random and the second has to know it: that earns 3 of 4. Independent
    parts earn at most a quarter: Σ p (1 − p) q is largest where q is certain and p a half.
    """

    name = "agree"
    default_params = ProbeParams()

    def observation_space(self, params: Any) -> Any:
        return spaces.Box(0.0, 1.0, (1,))

    def action_space(self, params: Any) -> Any:
        return spaces.Dict({"first": spaces.Discrete(NUM, start=1), "second": spaces.Discrete(NUM)})

    def reset(self, key: Any, params: Any) -> Any:
        last = jax.random.randint(key, (), 0, NUM)
        return LastState(last=last, num_steps=jnp.int32(0)), jnp.zeros((1,))

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        first = action["first"] - 1
        earned = (first == action["second"]) & (first != state.last)
        num_steps = state.num_steps + 1
        return LastState(last=first, num_steps=num_steps), TimeStep(
            obs=jnp.zeros((1,)),
            reward=earned.astype(jnp.float32),
            terminated=num_steps >= 10,
            truncated=jnp.zeros((), bool),
            info={},
        )


def mean_return(autoregressive: bool) -> float:
    config = small("PPO", Agree, lr=3e-3, entropy_coeff=0.02, gamma=0.0, use_kl_loss=False)
    config.training(train_batch_size=1024, minibatch_size=256, num_epochs=4)
    config.env_runners(num_envs_per_env_runner=64)
    config.rl_module(model_config={"autoregressive_actions": autoregressive})
    config.reporting(min_sample_timesteps_per_iteration=1024 * 60)
    config.debugging(loggers=[]).checkpointing(checkpoint_at_end=False)
    with config.build() as algorithm:
        algorithm.train()
        return algorithm.train()["env_runners"]["episode_return_mean"]


@pytest.mark.slow
def test_parts_that_know_each_other_agree() -> None:
    assert mean_return(autoregressive=True) >= 6.5


@pytest.mark.slow
def test_independent_parts_do_not() -> None:
    assert mean_return(autoregressive=False) <= 3.2
