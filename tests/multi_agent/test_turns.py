"""Only the agents that may act are computed, and nothing else changes."""

from typing import Any

import jax
import pytest

from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.envs.multi.board import TicTacToe
from jaxrl.modules.actor_critic import ActorCriticModule
from tests.helpers import assert_close
from tests.multi_agent.agent_envs import Torture

NUM_ENVS = 6
MEMORY = {
    "use_lstm": True,
    "lstm_cell_size": 4,
    "max_seq_len": 8,
    "lstm_use_prev_action": True,
    "lstm_use_prev_reward": True,
}


class Crowd(Torture):
    """At most two of three agents act at a step, and it is not declared."""

    acting = "some"
    max_acting = None

    def _draw(self, key: Any, probability: float) -> Any:
        flags = super()._draw(key, probability)
        return {**flags, "c": flags["c"] & ~(flags["a"] & flags["b"])}


class TwoOfThree(Crowd):
    """The same, and it is declared."""

    max_acting = 2


class AllRows(TicTacToe):
    """TicTacToe that does not declare that one agent acts at a step."""

    max_acting = None


class Witness(ActorCriticModule):
    """Module that keeps the numbers of rows it acts for."""

    seen: set[int]

    def forward_exploration(self, params: Any, obs: Any, *args: Any, **kwargs: Any) -> Any:
        type(self).seen.add(jax.tree.leaves(obs)[0].shape[0])
        return super().forward_exploration(params, obs, *args, **kwargs)


PLAYS: dict[str, tuple[Any, Any, dict[str, Any], dict[str, Any]]] = {
    "self-play": (AllRows, TicTacToe, {"mapping": {"player_0": "main", "player_1": "main"}}, {}),
    "copies that differ": (
        AllRows,
        TicTacToe,
        {
            "policies": {"main", "other"},
            "mapping": [
                {"player_0": "main", "player_1": "other"},
                {"player_0": "main", "player_1": "main"},
                {"player_0": "other", "player_1": "main"},
            ],
        },
        {},
    ),
    "opponents that are drawn": (
        AllRows,
        TicTacToe,
        {
            "policies": {"main": None, "v0": None, "v1": None},
            "policies_to_train": ["main"],
            "mapping": [
                {"player_0": "main", "player_1": []},
                {"player_0": "main", "player_1": "main"},
            ],
            "policy_map_capacity": 4,
        },
        {},
    ),
    "two of three": (Crowd, TwoOfThree, {"mapping": dict.fromkeys("abc", "main")}, {}),
    "two of three remember": (Crowd, TwoOfThree, {"mapping": dict.fromkeys("abc", "main")}, MEMORY),
}


def make_config(env: Any, agents: dict[str, Any], model: dict[str, Any]) -> PPOConfig:
    config = PPOConfig().environment(env).env_runners(num_envs_per_env_runner=NUM_ENVS)
    config.training(train_batch_size=NUM_ENVS * 16, minibatch_size=24, num_epochs=1)
    config.rl_module(model_config={"fcnet_hiddens": [8], "conv_filters": [], **model})
    return config.multi_agent(**agents).debugging(loggers=[], seed=3).learners(num_devices=1)


@pytest.mark.allow_key_reuse
@pytest.mark.parametrize("play", list(PLAYS))
def test_a_run_is_that_in_which_every_row_is_computed(play: str) -> None:
    *envs, agents, model = PLAYS[play]
    states = []
    for env in envs:
        with make_config(env, agents, model).build() as algorithm:
            for _ in range(2):
                algorithm.train()
            states.append(jax.device_get(algorithm.state.modules))
    assert_close(*states, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("env", "rows"), [(AllRows, 2), (TicTacToe, 1), (Crowd, 3), (TwoOfThree, 2)]
)
def test_as_many_rows_are_computed_as_may_act(env: Any, rows: int) -> None:
    module = type("Seen", (Witness,), {"seen": set()})
    agents = ("a", "b", "c") if issubclass(env, Torture) else ("player_0", "player_1")
    config = make_config(env, {"mapping": dict.fromkeys(agents, "main")}, {})
    config.rl_module(rl_module_spec=module)
    with config.build() as algorithm:
        algorithm.train()
    assert max(module.seen) == rows * NUM_ENVS
