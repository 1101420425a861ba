"""The default module: its forward methods, its settings, and what it refuses."""

import dataclasses
import functools
import json
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.assembly.assemble import warn_if_flattened
from jaxrl.config import get_algorithm_config
from jaxrl.core.types import Columns, ObsWithCarry
from jaxrl.errors import ConfigError, SpaceError
from jaxrl.modules.actor_critic import ActorCriticModule
from jaxrl.modules.model_config import (
    MODEL_SETTINGS,
    DefaultModelConfig,
    get_required_switches,
)
from tests.core.modules import (
    ACTION_SPACES,
    SMALL_IMAGE,
    TINY_IMAGE,
    VECTOR,
    B,
    build,
    explore,
    masked_spaces,
    params_of,
    some_obs,
)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("action", ACTION_SPACES)
def test_forward_methods_agree(action, shared):
    module = build(action, vf_share_layers=shared)
    params, obs = params_of(module), some_obs()
    out = explore(module, params, obs)
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
    np.testing.assert_allclose(inference[Columns.ACTIONS], distribution.mode(), **tolerance)
    assert Columns.VF_PREDS not in out

    stacked = module.forward_train(params, {Columns.OBS: obs.reshape(1, B, 4)})
    assert stacked[Columns.VF_PREDS].shape == (1, B)
    np.testing.assert_allclose(stacked[Columns.ACTION_DIST_INPUTS][0], inputs, **tolerance)


def test_each_environment_draws_from_its_own_key():
    module = build("box")
    params, obs = params_of(module), jnp.ones((B, 4))
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
    module = build()
    params = params_of(module)
    poisoned = {
        name: jax.tree.map(lambda x: x * jnp.nan, part) if name.startswith("vf_") else part
        for name, part in params.items()
    }
    out = explore(module, poisoned, some_obs())
    assert jnp.isfinite(out[Columns.ACTION_LOGP]).all()
    pruned = {name: part for name, part in params.items() if not name.startswith("vf_")}
    assert module.forward_inference(pruned, some_obs())[Columns.ACTIONS].shape == (B,)


def test_parameters_are_plain_and_few():
    params = params_of(build(fcnet_hiddens=[8, 8]))
    assert sorted(params) == ["pi_encoder", "pi_head", "vf_encoder", "vf_head"]
    assert len(jax.tree.leaves(params)) == 12
    assert type(params) is dict
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(params))
    shared = params_of(build(vf_share_layers=True))
    assert sorted(shared) == ["encoder", "pi_head", "vf_head"]


def test_policy_and_value_start_from_different_numbers():
    params = params_of(build())
    pi, vf = (params[n]["mlp"]["dense_0"]["kernel"] for n in ("pi_encoder", "vf_encoder"))
    assert (pi != vf).any()


@pytest.mark.parametrize(
    ("shape", "dtype", "high"), [((4, 4, 1), np.uint8, 255), ((4, 4, 1), np.uint8, 1)]
)
def test_integer_images_are_scaled_by_their_upper_bound(shape, dtype, high):
    integer = spaces.Box(0, high, shape, dtype)
    real = spaces.Box(0.0, 1.0, shape)
    module, reference = build(obs=integer), build(obs=real)
    params = params_of(module)
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
    module = build(obs=box)
    params, obs = params_of(module), some_obs(box)
    size = int(np.prod(shape, dtype=int))
    assert params["pi_encoder"]["mlp"]["dense_0"]["kernel"].shape == (size, 8)
    assert module.compute_values(params, obs).shape == (B,)


@pytest.mark.parametrize("seed", [0, 1])
def test_action_masks_in_the_observation_reach_the_distribution(seed):
    module = build(obs=masked_spaces())
    params = params_of(module, seed)
    mask = jnp.asarray(np.eye(3, dtype=np.int8)[np.arange(B) % 3])
    obs = {"action_mask": mask, "observations": some_obs()}
    legal = jnp.arange(B) % 3
    np.testing.assert_array_equal(explore(module, params, obs, seed)[Columns.ACTIONS], legal)
    np.testing.assert_array_equal(module.forward_inference(params, obs)[Columns.ACTIONS], legal)
    out = module.forward_train(params, {Columns.OBS: obs})
    trained = module.action_dist(out[Columns.ACTION_DIST_INPUTS], obs)
    np.testing.assert_allclose(trained.entropy(), np.zeros(B), atol=1e-6)


