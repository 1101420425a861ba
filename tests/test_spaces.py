"""Any observations and any actions: an iteration in the program and on the host, and what is kept.

The environments of `tests.nested` answer an action outside of their space with a fault, or raise.
"""

from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import Algorithm, BCConfig, Callbacks, JaxrlError
from jaxrl.assembly.assemble import assemble
from jaxrl.connectors import FrameStacking, PrevActionsPrevRewards
from jaxrl.core.space_arrays import get_leaf_dtype
from jaxrl.core.spaces import check_supported
from jaxrl.errors import SpaceError
from jaxrl.export.numpy_program import Leaf, NumpyPolicy, PolicyInputError
from jaxrl.policy.inference import conform
from tests.helpers import assert_equal, small
from tests.nested import AnyGymSpaces, jax_env

OBSERVATIONS = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (4, 4, 1), np.uint8),
        "vector": spaces.Box(-1.0, 1.0, (3,)),
        "more": spaces.Tuple(
            [
                spaces.Discrete(3, start=-1),
                spaces.Dict(
                    {
                        "many": spaces.MultiDiscrete([2, 3], start=[1, 0]),
                        "bits": spaces.MultiBinary(2),
                    }
                ),
                spaces.Box(-2, 2, (2, 2), np.int32),
                spaces.Box(0, 1, (), bool),
            ]
        ),
    }
)
ACTIONS = spaces.Dict(
    {
        "move": spaces.Box(np.array([0.0, -3.0], np.float32), np.array([1.0, 3.0], np.float32)),
        "free": spaces.Box(-np.inf, np.inf, (1,)),
        "what": spaces.Tuple(
            [
                spaces.Discrete(3, start=2),
                spaces.MultiDiscrete([[2, 3]], start=[[1, 4]]),
                spaces.MultiBinary((2, 1)),
            ]
        ),
    }
)
LAYERS = {"fcnet_hiddens": [8]}


def config_for(env: Any, algo: str = "PPO", **settings: Any) -> Any:
    config = small(algo, env).rl_module(model_config={**LAYERS, **settings})
    config.environment(clip_actions=True)
    return config.debugging(loggers=[]).checkpointing(checkpoint_at_end=False)


def gym_env(observations: Any, actions: Any) -> Any:
    return lambda context: AnyGymSpaces(observations, actions)


def trained(config: Any) -> None:
    """One iteration without a fault; actions for samples of the space, and an evaluation."""
    with config.build() as algorithm:
        result = algorithm.train()
        assert result["env_runners"]["episode_return_mean"] == 5.0
        assert result["env_runners"]["num_env_steps_sampled"] >= 128
        assert result["env_runners"]["num_episodes"] >= 16
        numbers = [v for v in jax.tree.leaves(result["learners"]) if isinstance(v, float)]
        assert numbers
        assert np.isfinite(numbers).all()
        check_actions(algorithm)


def check_actions(algorithm: Algorithm) -> None:
    acting = algorithm._assembly.policy_step
    if acting.obs_pipeline.temporal:
        return  # asks for a state
    observed, acted = acting.obs_pipeline.space, acting.action_pipeline.space
    observed.seed(0)
    for explore in (True, False):
        obs = observed.sample()
        action = algorithm.compute_single_action(obs, explore=explore)
        assert acted.contains(native(acted, action)), (acted, action)


def native(space: Any, action: Any) -> Any:
    """An action with Python's and gymnasium's own integers."""
    match space:
        case spaces.Dict():
            return {k: native(part, action[k]) for k, part in space.spaces.items()}
        case spaces.Tuple():
            return tuple(native(p, a) for p, a in zip(space.spaces, action, strict=True))
        case spaces.Discrete():
            return int(action)
        case _:
            return np.asarray(action, space.dtype)


def test_in_the_program() -> None:
    trained(config_for(jax_env(OBSERVATIONS, ACTIONS)))


@pytest.mark.slow
def test_on_the_host() -> None:
    trained(config_for(gym_env(OBSERVATIONS, ACTIONS)))


