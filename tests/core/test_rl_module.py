"""The default module, custom modules, and what is refused before anything compiles."""

import functools
import json
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.core.default_module import ActorCriticModule
from jaxrl.core.model_config import MODEL_SETTINGS
from jaxrl.core.rl_module import RLModule, RLModuleSpec, check_module
from jaxrl.core.types import Columns
from jaxrl.errors import ConfigError, ModuleError, SpaceError

VECTOR = spaces.Box(-1.0, 1.0, (4,))
SMALL_IMAGE = spaces.Box(0, 255, (10, 10, 2), np.uint8)
TINY_IMAGE = spaces.Box(0, 255, (4, 4, 1), np.uint8)
ACTION_SPACES = {
    "discrete": spaces.Discrete(3),
    "multi": spaces.MultiDiscrete([2, 3]),
    "box": spaces.Box(-1.0, 1.0, (2,)),
}
B = 5


def _build(action="discrete", obs=VECTOR, **model_config):
    space = ACTION_SPACES[action] if isinstance(action, str) else action
    return RLModuleSpec(
        observation_space=obs,
        action_space=space,
        model_config={"fcnet_hiddens": [8], **model_config},
    ).build()


def _params(module, seed=0):
    return jax.jit(module.init)(jax.random.key(seed))


def _obs(space=VECTOR, batch=(B,), seed=0):
    rng = np.random.default_rng(seed)
    if np.issubdtype(space.dtype, np.floating):
        return jnp.asarray(rng.normal(size=(*batch, *space.shape)), space.dtype)
    return jnp.asarray(rng.integers(0, space.high.max(), (*batch, *space.shape)), space.dtype)


def _explore(module, params, obs, seed=1):
    num = jax.tree.leaves(obs)[0].shape[0]
    keys = jax.random.split(jax.random.key(seed), num)

    def act(params, obs, keys):
        return module.forward_exploration(
            params, obs, module.initial_carry(num), {}, None, jnp.arange(num), module.draw(keys)
        )

    return jax.jit(act)(params, obs, keys)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("action", ACTION_SPACES)
def test_forward_methods_agree(action, shared):
    module = _build(action, vf_share_layers=shared)
    params, obs = _params(module), _obs()
    out = _explore(module, params, obs)
    trained = jax.jit(module.forward_train)(params, {Columns.OBS: obs})
    inputs = out[Columns.ACTION_DIST_INPUTS]
    tolerance = {"rtol": 1e-5, "atol": 1e-6}
    np.testing.assert_allclose(inputs, trained[Columns.ACTION_DIST_INPUTS], **tolerance)
    values = module.compute_values(params, obs)
    np.testing.assert_allclose(trained[Columns.VF_PREDS], values, **tolerance)

    distribution = module.action_dist(inputs)
    actions = out[Columns.ACTIONS]
    assert module.action_space.contains(np.asarray(actions[0])) or action == "box"
    np.testing.assert_allclose(
        out[Columns.ACTION_LOGP], distribution.log_prob(actions), **tolerance
    )
    inference = module.forward_inference(params, obs)
    np.testing.assert_array_equal(inference[Columns.ACTIONS], distribution.mode())
    assert Columns.VF_PREDS not in out

    stacked = module.forward_train(params, {Columns.OBS: obs.reshape(1, B, 4)})
    assert stacked[Columns.VF_PREDS].shape == (1, B)
    np.testing.assert_allclose(stacked[Columns.ACTION_DIST_INPUTS][0], inputs, **tolerance)


def test_each_environment_draws_from_its_own_key():
    module = _build("box")
    params, obs = _params(module), jnp.ones((B, 4))
    keys = jax.random.split(jax.random.key(3), B)

    def act(obs, keys):
        index = jnp.arange(obs.shape[0])
        out = module.forward_exploration(params, obs, None, {}, None, index, module.draw(keys))
        return out[Columns.ACTIONS]

    with jax.debug_key_reuse(False):
        together, alone = act(obs, keys), act(obs[2:3], keys[2:3])
    np.testing.assert_allclose(together[2:3], alone, rtol=1e-5)
    assert len(np.unique(together[:, 0])) == B


