"""Markers for values to try, and the lanes that they make."""

import math
from typing import Any

import numpy as np
import pytest

from jaxrl import JaxrlError, PPOConfig, choice, grid, loguniform, uniform
from jaxrl.config.load import experiment_from_dict
from jaxrl.config.sweep import is_sweep, make_lanes
from jaxrl.errors import ConfigError


def swept(**training: Any) -> PPOConfig:
    return PPOConfig().environment("CartPole-v1").training(**training)


def test_lanes_are_ordered_by_point_and_then_by_seed() -> None:
    config = swept(lr=grid([1e-3, 1e-4]), gamma=grid([0.9, 0.99])).sweep(seeds=2)
    lanes = make_lanes(config.debugging(seed=5))
    assert [lane.index for lane in lanes] == list(range(8))
    assert [(lane.point, lane.seed) for lane in lanes] == [(p, s) for p in range(4) for s in (5, 6)]
    values = [(lane.values["gamma"], lane.values["lr"]) for lane in lanes[::2]]
    assert sorted(values) == [(0.9, 1e-4), (0.9, 1e-3), (0.99, 1e-4), (0.99, 1e-3)]
    for lane in lanes:
        assert (lane.config.lr, lane.config.gamma) == (lane.values["lr"], lane.values["gamma"])
        assert lane.config.seed == lane.seed
        assert not is_sweep(lane.config)
        lane.config.validate()


def test_explaining_a_sweep_names_its_lanes() -> None:
    text = swept(lr=grid([1e-3, 1e-4])).sweep(seeds=1).explain()
    assert "lane 0: seed 0, lr=0.001\nlane 1: seed 0, lr=0.0001\n" in text
    assert "PPOConfig" in text


def test_seeds_may_be_listed() -> None:
    assert [lane.seed for lane in make_lanes(swept().sweep(seeds=[7, 3]))] == [7, 3]
    assert is_sweep(swept().sweep(seeds=1))
    assert not is_sweep(swept())


def test_samples_are_drawn_from_the_seed() -> None:
    config = swept(
        lr=loguniform(1e-5, 1e-2), entropy_coeff=uniform(0, 0.02), num_epochs=grid([1, 2])
    )
    config.training(clip_param=choice([0.1, 0.2])).sweep(num_samples=50)
    lanes = make_lanes(config)
    assert len(lanes) == 100
    assert [x.values for x in lanes] == [x.values for x in make_lanes(config)]
    other = make_lanes(config.copy().debugging(seed=1))
    assert lanes[0].values != other[0].values
    for pair in np.arange(100).reshape(50, 2):
        first, second = (lanes[i].values for i in pair)
        assert {**first, "num_epochs": 0} == {**second, "num_epochs": 0}
    logs = [math.log10(lane.values["lr"]) for lane in lanes]
    assert min(logs) >= -5.0
    assert max(logs) <= -2.0
    assert abs(np.mean(logs) + 3.5) < 0.4
    assert {lane.values["clip_param"] for lane in lanes} == {0.1, 0.2}
    assert len({lane.values["entropy_coeff"] for lane in lanes}) == 50


def test_values_inside_dictionaries() -> None:
    config = swept().rl_module(model_config={"fcnet_hiddens": grid([[8], [16]])})
    config.environment(env_config={"gravity": uniform(9.0, 10.0)})
    lanes = make_lanes(config)
    assert [x.config.model_config for x in lanes] == [
        {"fcnet_hiddens": [8]},
        {"fcnet_hiddens": [16]},
    ]
    assert set(lanes[0].values) == {"env_config.gravity", "model_config.fcnet_hiddens"}
    assert 9.0 <= lanes[0].config.env_config["gravity"] <= 10.0


def test_values_inside_lists() -> None:
    stages = [{"task": {"gravity": grid([1.0, 2.0])}, "until": 5}, {"task": {}}]
    config = swept().environment(
        curriculum=stages, env_config={"sizes": (3, {"grid_search": [4, 5]})}
    )
    assert is_sweep(config)
    lanes = make_lanes(config)
    assert [lane.values for lane in lanes] == [
        {"env_config.sizes.1": size, "curriculum.0.task.gravity": gravity}
        for size in (4, 5)
        for gravity in (1.0, 2.0)
    ]
    assert lanes[1].config.env_config == {"sizes": (3, 4)}
    assert lanes[1].config.curriculum == [{"task": {"gravity": 2.0}, "until": 5}, {"task": {}}]
    assert stages[0]["task"]["gravity"] == grid([1.0, 2.0])  # pyright: ignore[reportIndexIssue]


