"""MultiAgentEpisode: clocks, hanging actions, cutting, joining, slicing, states, and what does not fit."""

import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.episodes import MultiAgentEpisode
from jaxrl.errors import EpisodeError, EpisodeIndexError
from jaxrl.metrics import DEFAULT_MODULE

# Who has an observation at each time; "b" waits twice, "c" joins late and "a" ends early.
STREAM = [("a", "b"), ("a",), ("a", "b", "c"), ("b", "c"), ("c",), ("b", "c"), ("b", "c")]
ENDS = {3: {"a": True}, 6: {"__all__": True}}


def play(episode: MultiAgentEpisode, start: int = 0, stop: int = 6) -> MultiAgentEpisode:
    """Observations count time, actions are ten times that, and rewards are paid at every step."""
    if start == 0:
        episode.add_env_reset(observations=dict.fromkeys(STREAM[0], 0), infos={"a": {"t": 0}})
    for t in range(start + 1, stop + 1):
        acted = [agent for agent in STREAM[t - 1] if agent in episode.get_agents_to_act()]
        episode.add_env_step(
            dict.fromkeys(STREAM[t], t),
            dict.fromkeys(acted, 10 * (t - 1)),
            {agent: t / 10 for agent in ("a", "b", "c") if not (agent == "a" and t > 3)},
            {agent: {"t": t} for agent in STREAM[t]},
            terminateds=ENDS.get(t),
            extra_model_outputs={agent: {"logp": -(t - 1)} for agent in acted},
        )
    return episode


def make(**settings: Any) -> MultiAgentEpisode:
    space = spaces.Discrete(9)
    return MultiAgentEpisode("mine", observation_space=dict.fromkeys("abc", space), **settings)


def contents(episode: MultiAgentEpisode) -> Any:
    """Return everything, without lookback."""
    return {
        agent: (
            list(part.get_observations()),
            list(part.get_actions()),
            [round(float(reward), 6) for reward in part.get_rewards()],
            list(part.get_infos()),
            {name: list(buffer.get()) for name, buffer in part.extra_model_outputs.items()},
            (part.t_started, part.t, part.is_terminated, part.is_truncated),
        )
        for agent, part in episode.agent_episodes.items()
    }


def test_every_agent_has_a_clock_of_its_own() -> None:
    episode = play(make())
    assert (len(episode), episode.env_steps(), episode.agent_steps()) == (6, 6, 11)
    b = episode.agent_episodes["b"]
    assert b.get_observations() == [0, 2, 3, 5, 6]
    assert b.get_actions() == [0, 20, 30, 50]
    np.testing.assert_allclose(b.get_rewards(), [0.1 + 0.2, 0.3, 0.4 + 0.5, 0.6])
    assert episode.agent_episodes["a"].get_observations() == [0, 1, 2, 2]  # the last one again
    assert episode.env_t_to_agent_t["b"].data == [0, "S", 1, 2, "S", 3, 4]
    assert episode.env_t_to_agent_t["c"].data == ["S", "S", 0, 1, 2, 3, 4]
    assert episode.get_terminateds() == {"a": True, "b": True, "c": True, "__all__": True}
    assert episode.get_truncateds() == {"a": False, "b": False, "c": False, "__all__": False}
    assert episode.agent_ids == {"a", "b", "c"}
    assert b.multi_agent_episode_id == "mine"
    assert (b.agent_id, b.module_id) == ("b", DEFAULT_MODULE)
    assert episode.agent_episode_ids["b"] == b.id_


def test_who_acts_and_who_stepped() -> None:
    episode = make()
    assert not episode.is_reset
    play(episode, 0, 1)
    assert episode.get_agents_to_act() == {"a"} == episode.get_agents_that_stepped()
    play(episode, 1, 3)
    assert episode.get_agents_to_act() == {"b", "c"}
    assert episode.get_agents_that_stepped() == {"a", "b", "c"}  # "a" has just ended
    assert not episode.is_done