def test_exploration_does_not_touch_the_value_network():
    module = _build()
    params = _params(module)
    poisoned = {
        name: jax.tree.map(lambda x: x * jnp.nan, part) if name.startswith("vf_") else part
        for name, part in params.items()
    }
    out = _explore(module, poisoned, _obs())
    assert jnp.isfinite(out[Columns.ACTION_LOGP]).all()
    pruned = {name: part for name, part in params.items() if not name.startswith("vf_")}
    assert module.forward_inference(pruned, _obs())[Columns.ACTIONS].shape == (B,)


def test_parameters_are_plain_and_few():
    params = _params(_build(fcnet_hiddens=[8, 8]))
    assert sorted(params) == ["pi_encoder", "pi_head", "vf_encoder", "vf_head"]
    assert len(jax.tree.leaves(params)) == 12
    assert type(params) is dict
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(params))
    shared = _params(_build(vf_share_layers=True))
    assert sorted(shared) == ["encoder", "pi_head", "vf_head"]


def test_policy_and_value_start_from_different_numbers():
    params = _params(_build())
    pi, vf = (params[n]["mlp"]["dense_0"]["kernel"] for n in ("pi_encoder", "vf_encoder"))
    assert (pi != vf).any()


@pytest.mark.parametrize(
    ("shape", "dtype", "high"), [((4, 4, 1), np.uint8, 255), ((4, 4, 1), np.uint8, 1)]
)
def test_integer_images_are_scaled_by_their_upper_bound(shape, dtype, high):
    integer = spaces.Box(0, high, shape, dtype)
    real = spaces.Box(0.0, 1.0, shape)
    module, reference = _build(obs=integer), _build(obs=real)
    params = _params(module)
    obs = jnp.asarray(np.random.default_rng(0).integers(0, high + 1, (3, *shape)), dtype)
    np.testing.assert_allclose(
        module.compute_values(params, obs),
        reference.compute_values(params, obs.astype(jnp.float32) / high),
        rtol=1e-4,
        atol=1e-6,
    )


@pytest.mark.parametrize("shape", [(), (5,), (3, 4)])
def test_other_boxes_are_flattened(shape):
    box = spaces.Box(-1.0, 1.0, shape)
    module = _build(obs=box)
    params, obs = _params(module), _obs(box)
    size = int(np.prod(shape, dtype=int))
    assert params["pi_encoder"]["mlp"]["dense_0"]["kernel"].shape == (size, 8)
    assert module.compute_values(params, obs).shape == (B,)


def _masked_spaces():
    return spaces.Dict({"action_mask": spaces.MultiBinary(3), "observations": VECTOR})


@pytest.mark.parametrize("seed", [0, 1])
def test_action_masks_in_the_observation_reach_the_distribution(seed):
    module = _build(obs=_masked_spaces())
    params = _params(module, seed)
    mask = jnp.asarray(np.eye(3, dtype=np.int8)[np.arange(B) % 3])
    obs = {"action_mask": mask, "observations": _obs()}
    legal = jnp.arange(B) % 3
    np.testing.assert_array_equal(_explore(module, params, obs, seed)[Columns.ACTIONS], legal)
    np.testing.assert_array_equal(module.forward_inference(params, obs)[Columns.ACTIONS], legal)
    out = module.forward_train(params, {Columns.OBS: obs})
    trained = module.action_dist(out[Columns.ACTION_DIST_INPUTS], obs)
    np.testing.assert_allclose(trained.entropy(), np.zeros(B), atol=1e-6)


