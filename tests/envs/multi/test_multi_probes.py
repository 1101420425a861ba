"""The values that the probes promise are the returns that they pay, in each agent's own time."""

import functools
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl.envs import MultiTimeLimit, list_multi_envs, make_multi
from jaxrl.envs.multi.probes import LEGAL, MultiProbe, ProbeCut, ProbeOpponent

pytestmark = pytest.mark.allow_key_reuse

PROBES = [name for name in list_multi_envs() if name.startswith("jaxrl:probe-")]
GAMMA = 0.9


def probe_of(name: str) -> MultiProbe:
    env = make_multi(name).env
    env = env.env if isinstance(env, MultiTimeLimit) else env
    assert isinstance(env, MultiProbe)
    return env


def test_there_are_eleven() -> None:
    assert len(PROBES) == 11


@functools.cache
def compiled(name: str) -> Any:
    made = make_multi(name)
    return made, jax.jit(made.env.reset), jax.jit(made.env.step)


def play(name: str, seed: int, choose: Any) -> tuple[dict[str, list[Any]], Any]:
    """Every agent's own episodes, as lists of rows, told step by step in Python."""
    made, reset, step_env = compiled(name)
    env = made.env
    state, start = reset(jax.random.key(seed), made.params)
    start = jax.device_get(start)
    first, obs, acts = jax.device_get(state), start.obs, start.acts
    episodes: dict[str, list[Any]] = {agent: [] for agent in env.possible_agents}
    rows: dict[str, list[Any]] = {agent: [] for agent in env.possible_agents}
    for t in range(12):
        actions = {}
        for agent in env.possible_agents:
            action = choose(agent, t, obs[agent], len(rows[agent])) if acts[agent] else 0
            actions[agent] = np.int32(action)
            if acts[agent]:
                rows[agent].append({"obs": obs[agent], "reward": 0.0})
        state, step = step_env(jax.random.key(1000 + t), state, actions, made.params)
        step = jax.device_get(step)
        over = step.terminated["__all__"], step.truncated["__all__"]
        for agent in env.possible_agents:
            if not rows[agent]:
                continue
            rows[agent][-1]["reward"] += float(step.reward[agent])
            own = step.terminated[agent], step.truncated[agent]
            terminated, truncated = own if own[0] or own[1] else over
            if terminated or truncated:
                tail = None if terminated else step.obs[agent]
                episodes[agent].append({"rows": rows[agent], "tail": tail})
                rows[agent] = []
        obs, acts = step.obs, step.acts
        if any(over):
            return episodes, first
    raise AssertionError("the episode does not end")


def look_up(table: Any, obs: Any) -> int:
    seen = np.asarray(obs["obs"] if isinstance(obs, dict) else obs)
    found = np.flatnonzero(np.abs(table.obs - seen).max(axis=1) < 1e-6)
    assert len(found) == 1, (seen, table.obs)
    return int(found[0])


@pytest.mark.parametrize("name", PROBES)
def test_values_are_the_returns_of_the_right_actions(name: str) -> None:
    env = probe_of(name)
    tables = env.value_tables(GAMMA)
    assert tuple(tables) == env.possible_agents
    visited = {agent: set() for agent in tables}
    for seed in range(16):
        signals: dict[str, float] = {}

        def choose(agent: str, t: int, obs: Any, count: int, seen: Any = signals) -> int:
            if "recall" in name:
                seen.setdefault(agent, float(obs[0]))
                return int(seen[agent] > 0)
            table = tables[agent]
            return 0 if table.actions is None else int(table.actions[look_up(table, obs)])

        episodes, first = play(name, seed, choose)
        for agent, table in tables.items():
            for episode in episodes[agent]:
                tail, value = episode["tail"], 0.0
                if tail is not None:
                    value = float(table.values[look_up(table, tail)])
                for row in reversed(episode["rows"]):
                    value = row["reward"] + GAMMA * value
                    key = first.drawn[:1] if "state" in name else row["obs"]
                    index = look_up(table, key)
                    visited[agent].add(index)
                    np.testing.assert_allclose(value, table.values[index], rtol=1e-5)
    for agent, table in tables.items():
        assert visited[agent] == set(range(len(table.values))), "every value is met"


def test_wrong_actions_cost() -> None:
    for name in ("probe-turns-v0", "probe-agents-v0", "probe-mask-turns-v0"):
        tables = probe_of(f"jaxrl:{name}").value_tables(GAMMA)

        def worst(agent: str, t: int, obs: Any, count: int, tables: Any = tables) -> int:
            table = tables[agent]
            best = int(table.actions[look_up(table, obs)])
            if isinstance(obs, dict):
                return int(np.flatnonzero(np.asarray(obs["action_mask"]) == 0)[0])
            return 1 - best if best < 2 else 0

        episodes, _ = play(f"jaxrl:{name}", 0, worst)
        rewards = [row["reward"] for e in episodes.values() for x in e for row in x["rows"]]
        assert max(rewards) < 0


def test_an_illegal_action_ends_the_mask_probe() -> None:
    for agent in range(2):
        for turn in range(2):
            others = LEGAL[1 - agent, turn], LEGAL[agent, 1 - turn]
            assert all(((LEGAL[agent, turn] == 1) & (other == 0)).any() for other in others)
    episodes, _ = play("jaxrl:probe-mask-turns-v0", 0, lambda agent, t, obs, count: 3)
    assert [row["reward"] for row in episodes["a"][0]["rows"]] == [-1.0]
    assert episodes["b"] == []


def test_the_cut_probe_has_as_many_rows_as_it_says() -> None:
    episodes, _ = play("jaxrl:probe-cut-v0", 0, lambda *what: 1)
    counts = {agent: sum(len(e["rows"]) for e in parts) for agent, parts in episodes.items()}
    assert counts == ProbeCut.rows_per_episode


def test_the_opponent_probe_pays_minus_the_constant() -> None:
    for constant in range(5):
        episodes, _ = play("jaxrl:probe-opponent-v0", 0, lambda *what, c=constant: c)
        table = ProbeOpponent().value_tables(GAMMA, constant)["a"]
        value = 0.0
        for row in reversed(episodes["a"][0]["rows"]):
            value = row["reward"] + GAMMA * value
            np.testing.assert_allclose(value, table.values[look_up(table, row["obs"])], rtol=1e-5)


def test_who_joins_twice_has_two_episodes_cut() -> None:
    episodes, _ = play("jaxrl:probe-join-v0", 0, lambda *what: 0)
    assert [len(part["rows"]) for part in episodes["b"]] == [3, 3]
    assert all(float(part["tail"][0]) == 0.0 for part in episodes["b"])
    assert [len(part["rows"]) for part in episodes["a"]] == [10]
