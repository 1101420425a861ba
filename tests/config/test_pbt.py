"""Values that `sweep(scheduler=...)` takes, and those it refuses before anything is built."""

import json
from typing import Any

import pytest
import yaml

from jaxrl import (
    DQNConfig,
    JaxrlError,
    PopulationBasedTraining,
    PPOConfig,
    choice,
    grid,
    loguniform,
    uniform,
)
from jaxrl.config.load import experiment_from_dict
from jaxrl.config.markers import Marker
from jaxrl.config.pbt import make_scheduler
from jaxrl.config.serialize import deserialize_config, serialize_config
from jaxrl.config.sweep import get_mutations, is_sweep, make_lanes
from jaxrl.errors import ConfigError

tune: Any = pytest.importorskip("ray.tune")
RATES = loguniform(1e-5, 1e-2)


def swept(mutations: Any = None, seeds: Any = 4, **arguments: Any) -> Any:
    mutations = {"lr": RATES} if mutations is None else mutations
    scheduler = PopulationBasedTraining(hyperparam_mutations=mutations, **arguments)
    return PPOConfig().environment("CartPole-v1").sweep(seeds=seeds, scheduler=scheduler)


def test_names_and_defaults_are_rays() -> None:
    ours = PopulationBasedTraining(hyperparam_mutations={"lr": [1e-3, 1e-4]})
    theirs: Any = tune.schedulers.PopulationBasedTraining(hyperparam_mutations={"lr": [1e-3, 1e-4]})
    for name in ("quantile_fraction", "resample_probability", "perturbation_factors"):
        assert getattr(ours, name) == getattr(theirs, f"_{name}")
    assert ours.burn_in_period == theirs._burn_in_period == 0
    assert ours.time_attr == "training_iteration"


def test_distributions_are_ours_and_rays() -> None:
    mutations = {
        "lr": tune.loguniform(1e-5, 1e-2),
        "gamma": tune.uniform(0.9, 0.999),
        "clip_param": tune.choice([0.1, 0.2]),
        "entropy_coeff": (0, 0.01),
        "lambda": choice([0.9, 1]),
        "vf_loss_coeff": {"uniform": [0.5, 1]},
    }
    assert get_mutations(swept(mutations)) == {
        "lr": Marker("loguniform", (1e-5, 1e-2)),
        "gamma": Marker("uniform", (0.9, 0.999)),
        "clip_param": Marker("choice", (0.1, 0.2)),
        "entropy_coeff": Marker("choice", (0.0, 0.01)),
        "lambda_": Marker("choice", (0.9, 1.0)),
        "vf_loss_coeff": Marker("uniform", (0.5, 1.0)),
    }


def test_a_dictionary_and_a_file_say_the_same() -> None:
    arguments = {"hyperparam_mutations": {"lr": RATES}, "perturbation_interval": 3, "mode": "min"}
    config = PPOConfig().environment("CartPole-v1").sweep(seeds=2, scheduler=arguments)
    want = PopulationBasedTraining(**arguments)
    assert make_scheduler(config.sweep_settings.scheduler) == want
    assert is_sweep(config)
    body = {
        "run": "PPO",
        "env": "CartPole-v1",
        "sweep": {
            "seeds": 2,
            "max_lanes_per_program": 1,
            "scheduler": {
                "hyperparam_mutations": {"lr": {"loguniform": [1e-5, 1e-2]}},
                "perturbation_interval": 3,
                "mode": "min",
            },
        },
    }
    experiment = experiment_from_dict("it", yaml.safe_load(yaml.safe_dump(body)))
    assert experiment.config.scheduler == want
    assert experiment.config.max_lanes_per_program == 1
    again = deserialize_config(json.loads(json.dumps(serialize_config(experiment.config))))
    assert again.scheduler == want