ORTHOGONAL, HALF = {"gain": 3.0}, {"val": 0.5}
SETTINGS = {
    **{
        f"{layers}_{what}": value
        for layers in ("fcnet", "conv", "head_fcnet", "fusionnet")
        for what, value in {
            "kernel_initializer": "orthogonal",
            "kernel_initializer_kwargs": ORTHOGONAL,
            "bias_initializer": "ones",
            "bias_initializer_kwargs": HALF,
            "use_layernorm": True,
        }.items()
    },
    **{f"{head}_head_kernel_initializer": "orthogonal" for head in ("pi", "vf")},
    **{f"{head}_head_kernel_initializer_kwargs": ORTHOGONAL for head in ("pi", "vf")},
    "fcnet_hiddens": [9],
    "critic_fcnet_hiddens": [9],
    "fcnet_block": "simba",
    "fcnet_activation": "relu",
    "conv_filters": [[4, 3, 2]],
    "conv_activation": "tanh",
    "head_fcnet_hiddens": [7],
    "head_fcnet_activation": "tanh",
    "fusionnet_hiddens": [4],
    "fusionnet_activation": "relu",
    "embedding_size": 3,
    "critic_only_observations": ["n"],
    "autoregressive_actions": True,
    "free_log_std": True,
    "vf_share_layers": True,
    "use_lstm": True,
    "lstm_cell_size": 5,
    "recurrent_layer_type": "gru",
    "recurrent_num_layers": 2,
    "use_attention": True,
    "attention_num_transformer_units": 2,
    "attention_dim": 12,
    "attention_num_heads": 3,
    "attention_head_dim": 5,
    "attention_memory_inference": 7,
    "attention_position_wise_mlp_dim": 9,
    "attention_init_gru_gate_bias": 0.5,
}
ELSEWHERE = {
    "critic_use_batchrenorm",
    "log_std_clip_param",
    "max_seq_len",
    "lstm_use_prev_action",
    "lstm_use_prev_reward",
    "attention_use_n_prev_actions",
    "attention_use_n_prev_rewards",
}
"""Settings whose effect is not in this module: in critics of actions, the plan, and connectors."""


PARTS = spaces.Dict({"x": VECTOR, "n": spaces.Discrete(3)})
SPECIAL = {"conv", "fusionnet", "embedding", "autoregressive", "critic"}
"""First words of settings that need other spaces than vectors and boxes."""


def _base(name):
    """The settings beside which one is changed: an initialiser's own name for its keywords."""
    base = {"fcnet_hiddens": [8], "head_fcnet_hiddens": [6]}
    if switches := get_required_switches(name):
        base[switches[0]] = True
    if name.endswith("_kwargs"):
        is_constant = SETTINGS[name] == HALF
        base[name.removesuffix("_kwargs")] = "constant" if is_constant else "orthogonal"
        if is_constant:
            base[name] = {"val": 0.25}
    return base


@functools.cache
def _program(kind, config):
    """Return the traced program of a module, as text, since compiling takes seconds."""
    parts = dict.fromkeys(("fusionnet", "embedding", "critic"), PARTS)
    space = {"conv": TINY_IMAGE, **parts}.get(kind, VECTOR)
    action = "multi" if kind == "autoregressive" else "box"
    module = build(action, space, **json.loads(config))

    def initial(key, obs):
        params = module.init(key)
        if module.is_stateful:
            obs = ObsWithCarry(obs=obs, carry=module.initial_carry(B))
        return module.forward_train(params, {Columns.OBS: obs})

    jaxpr = str(jax.make_jaxpr(initial)(jax.random.key(0), some_obs(space)))
    return re.sub(r"0x[0-9a-f]+", "", jaxpr)


