"""Connectors that do not do what they declare: one sentence each, before anything is compiled."""

from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.assembly.assemble import assemble
from jaxrl.connectors import (
    ActionConnector,
    LearnerConnector,
    ObservationConnector,
    TemporalConnector,
)
from jaxrl.connectors.checks import check_observation_pipeline
from jaxrl.core.struct import replace
from jaxrl.errors import ConfigError
from tests.helpers import observation_pipeline, small

PAIR = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Observes(ObservationConnector):
    """A connector that the cases below change."""

    def __call__(self, state: Any, obs: Any) -> Any:
        return obs


class Lengthens(Observes):
    def __call__(self, state: Any, obs: Any) -> Any:
        return jnp.concatenate([obs, obs], axis=-1)


class Halves(Observes):
    def __call__(self, state: Any, obs: Any) -> Any:
        return obs.astype(jnp.float16)


class OneAxis(Observes):
    """It forgets that a rollout has two leading axes."""

    def __call__(self, state: Any, obs: Any) -> Any:
        return jnp.concatenate([obs[:, :2], obs[:, 2:]], axis=1).reshape(obs.shape[0], -1)


class WithNumPy(Observes):
    def __call__(self, state: Any, obs: Any) -> Any:
        return np.clip(np.asarray(obs), -1.0, 1.0)


class Branches(Observes):
    def __call__(self, state: Any, obs: Any) -> Any:
        return obs if obs.sum() > 0 else -obs


class Fails(Observes):
    def __call__(self, state: Any, obs: Any) -> Any:
        raise ZeroDivisionError("nobody expects it")


class Abstract(ObservationConnector):
    """Defines nothing."""


class Grows(Observes):
    def init(self, space: gymnasium.Space[Any]) -> Any:
        return jnp.zeros((2,))

    def update(self, state: Any, obs: Any, mask: Any, axis_name: Any) -> Any:
        return jnp.zeros((3,))


class Weak(Observes):
    def init(self, space: gymnasium.Space[Any]) -> Any:
        return jnp.asarray(1.0) * 2.0 if space is None else _weak()


def _weak() -> Any:
    return jnp.where(True, 0.0, 1.0)


class Remembers(TemporalConnector):
    """A connector that the cases below change."""

    def init_carry(self, space: gymnasium.Space[Any], num_envs: int) -> Any:
        return jnp.zeros((num_envs,))

    def step(self, state: Any, carry: Any, obs: Any, before: Any) -> Any:
        return carry, obs


class ForgetsTheCarry(Remembers):
    def step(self, state: Any, carry: Any, obs: Any, before: Any) -> Any:
        return obs


class ChangesTheCarry(Remembers):
    def step(self, state: Any, carry: Any, obs: Any, before: Any) -> Any:
        return obs[:, 0].astype(jnp.int32), obs


class OneForAll(Remembers):
    def init_carry(self, space: gymnasium.Space[Any], num_envs: int) -> Any:
        return jnp.zeros((1,))


class LengthensLater(Remembers):
    def step(self, state: Any, carry: Any, obs: Any, before: Any) -> Any:
        return carry, jnp.concatenate([obs, before.reward[:, None]], axis=-1)


class Acts(ActionConnector):
    """A torque of the wrong shape."""

    def __call__(self, action: Any) -> Any:
        return action[..., 0]


class Learns(LearnerConnector):
    """Half a rollout."""

    def __call__(self, state: Any, per_env: Any, rollout: Any, axis_name: Any) -> Any:
        return state, per_env, replace(rollout, reward=rollout.reward[:4])


class LearnsNothing(LearnerConnector):
    def __call__(self, state: Any, per_env: Any, rollout: Any, axis_name: Any) -> Any:
        return rollout