ORTHOGONAL = {"gain": 3.0}
SETTINGS = {
    "fcnet_hiddens": {"fcnet_hiddens": [9]},
    "fcnet_activation": {"fcnet_activation": "relu"},
    "fcnet_kernel_initializer": {"fcnet_kernel_initializer": "orthogonal"},
    "fcnet_kernel_initializer_kwargs": {
        "fcnet_kernel_initializer": "orthogonal",
        "fcnet_kernel_initializer_kwargs": ORTHOGONAL,
    },
    "fcnet_bias_initializer": {"fcnet_bias_initializer": "ones"},
    "fcnet_bias_initializer_kwargs": {
        "fcnet_bias_initializer": "constant",
        "fcnet_bias_initializer_kwargs": {"val": 0.5},
    },
    "fcnet_use_layernorm": {"fcnet_use_layernorm": True},
    "conv_filters": {"conv_filters": [[4, 3, 2]]},
    "conv_activation": {"conv_activation": "tanh"},
    "conv_kernel_initializer": {"conv_kernel_initializer": "orthogonal"},
    "conv_kernel_initializer_kwargs": {
        "conv_kernel_initializer": "orthogonal",
        "conv_kernel_initializer_kwargs": ORTHOGONAL,
    },
    "conv_bias_initializer": {"conv_bias_initializer": "ones"},
    "conv_bias_initializer_kwargs": {
        "conv_bias_initializer": "constant",
        "conv_bias_initializer_kwargs": {"val": 0.5},
    },
    "head_fcnet_hiddens": {"head_fcnet_hiddens": [7]},
    "head_fcnet_activation": {"head_fcnet_activation": "tanh"},
    "head_fcnet_kernel_initializer": {"head_fcnet_kernel_initializer": "orthogonal"},
    "head_fcnet_kernel_initializer_kwargs": {
        "head_fcnet_kernel_initializer": "orthogonal",
        "head_fcnet_kernel_initializer_kwargs": ORTHOGONAL,
    },
    "head_fcnet_bias_initializer": {"head_fcnet_bias_initializer": "ones"},
    "head_fcnet_bias_initializer_kwargs": {
        "head_fcnet_bias_initializer": "constant",
        "head_fcnet_bias_initializer_kwargs": {"val": 0.5},
    },
    "head_fcnet_use_layernorm": {"head_fcnet_use_layernorm": True},
    "pi_head_kernel_initializer": {"pi_head_kernel_initializer": "orthogonal"},
    "pi_head_kernel_initializer_kwargs": {
        "pi_head_kernel_initializer": "orthogonal",
        "pi_head_kernel_initializer_kwargs": ORTHOGONAL,
    },
    "vf_head_kernel_initializer": {"vf_head_kernel_initializer": "orthogonal"},
    "vf_head_kernel_initializer_kwargs": {
        "vf_head_kernel_initializer": "orthogonal",
        "vf_head_kernel_initializer_kwargs": ORTHOGONAL,
    },
    "free_log_std": {"free_log_std": True},
    "vf_share_layers": {"vf_share_layers": True},
}


def _base(name, settings):
    """The settings beside which one is changed: an initialiser's own name for its keywords."""
    base = {"fcnet_hiddens": [8], "head_fcnet_hiddens": [6]}
    if name.endswith("_kwargs"):
        initializer = name.removesuffix("_kwargs")
        base[initializer] = settings[initializer]
        if settings[initializer] == "constant":
            base[name] = {"val": 0.25}
    return base


@functools.cache
def _program(image, config):
    """What initialises and evaluates a module, as text: traced, since compiling takes seconds."""
    space = TINY_IMAGE if image else VECTOR
    module = _build("box", space, **json.loads(config))

    def initial(key, obs):
        params = module.init(key)
        return module.forward_train(params, {Columns.OBS: obs})

    jaxpr = str(jax.make_jaxpr(initial)(jax.random.key(0), _obs(space)))
    return re.sub(r"0x[0-9a-f]+", "", jaxpr)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_has_an_effect(name):
    settings, image = SETTINGS[name], name.startswith("conv_")
    base = _base(name, settings)
    before = _program(image, json.dumps(base, sort_keys=True))
    assert _program.__wrapped__(image, json.dumps(base)) == before
    assert _program(image, json.dumps({**base, **settings}, sort_keys=True)) != before


def test_every_setting_is_in_the_table():
    assert {*SETTINGS, "log_std_clip_param"} == set(MODEL_SETTINGS)


