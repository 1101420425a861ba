"""`jaxrl serve`: its options, its errors, and the process with its signals."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from jaxrl.cli.app import app
from jaxrl.serve.server import PolicyServer
from tests.helpers import small
from tests.serve.client import Client


def run(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["serve", *args], prog_name="jaxrl", catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def algorithm(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = str(tmp_path_factory.mktemp("results"))
    config = small().debugging(loggers=[], results_dir=folder, run_name="served")
    with config.checkpointing(checkpoint_at_end=False).build() as built:
        built.save()
        yield built


def test_options_reach_the_server(
    algorithm: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    servers: list[PolicyServer] = []
    token = tmp_path / "token"
    token.write_text("t" * 32)
    token.chmod(0o600)

    def run_nothing(self: PolicyServer, bound: Any) -> None:
        servers.append(self)
        bound.close()

    monkeypatch.setattr(PolicyServer, "run", run_nothing)
    path = algorithm.run_dir
    options = ("--port", "0", "--max-batch", "2", "--explore", "--token-file", str(token))
    code, out, _ = run(path, "--follow", *options)
    assert code == 0
    assert re.search(r"policy +checkpoint_000000 of .*\nserving at +http://127.0.0.1:\d+\n", out)
    settings = servers[0]._settings
    assert (settings.max_batch, settings.explore, settings.token) == (2, True, "t" * 32)
    assert servers[0]._get_newest is not None
    assert servers[0]._get_newest() == "checkpoint_000000"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("nowhere",), "There is no run 'nowhere'"),
        (("{}", "--max-batch", "3"), "max_batch=3 must be a power of two"),
        (("{}", "--host", "0.0.0.0"), "needs a token"),
        (("{}/checkpoints/checkpoint_000000", "--follow"), "--follow serves the checkpoints of a"),
    ],
)
def test_wrong_options_are_one_line(
    algorithm: Any, options: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAXRL_SERVE_TOKEN", raising=False)
    code, _, err = run(*(option.format(algorithm.run_dir) for option in options))
    assert code == 2
    assert message in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("jaxrl.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, _, err = run("anything")
    assert code == 2
    assert "jaxrl serve needs uvicorn: pip install 'jaxrl[serve]'" in err


def is_healthy(port: int) -> bool:
    client = Client(port)
    try:
        return client.get("/healthz") == {"status": "ok"}
    except OSError:
        return False
    finally:
        client.close()


@pytest.mark.slow
def test_a_process_reloads_on_sighup_under_load_without_a_failed_request(algorithm: Any) -> None:
    """A soak: four clients, six reloads, no request that fails, actions of one policy each."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "jaxrl", "serve", algorithm.run_dir, "--port", "0"]
    process = subprocess.Popen(
        [*command, "--max-batch", "8"], stdout=subprocess.PIPE, text=True, env=environment
    )
    problems: list[Any] = []
    counts: dict[str, int] = {}
    is_over = threading.Event()
    assert process.stdout is not None
    process.stdout.readline()
    port = int(process.stdout.readline().rpartition(":")[2])

    def play() -> None:
        client = Client(port)
        while not is_over.is_set():
            try:
                answer = client.post({"observations": [[0.0, 0.1, 0.2, 0.3]] * 3})
            except (AssertionError, OSError, http.client.HTTPException, json.JSONDecodeError) as e:
                problems.append(repr(e))
                break
            version = answer["policy_version"]
            counts[version] = counts.get(version, 0) + 1
        client.close()

    threads = [threading.Thread(target=play) for _ in range(4)]
    deadline = time.monotonic() + 120
    try:
        while not is_healthy(port):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for thread in threads:
            thread.start()
        for _ in range(6):
            algorithm.train()
            algorithm.save()
            process.send_signal(signal.SIGHUP)
            version = f"checkpoint_{algorithm.iteration:06d}"
            while counts.get(version, 0) < 20:
                assert not problems, problems
                assert time.monotonic() < deadline
                time.sleep(0.02)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, -signal.SIGTERM, 128 + signal.SIGTERM)
        process.stdout.close()
    assert not problems
    assert len(counts) == 7
