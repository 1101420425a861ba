"""An exported policy computes what the original computes, and parity notices where it does not."""

import copy
import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from jaxrl import Algorithm, JaxrlError
from jaxrl.config.registry import find_shipped_configs
from jaxrl.errors import ConfigError
from jaxrl.export.artifact import FORMATS
from jaxrl.export.examples import find_mask_key, record_examples, sample_observations
from jaxrl.export.numpy_program import NumpyPolicy
from jaxrl.export.onnx_policy import load_onnx
from jaxrl.export.parity import Check, compare, format_table
from jaxrl.export.stablehlo import load_stablehlo
from tests.export.exports import (
    CARTPOLE,
    CNN,
    LSTM,
    MASKED,
    REPRESENTATIVES,
    SAC,
    build,
    build_once,
    get_export,
    get_policy,
    load,
)
from tests.helpers import small

SEVERAL_POLICIES = {
    "multi_agent/connectfour-ppo",
    "multi_agent/multiagentcartpole-ppo",
    "multi_agent/rockpaperscissors-lstm-ppo",
    "multi_agent/rockpaperscissors-ppo",
    "multi_agent/tictactoe-league-ppo",
    "multi_agent/tictactoe-ppo",
    "multi_agent/speakerlistener-mappo",
    "multi_agent/speakerlistener-ppo",
    "sweeps/cartpole-ppo",
}
PREVIOUS = "memory/statelesscartpole-dqn"


def differing(checks: list[Check]) -> set[str]:
    return {check.name for check in checks if not check.is_equal}


@pytest.mark.representatives(*REPRESENTATIVES)
@pytest.mark.parametrize("config_id", sorted(set(find_shipped_configs()) - SEVERAL_POLICIES))
def test_every_shipped_config_exports(config_id: str, tmp_path: Path) -> None:
    if config_id in REPRESENTATIVES:
        export = get_export(config_id)
        policy = load(export, tmp_path / "exported")
        checks = compare(policy, export.examples)
        assert_equal(checks)
        return
    with build(config_id) as algorithm:
        worst = compare_formats(algorithm, tmp_path / "exported")
    print(f"{config_id:40}", *(f"{name} {number:.1e}" for name, number in worst.items()))


def compare_formats(algorithm: Algorithm, folder: Path) -> dict[str, float]:
    """The largest difference of each format, none of which differs."""
    algorithm.export(folder, formats=FORMATS)
    inference, actor = algorithm.get_policy().inference, algorithm.get_policy().actor
    examples = record_examples(inference, actor, [False, True], num_steps=6, seed=1)
    loaders = {"numpy": NumpyPolicy, "onnx": load_onnx, "stablehlo": load_stablehlo}
    assert set(loaders) == set(FORMATS)
    found = {name: compare(load_format(folder), examples) for name, load_format in loaders.items()}
    for checks in found.values():
        assert_equal(checks)
    return {name: max(check.worst for check in checks) for name, checks in found.items()}


@pytest.mark.slow
def test_residual_blocks_and_a_parallel_memory_export(tmp_path: Path) -> None:
    memory = {"use_lstm": True, "lstm_cell_size": 8, "recurrent_layer_type": "mingru"}
    config = (
        small()
        .debugging(loggers=[])
        .rl_module(model_config={"fcnet_block": "simba", "fcnet_hiddens": [8], **memory})
    )
    with config.build() as algorithm:
        compare_formats(algorithm, tmp_path / "exported")


def assert_equal(checks: list[Check]) -> None:
    assert {check.mode for check in checks} == {"greedy", "sample"}
    assert all(check.num_values for check in checks if check.name == "dist_inputs")
    assert differing(checks) == set(), "\n".join(format_table(checks))


def test_a_module_of_several_is_exported_by_its_id(tmp_path: Path) -> None:
    with build("multi_agent/multiagentcartpole-ppo") as algorithm:
        folder = Path(algorithm.export(tmp_path / "exported", policy_id="p1"))
        observations = np.random.default_rng(0).uniform(-0.4, 0.4, (32, 4)).astype(np.float32)
        wanted = [
            [
                algorithm.compute_single_action(x, policy_id=name, explore=False)
                for x in observations
            ]
            for name in ("p0", "p1")
        ]
        with pytest.raises(JaxrlError, match="policy_id is one of p0, p1"):
            algorithm.export(tmp_path / "other")
    policy = NumpyPolicy(folder, explore=False)
    assert [policy.act(x) for x in observations] == wanted[1] != wanted[0]


def test_a_sweep_has_no_policy_of_its_own() -> None:
    with pytest.raises(ConfigError, match="several runs"):
        build("sweeps/cartpole-ppo")


@pytest.mark.parametrize("config_id", [CARTPOLE, LSTM, MASKED])
def test_an_episode_has_the_actions_of_the_original(config_id: str, tmp_path: Path) -> None:
    original = get_policy(config_id)
    exported = load(get_export(config_id), tmp_path / "exported")
    inference = original.inference
    rng = np.random.default_rng(3)
    episode = sample_observations(inference.observation_space, rng, 9, find_mask_key(inference))
    for _ in range(2):
        original.reset()
        exported.reset()
        for obs in episode:
            action = exported.act(obs)
            expected = original.act(obs)
            np.testing.assert_array_equal(action, expected)
            assert action.dtype == expected.dtype
    if exported.state_names:
        first = episode[0]
        with_state = exported.step(batch_of([first]), exported.state).dist_inputs
        assert not np.allclose(with_state, exported.step(batch_of([first])).dist_inputs)


