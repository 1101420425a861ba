"""From an observation outside to an action: checks, connectors, and what a call can switch."""

import cProfile
import pstats
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.connectors.observations import flatten
from jaxrl.errors import (
    ConfigError,
    SpaceError,
    UnknownNameError,
)
from jaxrl.policy.inference import adjust_pipeline, conform
from tests.helpers import action_pipeline, observation_pipeline, small


def test_actions_are_those_of_the_module_through_the_whole_pipeline() -> None:
    config = small(env="Pendulum-v1").env_runners(observation_filter="MeanStdFilter")
    with config.build() as algorithm:
        for _ in range(3):
            algorithm.train()
        obs = np.array([0.5, -0.8, 3.0], np.float32)
        action = algorithm.compute_single_action(obs, explore=False)
        moments = algorithm.state.connectors.obs[0]
        normalized = (obs - moments.mean) / np.sqrt(moments.m2 / (moments.count - 1))
        params = algorithm.get_weights()["default_policy"]
        out = algorithm.get_module().forward_inference(params, jnp.asarray(normalized)[None])
        want = np.clip(np.asarray(out["actions"][0]) * 2.0, -2.0, 2.0)  # torque in [-2, 2]
        np.testing.assert_allclose(action, want, rtol=1e-3)
        assert action.shape == (1,)
        by_name = algorithm.compute_single_action(observation=obs, explore=False)  # RLlib's name
        np.testing.assert_array_equal(by_name, action)
        batch = algorithm.compute_actions(observations=[obs, obs], explore=False)
        np.testing.assert_allclose(batch[1], action, rtol=1e-6)
        named = algorithm.compute_actions({"a": obs}, explore=False)
        np.testing.assert_allclose(named["a"], action, rtol=1e-6)
        sampled = [float(algorithm.compute_single_action(obs, explore=True)[0]) for _ in range(4)]
        assert len(set(sampled)) > 2  # some are clipped
        _, state_out, outputs = algorithm.compute_single_action(obs, full_fetch=True)
        assert state_out is None
        assert outputs["action_dist_inputs"].shape == (2,)
        with pytest.raises(UnknownNameError, match="no module 'other'"):
            algorithm.compute_single_action(obs, policy_id="other")
        raw = algorithm.compute_single_action(obs, explore=False, unsquash_action=False)
        np.testing.assert_allclose(raw, np.asarray(out["actions"][0]), rtol=1e-3)
        actions, states, outputs = algorithm.compute_actions([obs] * 3, full_fetch=True)
        assert states is None
        assert actions.shape == outputs["actions"].shape == (3, 1)
        actions, _, outputs = algorithm.compute_actions({"a": obs, 7: obs}, full_fetch=True)
        assert actions["a"].shape == (1,)
        assert outputs[7]["action_dist_inputs"].shape == (2,)
        with pytest.raises(SpaceError, match="observations are empty"):
            algorithm.compute_actions([])
        past: dict[str, Any] = {"prev_action": 0, "prev_reward": 0.0}
        others = {"info": {}, "timestep": 3, "episode": object()}
        again = algorithm.compute_single_action(obs, explore=False, **past, **others)
        np.testing.assert_array_equal(again, action)
        given = {"obs": obs, "prev_actions": np.zeros(1), "prev_rewards": 0.0}
        again = algorithm.compute_single_action(input_dict=given, explore=False)
        np.testing.assert_array_equal(again, action)
        with pytest.raises(ConfigError, match="needs an observation"):
            algorithm.compute_single_action(input_dict={})
        algorithm.compute_actions([obs], episodes=[None], prev_reward=[0.0])
        with pytest.raises(ConfigError, match="Did you mean 'prev_reward'"):
            algorithm.compute_actions([obs], prev_rewards=None)


