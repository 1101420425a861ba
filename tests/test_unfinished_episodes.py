"""Results of a run in which no episode has ended yet: everything that reads returns survives NaN."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

from jaxrl import Algorithm
from jaxrl.config.stop import find_reached_criterion, parse_stop
from jaxrl.errors import UnknownNameError
from jaxrl.loggers import text
from jaxrl.metrics import EMPTY_EPISODE_METRICS
from jaxrl.sweeps.points import group_points
from tests.helpers import small

RETURN = "env_runners/episode_return_mean"


def unfinished() -> Any:
    """Episodes of 200 steps, of which an iteration has 32."""
    return small(env="Pendulum-v1").evaluation(
        evaluation_interval=1, evaluation_duration=8, evaluation_duration_unit="timesteps"
    )


def test_sinks_scores_and_stop_criteria_survive_nan(tmp_path: Path) -> None:
    config = unfinished().checkpointing(
        checkpoint_frequency=1, checkpoint_score_attribute=RETURN, max_to_keep=1
    )
    config.debugging(results_dir=str(tmp_path), loggers=["json", "csv", "tensorboard", "console"])
    with config.build() as algorithm:
        result = algorithm.fit({RETURN: -1e9, "training_iteration": 2})
        assert result["training_iteration"] == 2
        folder = Path(algorithm.run_dir)
        checkpoint = algorithm.save()
    for part in (result, result["evaluation"]):
        assert all(math.isnan(part["env_runners"][name]) for name in EMPTY_EPISODE_METRICS)
    rows = [json.loads(line) for line in (folder / "result.json").read_text().splitlines()]
    assert [row["env_runners"]["episode_return_mean"] for row in rows] == [None, None]
    with (folder / "progress.csv").open() as file:
        assert all(math.isnan(float(row[RETURN])) for row in csv.DictReader(file))
    with Algorithm.from_checkpoint(checkpoint) as restored:
        last = restored.fit({"training_iteration": 2})
        assert all(math.isnan(last["env_runners"][name]) for name in EMPTY_EPISODE_METRICS)
        repeated = restored.evaluate()["env_runners"]
        assert math.isnan(repeated["episode_return_mean"])


@pytest.mark.slow
@pytest.mark.allow_key_reuse  # lanes are a vmap over whole states
def test_a_lane_without_a_return_is_no_best_lane(tmp_path: Path) -> None:
    config = small(env="Pendulum-v1").sweep(seeds=2).debugging(results_dir=str(tmp_path))
    with config.build() as sweep:
        result = sweep.train()
        assert math.isnan(result["env_runners"]["episode_return_mean"])
        with pytest.raises(UnknownNameError, match="a number under 'env_runners/"):
            sweep.best_lane()
        assert math.isnan(sweep.points()[0].score)
        sweep._results[1]["env_runners"]["episode_return_mean"] = -5.0
        assert sweep.best_lane() == sweep.best_lane(mode="min") == 1
        assert sweep.points()[0].scores == (-5.0,)
        assert sweep._combine_results()["env_runners"]["episode_return_mean"] == -5.0


def test_nan_reaches_no_threshold_and_is_no_score() -> None:
    nan = {"env_runners": {"episode_return_mean": math.nan}}
    assert find_reached_criterion(nan, parse_stop({RETURN: -1e9})) is None
    assert math.isnan(group_points([(0, {})], {0: nan}, RETURN)[0].score)
    assert text.format_number(math.nan) == "nan"
