"""Evaluations against chosen opponents: a table by opponent and seat."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import Algorithm, Draw, PPOConfig, Seats
from jaxrl.errors import CheckpointError, ConfigError, JaxrlError, UnknownNameError
from jaxrl.modules.scripted import ScriptedModule
from jaxrl.policy.league import find_opponents
from tests.multi_agent.agent_envs import Targets, Torture
from tests.multi_agent.games import play
from tests.multi_agent.test_draws import One, Zero


class FirstMove(ScriptedModule):
    """The first legal move."""

    def choose_actions(self, obs: Any) -> Any:
        return jnp.argmax(obs["action_mask"], axis=-1).astype(jnp.int32)


def choose_first(rng: np.random.Generator, seen: Any) -> np.ndarray:
    """The first legal move for every observation."""
    return np.asarray(seen["action_mask"]).argmax(axis=1)


def make_config(env: Any = Targets, size: int = 8, **settings: Any) -> PPOConfig:
    """8 environments; evaluations take the most likely actions."""
    config = PPOConfig().environment(env).env_runners(num_envs_per_env_runner=8)
    config.training(train_batch_size=80, minibatch_size=40, num_epochs=2, lr=0.01)
    config.rl_module(model_config={"fcnet_hiddens": [size]}).debugging(loggers=[], seed=4)
    config.evaluation(evaluation_config={"explore": False})
    default: dict[str, Any] = {
        "policies": {"main": None, "one": One, "zero": Zero},
        "policies_to_train": ["main"],
        "mapping": Seats("main", Draw()),
        "policy_map_capacity": 4,
    }
    return config.multi_agent(**{**default, **settings})


def test_outcomes_are_those_of_the_seats() -> None:
    """Agent a is paid for its first action, agent b for its second, 8 times each."""
    patterns = [{"a": "main", "b": "one"}, {"a": "zero", "b": "main"}]
    with make_config(mapping=patterns, policy_map_capacity=16).build() as algorithm:
        played = algorithm.evaluate(opponents=["zero", "one"], module_id="one", num_episodes=6)
        found = {
            (opponent, seat): tuple(
                cell[name] for name in ("wins", "draws", "losses", "return_mean")
            )
            for opponent, cells in played["opponents"].items()
            for seat, cell in cells.items()
        }
        assert found == {
            ("zero", "a"): (0, 6, 0, 0.0),
            ("zero", "b"): (0, 6, 0, 8.0),
            ("one", "a"): (0, 0, 6, 0.0),
            ("one", "b"): (6, 0, 0, 8.0),
        }
        cell = played["opponents"]["one"]["b"]
        assert (cell["opponent_return_mean"], cell["num_env_steps"]) == (0.0, 48)
        assert (cell["num_episodes"], cell["num_episodes_cut"]) == (6, 0)
        only = algorithm.evaluate(opponents=["one"], module_id="one", seats="b", num_episodes=6)
        assert only["opponents"] == {"one": {"b": cell}}


def test_versions_and_checkpoints_play_as_alone(tmp_path: Path) -> None:
    with make_config().build() as algorithm:
        path = algorithm.save(tmp_path)
        saved = algorithm.get_weights()["main"]
        algorithm.snapshot("main", as_="v1")
        rng = np.random.default_rng(0)
        moved = jax.tree.map(lambda x: x + rng.normal(size=x.shape).astype(np.float32), saved)
        algorithm.set_weights({"main": moved})
        algorithm.snapshot("main", as_="v2")
        before = algorithm.state
        assembly: Any = algorithm._assembly
        read, v1, now = find_opponents(assembly, before, "main", [path, "v1", "main"])
        jax.tree.map(np.testing.assert_array_equal, read.actor.params, saved)
        jax.tree.map(np.testing.assert_array_equal, read.actor.obs_state, v1.actor.obs_state)
        kernels = [jax.tree.leaves(opponent.actor.params)[1] for opponent in (read, now)]
        assert np.any(kernels[0] != kernels[1])
        names = ["v2", "zero", str(path), "v1", "main"]
        table = algorithm.evaluate(opponents=names, num_episodes=4)["opponents"]
        assert algorithm.state is before
        assert list(table) == names
        assert table["v1"] == table[str(path)]
        for name in names:
            assert (
                algorithm.evaluate(opponents=[name], num_episodes=4)["opponents"][name]
                == (table[name])
            )
        assert table["v2"]["a"]["wins"] == table["main"]["a"]["wins"]
        # The same number of other opponents is the same program.
        algorithm.evaluate(opponents=["v1"], num_episodes=4)
        names = [program.name for program in algorithm._programs]
        assert len([name for name in names if name == "evaluate_against_1"]) == 2  # v1 and zero
        np.testing.assert_equal(algorithm.get_weights(["v1"])["v1"], saved)
    refused = pytest.raises(CheckpointError, match="no opponent of the architecture of 'main'")
    with make_config(size=9).build() as algorithm, refused:
        algorithm.evaluate(opponents=[path], num_episodes=4)


@pytest.mark.slow
def test_games_end_as_they_do_one_by_one() -> None:
    config = make_config("TicTacToe-v0", policies={"main": None, "first": FirstMove})
    config.evaluation(evaluation_duration=20)
    with config.build() as algorithm:
        algorithm.train()
        table = algorithm.evaluate(opponents=["first"])["opponents"]["first"]
        names = {"won": "wins", "drawn": "draws", "lost": "losses"}
        possible = set[str]()
        for begins in (True, False):
            shares = play(
                algorithm,
                "TicTacToe-v0",
                number=2,
                begins=begins,
                policy_id="main",
                opponent=choose_first,
            )
            possible |= {names[name] for name, share in shares.items() if share}
        assert len(possible) <= 2
    for cell in table.values():
        assert {name for name in names.values() if cell[name]} <= possible
        assert sum(cell[name] for name in names.values()) == cell["num_episodes"] == 20
        assert cell["return_mean"] == (cell["wins"] - cell["losses"]) / 20


BAD: dict[str, tuple[Callable[[Algorithm], Any], str]] = {
    "no opponent": (lambda a: a.evaluate(opponents=[]), "each once, got \\[\\]"),
    "one twice": (lambda a: a.evaluate(opponents=["one", "one"]), "each once"),
    "unknown": (lambda a: a.evaluate(opponents=["onne"]), "'onne', which is no path.*Did you mean"),
    "an unknown module": (
        lambda a: a.evaluate(opponents=["one"], module_id="x"),
        "module_id='x'\\) is not there",
    ),
    "an unknown seat": (lambda a: a.evaluate(opponents=["one"], seats="c"), "seats='c' must be"),
    "no seat": (lambda a: a.evaluate(opponents=["one"], seats=[]), "seats=\\[\\] must be"),
    "seats without opponents": (lambda a: a.evaluate(seats="a"), "no effect without opponents"),
}


@pytest.fixture(scope="module")
def untrained() -> Any:
    with make_config().build() as algorithm:
        yield algorithm


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence(name: str, untrained: Algorithm) -> None:
    call, match = BAD[name]
    with pytest.raises(JaxrlError, match=match) as caught:
        call(untrained)
    assert isinstance(caught.value, ConfigError | UnknownNameError)
    assert "\n" not in str(caught.value)


def test_three_agents_have_no_two_seats() -> None:
    config = make_config(Torture, mapping={"a": "main", "b": "one", "c": "zero"})
    config.multi_agent(policy_map_capacity=16)
    with config.build() as algorithm, pytest.raises(ConfigError, match="two agents"):
        algorithm.evaluate(opponents=["one"])
