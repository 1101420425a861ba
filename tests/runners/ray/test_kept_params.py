"""Parameters of frozen modules, which actors keep, and what becomes of them when modules are trained."""

from typing import Any

import numpy as np

from jaxrl.core.types import Progress
from jaxrl.runners.fragment import Weights
from jaxrl.runners.ray.kept_params import KeptParamsSplitter, join_kept_params
from jaxrl.training.rollout import ActorState


def make_weights(version: int, **params: float) -> Weights:
    actors: Any = {
        name: ActorState(
            params=np.float32(value), obs_state=(), hparams={}, progress=Progress.zeros()
        )
        for name, value in params.items()
    }
    return Weights(version=version, actor=actors)


def get_params(weights: Any) -> dict[str, float]:
    return {name: float(own.params) for name, own in weights.actor.items()}


def test_frozen_parameters_are_sent_once_and_when_they_change() -> None:
    splitter = KeptParamsSplitter(("old",))
    rest, kept = splitter.split(make_weights(1, main=1.0, old=5.0))
    assert kept is not None
    assert get_params(join_kept_params(rest, kept)) == {"main": 1.0, "old": 5.0}
    rest, again = splitter.split(make_weights(2, main=2.0, old=5.0))
    assert again is None
    assert get_params(join_kept_params(rest, kept)) == {"main": 2.0, "old": 5.0}
    _, changed = splitter.split(make_weights(3, main=2.0, old=6.0))
    assert changed is not None


def test_a_module_that_is_trained_by_now_has_its_new_parameters() -> None:
    _, kept = KeptParamsSplitter(("old",)).split(make_weights(1, main=1.0, old=5.0))
    rest, none = KeptParamsSplitter(()).split(make_weights(2, main=2.0, old=7.0))
    assert none is None
    assert get_params(join_kept_params(rest, kept)) == {"main": 2.0, "old": 7.0}
    rest, _ = KeptParamsSplitter(()).split(make_weights(3, main=3.0))  # the other one is gone
    assert get_params(join_kept_params(rest, kept)) == {"main": 3.0}