def test_after_the_first_call_an_action_costs_one_program_call() -> None:
    """Operations outside of it, and Python's own calls, were fifty times the program's time."""
    with small(env="CartPole-v1").build() as algorithm:
        obs, policy = np.zeros(4, np.float32), algorithm.get_policy()
        asks: list[Callable[[], Any]] = [
            lambda: algorithm.compute_single_action(obs),
            lambda: algorithm.compute_actions([obs, obs]),
            lambda: policy.act(obs),
        ]
        for ask in asks:
            ask()
            with cProfile.Profile() as profile:
                ask()
            entries = pstats.Stats(profile).get_stats_profile().func_profiles
            assert "apply_primitive" not in entries
            assert sum(int(entry.ncalls.split("/")[0]) for entry in entries.values()) < 150

        def outputs() -> np.ndarray:
            fetched = algorithm.compute_single_action(obs, explore=False, full_fetch=True)
            return fetched[2]["action_dist_inputs"]

        before = outputs()
        algorithm.train()
        assert not np.array_equal(outputs(), before)


def test_what_is_known_of_a_call_is_forgotten_with_what_it_was_known_of() -> None:
    """Weights, an observation and a state that changed are all looked at."""
    model = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4}
    config = small(env="CartPole-v1").rl_module(model_config=model)
    with config.build() as algorithm:
        obs = np.array([0.1, 0.2, 0.03, 0.4], np.float32)

        def inputs(state: Any = None) -> Any:
            _, after, out = algorithm.compute_single_action(obs, state, full_fetch=True)
            return after, out["action_dist_inputs"]

        state, first = inputs()
        again, second = inputs()
        np.testing.assert_array_equal(first, second)
        jax.tree.map(np.testing.assert_array_equal, state, again)
        assert not np.array_equal(inputs(state)[1], first)
        doubled = jax.tree.map(lambda x: 2 * x, algorithm.get_weights())
        algorithm.set_weights(doubled)
        assert not np.array_equal(inputs()[1], first)
        wide = jax.tree.map(lambda x: np.asarray(x, np.float64), state)
        np.testing.assert_array_equal(inputs(wide)[1], inputs(state)[1])
        with pytest.raises(SpaceError, match="obs has shape"):
            algorithm.compute_single_action(obs[:3], full_fetch=True)
        with pytest.raises(SpaceError, match="obs has NaN"):
            algorithm.compute_single_action(obs * np.nan, full_fetch=True)
        with pytest.raises(ConfigError, match="is stateful: use get_policy"):
            algorithm.compute_single_action(obs)
        for wrong in ([1], [], jax.tree.map(lambda x: x[:3], state)):
            with pytest.raises(ConfigError, match=r"state of .* has shapes .*, got shapes .* pass"):
                algorithm.compute_single_action(obs, wrong)
        with pytest.raises(ConfigError, match="pass the one that"):
            algorithm.compute_actions([obs, obs], state)


def test_a_state_of_a_module_that_keeps_none_is_refused() -> None:
    with small().build() as algorithm:
        obs = np.zeros(4, np.float32)
        algorithm.compute_single_action(obs, state=[])
        for wrong in (1, [1], {"h": np.zeros(3)}):
            with pytest.raises(
                ConfigError, match="state is not read by ActorCriticModule, got shapes"
            ):
                algorithm.compute_single_action(obs, state=wrong)


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        ([0.0, 0.0, 0.0], r"obs has shape \(3,\).*\(4,\)"),
        ([0.0, 9.0, 0.0, np.nan], r"obs has NaN at \(3,\)"),
        ([7.0, 0.0, 0.0, 0.0], r"obs\[0\] is 7, outside its space's bounds \[-4.8, 4.8\]"),
        (["a", "b", "c", "d"], "obs must be numeric"),
        ((np.zeros(4, np.float32), {}), r"that is reset\(\)'s \(observation, info\)"),
        ([[0.0, 0.0], [0.0]], "obs must be an array for .*, got a list of unequal parts"),
    ],
)
def test_observations_outside_their_space_are_refused(obs: Any, message: str) -> None:
    box = spaces.Box(
        np.array([-4.8, -np.inf, -0.42, -np.inf], np.float32),
        np.array([4.8, np.inf, 0.42, np.inf], np.float32),
    )
    with pytest.raises(SpaceError, match=message):
        conform(box, obs)


