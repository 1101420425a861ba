"""Hyperparameters are leaves: schedules are followed, and a changed one compiles nothing."""

import dataclasses
import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl import PPOConfig
from jaxrl.algorithms.ppo import PPOTraining
from jaxrl.config.serialize import serialize_config
from jaxrl.core.hparams import ScheduleFunction, build_hparams, current_values, is_traced
from jaxrl.core.types import Counter, Progress
from jaxrl.errors import ConfigError
from jaxrl.ops.schedules import Schedule
from tests.algorithms.test_ppo import learner_and_batch
from tests.helpers import differs, small

LR = [[0, 1e-2], [300, 2e-3], [1000, 0.0]]
ENTROPY = [[0, 0.0], [600, 0.3]]


def at(steps: int) -> Progress:
    return replace(Progress.zeros(), env_steps=Counter.zeros().add(steps))


def test_numbers_become_leaves_and_none_is_left_out() -> None:
    settings = PPOTraining(lr=LR, gamma=0.9, grad_clip=None)
    leaves = build_hparams(settings)
    sweepable = {field.name for field in dataclasses.fields(settings) if is_traced(field)}
    assert leaves.keys() == sweepable - {"grad_clip", "huber_delta", "intrinsic_reward_coeff"}
    assert isinstance(leaves["lr"], Schedule)
    gamma = leaves["gamma"]
    assert isinstance(gamma, jax.Array)
    assert gamma.dtype == jnp.float32
    assert not gamma.weak_type
    assert gamma == np.float32(0.9)
    assert build_hparams(replace(settings, grad_clip=0.5))["grad_clip"] == 0.5
    assert "num_epochs" not in leaves  # shapes the program


@pytest.mark.parametrize("steps", [0, 1, 150, 300, 650, 1000, 10**6])
def test_current_values_follow_the_knots(steps: int) -> None:
    leaves = build_hparams(PPOTraining(lr=LR, entropy_coeff=0.1))
    values = jax.jit(current_values)(leaves, at(steps))
    times, knots = np.array(LR).T
    np.testing.assert_allclose(values["lr"], np.interp(steps, times, knots), rtol=1e-5)
    assert values["entropy_coeff"] == np.float32(0.1)


@pytest.mark.allow_key_reuse
def test_a_run_follows_its_schedules_and_a_changed_leaf_compiles_nothing() -> None:
    config = small(lr=LR, entropy_coeff=ENTROPY).debugging(max_retraces=0)
    with config.build() as algorithm:
        for number in range(1, 10):
            if number == 2:
                start = algorithm.get_state()
            learned = algorithm.train()["learners"]["default_policy"]
            for key, setting in (("curr_lr", LR), ("curr_entropy_coeff", ENTROPY)):
                want = np.interp(128 * number, *np.array(setting).T)
                np.testing.assert_allclose(learned[key], want, rtol=1e-4, atol=1e-8)
            if number == 2:
                followed = algorithm.get_weights()
        assert learned["curr_lr"] == 0.0

        algorithm.set_state(start)
        learner = algorithm.state.learner
        lr = learner.hparams["lr"]
        hparams = {**learner.hparams, "lr": replace(lr, values=lr.values * 0.5)}
        algorithm.state = replace(algorithm.state, learner=replace(learner, hparams=hparams))
        learned = algorithm.train()["learners"]["default_policy"]
        want = 0.5 * np.interp(256, *np.array(LR).T)
        np.testing.assert_allclose(learned["curr_lr"], want, rtol=1e-4)
        assert differs(followed, algorithm.get_weights())
        assert algorithm.train()["compile"]["train"]["num_compilations"] == 1


# --- functions as schedules ---


def halving(steps: Any) -> Any:
    return optax.exponential_decay(1e-2, transition_steps=128, decay_rate=0.5)(steps)


FUNCTIONS = {
    "constant": optax.constant_schedule(3e-4),
    "linear": optax.linear_schedule(1e-2, 0.0, 1000),
    "cosine": optax.cosine_decay_schedule(1e-2, 1000),
    "joined": optax.join_schedules(
        [optax.linear_schedule(0.0, 1e-2, 100), optax.constant_schedule(1e-2)], [100]
    ),
    "own": halving,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_the_steps_is_a_schedule(name: str) -> None:
    fn = FUNCTIONS[name]
    settings = PPOConfig().training(lr=fn).training_settings
    leaves = build_hparams(settings)
    assert isinstance(leaves["lr"], ScheduleFunction)
    assert jax.tree.leaves(leaves["lr"]) == []
    for steps in (0, 60, 100, 128, 700, 5000):
        value = jax.jit(current_values)(leaves, at(steps))["lr"]
        assert value.dtype == jnp.float32
        np.testing.assert_allclose(value, fn(steps), rtol=1e-5, atol=1e-9)


def test_updates_follow_a_function_and_it_is_saved_by_its_path() -> None:
    learner, state, batch = learner_and_batch(lr=halving, optimizer="sgd")
    update = jax.jit(learner.update)
    steps = []
    for count in (0, 128, 384):
        after, _ = update(state, batch, at(count), jax.random.key(1))
        bias = "pi_head", "out", "bias"
        moved = [s.sgd.params[bias[0]][bias[1]][bias[2]] for s in (state, after)]
        steps.append(np.asarray(moved[1] - moved[0], np.float64))
    assert np.abs(steps[0]).max() > 1e-5
    np.testing.assert_allclose(steps[1], steps[0] / 2, rtol=1e-2, atol=1e-7)
    np.testing.assert_allclose(steps[2], steps[0] / 8, rtol=1e-2, atol=1e-7)
    saved = serialize_config(small(lr=math.sqrt))["settings"]["lr"]  # a function of a module
    assert saved == {"__import__": "math:sqrt"}


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda: 1e-3, ["lr is", "cannot be traced", "[[timestep, value], ...]"]),
        (lambda steps: 1e-3 if steps > 5 else 0.0, ["cannot be traced", "jax.numpy"]),
        (lambda steps: jnp.ones(3), ["array of shape (3,)", "a single number"]),
    ],
)
def test_functions_that_are_no_schedules_are_refused(fn: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        build_hparams(PPOTraining(lr=fn))
    for word in words:
        assert word in str(caught.value)
