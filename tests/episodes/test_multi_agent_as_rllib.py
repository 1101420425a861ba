"""MultiAgentEpisode beside RLlib's on random streams of agents that wait, join and end.

Left out is what RLlib does otherwise: a step of an agent that is cut while it waits is in no chunk
of RLlib's that is learned from, and slices drop it; agents may not come again; an agent that
terminates without an observation shifts its clock.
"""

from typing import Any

import numpy as np
import pytest

rllib = pytest.importorskip("ray.rllib.env.multi_agent_episode")

from jaxrl.episodes import MultiAgentEpisode  # noqa: E402

AGENTS = ("a", "b", "c")


def make_stream(seed: int, steps: int = 9) -> Any:
    """Return the reset's observations, and arguments of each step: agents wait and end at random."""
    rng = np.random.default_rng(seed)
    alive, seen, asked = set(AGENTS), {"a"}, {"a", "b"} if rng.random() < 0.5 else {"a"}
    seen |= asked
    start, rows = dict.fromkeys(sorted(asked), 0), []
    for t in range(1, steps + 1):
        over = t == steps
        obs = {a for a in sorted(alive) if rng.random() < 0.6 or (over and a in seen)}
        obs |= set() if obs & alive else {min(alive)}
        ended = {
            a for a in sorted(obs & seen) if len(alive) > 1 and rng.random() < 0.1 and not over
        }
        flags = dict.fromkeys(sorted(ended), True)
        cut = bool(rng.integers(2))
        rewards = {a: float(rng.integers(1, 9)) for a in sorted(obs | asked) if a in seen}
        rows.append(
            {
                "observations": {a: t for a in sorted(obs) if not over or a in seen},
                "actions": dict.fromkeys(sorted(asked), 10 * t),
                "rewards": rewards,
                "infos": {a: {"t": t} for a in sorted(obs)},
                "terminateds": {**({} if cut else flags), "__all__": over and not cut},
                "truncateds": {**(flags if cut else {}), "__all__": over and cut},
                "extra_model_outputs": {a: {"logp": t / 2} for a in sorted(asked)},
            }
        )
        seen |= obs
        alive -= ended
        asked = obs - ended
    return start, rows


def play(cls: Any, seed: int, steps: int | None = None) -> Any:
    start, rows = make_stream(seed)
    episode = cls("id")
    episode.add_env_reset(observations=start)
    for row in rows[:steps]:
        episode.add_env_step(**row)
    return episode


def tidy(value: Any) -> Any:
    """Return a value without empty entries, which RLlib keeps at times."""
    if isinstance(value, dict):
        return {key: tidy(part) for key, part in value.items()}
    return [tidy(part) for part in value] if isinstance(value, list) else value


QUERIES = [
    (name, arguments)
    for name in ("get_observations", "get_actions", "get_rewards")
    for arguments in (
        {},
        {"indices": -1},
        {"indices": 0},
        {"indices": [1, 2, -2]},
        {"indices": slice(1, 4)},
        {"indices": slice(-3, None), "agent_ids": "b"},
        {"indices": slice(2, 5), "return_list": True},
        {"indices": [0, 3], "fill": 0},
        {"env_steps": False},
        {"indices": -1, "env_steps": False, "agent_ids": ["a"]},
    )
]


def compare(mine: Any, theirs: Any, what: Any) -> None:
    for name, arguments in QUERIES:
        expected = getattr(theirs, name)(**arguments)
        found = getattr(mine, name)(**arguments)
        np.testing.assert_equal(tidy(found), tidy(expected), err_msg=f"{what} {name}({arguments})")
    assert mine.get_agents_to_act() == theirs.get_agents_to_act(), what
    assert mine.get_agents_that_stepped() == theirs.get_agents_that_stepped(), what
    assert (len(mine), mine.agent_steps()) == (len(theirs), theirs.agent_steps()), what
    assert mine.get_return() == pytest.approx(theirs.get_return()), what
    for hangs in (False, True):
        assert mine.get_return(hangs) == pytest.approx(theirs.get_return(hangs)), what
    clocks = {agent: buffer.data for agent, buffer in theirs.env_t_to_agent_t.items()}
    ends = {a: part.is_done for a, part in theirs.agent_episodes.items()}
    for agent, buffer in mine.env_t_to_agent_t.items():
        assert buffer.data[: len(clocks[agent])] == clocks[agent], what
    assert {a: part.is_done for a, part in mine.agent_episodes.items()} == ends, what


@pytest.mark.parametrize("seed", range(12))
def test_growing_episodes_answer_alike(seed: int) -> None:
    for steps in (5, 7, None):
        mine, theirs = (
            play(MultiAgentEpisode, seed, steps),
            play(rllib.MultiAgentEpisode, seed, steps),
        )
        compare(mine, theirs, (seed, steps))
        for agent, part in theirs.agent_episodes.items():
            own = mine.agent_episodes[agent]
            assert list(own.get_observations()) == list(part.get_observations())
            assert list(own.get_actions()) == list(part.get_actions())
            assert list(own.get_rewards()) == list(part.get_rewards())


@pytest.mark.parametrize("seed", range(12))
def test_episodes_that_are_cut_where_nobody_waits_go_on_alike(seed: int) -> None:
    _, rows = make_stream(seed)
    mine, theirs = play(MultiAgentEpisode, seed, 0), play(rllib.MultiAgentEpisode, seed, 0)
    cuts = 0
    for t, row in enumerate(rows[:-1], 1):
        mine.add_env_step(**row)
        theirs.add_env_step(**row)
        live = [a for a, part in mine.agent_episodes.items() if not part.is_done]
        if set(live) == mine.get_agents_to_act() and t >= 2:
            mine, theirs, cuts = mine.cut(), theirs.cut(), cuts + 1
            assert mine.get_agents_to_act() == theirs.get_agents_to_act()
            assert mine.env_t_started == theirs.env_t_started == t
    mine.add_env_step(**rows[-1])
    theirs.add_env_step(**rows[-1])
    for agent in mine.agent_ids:
        own, part = mine.agent_episodes[agent], theirs.agent_episodes[agent]
        assert list(own.get_observations()) == list(part.get_observations())
        assert (own.t_started, own.t, own.is_done) == (part.t_started, part.t, part.is_done)
    assert mine.get_return() == pytest.approx(theirs.get_return())


def test_some_of_these_streams_are_cut_and_wait() -> None:
    waits = sum(
        any(
            "S" in buffer.data[1:]
            for buffer in play(MultiAgentEpisode, s).env_t_to_agent_t.values()
        )
        for s in range(12)
    )
    assert waits > 6