def test_values_by_time_of_the_environment() -> None:
    episode = play(make(), 0, 4)
    assert episode.get_observations(2) == {"a": 2, "b": 2, "c": 2}
    assert episode.get_observations(-1) == {"c": 4}
    assert episode.get_actions(-1) == {"b": 30, "c": 30}  # that of "b" hangs
    assert episode.get_actions(1) == {"a": 10}
    assert episode.get_rewards(0)["b"] == pytest.approx(0.3)
    assert episode.get_rewards(3, "b") == {"b": pytest.approx(0.4)}
    assert episode.get_infos(1) == {"a": {"t": 1}}
    assert episode.get_observations([0, 1, 2], ["a", "b"]) == {"a": [0, 1, 2], "b": [0, 2]}
    assert episode.get_observations(slice(0, 2), "c") == {}
    assert episode.get_observations(slice(1, 3), return_list=True) == [
        {"a": 1},
        {"a": 2, "b": 2, "c": 2},
    ]
    assert episode.get_extra_model_outputs(indices=3) == {"b": {"logp": -3}, "c": {"logp": -3}}
    assert episode.get_extra_model_outputs("logp", [0, 3]) == {"a": [0], "b": [0, -3], "c": [-3]}
    with pytest.raises(EpisodeIndexError):
        episode.get_observations(5)
    with pytest.raises(EpisodeError, match="need a key"):
        episode.get_extra_model_outputs()


def test_values_by_the_agents_own_steps() -> None:
    episode = play(make(), 0, 4)
    assert episode.get_observations(-1, env_steps=False) == {"a": 2, "b": 3, "c": 4}
    assert episode.get_actions(-1, ["b", "c"], env_steps=False) == {"b": 30, "c": 30}
    assert episode.get_actions(agent_ids="b", env_steps=False) == {"b": [0, 20]}  # complete ones
    assert episode.get_actions(slice(0, 9), "b", env_steps=False) == {"b": [0, 20, 30]}
    assert episode.get_rewards(-1, "b", env_steps=False) == {"b": pytest.approx(0.4)}
    assert episode.get_extra_model_outputs("logp", -1, "b", env_steps=False) == {"b": -3}
    with pytest.raises(EpisodeError, match="env_steps must be True"):
        episode.get_observations(env_steps=False, return_list=True)


def test_missing_values_are_filled_and_discrete_ones_encoded() -> None:
    episode = play(make(), 0, 4)
    found = episode.get_observations([0, 1], fill=0)
    assert found["b"] == [0, 0]
    assert found["c"] == [0, 0]
    assert episode.get_observations(9, "a", fill=7) == {"a": 7}
    hot = episode.get_observations(-1, one_hot_discrete=True)["c"]
    np.testing.assert_array_equal(hot, np.eye(9)[4])
    empty = episode.get_observations([1], "b", fill=0, one_hot_discrete=True)["b"]
    np.testing.assert_array_equal(empty, [np.zeros(9)])


@pytest.mark.parametrize("at", range(1, 6))
@pytest.mark.parametrize("lookback", [0, 1, 3, 100])
def test_joining_what_was_cut_is_the_identity(at: int, lookback: int) -> None:
    whole, first = play(make()), play(make(), 0, at)
    ids = first.agent_episode_ids
    second = first.cut(lookback)
    assert (second.env_t_started, second.env_t, len(second)) == (at, at, 0)
    assert second.get_agents_to_act() == first.get_agents_to_act()
    play(second, at)
    assert first.agent_steps() + second.agent_steps() == whole.agent_steps() == 11
    assert first.get_return() + second.get_return() == pytest.approx(whole.get_return())
    first.concat_episode(second)
    assert contents(first) == contents(whole)
    assert {agent: first.agent_episode_ids[agent] for agent in ids} == ids
    assert first.env_t_to_agent_t == whole.env_t_to_agent_t
    assert first.is_done


def test_a_cut_looks_back_to_what_hangs() -> None:
    first = play(make(), 0, 4)
    second = first.cut()
    assert second.get_actions(-1, neg_index_as_lookback=True) == {"b": 30, "c": 30}
    assert second.get_observations(-1, "b", neg_index_as_lookback=True) == {"b": 3}
    assert second.get_return(include_hanging_rewards=True) == pytest.approx(0.4)
    assert set(second.agent_ids) == {"b", "c"}  # "a" has ended
    play(second, 4)
    assert second.agent_episodes["b"].get_observations() == [3, 5, 6]
    assert second.agent_episodes["b"].t_started == 2
    wide = play(make(), 0, 4).cut(3)
    assert wide.get_observations([-2, -1, 0], "c", neg_index_as_lookback=True) == {"c": [2, 3, 4]}
    assert wide.agent_episodes["c"].get_observations(-1, neg_index_as_lookback=True) == 3


