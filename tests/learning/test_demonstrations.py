"""Learning in an environment with demonstrations: half of the steps that are needed without them.

`python -m pytest -m slow tests/learning/test_demonstrations.py -s` prints every seed.
"""

import json
from pathlib import Path

import pytest

from benchmarks.demonstrations import FILE, TASKS, WITH, WITHOUT, compute_means, run_task

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]


@pytest.mark.parametrize("name", TASKS)
def test_demonstrations_halve_the_steps(tmp_path: Path, name: str) -> None:
    run_task(name, tmp_path / FILE)
    entry = json.loads((tmp_path / FILE).read_text())[name]
    means = compute_means(entry["steps"])
    print(f"{name} to {entry['threshold']}: {entry['steps']}; IQM {means}")
    assert means[WITH] <= 0.5 * means[WITHOUT]
