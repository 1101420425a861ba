"""The server around a policy: memories, batches, limits, tokens, TLS, reloads, metrics."""

import contextlib
import json
import resource
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from jaxrl.errors import CheckpointError, ConfigError
from jaxrl.serve.server import PolicyServer
from jaxrl.serve.settings import ServeSettings
from tests.serve.client import Client, running
from tests.serve.counting import Counting

TOKEN = "a-token-of-sixteen-characters"


def serving(backend: Any = None, load: Any = None, **settings: Any) -> Any:
    """A running server; yields its port."""
    chosen = ServeSettings(**{"port": 0, "max_batch": 8, "max_waiting": 64, **settings})
    return running(PolicyServer(backend or Counting(), chosen, load=load))


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(max_sessions=3, max_body_bytes=2000) as port:
        yield port


@pytest.fixture
def client(port: int) -> Iterator[Client]:
    client = Client(port)
    yield client
    client.close()


def episode(name: str, value: float, *, first: bool = False) -> dict[str, Any]:
    return {"observation": value, "episode_id": name, "is_first": first}


def test_memories_are_kept_by_episode(client: Client) -> None:
    for step in range(3):
        for name, value in (("a", 1.0), ("b", 2.0)):
            answer = client.post(episode(name, value, first=step == 0))
            assert answer["action"][:2] == [value, step + 1]
    rows = {"observations": [5, 6], "episode_ids": ["b", "a"], "is_first": [True, False]}
    assert [action[1] for action in client.post(rows)["actions"]] == [1, 4]
    assert client.post(episode("b", 2.0))["action"][1] == 2


def test_an_episode_that_is_gone_is_not_found(client: Client) -> None:
    for name in "abcd":  # one more than are kept
        client.post(episode(name, 0.0, first=True))
    assert "send is_first=true" in client.post(episode("a", 0.0), status=404)
    assert client.post(episode("b", 0.0))["action"][1] == 2
    assert client.request("DELETE", "/v1/episodes/b")[0] == 200
    assert "unknown" in client.post(episode("b", 0.0), status=404)
    assert client.request("DELETE", "/v1/episodes/b")[0] == 404


def test_a_client_may_keep_the_state_itself(client: Client) -> None:
    answer = client.post({"observation": 1.0, "return_state": True})
    for step in (2, 3):
        answer = client.post({"observation": 1.0, "state": answer["state"]})
        assert answer["action"][1] == step
    rows = {"observations": [1.0, 1.0], "state": [[[7.0], [9.0]]], "is_first": [False, True]}
    assert client.post(rows)["state"] == [[[8.0], [1.0]]]
    assert "The policy has a memory" in client.post({"observation": 1.0}, status=400)


def test_arrays_are_answered_by_arrays(client: Client) -> None:
    arrays = {"observations": np.array([1.0, 2.0]), "state.0": np.array([[3.0], [4.0]], np.float32)}
    body = save(arrays, metadata={"options": json.dumps({"explore": True})})
    status, headers, answer = client.request(
        "POST", "/v1/actions", body, Content_Type="application/x-safetensors"
    )
    assert status == 200, answer
    assert headers["content-type"] == "application/x-safetensors"
    found = load(answer)
    np.testing.assert_array_equal(found["actions"], [[1, 4, 1, 0], [2, 5, 1, 0]])
    np.testing.assert_array_equal(found["state.0"], [[4], [5]])


def test_exploration_is_by_request(client: Client) -> None:
    for explore in (True, False):
        answer = client.post({"observation": 1.0, "explore": explore, "return_state": True})
        assert answer["action"][2] == explore


