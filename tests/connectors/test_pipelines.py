"""Connectors on their way through a run: the filter, and ones of the user's own."""

from collections.abc import Iterator
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.assembly.assemble import assemble
from jaxrl.connectors import ActionConnector, LearnerConnector, ObservationConnector
from jaxrl.connectors.observations import flatten
from jaxrl.core.types import Columns
from jaxrl.errors import ConfigError, JaxrlError, SpaceError
from tests.helpers import assert_equal, observation_pipeline, small


@pytest.mark.allow_key_reuse
def test_the_filter_stands_still_during_a_rollout_and_learns_after_it() -> None:
    assembly = assemble(small().env_runners(observation_filter="MeanStdFilter"))
    runner, sampler = assembly.run, assembly.rollout_worker
    state = jax.jit(runner.init)(jax.random.key(0), assembly.made.params)
    step = jax.jit(runner.step)

    @jax.jit
    def rollout_of(s: Any) -> Any:
        return sampler.rollout(
            runner.make_actor_state(s), s.env, s.carry, s.env_params, assembly.train_step.num_steps
        )[2]

    assert state.connectors.obs[0].count == 0
    seen = np.zeros((0, 4))
    for _ in range(3):
        raw = rollout_of(state)
        frozen = obs = np.asarray(raw.obs, np.float64)
        if len(seen):
            frozen = np.clip((obs - seen.mean(0)) / seen.std(0, ddof=1), -10.0, 10.0)
        observed = sampler.preprocess_rollout(state.connectors.obs, raw).obs
        np.testing.assert_allclose(observed, frozen, rtol=2e-3, atol=2e-3)
        out = assembly.module.forward_train(state.learner.sgd.params, {"obs": observed})
        np.testing.assert_allclose(  # every step of the rollout was acted on through it
            raw.extras[Columns.ACTION_DIST_INPUTS], out[Columns.ACTION_DIST_INPUTS], atol=1e-5
        )
        seen = np.concatenate([seen, obs.reshape(-1, 4)])
        state, _ = step(state)
        moments = state.connectors.obs[0]
        assert moments.count == len(seen)
        np.testing.assert_allclose(moments.mean, seen.mean(0), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(moments.std(), seen.std(0, ddof=1), rtol=1e-4)


# --- the user's own ---


class Mirror(ObservationConnector):
    """The observation's negative, and a constant beside it."""

    def output_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        return spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __call__(self, state: Any, obs: Any) -> Any:
        return jnp.concatenate([-obs, jnp.full_like(obs, 0.5)], axis=-1)


class Swap(ActionConnector):
    """The other of two actions."""

    def __call__(self, action: Any) -> Any:
        return 1 - action


def mirrors() -> Any:
    return Mirror()


def swaps() -> Any:
    return [Swap()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """PPO that has learned to take the action the observation tells it to, through both."""
    config = small(env="jaxrl:probe-obs-action-v0", lr=1e-2)
    config.env_runners(
        env_to_module_connector=mirrors,
        module_to_env_connector=swaps,
        observation_filter="MeanStdFilter",
    )
    config.reporting(min_sample_timesteps_per_iteration=128 * 60)
    config.evaluation(evaluation_config={"explore": False})
    config.debugging(results_dir=str(tmp_path_factory.mktemp("results")))
    with config.build() as algorithm:
        algorithm.train()
        yield algorithm


def test_training_and_evaluation_go_through_them(trained: Any) -> None:
    assert trained.get_module().observation_space.shape == (2,)
    before = trained.get_state()["train_state"]
    evaluated = trained.evaluate()["env_runners"]
    assert_equal(before, trained.get_state()["train_state"])  # the filter's counts, too
    assert evaluated["num_episodes"] == 10
    assert evaluated["episode_return_min"] == 1.0


@pytest.mark.parametrize(("obs", "right"), [(-1.0, 0), (1.0, 1)])
def test_single_actions_go_through_them(trained: Any, obs: float, right: int) -> None:
    action, _, outputs = trained.compute_single_action(
        np.array([obs], np.float32), explore=False, full_fetch=True
    )
    assert action == right
    assert outputs[Columns.ACTIONS] == 1 - right  # the module's own, before the swap
    moments = trained.state.connectors.obs[1]
    np.testing.assert_allclose(moments.mean[1], 0.5, rtol=1e-5)
    seen = moments.normalize(jnp.array([-obs, 0.5], jnp.float32))
    params = trained.get_weights()["default_policy"]
    direct = trained.get_module().forward_train(params, {"obs": seen[None]})
    np.testing.assert_allclose(
        outputs[Columns.ACTION_DIST_INPUTS],
        direct[Columns.ACTION_DIST_INPUTS][0],
        rtol=1e-4,
        atol=1e-4,
    )


# --- refusals ---


def not_a_connector() -> Any:
    return [Mirror(), 3]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"env_to_module_connector": not_a_connector},
            ["env_to_module_connector", "ObservationConnectors", "got int"],
        ),
        ({"env_to_module_connector": swaps}, ["ObservationConnectors", "got Swap"]),
        (
            {"module_to_env_connector": lambda space, config, seed, more: Swap()},
            [
                "module_to_env_connector",
                "a function of no arguments",
                "(space, config, seed, more)",
            ],
        ),
        ({"module_to_env_connector": LearnerConnector}, ["ActionConnectors", "LearnerConnector"]),
    ],
)
def test_what_is_no_connector_is_refused(settings: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        assemble(small().env_runners(**settings))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), ["MeanStdFilter", "real-valued", "NoFilter"]),
        (
            spaces.Dict({"a": spaces.Text(4)}),
            ["observation_space['a'] is Text", "no fixed shape", "MultiBinary"],
        ),
        (spaces.Tuple([spaces.Discrete(2), spaces.Text(4)]), ["observation_space[1] is Text"]),
    ],
)
def test_observations_that_cannot_be_taken_are_refused(
    space: gymnasium.Space[Any], words: list[str]
) -> None:
    with pytest.raises(SpaceError) as caught:
        observation_pipeline(space, "MeanStdFilter")
    assert isinstance(caught.value, JaxrlError)
    for word in words:
        assert word in str(caught.value)


