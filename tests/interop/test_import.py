"""Imports into an Algorithm: what it does with them, and what is wrong with a file."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl import import_weights
from jaxrl.errors import ConfigError, ModuleError
from jaxrl.interop import convert_weights
from jaxrl.interop.sources import read_arrays
from tests.helpers import small
from tests.interop.test_parity import FIXTURES, init, load_expected, make_module


def read(name: str) -> dict[str, np.ndarray]:
    with np.load(FIXTURES / f"{name}.npz") as arrays:
        return {key: arrays[key] for key in arrays.files}


@pytest.fixture(scope="module")
def algorithm() -> Any:
    config = small().rl_module(model_config={"fcnet_hiddens": [8, 7]}).debugging(loggers=[])
    with config.build() as built:
        yield built


def get_leaves(algorithm: Any) -> list[np.ndarray]:
    return jax.tree.leaves(algorithm.get_weights())


def test_an_algorithm_acts_as_the_imported_policy_and_trains_on(algorithm: Any) -> None:
    assert import_weights(algorithm, FIXTURES / "sb3-ppo.npz", "sb3") == []
    expected = load_expected("sb3-ppo")
    obs = expected["obs"]
    best = expected["inputs"].argmax(axis=-1)
    assert len(set(best)) == 2
    module = algorithm.get_module()
    assert (module.forward_inference({"obs": obs})["actions"] == best).all()
    inside = np.abs(obs[:, 2]) < 0.4  # the bound of CartPole's angle
    assert (algorithm.compute_actions(obs[inside], explore=False) == best[inside]).all()
    assert algorithm.train()["num_env_steps_sampled"] == 128


def test_statistics_of_vec_normalize_become_those_of_the_filter() -> None:
    config = small(env="Pendulum-v1").debugging(loggers=[])
    config.environment(normalize_actions=False, clip_actions=True)
    config.env_runners(observation_filter="MeanStdFilter")
    config.rl_module(model_config={"fcnet_hiddens": [8, 7], "free_log_std": True})
    expected = load_expected("sb3-ppo-normalized")
    with config.build() as algorithm:
        assert import_weights(algorithm, FIXTURES / "sb3-ppo-normalized.npz", "sb3") == []
        moments = jax.tree.leaves(
            algorithm.state.connectors.obs, is_leaf=lambda x: hasattr(x, "normalize")
        )[0]
        seen = moments.normalize(expected["obs"])
        out = algorithm.get_module().forward_train({"obs": seen})
        np.testing.assert_allclose(out["action_dist_inputs"], expected["inputs"], atol=1e-5)
        np.testing.assert_allclose(out["vf_preds"], expected["values"], atol=1e-5)
        state = dict(read("sb3-ppo-normalized"))
        del state["obs_rms.var"]
        with pytest.raises(ModuleError, match=r"obs_rms\.var is missing"):
            import_weights(algorithm, state, "sb3")
        for name in ("obs_rms.mean", "obs_rms.count"):
            del state[name]
        with pytest.raises(ModuleError, match=r'no obs_rms\.mean .*"NoFilter"'):
            import_weights(algorithm, state, "sb3")


class Tensor:
    """The methods of torch's tensors that a state dict needs."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def detach(self) -> "Tensor":
        return self

    cpu = float = detach

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self.array, dtype)


def test_a_state_dict_of_tensors_is_read_by_their_own_methods(algorithm: Any) -> None:
    import_weights(algorithm, FIXTURES / "sb3-ppo.npz", "sb3")
    expected = get_leaves(algorithm)
    tensors = {name: Tensor(array) for name, array in read("sb3-ppo").items()}
    assert import_weights(algorithm, tensors, "sb3") == []
    assert all(map(np.array_equal, get_leaves(algorithm), expected))


def test_rllibs_modules_come_by_name(algorithm: Any) -> None:
    assert import_weights(algorithm, {"default_policy": read("rllib-ppo")}, "rllib") == []
    expected = load_expected("rllib-ppo")
    out = algorithm.get_module().forward_train({"obs": expected["obs"]})
    np.testing.assert_allclose(out["action_dist_inputs"], expected["inputs"], atol=1e-5)


OWN: dict[str, Any] = {
    **{
        f"mlp_extractor.{theirs}_net.{2 * i}": f"{ours}_encoder/mlp/dense_{i}"
        for theirs, ours in (("policy", "pi"), ("value", "vf"))
        for i in range(2)
    },
    "action_net": "pi_head/out",
    "value_net": "vf_head/out",
}


