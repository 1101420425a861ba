"""A server in this process, and a client of it."""

import contextlib
import http.client
import json
import ssl
import threading
import time
from collections.abc import Iterator
from typing import Any

from jaxrl.serve.server import PolicyServer


class Client:
    """One kept connection."""

    def __init__(self, port: int, *, token: str | None = None, tls: ssl.SSLContext | None = None):
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        if tls is None:
            self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        else:
            self.connection = http.client.HTTPSConnection(
                "localhost", port, timeout=30, context=tls
            )

    def request(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request(method, path, body, {**self.headers, **named})
        response = self.connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return response.status, found, response.read()

    def get(self, path: str) -> Any:
        status, _, body = self.request("GET", path)
        assert status == 200, body
        return json.loads(body)

    def post(self, document: Any, status: int = 200) -> Any:
        """Send JSON to /v1/actions and return the answer, or the error of another status."""
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        found, _, answer = self.request(
            "POST", "/v1/actions", body, Content_Type="application/json"
        )
        assert found == status, answer
        return json.loads(answer) if status == 200 else json.loads(answer)["error"]

    def close(self) -> None:
        self.connection.close()


@contextlib.contextmanager
def running(server: PolicyServer) -> Iterator[int]:
    """Run a server in a thread and yield its port."""
    bound = server.bind()
    port = bound.getsockname()[1]
    thread = threading.Thread(target=server.run, args=(bound,))
    thread.start()
    try:
        deadline = time.monotonic() + 30
        while not server.is_running:
            assert thread.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield port
    finally:
        server.stop()
        thread.join(30)
        assert not thread.is_alive()
