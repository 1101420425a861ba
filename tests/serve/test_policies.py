"""Served policies act as `jaxrl.Policy` does: memory, filter, masks, previous rewards, batches."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from jaxrl import Algorithm, Policy
from jaxrl.errors import CheckpointError
from jaxrl.interop.importing import with_filter_arrays
from jaxrl.serve.backend import Batch
from jaxrl.serve.jax_backend import JaxBackend, get_padded_size, load_backend
from jaxrl.serve.server import PolicyServer
from jaxrl.serve.settings import ServeSettings
from tests.helpers import small
from tests.serve.client import Client, running

LENGTH = 5


def load_policy(path: str, *, explore: bool = False) -> Policy:
    with Algorithm.from_checkpoint(path) as algorithm:
        return algorithm.get_policy(explore=explore)


@pytest.fixture(scope="module")
def remembering(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Masks, a filter, an LSTM, and the previous action and reward."""
    config = small(env="minefield-v0").env_runners(observation_filter="MeanStdFilter")
    model = {
        "fcnet_hiddens": [8],
        "fusionnet_hiddens": [8],
        "use_lstm": True,
        "lstm_cell_size": 4,
        "max_seq_len": 4,
        "lstm_use_prev_action": True,
        "lstm_use_prev_reward": True,
    }
    folder = tmp_path_factory.mktemp("memory")
    config.rl_module(model_config=model).debugging(loggers=[], results_dir=str(folder))
    statistics = {
        "pay": {"mean": np.full(8, 0.5), "var": np.full(8, 0.1), "count": np.asarray(100.0)}
    }
    with config.checkpointing(checkpoint_at_end=False).build() as algorithm:
        algorithm.state, problems = with_filter_arrays(algorithm.state, statistics)
        assert not problems
        return algorithm.save(folder / "checkpoints")


@pytest.fixture(scope="module")
def port(remembering: str) -> Iterator[int]:
    backend = load_backend(remembering, max_batch=4)
    with running(PolicyServer(backend, ServeSettings(port=0, max_batch=4))) as port:
        yield port


@pytest.fixture
def client(port: int) -> Iterator[Client]:
    client = Client(port)
    yield client
    client.close()


def make_episode(seed: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    masks = (rng.random((LENGTH, 8)) < 0.5).astype(np.int8)
    masks[np.arange(LENGTH), rng.integers(8, size=LENGTH)] = 1
    pay = rng.random((LENGTH, 8)).astype(np.float32)
    return [{"action_mask": masks[t], "pay": pay[t], "step": np.asarray(t)} for t in range(LENGTH)]


def to_json(obs: dict[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(part).tolist() for name, part in obs.items()}


def get_reward(t: int) -> float:
    return float(np.sin(t))


def play(path: str, episode: list[dict[str, Any]]) -> list[int]:
    """The actions of the policy itself."""
    policy = load_policy(path)
    return [
        int(policy.act(obs, prev_reward=get_reward(t) if t else None))
        for t, obs in enumerate(episode)
    ]


@pytest.fixture(scope="module")
def expected(remembering: str) -> list[list[int]]:
    return [play(remembering, make_episode(seed)) for seed in range(3)]


def test_actions_depend_on_the_memory(remembering: str, expected: list[list[int]]) -> None:
    policy, forgetful = load_policy(remembering), list[int]()
    for obs in make_episode(0):
        policy.reset()
        forgetful.append(int(policy.act(obs)))
    assert len({*map(tuple, expected)}) == 3
    assert forgetful != expected[0]


def test_sessions_remember(client: Client, expected: list[list[int]]) -> None:
    episodes = [make_episode(seed) for seed in range(3)]
    for t in range(LENGTH):
        for seed, episode in enumerate(episodes):
            request = {
                "observation": to_json(episode[t]),
                "episode_id": f"game {seed}",
                "is_first": t == 0,
                "prev_reward": get_reward(t),
            }
            assert client.post(request)["action"] == expected[seed][t]


def test_batches_of_sessions_that_start_at_different_times(
    client: Client, expected: list[list[int]]
) -> None:
    episodes = [make_episode(seed) for seed in range(3)]
    for t in range(LENGTH + 2):
        rows = [(seed, t - seed) for seed in range(3) if 0 <= t - seed < LENGTH]
        request = {
            "observations": [to_json(episodes[seed][at]) for seed, at in rows],
            "episode_ids": [f"late {seed}" for seed, _ in rows],
            "is_first": [at == 0 for _, at in rows],
            "prev_rewards": [get_reward(at) for _, at in rows],
        }
        assert client.post(request)["actions"] == [expected[seed][at] for seed, at in rows]


def test_the_client_keeps_the_state_as_json_or_arrays(
    client: Client, expected: list[list[int]]
) -> None:
    episode = make_episode(0)
    answer = client.post({"observation": to_json(episode[0]), "return_state": True})
    assert answer["action"] == expected[0][0]
    for t in range(1, LENGTH):
        request = {"observation": to_json(episode[t]), "state": answer["state"]}
        answer = client.post({**request, "prev_reward": get_reward(t)})
        assert answer["action"] == expected[0][t]
    leaves: dict[str, np.ndarray] = {}
    for t in range(LENGTH):
        arrays = {
            f"observations.{name}": np.asarray(part)[None] for name, part in episode[t].items()
        }
        if leaves:
            arrays |= {"prev_rewards": np.array([get_reward(t)], np.float32), **leaves}
        _, _, body = client.request(
            *("POST", "/v1/actions", save(arrays, metadata={"options": '{"return_state": true}'})),
            Content_Type="application/x-safetensors",
        )
        found = load(body)
        assert found["actions"].tolist() == [expected[0][t]]
        leaves = {name: leaf for name, leaf in found.items() if name.startswith("state.")}


def test_masks_hold_for_sampled_actions(client: Client) -> None:
    obs = to_json(make_episode(1)[0])
    obs["action_mask"] = [0, 0, 1, 0, 0, 0, 1, 0]
    request = {"observations": [obs] * 4, "explore": True, "return_state": True}
    actions = {action for _ in range(20) for action in client.post(request)["actions"]}
    assert actions == {2, 6}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pay": [0.0] * 7}, "obs.pay has shape (7,)"),
        ({"pay": [0.0] * 7 + [None]}, "obs.pay"),
        ({"pay": ["a"] * 8}, "obs.pay must be numeric"),
        ({"pay": [[0.0], [1.0, 2.0]]}, "got a list of unequal parts"),
        ({"pay": [99.0] * 8}, "outside its space's bounds"),
        ({"step": 1.5}, "obs.step is 1.5"),
        ({"other": 1}, "must be a dict with the keys"),
    ],
)
def test_observations_outside_of_the_space_are_refused(
    client: Client, change: dict[str, Any], message: str
) -> None:
    obs = {**to_json(make_episode(0)[0]), **change}
    assert message in client.post({"observation": obs, "return_state": True}, status=400)