def test_integer_boxes_get_whole_numbers_everywhere(tmp_path: Path) -> None:
    acts = spaces.Dict(
        {
            "int": spaces.Box(np.array([-1, 0]), np.array([5, 9]), dtype=np.int64),
            "byte": spaces.Box(0, 255, (1,), np.uint8),
            "real": spaces.Box(-1.0, 1.0, (1,), np.float64),
        }
    )
    observed = spaces.Box(-1.0, 1.0, (2,))
    with config_for(gym_env(observed, acts)).build() as algorithm:
        algorithm.train()  # the environment refuses other actions
        obs = np.zeros((2,), np.float32)
        action = algorithm.compute_single_action(obs, explore=False)
        assert acts.contains(action)
        raw = algorithm.compute_single_action(obs, unsquash_action=False)
        assert raw["int"].dtype == np.float32
        clipped = algorithm.compute_single_action(obs, unsquash_action=False, clip_action=True)
        assert acts.contains(clipped)
        policy = algorithm.get_policy(explore=False)
        written = NumpyPolicy(policy.export(tmp_path / "policy"), explore=False).act(obs)
        np.testing.assert_array_equal(written["int"], action["int"])
        assert acts.contains(written)


def test_recordings_of_integer_boxes_are_learned_from_without_the_environment(
    tmp_path: Path,
) -> None:
    acts = spaces.Box(np.array([-1, 0]), np.array([5, 9]), dtype=np.int64)
    config = config_for(gym_env(spaces.Box(-1.0, 1.0, (2,)), acts))
    with config.offline_data(output=str(tmp_path / "data")).build() as algorithm:
        algorithm.train()
    own = BCConfig().offline_data(input_=str(tmp_path / "data")).training(train_batch_size=16)
    own.rl_module(model_config={"fcnet_hiddens": [4]}).debugging(loggers=[])
    with own.build() as learned:
        learned.train()
        assert acts.contains(learned.compute_single_action(np.zeros(2, np.float32)))


# --- at random ---


def random_leaf(rng: np.random.Generator, *, acts: bool) -> Any:
    """A simple space; of actions a Box is of floats."""
    shape = tuple(int(n) for n in rng.integers(1, 4, size=rng.integers(0, 4)))
    kind = rng.choice(["box", "other box", "discrete", "multi", "bits"])
    if kind == "discrete":
        return spaces.Discrete(int(rng.integers(1, 5)), start=int(rng.integers(-3, 4)))
    if kind == "multi":
        nvec = rng.integers(1, 4, size=shape or (2,))
        return spaces.MultiDiscrete(nvec, start=rng.integers(-2, 3, size=nvec.shape))
    if kind == "bits":
        return spaces.MultiBinary(shape or 2)
    if kind == "other box" and not acts:
        dtype = rng.choice([np.uint8, np.int8, np.int32, np.bool_])
        low, high = {np.uint8: (0, 255), np.bool_: (0, 1)}.get(dtype, (-5, 5))
        return spaces.Box(low, high, shape, dtype)
    low = rng.uniform(-3.0, 0.0, size=shape).astype(np.float32)
    return spaces.Box(low, (low + rng.uniform(0.5, 3.0, size=shape)).astype(np.float32))


def random_space(rng: np.random.Generator, depth: int, *, acts: bool) -> Any:
    """A nesting of at most so many levels and three parts each."""
    if depth == 0 or rng.random() < 0.3:
        return random_leaf(rng, acts=acts)
    parts = [random_space(rng, depth - 1, acts=acts) for _ in range(rng.integers(1, 4))]
    if rng.random() < 0.5:
        return spaces.Tuple(parts)
    return spaces.Dict(dict(zip("zya", parts, strict=False)))