BAD: dict[str, tuple[Any, int, str]] = {
    "no JSON": (b"{", 400, "not JSON"),
    "no text": (b"\xff\xfe\x00", 400, "not JSON"),
    "depth": (b'{"observation":' + b"[" * 900 + b"]" * 900 + b"}", 400, ""),
    "no object": (b"[]", 400, "must be a JSON object"),
    "empty": ({}, 400, "either observation, or observations"),
    "both": ({"observation": 1, "observations": [1]}, 400, "either observation"),
    "batch of zero": ({"observations": []}, 400, "at least one observation"),
    "too many": ({"observations": [1] * 9}, 413, "at most 8 at once"),
    "too large": (b" " * 2001, 413, "larger than 2000 bytes"),
    "unknown field": ({"observation": 1, "explor": True}, 400, "Did you mean 'explore'?"),
    "NaN": (b'{"observation": NaN}', 400, "NaN is not a number"),
    "infinite": (b'{"observation": 1e999, "return_state": true}', 400, "not a finite number"),
    "shape": ({"observation": [1, 2], "return_state": True}, 400, "not a finite number"),
    "dtype": ({"observation": "1", "return_state": True}, 400, "not a finite number"),
    "explore": ({"observation": 1, "explore": 1}, 400, "explore must be true or false"),
    "unknown episode": (episode("nobody", 1.0), 404, "'nobody' is unknown"),
    "one id twice": (
        {"observations": [1, 2], "episode_ids": ["x", "x"], "is_first": True},
        400,
        "occurs twice",
    ),
    "number of ids": ({"observations": [1, 2], "episode_ids": ["x"]}, 400, "one entry per obs"),
    "plural": ({"observations": [1, 2], "episode_id": "x"}, 400, "use episode_ids"),
    "long id": (episode("x" * 257, 1.0, first=True), 400, "1 to 256 characters"),
    "id of a number": ({"observation": 1, "episode_id": 7}, 400, "one entry per observation"),
    "state and id": (
        {"observation": 1, "episode_id": "x", "state": [[1.0]], "is_first": True},
        400,
        "exclude each other",
    ),
    "state's shape": ({"observation": 1, "state": [[1.0, 2.0]]}, 400, "arrays of the shapes"),
    "ragged state": ({"observation": 1, "state": [[[1.0], [2.0, 3.0]]]}, 400, "ragged"),
    "infinite state": (b'{"observation": 1, "state": [[1e300]]}', 400, "NaN or infinite"),
    "text as state": ({"observation": 1, "state": "a"}, 400, "must be a list of arrays"),
    "no state": ({"observation": 1, "is_first": False}, 400, "needs an episode_id or a state"),
    "reward": (
        {"observation": 1, "prev_reward": 1.0, "return_state": True},
        400,
        "prev_reward has no effect",
    ),
    "action": (
        {"observation": 1, "prev_action": 1.0, "return_state": True},
        400,
        "prev_action has no effect",
    ),
    "bad luck": ({"observation": 13, "return_state": True}, 400, "bad luck"),
    "crash": ({"observation": 14, "return_state": True}, 500, "The policy failed"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_body_is_refused_in_a_sentence(client: Client, case: str) -> None:
    document, status, message = BAD[case]
    error = client.post(document, status=status)
    assert message in error
    assert len(error) < 600
    client.close()  # a body that was not read ends the connection
    assert client.post({"observation": 1.0, "return_state": True})["action"][0] == 1.0


BAD_ARRAYS: dict[str, tuple[bytes, str]] = {
    "no arrays": (b"\xff" * 40, "not of the format"),
    "a header beyond the body": ((2**40).to_bytes(8, "little") + b"{}", "not of the format"),
    "other names": (save({"obs": np.zeros(2)}), "There is no array 'obs'"),
    "no rows": (save({"observations": np.zeros(0)}), "at least one observation"),
    "no axis": (save({"observations": np.zeros(())}), "same leading axis"),
    "options": (save({"observations": np.zeros(1)}, metadata={"options": "["}), "not JSON"),
    "observations as options": (
        save({"is_first": np.ones(1, bool)}, metadata={"options": '{"observations": [1]}'}),
        "are arrays of the body",
    ),
    "state's axis": (
        save({"observations": np.zeros(2), "state.0": np.zeros((3, 1))}),
        "one row per observation",
    ),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_bad_arrays_are_refused_in_a_sentence(client: Client, case: str) -> None:
    body, message = BAD_ARRAYS[case]
    status, _, answer = client.request(
        "POST", "/v1/actions", body, Content_Type="application/x-safetensors"
    )
    assert status == 400
    assert message in json.loads(answer)["error"]


def test_what_is_not_there_is_said(client: Client) -> None:
    status, _, body = client.request("POST", "/v1/actions", b"a", Content_Type="text/plain")
    assert (status, "send application/json" in json.loads(body)["error"]) == (415, True)
    assert client.request("GET", "/v1/action")[0] == 404
    assert client.request("GET", "/v1/actions")[0] == 405
    assert client.request("GET", "/v1/episodes/")[0] == 404


def test_a_body_is_as_large_as_the_spaces_need() -> None:
    backend = Counting(memory=0)
    parts: Any = [["image", {"shape": [100, 100]}], ["goal", {"shape": []}]]
    backend.spaces = {"observation_space": {"kind": "Dict", "spaces": parts}, "action_space": {}}
    limit = 2**16 + 8 * (10_001 * 32 + 1024)
    with serving(backend) as port:
        client = Client(port)
        assert "not JSON" in client.post(b"[" + b" " * (limit - 1), status=400)
        assert f"larger than {limit} bytes" in client.post(b" " * (limit + 1), status=413)
        client.close()


def test_chunked_bodies_are_limited_too(port: int) -> None:
    client = Client(port)
    chunks = (b" " * 500 for _ in range(10))
    client.connection.request(
        "POST", "/v1/actions", chunks, {"Content-Type": "application/json"}, encode_chunked=True
    )
    assert client.connection.getresponse().status == 413
    client.close()


def post_together(port: int, documents: list[Any], backend: Counting) -> list[tuple[int, Any]]:
    """Send requests that wait for one another: the first is held back until all have arrived."""

    def post(document: Any) -> tuple[int, Any]:
        client = Client(port)
        body = json.dumps(document).encode()
        status, _, answer = client.request(
            "POST", "/v1/actions", body, Content_Type="application/json"
        )
        client.close()
        return status, json.loads(answer)

    backend.may_act.clear()
    backend.entered.clear()
    with ThreadPoolExecutor(len(documents)) as pool:
        answers = [pool.submit(post, documents[0])]
        assert backend.entered.wait(20)
        answers += [pool.submit(post, document) for document in documents[1:]]
        time.sleep(0.2)  # until they wait
        backend.may_act.set()
        return [answer.result() for answer in answers]


def test_requests_that_wait_share_a_batch_and_fail_alone() -> None:
    backend = Counting(memory=0)
    with serving(backend, max_batch=4) as port:
        values = [0, 1, 2, 13, 4, 5, 6, 7]
        answers = post_together(port, [{"observation": v} for v in values], backend)
        assert [status for status, _ in answers] == [400 if v == 13 else 200 for v in values]
        for value, (status, answer) in zip(values, answers, strict=True):
            assert status == 400 or answer["action"][0] == value
        assert max(backend.batches) > 1
        assert sum(backend.batches) >= 7


def test_one_episode_has_one_request_at_a_time() -> None:
    backend = Counting()
    with serving(backend) as port:
        answers = post_together(port, [episode("a", 1.0, first=True)] * 2, backend)
        assert sorted(status for status, _ in answers) == [200, 409]
        client = Client(port)
        assert client.post(episode("a", 1.0))["action"][1] == 2
        client.close()


def test_rewards_beyond_float32_are_refused() -> None:
    backend = Counting(memory=0)
    backend.reads = ("prev_reward",)
    with serving(backend) as port:
        client = Client(port)
        for value, expected in ((1e39, 400), (10**400, 400), (-2.5, 200)):
            body = json.dumps({"observation": 1.0, "prev_reward": value}).encode()
            status, _, answer = client.request(
                "POST", "/v1/actions", body, Content_Type="application/json"
            )
            assert status == expected
            assert (b"finite number of float32" in answer) == (status == 400)
        client.close()


def test_an_overload_is_answered_at_once() -> None:
    backend = Counting(memory=0)
    with serving(backend, max_batch=2, max_waiting=2) as port:
        answers = post_together(port, [{"observation": 1.0}] * 8, backend)
        statuses = sorted(status for status, _ in answers)
        assert statuses == [200] * 3 + [429] * 5
        backend.may_act.clear()
        backend.entered.clear()
        first = Client(port)
        thread = threading.Thread(target=first.post, args=({"observation": 1.0},))
        thread.start()
        assert backend.entered.wait(20)
        others = [Client(port) for _ in range(3)]
        for other in others[:2]:
            other.connection.request(
                *("POST", "/v1/actions", b'{"observation": 1}'),
                {"Content-Type": "application/json"},
            )
        time.sleep(0.2)
        status, headers, _ = others[2].request(
            "POST", "/v1/actions", b'{"observation": 1}', Content_Type="application/json"
        )
        assert (status, headers["retry-after"]) == (429, "1")
        backend.may_act.set()
        assert [other.connection.getresponse().status for other in others[:2]] == [200, 200]
        thread.join()
        for client in (first, *others):
            client.close()


def test_more_requests_than_allowed_are_refused() -> None:
    backend = Counting(memory=0)
    with serving(backend, max_connections=4) as port, ThreadPoolExecutor(3) as pool:
        backend.may_act.clear()
        clients = [Client(port) for _ in range(6)]
        waiting = [pool.submit(client.post, {"observation": 1.0}) for client in clients[:3]]
        assert backend.entered.wait(20)
        time.sleep(0.2)  # until all have arrived
        statuses = [client.request("GET", "/healthz")[0] for client in clients[3:]]
        assert statuses == [503] * 3
        backend.may_act.set()
        assert [answer.result()["action"][0] for answer in waiting] == [1.0] * 3
        for client in clients:
            client.close()


def connect(port: int, data: bytes = b"") -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=10)
    sock.sendall(data)
    return sock


def read_all(sock: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionError):
        while block := sock.recv(2**16):
            data += block
    return data


HALF = b"POST /v1/actions HTTP/1.1\r\nHost: x\r\nContent-"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


def test_idle_connections_give_way() -> None:
    """Silent ones, halves of a header, and kept ones, many more of each than there is room for."""
    with serving(Counting(memory=0), max_connections=8) as port, contextlib.ExitStack() as stack:
        kept = Client(port)
        for data in (b"", HALF, HEALTH, HEALTH + HALF):
            for number in range(24):
                stack.enter_context(connect(port, data))
                if number % 4 == 0:
                    assert kept.post({"observation": 2.0})["action"][0] == 2.0
            fresh = Client(port)
            assert fresh.get("/healthz") == {"status": "ok"}
            fresh.close()
        kept.close()


def test_the_least_useful_connection_gives_way_first() -> None:
    with serving(Counting(memory=0), max_connections=5) as port, contextlib.ExitStack() as stack:
        kept, silent = Client(port), stack.enter_context(connect(port))
        assert kept.get("/healthz") == {"status": "ok"}
        half, later = (stack.enter_context(connect(port, data)) for data in (HALF, HEALTH))
        assert b"200 OK" in later.recv(2**16)
        for closed in (silent, half):
            other = stack.enter_context(connect(port, HEALTH))
            assert b"200 OK" in other.recv(2**16)
            assert read_all(closed) == b""
        sock = kept.connection.sock
        assert kept.get("/healthz") == {"status": "ok"}
        assert kept.connection.sock is sock
        kept.close()


@pytest.mark.parametrize(
    ("limits", "raised", "number"),
    [
        ((1024, 2**20), 2**16, 1024),
        ((1024, resource.RLIM_INFINITY), 2**16, 1024),
        ((2**20, 2**20), None, 1024),
        ((256, 512), 512, 512 - 64),
        ((512, 512), None, 512 - 64),
    ],
)
def test_the_limit_of_open_files_is_that_of_connections(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    limits: tuple[int, int],
    raised: int | None,
    number: int,
) -> None:
    changes: list[tuple[int, int]] = []
    monkeypatch.setattr("resource.getrlimit", lambda which: limits)
    monkeypatch.setattr("resource.setrlimit", lambda which, both: changes.append(both))
    server = PolicyServer(Counting(), ServeSettings(port=0))
    assert server._server.config.limit_concurrency == number
    assert changes == ([] if raised is None else [(raised, limits[1])])
    assert ("448 connections are kept open in place of 1024" in caplog.text) == (number < 1024)


@pytest.mark.parametrize("data", [b"", HALF, HEALTH + HALF, HEALTH[:1]])
def test_a_header_that_never_ends_is_not_waited_for(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxrl.serve.server.HEADER_S", 0.3)
    with serving(Counting(memory=0)) as port, connect(port, data) as sock:
        answer = read_all(sock)
        assert answer.startswith(b"HTTP/1.1 200 OK") if HEALTH in data else answer == b""


@contextlib.contextmanager
def answering(backend: Counting, port: int) -> Iterator[None]:
    """Hold a request while something happens; it must be answered all the same."""
    backend.may_act.clear()
    with ThreadPoolExecutor(1) as pool:
        client = Client(port)
        answer = pool.submit(client.post, {"observation": 1.0})
        assert backend.entered.wait(20)
        yield
        backend.may_act.set()
        assert answer.result()["action"][0] == 1.0
        client.close()


def test_a_request_that_is_being_answered_is_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxrl.serve.server.HEADER_S", 0.3)
    backend = Counting(memory=0)
    with (
        serving(backend, max_connections=3) as port,
        contextlib.ExitStack() as stack,
        answering(backend, port),
    ):
        for _ in range(6):
            stack.enter_context(connect(port))
        time.sleep(0.5)


def test_a_token_opens_everything_but_the_health(tmp_path: Path) -> None:
    with serving(token=TOKEN) as port:
        anyone, wrong, right = Client(port), Client(port, token="x" * 20), Client(port, token=TOKEN)
        assert anyone.get("/healthz") == {"status": "ok"}
        for client in (anyone, wrong):
            for method, path in (
                *(("GET", "/v1/spaces"), ("GET", "/metrics"), ("POST", "/v1/actions")),
                *(("GET", "/nothing"), ("DELETE", "/v1/episodes/a")),
            ):
                status, headers, body = client.request(method, path)
                assert (status, headers["www-authenticate"]) == (401, "Bearer")
                assert TOKEN not in body.decode()
        assert right.post({"observation": 2, "return_state": True})["action"][0] == 2
        assert TOKEN not in right.request("GET", "/metrics")[2].decode()
        for client in (anyone, wrong, right):
            client.close()


@pytest.fixture
def certificate(tmp_path: Path) -> dict[str, str]:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl makes the certificate")
    files = {name: str(tmp_path / f"{name}.pem") for name in ("certfile", "keyfile")}
    command = [program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command += ["-keyout", files["keyfile"], "-out", files["certfile"]]
    subprocess.run(command, check=True, capture_output=True)
    return files


def test_tls_is_spoken_and_checked(certificate: dict[str, str]) -> None:
    with serving(**certificate) as port:
        trusting = Client(port, tls=ssl.create_default_context(cafile=certificate["certfile"]))
        assert trusting.get("/healthz") == {"status": "ok"}
        trusting.close()
        stranger = Client(port, tls=ssl.create_default_context())
        with pytest.raises(ssl.SSLCertVerificationError):
            stranger.get("/healthz")
        stranger.close()


def test_files_that_are_no_certificate_are_one_sentence(
    certificate: dict[str, str], tmp_path: Path
) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_bytes(b"\x00junk")
    secret = tmp_path / "secret.pem"
    program = str(shutil.which("openssl"))
    command = [program, "rsa", "-aes256", "-passout", "pass:word", "-in", certificate["keyfile"]]
    subprocess.run([*command, "-out", str(secret)], check=True, capture_output=True)
    for changes, reason in (
        ({"certfile": str(junk)}, "PEM"),
        ({"keyfile": str(junk)}, "PEM"),
        ({"keyfile": certificate["certfile"]}, "PEM"),
        ({"keyfile": str(secret)}, "the key is protected by a password"),
    ):
        settings = ServeSettings(port=0, **{**certificate, **changes})
        with pytest.raises(ConfigError, match=rf"cannot be used for TLS \(.*{reason}.*\): give a"):
            PolicyServer(Counting(), settings)


def test_metrics_count_what_happens() -> None:
    with serving(Counting()) as port:
        client = Client(port)
        client.post({"observations": [1, 2, 3], "return_state": True})
        client.post(episode("a", 1.0, first=True))
        client.post({"observations": []}, status=400)
        status, headers, body = client.request("GET", "/metrics")
        assert (status, headers["content-type"].split(";")[0]) == (200, "text/plain")
        text = body.decode()
        client.close()
    for line in (
        'jaxrl_serve_requests_total{path="/v1/actions",status="200"} 2.0',
        'jaxrl_serve_requests_total{path="/v1/actions",status="400"} 1.0',
        "jaxrl_serve_actions_total 4.0",
        "jaxrl_serve_batch_rows_sum 4.0",
        "jaxrl_serve_sessions 1.0",
        "jaxrl_serve_waiting_rows 0.0",
        'jaxrl_serve_policy_info{version="first"} 1.0',
    ):
        assert f"{line}\n" in text


# --- reloads ---


def test_a_reload_changes_the_policy_between_batches() -> None:
    newest = [Counting("second", offset=100.0)]
    server = PolicyServer(
        Counting(), ServeSettings(port=0, max_batch=4), load=lambda replaced: newest[0]
    )
    problems: list[Any] = []
    versions: set[str] = set()
    is_over = threading.Event()

    def play(number: int) -> None:
        client = Client(port)
        name, step = f"episode {number}", 0
        while not is_over.is_set():
            answer = client.post(episode(name, 1.0, first=step == 0))
            step += 1
            offset = {"first": 0, "second": 100, "third": 200}[answer["policy_version"]]
            versions.add(answer["policy_version"])
            if answer["action"][:2] != [1.0 + offset, step]:
                problems.append(answer)
        client.close()

    with running(server) as port:
        with ThreadPoolExecutor(4) as pool:
            games = [pool.submit(play, number) for number in range(4)]
            time.sleep(0.1)
            assert server.reload()
            time.sleep(0.1)
            newest[0] = Counting("third", offset=200.0)
            assert server.reload()
            time.sleep(0.1)
            is_over.set()
            for game in games:
                game.result()
        client = Client(port)
        text = client.request("GET", "/metrics")[2].decode()
        client.close()
    assert not problems
    assert versions == {"first", "second", "third"}
    assert 'jaxrl_serve_reloads_total{outcome="success"} 2.0' in text


def test_a_policy_with_another_memory_begins_all_episodes_again() -> None:
    server = PolicyServer(
        Counting(), ServeSettings(port=0), load=lambda replaced: Counting("second", memory=2)
    )
    with running(server) as port:
        client = Client(port)
        client.post(episode("a", 1.0, first=True))
        state = client.post({"observation": 1.0, "return_state": True})["state"]
        assert server.reload()
        client.post(episode("a", 1.0), status=404)
        client.post({"observation": 1.0, "state": state}, status=400)
        assert client.post(episode("a", 1.0, first=True))["action"][1] == 1
        client.close()


@pytest.mark.parametrize("error", [CheckpointError("damaged"), ZeroDivisionError("crash")])
def test_a_policy_that_cannot_be_loaded_changes_nothing(error: Exception) -> None:
    def load(replaced: object) -> Any:
        raise error

    server = PolicyServer(Counting(), ServeSettings(port=0), load=load)
    with running(server) as port:
        client = Client(port)
        assert not server.reload()
        answer = client.post({"observation": 1.0, "return_state": True})
        assert answer["policy_version"] == "first"
        text = client.request("GET", "/metrics")[2].decode()
        assert 'jaxrl_serve_reloads_total{outcome="failure"} 1.0' in text
        client.close()


def test_newer_checkpoints_are_followed_and_failures_not_repeated() -> None:
    newest, loaded = ["first"], list[str]()

    def load_newest(replaced: object) -> Any:
        loaded.append(newest[0])
        if newest[0] == "damaged":
            raise CheckpointError("damaged")
        return Counting(newest[0])

    def wait_for(condition: Any) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.005)

    server = PolicyServer(
        Counting(),
        ServeSettings(port=0),
        load=load_newest,
        get_newest=lambda: newest[0],
        follow_interval_s=0.01,
    )
    with running(server):
        newest[0] = "second"
        wait_for(lambda: server.app.backend.version == "second")
        newest[0] = "damaged"
        wait_for(lambda: "damaged" in loaded)
        time.sleep(0.1)
        newest[0] = "third"
        wait_for(lambda: server.app.backend.version == "third")
    assert loaded == ["second", "damaged", "third"]


def test_a_stopping_server_answers_what_has_arrived() -> None:
    backend = Counting(memory=0)
    server = PolicyServer(backend, ServeSettings(port=0))
    with running(server) as port, answering(backend, port):
        server.stop()
        time.sleep(0.2)
