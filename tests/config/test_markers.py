"""Ray Tune's markers pass through a config to Tune, and no further."""

import subprocess
import sys
from typing import Any

import pytest

from jaxrl import JaxrlError, PPOConfig
from jaxrl.config.markers import contains_tune_marker, is_tune_marker
from jaxrl.errors import ConfigError

GRID = {"grid_search": [1e-3, 1e-4]}


def test_setters_take_markers_of_any_type() -> None:
    config = PPOConfig().training(lr=GRID, num_epochs={"grid_search": ["no", "check"]})
    config.rl_module(model_config={"fcnet_hiddens": {"grid_search": [[8], [16]]}})
    data = config.to_dict()
    assert data["lr"] == GRID
    assert data["model_config"] == {"fcnet_hiddens": {"grid_search": [[8], [16]]}}
    assert set(data["explicit_settings"]) == {"lr", "num_epochs", "model_config"}
    assert PPOConfig.from_dict(data).to_dict() == data
    assert PPOConfig.from_dict({**data, "lr": 0.5, "num_epochs": 2}).lr == 0.5


@pytest.mark.parametrize("name", ["lr", "train_batch_size", "env_config"])
def test_markers_are_refused_where_a_value_is_needed(name: str) -> None:
    config = PPOConfig().environment("CartPole-v1")
    config.update_from_dict({name: {"a": GRID} if name == "env_config" else GRID})
    for use in (config.validate, config.plan):
        with pytest.raises(ConfigError, match=f"{name} is swept") as caught:
            use()
        assert "0.0001" in str(caught.value)
        assert "tune.Tuner(" in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [{"grid_search": 1}, {"grid_search": [1], "b": 2}, {}, [], [1, (2, {"a": 3})], None, "uniform"],
)
def test_what_is_no_marker(value: Any) -> None:
    assert not is_tune_marker(value)
    assert not contains_tune_marker(value)


def test_other_wrong_values_are_still_refused() -> None:
    with pytest.raises(JaxrlError, match="lr must be"):
        PPOConfig().training(lr={"grid": [1]})


def test_domains_are_recognised_without_importing_ray() -> None:
    """In a process of its own, since Ray must not be imported here."""
    code = """
import sys
from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.config.markers import contains_tune_marker, is_tune_marker
PPOConfig().training(lr={"grid_search": [1]})
assert "ray" not in sys.modules
from ray import tune
for domain in (tune.uniform(0, 1), tune.choice([1, 2]), tune.sample_from(lambda spec: 1),
               tune.qloguniform(1e-4, 1e-1, 1e-4), tune.grid_search([1, 2])):
    assert is_tune_marker(domain)
    assert contains_tune_marker([{"a": domain}])
config = PPOConfig().training(lr=tune.loguniform(1e-5, 1e-2))
assert config.to_dict()["lr"] is config.lr
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
