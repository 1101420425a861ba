"""Mapping by copy of the environment: who has which seat, and whose rows they are."""

import json
import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import Draw, RandomRLModule, Seats
from jaxrl.algorithms.mappo import MAPPOConfig
from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.callbacks import Callbacks
from jaxrl.config.multi_agent import resolve_agents
from jaxrl.config.serialize import deserialize_config, serialize_config
from jaxrl.core.keys import make_key
from jaxrl.core.types import PyTree
from jaxrl.envs.multi.base import Entry
from jaxrl.errors import ConfigError
from jaxrl.training.agent_rows import AgentRows
from jaxrl.training.episode_stats import EndedEpisode
from tests.multi_agent.agent_envs import Targets, Torture
from tests.multi_agent.test_rollout import get_column, roll, walk, watch

ENTRIES = (
    Entry(key="x", agents=("x",)),
    Entry(key="k", agents=("k_0", "k_1"), is_kind=True),
    Entry(key="y", agents=("y",)),
)
PATTERNS = (
    {"x": "p", "k_0": "q", "k_1": "p", "y": "q"},
    {"x": "q", "k_0": "q", "k_1": "r", "y": "p"},
    {"x": "p", "k_0": "p", "k_1": "q", "y": "q"},
)
AGENTS = ("x", "k_0", "k_1", "y")


def list_cells(module: str, num_envs: int) -> list[tuple[int, int]]:
    """Environment and agent of every row of a module, in order."""
    return [
        (env, i)
        for env in range(num_envs)
        for i, agent in enumerate(AGENTS)
        if PATTERNS[env % 3][agent] == module
    ]


def fold(keys: Any, step: int, env: int, agent: int) -> np.ndarray:
    key = jax.random.clone(jax.random.clone(keys)[step, env])
    return np.asarray(jax.random.key_data(jax.random.fold_in(key, agent)))


@pytest.mark.representatives("7")
@pytest.mark.parametrize("num_envs", [6, 7])
def test_rows_are_those_of_a_walk(num_envs: int) -> None:
    rows = AgentRows(entries=ENTRIES, patterns=PATTERNS)
    values = np.arange(num_envs * 4 * 2, dtype=np.float32).reshape(num_envs, 4, 2)
    by_entry = {
        "x": jnp.asarray(values[:, 0]),
        "k": jnp.asarray(values[:, 1:3]),
        "y": jnp.asarray(values[:, 3]),
    }
    gathered: dict[str, Any] = {}
    keys = jax.random.split(make_key(0), 2 * num_envs).reshape(2, num_envs)
    index = jnp.arange(num_envs, dtype=jnp.int32)
    for module in ("p", "q", "r"):
        cells = list_cells(module, num_envs)
        assert rows.count_rows(module, num_envs) == len(cells)
        gathered[module] = rows.gather(by_entry, module)
        np.testing.assert_array_equal(gathered[module], [values[env, i] for env, i in cells])
        np.testing.assert_array_equal(
            rows.select(jnp.asarray(values[..., 0])[None], module)[0],
            [values[env, i, 0] for env, i in cells],
        )
        np.testing.assert_array_equal(rows.repeat(index, module), [env for env, _ in cells])
        np.testing.assert_array_equal(rows.number(index, module), range(len(cells)))
        # A shard that begins at a multiple of the patterns numbers its rows after those before it.
        later = rows.number(index + 3, module)
        np.testing.assert_array_equal(later, np.arange(len(cells)) + len(list_cells(module, 3)))
        found = jax.random.key_data(rows.derive_keys(jax.random.clone(keys), module))
        expected = [[fold(keys, t, env, i) for env, i in cells] for t in range(2)]
        np.testing.assert_array_equal(found, expected)
        names = [AGENTS[i] for _, i in cells]
        own = [agent for agent in AGENTS if agent in names or rows.plays(module, agent)]
        np.testing.assert_array_equal(
            rows.get_places(module, num_envs), [own.index(name) for name in names]
        )
        counts = jnp.ones((len(cells),), jnp.uint32)
        expected_sums = [names.count(agent) for agent in AGENTS]
        np.testing.assert_array_equal(rows.sum_by_agent(counts, module, num_envs), expected_sums)
    back = rows.scatter(gathered, num_envs)
    jax.tree.map(np.testing.assert_array_equal, back, by_entry)


