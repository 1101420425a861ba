"""Values nested too deeply are one sentence, with each version of Python."""

from collections.abc import Callable
from typing import Any

import pytest

from jaxrl import PPOConfig, choice, grid
from jaxrl.config.coerce import MAX_DEPTH, MAX_SAVED_DEPTH
from jaxrl.config.serialize import deserialize_config, serialize_config
from jaxrl.config.stop import parse_stop
from jaxrl.errors import CheckpointError, ConfigError

TOO_DEEP = "nested more than 64 levels deep, or contains itself"


def nest(depth: int, wrap: Callable[[Any], Any], inner: Any = 1) -> Any:
    for _ in range(depth):
        inner = wrap(inner)
    return inner


def contain_itself() -> Any:
    own: dict[str, Any] = {"a": 1}
    own["b"] = [own, own]
    return own


WRAPS: dict[str, Callable[[Any], Any]] = {
    "mappings": lambda x: {"a": x},
    "lists": lambda x: [x],
    "tuples": lambda x: (x,),
}


@pytest.mark.parametrize("kind", WRAPS)
def test_a_value_as_deep_as_may_be_is_saved_and_loaded(kind: str) -> None:
    config = PPOConfig().environment(env_config={"x": nest(MAX_DEPTH - 1, WRAPS[kind])})
    assert deserialize_config(serialize_config(config)).env_config == config.env_config


@pytest.mark.parametrize("depth", [MAX_DEPTH, 400, 100_000])
@pytest.mark.parametrize("kind", WRAPS)
def test_a_deeper_one_is_refused(kind: str, depth: int) -> None:
    config = PPOConfig()
    value = {"x": nest(depth, WRAPS[kind])}
    with pytest.raises(ConfigError, match=f"^env_config is {TOO_DEEP}"):
        config.environment(env_config=value)
    with pytest.raises(ConfigError, match=f"^model_config is {TOO_DEEP}"):
        config.update_from_dict({"model_config": value})
    with pytest.raises(ConfigError, match=f"^model is {TOO_DEEP}"):  # RLlib's former name
        config.update_from_dict({"model": value})
    assert config.env_config == {}


def test_a_value_that_contains_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"^env_config is {TOO_DEEP}"):
        PPOConfig().environment("CartPole-v1", env_config=contain_itself())
    with pytest.raises(ConfigError, match=f"^evaluation_config is {TOO_DEEP}"):
        PPOConfig().evaluation(evaluation_config={"env_config": contain_itself()})


def test_so_is_one_that_came_to_contain_itself() -> None:
    config = PPOConfig().environment("CartPole-v1", env_config={"x": 1})
    config.env_config["own"] = config.env_config
    with pytest.raises(ConfigError, match=f"^env_config is {TOO_DEEP}"):
        config.build()


def test_so_are_stop_criteria() -> None:
    with pytest.raises(ConfigError, match=f"^stop is {TOO_DEEP}"):
        parse_stop({"env_runners": contain_itself()})


@pytest.mark.parametrize("marker", [choice, grid])
def test_so_are_the_values_of_a_sweep(marker: Callable[[list[Any]], Any]) -> None:
    with pytest.raises(ConfigError, match=rf"^A value of \w+\(\) is {TOO_DEEP}"):
        PPOConfig().environment(env_config=marker([{"a": 1}, contain_itself()]))
    with pytest.raises(ConfigError, match=rf"^A value of \w+\(\) is {TOO_DEEP}"):
        PPOConfig().environment(env_config={"a": marker([1, contain_itself()])})


@pytest.mark.parametrize("depth", [MAX_SAVED_DEPTH, 100_000])
def test_a_saved_config_that_is_deeper_is_refused(depth: int) -> None:
    deep = nest(depth, WRAPS["lists"])
    for data in (
        deep,
        {"algo": deep, "settings": {}},
        {"algo": "PPO", "settings": deep},
        {"algo": "PPO", "settings": {"env_config": {"a": deep}}},
        {"algo": "PPO", "settings": {"lr": deep}},
    ):
        with pytest.raises(CheckpointError, match="nested more than 192 levels deep"):
            deserialize_config(data if isinstance(data, dict) else [deep])
