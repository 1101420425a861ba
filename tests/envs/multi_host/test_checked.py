"""The checker of Python environments of several agents: values, tolerance, and every breach."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import EnvContext, PPOConfig
from jaxrl.envs import CheckedMultiAgentEnv, MultiAgentEnv, PettingZooEnv, make_multi_host
from jaxrl.envs.adapters.precheck import play_randomly, precheck_env, sample_actions
from jaxrl.envs.multi.checked import MAX_IDLE_STEPS, NonFiniteValueError
from jaxrl.errors import EnvError
from tests.envs.multi_host.scripted import ONGOING, Scripted, Turns, at

BOTH = {"a": at(), "b": at()}


def run(*steps: Any, start: Any = None, **options: Any) -> list[Any]:
    """Play scripted steps with every asked agent's action 1; return the start and the steps."""
    env = CheckedMultiAgentEnv(Scripted(start, steps), "Mine", **options)
    found: list[Any] = [env.reset(seed=0)]
    found.extend(env.step(dict.fromkeys(env.agents_to_act, 1)) for _ in steps)
    return found


def test_a_step_at_which_all_go_on_is_what_any_step_is(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = {"a": False, "b": False, "__all__": False}
    one = BOTH, {"b": np.float32(2), "a": 1}, flags, flags, {"a": {}, "b": {"x": 1}}
    ends = BOTH, {"a": 1.0, "b": 0.0}, {**flags, "a": True}, flags, {"a": {}, "b": {}}
    numbers = BOTH, {"a": 1.0, "b": 0.0}, dict.fromkeys(flags, np.False_), flags, {"a": {}, "b": {}}
    steps = one, one, numbers, ends
    quick = run(*steps, start=(BOTH, {}))
    monkeypatch.setattr(CheckedMultiAgentEnv, "_check_usual_step", lambda *_: None)
    for found, expected in zip(quick, run(*steps, start=(BOTH, {})), strict=True):
        for name, value in vars(expected).items():
            np.testing.assert_equal(getattr(found, name), value)
            assert not isinstance(value, dict) or list(getattr(found, name)) == list(value)


def test_large_numbers_are_finite() -> None:
    space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    env = Scripted(({"a": np.full(2, 3e38, np.float32)}, {}), [])
    env.observation_spaces = {"a": space, "b": space}
    assert CheckedMultiAgentEnv(env).reset().obs["a"][0] > 1e38


def test_the_flag_of_the_episode_may_be_in_one_dictionary_alone() -> None:
    _, step = run((BOTH, {}, {"__all__": True}, {}, {}))
    assert step.terminated["__all__"]
    assert not step.truncated["__all__"]
    _, step = run((BOTH, {}, {}, {"__all__": True}, {}))
    assert step.truncated["__all__"]
    assert not step.terminated["__all__"]


def test_turns_with_int_ids_have_names_and_keep_their_own_ids() -> None:
    env = CheckedMultiAgentEnv(Turns())
    assert env.possible_agents == ("0", "1")
    start = env.reset(seed=3)
    assert list(start.obs) == ["0"]
    assert start.infos == {"0": {"first": True}}
    first = env.step({"0": np.int32(1)})
    assert first.reward == {"0": 1.0}
    assert first.acts == {"0": False, "1": True}
    assert first.joined == ("1",)
    assert first.info == {"count": 1}
    second = env.step({1: 0})  # the environment's own id is accepted
    assert second.reward == {"0": 0.0, "1": 1.0}
    assert second.acts == {"0": True, "1": False}
    assert second.joined == ()
    for agent in ("0", "1", "0"):
        last = env.step({agent: 0})
    assert last.is_over
    assert last.terminated == {"0": True, "1": True, "__all__": True}
    assert not any(last.acts.values())


def test_actions_have_the_types_of_the_environments_space() -> None:
    env = Scripted(None, [(BOTH, {}, ONGOING, ONGOING, {})])
    checked = CheckedMultiAgentEnv(env)
    checked.reset()
    checked.step({"a": np.asarray(1, np.int32), "b": 0})
    (sent,) = env.actions
    assert list(sent) == ["a", "b"]
    assert all(type(value) is np.int64 for value in sent.values())


def test_agents_end_on_their_own_and_come_again() -> None:
    ends = {"a": True, "__all__": False}
    start, gone, back, over = run(
        (BOTH, {"a": 2.0}, ends, ONGOING, {}),
        (BOTH, {"a": 1.0}, ONGOING, ONGOING, {}),
        ({}, {}, {"__all__": True}, ONGOING, {}),
    )
    assert start.acts == {"a": True, "b": True}
    assert gone.terminated == {"a": True, "b": False, "__all__": False}
    assert set(gone.obs) == {"a", "b"}  # the last observation of a
    assert gone.acts == {"a": False, "b": True}
    assert back.present == ("b",)
    assert back.joined == ("a",)
    assert back.reward == {"b": 0.0, "a": 1.0}
    assert back.rewards_without_action == 1
    assert over.terminated == {"b": True, "a": True, "__all__": True}


def test_own_flags_go_before_those_of_the_episode() -> None:
    _, step = run((BOTH, {}, {"a": True, "__all__": False}, {"__all__": True}, {}))
    assert step.terminated == {"a": True, "b": False, "__all__": False}
    assert step.truncated == {"a": False, "b": True, "__all__": True}


def test_flags_and_observations_of_absent_agents_are_ignored() -> None:
    ends, repeated = {"b": True, "__all__": False}, {"b": True, "__all__": False}
    _, _, step = run((BOTH, {}, ends, ONGOING, {}), (BOTH, {"b": 0.0}, repeated, ONGOING, {}))
    assert step.present == ("a",)
    assert step.joined == ()
    assert set(step.obs) == {"a"}
    assert step.rewards_without_action == 0


def test_rewards_without_action_are_counted() -> None:
    env = CheckedMultiAgentEnv(
        Scripted(({"a": at()}, {}), [({"a": at()}, {"b": 3.0}, ONGOING, ONGOING, {})] * 2)
    )
    env.reset()
    steps = [env.step({"a": 0}) for _ in range(2)]
    assert [step.reward for step in steps] == [{"a": 0.0, "b": 3.0}] * 2
    assert env.rewards_without_action == 2


def test_a_time_limit_truncates_and_never_terminates() -> None:
    ongoing = (BOTH, {}, ONGOING, ONGOING, {})
    *_, step = run(ongoing, ongoing, max_episode_steps=2)
    assert step.truncated == {"a": True, "b": True, "__all__": True}
    assert not any(step.terminated.values())
    *_, step = run(ongoing, (BOTH, {}, {"__all__": True}, ONGOING, {}), max_episode_steps=2)
    assert not step.truncated["__all__"]


def test_the_state_of_an_episode_goes_on_in_another_copy() -> None:
    inner, other_inner = Turns(), Turns()
    env, other = CheckedMultiAgentEnv(inner), CheckedMultiAgentEnv(other_inner)
    env.reset(seed=1)
    env.step({"0": 1})
    other.reset(seed=1)
    other_inner.set_state(inner.get_state())
    other_inner.draw()  # as many random numbers
    other.set_flags(other.possible_agents, env.get_flags(env.possible_agents))
    assert other.agents_to_act == ("1",)
    for agent in ("1", "0", "1", "0"):
        mine, theirs = env.step({agent: 1}), other.step({agent: 1})
        assert mine.reward == theirs.reward
        assert mine.terminated == theirs.terminated
        np.testing.assert_equal(mine.obs, theirs.obs)


def test_observations_are_cast_from_the_environments_types_without_a_word(caplog: Any) -> None:
    class Doubles(Turns):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float64)

        def draw(self) -> np.ndarray:
            return self.np_random.uniform(-1.0, 1.0, 2)

    obs = CheckedMultiAgentEnv(Doubles(), "Doubles").reset(seed=0).obs["0"]
    assert obs.dtype == np.float32
    assert not caplog.records