_again = functools.cache(_program.__wrapped__)  # traced a second time, from the same settings


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_has_an_effect(name):
    kind = name.split("_")[0]
    kind = kind if kind in SPECIAL else "other"  # most settings share the programs before a change
    base = _base(name)
    before = _program(kind, json.dumps(base, sort_keys=True))
    assert _again(kind, json.dumps(base)) == before
    changed = {**base, name: SETTINGS[name]}
    assert _program(kind, json.dumps(changed, sort_keys=True)) != before


SIMBA = {"fcnet_block": "simba", "fcnet_hiddens": [6], "critic_fcnet_hiddens": [7, 7]}
BLOCKS = {"policy": [6], "critic": [7, 7, 7, 7], "value": [7, 7]}
"""Widths of the blocks of each part: two critics with two blocks each."""


@pytest.mark.parametrize(
    ("algo", "action", "settings", "widths"),
    [
        ("PPO", "multi", {}, {"pi_encoder": [6], "vf_encoder": [7, 7]}),
        ("IMPALA", "box", {"use_lstm": True}, {"pi_encoder": [6], "vf_encoder": [7, 7]}),
        ("PPO", "discrete", {"vf_share_layers": True}, {"encoder": [6]}),
        ("DQN", "discrete", {}, {"encoder": [6]}),
        ("PQN", "discrete", {"fcnet_use_layernorm": False}, {"encoder": [6]}),
        ("SAC", "box", {}, {"policy": [6], "critic": [7, 7, 7, 7]}),
        ("SAC", "discrete", {}, {"policy": [6], "critic": [7, 7, 7, 7]}),
        ("TD3", "box", {}, {"policy": [6], "critic": [7, 7, 7, 7]}),
        ("IQL", "box", {}, BLOCKS),
        ("BC", "box", {}, {"pi_encoder": [6], "vf_encoder": [7, 7]}),
        ("DT", "discrete", {}, {"encoder": [6]}),
    ],
)
def test_blocks_are_those_of_every_part(algo, action, settings, widths):
    config, space = get_algorithm_config(algo), ACTION_SPACES[action]
    config.rl_module(model_config={**SIMBA, **settings})
    if len(widths) == 1:
        with pytest.raises(ConfigError, match=r"critic_fcnet_hiddens=[\[(]7, 7[\])] "):
            config.get_rl_module_spec(VECTOR, space).build()
        config.rl_module(model_config={**SIMBA, **settings, "critic_fcnet_hiddens": None})
    config.training(**{"DQN": {"noisy": True}, "DT": {"target_return": 1.0}}.get(algo, {}))
    module = config.get_rl_module_spec(VECTOR, space).build()
    found = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(
        jax.eval_shape(module.init, jax.random.key(0))
    )[0]:
        names = [part.key for part in path]
        if names[-2].startswith("dense_") and names[-1] == "kernel":
            found.setdefault(names[0], []).append(leaf.shape[1])
            assert leaf.shape[0] == 4 * leaf.shape[1]
        assert (names[-1] == "kernel_sigma") <= (algo == "DQN")
    assert found == widths


def test_sizes_of_a_memory_need_its_switch():
    """One that is False by name keeps them, in copies too: a script may switch the memory."""
    for given in ({}, {"use_attention": False}):
        with pytest.raises(ConfigError, match="lstm_cell_size=8 has no effect without use_lstm"):
            DefaultModelConfig(lstm_cell_size=8, **given)
    sizes = {"lstm_cell_size": 8, "max_seq_len": 4}
    off = DefaultModelConfig(use_lstm=False, **sizes)
    for kept in (off, pickle.loads(pickle.dumps(off)), dataclasses.replace(off, fcnet_hiddens=[8])):
        assert (kept.is_recurrent, kept.lstm_cell_size, kept.max_seq_len) == (False, 8, 4)
    assert DefaultModelConfig.from_dict(off.to_dict()) == off
    assert dataclasses.replace(off, use_lstm=True).is_recurrent
    with pytest.raises(ConfigError, match="attention_dim=32 has no effect without use_attention"):
        DefaultModelConfig(use_lstm=False, attention_dim=32)