def test_a_setting_changes_only_what_it_names():
    """Only the policy's output kernel: everything else starts from the same numbers."""
    plain = _params(_build(head_fcnet_hiddens=[6]))
    changed = _params(
        _build(
            head_fcnet_hiddens=[6],
            pi_head_kernel_initializer="orthogonal",
            pi_head_kernel_initializer_kwargs={"gain": 0.01},
        )
    )
    kernel = changed["pi_head"]["out"]["kernel"]
    np.testing.assert_allclose(kernel.T @ kernel, 1e-4 * np.eye(3), atol=1e-7)
    changed["pi_head"]["out"]["kernel"] = plain["pi_head"]["out"]["kernel"]
    jax.tree.map(np.testing.assert_array_equal, plain, changed)


def test_log_std_clip_param_reaches_the_distribution():
    inputs = jnp.full((1, 4), 9.0)
    assert (_build("box", log_std_clip_param=2.0).action_dist(inputs).log_std == 2.0).all()
    assert (_build("box").action_dist(inputs).log_std == 9.0).all()


def test_free_log_std_does_not_depend_on_the_observation():
    module = _build("box", free_log_std=True)
    params = _params(module)
    params["log_std"] = jnp.array([0.5, -0.5])
    log_std = module.action_dist(
        module.forward_train(params, {Columns.OBS: _obs()})[Columns.ACTION_DIST_INPUTS]
    ).log_std
    np.testing.assert_array_equal(log_std, np.tile([0.5, -0.5], (B, 1)))
    assert params["pi_head"]["out"]["kernel"].shape[1] == 2


# A custom module, complete: a network, and its outputs by name.
class TinyNetwork(nn.Module):
    num_outputs: int

    @nn.compact
    def __call__(self, obs):
        x = nn.relu(nn.Dense(16)(obs))
        return nn.Dense(self.num_outputs)(x), nn.Dense(1)(x)[..., 0]


class TinyModule(RLModule):
    def setup(self):
        self.network = TinyNetwork(self.distribution.input_dim)

    def _forward(self, params, obs):
        inputs, values = self.network.apply({"params": params}, obs)
        return {Columns.ACTION_DIST_INPUTS: inputs, Columns.VF_PREDS: values}


@pytest.mark.parametrize("action", ACTION_SPACES)
def test_a_custom_module_of_a_dozen_lines(action):
    module = RLModuleSpec(
        module_class=TinyModule, observation_space=VECTOR, action_space=ACTION_SPACES[action]
    ).build()
    check_module(module, needs_values=True)
    params = _params(module)
    assert _explore(module, params, _obs())[Columns.ACTION_LOGP].shape == (B,)
    assert module.forward_inference(params, _obs())[Columns.ACTIONS].shape[0] == B
    assert module.compute_values(params, _obs()).shape == (B,)


class LinearModule(RLModule):
    """Without flax, and with settings of its own."""

    def init(self, key):
        shape = (self.observation_space.shape[0], self.distribution.input_dim)
        return {"w": self.model_config["scale"] * jax.random.normal(key, shape)}

    def _forward(self, params, obs):
        return {Columns.ACTION_DIST_INPUTS: obs @ params["w"]}


def test_a_custom_module_without_flax_or_values():
    spec = RLModuleSpec(
        module_class=LinearModule,
        observation_space=VECTOR,
        action_space=ACTION_SPACES["box"],
        model_config={"scale": 0.1},
    )
    module = spec.build()
    assert _explore(module, _params(module), _obs())[Columns.ACTIONS].shape == (B, 2)
    with pytest.raises(ModuleError, match="gives no 'vf_preds'"):
        check_module(module, needs_values=True)


class WrongWidth(TinyModule):
    def setup(self):
        self.network = TinyNetwork(self.distribution.input_dim + 1)


class ValueColumn(TinyModule):
    def _forward(self, params, obs):
        out = super()._forward(params, obs)
        return {**out, Columns.VF_PREDS: out[Columns.VF_PREDS][..., None]}


class NoInputs(TinyModule):
    def _forward(self, params, obs):
        return {"logits": super()._forward(params, obs)[Columns.ACTION_DIST_INPUTS]}