def test_nested_observations_are_checked_by_path() -> None:
    space = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple([spaces.MultiBinary(2)])})
    good = conform(space, {"a": 2, "b": ([1, 0],)})
    assert good["a"] == 2
    np.testing.assert_array_equal(good["b"][0], [1, 0])
    with pytest.raises(SpaceError, match=r"obs\.a is 3, which is not in Discrete\(3\)"):
        conform(space, {"a": 3, "b": ([1, 0],)})
    with pytest.raises(SpaceError, match=r"obs\.b\[0\] has shape"):
        conform(space, {"a": 0, "b": ([1, 0, 1],)})


def test_flattening_agrees_with_gymnasium() -> None:
    space = spaces.Dict(
        {
            "box": spaces.Box(-1, 1, (2, 2), np.float32),
            "one": spaces.Discrete(3, start=5),
            "many": spaces.MultiDiscrete([2, 3]),
            "bits": spaces.Tuple([spaces.MultiBinary(3)]),
        },
        seed=0,
    )
    pipeline = observation_pipeline(space, "NoFilter", (), flatten=True)
    samples = [space.sample() for _ in range(5)]
    want = np.stack([spaces.flatten(space, sample) for sample in samples])
    assert pipeline.spaces[-1].shape == want[0].shape
    batch = jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *[conform(space, s) for s in samples])
    np.testing.assert_allclose(flatten(space, batch), want)
    np.testing.assert_allclose(pipeline(pipeline.init(), batch), want)


def test_action_connectors_cover_offset_unsquash_and_clip() -> None:
    discrete = action_pipeline(
        spaces.Discrete(3, start=-1), normalize_actions=True, clip_actions=False
    )
    assert discrete.module_space == spaces.Discrete(3)
    np.testing.assert_array_equal(discrete(jnp.array([0, 2])), [-1, 1])
    box = spaces.Box(np.array([0.0, -2.0], np.float32), np.array([1.0, 4.0], np.float32))
    unsquash = action_pipeline(box, normalize_actions=True, clip_actions=False)
    np.testing.assert_allclose(
        unsquash(jnp.array([[-1.0, 0.0], [3.0, 1.0]])), [[0.0, 1.0], [1.0, 4.0]]
    )
    clip = action_pipeline(box, normalize_actions=False, clip_actions=True)
    np.testing.assert_allclose(clip(jnp.array([[5.0, -5.0]])), [[1.0, -2.0]])
    raw = action_pipeline(box, normalize_actions=False, clip_actions=False)
    np.testing.assert_allclose(raw(jnp.array([[5.0, -5.0]])), [[5.0, -5.0]])


HALF_OPEN = spaces.Box(
    np.array([-2, 0, -np.inf, 3], np.float32), np.array([4, np.inf, 2, 5], np.float32)
)


@pytest.mark.parametrize("is_nested", [False, True])
def test_an_infinite_bound_concerns_its_entry_alone(is_nested: bool) -> None:
    space = spaces.Dict(box=HALF_OPEN, free=spaces.Box(-np.inf, np.inf, (1,)))
    pipeline = action_pipeline(
        space if is_nested else HALF_OPEN, normalize_actions=True, clip_actions=False
    )

    def nest(box: Any) -> Any:
        return {"box": box, "free": jnp.full((len(box), 1), 1e30)} if is_nested else box

    inner = pipeline.module_space["box"] if is_nested else pipeline.module_space
    np.testing.assert_array_equal(inner.low, [-1, 0, -np.inf, -1])
    np.testing.assert_array_equal(inner.high, [1, np.inf, 2, 1])
    chosen = nest(jnp.array([[0.5, 7.0, -7.0, -1.0], [-9.0, -9.0, 9.0, 9.0]]))
    played, back = pipeline(chosen), pipeline.inverse(pipeline(chosen))
    box = played["box"] if is_nested else played
    np.testing.assert_allclose(box, [[2.5, 7.0, -7.0, 3.0], [-2.0, 0.0, 2.0, 5.0]])
    np.testing.assert_allclose(
        back["box"] if is_nested else back, [[0.5, 7.0, -7.0, -1.0], [-1.0, 0.0, 2.0, 1.0]]
    )
    if is_nested:
        np.testing.assert_array_equal(played["free"], chosen["free"])