def step_with(**parts: Any) -> tuple[Any, ...]:
    values = {"obs": BOTH, "rewards": {}, "term": ONGOING, "trunc": ONGOING, "infos": {}, **parts}
    return tuple(values.values())


NAN = float("nan")


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        (BOTH, r"step 1: step must return \(observations, rewards, .* by agent, got a dict"),
        ((BOTH, {}, False, {}), "step must return .*, got 4 values"),
        (step_with(obs=[1]), "the observations must be a dictionary by agent, got a list"),
        (step_with(obs={"c": at()}), "step 1's observations name the unknown agent 'c'; add it to"),
        (step_with(rewards={"c": 1.0}), "step 1's rewards name the unknown agent 'c'"),
        (step_with(rewards={"__all__": 1.0}), "unknown agent '__all__'"),
        (step_with(obs={"a": np.zeros(3, np.float32)}), r"of agent 'a' must be float32 of shape "),
        (step_with(obs={"a": "text"}), "the observation of agent 'a' must be float32 .* return a "),
        (step_with(obs={"a": at(5.0)}), r"agent 'a' must lie in \[-1.0, 1.0\] at index \(0,\)"),
        (step_with(obs={"a": at(NAN)}), r"agent 'a' is NaN or infinite; .* numbers in obs\['a'\]"),
        (step_with(rewards={"b": NAN}), r"the reward of agent 'b' is nan; .* in rewards\['b'\]"),
        (step_with(rewards={"b": None}), "the reward of agent 'b' must be one number, got None"),
        (step_with(rewards={"b": [1, [2]]}), "the reward of agent 'b' must be one number"),
        (
            step_with(term={}, trunc={}),
            r"terminateds must be a dictionary with '__all__', .* got \[\]",
        ),
        (step_with(trunc=None), "truncateds must be a dictionary by agent, got a NoneType"),
        (step_with(term=False), "terminateds must be a dictionary .* got a bool"),
        (step_with(term={"__all__": None}), r"terminateds\['__all__'\] must be a bool, got None"),
        (step_with(trunc={"a": 1, **ONGOING}), r"truncateds\['a'\] must be a bool, got 1"),
        (step_with(infos={"a": 3}), "the info of 'a' must be a dictionary, got 3"),
        (step_with(infos={"__common__": 3}), "the info of '__common__' must be a dictionary"),
        (
            step_with(obs={"b": at()}, trunc={"a": True, "__all__": False}),
            r"step 1: agent 'a' is truncated without a last observation .* return obs\['a'\] at",
        ),
        (
            step_with(obs={}, trunc={"__all__": True}),
            r"agent 'a' is truncated without .* or terminateds\['a'\]=True if its task ended",
        ),
    ],
)
def test_a_breach_of_step_is_one_sentence(result: Any, sentence: str) -> None:
    with pytest.raises(EnvError, match=sentence) as caught:
        run(result)
    assert str(caught.value).startswith("Mine: step 1")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("start", "sentence"),
    [
        (BOTH, r"reset must return \(observations, infos\), both by agent, got a dict"),
        ((at(), {}), "reset's observations must be a dictionary by agent, got a ndarray"),
        (({"a": at(NAN)}, {}), "reset: the observation of agent 'a' is NaN"),
        (({"z": at()}, {}), "reset's observations name the unknown agent 'z'"),
        ((BOTH, None), "reset's infos must be a dictionary by agent, got a NoneType"),
    ],
)
def test_a_breach_of_reset_is_one_sentence(start: Any, sentence: str) -> None:
    with pytest.raises(EnvError, match=sentence):
        run(start=start)