def test_custom_data_and_modules_go_along() -> None:
    calls: list[Any] = []

    def choose(agent_id: str, episode: MultiAgentEpisode, **_: Any) -> str:
        calls.append((agent_id, episode.id_))
        return f"of_{agent_id}"

    first = play(make(agent_to_module_mapping_fn=choose), 0, 3)
    first.custom_data["seen"] = [1]
    second = first.cut()
    second.custom_data["seen"].append(2)
    play(second, 3)
    assert first.custom_data == {"seen": [1]}
    assert second.module_for("b") == "of_b" == second.agent_episodes["b"].module_id
    assert sorted(calls) == [("a", "mine"), ("b", "mine"), ("c", "mine")]  # once an agent
    first.concat_episode(second)
    assert first.custom_data == {"seen": [1, 2]}


@pytest.mark.parametrize("at", range(7))
def test_slices_side_by_side_hold_every_step_once(at: int) -> None:
    whole = play(make())
    left, right = whole[:at], whole[at:]
    assert (len(left), len(right)) == (at, 6 - at)
    assert left.agent_steps() + right.agent_steps() == 11
    if 0 < at < 6:
        left.concat_episode(right)
        assert contents(left) == contents(whole)
        assert left.env_t_to_agent_t == whole.env_t_to_agent_t


def test_a_slice_ends_with_what_hangs() -> None:
    part = play(make())[1:4]
    assert part.get_observations(return_list=True) == [
        {"a": 1},
        {"a": 2, "b": 2, "c": 2},
        {"a": 2, "b": 3, "c": 3},
        {"c": 4},
    ]
    assert part.get_actions(-1) == {"b": 30, "c": 30}
    assert part.agent_episodes["b"].get_observations() == [0, 2, 3]  # acted before the slice
    assert not part.is_done
    looking_back = play(make()).slice(slice(3, 5), len_lookback_buffer=2)
    assert looking_back.get_observations(-1, "a", neg_index_as_lookback=True) == {}
    assert looking_back.get_observations(-1, "b", neg_index_as_lookback=True) == {"b": 2}
    with pytest.raises(EpisodeError, match="consecutive steps"):
        play(make())[::2]
    with pytest.raises(EpisodeError, match="Index an episode by a slice"):
        play(make())[1]  # pyright: ignore[reportArgumentType]


def test_an_episode_made_of_data_is_the_one_that_grew() -> None:
    whole = play(make())
    given = MultiAgentEpisode(
        "mine",
        observations=whole.get_observations(return_list=True),
        infos=whole.get_infos(return_list=True),
        actions=whole.get_actions(return_list=True),
        rewards=whole.get_rewards(return_list=True),
        extra_model_outputs=whole.get_extra_model_outputs(return_list=True),
        terminateds={"__all__": True},
        len_lookback_buffer=0,
        agent_episode_ids=whole.agent_episode_ids,
    )
    assert contents(given) == contents(whole)
    assert given.env_t_to_agent_t == whole.env_t_to_agent_t
    assert given.agent_episode_ids == whole.agent_episode_ids


def test_given_steps_may_be_lookback() -> None:
    episode = MultiAgentEpisode(
        observations=[{"a": 0, "b": 0}, {"a": 1}, {"a": 2, "b": 2}, {"a": 3}],
        actions=[{"a": 0, "b": 0}, {"a": 10}, {"a": 20, "b": 20}],
        rewards=[{"a": 0.1}, {"a": 0.2}, {"a": 0.3, "b": 0.4}],
        len_lookback_buffer=1,
        env_t_started=50,
        agent_t_started={"a": 30, "b": 10},
    )
    assert (episode.env_t_started, episode.env_t, len(episode)) == (50, 52, 2)
    a, b = episode.agent_episodes["a"], episode.agent_episodes["b"]
    assert (a.t_started, a.t, a.get_observations()) == (30, 32, [1, 2, 3])
    assert (b.t_started, b.t, b.get_observations()) == (10, 11, [0, 2])
    assert episode.get_observations(-1, neg_index_as_lookback=True) == {"a": 0, "b": 0}
    assert episode.get_actions(-1) == {"a": 20, "b": 20}
    assert (
        len(MultiAgentEpisode(observations=[{"a": 0}, {"a": 1}], actions=[{"a": 5}], rewards=[{}]))
        == 0
    )