def test_a_box_without_finite_bounds_has_no_connector() -> None:
    free = spaces.Box(-np.inf, np.inf, (2,))
    assert not action_pipeline(free, normalize_actions=True, clip_actions=False).connectors


@pytest.mark.parametrize(
    ("normalize", "clip", "unsquash_action", "clip_action", "want"),
    [
        (True, False, None, None, [4.0, -2.0]),
        (True, False, True, None, [4.0, -2.0]),
        (True, False, False, None, [3.0, -1.0]),
        (True, False, False, True, [3.0, -1.0]),
        (True, False, None, True, [4.0, -2.0]),
        (False, True, None, None, [3.0, -1.0]),
        (False, True, None, False, [3.0, -1.0]),
        (False, False, None, True, [3.0, -1.0]),
    ],
)
def test_unsquashing_and_clipping_can_be_switched_per_call(
    normalize: bool, clip: bool, unsquash_action: Any, clip_action: Any, want: list[float]
) -> None:
    box = spaces.Box(-2.0, 4.0, (2,), np.float32)
    pipeline = action_pipeline(box, normalize_actions=normalize, clip_actions=clip)
    switched = adjust_pipeline(pipeline, unsquash_action, clip_action)
    np.testing.assert_allclose(switched(jnp.array([[3.0, -1.0]]))[0], want)
    far = switched(jnp.array([[9.0, -9.0]]))[0]
    clips = (normalize and unsquash_action is not False) or clip_action
    clips = clips or (clip_action is None and clip and not normalize)
    np.testing.assert_allclose(far, [4.0, -2.0] if clips else [9.0, -9.0])


def test_only_what_is_squashed_is_unsquashed() -> None:
    box = spaces.Box(-2.0, 4.0, (2,), np.float32)
    pipeline = action_pipeline(box, normalize_actions=False, clip_actions=True)
    with pytest.raises(ConfigError, match="unsquash_action=True has nothing to unsquash"):
        adjust_pipeline(pipeline, True, None)
    discrete = action_pipeline(
        spaces.Discrete(3, start=-1), normalize_actions=True, clip_actions=False
    )
    assert adjust_pipeline(discrete, False, True) is discrete


def test_a_policy_computes_actions_as_rllibs_do() -> None:
    """Actions of a Box are in the module's range, as RLlib's policies return them."""
    with small(env="Pendulum-v1").build() as algorithm:
        policy = algorithm.get_policy(explore=False)
        obs = np.array([0.5, -0.8, 3.0], np.float32)
        raw = algorithm.compute_single_action(obs, explore=False, unsquash_action=False)
        for given in ({"obs": obs}, {"input_dict": {"obs": obs}}):
            action, state, outputs = policy.compute_single_action(**given, info={}, timestep=1)
            np.testing.assert_array_equal(action, raw)
            assert state is None
            assert outputs["action_dist_inputs"].shape == (2,)
        actions, states, outputs = policy.compute_actions(np.stack([obs, obs]), episodes=[])
        np.testing.assert_array_equal(actions, [raw, raw])
        assert states is None
        assert outputs["actions"].shape == (2, 1)
        sampled = [float(policy.compute_single_action(obs, explore=True)[0][0]) for _ in range(3)]
        assert len(set(sampled)) > 1
        with pytest.raises(ConfigError, match=r"compute_single_action\(\) has no argument 'image'"):
            policy.compute_single_action(obs, image=obs)
        assert policy.action_space.high == 2.0
        assert policy.observation_space.contains(obs)
