"""SingleAgentEpisode: adding, cutting, joining, slicing, states, and what does not fit."""

import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.core.types import Rollout
from jaxrl.episodes import LookbackBuffer, SingleAgentEpisode
from jaxrl.episodes.packing import episodes_from_rollout
from jaxrl.errors import EpisodeError


def filled(steps: int = 5, **settings: Any) -> SingleAgentEpisode:
    """Observes its step, acts ten times that, is rewarded by the step."""
    episode = SingleAgentEpisode("mine", observation_space=spaces.Discrete(20), **settings)
    episode.add_env_reset(0, {"i": 0})
    for i in range(1, steps + 1):
        episode.add_env_step(
            i, 10 * i, float(i), {"i": i}, extra_model_outputs={"action_logp": -0.5 * i}
        )
    return episode


def contents(episode: SingleAgentEpisode) -> tuple[list[Any], ...]:
    """Everything, what is looked back to too."""
    parts = (episode.observations, episode.actions, episode.rewards, episode.infos)
    return tuple(list(part.data) for part in parts)


def test_an_episode_grows() -> None:
    episode = SingleAgentEpisode()
    assert not episode.is_reset
    assert len(episode) == 0
    assert episode.get_duration_s() == 0.0
    episode.add_env_reset(0)
    assert episode.is_reset
    assert len(episode) == 0
    episode.add_env_step(1, 5, 2.0, terminated=np.True_)
    assert (len(episode), episode.env_steps(), episode.agent_steps(), episode.t) == (1, 1, 1, 1)
    assert episode.is_done
    assert episode.is_terminated
    assert not episode.is_truncated
    assert episode.get_return() == 2.0
    assert episode.get_duration_s() > 0.0
    assert "return=2" in repr(episode)
    assert SingleAgentEpisode().id_ != episode.id_


def test_accessors() -> None:
    for episode in (filled(), filled().to_numpy()):
        assert episode.get_observations(-1) == 5
        assert episode.get_actions(0) == 10
        assert episode.get_infos([0, 2]) == [{"i": 0}, {"i": 2}]
        np.testing.assert_array_equal(episode.get_rewards(slice(-3, None)), [3.0, 4.0, 5.0])
        np.testing.assert_array_equal(
            episode.get_rewards(slice(-2, 1), neg_index_as_lookback=True, fill=0.0), [0, 0, 1]
        )
        np.testing.assert_array_equal(episode.get_extra_model_outputs("action_logp", 1), -1.0)
        hot = episode.get_observations(2, one_hot_discrete=True)
        np.testing.assert_array_equal(hot, np.eye(20)[2])
        episode.set_observations(new_data=7, at_indices=0)
        episode.set_actions(new_data=[1, 2], at_indices=slice(0, 2))
        episode.set_rewards(new_data=[9.0] * 5)
        episode.set_extra_model_outputs(key="action_logp", new_data=[3.0], at_indices=[-1])
        assert episode.get_observations(0) == 7
        np.testing.assert_array_equal(episode.get_actions(), [1, 2, 30, 40, 50])
        assert episode.get_return() == 45.0
        assert episode.get_extra_model_outputs("action_logp", -1) == 3.0
        with pytest.raises(EpisodeError, match="Did you mean 'action_logp'"):
            episode.get_extra_model_outputs("action_log")


def test_to_numpy_and_data_dict() -> None:
    episode = filled(3)
    assert not episode.is_numpy
    as_lists = episode.get_data_dict()
    assert episode.to_numpy() is episode
    assert episode.is_numpy
    as_arrays = episode.get_data_dict()
    for data in (as_lists, as_arrays):
        np.testing.assert_array_equal(data["obs"], [0, 1, 2])
        np.testing.assert_array_equal(data["actions"], [10, 20, 30])
        np.testing.assert_array_equal(data["t"], [0, 1, 2])
        np.testing.assert_array_equal(data["eps_id"], ["mine"] * 3)
        np.testing.assert_array_equal(data["truncateds"], [False] * 3)
        np.testing.assert_array_equal(data["action_logp"], [-0.5, -1.0, -1.5])
    assert isinstance(as_arrays["rewards"], np.ndarray)
    assert isinstance(as_arrays["infos"], list)


