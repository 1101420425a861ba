"""Damaged and hostile exports are refused in one sentence, before they take memory or run code."""

import copy
import dataclasses
import json
import os
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl.errors import ExportError
from jaxrl.export.numpy_program import (
    NumpyPolicy,
    PolicyFileError,
    PolicyInputError,
    join_value,
)
from jaxrl.serve.backend import load_export
from tests.export.exports import (
    CARTPOLE,
    LSTM,
    MASKED,
    get_export,
    get_refusal,
    load,
    replace,
    rewrite,
)

Manifest = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return get_export(CARTPOLE).write(tmp_path / "exported")


def refused(folder: Path) -> str:
    return get_refusal(lambda: NumpyPolicy(folder, explore=True))


@pytest.mark.parametrize("name", ["weights.npz", "program.json", "constants.npz", "examples.npz"])
def test_one_flipped_bit(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    assert f"{name} was changed after the export" in refused(folder)


def test_a_manifest_that_was_changed(folder: Path) -> None:
    path = folder / "policy.json"
    content = path.read_text()
    for old, new in (('"high":1', '"high":0'), ("-4.8", "-4.9"), ('"gumbel"', '"normal"')):
        assert old in content
        path.write_text(content.replace(old, new, 1))
        assert "policy.json was changed after the export" in refused(folder)
    manifest = json.loads(content)
    del manifest["sha256"]  # as exports of before had none
    path.write_text(json.dumps(manifest))
    NumpyPolicy(folder)


NAMES = ["policy.json", "weights.npz", "program.json", "constants.npz", "examples.npz"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", NAMES)
def test_pipes_are_not_read(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert "it is not a regular file" in refused(folder)
    with pytest.raises(ExportError, match="is not a regular file"):
        load_export(folder)


def set_space(name: str, **entries: object) -> Callable[[Manifest], object]:
    return lambda manifest: manifest[name].update(entries)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (set_space("action_space", high=-1), "so it has no values"),
        (set_space("action_space", high=10**30), "no whole numbers of int32"),
        (set_space("action_space", high=0.5), "no whole numbers of int32"),
        (set_space("action_space", high=[1, 2]), "bounds of the shape"),
        (set_space("action_space", low=None), "NaN"),
        (set_space("action_space", kind="os:system"), "the unknown kind 'os:system'"),
        (set_space("action_space", kind=["Box"]), "the unknown kind"),
        (set_space("action_space", shape=[2]), "shape"),
        (set_space("action_space", dtype="O"), "the type 'O'"),
        (set_space("observation_space", shape=[10**12]), "which it cannot have"),
        (set_space("observation_space", shape=[-4]), r"the shape \[-4\]"),
        (set_space("observation_space", shape="4"), "the shape '4'"),
        (set_space("observation_space", shape=[5], low=0, high=1), r"\[5\], but its array \[4\]"),
        (set_space("observation_space", low="inf", high="inf"), "so it has no values"),
        (lambda m: m["signature"]["actions"].clear(), "not as many as the parts"),
        (lambda m: m["signature"]["module_actions"].append("actions"), "not as many as the parts"),
    ],
)
def test_spaces_that_nothing_is_in(
    folder: Path, change: Callable[[Manifest], object], match: str
) -> None:
    rewrite(folder, change)
    assert re.search(match, refused(folder))


def test_missing_files(folder: Path, tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "nothing")
    (folder / "weights.npz").unlink()
    assert "No such file" in refused(folder)
    (folder / "policy.json").write_text("[" * 100_000)
    assert "policy.json cannot be read" in refused(folder)


def test_a_newer_format_and_another_one(folder: Path) -> None:
    rewrite(folder, lambda manifest: manifest.update(version=2))
    assert "format version 2, but this reader knows up to 1" in refused(folder)
    rewrite(folder, lambda manifest: manifest.update(format="other"))
    assert "not an exported policy" in refused(folder)


def test_a_path_out_of_the_folder(folder: Path) -> None:
    rewrite(folder, lambda manifest: manifest["files"].update({"../policy.json": "0"}))
    assert "is not a file of the folder" in refused(folder)


def npz(**arrays: bytes) -> bytes:
    import io

    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in arrays.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def npy(header: str, content: bytes = b"") -> bytes:
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + content


def test_arrays_that_declare_more_than_there_is(folder: Path) -> None:
    head = "{'descr': '<f4', 'fortran_order': False, 'shape': (2147483648, 2147483648), }"
    replace(folder, "weights.npz", npz(huge=npy(head)))
    assert "declares the shape (2147483648, 2147483648)" in refused(folder)


def test_arrays_of_objects_are_never_unpickled(folder: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return pytest.fail, ("a pickle was read",)

    head = "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    replace(folder, "weights.npz", npz(bomb=npy(head, pickle.dumps([Bomb()]))))
    assert "has the type object, not plain numbers" in refused(folder)


def test_a_compressed_archive(folder: Path, tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "bomb.npz", zeros=np.zeros(10**6))
    replace(folder, "weights.npz", (tmp_path / "bomb.npz").read_bytes())
    assert "is compressed" in refused(folder)
    replace(folder, "weights.npz", b"PK\x05\x06 not a zip file")
    assert "weights.npz cannot be read" in refused(folder)


def change_weight(change: Callable[[dict[str, np.ndarray]], object]) -> dict[str, np.ndarray]:
    weights = dict(get_export(CARTPOLE).weights)
    change(weights)
    return weights


@pytest.mark.parametrize(
    ("change", "match"),
    [({"kind": "randint"}, "low"), ({"kind": "dice"}, "dice"), ({"shape": [2**30]}, "too large")],
)
def test_draws_that_cannot_be_made(folder: Path, change: Manifest, match: str) -> None:
    def add(manifest: Manifest) -> None:
        draws = manifest["signature"]["draws"]
        draws.append({**draws[0], "name": "draws/9", **change})

    rewrite(folder, add)
    assert match in refused(folder)


def test_weights_that_do_not_fit(folder: Path) -> None:
    policy = NumpyPolicy(folder)
    before = policy.get_weights()
    name = next(name for name in before if name.endswith("kernel"))
    for change, match in (
        (lambda w: w.pop(name), "missing"),
        (lambda w: w.update(more=np.zeros(3)), "'more' is unknown"),
        (lambda w: w.update({name: w[name].T}), r"must be float32\[4, 64\], got float32\[64, 4\]"),
        (lambda w: w.update({name: w[name].astype(float)}), "got float64"),
        (lambda w: w.update({name: np.asarray(None)}), "got object"),
    ):
        with pytest.raises(PolicyInputError, match=match):
            policy.set_weights(change_weight(change))
    for key, array in policy.get_weights().items():
        np.testing.assert_array_equal(array, before[key])


def damage(change: Callable[[dict[str, Any]], object], config_id: str = CARTPOLE) -> Any:
    export = get_export(config_id)
    program = copy.deepcopy(export.program)
    assert program is not None
    change(program["programs"]["sample"])
    return dataclasses.replace(export, program=program)


def first(program: dict[str, Any], name: str) -> list[Any]:
    return next(operation for operation in program["operations"] if operation[0] == name)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda p: first(p, "dot").__setitem__(0, "import_os"), "'import_os'.*unknown"),
        (lambda p: first(p, "dot").__setitem__(1, [10**9, 0]), "no value number 1000000000"),
        (lambda p: first(p, "dot").__setitem__(1, [-1, 0]), "no value number -1"),
        (lambda p: p["operations"].reverse(), "before it is computed"),
        (lambda p: first(p, "argmax")[2].update(axis=7), "cannot run|axis"),
        (lambda p: first(p, "broadcast").__setitem__(2, None), "NoneType"),
        (lambda p: p["values"].__setitem__(0, ["float32", [2**20, 2**20]]), "too large"),
        (lambda p: p["values"].__setitem__(0, ["object", [1]]), "type 'object'"),
        (lambda p: p["values"].__setitem__(0, ["float32", ["b"]]), "size 'b'"),
        (lambda p: p["outputs"].clear(), "no output"),
        (lambda p: p.pop("operations"), "operations"),
        (lambda p: p["inputs"].__setitem__(0, ["weights/none", 0]), "none"),
        (lambda p: p["constants"].__setitem__(0, [p["constants"][0][0], "x" * 9]), "float"),
        (lambda p: first(p, "dot")[2].update(contract=[[], []]), "its result has the shape"),
    ],
)  # fmt: skip
def test_damaged_programs(
    change: Callable[[dict[str, Any]], object], match: str, tmp_path: Path
) -> None:
    damaged = damage(change)
    with pytest.raises(PolicyFileError, match=match) as caught:
        load(damaged, tmp_path / "exported")
    assert "\n" not in str(caught.value)


