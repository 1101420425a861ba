"""Action masks: what stands beside one is flattened and filtered, and no illegal action is taken."""

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.assembly.assemble import assemble
from jaxrl.core.types import Columns
from jaxrl.distributions.base import ILLEGAL_LOGIT
from jaxrl.envs.probes import ProbeMask, ProbeParams
from jaxrl.errors import ConfigError, SpaceError
from tests.helpers import observation_pipeline, small

MASK = spaces.MultiBinary(3)
VECTOR = spaces.Box(-1.0, 1.0, (4,))
IMAGE = spaces.Box(0, 255, (10, 10, 2), np.uint8)
NESTED = spaces.Dict({"place": spaces.Discrete(3, start=1), "map": spaces.Box(-1.0, 1.0, (2, 2))})


@pytest.mark.parametrize(
    ("parts", "name", "want"),
    [
        ({"obs": VECTOR}, "obs", VECTOR),
        ({"obs": IMAGE}, "obs", IMAGE),
        ({"obs": spaces.Discrete(5)}, "obs", (5,)),
        ({"obs": spaces.Box(-1.0, 1.0, (2, 3))}, "obs", (6,)),
        ({"obs": NESTED}, "obs", (7,)),
        ({"a": VECTOR, "b": spaces.MultiDiscrete([2, 3])}, "observations", (9,)),
    ],
)
def test_only_what_stands_beside_the_mask_is_flattened(parts: Any, name: str, want: Any) -> None:
    pipeline = observation_pipeline(
        spaces.Dict({"action_mask": MASK, **parts}), "NoFilter", flatten=True
    )
    space = pipeline.spaces[-1]
    assert isinstance(space, spaces.Dict)
    assert set(space.spaces) == {"action_mask", name}
    assert space["action_mask"] == MASK
    if isinstance(want, tuple):
        assert space[name].shape == want
    else:
        assert space[name] == want


def test_values_beside_the_mask() -> None:
    pipeline = observation_pipeline(
        spaces.Dict({"action_mask": MASK, "obs": NESTED}), "NoFilter", flatten=True
    )
    mask = jnp.array([[1, 0, 1], [0, 1, 1]], jnp.int8)
    obs = {
        "action_mask": mask,
        "obs": {
            "place": jnp.array([1, 3], jnp.int32),
            "map": jnp.arange(8, dtype=jnp.float32).reshape(2, 2, 2),
        },
    }
    out = pipeline(pipeline.init(), obs)
    np.testing.assert_array_equal(out["action_mask"], mask)
    # a Dict's parts are in the order of their names: map, place
    want = [[0, 1, 2, 3, 1, 0, 0], [4, 5, 6, 7, 0, 0, 1]]
    np.testing.assert_array_equal(out["obs"], np.array(want, np.float32))


def test_parts_beside_the_mask_stay_apart_unless_flattened() -> None:
    parts = {"a": VECTOR, "b": spaces.MultiDiscrete([2, 3])}
    pipeline = observation_pipeline(spaces.Dict({"action_mask": MASK, **parts}))
    want = {"action_mask": MASK, "observations": spaces.Dict(parts)}
    assert pipeline.spaces[-1] == spaces.Dict(want)


def test_the_filter_sees_no_mask() -> None:
    space = spaces.Dict({"action_mask": MASK, "obs": VECTOR})
    pipeline = observation_pipeline(space, "MeanStdFilter")
    rng = np.random.default_rng(0)
    raw = rng.normal(3.0, 2.0, (6, 5, 4)).astype(np.float32)
    mask = jnp.asarray(rng.integers(0, 2, (6, 5, 3)), jnp.int8)
    obs = {"action_mask": mask, "obs": jnp.asarray(raw)}
    first = pipeline.init()
    received = (obs, pipeline["SeparateMask"](first[0], obs))
    states = pipeline.update(first, received, jnp.ones((6, 5), bool), None)
    out = pipeline(states, obs)
    np.testing.assert_array_equal(out["action_mask"], mask)
    rows = raw.reshape(-1, 4)
    want = (raw - rows.mean(axis=0)) / rows.std(axis=0, ddof=1)
    np.testing.assert_allclose(out["obs"], want, rtol=1e-4, atol=1e-4)


def test_the_mask_may_have_another_name_or_be_no_mask() -> None:
    space = spaces.Dict({"legal": MASK, "action_mask": VECTOR})
    renamed = observation_pipeline(space, "NoFilter", action_mask_key="legal")
    assert renamed.spaces[-1] == spaces.Dict({"action_mask": MASK, "observations": VECTOR})
    obs = {"legal": jnp.ones((1, 3), jnp.int8), "action_mask": jnp.zeros((1, 4))}
    out = renamed(renamed.init(), obs)
    assert out["action_mask"] is obs["legal"]
    assert out["observations"] is obs["action_mask"]
    flat = observation_pipeline(space, "NoFilter", action_mask_key=None, flatten=True).spaces[-1]
    assert flat.shape == (7,)


# --- in training ---


class MaskedChoice(ProbeMask):
    """The probe with a Discrete observation, and its mask under another name."""

    name = "masked-choice"

    def observation_space(self, params: ProbeParams) -> spaces.Dict:
        return spaces.Dict({"legal": MASK, "obs": spaces.Discrete(2)})

    def add_mask(self, obs: Any) -> dict[str, Any]:
        parts = super().add_mask(obs)
        return {"legal": parts["action_mask"], "obs": (obs[0] > 0).astype(jnp.int32)}


