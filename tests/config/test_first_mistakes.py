"""Mistakes of a first script: each is answered by what to write."""

import importlib
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import Callbacks, JaxrlError, PPOConfig, TimeStep
from jaxrl.assembly.pipelines import make_action_pipeline
from jaxrl.callbacks import CallbackList
from jaxrl.cli.experiments import parse_steps
from jaxrl.cli.training import raise_if_reached
from jaxrl.config.stop import parse_stop
from jaxrl.connectors import ClipActions
from jaxrl.core import types
from jaxrl.envs import make


class NeedsNumber(Callbacks):
    def __init__(self, number: int) -> None:
        self.number = number


class OldEnv:
    def reset(self) -> int:
        return 0


def unmade(env: Any) -> Callable[[], Any]:
    return lambda: make(env)


def listen(callbacks: Any) -> Callable[[], Any]:
    return lambda: CallbackList(PPOConfig().callbacks(callbacks).callbacks_settings)


def raise_if_done(sentence: str) -> None:
    folder: Any = SimpleNamespace(name="run1")
    raise_if_reached(folder, sentence, 3)


def connect(connector: Any) -> None:
    config = PPOConfig().env_runners(module_to_env_connector=connector)
    make_action_pipeline(config, make("Pendulum-v1").spaces[1])


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "values": (lambda: PPOConfig().training(lr=[1e-3, 1e-4]), "is grid([0.001, 0.0001])."),
    "constructor": (lambda: PPOConfig(lr=1e-3), "write PPOConfig().training(lr=...)."),
    "gae": (lambda: PPOConfig().training(use_gae=False), "lambda_=1.0 makes them plain returns"),
    "hook": (listen(lambda **_: None), "one hook is callbacks(on_train_result=...)"),
    "arguments": (listen(NeedsNumber), "lambda: NeedsNumber(...)"),
    "connector": (lambda: connect(ClipActions()), "pass the class, or lambda: ClipActions(...)"),
    "connectors": (lambda: connect([ClipActions()]), "lambda: [...]"),
    "case": (unmade("cartpole"), "Did you mean 'CartPole-v1'?"),
    "package": (unmade("MinAtar/Breakout-v1"), "Did you mean 'Breakout-MinAtar'?"),
    "prefix": (unmade("jaxrl:nope"), "jaxrl has no environment 'jaxrl:nope'. See 'jaxrl list"),
    "old env": (unmade(lambda _: OldEnv()), "shimmy wraps the old gym API"),
    "stop": (lambda: parse_stop({"training_iteration": -1}), "at least 0"),
    "done": (
        lambda: raise_if_done("num_env_steps_sampled_lifetime = 512 has reached 500"),
        "--steps 1024.",
    ),
    "done by iterations": (lambda: raise_if_done("training_iteration = 3 has reached 3"), "103}'."),
    "steps": (lambda: parse_steps("-5"), "a whole number above 0, such as"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_answered_by_what_to_write(name: str) -> None:
    wrong, message = CASES[name]
    with pytest.raises(JaxrlError, match=re.escape(message)):
        wrong()


@pytest.mark.parametrize(
    "value", [jnp.float32(0.5), jnp.asarray(0.5), np.array(0.5), np.float32(0.5)]
)
def test_numbers_of_jax_and_numpy_are_numbers(value: object) -> None:
    lr = PPOConfig().training(lr=value).training_settings.lr
    assert type(lr) is float
    assert lr == 0.5


def test_names_are_found_where_they_are_looked_for() -> None:
    assert TimeStep is types.TimeStep
    algorithms = importlib.import_module("jaxrl.algorithms")
    with pytest.raises(ImportError, match="import PPOConfig, whose build"):
        _ = algorithms.PPO
    with pytest.raises(ImportError, match="AlphaStarConfig has no counterpart"):
        _ = importlib.import_module("jaxrl.algorithms.alpha_star").AlphaStarConfig
