"""Benchmark side of the protocol: a peer as a child process."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from benchmarks.machine import PROC, ROOT, list_descendants
from jaxrl.bench.peers import PeerError


class Worker:
    """Process of a peer, which runs until `close`. Its stderr is kept for error messages.

    Args:
        name: Name of the peer, for messages.
        command: Command line of the process.
        env: Environment variables in addition to those of this process.
        timeout_s: Maximum seconds until a reply.
        stop_when_idle: Whether to stop the process and its descendants between commands, so that
            they do not slow down other peers: an idle Ray uses several percent of a core. Linux
            only.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 900.0,
        stop_when_idle: bool = False,
    ) -> None:
        self.name = name
        self._timeout_s = timeout_s
        self._stop_when_idle = stop_when_idle and PROC.exists()
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed in close)
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            cwd=ROOT,
            env={**os.environ, **(env or {})},
        )

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a command and return the reply.

        Raises:
            PeerError: If the command failed, the peer crashed, or the reply took too long.
        """
        self._signal(signal.SIGCONT)
        reply = self._exchange(command, arguments)
        self._signal(signal.SIGSTOP)
        if "error" in reply:
            raise self._make_error(f"failed in {command}: {reply['error']}")
        return reply["ok"]

    def _exchange(self, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            print(json.dumps({"command": command, **arguments}), file=stdin, flush=True)
        except BrokenPipeError:
            raise self._make_error(f"was no longer running before {command}") from None
        if not select.select([stdout], [], [], self._timeout_s)[0]:
            self._process.kill()
            raise self._make_error(f"did not answer {command} within {self._timeout_s:g} s")
        line = stdout.readline()
        if not line:
            raise self._make_error(f"ended during {command}, exit code {self._process.wait()}")
        return json.loads(line)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and its descendants if idle peers are stopped."""
        if not self._stop_when_idle or self._process.poll() is not None:
            return
        for pid in (self._process.pid, *list_descendants(self._process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def close(self) -> None:
        """End the process if it has not ended."""
        self._signal(signal.SIGCONT)
        if self._process.poll() is None:
            try:
                self._process.communicate('{"command": "quit"}\n', timeout=30)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # input that a dead peer did not read
                    stream.close()
        self._stderr.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _make_error(self, problem: str) -> PeerError:
        self._stderr.seek(0)
        return PeerError(f"the peer {self.name} {problem}", self._stderr.read())