def both_spaces(seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return random_space(rng, 2, acts=False), random_space(rng, 2, acts=True)


@pytest.mark.parametrize("seed", range(200))
def test_random_values_come_through_as_they_are(seed: int) -> None:
    """Observations and actions take the path of `compute_single_action`."""
    for space in both_spaces(seed):
        space.seed(seed)
        sample = space.sample()
        again = conform(space, sample)
        for leaf, back in zip(
            jax.tree.leaves(native(space, sample)),
            jax.tree.leaves(native(space, again)),
            strict=True,
        ):
            np.testing.assert_array_equal(leaf, back)
        assert space.contains(native(space, again))


ALTERNATING = [(seed, ("in_graph", "host")[seed % 2]) for seed in range(2)]
MORE = [
    pytest.param(seed, placement, marks=pytest.mark.slow)
    for seed in range(24)
    for placement in ("in_graph", "host")
    if (seed, placement) not in ALTERNATING
]


@pytest.mark.slow
@pytest.mark.representatives("0-in_graph")
@pytest.mark.parametrize(("seed", "placement"), [*ALTERNATING, *MORE])
def test_random_spaces_train(seed: int, placement: str) -> None:
    observations, actions = both_spaces(seed)
    make = jax_env if placement == "in_graph" else gym_env
    config = config_for(make(observations, actions)).training(num_epochs=1, minibatch_size=128)
    trained(config)


# --- what else holds observations and actions ---


def two_frames() -> Any:
    return FrameStacking(2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "settings"),
    [
        ("DQN", {"observation_filter": "MeanStdFilter"}),
        ("SAC", {"env_to_module_connector": two_frames}),
    ],
    ids=["filtered", "stacked"],
)
def test_replay_holds_parts(algo: str, settings: Any) -> None:
    config = config_for(gym_env(OBSERVATIONS, spaces.Discrete(3, start=2)), algo)
    trained(config.env_runners(**settings))


def previous() -> Any:
    return PrevActionsPrevRewards(n_prev_actions=2)


@pytest.mark.slow
def test_a_saved_run_goes_on_to_the_bit(tmp_path: Any) -> None:
    config = config_for(jax_env(OBSERVATIONS, ACTIONS), autoregressive_actions=True)
    config.training(use_kl_loss=False)
    config.env_runners(observation_filter="MeanStdFilter", env_to_module_connector=previous)
    with config.build() as algorithm:
        algorithm.train()
        path = algorithm.save(tmp_path)
        algorithm.train()
        want = jax.device_get((algorithm.state.learner, algorithm.state.connectors))
    env = jax_env(OBSERVATIONS, ACTIONS)
    restored = Algorithm.from_checkpoint(path, env=env, env_to_module_connector=previous)
    with restored:
        restored.train()
        assert_equal((restored.state.learner, restored.state.connectors), want)


def test_episodes_of_parts() -> None:
    seen: list[Any] = []

    class Keeps(Callbacks):
        def on_episode_end(self, *, episode: Any, **kwargs: Any) -> None:
            seen.append(episode)

    config = config_for(gym_env(OBSERVATIONS, ACTIONS)).callbacks(Keeps)
    with config.build() as algorithm:
        algorithm.sample()
    episode = seen[0]
    assert len(episode) == 5
    observation = episode.get_observations(0)
    assert OBSERVATIONS.contains(native(OBSERVATIONS, observation))
    actions = episode.get_actions()
    assert jax.tree.structure(
        jax.tree.map(lambda x: 0, actions[0] if isinstance(actions, list) else actions)
    ) == jax.tree.structure(jax.tree.map(lambda x: 0, ACTIONS.sample()))


@pytest.mark.ray
def test_actors_send_parts(ray_cluster: Any) -> None:
    config = config_for(gym_env(OBSERVATIONS, ACTIONS)).env_runners(num_env_runners=1)
    config.env_runners(num_envs_per_env_runner=16)
    trained(config)


@pytest.mark.slow
def test_several_devices_share_parts() -> None:
    config = config_for(jax_env(OBSERVATIONS, ACTIONS), vf_share_layers=True)
    trained(config.learners(num_devices=2))


# --- refusals ---

TWO_BOXES = spaces.Tuple([spaces.Box(-1.0, 1.0, (1,)), spaces.Box(-1.0, 1.0, (1,))])