class IntegerInputs(TinyModule):
    def _forward(self, params, obs):
        return jax.tree.map(lambda x: x.astype(jnp.int32), super()._forward(params, obs))


class Raises(TinyModule):
    def _forward(self, params, obs):
        return {Columns.ACTION_DIST_INPUTS: obs @ jnp.ones((3, 3))}


class NoNetwork(RLModule):
    pass


@pytest.mark.parametrize(
    ("module_class", "message"),
    [
        (WrongWidth, r"'action_dist_inputs' of shape \(3, 4\).*Discrete\(3\) needs 3 numbers"),
        (ValueColumn, r"'vf_preds' of shape \(3, 1\).*one number an observation"),
        (NoInputs, "gives no 'action_dist_inputs'; it gives: logits"),
        (IntegerInputs, "dtype int32; it must be floating"),
        (Raises, "Raises cannot be traced"),
        (NoNetwork, "NoNetwork cannot be traced.*network"),
        (TinyNetwork, "must be a subclass"),
        ("TinyModule", "must be a subclass"),
    ],
)
def test_modules_that_do_not_fit_are_refused_in_one_sentence(module_class, message):
    spec = RLModuleSpec(
        module_class=module_class, observation_space=VECTOR, action_space=ACTION_SPACES["discrete"]
    )
    with pytest.raises(ModuleError, match=message) as error:
        spec.build()
    assert "\n" not in str(error.value)


def test_a_missing_space_is_named():
    with pytest.raises(ModuleError, match="action_space is None"):
        RLModuleSpec(observation_space=VECTOR).build()


@pytest.mark.parametrize(
    ("obs", "action", "settings", "error", "message"),
    [
        (spaces.Discrete(4), "discrete", {}, SpaceError, "observes a Box, not Discrete"),
        (spaces.Dict({"a": VECTOR}), "discrete", {}, SpaceError, r"\['a'\]: Box"),
        (_masked_spaces(), "box", {}, SpaceError, "masks are for Discrete"),
        (_masked_spaces(), "multi", {}, SpaceError, r"shape \(3,\).*needs \(5,\)"),
        (VECTOR, spaces.Text(3), {}, SpaceError, "Text"),
        (VECTOR, "discrete", {"free_log_std": True}, ConfigError, "free_log_std needs a cont"),
        (VECTOR, "discrete", {"conv_filters": [[4, 2, 1]]}, ConfigError, "need images"),
        (spaces.Box(0, 1, (30, 30, 3)), "box", {}, ConfigError, "no default conv_filters"),
        (
            SMALL_IMAGE,
            "box",
            {"conv_filters": [[4, 8, 1, "valid"], [4, 8, 1, "valid"]]},
            ConfigError,
            r"conv_filters\[1\] leaves nothing",
        ),
    ],
)
def test_the_default_module_refuses(obs, action, settings, error, message):
    with pytest.raises(error, match=message):
        _build(action, obs, **settings)


def test_images_may_be_flattened_or_convolved_without_a_channel_axis():
    flat = _build(obs=TINY_IMAGE, conv_filters=[])
    assert _params(flat)["pi_encoder"]["mlp"]["dense_0"]["kernel"].shape == (16, 8)
    board = spaces.Box(0.0, 1.0, (6, 6))
    module = _build(obs=board, conv_filters=[[4, 3, 1]])
    assert module.compute_values(_params(module), _obs(board)).shape == (B,)


def test_summary_lists_every_array_and_the_total():
    module = _build("box", free_log_std=True)
    table = module.summary()
    assert table.splitlines()[0] == "ActorCriticModule"
    for layer in ("pi_encoder/mlp/dense_0", "pi_head/out", "vf_encoder/mlp/dense_0", "vf_head/out"):
        assert layer in table
    number = sum(x.size for x in jax.tree.leaves(_params(module)))
    assert f"{number:,} parameters: {number:,} trainable, 0 not trainable" in table
    assert "4 x 8" in table
    assert isinstance(module, ActorCriticModule)