def test_what_is_not_finite_can_be_told_from_other_breaches() -> None:
    with pytest.raises(NonFiniteValueError) as caught:
        run(step_with(rewards={"a": NAN}))
    assert caught.value.what == "reward"
    with pytest.raises(NonFiniteValueError) as caught:
        run(step_with(obs={"a": at(NAN)}))
    assert caught.value.what == "observation"


def test_actions_are_of_those_that_were_asked() -> None:
    env = CheckedMultiAgentEnv(Turns(), "Mine")
    with pytest.raises(EnvError, match="the episode has not begun or is over; call reset first"):
        env.step({"0": 1})
    env.reset(seed=0)
    with pytest.raises(EnvError, match=r"step 1 got an action of agent '1', which was not asked"):
        env.step({"0": 1, "1": 1})
    with pytest.raises(EnvError, match=r"step 1 got no action of agent '0', .* act for \['0'\]"):
        env.step({})
    env.step({"0": 1})
    with pytest.raises(EnvError, match="step 2 got an action of agent '0'"):
        env.step({"0": 1})


def test_a_limit_needs_an_observation_of_every_agent() -> None:
    env = CheckedMultiAgentEnv(Turns(), "Mine", max_episode_steps=2)
    env.reset(seed=0)
    env.step({"0": 1})
    with pytest.raises(EnvError, match="max_episode_steps=2 truncates agent '1', which has no obs"):
        env.step({"1": 1})


