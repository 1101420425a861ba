"""Scores of configs that a return does not judge: what counts, and what is written."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import outcomes, scores
from jaxrl import grid
from jaxrl.config.load import load_experiment

NAME = "curriculum/frozenlake-ppo"


class Played:
    """Run whose evaluations are given."""

    def __init__(self, **games: dict[str, tuple[int, int, int]]) -> None:
        self.games, self.asked, self.weights = games, {}, {}
        self.opponents = {"random": 0, **{f"main_v{i}": i for i in (2, 9, 10)}}

    def evaluate(self, **asked: Any) -> dict[str, Any]:
        self.asked = asked
        names = ("wins", "draws", "losses")
        return {
            "env_runners": {"episode_return_mean": 0.75},
            "opponents": {
                opponent: {
                    seat: {**dict(zip(names, counts, strict=True)), "num_episodes": sum(counts)}
                    for seat, counts in seats.items()
                }
                for opponent, seats in self.games.items()
            },
        }

    def get_weights(self, names: list[str]) -> dict[str, str]:
        return {name: f"weights of {name}" for name in names}

    def set_weights(self, weights: dict[str, str]) -> None:
        self.weights = weights


def test_the_worst_opponent_counts_in_both_seats_and_a_draw_is_half() -> None:
    run: Any = Played(random={"x": (8, 1, 1), "o": (6, 2, 2)}, main_v2={"x": (9, 1, 0)})
    assert outcomes.compute_share_against_random(run) == pytest.approx((8.5 + 7.0) / 20)
    assert run.asked["opponents"] == ["random"]


def test_the_newest_version_plays_against_the_others() -> None:
    run: Any = Played(random={"x": (10, 0, 0)})
    assert outcomes.compute_share_against_versions(run) == 1.0
    assert run.weights == {"main": "weights of main_v10"}
    assert run.asked["opponents"] == ["main_v9", "main_v2", "random"]


def test_seeds_are_added_to_the_summary_and_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []

    def run_seed(case: Any, judge: Any, seed: int) -> tuple[float, float]:
        ran.append(seed)
        if seed == 3 and ran.count(3) == 1:
            raise KeyboardInterrupt
        return seed / 10, 2.0

    monkeypatch.setattr(outcomes, "run_seed", run_seed)
    path = tmp_path / "amd" / "scores" / "outcomes" / outcomes.FILE
    with pytest.raises(KeyboardInterrupt):
        outcomes.run_case(outcomes.CASES["curriculum"], path)
    (cell,) = json.loads(path.read_text())["cells"]
    assert "return" not in cell  # three seeds are no row of the page
    outcomes.run_case(outcomes.CASES["curriculum"], path)
    assert ran == [0, 1, 2, 3, 3, 4]
    (cell,) = json.loads(path.read_text())["cells"]
    assert cell["return"]["value"] == pytest.approx(0.2)
    assert (cell["min"], cell["seconds"], cell["budget"]) == (0.0, 10.0, 300_000)
    monkeypatch.setattr(scores, "ROOT", tmp_path)
    text = scores.render_page(scores.load_summaries(tmp_path), "")
    assert f"| `{NAME}` | return on the largest lake | 300,000 | 0.2" in text
    assert "`python -m benchmarks.outcomes`" in text
    assert "full report" not in text


@pytest.mark.slow
@pytest.mark.allow_key_reuse  # JAX's check does not know what vmap does to a key
def test_a_seed_and_the_sweep_are_trained_and_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_short(name: str) -> Any:
        experiment = load_experiment(name)
        experiment.config.training(train_batch_size=256, minibatch_size=64, num_epochs=1)
        if experiment.config.sweep_settings.seeds is not None:
            experiment.config.training(lr=grid([1e-3, 1e-30])).sweep(seeds=2)
        return dataclasses.replace(experiment, stop={outcomes.BUDGET: 4096})

    monkeypatch.setattr(outcomes, "load_experiment", load_short)
    monkeypatch.setattr(outcomes, "NUM_EPISODES", 20)
    case = outcomes.CASES["tictactoe"]
    assert case.judge is not None
    share, seconds = outcomes.run_seed(case, case.judge, 1)
    assert 0.2 < share < 0.9
    assert seconds > 0
    alone = outcomes.CASES["no-curriculum"].change(load_experiment(NAME).config)
    assert alone.environment_settings.curriculum is None
    assert alone.environment_settings.env_config == {"size": 24, "max_size": 24}
    found, _ = outcomes.run_sweep(load_short("sweeps/cartpole-ppo"))
    assert found.keys() == {"0", "1"}
    assert np.mean([*found.values()]) > 15  # 9 without training
