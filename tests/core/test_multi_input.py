"""Observations of several parts: how each is encoded, and that each reaches the output."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import JaxrlError, RLModuleSpec
from jaxrl.core.space_arrays import flatten
from jaxrl.core.spaces import format_path, get_at_path, get_leaf_spaces
from jaxrl.core.types import Columns
from jaxrl.errors import ConfigError, SpaceError
from jaxrl.modules.encoder_module import Encoder, MultiInput
from jaxrl.modules.rl_module import make_zeros
from tests.helpers import ALGORITHMS, every_algorithm, small
from tests.nested import drawn, jax_env, walked, within

NESTED = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (5, 4, 2), np.uint8),
        "plane": spaces.Box(-1.0, 1.0, (3, 2)),
        "rest": spaces.Tuple(
            [
                spaces.Discrete(4, start=2),
                spaces.MultiDiscrete([[2, 3], [4, 5]]),
                spaces.MultiBinary((2, 2)),
                spaces.Dict({"flag": spaces.Box(0, 1, (), bool)}),
                spaces.Box(-5, 5, (2,), np.int32),
            ]
        ),
    }
)
SMALL: dict[str, Any] = {"fcnet_hiddens": [8], "fusionnet_hiddens": [6]}
SMALL_BOX: dict[str, Any] = {"fcnet_hiddens": [8]}


def build(space: Any = NESTED, actions: Any = None, algo: str = "PPO", **settings: Any) -> Any:
    layers = SMALL_BOX if isinstance(space, spaces.Box) else SMALL
    config: Any = ALGORITHMS[algo]().rl_module(model_config={**layers, **settings})
    return config.get_rl_module_spec(space, actions or spaces.Discrete(3)).build()


def params_of(module: Any) -> Any:
    return jax.jit(module.init)(jax.random.key(0))


def shapes(params: Any) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    return {jax.tree_util.keystr(p, simple=True, separator="/"): x.shape for p, x in leaves}


def test_each_part_is_encoded_by_its_kind() -> None:
    found = shapes(params_of(build()))
    streams = "pi_encoder/streams/"
    assert found[streams + "images_0/cnn/conv_0/kernel"] == (3, 3, 2, 16)
    numbers = 3 * 2 + 2 * 2 + 1 + 2
    assert found[streams + "mlp/dense_0/kernel"] == (numbers, 8)
    entries = 4 + (2 + 3 + 4 + 5)
    assert found["pi_encoder/mlp/dense_0/kernel"] == (8 + 8 + entries, 6)
    assert found["pi_head/out/kernel"] == (6, 3)


def test_choices_are_embedded_if_asked() -> None:
    found = shapes(params_of(build(embedding_size=7)))
    streams = "pi_encoder/streams/"
    sizes = [found[f"{streams}embedding_{i}"] for i in range(5)]
    assert sizes == [(n, 7) for n in (4, 2, 3, 4, 5)]
    assert found["pi_encoder/mlp/dense_0/kernel"] == (8 + 8 + 5 * 7, 6)


def stream_features() -> Any:
    """Return the input of the dense layers that join the parts, for one value."""
    module = build(spaces.Dict({"n": FROM_FIVE, "b": BYTES, "f": FLOATS}))
    streams: Any = module.network.pi_encoder.streams
    identity = streams.clone(mlp=streams.mlp.clone(hiddens=()))
    obs = {"n": jnp.array([6]), "b": jnp.array([[0, 51]], jnp.uint8), "f": jnp.array([[2.0]])}
    return identity.apply({"params": {}}, obs)


FROM_FIVE = spaces.Discrete(3, start=5)
BYTES, FLOATS = spaces.Box(0, 255, (2,), np.uint8), spaces.Box(-3.0, 3.0, (1,))


def test_numbers_are_scaled_where_they_are_integers_and_choices_count_from_their_start() -> None:
    features = stream_features()
    np.testing.assert_allclose(features, [[0.0, 0.2, 2.0, 0.0, 1.0, 0.0]], rtol=1e-6)


KINDS_OF_MODULES = ("PPO", "DQN", "SAC", "TD3")


@pytest.mark.representatives("PPO", "TD3")
@pytest.mark.parametrize(
    "algo", every_algorithm(slow=tuple(set(ALGORITHMS) - set(KINDS_OF_MODULES)))
)
def test_every_part_reaches_every_algorithms_networks(algo: str) -> None:
    """Another value of any part alone changes the output, in every module."""
    continuous = algo in ("TQC", "TD3", "DDPG")
    actions = spaces.Box(-1.0, 1.0, (2,)) if continuous else spaces.Discrete(3)
    module = build(NESTED, actions, algo)
    params = params_of(module)
    one = jax.tree.map(lambda x: x[None], drawn(NESTED, jax.random.key(1)))

    def changed(path: Any, leaf: Any) -> Any:
        (low, high), x = within(leaf), np.asarray(get_at_path(one, path))
        return np.where(x == low, high, low).astype(x.dtype)

    other = walked(NESTED, changed)

    def output(obs: Any) -> Any:
        out = module.forward_train(params, {Columns.OBS: obs})[Columns.ACTION_DIST_INPUTS]
        if not hasattr(module, "q_values"):
            return out
        taken = None if module.is_discrete else jnp.zeros((1, 2))
        return out, module.compute_q_values(params["critic"], obs, taken)

    apply = jax.jit(output)
    before = apply(one)
    for path, _ in get_leaf_spaces(NESTED):
        mixed = walked(
            NESTED, lambda p, leaf, path=path: get_at_path(other if p == path else one, p)
        )
        for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(apply(mixed)), strict=True):
            assert not np.allclose(a, b, rtol=1e-6, atol=0), (path, a, b)


def test_a_single_box_is_encoded_as_ever() -> None:
    """No stream, the same names, and the same draws of the key."""
    module = build(spaces.Box(-1.0, 1.0, (4,)))
    encoder = module.network.pi_encoder
    assert isinstance(encoder, Encoder)
    assert encoder.streams is None
    params = params_of(module)
    assert set(params["pi_encoder"]) == {"mlp"}
    kernel = np.asarray(params["pi_encoder"]["mlp"]["dense_0"]["kernel"])
    np.testing.assert_allclose(kernel[0, :2], FIRST_NUMBERS, rtol=1e-6)


# As drawn before there was an encoder of several parts.
FIRST_NUMBERS = np.array([0.27457499504089355, -0.10711026191711426], np.float32)


def test_small_images_and_other_ranks_are_numbers() -> None:
    space = spaces.Dict(
        {"tiny": spaces.Box(0.0, 1.0, (2, 9, 1)), "deep": spaces.Box(0, 1, (1,) * 4)}
    )
    streams = build(space).network.pi_encoder.streams
    assert isinstance(streams, MultiInput)
    assert streams.images == ()
    assert len(streams.numbers) == 2
    assert build(conv_filters=[]).network.pi_encoder.streams.images == ()


def test_flatten_matches_gymnasium_on_every_nesting() -> None:
    NESTED.seed(0)
    samples = [NESTED.sample() for _ in range(3)]
    want = np.stack([spaces.flatten(NESTED, sample) for sample in samples])
    batch = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *samples)
    np.testing.assert_allclose(flatten(NESTED, batch), want)


def test_zeros_are_typed_as_in_a_program() -> None:
    zeros = make_zeros(spaces.Tuple([spaces.Discrete(3), spaces.Box(-5, 5, (2,), np.int64)]), (4,))
    assert [(x.shape, x.dtype) for x in zeros] == [((4,), jnp.int32), ((4, 2), jnp.int32)]


def test_flatten_observations_chooses_one_vector() -> None:
    from jaxrl.assembly.assemble import assemble

    env = jax_env(NESTED, spaces.Discrete(2))
    assert assemble(small(env=env)).module.observation_space == NESTED
    flat = assemble(small(env=env).env_runners(flatten_observations=True)).module
    assert flat.observation_space.shape == (5 * 4 * 2 + 6 + 4 + 14 + 4 + 1 + 2,)
    with pytest.raises(ConfigError, match="flatten_observations=True has nothing to flatten"):
        assemble(small().env_runners(flatten_observations=True))


# --- refusals ---

SEQUENCE = spaces.Sequence(spaces.Discrete(3))


@pytest.mark.parametrize(
    "part",
    [
        SEQUENCE,
        spaces.Text(3),
        spaces.Graph(spaces.Discrete(2), None),
        spaces.OneOf([spaces.Discrete(2), spaces.Box(0, 1, ())]),
    ],
    ids=lambda part: type(part).__name__,
)
def test_spaces_without_a_shape_are_refused_by_their_path(part: Any) -> None:
    space = spaces.Dict({"a": spaces.Tuple([spaces.Discrete(2), part])})
    with pytest.raises(SpaceError) as caught:
        RLModuleSpec(observation_space=space, action_space=spaces.Discrete(2)).build()
    sentence = str(caught.value)
    assert "observation_space['a'][1]" in sentence
    assert type(part).__name__ in sentence
    assert "use Box, Discrete" in sentence
    from jaxrl.assembly.assemble import assemble

    with pytest.raises(JaxrlError) as caught:
        assemble(small(env=jax_env(space, spaces.Discrete(2))))
    assert "observation_space['a'][1]" in str(caught.value)


@pytest.mark.parametrize(
    ("space", "settings", "words"),
    [
        (
            spaces.Dict({"x": spaces.Box(0, 1, (3,))}),
            {"conv_filters": [[4, 2, 1]]},
            "need an image",
        ),
        (spaces.Dict({"x": spaces.Box(0, 1, (3,))}), {"embedding_size": 3}, "embedding_size=3"),
        (spaces.Box(0, 1, (3,)), {"embedding_size": 3}, "embedding_size=3"),
        (spaces.Box(0, 1, (3,)), {"fusionnet_hiddens": [8]}, r"fusionnet_hiddens=\[8\]"),
        (NESTED, {"embedding_size": 0}, "embedding_size is 0"),
        (spaces.Dict({}), {}, "has no parts"),
    ],
)
def test_settings_that_cannot_work_are_refused(space: Any, settings: Any, words: str) -> None:
    with pytest.raises(JaxrlError, match=words):
        build(space, **settings)


def test_names_of_parts() -> None:
    assert format_path("observation_space", ("a", 1)) == "observation_space['a'][1]"
    assert [path for path, _ in get_leaf_spaces(NESTED)][:3] == [
        ("image",),
        ("plane",),
        ("rest", 0),
    ]
