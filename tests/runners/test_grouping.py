"""Lanes that share a program; nothing is compiled."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import grid
from jaxrl.config.sweep import make_lanes
from jaxrl.core.spaces import is_same_space
from jaxrl.envs.classic.cartpole import CartPole
from jaxrl.errors import HostLanesError
from jaxrl.sweeps.grouping import group_lanes
from tests.helpers import small
from tests.lanes import PaidCartPole, paid_cart_pole


def sizes(config: Any) -> list[int]:
    return [len(group.lanes) for group in group_lanes(make_lanes(config))]


@pytest.mark.parametrize(
    ("env", "env_config", "groups"),
    [
        ("CartPole-v1", {"gravity": grid([9.8, 12.0])}, [4]),
        ("CartPole-v1", {"gravity": grid([10, 10.0])}, [4]),
        (PaidCartPole, {"gravity": grid([9.8, 12.0])}, [4]),
        (PaidCartPole, {"pay": grid([1.0, 0.1])}, [2, 2]),
        (PaidCartPole, {"pay": grid([1.0, 1.0])}, [4]),
        (PaidCartPole(0.5), {"gravity": grid([9.8, 12.0])}, [4]),
        (grid([PaidCartPole(0.5), PaidCartPole(0.5)]), {}, [2, 2]),
        (paid_cart_pole, {"pay": grid([1.0, 0.1])}, [2, 2]),
        (paid_cart_pole, {"pay": grid([1, True])}, [2, 2]),
        (paid_cart_pole, {"pay": 0.5}, [2]),
        (paid_cart_pole, {"table": grid([np.zeros(2), np.ones(2)])}, [2, 2]),
        ("Pendulum-v1", {"max_torque": grid([1.0, 4.0])}, [2, 2]),
        ("Pendulum-v1", {"max_torque": grid([1.0, 1.000001])}, [2, 2]),
        ("Pendulum-v1", {"max_speed": grid([1.0, 4.0])}, [2, 2]),
        ("Pendulum-v1", {"g": grid([1.0, 4.0])}, [4]),
        ("MountainCarContinuous-v0", {"max_action": grid([1.0, 0.25])}, [2, 2]),
        ("gymnax:CartPole-v1", {"gravity": grid([9.8, 12.0])}, [4]),
        ("gymnax:CartPole-v1", {"max_steps_in_episode": grid([500, 20])}, [2, 2]),
    ],
)
def test_lanes_share_a_program_if_their_environments_differ_in_arguments_alone(
    env: Any, env_config: dict[str, Any], groups: list[int]
) -> None:
    assert sizes(small(env=env).environment(env_config=env_config).sweep(seeds=2)) == groups


def test_so_do_the_environments_of_evaluation() -> None:
    """They get the `env_config` of training, and may make something else of it."""
    config = small().environment(env_config={"gravity": grid([1.0, 2.0])})
    assert sizes(config) == [2]
    config.evaluation(evaluation_config={"env": "tests.runners.test_grouping:Heavy"})
    assert sizes(config) == [1, 1]


class Heavy(CartPole):
    """With gravity as an argument of the constructor."""

    def __init__(self, gravity: float) -> None:
        super().__init__()
        self.gravity = gravity


def test_a_creator_is_called_once_for_lanes_with_equal_settings() -> None:
    seen: list[Any] = []

    def creator(context: Any) -> CartPole:
        seen.append(dict(context))
        return CartPole()

    config = small(env=creator).environment(env_config={"a": grid([1.0, 2.0])}).sweep(seeds=5)
    assert sizes(config) == [5, 5]
    assert seen == [{"a": 1.0}, {"a": 2.0}]


def test_environments_on_the_host_have_no_lanes() -> None:
    with pytest.raises(HostLanesError, match="stepped by runners on the host"):
        sizes(small(env="gymnasium:CartPole-v1").sweep(seeds=2))


@pytest.mark.parametrize(
    ("space", "same"),
    [
        (spaces.Box(-1.0, 1.0, (2,)), True),
        (spaces.Box(-1.0, float(np.nextafter(np.float32(1), np.float32(2))), (2,)), False),
        (spaces.Box(-1.0, 1.0, (3,)), False),
        (spaces.Discrete(2), False),
    ],
)
def test_bounds_of_the_same_space_are_equal_to_the_bit(space: Any, same: bool) -> None:
    box = spaces.Box(-1.0, 1.0, (2,))
    assert is_same_space(box, space) == same
    nested = [spaces.Dict({"a": spaces.Tuple([x]), "b": spaces.Discrete(3)}) for x in (box, space)]
    assert is_same_space(*nested) == same