def test_every_setting_is_in_the_table():
    assert {*SETTINGS, *ELSEWHERE} == set(MODEL_SETTINGS)


def test_a_setting_changes_only_what_it_names():
    """Only the policy's output kernel: everything else starts from the same numbers."""
    plain = params_of(build(head_fcnet_hiddens=[6]))
    changed = params_of(
        build(
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
    assert (build("box", log_std_clip_param=2.0).action_dist(inputs).log_std == 2.0).all()
    assert (build("box").action_dist(inputs).log_std == 9.0).all()


def test_free_log_std_does_not_depend_on_the_observation():
    module = build("box", free_log_std=True)
    params = params_of(module)
    params["log_std"] = jnp.array([0.5, -0.5])
    log_std = module.action_dist(
        module.forward_train(params, {Columns.OBS: some_obs()})[Columns.ACTION_DIST_INPUTS]
    ).log_std
    np.testing.assert_array_equal(log_std, np.tile([0.5, -0.5], (B, 1)))
    assert params["pi_head"]["out"]["kernel"].shape[1] == 2


@pytest.mark.parametrize(
    ("obs", "action", "settings", "error", "message"),
    [
        (spaces.Dict({"a": spaces.Text(3)}), "discrete", {}, SpaceError, r"\['a'\] is Text"),
        (masked_spaces(), "box", {}, SpaceError, "masks are for Discrete"),
        (masked_spaces(), "multi", {}, SpaceError, r"shape \(3,\).*needs \(5,\)"),
        (VECTOR, spaces.Text(3), {}, SpaceError, "Text"),
        (VECTOR, "discrete", {"free_log_std": True}, ConfigError, "free_log_std needs a cont"),
        (VECTOR, "discrete", {"conv_filters": [[4, 2, 1]]}, ConfigError, "need images"),
        (spaces.Box(0, 1, (30, 30, 3)), "box", {}, ConfigError, "no default conv_filters"),
        (
            spaces.Box(0, 255, (4, 84, 84), np.uint8),
            "box",
            {},
            ConfigError,
            r"Images are \[H, W, C\]: move the first axis to the end, \(84, 84, 4\)",
        ),
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
        build(action, obs, **settings)


def test_a_large_image_that_is_flattened_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    for shape in ((1, 84, 80), (84, 80), (84, 80), (8, 8)):
        warn_if_flattened(build(obs=spaces.Box(0, 255, shape, np.uint8)))
    first, second = caplog.messages
    assert "(1, 84, 80) are flattened to 6720 inputs" in first
    assert "move the first axis to the end, (84, 80, 1)" in first
    assert "set conv_filters for [H, W]" in second


def test_images_may_be_flattened_or_convolved_without_a_channel_axis():
    flat = build(obs=TINY_IMAGE, conv_filters=[])
    assert params_of(flat)["pi_encoder"]["mlp"]["dense_0"]["kernel"].shape == (16, 8)
    board = spaces.Box(0.0, 1.0, (6, 6))
    module = build(obs=board, conv_filters=[[4, 3, 1]])
    assert module.compute_values(params_of(module), some_obs(board)).shape == (B,)


def test_summary_lists_every_array_and_the_total():
    module = build("box", free_log_std=True)
    table = module.summary()
    assert table.splitlines()[0] == "ActorCriticModule"
    for layer in ("pi_encoder/mlp/dense_0", "pi_head/out", "vf_encoder/mlp/dense_0", "vf_head/out"):
        assert layer in table
    number = sum(x.size for x in jax.tree.leaves(params_of(module)))
    assert f"{number:,} parameters: {number:,} trainable, 0 not trainable" in table
    assert "4 x 8" in table
    assert isinstance(module, ActorCriticModule)