def test_inputs_of_the_past_are_checked(client: Client) -> None:
    obs = to_json(make_episode(0)[0])
    client.post({"observation": obs, "episode_id": "past", "is_first": True})
    later = {"observation": obs, "episode_id": "past"}
    assert "reward of the previous step" in client.post(later, status=400)
    action = client.post({**later, "prev_reward": 1.0, "prev_action": 3})["action"]
    assert obs["action_mask"][action]
    wrong = {**later, "prev_reward": 1.0, "prev_action": 99}
    assert "prev_action" in client.post(wrong, status=400)


def test_spaces_are_described(client: Client) -> None:
    spaces = client.get("/v1/spaces")
    assert spaces["action_space"] == {
        "kind": "Discrete",
        "low": 0,
        "high": 7,
        "shape": [],
        "dtype": "int64",
    }
    parts = dict(spaces["observation_space"]["spaces"])
    assert sorted(parts) == ["action_mask", "pay", "step"]
    assert parts["action_mask"]["kind"] == "MultiBinary"
    assert spaces["reads"] == ["prev_action", "prev_reward"]
    assert len(spaces["state"]) >= 4


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two checkpoints of one run."""
    folder = tmp_path_factory.mktemp("cartpole")
    config = small(lr=0.05).debugging(loggers=[], results_dir=str(folder))
    with config.checkpointing(checkpoint_at_end=False).build() as algorithm:
        paths = []
        for _ in range(2):
            algorithm.train()
            paths.append(algorithm.save(folder / "checkpoints"))
        return paths


OBS = np.linspace(-0.1, 0.1, 28, dtype=np.float32).reshape(7, 4)


def act(backend: JaxBackend, *, explore: bool = False) -> np.ndarray:
    num = len(OBS)
    rows = [backend.conform(obs) for obs in OBS]
    actions, state = backend.act(
        Batch(observations=rows, state=[], is_first=np.ones(num, bool), explore=explore)
    )
    assert state == []
    return np.asarray(actions)


def test_a_newer_checkpoint_shares_the_programs(cartpole: list[str]) -> None:
    first = load_backend(cartpole[0], max_batch=8)
    inference = first._policy.inference
    num_compiled = sum(len(program.compile_stats) for program in inference.programs)
    assert num_compiled == 2 * 4  # greedy and sampled, of 1, 2, 4 and 8 rows
    second = load_backend(Path(cartpole[1]).parent, first, max_batch=8)
    assert second._policy.inference is inference
    assert sum(len(program.compile_stats) for program in inference.programs) == num_compiled
    for backend, path in ((first, cartpole[0]), (second, cartpole[1])):
        assert backend.version == Path(path).name
        policy = load_policy(path)
        assert act(backend).tolist() == [int(policy.act(obs)) for obs in OBS]
    sampled = {tuple(act(first, explore=True)) for _ in range(10)}
    assert len(sampled) > 1


def test_another_environment_is_refused(cartpole: list[str], remembering: str) -> None:
    served = load_backend(cartpole[0], max_batch=1)
    with pytest.raises(CheckpointError, match="has other spaces than the policy that is served"):
        load_backend(remembering, served, max_batch=1)


def test_batches_are_padded_to_powers_of_two() -> None:
    assert [get_padded_size(n, 8) for n in (1, 2, 3, 4, 5, 8)] == [1, 2, 4, 4, 8, 8]