def make_config(env: Any = Targets, **settings: Any) -> PPOConfig:
    """8 environments x 32 steps."""
    config = PPOConfig().environment(env).env_runners(num_envs_per_env_runner=8)
    config.training(train_batch_size=256, minibatch_size=64, num_epochs=1)
    config.rl_module(model_config={"fcnet_hiddens": [8]}).debugging(loggers=[], seed=3)
    return config.multi_agent(**settings)


def against_random(**settings: Any) -> dict[str, Any]:
    """A module that learns, and one that plays at random."""
    return {
        "policies": {"main": None, "random": RandomRLModule},
        "policies_to_train": ["main"],
        **settings,
    }


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"mapping": Seats("main", "random")}, ["main random", "random main"]),
        (
            {"mapping": Seats("main", "random", live=0.2)},
            ["main random", "random main"] * 2 + ["main main"],
        ),
        (
            {"mapping": Seats("main", "random", live=0.25)},
            ["main random", "random main"] * 3 + ["main main"] * 2,
        ),
        (
            {
                "policy_mapping_fn": lambda aid, episode, **kw: (
                    "main" if (aid == "a") == (episode.env_index % 4 < 3) else "random"
                )
            },
            ["main random"] * 3 + ["random main"],
        ),
        ({"mapping": [{"a": "main", "b": "random"}]}, ["main random"]),
    ],
)
def test_copies_have_patterns(settings: dict[str, Any], expected: list[str]) -> None:
    config = make_config(**against_random(**settings)).env_runners(num_envs_per_env_runner=40)
    config.training(train_batch_size=1280)
    config.prepare()
    data = json.loads(json.dumps(serialize_config(config)))
    for own in (config, deserialize_config(data)):
        patterns = resolve_agents(own.environment_settings, own.multi_agent_settings).patterns
        assert [f"{pattern['a']} {pattern['b']}" for pattern in patterns] == expected


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "RLlib's self-play": (
        {
            "policy_mapping_fn": lambda aid, episode, **kw: (
                "main" if hash(episode.id_) % 2 == (aid == "a") else "random"
            )
        },
        "by the id of the episode, .* set mapping=Seats\\('main', 'random'\\) instead",
    ),
    "a draw": (
        {
            "policies": {"main", "v1", "v2"},
            "policy_mapping_fn": lambda aid, episode: (
                "main" if aid == "a" else random.choice(["v1", "v2"])
            ),
        },
        "by chance, .* set mapping=\\{'a': 'main', 'b': Draw\\(\\['v1', 'v2'\\]\\)\\} instead",
    ),
    "no period": (
        {"policy_mapping_fn": lambda aid, ep: "main" if ep.env_index < 9 else "random"},
        "without repeating within 16 of them",
    ),
    "too many envs": ({"mapping": Seats("main", "random", live=0.2)}, "set .*_runner=10"),
    "live is no fraction": ({"mapping": Seats("main", "random", live=0.123)}, "set 0.125, .* 1/8"),
    "an unknown id": ({"mapping": Seats("main", "randon")}, "Did you mean 'random'"),
    "no list": ({"mapping": []}, "mapping is an empty list"),
    "an agent is missing": ({"mapping": [{"a": "main"}]}, "no module for the agent 'b'"),
    "three agents": ({"env": Torture, "mapping": Seats("main", "random")}, "Seats map two agents"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence(name: str) -> None:
    settings, match = BAD[name]
    settings = against_random(**settings)
    config = make_config(settings.pop("env", Targets), **settings)
    with pytest.raises(ConfigError, match=match) as caught:
        config.build()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Seats("main", "random", live=1.0),
        lambda: Draw(["a", "a"]),  # pyright: ignore[reportArgumentType]
        lambda: Draw(("a", "b"), (1.0,)),
        lambda: Draw(("a", "b"), (0.0, 0.0)),
        lambda: Draw(("a",), (float("nan"),)),
    ],
)
def test_wrong_values_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        make()