@pytest.mark.parametrize("as_arrays", [False, True])
@pytest.mark.parametrize("lookback", [0, 2, 9])
def test_cut_and_join(lookback: int, as_arrays: bool) -> None:
    episode = filled()
    episode.custom_data["seen"] = [1]
    if as_arrays:
        episode.to_numpy()
    part = episode.cut(lookback)
    kept = min(lookback, 5)
    assert (part.id_, len(part), part.t_started, part.t) == ("mine", 0, 5, 5)
    assert part.rewards.lookback == kept
    np.testing.assert_array_equal(part.observations.data, list(range(5 - kept, 6)))
    np.testing.assert_array_equal(part.actions.data, [10 * i for i in range(6 - kept, 6)])
    assert part.get_return() == 0.0
    assert part.custom_data == {"seen": [1]}
    part.custom_data["seen"].append(2)
    assert episode.custom_data == {"seen": [1]}
    part.add_env_step(
        6, 60, 6.0, {"i": 6}, truncated=True, extra_model_outputs={"action_logp": -3.0}
    )
    wanted = [0.0] * (6 - kept) + [float(i) for i in range(6 - kept, 7)]
    if lookback:
        got = part.get_rewards(slice(-6, 1), neg_index_as_lookback=True, fill=0.0)
        np.testing.assert_array_equal(got, wanted)
    episode.concat_episode(part)
    assert (len(episode), episode.is_truncated, episode.t) == (6, True, 6)
    assert episode.get_return() == 21.0
    np.testing.assert_array_equal(episode.get_observations(), range(7))
    assert episode.get_infos() == [{"i": i} for i in range(7)]
    np.testing.assert_array_equal(episode.get_extra_model_outputs("action_logp", -1), -3.0)
    assert episode.custom_data == {"seen": [1, 2]}


def test_slices() -> None:
    episode = filled()
    middle = episode[1:3]
    assert contents(middle)[:3] == ([1, 2, 3], [20, 30], [2.0, 3.0])
    assert (middle.t_started, middle.t, len(middle), middle.is_done) == (1, 3, 2, False)
    looking = episode.slice(slice(3, None), len_lookback_buffer=2)
    assert looking.rewards.lookback == 2
    assert contents(looking)[:2] == ([1, 2, 3, 4, 5], [20, 30, 40, 50])
    assert looking.get_actions() == [40, 50]
    assert episode.slice(slice(1, 2), len_lookback_buffer=9).rewards.lookback == 1
    assert len(episode[-2:]) == 2
    assert len(episode[4:2]) == 0
    ended = filled()
    ended.add_env_step(6, 60, 6.0, terminated=True, extra_model_outputs={"action_logp": 0.0})
    assert ended[2:].is_terminated
    assert not ended[2:5].is_terminated
    part = filled().cut(2)
    for i in (6, 7):
        part.add_env_step(i, 10 * i, float(i), extra_model_outputs={"action_logp": 0.0})
    assert contents(part[1:])[1] == [50, 60, 70]
    assert part[1:].t_started == 6
    with pytest.raises(EpisodeError, match="has consecutive steps"):
        _ = episode[::2]
    with pytest.raises(EpisodeError, match="by a slice"):
        _ = episode[1]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("as_arrays", [False, True])
def test_states(as_arrays: bool) -> None:
    episode = filled()
    episode.custom_data["x"] = 1
    part = episode.cut(2)
    part.add_env_step(6, 60, 6.0, extra_model_outputs={"action_logp": -3.0}, terminated=True)
    if as_arrays:
        part.to_numpy()
    copy = SingleAgentEpisode.from_state(pickle.loads(pickle.dumps(part.get_state())))
    for name in ("observations", "actions", "rewards", "infos"):
        assert getattr(copy, name) == getattr(part, name)
    assert copy.extra_model_outputs == part.extra_model_outputs
    for name in ("id_", "t", "t_started", "is_terminated", "custom_data", "observation_space"):
        assert getattr(copy, name) == getattr(part, name), name
    assert copy.get_duration_s() == part.get_duration_s()
    assert copy.is_numpy == as_arrays