class MaskedPair(ProbeMask):
    """Two actions, of which the second is the probe's."""

    name = "masked-pair"

    def observation_space(self, params: ProbeParams) -> spaces.Dict:
        box = spaces.Box(-1.0, 1.0, (1,), np.float32)
        return spaces.Dict({"action_mask": spaces.MultiBinary(5), "obs": box})

    def action_space(self, params: ProbeParams) -> gymnasium.Space[Any]:
        return spaces.MultiDiscrete([2, 3])

    def add_mask(self, obs: Any) -> dict[str, Any]:
        parts = super().add_mask(obs)
        first = jnp.array([0, 1], jnp.int8)  # of the first action, 0 is never legal
        return {**parts, "action_mask": jnp.concatenate([first, parts["action_mask"]])}

    def reward(self, obs: Any, action: Any) -> Any:
        return jnp.where(action[0] == 0, 100.0, super().reward(obs, action[1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "env", "settings"),
    [
        ("PPO", MaskedChoice, {"lr": 1e-2}),
        ("A2C", MaskedPair, {"lr": 1e-2}),
        ("PG", "jaxrl:probe-mask-v0", {"lr": 1e-2}),
    ],
)
def test_no_illegal_action_is_ever_taken(algo: str, env: Any, settings: dict[str, Any]) -> None:
    config = small(algo, env=env, **settings)
    config.reporting(min_sample_timesteps_per_iteration=128 * 60)
    config.checkpointing(checkpoint_at_end=False)
    if env is MaskedChoice:
        config.environment(action_mask_key="legal")
    with config.build() as algorithm:
        learned = algorithm.train()["env_runners"]
        assert learned["num_episodes"] == 128 * 60
        assert learned["episode_return_max"] == 1.0  # an illegal action pays 100
        assert learned["episode_return_min"] == -1.0
        if algo == "PPO":
            assert algorithm.evaluate()["env_runners"]["episode_return_max"] <= 1.0
        observe: Any = env().add_mask if isinstance(env, type) else ProbeMask().add_mask
        for side, right in ((-1.0, 0), (1.0, 2)):
            obs = jax.device_get(observe(jnp.array([side], jnp.float32)))
            drawn = algorithm.compute_actions([obs] * 64, explore=True)
            second = drawn[:, 1] if env is MaskedPair else drawn
            assert 2 - right not in second
            assert env is not MaskedPair or (drawn[:, 0] == 1).all()
            if algo == "PPO":
                assert algorithm.compute_single_action(obs, explore=False) == right


def test_masks_reach_the_loss() -> None:
    """The recorded distribution is the masked one: learning sees what acting saw."""
    assembly = assemble(small(env="jaxrl:probe-mask-v0"))
    module = assembly.module
    params = jax.jit(module.init)(jax.random.key(0))
    obs = {"action_mask": jnp.array([[0, 1, 1]], jnp.int8), "obs": jnp.ones((1, 1))}
    out = module.forward_train(params, {Columns.OBS: obs})
    dist = module.action_dist(out[Columns.ACTION_DIST_INPUTS], obs)
    assert dist.log_prob(jnp.array([0]))[0] < ILLEGAL_LOGIT / 2
    assert dist.entropy()[0] <= np.log(2.0) + 1e-6


# --- refusals ---


class OnlyMask(ProbeMask):
    def observation_space(self, params: ProbeParams) -> spaces.Dict:
        return spaces.Dict({"action_mask": MASK})

    def add_mask(self, obs: Any) -> dict[str, Any]:
        return {"action_mask": super().add_mask(obs)["action_mask"]}


class WrongSize(ProbeMask):
    def observation_space(self, params: ProbeParams) -> spaces.Dict:
        box = spaces.Box(-1.0, 1.0, (1,), np.float32)
        return spaces.Dict({"action_mask": spaces.MultiBinary(2), "obs": box})

    def add_mask(self, obs: Any) -> dict[str, Any]:
        parts = super().add_mask(obs)
        return {**parts, "action_mask": parts["action_mask"][:2]}


class ContinuousActions(ProbeMask):
    def action_space(self, params: ProbeParams) -> gymnasium.Space[Any]:
        return spaces.Box(-1.0, 1.0, (3,), np.float32)

    def reward(self, obs: Any, action: Any) -> Any:
        return jnp.zeros((), jnp.float32)


@pytest.mark.parametrize(
    ("env", "settings", "error", "words"),
    [
        (OnlyMask, {}, SpaceError, ["nothing but the mask", "'action_mask'"]),
        (WrongSize, {}, SpaceError, ["(2,)", "Discrete(3)", "needs (3,)"]),
        (ContinuousActions, {}, SpaceError, ["cannot mask", "Box(", "action_mask_key=None"]),
        (
            "CartPole-v1",
            {"action_mask_key": "legal"},
            ConfigError,
            ["action_mask_key is 'legal'", "no part of this name"],
        ),
    ],
)
def test_masks_that_cannot_work_are_refused(
    env: Any, settings: dict[str, Any], error: type[Exception], words: list[str]
) -> None:
    with pytest.raises(error) as caught:
        assemble(small(env=env).environment(**settings))
    for word in words:
        assert word in str(caught.value)


def test_a_part_called_action_mask_can_be_an_observation() -> None:
    assembly = assemble(small(env=ContinuousActions).environment(action_mask_key=None))
    parts = ContinuousActions().observation_space(ProbeParams())
    assert assembly.module.observation_space == spaces.Dict({"observations": parts})
    assert assembly.module.action_mask({"observations": {"action_mask": 1}}) is None
