"""Exported policies are served with NumPy alone, and act as the checkpoint does."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl.errors import ExportError
from jaxrl.serve.backend import is_export, load_export
from jaxrl.serve.server import PolicyServer
from jaxrl.serve.settings import ServeSettings
from tests.export.exports import CARTPOLE, LSTM, MASKED, get_export, get_policy
from tests.serve.client import Client, running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(get_export(LSTM).write(tmp_path_factory.mktemp("exports") / "lstm"))


def make_obs(space: Any, seed: int) -> Any:
    space.seed(seed)
    obs = space.sample()
    return np.clip(obs, -1.0, 1.0) if isinstance(obs, np.ndarray) else obs


def test_sessions_act_as_the_policy(folder: Path) -> None:
    policy = get_policy(LSTM)
    policy.reset()
    backend = load_export(folder)
    with running(PolicyServer(backend, ServeSettings(port=0, max_batch=4))) as port:
        client = Client(port)
        for t in range(6):
            obs = make_obs(policy.inference.observation_space, t)
            request = {"observation": obs.tolist(), "episode_id": "a", "is_first": t == 0}
            other = {**request, "episode_id": f"other {t}", "is_first": True}
            client.post(other)
            assert client.post(request)["action"] == int(policy.act(obs))
        assert "must have the shape" in client.post({**request, "observation": [1.0]}, status=400)
        ragged = {**request, "observation": [[1.0], [2.0, 3.0]]}
        assert "not in its space" in client.post(ragged, status=400)
        described = client.get("/v1/spaces")
        assert described["policy_version"].startswith("lstm@")
        client.close()


def test_masks_hold_in_batches(tmp_path: Path) -> None:
    policy = get_policy(MASKED)
    backend = load_export(get_export(MASKED).write(tmp_path / "masked"))
    observations: list[Any] = []
    for seed in range(4):
        obs = dict(make_obs(policy.inference.observation_space, seed))
        obs["action_mask"] = np.eye(8, dtype=np.int8)[seed] | np.eye(8, dtype=np.int8)[seed + 4]
        observations.append(obs)
    expected = []
    for obs in observations:
        policy.reset()
        expected.append(int(policy.act(obs)))
    rows = [{name: np.asarray(x).tolist() for name, x in obs.items()} for obs in observations]
    with running(PolicyServer(backend, ServeSettings(port=0, max_batch=4))) as port:
        client = Client(port)
        assert client.post({"observations": rows})["actions"] == expected
        sampled = client.post({"observations": rows, "explore": True})["actions"]
        assert all(obs["action_mask"][a] for obs, a in zip(observations, sampled, strict=True))
        client.close()


def test_what_an_export_cannot_do_is_said(folder: Path, tmp_path: Path) -> None:
    assert is_export(folder)
    assert not is_export(tmp_path)
    with pytest.raises(ExportError, match=r"policy\.json cannot be read"):
        load_export(tmp_path)
    with pytest.raises(ExportError, match="other spaces"):
        load_export(folder, load_export(get_export(MASKED).write(tmp_path / "masked")))
    program = folder / "program.json"
    content = program.read_bytes()
    program.write_bytes(content[:-10])
    try:
        with pytest.raises(ExportError, match=r"program\.json"):
            load_export(folder)
    finally:
        program.write_bytes(content)


def test_the_command_serves_an_export_without_jax(tmp_path: Path) -> None:
    folder = get_export(CARTPOLE).write(tmp_path / "cartpole")
    code = (
        "import sys; sys.modules['jax'] = sys.modules['flax'] = None\n"
        f"sys.argv = ['jaxrl', 'serve', {str(folder)!r}, '--port', '0']\n"
        "from jaxrl.cli import main; main()"
    )
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline() for _ in range(2)]
        client = Client(int(lines[1].rpartition(":")[2]))
        obs = np.array([0.01, 0.2, -0.03, 0.1], np.float32)
        policy = get_policy(CARTPOLE)
        policy.reset()
        assert client.post({"observation": obs.tolist()})["action"] == int(policy.act(obs))
        assert json.loads(client.request("GET", "/healthz")[2]) == {"status": "ok"}
        client.close()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        process.stdout.close()
