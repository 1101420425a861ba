"""Recorded data of five qualities, from a short run."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import datasets
from jaxrl.offline.recorded import open_data


@pytest.mark.slow
def test_qualities_are_in_order(tmp_path: Path) -> None:
    task = datasets.Task("classic/cartpole-ppo", 60_000, 4096)
    scores = datasets.make_datasets(task, tmp_path / "cartpole", 10_000, seed=0)
    assert json.loads((tmp_path / "cartpole" / "scores.json").read_text()) == scores
    means = {name: entry["mean_return"] for name, entry in scores.items()}
    assert means["random"] < means["mixed"] < means["medium"] <= means["expert"]
    assert means["random"] < means["replay"] < means["expert"]
    for name in ("random", "medium", "expert", "mixed"):
        assert 10_000 <= scores[name]["num_steps"] <= 10_160
    mixed = list(open_data(str(tmp_path / "cartpole" / "mixed")).iter_parts())
    expert = {part.episode_id for part in open_data(str(tmp_path / "cartpole/expert")).iter_parts()}
    rows = sum(len(part) for part in mixed if part.episode_id in expert)
    assert rows == 1000
    assert np.sum([len(part) for part in mixed]) == 10_000