@pytest.mark.slow
def test_every_row_of_a_learner_is_its_own() -> None:
    """Three agents that come and go: the rows of a walk over each environment, by its pattern."""
    patterns = [
        {"a": "one", "b": "two", "c": "two"},
        {"a": "two", "b": "one", "c": "one"},
    ]
    config = make_config(Torture, mapping=patterns).training(
        train_batch_size=8 * 60, minibatch_size=60
    )
    with config.build() as algorithm:
        runner, params = algorithm.runner, algorithm.env_params
    runner: Any
    state = jax.jit(runner.init)(make_key(2), params)
    seen, rollouts = watch(runner, state, params), roll(runner, state, params, 20)
    total = 0
    columns = {"one": 0, "two": 0}
    for env in range(8):
        for agent in ("a", "b", "c"):
            module = patterns[env % 2][agent]
            expected, found = walk(seen, env, agent), get_column(rollouts, module, columns[module])
            columns[module] += 1
            assert len(found) == len(expected)
            total += len(found)
            for row, other in zip(expected, found, strict=True):
                for name in ("obs", "final_obs", "is_first", "terminated", "truncated"):
                    np.testing.assert_array_equal(other[name], row[name], err_msg=name)
    assert total > 300


class Listening(Callbacks):
    """Keeps who played in each episode."""

    heard: list[tuple[int, str, str]] = []

    def on_episode_end(self, *, episode: EndedEpisode, **kwargs: Any) -> None:
        self.heard.append((episode.env_index, episode.module_for("a"), episode.module_for("b")))


def test_results_count_the_rows_of_each_module() -> None:
    config = make_config(**against_random(mapping=Seats("main", "random", live=0.5)))
    config.evaluation(evaluation_duration=16).callbacks(Listening)
    Listening.heard.clear()
    with config.build() as algorithm:
        algorithm.train()
        result = algorithm.train()["env_runners"]
        evaluated = algorithm.evaluate()["env_runners"]
        with pytest.raises(ConfigError, match="Who plays 'a' differs between episodes"):
            algorithm.compute_actions({"a": np.zeros(2, np.float32)})
        assert algorithm.compute_single_action(np.zeros(2, np.float32), policy_id="main") in (0, 1)
    # Half of 8 copies have main in both seats: 4 x 2 + 4 rows a step, and 4 of the other's.
    assert result["num_module_steps_sampled"] == {"main": 12 * 32, "random": 4 * 32}
    assert result["num_module_steps_sampled_lifetime"] == {"main": 24 * 32, "random": 8 * 32}
    assert result["num_agent_steps_sampled"] == {"a": 256, "b": 256}
    assert 2.0 < evaluated["module_episode_returns_mean"]["random"] < 6.0
    expected = [("main", "random"), ("random", "main"), ("main", "main"), ("main", "main")]
    assert len(Listening.heard) >= 64
    assert all((own, other) == expected[env % 4] for env, own, other in Listening.heard)


def get_state(config: PPOConfig, number: int) -> PyTree:
    config = config.copy().learners(num_devices=number, num_shards=4)
    with config.build() as algorithm:
        for _ in range(2):
            algorithm.train()
        return algorithm.get_weights()


@pytest.mark.slow
def test_devices_have_equally_many_rows() -> None:
    config = make_config(**against_random(mapping=Seats("main", "random")))
    one, four = get_state(config, 1), get_state(config, 4)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-6), one, four)


def test_shards_have_whole_patterns() -> None:
    config = make_config(**against_random(mapping=Seats("main", "random")))
    assert config.plan().num_shards == 4
    config.learners(num_shards=8)
    with pytest.raises(ConfigError, match="set a number that divides 4"):
        config.build()


@pytest.mark.slow
def test_shared_modules_know_their_agent_and_central_critics_see_all() -> None:
    config = (
        MAPPOConfig()
        .environment(Targets)
        .env_runners(num_envs_per_env_runner=8)
        .training(train_batch_size=256, minibatch_size=64, critic_input="joint")
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .multi_agent(**against_random(mapping=Seats("main", "random")), observe_agent_id=True)
        .debugging(loggers=[])
    )
    with config.build() as algorithm:
        runner: Any = algorithm.runner
        state = jax.jit(runner.init)(make_key(2), algorithm.env_params)
        _, _, (sampled,) = jax.jit(runner.train_batch)(state)
        recorded = sampled.rollout
    obs = recorded.rollouts["main"].obs
    agents = np.arange(8) % 2  # row i is agent i % 2 of environment i
    ids = np.eye(2)[agents]
    np.testing.assert_array_equal(obs.obs[:, :, 1], np.broadcast_to(agents, (32, 8)))
    np.testing.assert_array_equal(obs.obs[:, :, 2:], np.broadcast_to(ids, (32, 8, 2)))
    time = obs.obs[:, :, 0]
    joint = np.stack([time, time * 0, time, time * 0 + 1, *np.moveaxis(obs.obs[:, :, 2:], 2, 0)], 2)
    np.testing.assert_array_equal(obs.state, joint)
