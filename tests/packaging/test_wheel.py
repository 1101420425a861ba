"""The wheel, built from the source distribution and installed where nothing of the tree is."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOT_SOURCE = shutil.ignore_patterns(
    ".git", ".*_cache", ".venv*", "__pycache__", "*.egg-info", "build", "dist", "site", "results"
)


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def build(kind: str, source: Path, target: Path) -> Path:
    """Builds in `source` with the setuptools that is installed (no network, no build folder)."""
    target.mkdir()
    run(
        sys.executable,
        "-c",
        f"from setuptools.build_meta import build_{kind}; build_{kind}({str(target)!r})",
        cwd=source,
    )
    (artifact,) = target.iterdir()
    return artifact


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packaging")
    shutil.copytree(ROOT, folder / "tree", symlinks=True, ignore=NOT_SOURCE)
    sdist = build("sdist", folder / "tree", folder / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (source,) = (folder / "unpacked").iterdir()
    return build("wheel", source, folder / "wheel")


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty environment with the wheel alone; the dependencies are lent by this one."""
    folder = tmp_path_factory.mktemp("empty")
    python = make_python(folder)
    run(
        *(sys.executable, "-m", "pip", "--python", python, "install"),
        *("--quiet", "--no-deps", "--no-index", wheel),
        cwd=folder,
    )
    return python


def make_python(folder: Path) -> Path:
    """Make an environment without packages that imports those of this one, last."""
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder)
    # A folder that a .pth file adds comes last, and its own .pth files (the editable install of
    # the tree) are not read.
    (Path(site) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_top_level_is_exactly_jaxrl(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"jaxrl"}
    assert len(top) == 2


def test_wheel_has_every_module_and_config(wheel: Path) -> None:
    expected = {
        f"jaxrl/{path.relative_to(ROOT / 'jaxrl')}"
        for path in (ROOT / "jaxrl").rglob("*.py")
        if "envs" not in path.relative_to(ROOT / "jaxrl").parts
    }
    expected |= {f"jaxrl/{path.relative_to(ROOT)}" for path in (ROOT / "envs").rglob("*.py")}
    expected |= {f"jaxrl/{path.relative_to(ROOT)}" for path in (ROOT / "configs").rglob("*.yaml")}
    expected |= {"jaxrl/py.typed"}
    names = set(zipfile.ZipFile(wheel).namelist())
    assert expected <= names
    assert any(name.startswith("jaxrl/configs/") for name in names)


def test_wheel_imports_where_the_tree_is_not(python: Path, tmp_path: Path) -> None:
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "__init__.py").write_text("raise RuntimeError('the folder of a user')")
    code = (
        "import pathlib, jaxrl, jaxrl.envs.adapters, jaxrl.envs.registry, jaxrl.algorithms.ppo;"
        "home = pathlib.Path(jaxrl.__file__).parent;"
        "print(home, len(list(home.glob('configs/**/*.yaml'))))"
    )
    home, num_configs = run(python, "-c", code, cwd=tmp_path).rsplit(" ", 1)
    assert Path(home).is_relative_to(python.parents[1])
    assert int(num_configs) == len(list((ROOT / "configs").rglob("*.yaml"))) > 0


def test_command_is_installed(python: Path, tmp_path: Path) -> None:
    assert "train" in run(python.parent / "jaxrl", "--help", cwd=tmp_path)
    assert "CartPole-v1" in run(python.parent / "jaxrl", "list", "envs", cwd=tmp_path)


def test_an_editable_install_is_imported_beside_a_clone(tmp_path: Path) -> None:
    clone = tmp_path / "jaxrl"  # a clone has the package's name and, as a folder, is importable
    shutil.copytree(ROOT, clone, symlinks=True, ignore=NOT_SOURCE)
    python = make_python(tmp_path)
    run(
        *(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index"),
        *("--no-deps", "--no-build-isolation", "--editable", clone),
        cwd=tmp_path,
    )
    script = tmp_path / "script.py"
    script.write_text(
        "import importlib.util as util, jaxrl\n"
        "from jaxrl.config.registry import find_shipped_configs\n"
        "print(jaxrl.__file__, len(find_shipped_configs()))\n"
        "print([name for name in ('envs', 'tests', 'benchmarks') if util.find_spec(name)])\n"
    )
    first, second = run(python, script, cwd=tmp_path).splitlines()
    found, number = first.rsplit(" ", 1)
    assert Path(found).resolve() == clone / "jaxrl" / "__init__.py"
    assert int(number) > 0
    assert second == "[]"