def test_results_larger_than_declared_are_refused_before_they_are_computed(tmp_path: Path) -> None:
    def grow(program: dict[str, Any]) -> None:
        count = len(program["values"])
        program["values"] += [["float32", [2**26, 1]], ["float32", [1, 2**26]], ["float32", [1]]]
        program["constants"].append([count + 2, "initial/one"])
        program["operations"] = [
            ["broadcast", [count + 2], {"dims": [1]}, count],
            ["broadcast", [count + 2], {"dims": [0]}, count + 1],
            ["add", [count, count + 1], {}, program["operations"][0][3]],
            *program["operations"][1:],
        ]

    damaged = damage(grow)
    constants = {**damaged.constants, "initial/one": np.zeros(1, np.float32)}
    with pytest.raises(PolicyFileError, match="its result has the shape"):
        load(dataclasses.replace(damaged, constants=constants), tmp_path / "exported")


def list_nodes(tree: Any) -> list[tuple[Any, Any]]:
    """The containers of a tree with each of their keys."""
    found: list[tuple[Any, Any]] = []
    for key, value in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
        found.append((tree, key))
        if isinstance(value, dict | list):
            found += list_nodes(value)
    return found


HOSTILE = (None, True, -1, 0, 2, 10**6, 10**30, 0.5, np.inf, "x", "inf", [], {}, [1], "int8", "obs")