def test_given_actions_may_hang_and_silent_agents_have_ended() -> None:
    episode = MultiAgentEpisode(
        observations=[{"a": 0, "b": 0}, {"a": 1, "b": 1}, {"a": 2}],
        actions=[{"a": 0, "b": 0}, {"a": 10}, {"a": 20}],
        rewards=[{}, {}, {"a": 0.5}],
        len_lookback_buffer=0,
    )
    assert episode.get_terminateds() == {"a": False, "b": True, "__all__": False}
    assert episode.get_agents_to_act() == set()
    assert episode.get_actions(-1, env_steps=False) == {"a": 20, "b": 0}
    assert episode.get_return(include_hanging_rewards=True) == 0.5


def test_an_agent_may_come_again() -> None:
    episode = make()
    episode.add_env_reset(observations={"a": 0, "b": 0})
    both = {"a": 0, "b": 0}
    episode.add_env_step({"a": 1, "b": 1}, both, {"a": 1.0}, terminateds={"a": True})
    episode.add_env_step({"a": 2, "b": 2}, {"b": 1}, {})
    episode.add_env_step(
        {"a": 3, "b": 3}, {"a": 7, "b": 2}, {"a": 4.0}, truncateds={"__all__": True}
    )
    latest = episode.agent_episodes["a"]
    assert latest.get_observations() == [2, 3]
    assert (latest.t, latest.is_truncated, latest.is_terminated) == (1, True, False)
    assert episode.get_observations(return_list=True) == [{"a": t, "b": t} for t in range(4)]
    assert episode.get_actions(agent_ids="a") == {"a": [0, 7]}
    assert (episode.agent_steps(), episode.get_return()) == (5, 5.0)


def test_rewards_before_the_first_action_hang() -> None:
    episode = make()
    episode.add_env_reset(observations={"a": 0})
    episode.add_env_step({"a": 1}, {"a": 0}, {"a": 1.0, "b": 2.0})
    episode.add_env_step({"a": 2, "b": 2}, {"a": 0}, {"b": 3.0})
    assert episode.get_return() == 1.0
    assert episode.get_return(include_hanging_rewards=True) == 6.0
    assert episode.agent_episodes["b"].get_rewards() == []


def test_an_agent_that_never_acts_leaves_no_trace() -> None:
    episode = make()
    episode.add_env_reset(observations={"a": 0, "b": 0})
    episode.add_env_step({"a": 1}, {"a": 0}, {}, terminateds={"b": True, "c": True})
    assert episode.agent_ids == {"a"}
    assert episode.get_terminateds() == {"a": False, "__all__": False}


def test_states_and_arrays() -> None:
    episode = play(make(), 0, 4).cut(2)
    copy = MultiAgentEpisode.from_state(pickle.loads(pickle.dumps(episode.get_state())))
    play(copy, 4)
    assert contents(copy) == contents(play(episode, 4))
    assert copy.env_t_to_agent_t == episode.env_t_to_agent_t
    assert not copy.is_numpy
    stacked = copy.to_numpy()
    assert stacked.is_numpy
    np.testing.assert_array_equal(stacked.get_observations(agent_ids="c")["c"], [4, 5, 6])
    assert stacked.get_infos(1)["c"] == {"t": 5}
    part = play(make()).to_numpy()[2:4]
    found = part.get_actions(slice(0, 9), "b", env_steps=False)["b"]
    np.testing.assert_array_equal(found, [20, 30])


def test_data_of_agents_can_be_replaced() -> None:
    episode = play(make())
    episode.set_observations(new_data={"b": 8}, at_indices=0)
    episode.set_actions(new_data={"b": [1, 2, 3, 4]})
    episode.set_rewards(new_data={"a": 9.0}, at_indices=-1)
    episode.set_extra_model_outputs(key="logp", new_data={"c": -9}, at_indices=1)
    assert episode.get_observations(0)["b"] == 8
    assert episode.get_actions(agent_ids="b") == {"b": [1, 2, 3, 4]}
    assert episode.get_rewards(-1, "a", env_steps=False) == {"a": 9.0}
    assert episode.get_extra_model_outputs("logp", 1, "c", env_steps=False) == {"c": -9}
    with pytest.raises(EpisodeError, match=r"has no agent 'z'; it has \['a', 'b', 'c'\]"):
        episode.set_actions(new_data={"z": 1})


def test_the_table_marks_observations(capsys: Any) -> None:
    episode = play(make(), 0, 3)
    episode.print()
    assert capsys.readouterr().out.splitlines() == [
        "ts 0 1 2 3",
        "a  x x x x",
        "b  x   x x",
        "c      x x",
    ]
    assert "MAEps(len=3 done=False Rs={" in repr(episode)