def test_what_does_not_fit_is_refused() -> None:
    episode = filled(2)
    with pytest.raises(EpisodeError, match="has already begun"):
        episode.add_env_reset(0)
    with pytest.raises(EpisodeError, match="has not begun"):
        SingleAgentEpisode().add_env_step(0, 0, 0.0)
    with pytest.raises(EpisodeError, match=r"a step with \['other'\]"):
        episode.add_env_step(0, 0, 0.0, extra_model_outputs={"other": 1})
    with pytest.raises(EpisodeError, match="cannot be appended to mine"):
        episode.concat_episode(filled(2))
    with pytest.raises(EpisodeError, match="cannot be appended to mine"):
        episode.concat_episode(SingleAgentEpisode("other", observations=[2], t_started=2))
    with pytest.raises(EpisodeError, match="does not begin with the last observation"):
        episode.concat_episode(SingleAgentEpisode("mine", observations=[3], t_started=2))
    episode.add_env_step(3, 0, 0.0, truncated=True, extra_model_outputs={"action_logp": 0.0})
    with pytest.raises(EpisodeError, match="is done"):
        episode.add_env_step(4, 0, 0.0, extra_model_outputs={"action_logp": 0.0})
    with pytest.raises(EpisodeError, match="must be ongoing"):
        episode.cut()
    with pytest.raises(EpisodeError, match=r"expected the lengths \{'observations': 1"):
        SingleAgentEpisode(observations=[0, 1], actions=[0, 1], rewards=[0.0, 1.0])


def test_given_data_are_looked_back_to_unless_told_otherwise() -> None:
    data: Any = {"observations": [0, 1, 2], "actions": [0, 1], "rewards": [1.0, 2.0]}
    assert len(SingleAgentEpisode(**data)) == 0
    whole = SingleAgentEpisode(**data, len_lookback_buffer=0)
    assert (len(whole), whole.get_return()) == (2, 3.0)
    part = SingleAgentEpisode(**data, len_lookback_buffer=1, t_started=7)
    assert (len(part), part.t, part.get_infos(0)) == (1, 8, {})
    assert isinstance(part.rewards, LookbackBuffer)


def test_a_chunk_without_steps_takes_the_outputs_of_the_next() -> None:
    first = SingleAgentEpisode("mine")
    first.add_env_reset(0)
    second = first.cut()
    second.add_env_step(1, 5, 2.0, extra_model_outputs={"action_logp": -0.5})
    first.concat_episode(second)
    assert first.get_extra_model_outputs("action_logp") == [-0.5]


def test_names_of_an_agent_go_along() -> None:
    names = {"agent_id": 3, "module_id": "p0", "multi_agent_episode_id": "all"}
    episode = SingleAgentEpisode(**names)
    episode.add_env_reset(0)
    episode.add_env_step(1, 5, 2.0)
    copies = (
        episode.cut(),
        episode[:1],
        SingleAgentEpisode.from_state(episode.get_state()),
    )
    for copy in copies:
        assert {name: getattr(copy, name) for name in names} == names
    old = {name: value for name, value in episode.get_state().items() if name not in names}
    assert SingleAgentEpisode.from_state(old).agent_id is None


# --- episodes out of a rollout's rows: where they begin and end, and what they hold ---


def test_rows_become_episodes() -> None:
    flags = {name: np.zeros((6, 2), np.bool_) for name in ("terminated", "truncated", "is_first")}
    mask = np.ones((6, 2), np.bool_)
    # The first environment goes on, terminates at row 1, resets in row 2, is truncated at row 4.
    flags["terminated"][1, 0] = True
    mask[2, 0] = False
    flags["is_first"][3, 0] = flags["is_first"][5, 0] = True
    flags["truncated"][4, 0] = True
    # The second starts, has a fault at row 3, and goes on after the last row.
    flags["is_first"][0, 1] = flags["is_first"][4, 1] = True
    flags["truncated"][3, 1], mask[3, 1] = True, False
    obs = np.arange(12).reshape(6, 2)
    record: Any = Rollout
    rollout = record(
        obs={"x": obs},
        action=obs * 10,
        reward=obs.astype(np.float32),
        final_obs={"x": obs + 100},
        mask=mask,
        extras={"action_logp": -obs},
        **flags,
    )
    episodes = episodes_from_rollout(rollout, t_started=np.array([4, 9]))
    got = [
        (e.get_actions().tolist(), e.is_terminated, e.is_truncated, e.t_started, e.t)
        for e in episodes
    ]
    assert got == [
        ([0, 20], True, False, 4, 6),
        ([60, 80], False, True, 0, 2),
        ([100], False, False, 0, 1),
        ([10, 30, 50], False, False, 0, 3),
        ([90, 110], False, False, 0, 2),
    ]
    np.testing.assert_array_equal(episodes[0].get_observations()["x"], [0, 2, 102])
    np.testing.assert_array_equal(episodes[1].get_extra_model_outputs("action_logp"), [-6, -8])
    assert all(e.is_numpy for e in episodes)
    assert len({e.id_ for e in episodes}) == 5
