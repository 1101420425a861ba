"""Notebooks are committed as they ran, and run."""

import ast
import os
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


SHOWN = {"quickstart": ("image/png", "video/mp4", "iteration")}
"""Kinds of outputs of notebooks, if they have more than pictures."""


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell: Any) -> list[Any]:
    """Return the kinds of a cell's outputs: the stream's name, or the kinds of data."""
    outputs = [o.name if o.output_type == "stream" else sorted(o.data) for o in cell.outputs]
    streams = [kind for kind in outputs if isinstance(kind, str)]
    return [*dict.fromkeys(streams), *(kind for kind in outputs if not isinstance(kind, str))]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_was_run_from_top_to_bottom(path: Path) -> None:
    """`jupyter execute --inplace docs/notebooks/quickstart.ipynb` does it."""
    notebook = nbformat.read(path, 4)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert notebook.cells[0].source.startswith("# ")
    assert path.stat().st_size < 500_000
    assert len(cells[0].source.splitlines()) <= 6, "a long way to the first thing that runs"
    text = path.read_text()
    for cell in cells:
        ast.parse(cell.source)
        assert all(output.output_type != "error" for output in cell.outputs)
        assert "stderr" not in kinds(cell)
    for wanted in SHOWN.get(path.stem, ("image/png",)):
        assert wanted in text
    for folder in ("tmp", "home", "root"):
        assert f"/{folder}/" not in text


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_showed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the kernel's own draws into the page
    Path(os.environ["HOME"]).mkdir()  # where kernels keep their settings
    before = nbformat.read(path, 4)
    ran = nbformat.read(path, 4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(ran, timeout=300, resources=resources).execute()
    for old, new in zip(code_cells(before), code_cells(ran), strict=True):
        shown = [kind for kind in kinds(new) if kind != "stderr"]  # what XLA says of its cache
        assert shown == kinds(old), new.source