def edit(tree: Any, rng: np.random.Generator) -> None:
    """Remove, shorten, or replace a part of a tree of JSON."""
    nodes = list_nodes(tree)
    owner, key = nodes[rng.integers(len(nodes))]
    value = owner[key]
    match rng.integers(5):
        case 0:
            del owner[key]
        case 1 if isinstance(value, int):
            owner[key] = int(value) + int(rng.integers(-2, 3))
        case 2 if isinstance(value, list):
            owner[key] = value[:-1]
        case 3:
            other, name = nodes[rng.integers(len(nodes))]
            owner[key] = copy.deepcopy(other[name])
        case _:
            owner[key] = copy.deepcopy(HOSTILE[rng.integers(len(HOSTILE))])


@pytest.mark.parametrize("config_id", [CARTPOLE, MASKED])
def test_edits_are_refused_or_make_a_policy_that_acts(config_id: str) -> None:
    export = get_export(config_id)
    policy = NumpyPolicy.from_parts(
        export.manifest, export.program or {}, export.weights, export.constants
    )
    names = [entry["name"] for entry in export.manifest["signature"]["obs"]]
    rows = [export.examples[name][:2] for name in names]
    obs = join_value(export.manifest["observation_space"], iter([row[:, 0] for row in rows]))
    policy.step(obs)
    rng, sentences = np.random.default_rng(0), list[str]()
    for i in range(250):
        manifest, program = copy.deepcopy(export.manifest), copy.deepcopy(export.program)
        edit(manifest if i % 2 else program, rng)
        try:
            made = NumpyPolicy.from_parts(manifest, program or {}, export.weights, export.constants)
            made.step(obs)
            made.step(obs, explore=True)
        except (PolicyFileError, PolicyInputError) as error:
            sentences.append(str(error))
    assert len(sentences) > 50
    assert not [sentence for sentence in sentences if "\n" in sentence]


def test_random_damage_is_one_sentence(tmp_path: Path) -> None:
    text = json.dumps(get_export(CARTPOLE).program)
    rng = np.random.default_rng(0)
    sentences: list[str] = []
    for _ in range(400):
        at = int(rng.integers(len(text) - 3))
        broken = text[:at] + rng.choice(list('0159[]{},"b-')) + text[at + 1 :]
        try:
            program = json.loads(broken)
        except ValueError:
            continue
        export = get_export(CARTPOLE)
        try:
            NumpyPolicy.from_parts(export.manifest, program, export.weights, export.constants)
        except PolicyFileError as error:
            sentences.append(str(error))
    assert len(sentences) > 20
    assert not [sentence for sentence in sentences if "\n" in sentence]


@pytest.mark.parametrize(
    ("obs", "match"),
    [
        (np.zeros(3), r"obs must have the shape \(4,\), got \(3,\)"),
        (np.full(4, np.nan), "nan, which is not in its space"),
        (np.asarray([9.0, 0, 0, 0]), r"obs\[0, 0\] is 9.0, which is not in its space"),
        (np.asarray(["a"] * 4), "numeric"),
        (None, "shape"),
        ([[1.0], [2.0, 3.0]], "obs must be an array, got a list of unequal parts"),
    ],
)
def test_observations_that_do_not_fit(folder: Path, obs: Any, match: str) -> None:
    with pytest.raises(PolicyInputError, match=match):
        NumpyPolicy(folder).act(obs)


def test_other_arguments_that_do_not_fit(folder: Path, tmp_path: Path) -> None:
    policy = NumpyPolicy(folder)
    obs = np.zeros((2, 4), np.float32)
    with pytest.raises(PolicyInputError, match="prev_reward has no effect: no connector"):
        policy.act(obs[0], prev_reward=1.0)
    with pytest.raises(PolicyInputError, match="at least one row"):
        policy.step(obs[:0])
    with pytest.raises(PolicyInputError, match="draws must have"):
        policy.step(obs, explore=True, draws={"other": obs})
    with pytest.raises(PolicyInputError, match="state must have 0 arrays"):
        policy.step(obs, [obs])
    memory = load(get_export(LSTM), tmp_path / "memory")
    with pytest.raises(PolicyInputError, match=r"state must be numbers \(2, 64\)"):
        memory.step(obs[:, :2], [np.zeros((1, 64)), np.zeros((2, 64))])
    masked = load(get_export(MASKED), tmp_path / "masked")
    with pytest.raises(PolicyInputError, match="obs must be a dict with the keys"):
        masked.act({"observation": 1})


def test_a_program_that_was_not_exported(tmp_path: Path) -> None:
    from tests.export.exports import get_policy

    folder = get_policy(CARTPOLE).export(tmp_path / "exported", explore=[False])
    with pytest.raises(PolicyFileError, match="exported without its program 'sample'"):
        NumpyPolicy(folder, explore=True)
