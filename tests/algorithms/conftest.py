"""Faults that tests of algorithms must notice."""

import dataclasses
from typing import Any

import pytest

from jaxrl.training.rollout import RolloutWorker


@pytest.fixture
def truncation_is_termination(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the rollout take truncation for termination."""
    honest = RolloutWorker.rollout

    def broken(*args: Any, **kwargs: Any) -> Any:
        env, carry, rollout, record = honest(*args, **kwargs)
        ended = rollout.terminated | rollout.truncated
        return env, carry, dataclasses.replace(rollout, terminated=ended), record

    monkeypatch.setattr(RolloutWorker, "rollout", broken)