def batch_of(observations: list) -> object:
    if isinstance(observations[0], Mapping):
        return {name: batch_of([obs[name] for obs in observations]) for name in observations[0]}
    if isinstance(observations[0], tuple):
        return tuple(map(batch_of, map(list, zip(*observations, strict=True))))
    return np.stack(observations)


@pytest.mark.parametrize("config_id", [SAC, LSTM, CNN])
def test_rows_do_not_depend_on_the_batch(config_id: str, tmp_path: Path) -> None:
    policy = load(get_export(config_id), tmp_path / "exported")
    space = get_policy(config_id).inference.observation_space
    rows = sample_observations(space, np.random.default_rng(0), 7, None)
    draws = policy.make_draws(7)
    whole = policy.step(batch_of(rows), explore=True, draws=draws)
    for part in (slice(0, 1), slice(1, 3), slice(0, 7)):
        some = policy.step(
            batch_of(rows[part]),
            explore=True,
            draws={name: array[part] for name, array in draws.items()},
        )
        np.testing.assert_allclose(some.dist_inputs, whole.dist_inputs[part], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(some.log_prob, whole.log_prob[part], rtol=1e-4, atol=1e-5)
        for one, all_rows in zip(some.state, whole.state, strict=True):
            np.testing.assert_allclose(one, all_rows[part], rtol=1e-5, atol=1e-6)


def test_rows_start_episodes_of_their_own(tmp_path: Path) -> None:
    policy = load(get_export(LSTM), tmp_path / "exported")
    obs = np.asarray([[0.1, 0.2], [0.3, 0.4]], np.float32)
    first = policy.step(obs)
    second = policy.step(obs, first.state, is_first=[False, True])
    np.testing.assert_array_equal(second.dist_inputs[1], first.dist_inputs[1])
    assert not np.array_equal(second.dist_inputs[0], first.dist_inputs[0])


def test_statistics_left_out_are_noticed(tmp_path: Path) -> None:
    export = get_export(LSTM)
    policy = load(export, tmp_path / "exported")
    weights = policy.get_weights()
    filters = [name for name in weights if name.startswith("obs_state/")]
    assert filters
    shifted = {n: x + 100.0 if n.endswith("mean") else x for n, x in weights.items()}
    policy.set_weights({n: x.astype(weights[n].dtype) for n, x in shifted.items()})
    assert "dist_inputs" in differing(compare(policy, export.examples))


def test_an_ignored_mask_is_noticed(tmp_path: Path) -> None:
    export = get_export(MASKED)
    broken = copy.deepcopy(export.program)
    assert broken is not None
    for program in broken["programs"].values():
        ids = dict(program["inputs"])
        mask = next(number for name, number in ids.items() if name.endswith("action_mask"))
        users = [o for o in program["operations"] if mask in o[1]]
        assert users
        for operation in users:  # what is made of the mask is True, whatever it was
            size = program["values"][operation[3]][1]
            assert size[0] == [1, 0]
        number = len(program["values"])
        dtype, dims = program["values"][mask]
        program["values"] += [[dtype, []], [dtype, dims]]
        program["constants"].append([number, 1])
        for operation in users:
            operation[1] = [number + 1 if i == mask else i for i in operation[1]]
        program["operations"].insert(0, ["broadcast", [number], {"dims": []}, number + 1])
    policy = load(dataclasses.replace(export, program=broken), tmp_path / "exported")
    assert {"actions", "log_prob"} <= differing(compare(policy, export.examples))


def test_a_memory_that_is_not_reset_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = get_export(LSTM)
    policy = load(export, tmp_path / "exported")
    step = policy.step

    def never_first(*args: object, is_first: object = None, **kwargs: object) -> object:
        return step(*args, **kwargs)

    monkeypatch.setattr(policy, "step", never_first)
    found = differing(compare(policy, export.examples))
    assert "dist_inputs" in found
    assert any(name.startswith("state/") for name in found)


def test_other_weights_are_noticed_and_replaced_ones_are_equal(tmp_path: Path) -> None:
    export = get_export(CARTPOLE)
    policy = load(export, tmp_path / "exported")
    weights = policy.get_weights()
    policy.set_weights({name: array * 1.5 for name, array in weights.items()})
    assert "dist_inputs" in differing(compare(policy, export.examples))
    policy.set_weights(export.collect_weights(get_policy(CARTPOLE).actor))
    assert differing(compare(policy, export.examples)) == set()


def test_sampled_actions_follow_their_probabilities(tmp_path: Path) -> None:
    policy = load(get_export(CARTPOLE), tmp_path / "exported", explore=True)
    obs = np.repeat(np.asarray([[0.5, -1.0, 0.1, 2.0]], np.float32), 4000, axis=0)
    result = policy.step(obs)
    share = (result.actions == 1).mean()
    logits = result.dist_inputs[0]
    assert share == pytest.approx(1 / (1 + np.exp(logits[0] - logits[1])), abs=0.04)
    again = NumpyPolicy(tmp_path / "exported", explore=True, seed=0).step(obs)
    np.testing.assert_array_equal(again.actions, result.actions)


def test_policies_export_themselves(tmp_path: Path) -> None:
    folder = get_policy(CARTPOLE).export(tmp_path / "exported", explore=[True])
    assert NumpyPolicy(folder, explore=True).act(np.zeros(4, np.float32)) in (0, 1)
    source = NumpyPolicy(build_once(CARTPOLE).export(tmp_path / "other"), explore=True).manifest[
        "source"
    ]
    assert source["algorithm"] == "PPO"
    assert source["training_iteration"] == 0
    assert len(source["config_sha256"]) == 64
