"""Environment variables of the driver and of actors."""

import os

import pytest

from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.runners.environs import actor_environs, set_driver_environs


def test_the_drivers_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXRL_TOLD", "before")
    config = PPOConfig().python_environment(extra_python_environs_for_driver={"JAXRL_TOLD": "so"})
    set_driver_environs(config)
    assert os.environ["JAXRL_TOLD"] == "so"


def test_actors_see_no_accelerator_and_share_the_cores() -> None:
    one = actor_environs(0.5, {})
    assert one["JAX_PLATFORMS"] == "cpu"
    assert one["CUDA_VISIBLE_DEVICES"] == ""
    assert one["JAX_NUM_CPU_DEVICES"] == one["NPROC"] == one["OMP_NUM_THREADS"] == "1"
    assert one["XLA_FLAGS"] == "--xla_cpu_multi_thread_eigen=false"
    four = actor_environs(4.0, {"OMP_NUM_THREADS": "2"})
    assert (four["NPROC"], four["OMP_NUM_THREADS"], four["XLA_FLAGS"]) == ("4", "2", "")
