"""Groups of agents of Python environments, compared with RLlib's wrapper."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.envs import CheckedMultiAgentEnv
from jaxrl.envs.multi.host_groups import GROUP_INFO, GROUP_REWARDS
from jaxrl.errors import EnvError
from tests.envs.multi_host.scripted import BOX, ONGOING, Scripted, at

AGENTS = ("a", "b", "c")
ALL_OBS = {"a": at(0.1), "b": at(0.2), "c": at(0.3)}
ENDED = {"a": True, "b": True, "c": False, "__all__": False}
STEPS = [
    (ALL_OBS, {"a": 1.0, "b": 2.0, "c": 4.0}, ONGOING, ONGOING, {"a": {"x": 1}, "b": {}}),
    (ALL_OBS, {"a": 1.0, "b": 0.0}, ENDED, ONGOING, {"__common__": {"y": 2}}),
    ({"c": at()}, {}, {"__all__": True}, ONGOING, {}),
]


def make(*steps: Any, **options: Any) -> Any:
    env = Scripted((ALL_OBS, {}), steps or STEPS, AGENTS)
    return env.with_agent_groups({"team": ["a", "b"]}, **options)


def test_a_group_is_an_agent() -> None:
    env = make()
    checked = CheckedMultiAgentEnv(env)
    assert checked.possible_agents == ("team", "c")
    assert checked.get_observation_space("team") == spaces.Tuple([BOX, BOX])
    assert checked.get_action_space("team") == spaces.Tuple([spaces.Discrete(2)] * 2)
    start = checked.reset()
    np.testing.assert_equal(start.obs, {"team": (at(0.1), at(0.2)), "c": at(0.3)})
    first = checked.step({"team": (1, 0), "c": 1})
    assert env.env.actions == [{"a": 1, "b": 0, "c": 1}]
    assert first.reward == {"team": 3.0, "c": 4.0}
    assert first.infos == {"team": {GROUP_INFO: [{"x": 1}, {}], GROUP_REWARDS: [1.0, 2.0]}}
    second = checked.step({"team": (0, 0), "c": 1})
    assert second.terminated == {"team": True, "c": False, "__all__": False}
    assert second.infos["team"][GROUP_REWARDS] == [1.0, 0.0]
    assert second.info == {"y": 2}
    last = checked.step({"c": 0})
    assert last.present == ("c",)


def test_members_that_end_differently_are_truncated_together() -> None:
    flags = {"a": True, "__all__": False}, {"b": True, "__all__": False}
    checked = CheckedMultiAgentEnv(make((ALL_OBS, {}, *flags, {})))
    checked.reset()
    step = checked.step({"team": (1, 0), "c": 1})
    assert (step.terminated["team"], step.truncated["team"]) == (False, True)


def test_members_act_together() -> None:
    checked = CheckedMultiAgentEnv(
        make(({"a": at()}, {}, {"b": True, "__all__": False}, ONGOING, {}))
    )
    checked.reset()
    with pytest.raises(EnvError, match="Group 'team' has an observation of 'a', and none of 'b'"):
        checked.step({"team": (1, 0), "c": 1})


@pytest.mark.parametrize(
    ("groups", "options", "sentence"),
    [
        ({"t": []}, {}, "Group 't' has no members"),
        ({"t": ["z"]}, {}, r"Group 't' has 'z', no possible agent of \['a', 'b', 'c'\]"),
        ({"t": ["a"], "u": ["a"]}, {}, "Agent 'a' is in the groups 't' and 'u'"),
        ({"c": ["a", "b"]}, {}, "Group 'c' has the id of an agent"),
        ({"t": ["a", "b"]}, {"obs_space": BOX}, "obs_space must be a Tuple with a part for each"),
        ({"t": ["a"]}, {"act_space": spaces.Tuple([BOX] * 2)}, "act_space must be .* 1 members"),
    ],
)
def test_groups_that_cannot_be(groups: Any, options: Any, sentence: str) -> None:
    with pytest.raises(EnvError, match=sentence):
        Scripted(agents=AGENTS).with_agent_groups(groups, **options)


def test_a_given_space_replaces_that_of_the_members() -> None:
    wide = spaces.Tuple([spaces.Box(-2.0, 2.0, (2,))] * 2)
    assert make(obs_space=wide).get_observation_space("team") is wide


def test_values_equal_those_of_rllibs_wrapper() -> None:
    wrapper = pytest.importorskip("ray.rllib.env.wrappers.group_agents_wrapper")
    full = [
        (ALL_OBS, {"a": 1.0, "b": 2.0, "c": 4.0}, ENDED, {**ENDED, "a": False, "b": False},
         {"a": {"x": 1}, "b": {}, "c": {}}),
    ]  # fmt: skip
    mine = make(*full)
    theirs = wrapper.GroupAgentsWrapper.__new__(wrapper.GroupAgentsWrapper)
    theirs._agent_ids = set()
    theirs.__init__(Scripted((ALL_OBS, {}), full, AGENTS), {"team": ["a", "b"]})
    starts = mine.reset(seed=1), theirs.reset(seed=1)
    actions = {"team": (1, 0), "c": 1}
    for left, right in zip(
        (*starts[0], *mine.step(actions)), (*starts[1], *theirs.step(actions)), strict=True
    ):
        assert left.keys() == right.keys()
        for key, value in right.items():
            value = tuple(value) if isinstance(value, list) else value
            np.testing.assert_equal(left[key], value)