def test_an_episode_that_nobody_ends_is_an_error() -> None:
    idle = ({}, {}, ONGOING, ONGOING, {})
    steps = [(BOTH, {}, {"a": True, "b": True, **ONGOING}, ONGOING, {})]
    with pytest.raises(
        EnvError, match=r"no agent has had an obs.* return terminateds\['__all__'\]"
    ):
        run(*steps, *[idle] * (MAX_IDLE_STEPS + 1))
    found = run(*steps, *[idle] * 3, (BOTH, {}, ONGOING, ONGOING, {}))
    assert found[-1].joined == ("a", "b")


@pytest.mark.parametrize(
    ("agents", "sentence"),
    [
        (("a/b",), "ids of agents are ints, or strings .*, got 'a/b'"),
        ((("team", 1),), r"ids of agents are ints, or strings .*, got \('team', 1\)"),
        ((True,), "ids of agents are ints, or strings .*, got True"),
        (("0", 0), "the agents '0' and 0 have the same name"),
        (("__all__",), "got '__all__'"),
    ],
)
def test_ids_can_name_rows_and_files(agents: Any, sentence: str) -> None:
    with pytest.raises(EnvError, match=sentence):
        CheckedMultiAgentEnv(Scripted(agents=agents), "Mine")


def test_one_agent_has_one_form_of_its_id() -> None:
    env = Scripted(({"0": at()}, {}), agents=(0, 1))
    with pytest.raises(EnvError, match="name '0', but this agent is 0 elsewhere"):
        CheckedMultiAgentEnv(env, "Mine").reset()


def test_agents_may_be_unknown_before_they_come() -> None:
    class Cars(MultiAgentEnv):
        observation_space = Scripted().observation_spaces["a"]
        action_space = Scripted().action_spaces["a"]

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return {"car_1": at()}, {}

        def step(self, action_dict: dict[str, Any]) -> Any:
            return {"car_1": at(), "car_2": at()}, {}, ONGOING, ONGOING, {}

    env = CheckedMultiAgentEnv(Cars())
    assert env.possible_agents == ()
    env.reset()
    assert env.step({"car_1": 0}).joined == ("car_2",)


def test_an_agent_without_a_space_is_an_error() -> None:
    env = Scripted()
    env.action_spaces = {"a": env.action_spaces["a"]}
    checked = CheckedMultiAgentEnv(env, "Mine")
    with pytest.raises(
        EnvError, match=r"action_space of agent 'b' is missing, got None: set self\."
    ):
        checked.get_action_space("b")


# --- time limits over environments in turns: last observations of those who wait, or a refusal ---


class Long(Turns):
    num_steps = 50


class Telling(Long):
    def get_final_observation(self, agent_id: Any) -> Any:
        return at(0.5)


def test_who_waits_has_the_last_observation_that_the_environment_tells() -> None:
    env = CheckedMultiAgentEnv(Telling(), max_episode_steps=3)
    env.reset(seed=0)
    for agent in ("0", "1"):
        env.step({agent: 1})
    step = env.step({"0": 1})
    assert step.truncated == {"0": True, "1": True, "__all__": True}
    np.testing.assert_array_equal(step.obs["0"], at(0.5))
    assert not np.array_equal(step.obs["1"], at(0.5))  # whose turn it is has its own
    assert not env.leaves_agents_waiting


