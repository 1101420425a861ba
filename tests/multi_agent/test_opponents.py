"""Opponents written by hand beside a module that is trained."""

from typing import Any

import jax.numpy as jnp

from jaxrl import A2CConfig, HeuristicRLModule, MultiRLModuleSpec, RLModuleSpec, ScriptedModule
from jaxrl.envs.multi.opponents import BeatLast

ROCK, PAPER = 0, 1


class RockThenPaper(HeuristicRLModule):
    """Rock in the first five rounds of an episode, then paper."""

    def initial_carry(self, batch_size: int) -> Any:
        return jnp.zeros((batch_size,), jnp.int32)

    def act(self, obs: Any, carry: Any, key: Any) -> Any:
        return jnp.where(carry < 5, ROCK, PAPER), carry + 1


class Rock(ScriptedModule):
    def choose_actions(self, obs: Any) -> Any:
        return jnp.full(obs.shape[:1], ROCK, jnp.int32)


def test_a_memory_lasts_for_an_episode() -> None:
    players = {
        "player_0": "changing",
        "player_1": "rock",
        "player_2": "learned",
        "player_3": "last",
    }
    specs = {
        "changing": RLModuleSpec(module_class=RockThenPaper),
        "rock": RLModuleSpec(module_class=Rock),
        "learned": RLModuleSpec(model_config={"fcnet_hiddens": [8]}),
        "last": RLModuleSpec(module_class=BeatLast),
    }
    config = (
        A2CConfig()
        .environment("RockPaperScissors-v0", env_config={"num_games": 2})
        .env_runners(num_envs_per_env_runner=8)
        .training(train_batch_size=240)
        .multi_agent(mapping=players, policies_to_train=["learned"])
        .rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs))
        .debugging(loggers=[])
    )
    with config.build() as algorithm:
        algorithm.train()
        result = algorithm.train()
    assert result["env_runners"]["num_episodes"] == 24
    # Paper in the last five rounds of every episode.
    assert result["env_runners"]["agent_episode_returns_mean"]["player_0"] == 5.0
    assert result["learners"].keys() == {"learned", "__all_modules__"}