def test_first_values_are_drawn_unless_they_are_set() -> None:
    config = swept(seeds=None)
    config.sweep(num_samples=5)
    lanes = make_lanes(config)
    assert len({lane.config.lr for lane in lanes}) == 5
    assert all(1e-5 <= lane.values["lr"] <= 1e-2 for lane in lanes)
    assert all(lane.config.scheduler is None for lane in lanes)
    assert {lane.config.lr for lane in make_lanes(swept().training(lr=3e-4))} == {3e-4}
    both = make_lanes(swept().training(lr=grid([1.0, 2.0])))
    assert [lane.config.lr for lane in both] == [1.0] * 4 + [2.0] * 4


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PopulationBasedTraining(), ["hyperparam_mutations must map", "None"]),
        (lambda: swept({}), ["hyperparam_mutations must map", "{}"]),
        (lambda: swept({"lr": 3.0}), ["hyperparam_mutations['lr']", "3.0"]),
        (lambda: swept({"lr": lambda: 3.0}), ["hyperparam_mutations['lr']", "function"]),
        (lambda: swept({"lr": tune.randint(1, 3)}), ["hyperparam_mutations['lr']"]),
        (lambda: swept(quantile_fraction=0), ["quantile_fraction", "above 0", "at most 0.5", "0"]),
        (lambda: swept(quantile_fraction=0.6), ["quantile_fraction", "0.6"]),
        (lambda: swept(resample_probability=1.5), ["resample_probability", "1.5"]),
        (lambda: swept(perturbation_interval=0), ["perturbation_interval", "above 0"]),
        (lambda: swept(burn_in_period=-1), ["burn_in_period", "at least 0", "-1"]),
        (lambda: swept(perturbation_factors=(1.2, 0)), ["perturbation_factors", "(1.2, 0)"]),
        (lambda: swept(metric=5), ["metric must be a result key", "5"]),
        (lambda: swept(time_attr=["a"]), ["time_attr must be a result key", "['a']"]),
        (lambda: swept(mode="best"), ["mode must be 'max' or 'min'", "'best'"]),
        (lambda: swept(time_attr="time_total_s"), ["time_attr must be", "'time_total_s'"]),
        (lambda: swept(metric="env_runners/returns"), ["'env_runners/returns'", "Did you mean"]),
        (lambda: swept(quantile=0.2), ["'quantile'", "Did you mean 'quantile_fraction'"]),
        (lambda: swept(synch=False), ["synch must be True", "False"]),
        (lambda: swept(custom_explore_fn=print), ["custom_explore_fn must be None"]),
        (lambda: get_mutations(swept({"lrr": [1.0]})), ["'lrr'", "Did you mean 'lr'"]),
        (
            lambda: get_mutations(swept({"num_epochs": [1, 2]})),
            ["cannot change num_epochs", "clip_param"],
        ),
        (lambda: get_mutations(swept({"use_kl_loss": [True]})), ["cannot change use_kl_loss"]),
        (
            lambda: get_mutations(swept({"model_config": [{"fcnet_hiddens": [8]}]})),
            ["cannot change model_config"],
        ),
        (lambda: get_mutations(swept({"gamma": uniform(0.9, 2.0)})), ["gamma must be", "2.0"]),
        (lambda: get_mutations(swept({"lr": ["fast"]})), ["lr must be", "'fast'"]),
        (lambda: get_mutations(swept({"lr": [[[0, 1.0]]]})), ["lr", "numbers"]),
        (lambda: swept().sweep(scheduler="pbt"), ["scheduler must be", "'pbt'"]),
        (lambda: swept().sweep(max_lanes_per_program=0), ["max_lanes_per_program"]),
        (lambda: make_lanes(swept().sweep(scheduler=grid([None]))), ["scheduler cannot vary"]),
        (lambda: swept().validate(), ["sweep(scheduler=...)", "build()"]),
        (lambda: swept(seeds=1).build(), ["compares lanes", "seeds=8"]),
        (lambda: swept({"kl_coeff": RATES}).build(), ["cannot change kl_coeff", "initial value"]),
        (
            lambda: swept({"grad_clip": RATES}).training(grad_clip=None).build(),
            ["grad_clip", "None"],
        ),
        (
            lambda: swept().training(lr=[[0, 1e-3], [9, 0.0]]).build(),
            ["cannot change lr", "schedule"],
        ),
        (
            lambda: swept().environment(env_config={"gravity": grid([9.0, 10.0])}).build(),
            ["env_config.gravity cannot be swept with a scheduler"],
        ),
        (
            lambda: swept().training(num_epochs=grid([1, 2])).build(),
            ["num_epochs cannot be swept with a scheduler"],
        ),
        (
            lambda: swept().training(grad_clip=grid([None, 1.0])).build(),
            ["2 different programs", "grad_clip"],
        ),
        (
            lambda: swept(metric="evaluation/env_runners/episode_return_mean").build(),
            ["metric='evaluation", "evaluation_interval"],
        ),
        (lambda: DQNConfig().sweep(scheduler={"lr": RATES, "seeds": 2}).build(), ["'lr'"]),
    ],
)
def test_bad_input_is_one_sentence(make: Any, words: list[str]) -> None:
    with pytest.raises(JaxrlError) as error:
        make()
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)
    assert isinstance(error.value, ConfigError | JaxrlError)