@pytest.mark.parametrize(
    ("step", "sentence"),
    [
        (({}, {"z": 1}, {}), "got an action of agent 'z' at step 4, but it has no observation to"),
        (({}, {"a": 1}, {}), "got an action of agent 'a' at step 4, but it has no observation"),
        (({"b": 1}, {"c": 1}, {}), "an observation of agent 'b' at step 4, which has not acted"),
        (
            ({}, {"b": 1}, {}, None, {"b": True}),
            "no last observation of agent 'b', which acted and",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(step: Any, sentence: str) -> None:
    episode = play(make(), 0, 3)
    truncateds = step[4] if len(step) > 4 else None
    with pytest.raises(EpisodeError, match=sentence):
        episode.add_env_step(*step[:4], truncateds=truncateds)


def test_what_cannot_be_done_now() -> None:
    done = play(make())
    with pytest.raises(EpisodeError, match="is done; no step can be added"):
        done.add_env_step({}, {}, {})
    with pytest.raises(EpisodeError, match="cannot be cut"):
        done.cut()
    with pytest.raises(EpisodeError, match="has already begun"):
        done.add_env_reset(observations={})
    with pytest.raises(EpisodeError, match="cannot be appended"):
        play(make(), 0, 3).concat_episode(play(make(), 0, 4).cut())
    with pytest.raises(EpisodeError, match="expected 1 actions and rewards, got 3 and 0"):
        MultiAgentEpisode(observations=[{}, {}], actions=[{}] * 3)
    waiting = play(make(), 0, 1)
    with pytest.raises(EpisodeError, match="agent 'b' at step 2, but its action hangs"):
        waiting.add_env_step({}, {"b": 1}, {})


def make_torture(seed: int, steps: int = 14) -> tuple[Any, list[Any]]:
    """Return a reset and steps of agents that wait, end, come again and are paid at any time."""
    rng = np.random.default_rng(seed)
    agents = ("a", "b", "c")
    asked, waiting, rows = {"a"}, set(), []
    for t in range(1, steps + 1):
        present = asked | waiting
        over = t == steps
        seen = {a for a in agents if rng.random() < 0.5}
        ended = {a for a in sorted(present) if rng.random() < 0.15}
        cut = {a for a in sorted(ended) if a in seen and rng.random() < 0.5}
        rows.append(
            {
                "observations": dict.fromkeys(sorted(seen), t),
                "actions": dict.fromkeys(sorted(asked), 10 * t),
                "rewards": {a: float(rng.integers(1, 9)) for a in agents if rng.random() < 0.5},
                "terminateds": {**dict.fromkeys(sorted(ended - cut), True), "__all__": over},
                "truncateds": dict.fromkeys(sorted(cut), True),
                "extra_model_outputs": {a: {"logp": t / 2} for a in sorted(asked)},
            }
        )
        waiting = present - seen - ended
        asked = seen - ended
    return {"a": 0}, rows


@pytest.mark.parametrize("seed", range(20))
def test_chunks_of_any_length_join_to_the_whole(seed: int) -> None:
    rng = np.random.default_rng(1_000 + seed)
    start, rows = make_torture(seed)
    whole, chunk = make(), make()
    whole.add_env_reset(observations=start)
    chunk.add_env_reset(observations=start)
    chunks = []
    for row in rows:
        whole.add_env_step(**row)
        chunk.add_env_step(**row)
        if rng.random() < 0.5 and not chunk.is_done:
            chunks.append(chunk)
            chunk = chunk.cut(int(rng.integers(4)))
    chunks.append(chunk)
    assert sum(each.agent_steps() for each in chunks) == whole.agent_steps()
    assert sum(each.get_return() for each in chunks) == pytest.approx(whole.get_return())
    joined = chunks[0]
    for each in chunks[1:]:
        joined.concat_episode(each)
    assert contents(joined) == contents(whole)
    assert joined.env_t_to_agent_t == whole.env_t_to_agent_t
    for what in ("get_observations", "get_actions", "get_rewards"):
        assert getattr(joined, what)(return_list=True) == getattr(whole, what)(return_list=True)
    at = int(rng.integers(1, len(rows)))
    left, right = whole[:at], whole[at:]
    assert left.agent_steps() + right.agent_steps() == whole.agent_steps()
