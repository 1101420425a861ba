"""`jaxrl export` and `jaxrl parity`."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxrl.export.numpy_program import NumpyPolicy
from tests.cli.command import jaxrl
from tests.export.exports import replace, rewrite
from tests.helpers import small


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    config = small().env_runners(observation_filter="MeanStdFilter")
    config.debugging(results_dir=str(folder), run_name="run")
    with config.build() as algorithm:
        algorithm.train()
        return Path(algorithm.save())


@pytest.fixture(scope="module")
def exported(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports") / "policy"
    code, printed, err = jaxrl("export", checkpoint, "--out", folder, "--format", "numpy")
    assert code == 0, err
    assert printed.startswith(f"exported    {folder}\n")
    assert f"checkpoint  {checkpoint}" in printed
    return folder


def copy(exported: Path, folder: Path) -> Path:
    folder.mkdir()
    for file in exported.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_an_export_is_equal_to_its_checkpoint(exported: Path, checkpoint: Path) -> None:
    code, printed, err = jaxrl("parity", exported, checkpoint)
    assert code == 0, err
    assert printed.endswith("equal\n")
    assert "DIFFERENT" not in printed
    source = NumpyPolicy(exported).manifest["source"]
    assert source["training_iteration"] == 1
    assert source["num_env_steps_sampled_lifetime"] > 0


def test_a_number_that_is_off_is_exit_code_1(exported: Path, tmp_path: Path) -> None:
    folder = copy(exported, tmp_path / "policy")
    with np.load(folder / "weights.npz") as archive:
        weights = {name: archive[name] for name in archive.files}
    name = next(name for name in weights if name.endswith("mean"))
    weights[name] = weights[name] + np.float32(100)
    np.savez(folder / "weights.npz", **weights)
    replace(folder, "weights.npz", (folder / "weights.npz").read_bytes())
    code, printed, _ = jaxrl("parity", folder)
    assert code == 1
    assert "DIFFERENT" in printed
    assert printed.splitlines()[-1].startswith("different: ")


def test_bad_input_is_one_sentence(exported: Path, checkpoint: Path, tmp_path: Path) -> None:
    for arguments, match in (
        (("export", checkpoint, "--out", exported), "exists and is not an empty folder"),
        (
            ("export", checkpoint, "--out", tmp_path / "x", "--formats", "numpi"),
            "Did you mean 'numpy'",
        ),
        (("export", tmp_path, "--out", tmp_path / "x"), "checkpoint"),
        (("parity", tmp_path / "nothing"), "No such file or directory"),
        (("parity", exported, tmp_path), "checkpoint"),
    ):
        code, _, err = jaxrl(*arguments)
        assert code == 2, arguments
        assert match in err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_parity_with_the_checkpoint_of_other_spaces(exported: Path, tmp_path: Path) -> None:
    config = small(env="Acrobot-v1")
    config.debugging(results_dir=str(tmp_path), run_name="other")
    with config.build() as algorithm:
        other = algorithm.save()
    code, _, err = jaxrl("parity", exported, other)
    assert code == 2
    assert "has another observation space than the export" in err


@pytest.fixture(scope="module")
def with_onnx(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports") / "policy"
    code, printed, err = jaxrl("export", checkpoint, "--out", folder, "--formats", "numpy,onnx")
    assert code == 0, err
    assert "greedy.onnx  " in printed
    return folder


def use_onnx_alone(folder: Path) -> None:
    rewrite(folder, lambda manifest: manifest.update(formats=["onnx"]))


def test_onnx_is_compared_as_well(with_onnx: Path, checkpoint: Path, tmp_path: Path) -> None:
    code, printed, err = jaxrl("parity", with_onnx, checkpoint)
    assert code == 0, err
    assert f"numpy: {with_onnx}\n" in printed
    assert f"onnx: {with_onnx}\n" in printed
    assert printed.count("dist_inputs") == 4
    folder = copy(with_onnx, tmp_path / "policy")
    replace(folder, "greedy.onnx", (folder / "sample.onnx").read_bytes())
    code, printed, _ = jaxrl("parity", folder)
    assert code == 1
    assert "of the program 'greedy'" in printed.splitlines()[-1]
    (folder / "greedy.onnx").write_bytes(b"")
    code, _, err = jaxrl("parity", folder)
    assert code == 2
    assert "greedy.onnx was changed after the export" in err


def test_parity_without_a_checkpoint_needs_neither_jax_nor_onnx(with_onnx: Path) -> None:
    code = (
        "import sys\n"
        "for name in ('jax', 'jaxlib', 'flax', 'optax', 'onnx'): sys.modules[name] = None\n"
        "from jaxrl.cli import main\n"
        f"sys.argv = ['jaxrl', 'parity', {str(with_onnx)!r}]\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "dist_inputs" in done.stdout
    assert [line.split(":")[0] for line in done.stdout.splitlines() if line[0] != " "] == [
        *("numpy", "onnx"),
        "equal",
    ]


def test_without_onnxruntime(
    with_onnx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    code, printed, _ = jaxrl("parity", with_onnx)
    assert code == 0
    missing = "onnx: not checked, because onnxruntime is not installed: pip install onnxruntime"
    assert printed.splitlines()[-2:] == [missing, "equal"]
    folder = copy(with_onnx, tmp_path / "policy")
    use_onnx_alone(folder)
    code, _, err = jaxrl("parity", folder)
    assert code == 2
    assert err == "error: ONNX files are run by onnxruntime: pip install onnxruntime.\n"