def test_a_mapping_of_ones_own_names_each_layer() -> None:
    module = make_module("sb3-ppo")
    params = [
        convert_weights(FIXTURES / "sb3-ppo.npz", mapping, module, init(module))
        for mapping in ("sb3", OWN)
    ]
    assert jax.tree.all(jax.tree.map(np.array_equal, *params))
    arrays: Mapping[str, np.ndarray] = {
        "/".join(key.key for key in path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(params[0])
    }
    same = convert_weights(arrays, {name: name for name in arrays}, module, init(module))
    assert jax.tree.all(jax.tree.map(np.array_equal, params[0], same))


def changed(**changes: Any) -> dict[str, Any]:
    """SB3's policy with other arrays; None leaves one out."""
    state = {**read("sb3-ppo"), **{name.replace("__", "."): a for name, a in changes.items()}}
    return {name: array for name, array in state.items() if array is not None}


def without(*prefixes: str) -> dict[str, Any]:
    return {k: v for k, v in read("sb3-ppo").items() if not k.startswith(prefixes)}


PROBLEMS: dict[str, tuple[Any, Any, str]] = {
    "missing layer": (
        without("mlp_extractor.policy_net.2"),
        "sb3",
        r"pi_encoder/mlp/dense_1 \(dense layer\) is missing: in the policy network, the file has .*8, dense layer 2, and the module dense layer 8, dense layer 7, dense layer 2",
    ),
    "missing network": (
        without("mlp_extractor.value_net", "value_net"),
        "sb3",
        "the value network's dense layer vf_head/out is missing in the file",
    ),
    "layer left over": (
        changed(mlp_extractor__policy_net__4__weight=np.zeros((7, 7))),
        "sb3",
        r"mlp_extractor.policy_net.4 \(dense layer of 7\) is left over",
    ),
    "array left over": (
        changed(extra__scale=np.zeros(3)),
        "sb3",
        r"extra.scale \(3,\) is left over, nothing in the module takes it",
    ),
    "transposed": (
        changed(mlp_extractor__policy_net__0__weight=np.zeros((4, 8))),
        "sb3",
        "policy_net.0 gives pi_encoder/mlp/dense_0/kernel the shape .8, 4., .* it is transposed",
    ),
    "other size": (
        changed(mlp_extractor__policy_net__0__weight=np.zeros((9, 4))),
        "sb3",
        "the shape .4, 9., expected .4, 8.",
    ),
    "log_std": (
        changed(log_std=np.zeros(2)),
        "sb3",
        "log_std .2,. is left over: .* needs model_config={'free_log_std': True}",
    ),
    "filter without a place": (
        changed(obs_rms__mean=np.zeros(4), obs_rms__var=np.ones(4), obs_rms__count=np.float32(9)),
        "sb3",
        'obs_rms has no place: set env_runners.observation_filter="MeanStdFilter".',
    ),
    "NaN": (changed(action_net__bias=np.full(2, np.nan)), "sb3", "action_net.bias in .* has NaN"),
    "no numbers": (changed(action_net__bias=np.array(["a"])), "sb3", "not an array of numbers"),
    "no arrays": ({}, "sb3", "no arrays in the state dict"),
    "no state dict": (3, "sb3", "must be the path of a .npz, .safetensors or .h5 file.*got int"),
    "other library": (read("rllib-ppo"), "sb3", "encoder.actor_encoder.net.mlp.0.weight .* left"),
    "unknown layer of mine": (
        changed(),
        {**OWN, "action_net": "pi_head/oot"},
        "the module has no layer 'pi_head/oot'. Did you mean 'pi_head/out'?",
    ),
    "unknown layer of theirs": (
        changed(),
        {**OWN, "action_nets": "pi_head/out"},
        "the source has no 'action_nets'. Did you mean 'action_net'?",
    ),
    "left out": (changed(), {**OWN, "value_net": None}, "nothing in the file is vf_head/out/bias"),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_a_problem_is_one_sentence_and_changes_nothing(algorithm: Any, case: str) -> None:
    source, mapping, message = PROBLEMS[case]
    before = get_leaves(algorithm)
    with pytest.raises(ModuleError, match=message) as raised:
        import_weights(algorithm, source, mapping)
    assert "\n" not in str(raised.value)
    assert all(map(np.array_equal, before, get_leaves(algorithm)))


def test_without_strict_what_matches_is_set(algorithm: Any) -> None:
    import_weights(algorithm, FIXTURES / "sb3-ppo.npz", "sb3")
    before = algorithm.get_weights()["default_policy"]
    state = {name: 2.0 * array for name, array in without("value_net").items()}
    problems = import_weights(algorithm, state, "sb3", strict=False)
    assert problems
    assert all("vf_head/out" in problem for problem in problems)
    after = algorithm.get_weights()["default_policy"]
    assert np.array_equal(after["vf_head"]["out"]["kernel"], before["vf_head"]["out"]["kernel"])
    kernel = before["pi_head"]["out"]["kernel"]
    np.testing.assert_array_equal(after["pi_head"]["out"]["kernel"], 2.0 * kernel)


def test_critics_of_rllibs_sac_are_another_architecture() -> None:
    model = {"fcnet_hiddens": [8, 7], "fcnet_activation": "relu", "head_fcnet_hiddens": [6]}
    config = small("SAC").rl_module(model_config=model).debugging(loggers=[])
    state = dict(read("rllib-sac"))
    name = "pi_encoder.net.mlp.0.weight"
    state[name] = state[name][:, :3]  # Pendulum observes three numbers
    with config.build() as algorithm:
        with pytest.raises(ModuleError, match="critic/critics_0 cannot be imported"):
            import_weights(algorithm, state, "rllib")
        problems = import_weights(algorithm, state, "rllib", strict=False)
        assert len(problems) == 2
        weights = algorithm.get_weights()["default_policy"]["policy"]
        np.testing.assert_array_equal(weights["encoder"]["mlp"]["dense_0"]["kernel"], state[name].T)


@pytest.mark.parametrize(("algo", "name"), [("DQN", "sb3-dqn"), ("SAC", "sb3-sac")])
def test_target_networks_become_copies(algo: str, name: str) -> None:
    model = {"fcnet_hiddens": [8, 7], "fcnet_activation": "relu"}
    config = small(algo).rl_module(model_config=model).debugging(loggers=[])
    if algo == "DQN":
        with config.copy().build() as dueling, pytest.raises(ModuleError, match="dueling=False"):
            import_weights(dueling, FIXTURES / f"{name}.npz", "sb3")
        config.training(dueling=False)
    with config.build() as algorithm:
        assert import_weights(algorithm, FIXTURES / f"{name}.npz", "sb3") == []
        params = algorithm.get_weights()["default_policy"]
        followed = params if algo == "DQN" else params["critic"]
        assert jax.tree.all(
            jax.tree.map(np.array_equal, algorithm.state.learner.target.params, followed)
        )


def test_units_of_actions_are_checked() -> None:
    config = small(env="Pendulum-v1").debugging(loggers=[])
    config.rl_module(model_config={"fcnet_hiddens": [8, 7], "free_log_std": True})
    with config.build() as algorithm:
        state = {k: v for k, v in read("sb3-ppo-normalized").items() if "obs_rms" not in k}
        with pytest.raises(ModuleError, match="normalize_actions=False, clip_actions=True"):
            import_weights(algorithm, state, "sb3")


@pytest.mark.parametrize("name", ["model.zip", "policy.pt", "policy.pth", "policy.txt"])
def test_pickles_are_refused_with_the_conversion(algorithm: Any, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(ModuleError, match=re.escape("numpy.savez('policy.npz', **state)")):
        import_weights(algorithm, path, "sb3")


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_a_damaged_file_is_an_error(algorithm: Any, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"policy.{suffix}"
    with pytest.raises(ModuleError, match="There is no file"):
        import_weights(algorithm, path, "sb3")
    path.write_bytes((FIXTURES / f"sb3-ppo.{suffix}").read_bytes()[:500])
    with pytest.raises(ModuleError, match=f"policy.{suffix} is not"):
        import_weights(algorithm, path, "sb3")


def test_compressed_weights_with_other_bits_are_an_error(tmp_path: Path) -> None:
    path, rng = tmp_path / "policy.npz", np.random.default_rng(0)
    np.savez_compressed(path, weight=np.zeros((5, 5), np.float32), bias=np.ones(7))
    content, num_refused = path.read_bytes(), 0
    for _ in range(200):
        damaged = bytearray(content)
        for i in rng.integers(len(content), size=3):
            damaged[i] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        try:
            read_arrays(path)
        except ModuleError:
            num_refused += 1
    assert num_refused > 100


def test_no_pickle_in_an_npz_file_is_loaded(algorithm: Any, tmp_path: Path) -> None:
    path = tmp_path / "policy.npz"
    np.savez(path, weight=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ModuleError, match=r"not an \.npz file of plain arrays"):
        import_weights(algorithm, path, "sb3")


def test_an_unknown_mapping_is_an_error(algorithm: Any) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'rllib'"):
        import_weights(algorithm, FIXTURES / "sb3-ppo.npz", "rlib")
    with pytest.raises(ConfigError, match=r"mapping must be 'sb3', 'rllib', or a dict .* got 3"):
        import_weights(algorithm, FIXTURES / "sb3-ppo.npz", 3)  # type: ignore[arg-type]


def test_the_conversion_that_is_proposed_writes_what_is_read(tmp_path: Path) -> None:
    from jaxrl.interop.sources import _CONVERSION

    class Array(np.ndarray):
        def numpy(self) -> np.ndarray:
            return np.asarray(self)

    class Model:
        class policy:
            @staticmethod
            def state_dict() -> dict[str, Any]:
                return {name: array.view(Array) for name, array in read("sb3-ppo").items()}

    source = _CONVERSION.replace("policy.npz", str(tmp_path / "policy.npz"))
    exec(source, {"model": Model, "numpy": np})
    module = make_module("sb3-ppo")
    convert_weights(tmp_path / "policy.npz", "sb3", module, init(module))
