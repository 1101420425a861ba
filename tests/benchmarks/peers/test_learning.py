"""Settings of ours that the adapters of other libraries take over."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import learning
from jaxrl.bench.job import Job
from jaxrl.bench.suite import find_suite_file, load_suite


def test_settings_reach_a_peer_as_python_has_them() -> None:
    (cell, *_) = load_suite(find_suite_file("peers")).cells
    job: Job = load_suite(find_suite_file("peers")).make_job(cell, Path("nowhere"))
    settings = learning.get_settings(job)
    assert settings["vf_clip_param"] == float("inf")
    assert settings["minibatch_size"] == 128
    steps, rates = zip(*learning.get_schedule_points(settings["lr"]), strict=True)
    assert np.interp([0, 50_000, 200_000], steps, rates) == pytest.approx([2.5e-4, 1.25e-4, 0.0])
    assert learning.get_schedule_points(0.5) == [(0.0, 0.5)]
