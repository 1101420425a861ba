"""Every environment that jaxrl lists, of one agent and of several, keeps the contract."""

import warnings
from typing import Any

import pytest

from jaxrl.envs import list_envs, list_multi_envs
from jaxrl.testing import check_env
from tests.helpers import slow_but

CONFIGS: dict[str, dict[str, Any]] = {
    "BitFlip-v0": {"num_bits": 2},
    "PointReach-v0": {"threshold": 0.9},
}
STEPS = {
    "frozen-lake-v0": 120,
    "BitFlip-v0": 60,
    "PointReach-v0": 60,
    "MultiAgentCartPole-v0": 40,
    "TicTacToe-v0": 45,
    "ConnectFour-v0": 45,
    "TwoStep-v0": 6,
    "TwoStepAnd-v0": 6,
    "Climb-v0": 6,
    "LineOfAgents-v0": 130,
    "SimpleSpread-v0": 30,
    "SpeakerListener-v0": 30,
    "SimpleTag-v0": 30,
    "Foraging-v0": 60,
}
"""Steps until episodes have ended, where it is not 24, or 12 of probes, or 16 of gymnax's."""
IGNORES_ITS_KEY = (
    *("gymnax:", "jaxrl:probe-", "TwoStep", "Climb", "RockPaperScissors"),
    "DeepSea",
)
ENDS_AFTER_TEN = ("three-parts", "minefield", "jaxrl:three-parts")

SLOW = (
    *("Breakout-MinAtar", "Asterix-MinAtar", "Freeway-MinAtar", "Seaquest-MinAtar"),
    *("SimpleSpread-v0", "SpeakerListener-v0", "StatelessCartPole-v0"),
)
GYMNAX = (
    *("CartPole-v1", "Pendulum-v1", "Breakout-MinAtar", "Catch-bsuite", "FourRooms-misc"),
    *("SimpleBandit-bsuite", "Reacher-misc"),
)
"""Environments of each suite, and of each kind of observation and action."""
MULTI_PROBE = "jaxrl:probe-death-v0"


def check(name: str, env_config: dict[str, Any] | None = None) -> None:
    of_gymnax = name.startswith("gymnax:") or name.endswith("-MinAtar")
    steps = 12 if name.startswith("jaxrl:probe-") or name.startswith(ENDS_AFTER_TEN) else 24
    with warnings.catch_warnings():
        if name.startswith(IGNORES_ITS_KEY) or name.endswith("-MinAtar"):
            warnings.filterwarnings("ignore", ".*does not depend on the key")
        if name.startswith(ENDS_AFTER_TEN):
            warnings.filterwarnings("ignore", ".*every episode terminated after 10 steps")
        check_env(
            name,
            env_config or CONFIGS.get(name),
            num_steps=16 if of_gymnax else STEPS.get(name, steps),
            num_envs=2 if of_gymnax else 3,
            check_auto_reset=name != "BitFlip-v0",
        )


def list_single() -> list[Any]:
    names = list_envs()
    chosen = [n for n in names if n not in SLOW and not n.startswith("gymnax:")]
    return slow_but(*chosen, *(f"gymnax:{name}" for name in GYMNAX), of=names)


@pytest.mark.parametrize("name", list_single())
def test_of_one_agent(name: str) -> None:
    check(name)


def list_several() -> list[Any]:
    names = [n for n in list_multi_envs() if ":" not in n or n.startswith("jaxrl:")]
    chosen = [n for n in names if n not in SLOW and not n.startswith("jaxrl:probe-")]
    return slow_but(*chosen, MULTI_PROBE, of=names)


@pytest.mark.allow_key_reuse
@pytest.mark.parametrize("name", list_several())
def test_of_several_agents(name: str) -> None:
    check(name)


@pytest.mark.slow
@pytest.mark.allow_key_reuse
def test_of_masks() -> None:
    check("Foraging-v0", {"size": 5, "action_mask": True})
