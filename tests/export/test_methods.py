"""Methods that export: their options, the folder, and RLlib's names."""

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import RandomAgentConfig, RLModule, RLModuleSpec, ScriptedModule
from jaxrl.connectors import PrevActionsPrevRewards
from jaxrl.core.types import Columns
from jaxrl.errors import ConfigError, ExportError, UnknownNameError
from jaxrl.export.artifact import describe_space, make_export
from jaxrl.export.numpy_program import NumpyPolicy
from jaxrl.export.parity import compare
from tests.export.exports import CARTPOLE, build_once, get_export, get_policy
from tests.helpers import small


def test_a_folder_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = get_export(CARTPOLE)
    target = tmp_path / "new" / "exported"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ExportError, match="exists and is not an empty folder"):
        export.write(tmp_path / "full")
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda *args: (_ for _ in ()).throw(OSError(28, "disk full")))
        with pytest.raises(ExportError, match="cannot be written: disk full"):
            export.write(target)
    assert list(target.parent.iterdir()) == []
    target.mkdir()
    assert export.write(target) == target
    assert {path.name for path in target.iterdir()} >= {"policy.json", "weights.npz"}
    assert target.stat().st_mode & 0o777 == target.parent.stat().st_mode & 0o777


def test_exports_of_the_same_policy_are_equal(tmp_path: Path) -> None:
    policy = get_policy(CARTPOLE)
    first = make_export(policy.inference, policy.actor, num_examples=2).write(tmp_path / "a")
    second = make_export(policy.inference, policy.actor, num_examples=2).write(tmp_path / "b")
    manifests = [(folder / "policy.json").read_text() for folder in (first, second)]
    assert manifests[0] == manifests[1]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"formats": ["numpi"]}, "no format 'numpi'.*Did you mean 'numpy'"),
        ({"formats": []}, "must name at least one of numpy"),
        ({"formats": 3}, "must name at least one"),
        ({"explore": []}, "must be True, False or both"),
        ({"explore": ["yes"]}, "must be True, False or both"),
    ],
)
def test_options_that_do_not_exist(options: dict[str, Any], match: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=match):
        build_once(CARTPOLE).export(tmp_path / "exported", **options)


def test_methods_of_rllib(tmp_path: Path) -> None:
    algorithm = build_once(CARTPOLE)
    model = algorithm.export_policy_model(str(tmp_path / "model"), "default_policy")
    assert algorithm.export_policy_checkpoint(str(tmp_path / "policy")) == str(tmp_path / "policy")
    assert NumpyPolicy(model).act(np.zeros(4)) in (0, 1)
    exported = algorithm.export_model(["model", "checkpoint"], str(tmp_path / "both"))
    assert NumpyPolicy(exported["model"]).act(np.zeros(4)) in (0, 1)
    assert Path(exported["checkpoint"]).name == "checkpoint_000000"
    with pytest.raises(UnknownNameError, match="no module 'other'"):
        algorithm.export_policy_model(str(tmp_path / "x"), "other")
    with pytest.raises(ConfigError, match="no export format 'h5'"):
        algorithm.export_model("h5", str(tmp_path / "x"))


class _Looping(ScriptedModule):
    """Actions that a loop of a length of its own computes."""

    def choose_actions(self, obs: Any) -> Any:
        total = jax.lax.while_loop(lambda x: x[0] < 3.0, lambda x: x + 1.0, obs[:, 0] * 0.0)
        return (total > 9.0).astype("int32")


class _OfKeys(ScriptedModule):
    """Actions drawn from the keys themselves, bit by bit."""

    def draw(self, keys: Any) -> Any:
        return jax.vmap(jax.random.bits)(keys)

    def choose_actions(self, obs: Any) -> Any:
        return (obs[:, 0] > 0.0).astype("int32")

    def forward_exploration(self, params: Any, obs: Any, carry: Any, *rest: Any) -> Any:
        out = self.forward_inference(params, obs, carry)
        return {**out, Columns.ACTIONS: (rest[-1] % 2).astype("int32")}


class _OfItsBatch(ScriptedModule):
    """Actions that depend on the number of observations."""

    def choose_actions(self, obs: Any) -> Any:
        return (obs[:, 0] > (1.0 if len(obs) > 3 else 0.0)).astype("int32")


def build_scripted(module_class: type[RLModule]) -> Any:
    config = RandomAgentConfig().environment("CartPole-v1").training(train_batch_size=32)
    config.env_runners(num_envs_per_env_runner=4)
    return config.rl_module(rl_module_spec=RLModuleSpec(module_class=module_class)).build()


@pytest.mark.parametrize(
    ("module_class", "match"),
    [
        (_Looping, "_Looping cannot be exported.*operation 'while'.*stablehlo"),
        (_OfKeys, "_OfKeys cannot be exported.*random operation 'random_bits'"),
        (_OfItsBatch, r"_OfItsBatch and its connectors cannot be traced.*any batch size.*len\(obs"),
    ],
)
def test_modules_that_cannot_be_exported(
    module_class: type[RLModule], match: str, tmp_path: Path
) -> None:
    with build_scripted(module_class) as algorithm:
        with pytest.raises(ExportError, match=match) as caught:
            algorithm.export(tmp_path / "exported")
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "exported").exists()
        if module_class is _OfKeys:  # the most likely actions do not depend on them
            folder = algorithm.export(tmp_path / "exported", explore=[False])
            assert NumpyPolicy(folder).act(np.full(4, 0.1, np.float32)) == 1


def test_previous_actions_and_rewards(tmp_path: Path) -> None:
    config = small(env="Pendulum-v1").env_runners(
        env_to_module_connector=lambda env, spaces, device: PrevActionsPrevRewards(
            n_prev_actions=2, n_prev_rewards=2
        )
    )
    with config.build() as algorithm:
        policy = algorithm.get_policy(explore=False)
        exported = NumpyPolicy(algorithm.export(tmp_path / "exported"))
        export = make_export(policy.inference, policy.actor, num_examples=8)
    assert exported.manifest["reads"] == ["prev_action", "prev_reward"]
    assert "has_prev_action" in export.examples
    assert all(check.is_equal for check in compare(exported, export.examples))
    obs = np.zeros(3, np.float32)
    for step in range(4):
        past = {"prev_reward": 0.5, "prev_action": np.asarray([0.25], np.float32)} if step else {}
        np.testing.assert_allclose(
            exported.act(obs, **past), policy.act(obs, **past), rtol=1e-5, atol=1e-6
        )
    with pytest.raises(ValueError, match="pass prev_reward"):
        exported.act(obs)


def test_spaces_whose_names_are_not_strings_are_refused() -> None:
    with pytest.raises(ExportError, match="names that are not strings"):
        describe_space(spaces.Dict({1: spaces.Discrete(2)}), "observation_space")  # pyright: ignore
    infinite = describe_space(spaces.Box(-np.inf, 1.0, (2,)), "observation_space")
    assert (infinite["low"], infinite["high"]) == ("-inf", 1.0)