def test_flatten_is_one_hot_in_the_order_of_the_space() -> None:
    space = spaces.Tuple(
        [
            spaces.Discrete(3, start=-1),
            spaces.MultiDiscrete([2, 3]),
            spaces.MultiBinary(2),
            spaces.Box(-1.0, 1.0, (2, 1)),
        ]
    )
    obs = (
        jnp.array([[1, -1]]),
        jnp.array([[[0, 2], [1, 0]]]),
        jnp.array([[[1, 0], [1, 1]]], jnp.int8),
        jnp.array([[[[0.5], [0.25]], [[-0.5], [0.0]]]]),
    )
    want = [[0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0.5, 0.25], [1, 0, 0, 0, 1, 1, 0, 0, 1, 1, -0.5, 0.0]]
    np.testing.assert_array_equal(flatten(space, obs)[0], np.array(want, np.float32))


def test_of_a_nested_space_each_part_of_real_numbers_is_filtered() -> None:
    space = spaces.Dict(
        {
            "real": spaces.Box(-9.0, 9.0, (2,)),
            "rest": spaces.Tuple(
                [spaces.Discrete(3), spaces.Box(0.0, 9.0, ()), spaces.MultiBinary(2)]
            ),
        }
    )
    pipeline = observation_pipeline(space, "MeanStdFilter")
    assert pipeline.names == ("MeanStdFilter",)
    rng = np.random.default_rng(0)
    real, scalar = rng.normal(3.0, 2.0, (50, 4, 2)), rng.normal(1.0, 0.5, (50, 4))
    obs = {
        "real": jnp.asarray(real, jnp.float32),
        "rest": (
            jnp.ones((50, 4), jnp.int32),
            jnp.asarray(scalar, jnp.float32),
            jnp.ones((50, 4, 2), jnp.int8),
        ),
    }
    states = pipeline.update(pipeline.init(), (obs,), jnp.ones((50, 4), bool), None)
    out = pipeline(states, obs)
    for got, raw in ((out["real"], real), (out["rest"][1], scalar)):
        rows = raw.reshape(200, -1).astype(np.float32)
        want = (rows - rows.mean(axis=0)) / rows.std(axis=0, ddof=1)
        np.testing.assert_allclose(np.asarray(got).reshape(200, -1), want, rtol=1e-3, atol=1e-3)
    assert out["rest"][0] is obs["rest"][0]
    assert out["rest"][2] is obs["rest"][2]
