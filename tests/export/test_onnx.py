"""ONNX files of an export compute what the original computes, and what is wrong with one is said."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from jaxrl.connectors import PrevActionsPrevRewards
from jaxrl.core.types import Counter
from jaxrl.errors import ExportError
from jaxrl.export import onnx_program
from jaxrl.export.artifact import make_export
from jaxrl.export.examples import sample_observations
from jaxrl.export.numpy_program import (
    OPERATIONS,
    NumpyPolicy,
    PolicyFileError,
    PolicyInputError,
)
from jaxrl.export.onnx_policy import OnnxProgram, load_onnx
from jaxrl.export.onnx_program import OPSET, render_program
from jaxrl.export.parity import compare, format_table
from tests.export.exports import (
    CARTPOLE,
    CNN,
    LSTM,
    MASKED,
    REPRESENTATIVES,
    SAC,
    build_once,
    get_onnx_export,
    get_policy,
    get_refusal,
    replace,
)
from tests.export.test_numpy_program import VECTORS, _images, _integers, trace
from tests.export.test_parity import batch_of
from tests.helpers import small

BITS = 18
"""First version whose operators combine bits."""


def render(traced: Any, opset: int = OPSET) -> bytes:
    program, _ = traced.to_program()
    name, spec = traced.inputs[0]
    batch = (name, str(spec.dtype), [[1, 0], *spec.shape[1:]])
    return render_program("greedy", program, {}, batch, opset)


def check(function: Callable[..., Any], *arrays: np.ndarray, opset: int = OPSET) -> None:
    """Compares a function with its ONNX at batches of all rows and of one."""
    traced = trace(function, *arrays)
    program = OnnxProgram("greedy", render(traced, opset))
    program.check_run([])
    for num in (len(arrays[0]), 1):
        rows = [array[:num] for array in arrays]
        names = [name for name, _ in traced.inputs]
        found = program.run([], num, dict(zip(names, rows, strict=True)))
        for name, expected in zip(traced.outputs, jax.jit(function)(*rows), strict=True):
            wanted, got = np.asarray(expected), found[name]
            assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), name
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6, err_msg=name)


def _types(x: jax.Array) -> list[jax.Array]:
    """Types that runtimes have no arithmetic for."""
    n, half, is_up = (x * 8).astype(jnp.int8), x.astype(jnp.float16), x > 0
    pixels, words = (jnp.abs(x) * 30).astype(jnp.uint8), (jnp.abs(x) * 3e8).astype(jnp.uint32)
    return [
        n + n, n * n, ~n, jnp.maximum(n, 3), n < 5, pixels + pixels, pixels - jnp.uint8(200),
        pixels // 7, jnp.max(pixels, axis=1), jnp.sort(n, axis=1), jnp.argmax(pixels, axis=1),
        half * half, jnp.sum(half, axis=1), jnp.where(is_up, n, -n), jnp.where(is_up, is_up, x > 1),
        jnp.maximum(is_up, x > 2), is_up == (x > 1), jnp.argmax(is_up, axis=1), words + words,
        words // 3, jnp.concatenate([pixels, pixels], axis=1), pixels[:, ::2].astype(jnp.float32),
        jnp.pad(pixels, ((0, 0), (1, 1))), n.astype(jnp.bool_), is_up.astype(jnp.float16),
    ]  # fmt: skip


def _forms(x: jax.Array) -> list[jax.Array]:
    """Forms of operations that the functions for NumPy do not have."""
    rows = jnp.arange(x.shape[0])
    wild = (x[:, :2] * 9).astype(jnp.int32)
    window = ((1, 3), (1, 2), "SAME")
    return [
        jax.lax.pad(x, jnp.float32(7), ((0, 0, 0), (1, 2, 2))),
        jax.lax.pad(x, jnp.float32(7), ((1, 0, 0), (0, 0, 0))).sum(axis=0, keepdims=True),
        jax.lax.reduce_window(x, jnp.inf, jax.lax.min, *window),
        jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, *window),
        jax.lax.cummax(x, axis=1, reverse=True), jax.lax.cumprod(x, axis=1, reverse=True),
        jnp.cumsum(x, axis=0), jnp.sum(x, axis=0, keepdims=True) + x, jax.lax.rev(x, (0, 1)), jnp.sort(x, axis=0),
        jnp.take_along_axis(x, wild, axis=1, mode="fill"),
        jnp.take_along_axis(x, wild, axis=1, mode="clip"),
        jax.vmap(lambda row, i: row[i % 6])(x, wild[:, 0]), jnp.take(jnp.eye(7) > 0, wild, axis=0, mode="fill"),
        jnp.arctan2(x, -x), jnp.arctan2(0.0 * x, x), jnp.arctan2(x, 0.0 * x), jnp.expm1(x * 1e-6),
        jnp.log1p(jnp.abs(x) * 1e-6), jnp.log1p(jnp.abs(x) * 1e12), jax.nn.softplus(x * 40),
        jnp.log(jax.nn.sigmoid(x * 20)), jax.lax.rem(x, 0.7 * jnp.ones_like(x)),
        jax.lax.div(wild, jnp.zeros_like(wild) + 2), jnp.zeros((x.shape[0], 3)), rows * 2,
        jnp.full((x.shape[0], 2), 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "opset"),
    [(f, BITS if f is _integers else OPSET) for f in (*VECTORS, _images, _types, _forms)]
    + [(_images, 21), (_forms, 21)],
)  # fmt: skip
def test_operations(function: Callable[..., Any], opset: int) -> None:
    shape = (3, 7, 6, 2) if function is _images else (5, 6)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    check(function, x * 3, opset=opset)


def test_every_operation_has_a_rendering() -> None:
    assert set(onnx_program.RENDERINGS) == set(OPERATIONS)


def _constants(x: jax.Array) -> list[jax.Array]:
    return [jnp.full((x.shape[0], 2), 3.0), jnp.arange(x.shape[0])]


def test_the_batch_is_known_where_no_observation_is_used() -> None:
    check(_constants, np.zeros((5, 2), np.float32))


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (_integers, r"operation '\w+' of int32 needs version 18.*onnx=18"),
        (lambda x: [jnp.cumprod(x, axis=0) + x], "'cumprod' goes over the rows of the batch"),
        (lambda x: [jnp.bitwise_or.reduce(x.astype(jnp.int32), axis=1)], "combines the bits"),
    ],
)
def test_forms_without_a_counterpart_are_refused(function: Callable[..., Any], match: str) -> None:
    with pytest.raises(ExportError, match=match) as caught:
        render(trace(function, np.ones((5, 6), np.float32)))
    assert "\n" not in str(caught.value)


def test_an_operation_without_a_rendering_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {k: v for k, v in onnx_program.RENDERINGS.items() if k != "dot"}
    monkeypatch.setattr(onnx_program, "RENDERINGS", table)
    match = r"cannot be exported to ONNX: The operation 'dot' has no rendering"
    with pytest.raises(ExportError, match=match) as caught:
        get_policy(CARTPOLE).export(tmp_path / "exported", formats=["onnx"])
    assert "Module" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "exported").exists()


@pytest.mark.parametrize("config_id", REPRESENTATIVES)
def test_policies_compute_what_the_original_computes(config_id: str, tmp_path: Path) -> None:
    export = get_onnx_export(config_id)
    folder = export.write(tmp_path / "exported")
    policy, twin = load_onnx(folder), NumpyPolicy(folder)
    checks = compare(policy, export.examples)
    assert {check.mode for check in checks} == {"greedy", "sample"}
    assert all(check.is_equal for check in checks), "\n".join(format_table(checks))
    space = get_policy(config_id).inference.observation_space
    mask_key = "action_mask" if config_id == MASKED else None
    rows = sample_observations(space, np.random.default_rng(7), 5, mask_key)
    draws = twin.make_draws(5)
    for num in (1, 5):
        obs = batch_of(rows[:num])
        some = {name: array[:num] for name, array in draws.items()}
        for options in ({}, {"explore": True, "draws": some}):
            got, wanted = policy.step(obs, **options), twin.step(obs, **options)
            assert len(got.log_prob) == num
            np.testing.assert_allclose(got.dist_inputs, wanted.dist_inputs, rtol=1e-5, atol=1e-5)
            for one, other in zip(got.state, wanted.state, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("config_id", [CARTPOLE, LSTM])
def test_an_episode_has_the_actions_of_the_original(config_id: str, tmp_path: Path) -> None:
    original = get_policy(config_id)
    exported = load_onnx(get_onnx_export(config_id).write(tmp_path / "exported"))
    space = original.inference.observation_space
    episode = sample_observations(space, np.random.default_rng(3), 9, None)
    for _ in range(2):
        original.reset()
        exported.reset()
        for obs in episode:
            np.testing.assert_array_equal(exported.act(obs), original.act(obs))
    assert bool(exported.state_names) == (config_id == LSTM)


@pytest.mark.parametrize(("config_id", "drawn"), [(SAC, "draws/0"), (CNN, "draws/1")])
def test_sampled_actions_late_in_training(config_id: str, drawn: str, tmp_path: Path) -> None:
    policy = get_policy(config_id)
    progress = dataclasses.replace(policy.actor.progress, env_steps=Counter.from_number(2 * 10**5))
    actor = dataclasses.replace(policy.actor, progress=progress)
    export = make_export(policy.inference, actor, formats=["onnx"], explore=True, num_examples=16)
    folder = export.write(tmp_path / "exported")
    assert all(check.is_equal for check in compare(load(folder), export.examples))
    change_model(folder, "sample.onnx", ignore(drawn))
    assert "actions" in {c.name for c in compare(load(folder), export.examples) if not c.is_equal}


def load(folder: Path) -> NumpyPolicy:
    return load_onnx(folder, explore=True)


def test_the_inputs_are_those_of_the_manifest(tmp_path: Path) -> None:
    folder = get_onnx_export(LSTM).write(tmp_path / "exported")
    manifest = json.loads((folder / "policy.json").read_text())
    model = onnx.load(folder / "sample.onnx")
    names = [entry["name"] for group in ("obs", "state", "draws")
             for entry in manifest["signature"][group]]  # fmt: skip
    inputs = {node.name: node.type.tensor_type for node in model.graph.input}
    assert set(inputs) - {"is_first"} <= set(names)
    assert {"obs", "draws/0"} < set(inputs)
    assert {kind.shape.dim[0].dim_param for kind in inputs.values()} == {"b"}
    assert {node.name for node in model.graph.output} == set(
        manifest["programs"]["sample"]["outputs"]
    )
    weights = {entry["name"] for entry in manifest["signature"]["weights"]}
    initializers = {entry.name for entry in model.graph.initializer}
    assert {f"weights/{name}" for name in weights} <= initializers
    assert (model.opset_import[0].version, model.ir_version) == (17, 8)
    assert model.producer_name == "jaxrl"


def test_previous_actions_and_rewards(tmp_path: Path) -> None:
    config = small(env="Pendulum-v1").env_runners(
        env_to_module_connector=lambda env, spaces, device: PrevActionsPrevRewards(
            n_prev_actions=2, n_prev_rewards=2
        )
    )
    with config.build() as algorithm:
        policy = algorithm.get_policy(explore=False)
        export = make_export(policy.inference, policy.actor, formats=["onnx"], num_examples=8)
    exported = load_onnx(export.write(tmp_path / "exported"))
    assert "set_previous_action.onnx" in exported.manifest["files"]
    assert "has_prev_action" in export.examples
    checks = compare(exported, export.examples)
    assert all(check.is_equal for check in checks), "\n".join(format_table(checks))


# --- twins that are broken on purpose ---


def change_model(folder: Path, name: str, change: Callable[[onnx.ModelProto], object]) -> None:
    """Changes an ONNX file and its hash."""
    model = onnx.load(folder / name)
    change(model)
    replace(folder, name, model.SerializeToString())


def shift(ending: str) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        found = [entry for entry in model.graph.initializer if entry.name.endswith(ending)]
        assert found
        for entry in found:
            array = (numpy_helper.to_array(entry) * 1.5 + 1).astype(np.float32)
            entry.CopyFrom(numpy_helper.from_array(array, entry.name))

    return change


def ignore(name: str) -> Callable[[onnx.ModelProto], None]:
    """Takes zeros, or True, instead of an input."""

    def change(model: onnx.ModelProto) -> None:
        users = [node for node in model.graph.node if name in node.input]
        assert users
        kind = next(node.type.tensor_type.elem_type for node in model.graph.input
                    if node.name == name)  # fmt: skip
        operator = "Equal" if name.endswith("mask") else "Sub"
        made = [onnx.helper.make_node("Cast", [name], ["wide"], to=onnx.TensorProto.FLOAT)]
        made.append(onnx.helper.make_node(operator, ["wide", "wide"], ["result"]))
        made.append(onnx.helper.make_node("Cast", ["result"], ["ignored"], to=kind))
        for node in users:
            for place, key in enumerate(node.input):
                node.input[place] = "ignored" if key == name else key
        nodes = [*made, *model.graph.node]
        del model.graph.node[:]
        model.graph.node.extend(nodes)

    return change


def swap(operator: str, other: str) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        found = [node for node in model.graph.node if node.op_type == operator]
        assert found
        for node in found:
            node.op_type = other

    return change


@pytest.mark.parametrize(
    ("config_id", "program", "change", "notices"),
    [
        (CARTPOLE, "greedy", shift("kernel"), "dist_inputs"),
        (CARTPOLE, "sample", swap("Add", "Sub"), "log_prob"),
        (SAC, "greedy", swap("Tanh", "Identity"), "actions"),
        (SAC, "sample", ignore("draws/1"), "actions"),
        (LSTM, "greedy", shift("mean"), "dist_inputs"),
        (LSTM, "greedy", ignore("state/module/encoder/carry/hidden"), "dist_inputs"),
        (MASKED, "greedy", ignore("obs/action_mask"), "actions"),
        (CNN, "greedy", shift("kernel"), "dist_inputs"),
    ],
)
def test_what_is_broken_is_noticed(
    config_id: str, program: str, change: Any, notices: str, tmp_path: Path
) -> None:
    export = get_onnx_export(config_id)
    folder = export.write(tmp_path / "exported")
    change_model(folder, f"{program}.onnx", change)
    checks = compare(load_onnx(folder), export.examples)
    different = {(check.mode, check.name) for check in checks if not check.is_equal}
    assert (program, notices) in different
    assert {mode for mode, _ in different} == {program}


# --- damage ---


def refused(folder: Path) -> str:
    return get_refusal(lambda: load_onnx(folder))


def rename_input(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = "observation" if name == "obs" else name
    model.graph.input[0].name = "observation"


def drop_output(model: onnx.ModelProto) -> None:
    del model.graph.output[-1]


def drop_node(model: onnx.ModelProto) -> None:
    del model.graph.node[2]


def take_integers(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT32


def test_damaged_files_are_one_sentence(tmp_path: Path) -> None:
    folder = get_onnx_export(CARTPOLE).write(tmp_path / "exported")
    content = (folder / "greedy.onnx").read_bytes()
    (folder / "greedy.onnx").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert "greedy.onnx was changed after the export" in refused(folder)
    for damaged in (content[: len(content) // 2], b"", b"no model"):
        replace(folder, "greedy.onnx", damaged)
        assert "greedy.onnx cannot be run by onnxruntime" in refused(folder)
    for change, match in (
        (rename_input, "does not fit policy.json: 'observation'"),
        (drop_output, "the program 'greedy' has no output"),
        (drop_node, "greedy.onnx cannot be run by onnxruntime"),
        (take_integers, "greedy.onnx cannot be run by onnxruntime"),
    ):
        replace(folder, "greedy.onnx", content)
        change_model(folder, "greedy.onnx", change)
        assert match in refused(folder)
    (folder / "greedy.onnx").unlink()
    assert "No such file" in refused(folder)


def test_random_damage_is_one_sentence(tmp_path: Path) -> None:
    content = get_onnx_export(CARTPOLE).blobs["greedy.onnx"]
    rng, sentences = np.random.default_rng(0), []
    for _ in range(150):
        at = int(rng.integers(len(content)))
        broken = content[:at] + bytes([int(rng.integers(256))]) + content[at + 1 :]
        try:
            OnnxProgram("greedy", broken).check_run([])
        except PolicyFileError as error:
            sentences.append(str(error))
    assert len(sentences) > 5
    assert not [sentence for sentence in sentences if "\n" in sentence]


def test_an_export_without_it(tmp_path: Path) -> None:
    export = dataclasses.replace(get_onnx_export(CARTPOLE), blobs={})
    folder = export.write(tmp_path / "exported")
    assert "has no greedy.onnx: export with formats=('onnx',)" in refused(folder)


def test_weights_are_part_of_the_file(tmp_path: Path) -> None:
    policy = load_onnx(get_onnx_export(CARTPOLE).write(tmp_path / "exported"))
    weights = policy.get_weights()
    policy.set_weights(weights)
    with pytest.raises(PolicyInputError, match="weights of an ONNX file are part of it"):
        policy.set_weights({name: array + 1 for name, array in weights.items()})
    for name, array in policy.get_weights().items():
        np.testing.assert_array_equal(array, weights[name])


# --- options ---


def test_the_version_of_the_operators(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    algorithm = build_once(CARTPOLE)
    newest = onnx.defs.onnx_opset_version()
    for opset in (newest + 1, 0, -1, True, "17"):
        with pytest.raises(ExportError, match=rf"onnx={opset!r} must be.*17 to {newest}") as caught:
            algorithm.export_policy_model(str(tmp_path / "model"), onnx=opset)  # pyright: ignore
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "model").exists()
    old = algorithm.export_policy_model(str(tmp_path / "old"), onnx=1)
    assert onnx.load(Path(old) / "greedy.onnx").opset_import[0].version == 17
    assert "onnx=1: operators of version 17 are written" in caplog.text
    folder = algorithm.export_policy_model(str(tmp_path / "model"), onnx=18)
    assert onnx.load(Path(folder) / "greedy.onnx").opset_import[0].version == 18
    observation = np.zeros(4, np.float32)
    assert load_onnx(folder).act(observation) == NumpyPolicy(folder).act(observation)


def test_the_newest_operators_are_valid() -> None:
    x = np.ones((5, 6), np.float32)
    model = onnx.load_from_string(render(trace(_forms, x), onnx.defs.onnx_opset_version()))
    assert model.opset_import[0].version == onnx.defs.onnx_opset_version()


def test_weights_that_are_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_program, "MAX_BYTES", 100)
    with pytest.raises(ExportError, match=r"bytes, and an ONNX file has room for 100: export with"):
        get_policy(CARTPOLE).export(tmp_path / "exported", formats=["onnx"])


def test_the_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = get_onnx_export(CARTPOLE).write(tmp_path / "exported")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "onnxruntime", None)
        assert refused(folder) == "ONNX files are run by onnxruntime: pip install onnxruntime."
    for name in [name for name in sys.modules if name.startswith("jaxrl.export.onnx_")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("jaxrl.export.onnx_program")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ExportError, match=r"'onnx' needs onnx: pip install 'jaxrl\[export\]'"):
        get_policy(CARTPOLE).export(tmp_path / "other", formats=["onnx"])
    assert not (tmp_path / "other").exists()