@pytest.mark.parametrize(
    ("algo", "actions", "settings", "words"),
    [
        ("DQN", ACTIONS, {}, ["Discrete", "['move']: Box", "PPO"]),
        ("PQN", spaces.MultiDiscrete([2, 2]), {}, ["Discrete", "MultiDiscrete", "PPO"]),
        ("SAC", ACTIONS, {}, ["Box", "['what'][1]: MultiDiscrete", "PPO for any"]),
        ("TD3", spaces.Discrete(2), {}, ["Box", "Discrete(2)", "DQN"]),
        ("TQC", spaces.Discrete(2), {}, ["Box", "Discrete(2)", "DQN"]),
        ("PPO", spaces.Dict({"a": spaces.Text(3)}), {}, ["action_space['a'] is Text"]),
        ("PPO", TWO_BOXES, {"autoregressive_actions": True}, ["use_kl_loss=True", "two Boxes"]),
        ("A2C", TWO_BOXES, {"autoregressive_actions": True}, ["entropy_coeff=0.01", "two Boxes"]),
        ("PPO", spaces.Discrete(2), {"autoregressive_actions": True}, ["single one"]),
        ("DQN", spaces.Discrete(2), {"autoregressive_actions": True}, ["single one"]),
        ("SAC", spaces.Discrete(2), {"autoregressive_actions": True}, ["single one"]),
    ],
)
def test_actions_that_cannot_be_are_refused(
    algo: str, actions: Any, settings: Any, words: list[str]
) -> None:
    env = jax_env(spaces.Box(0.0, 1.0, (2,)), actions)
    with pytest.raises(JaxrlError) as caught:
        assemble(config_for(env, algo, **settings))
    for word in words:
        assert word in str(caught.value)


def test_two_boxes_are_fine_where_no_loss_needs_their_entropy() -> None:
    env = jax_env(spaces.Box(0.0, 1.0, (2,)), TWO_BOXES)
    config = config_for(env, autoregressive_actions=True).training(use_kl_loss=False)
    assert not assemble(config).module.distribution.is_exact


@pytest.mark.slow
def test_a_memory_takes_parts() -> None:
    settings = {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4}
    env = jax_env(OBSERVATIONS, ACTIONS)
    config = config_for(env, **settings, lstm_use_prev_action=True)
    with config.build() as algorithm:
        result = algorithm.train()
        assert result["env_runners"]["episode_return_mean"] == 5.0
        numbers = [v for v in jax.tree.leaves(result["learners"]) if isinstance(v, float)]
        assert np.isfinite(numbers).all()


@pytest.mark.parametrize("value", [np.full((2, 2), 0.5), np.full((2, 2), 1j)])
def test_what_a_type_cannot_hold_is_refused(value: np.ndarray) -> None:
    image = spaces.Box(0, 255, (2, 2), np.uint8)
    with pytest.raises(JaxrlError, match=r"whole numbers|must be numeric"):
        conform(image, value)
    leaf = Leaf({"kind": "Box", "low": 0, "high": 255, "dtype": "uint8"}, "obs", "uint8", (2, 2))
    with pytest.raises(PolicyInputError, match=r"not in its space|must be numeric"):
        leaf.conform(value[None], 1)
    np.testing.assert_array_equal(conform(image, np.full((2, 2), 3.0)), 3)


@pytest.mark.parametrize(
    ("dtype", "low", "high", "value"),
    [
        ("uint16", 0, 65535, 65540),
        ("int32", -(2**31), 2**31 - 1, 2**31 + 100),
        ("int64", 0, 2**62, 2**40),
    ],
)
def test_whole_numbers_beyond_the_type_of_the_program_are_refused(
    dtype: str, low: int, high: int, value: int
) -> None:
    """65540 would be 4, since a tolerance is for real numbers."""
    space = spaces.Box(low, high, (1,), dtype)
    with pytest.raises(JaxrlError, match=r"obs\[0\]"):
        conform(space, np.array([value]))
    described = {"kind": "Box", "low": low, "high": high, "dtype": dtype}
    leaf = Leaf(described, "obs", str(get_leaf_dtype(space)), (1,))
    with pytest.raises(PolicyInputError, match="not in its space"):
        leaf.conform(np.array([[value]]), 1)
    for valid in (low, min(high, 2**31 - 1)):
        assert conform(space, np.array([valid])) == leaf.conform(np.array([[valid]]), 1) == valid


def test_a_simplex_of_rllibs_is_answered_by_a_softmax() -> None:
    simplex = type("Simplex", (gymnasium.Space,), {})((3,), np.float32)
    with pytest.raises(SpaceError, match=r"^action_space is a Simplex: declare a Box.*softmax"):
        check_supported(simplex, "action_space")
