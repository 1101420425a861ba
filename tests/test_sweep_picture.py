"""The picture of a sweep."""

from pathlib import Path
from typing import Any

import pytest

from jaxrl import BCConfig, grid
from jaxrl.sweeps.plot import draw_sweep
from tests.helpers import small
from tests.recorded_data import write_data

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


@pytest.mark.allow_key_reuse
def test_recorded_data_without_evaluations_have_losses(tmp_path: Path, monkeypatch: Any) -> None:
    from jaxrl.sweeps import plot

    drawn: list[Any] = []
    monkeypatch.setattr(plot, "save_figure", lambda figure, path: drawn.append(figure) or path)
    config = BCConfig().offline_data(
        input_=write_data(tmp_path / "data"), num_updates_per_iteration=2
    )
    config.training(lr=grid([1e-3, 1e-2]), train_batch_size=8)
    config.rl_module(model_config={"fcnet_hiddens": [4]}).checkpointing(checkpoint_at_end=False)
    config.debugging(results_dir=str(tmp_path), loggers=["json"])
    with config.build() as sweep:
        sweep.fit({"training_iteration": 2})
        losses = [
            result["learners"]["default_policy"]["total_loss"]
            for result in sweep.last_result["lanes"].values()
        ]
        assert draw_sweep(sweep) is not None
    (axes,) = drawn[0].axes  # without scores, none is drawn against the rate
    assert axes.get_xlabel() == "rows trained on"
    assert axes.get_ylabel() == "total loss (IQM)"
    assert [list(line.get_xdata())[-1] for line in axes.lines] == [32, 32]
    assert sorted(line.get_ydata()[-1] for line in axes.lines) == pytest.approx(sorted(losses))
    names = [label.get_text() for label in axes.get_legend().get_texts()]
    assert names == ["lr=0.001", "lr=0.01"]