@pytest.mark.parametrize(
    ("connector", "words"),
    [
        (
            Lengthens(),
            ["Lengthens must return float32[3, 4]", "output_space is Box", "float32[3, 8]"],
        ),
        (Halves(), ["float32[3, 4]", "returns float16[3, 4]"]),
        (OneAxis(), ["OneAxis", "float32[2, 3, 4]", "shape (2, 3)"]),
        (WithNumPy(), ["WithNumPy", "cannot be compiled", "NumPy", "jnp.where", "wrap the env"]),
        (Branches(), ["Branches", "cannot be compiled", "`if`"]),
        (Fails(), ["Fails (with observations of Box", "ZeroDivisionError: nobody expects it"]),
        (Abstract(), ["Abstract", "does not define __call__"]),
        (Grows(), ["Grows.update", "the statistics of init", "float32[2]", "float32[3]"]),
        (Weak(), ["Weak.init", "weakly typed float32"]),
        (ForgetsTheCarry(), ["ForgetsTheCarry.step must return (carry, obs)"]),
        (ChangesTheCarry(), ["ChangesTheCarry.step", "init_carry", "float32[3]", "int32[3]"]),
        (OneForAll(), ["OneForAll.init_carry", "leading axis", "shape (1,)"]),
        (LengthensLater(), ["LengthensLater must return float32[3, 4]", "float32[3, 5]"]),
    ],
)
def test_observation_connectors_are_held_to_what_they_declare(
    connector: Any, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        assemble(small().env_runners(env_to_module_connector=lambda: connector))
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("connector", "words"),
    [
        (Acts(), ["Acts must return float32[3, 1]", "float32[3]", "module_space"]),
        (WithNumPy(), ["expected ActionConnectors, got WithNumPy"]),
    ],
)
def test_action_connectors_are_held_to_what_they_declare(connector: Any, words: list[str]) -> None:
    config = small(env="Pendulum-v1").env_runners(module_to_env_connector=lambda: connector)
    with pytest.raises(ConfigError) as caught:
        assemble(config)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("connector", "words"),
    [
        (Learns(), ["Learns must keep", "the rollout that it got", "float32[4, 16]"]),
        (LearnsNothing(), ["LearnsNothing must return (state, per_env, rollout)"]),
    ],
)
def test_learner_connectors_are_held_to_what_they_got(connector: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        assemble(small().learners(learner_connector=lambda: connector))
    for word in words:
        assert word in str(caught.value)


def test_any_integer_is_one_of_a_discrete_space() -> None:
    class Bits(Observes):
        def output_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
            return spaces.Dict({"bits": spaces.MultiBinary(2), "sign": spaces.Discrete(2)})

        def __call__(self, state: Any, obs: Any) -> Any:
            return {"bits": obs > 0, "sign": (obs[..., 0] > 0).astype(jnp.uint8)}

    pipeline = observation_pipeline(PAIR, extra=(Bits(),), flatten=True)
    check_observation_pipeline(pipeline, spaces.Discrete(2))
    assert pipeline.names == ("Bits", "FlattenObservations")
    out = pipeline(pipeline.init(), jnp.array([[0.5, -0.5]]))
    np.testing.assert_array_equal(out, [[1.0, 0.0, 0.0, 1.0]])


# --- what gymnasium's environments give ---

CASES: dict[str, tuple[Any, Any, Any]] = {
    "float64": (spaces.Box(-1.0, 1.0, (2,), np.float64), np.array([[0.25, -1.0]]), [0.25, -1.0]),
    "int64": (spaces.Box(-9, 9, (2,), np.int64), np.array([[3, -9]]), [3.0, -9.0]),
    "uint8": (spaces.Box(0, 255, (2,), np.uint8), np.array([[255, 1]], np.uint8), [255.0, 1.0]),
    "bool": (spaces.Box(0, 1, (2,), np.bool_), np.array([[True, False]]), [1.0, 0.0]),
    "matrix": (
        spaces.Box(-1, 1, (2, 2), np.float64),
        np.array([[[0, 1], [0.5, 1]]]),
        [0, 1, 0.5, 1],
    ),
    "scalar": (spaces.Box(-1, 1, (), np.float32), np.array([0.5], np.float32), [0.5]),
    "discrete": (spaces.Discrete(3, start=-1), np.array([1]), [0, 0, 1]),
    "several": (spaces.MultiDiscrete([2, 3], start=[1, -1]), np.array([[2, -1]]), [0, 1, 1, 0, 0]),
    "bits": (spaces.MultiBinary([2, 2]), np.array([[[1, 0], [1, 1]]], np.int8), [1, 0, 1, 1]),
}


@pytest.mark.parametrize("name", list(CASES))
def test_every_dtype_comes_out_as_float32(name: str) -> None:
    space, obs, want = CASES[name]
    pipeline = observation_pipeline(space)
    check_observation_pipeline(pipeline, spaces.Discrete(2))
    out = pipeline(pipeline.init(), jnp.asarray(obs))
    assert out.dtype == jnp.float32
    np.testing.assert_array_equal(out, np.array([want], np.float32))


def test_nested_spaces_come_out_as_gymnasium_flattens_them() -> None:
    names = list(CASES)
    space = spaces.Dict(
        {
            "z": spaces.Tuple([CASES[name][0] for name in names[:5]]),
            "a": spaces.Dict({name: CASES[name][0] for name in names[5:]}),
        }
    )
    pipeline = observation_pipeline(space, "MeanStdFilter", flatten=True)
    check_observation_pipeline(pipeline, spaces.Discrete(2))
    obs = {
        "z": tuple(jnp.asarray(CASES[name][1]) for name in names[:5]),
        "a": {name: jnp.asarray(CASES[name][1]) for name in names[5:]},
    }
    flat = pipeline["FlattenObservations"]((), obs)
    host = {
        "z": tuple(CASES[name][1][0] for name in names[:5]),
        "a": {name: CASES[name][1][0] for name in names[5:]},
    }
    np.testing.assert_allclose(flat[0], spaces.flatten(space, host))


def test_images_keep_the_types_that_the_module_takes() -> None:
    for given, seen in ((np.uint8, np.uint8), (np.float64, np.float32), (np.int64, np.int32)):
        space = spaces.Box(0, 9, (4, 4, 1), given)
        pipeline = observation_pipeline(space)
        assert len(pipeline) == 0
        assert pipeline(pipeline.init(), jnp.asarray(np.ones((2, 4, 4, 1), given))).dtype == seen
