"""Recording of several agents: each agent's own steps, in a folder for each module."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl import Algorithm
from jaxrl.episodes.packing import EpisodePart
from jaxrl.offline.recorded import open_data
from tests.multi_agent.agent_envs import Torture
from tests.multi_agent.test_training import make_config

MAPPING = {"a": "p0", "b": "p1", "c": "p0"}
AGENTS = ("a", "b", "c")
SMALL = {"fcnet_hiddens": [4]}


def make(output: Path | None = None, env: Any = Torture, **settings: Any) -> Any:
    config = make_config(env=env, **{"mapping": MAPPING, **settings})
    config.env_runners(num_envs_per_env_runner=4)
    config.training(train_batch_size=128, minibatch_size=64, num_epochs=1)
    config.rl_module(model_config=SMALL)
    return config if output is None else config.offline_data(output=str(output))


def train(config: Any, times: int = 2) -> Algorithm:
    algorithm = config.build()
    for _ in range(times):
        algorithm.train()
    algorithm.stop()
    return algorithm


def read(folder: Path) -> dict[str, list[EpisodePart]]:
    """Return the parts of each episode in a module's folder."""
    found: dict[str, list[EpisodePart]] = {}
    for part in open_data(folder).iter_parts():
        found.setdefault(part.episode_id, []).append(part)
    return found


def assert_same_weights(one: Algorithm, other: Algorithm) -> None:
    jax.tree.map(np.testing.assert_array_equal, one.get_weights(), other.get_weights())


def check_torture(output: Path, lifetime: dict[str, int]) -> None:
    """Check what each row says about where it is from."""
    counts = dict.fromkeys(AGENTS, 0)
    together: dict[str, set[float]] = {}
    ends = []
    for module in ("p0", "p1"):
        data = open_data(output / module)
        assert data.origin.module_id == module
        assert data.has_density
        for parts in read(output / module).values():
            for part in parts:
                assert part.agent_id is not None
                assert part.multi_agent_episode_id is not None
                assert MAPPING[part.agent_id] == part.module_id == module
                episode, agent, time = np.asarray(part.obs).T
                assert set(agent) == {AGENTS.index(part.agent_id)}
                assert len(set(episode)) == 1
                together.setdefault(part.multi_agent_episode_id, set()).add(episode[0])
                assert (np.diff(time) > 0).all()  # own time, up to the final observation
                clock = np.arange(time[0], time[-1])
                paid = (1.0 + AGENTS.index(part.agent_id)) * 0.1 + np.sin(clock)
                assert part.reward.sum() == pytest.approx(paid.sum(), abs=1e-3)
                counts[part.agent_id] += len(part)
            ends.append((parts[-1].terminated, parts[-1].truncated))
    assert counts == lifetime
    assert all(len(numbers) == 1 for numbers in together.values())
    assert len({*map(min, together.values())}) == len(together) > 10
    assert {(True, False), (False, True)} <= set(ends)


def test_rows_are_those_of_each_agent_and_training_is_the_same(tmp_path: Path) -> None:
    plain, recorded = (train(make(output)) for output in (None, tmp_path / "out"))
    assert_same_weights(plain, recorded)
    runners = plain.last_result["env_runners"]
    check_torture(tmp_path / "out", runners["num_agent_steps_sampled_lifetime"])
    ended = sum(
        part.terminated or part.truncated
        for module in ("p0", "p1")
        for parts in read(tmp_path / "out" / module).values()
        for part in parts
    )
    assert ended > 20