def test_who_waits_is_paid_what_it_has_earned_at_the_limit() -> None:
    class Paying(Telling):
        def get_final_reward(self, agent_id: Any) -> float:
            return {"0": 2.0, "1": 4.0}[str(agent_id)]

    env = CheckedMultiAgentEnv(Paying(), max_episode_steps=3)
    plain = CheckedMultiAgentEnv(Telling(), max_episode_steps=3)
    for each in (env, plain):
        each.reset(seed=0)
        for agent in ("0", "1"):
            each.step({agent: 1})
    paid, unpaid = env.step({"0": 1}).reward, plain.step({"0": 1}).reward
    assert paid == {"0": unpaid["0"] + 2.0, "1": unpaid["1"]}  # whose turn it is was paid


def test_a_last_observation_that_is_no_value_of_its_space_is_an_error() -> None:
    class Wrong(Long):
        def get_final_observation(self, agent_id: Any) -> Any:
            return np.zeros(7, np.float32)

    env = CheckedMultiAgentEnv(Wrong(), "Mine", max_episode_steps=2)
    env.reset(seed=0)
    env.step({"0": 1})
    with pytest.raises(EnvError, match=r"Mine: step 2: the observation of agent '1'.*shape"):
        env.step({"1": 1})


@pytest.mark.parametrize("limit", [3, 40])
def test_a_limit_that_is_reached_is_refused_before_the_run_begins(limit: int) -> None:
    config = PPOConfig().environment(Long, max_episode_steps=limit).debugging(loggers=[])
    with pytest.raises(
        EnvError, match=rf"max_episode_steps={limit} truncates .*define get_final_observation"
    ):
        config.build()


def test_other_limits_are_not_refused() -> None:
    for env, limit in ((Turns, 6), (Telling, 3), (Telling, 40)):
        made = make_multi_host(env, max_episode_steps=limit)
        precheck_env(made, EnvContext({}))


def play_to_the_limit(name: str, limit: int, **config: Any) -> Any:
    """Return the last step of a first episode, and all agents."""
    made = make_multi_host(name, config, max_episode_steps=limit)
    env: Any = made.make_checked()
    obs = env.reset(seed=0).obs
    for _ in range(limit):
        step = env.step(sample_actions(env, obs, 1))
        obs = step.obs
    play_randomly(env, 3 * limit, seed=2)
    return step, made


@pytest.mark.filterwarnings("ignore")
def test_pettingzoo_tells_last_observations() -> None:
    pytest.importorskip("pygame")
    pytest.importorskip("pettingzoo.classic")
    step, made = play_to_the_limit("pettingzoo:classic/connect_four_v3", 5)
    assert step.truncated == {"player_0": True, "player_1": True, "__all__": True}
    for agent, obs in step.obs.items():
        assert made.observation_spaces[agent].contains(obs)
        assert obs["action_mask"].any()
    mine, theirs = (step.obs[f"player_{i}"]["observation"] for i in range(2))
    np.testing.assert_array_equal(mine[..., 0], theirs[..., 1])
    assert mine.sum() == theirs.sum() == 5


@pytest.mark.filterwarnings("ignore")
def test_pettingzoo_pays_who_waits_at_the_limit() -> None:
    """All that the game itself has paid until then."""
    pytest.importorskip("pygame")
    spread = pytest.importorskip("mpe2.simple_spread_v3")
    limit, own = 7, spread.env()
    env = CheckedMultiAgentEnv(PettingZooEnv(spread.env()), max_episode_steps=limit)
    obs = env.reset(seed=0).obs
    own.reset(seed=0)
    paid, earned = dict.fromkeys(own.agents, 0.0), dict.fromkeys(own.agents, 0.0)
    for _ in range(limit):
        step = env.step(dict.fromkeys(obs, 1))
        own.step(1)
        for agent in own.agents:
            paid[agent] += step.reward.get(agent, 0.0)
            earned[agent] += own.rewards[agent]
        obs = {agent: step.obs[agent] for agent, acts in step.acts.items() if acts}
    assert step.truncated["__all__"]
    assert any(earned.values())
    assert paid == pytest.approx(earned)


def test_openspiel_tells_last_observations() -> None:
    pytest.importorskip("pyspiel")
    step, made = play_to_the_limit("openspiel:connect_four", 5, observe="observation")
    assert step.truncated["__all__"]
    assert set(step.obs) == {"0", "1"}
    for agent, obs in step.obs.items():
        assert made.observation_spaces[agent].contains(obs)
        assert obs["action_mask"].any()
