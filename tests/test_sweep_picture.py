"""The picture of a sweep."""

from pathlib import Path
from typing import Any

import pytest

from jaxrl import grid
from jaxrl.sweeps.plot import draw_sweep
from tests.helpers import small

PNG = b"\x89PNG"


def swept(folder: Path, **training: Any) -> Any:
    config = small("PPO", "CartPole-v1", **training).debugging(results_dir=str(folder))
    return config.debugging(loggers=["json"]).sweep(seeds=2)


@pytest.mark.slow
@pytest.mark.allow_key_reuse
def test_curves_and_scores_against_each_number(tmp_path: Path, monkeypatch: Any) -> None:
    from matplotlib.figure import Figure

    drawn: list[Any] = []
    honest = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *a, **k: drawn.append(self) or honest(self, *a, **k)
    )
    with swept(tmp_path, lr=grid([1e-4, 1e-2]), use_kl_loss=False).build() as sweep:
        assert draw_sweep(sweep) is None  # nothing has been trained
        sweep.fit({"training_iteration": 3})
        path = draw_sweep(sweep)
    assert path is not None
    assert path.read_bytes().startswith(PNG)
    curves, scores = drawn[0].axes
    assert len(curves.lines) == 2
    assert {label.get_text().split(":")[0] for label in curves.get_legend().get_texts()} == {
        "lr=0.0001",
        "lr=0.01",
    }
    assert scores.get_xscale() == "log"
    assert scores.get_xlabel() == "lr"


@pytest.mark.allow_key_reuse
def test_seeds_alone_are_one_curve(tmp_path: Path) -> None:
    with swept(tmp_path).build() as sweep:
        sweep.fit({"training_iteration": 2})
        path = draw_sweep(sweep)
    assert path is not None
    assert path.parent.parent == sweep.folder.path