def test_values_may_be_numpys() -> None:
    assert make_lanes(swept(lr=grid(np.array([0.5, 0.25]))))[1].values == {"lr": 0.25}
    assert [x.config.num_epochs for x in make_lanes(swept(num_epochs=grid(range(1, 3))))] == [1, 2]
    assert loguniform(np.float32(0.5), np.int64(2)) == loguniform(0.5, 2)


def test_rays_grid_search_is_a_grid() -> None:
    lanes = make_lanes(swept(lr={"grid_search": [1e-3, 1e-4]}))
    assert [lane.config.lr for lane in lanes] == [1e-3, 1e-4]


def test_a_file_has_a_section_of_its_own() -> None:
    body = {
        "run": "PPO",
        "env": "CartPole-v1",
        "config": {"env_config": {"length": 0.5}},
        "sweep": {
            "seeds": 2,
            "num_samples": 3,
            "lr": [1.0e-3, 3.0e-4],
            "env_config.gravity": {"uniform": [9, 10]},
        },
    }
    lanes = make_lanes(experiment_from_dict("it", body).config)
    assert len(lanes) == 2 * 2 * 3
    assert all(lane.config.env_config["length"] == 0.5 for lane in lanes)
    assert len({lane.config.env_config["gravity"] for lane in lanes}) == 3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: grid([]), ["grid()", "[]"]),
        (lambda: grid(3), ["grid()", "got 3"]),
        (lambda: swept(num_epochs=uniform(1, 4)), ["num_epochs", "whole", "choice([...])"]),
        (lambda: swept(num_epochs=uniform(1.5, 4)), ["num_epochs", "whole", "choice([...])"]),
        (lambda: grid(np.zeros(())), ["grid()", "array(0.)"]),
        (lambda: grid([{"a": choice([1, 2])}]), ["grid()", "choice([1, 2])", "one list"]),
        (lambda: from_file({"scheduler": {1: 2}}), ["no argument '1'"]),
        (lambda: from_file({1: [2]}), ["no setting '1'"]),
        (lambda: from_file({"lr.x": [3]}), ["'lr.x'", "dictionary", "5e-05"]),
        (lambda: uniform(2.0, 1.0), ["uniform()", "[2.0, 1.0]"]),
        (lambda: loguniform(0.0, 1.0), ["loguniform()", "above 0", "[0.0, 1.0]"]),
        (lambda: swept(lr=grid([1e-3, "fast"])), ["lr must be", "'fast'"]),
        (lambda: swept(gamma=uniform(0.9, 1.5)), ["gamma must be between 0 and 1", "1.5"]),
        (lambda: swept(lr=grid([1e-3])).validate(), ["lr is swept", "build()"]),
        (lambda: swept(lr=grid([1e-3])).plan(), ["lr is swept"]),
        (lambda: swept().sweep(seeds=0), ["seeds must be at least 1", "got 0"]),
        (lambda: swept().sweep(seeds=[1, 1]), ["seeds must be", "[1, 1]"]),
        (lambda: swept().sweep(num_samples=3).build(), ["num_samples=3", "uniform()"]),
        (
            lambda: make_lanes(swept(lr=grid([1])).sweep(num_samples=2)),
            ["num_samples=2", "uniform()"],
        ),
        (
            lambda: make_lanes(swept().debugging(seed=grid([1, 2]))),
            ["seed cannot vary", "sweep(seeds=...)"],
        ),
        (
            lambda: make_lanes(swept().reporting(log_gradients=grid([True, False]))),
            ["log_gradients cannot vary", "whole sweep"],
        ),
        (lambda: from_file({"lr": 3}), ["sweep has lr: 3", "uniform"]),
        (lambda: from_file({"lrr": [3]}), ["'lrr'", "Did you mean 'lr'"]),
        (lambda: from_file([1]), ["sweep must map settings", "[1]"]),
    ],
)
def test_bad_input_is_one_sentence(make: Any, words: list[str]) -> None:
    with pytest.raises(JaxrlError) as error:
        make()
    assert isinstance(error.value, ConfigError | JaxrlError)
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def from_file(sweep: Any) -> None:
    experiment_from_dict("it", {"run": "PPO", "env": "CartPole-v1", "sweep": sweep})
