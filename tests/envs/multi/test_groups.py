"""Groups of agents as one agent: what they see, do, earn, and when they end."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import PPOConfig
from jaxrl.core.struct import replace
from jaxrl.envs import (
    CheckedMultiAgentEnv,
    JaxEnv,
    MultiAgentJaxEnv,
    MultiStart,
    MultiStep,
    group_agents,
    make,
    make_multi,
)
from jaxrl.envs.multi.host_groups import GROUP_INFO, GROUP_REWARDS
from jaxrl.errors import EnvError, UnknownNameError
from jaxrl.testing import check_env
from tests.envs.multi.comers import Comers
from tests.envs.multi_host.scripted import BOX, ONGOING, Scripted, at

CROWD = ("crowd_0", "crowd_1", "crowd_2")
ALL = ("hermit", *CROWD)
IDLE = {"hermit": jnp.int32(0), "crowd": jnp.zeros((3,), jnp.int32)}


@pytest.mark.allow_key_reuse
@pytest.mark.parametrize(
    "extras",
    [pytest.param({}, marks=pytest.mark.slow), {"member_mask": True, "member_rewards": True}],
)
def test_contract_of_a_team_and_of_two_groups(extras: dict[str, bool]) -> None:
    check_env(group_agents("MultiAgentCartPole-v0", {"team": ("0", "1")}, **extras))
    check_env(group_agents(Comers(), {"one": ("hermit",), "many": CROWD}, **extras))


@pytest.mark.allow_key_reuse
def test_a_team_of_copies_is_one_agent_with_stacked_spaces() -> None:
    team = group_agents("MultiAgentCartPole-v0", {"team": ("1", "0")}, "mean")
    assert isinstance(team, JaxEnv)
    made, inner = make(team), make_multi("MultiAgentCartPole-v0")
    assert made.max_episode_steps == 500
    assert made.spaces[0].shape == (2, 4)
    assert made.spaces[1] == spaces.MultiDiscrete([2, 2])
    key = jax.random.key(0)
    state, obs = team.reset(key, made.params)
    own, start = inner.env.reset(key, inner.params)
    step_team, step_own = jax.jit(team.step), jax.jit(inner.env.step)
    np.testing.assert_array_equal(obs, np.stack([start.obs["1"], start.obs["0"]]))
    dead = np.zeros(2, bool)
    for t in range(100):
        key = jax.random.key(t)
        own, step = step_own(key, own, {"0": jnp.int32(0), "1": jnp.int32(t % 2)}, inner.params)
        state, grouped = step_team(key, state, jnp.array([t % 2, 0]), made.params)
        alive = ~dead
        seen = np.where(alive[:, None], [step.obs["1"], step.obs["0"]], 0.0)
        np.testing.assert_array_equal(grouped.obs, seen)
        assert grouped.reward == 1.0  # the mean over those who are there
        dead |= [bool(step.terminated["1"]), bool(step.terminated["0"])]
        assert bool(grouped.terminated) == dead.all()
        if dead.all():
            break
    assert 1 < t < 99


@pytest.mark.allow_key_reuse
def test_members_of_unequal_spaces_are_a_tuple_and_kinds_one_part_of_it() -> None:
    team = group_agents(
        Comers(), {"team": ALL}, member_mask=True, member_rewards=True, global_state=True
    )
    assert isinstance(team, JaxEnv)
    params = team.default_params
    space = team.observation_space(params)
    assert isinstance(space, spaces.Dict)
    assert set(space.spaces) == {"obs", "member_mask", "member_rewards", "global_state"}
    assert [part.shape for part in space["obs"]] == [(2,), (3, 3)]
    action_space = team.action_space(params)
    assert isinstance(action_space, spaces.Tuple)
    assert list(action_space) == [spaces.Discrete(3), spaces.MultiDiscrete([2, 2, 2])]
    env, key = Comers(), jax.random.key(1)
    state, obs = team.reset(key, params)
    own, _ = env.reset(key, params)
    np.testing.assert_array_equal(obs["member_mask"], [1, 1, 0, 0])
    np.testing.assert_array_equal(obs["obs"][1][1:], 0.0)  # not here yet
    begun = np.array([True, True, False, False])
    step_team, step_own = jax.jit(team.step), jax.jit(env.step)
    for t in range(40):
        actions = {"hermit": jnp.int32(2), "crowd": jnp.array([0, 1, 1])}
        own, step = step_own(jax.random.key(t), own, actions, params)
        state, grouped = step_team(
            jax.random.key(t), state, (jnp.int32(2), jnp.array([0, 1, 1])), params
        )
        reward, acts, died, left = (
            np.append(values["hermit"], values["crowd"])
            for values in (step.reward, step.acts, step.terminated, step.truncated)
        )
        paid = np.where(begun, reward, 0.0)
        assert grouped.reward == paid.sum()
        np.testing.assert_array_equal(grouped.obs["member_rewards"], paid)
        np.testing.assert_array_equal(grouped.obs["member_mask"], acts)
        np.testing.assert_array_equal(grouped.obs["global_state"], env.global_state(own, params))
        seen = (begun | acts)[1:, None]
        np.testing.assert_array_equal(grouped.obs["obs"][1], np.where(seen, step.obs["crowd"], 0.0))
        assert bool(grouped.terminated) == bool(step.terminated["__all__"])
        assert bool(grouped.truncated) == bool(step.truncated["__all__"])
        begun = (begun & ~(died | left)) | acts


@pytest.mark.allow_key_reuse
def test_a_group_ends_with_its_last_member_and_as_that_member_does() -> None:
    env = group_agents(Comers(), {"one": ("hermit",), "many": CROWD})
    assert isinstance(env, MultiAgentJaxEnv)
    assert env.possible_agents == ("one", "many")
    params = replace(env.default_params, over=np.float32(0))
    state, _ = env.reset(jax.random.key(0), params)
    own, start = Comers().reset(jax.random.key(0), params)
    begun, kinds = np.asarray(start.acts["crowd"]), set()
    step_env, step_own = jax.jit(env.step), jax.jit(Comers().step)
    action = {"one": jnp.zeros((1,), jnp.int32), "many": jnp.zeros((3,), jnp.int32)}
    for t in range(200):
        own, step = step_own(jax.random.key(t), own, IDLE, params)
        state, grouped = step_env(jax.random.key(t), state, action, params)
        died, left = np.asarray(step.terminated["crowd"]), np.asarray(step.truncated["crowd"])
        stays = begun & ~(died | left)
        ends = begun.any() and not stays.any()
        by_death = ends and (begun & died).any()
        flags = bool(grouped.terminated["many"]), bool(grouped.truncated["many"])
        assert flags == (by_death, ends and not by_death)
        assert bool(grouped.acts["many"]) == bool(step.acts["crowd"].any())
        kinds.add(flags)
        begun = stays | np.asarray(step.acts["crowd"])
    assert kinds == {(False, False), (True, False), (False, True)}


class Masked(MultiAgentJaxEnv[Any, None]):
    """Two agents in turns with masks; the one that waits has an empty mask."""

    possible_agents = ("a", "b")
    acting = "some"
    max_acting = 1
    max_episode_steps = 6

    def observation_space(self, agent: str, params: None) -> Any:
        box = spaces.Box(0.0, 9.0, (1,), np.float32)
        return spaces.Dict({"action_mask": spaces.MultiBinary(3), "seen": box})

    def action_space(self, agent: str, params: None) -> Any:
        return spaces.Discrete(3)

    def observe(self, time: Any) -> Any:
        acts = {"a": time % 2 == 0, "b": time % 2 == 1}
        obs = {
            name: {
                "action_mask": jnp.array([1, 0, 1], jnp.int8) * flag.astype(jnp.int8),
                "seen": time.astype(jnp.float32)[None],
            }
            for name, flag in acts.items()
        }
        return obs, acts

    def reset(self, key: Any, params: None) -> Any:
        time = jnp.zeros((), jnp.int32)
        obs, acts = self.observe(time)
        return time, MultiStart(obs=obs, acts=acts)

    def step(self, key: Any, time: Any, actions: Any, params: None) -> Any:
        obs, acts = self.observe(time + 1)
        none = dict.fromkeys(("a", "b", "__all__"), jnp.zeros((), bool))
        reward = {"a": jnp.ones(()), "b": jnp.ones(())}
        return time + 1, MultiStep(
            obs=obs, acts=acts, reward=reward, terminated=none, truncated=none
        )


@pytest.mark.allow_key_reuse
def test_masks_of_members_are_in_a_row_and_nothing_is_illegal_for_who_waits() -> None:
    for extras in ({}, {"member_mask": True}):
        team = group_agents(Masked(), {"team": ("a", "b")}, "same", **extras)
        assert isinstance(team, JaxEnv)
        space = team.observation_space(None)
        assert isinstance(space, spaces.Dict)
        assert space["action_mask"] == spaces.MultiBinary(6)
        state, obs = team.reset(jax.random.key(0), None)
        np.testing.assert_array_equal(obs["action_mask"], [1, 0, 1, 1, 1, 1])
        _, step = team.step(jax.random.key(0), state, jnp.zeros((2,), jnp.int32), None)
        np.testing.assert_array_equal(step.obs["action_mask"], [1, 1, 1, 1, 0, 1])
        assert step.reward == 1.0


@pytest.mark.allow_key_reuse
@pytest.mark.slow
def test_a_team_with_masks_trains_as_any_environment() -> None:
    config = PPOConfig().environment(group_agents(Masked(), {"team": ("a", "b")}))
    config.env_runners(num_envs_per_env_runner=4).debugging(loggers=[])
    config.training(train_batch_size=32, minibatch_size=32, num_epochs=1)
    config.rl_module(model_config={"fcnet_hiddens": [4]}).learners(num_devices=1)
    with config.build() as algo:
        result = algo.train()["env_runners"]
    assert result["episode_len_max"] == 6
    assert result["episode_return_max"] == 11.0  # 6 of a's and 5 of b's, who comes a step later


@pytest.mark.allow_key_reuse
@pytest.mark.parametrize(
    ("groups", "keywords", "error", "sentence"),
    [
        ({}, {}, EnvError, "groups must map names to lists of agents, got {}"),
        ({"t": ("hermt", *CROWD)}, {}, EnvError, "has no agent 'hermt'. Did you mean 'hermit'"),
        ({"t": ("hermit", *ALL)}, {}, EnvError, "groups have the agent 'hermit' twice"),
        ({"t": CROWD}, {}, EnvError, "'hermit' is in none; an agent of its own is a group of one"),
        (
            {"t": ALL[:2], "u": ALL[2:]},
            {},
            EnvError,
            "group 't' has a part of the kind 'crowd'; give it whole",
        ),
        ({"t": ALL}, {"reward": "max"}, EnvError, "must be 'sum', 'mean' or 'same', got 'max'"),
    ],
)
def test_bad_groups_are_refused(
    groups: Any, keywords: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        group_agents(Comers(), groups, **keywords)


@pytest.mark.allow_key_reuse
def test_what_the_environment_does_not_have_is_refused() -> None:
    with pytest.raises(EnvError, match="has no global state"):
        group_agents("MultiAgentCartPole-v0", {"t": ("0", "1")}, global_state=True)
    with pytest.raises(UnknownNameError, match="has no parameter 'nothing'"):
        group_agents(Comers(), {"t": ALL}, env_config={"nothing": 1})


# --- groups of agents of Python environments, compared with RLlib's wrapper ---


AGENTS = ("a", "b", "c")
ALL_OBS = {"a": at(0.1), "b": at(0.2), "c": at(0.3)}
ENDED = {"a": True, "b": True, "c": False, "__all__": False}
STEPS = [
    (ALL_OBS, {"a": 1.0, "b": 2.0, "c": 4.0}, ONGOING, ONGOING, {"a": {"x": 1}, "b": {}}),
    (ALL_OBS, {"a": 1.0, "b": 0.0}, ENDED, ONGOING, {"__common__": {"y": 2}}),
    ({"c": at()}, {}, {"__all__": True}, ONGOING, {}),
]


def make_grouped(*steps: Any, **options: Any) -> Any:
    env = Scripted((ALL_OBS, {}), steps or STEPS, AGENTS)
    return env.with_agent_groups({"team": ["a", "b"]}, **options)


def test_a_group_is_an_agent() -> None:
    env = make_grouped()
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
    checked = CheckedMultiAgentEnv(make_grouped((ALL_OBS, {}, *flags, {})))
    checked.reset()
    step = checked.step({"team": (1, 0), "c": 1})
    assert (step.terminated["team"], step.truncated["team"]) == (False, True)


def test_members_act_together() -> None:
    checked = CheckedMultiAgentEnv(
        make_grouped(({"a": at()}, {}, {"b": True, "__all__": False}, ONGOING, {}))
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
    assert make_grouped(obs_space=wide).get_observation_space("team") is wide


def test_values_equal_those_of_rllibs_wrapper() -> None:
    wrapper = pytest.importorskip("ray.rllib.env.wrappers.group_agents_wrapper")
    full = [
        (ALL_OBS, {"a": 1.0, "b": 2.0, "c": 4.0}, ENDED, {**ENDED, "a": False, "b": False},
         {"a": {"x": 1}, "b": {}, "c": {}}),
    ]  # fmt: skip
    mine = make_grouped(*full)
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
