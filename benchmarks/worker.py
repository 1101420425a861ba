"""The benchmark's end of the protocol: a peer as a child process."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks import memory

ROOT = Path(__file__).resolve().parents[1]


class PeerError(RuntimeError):
    """A peer answered with an error, died or did not answer in time."""


class Worker:
    """A peer's process, alive until `close`. Its stderr is kept for error messages.

    Args:
        name: For messages.
        command: What to run.
        env: Variables beside those of this process.
        timeout_s: Of one answer.
        stop_when_idle: Between two commands the process and all that it started are stopped, so
            that they take no time from others: an idle Ray takes several percent of a core. On
            Linux only.
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
        self._stop_when_idle = stop_when_idle and memory.PROC.exists()
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
        """Send a command and wait for its answer.

        Raises:
            PeerError: it failed, died, or took longer than the time limit.
        """
        self._signal(signal.SIGCONT)
        reply = self._ask(command, arguments)
        self._signal(signal.SIGSTOP)
        if "error" in reply:
            raise self._error(f"failed in {command}: {reply['error']}")
        return reply["ok"]

    def _ask(self, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            print(json.dumps({"command": command, **arguments}), file=stdin, flush=True)
        except BrokenPipeError:
            raise self._error(f"is no longer running when asked to {command}") from None
        if not select.select([stdout], [], [], self._timeout_s)[0]:
            self._process.kill()
            raise self._error(f"did not answer {command} within {self._timeout_s:g} s")
        line = stdout.readline()
        if not line:
            raise self._error(f"ended during {command}, exit code {self._process.wait()}")
        return json.loads(line)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and all that it started, if it is to be stopped at all."""
        if not self._stop_when_idle or self._process.poll() is not None:
            return
        for pid in (self._process.pid, *memory.descendants(self._process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def close(self) -> None:
        """End the process; harmless when it has ended already."""
        self._signal(signal.SIGCONT)
        if self._process.poll() is None:
            try:
                self._process.communicate('{"command": "quit"}\n', timeout=30)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # what a dead peer never read
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

    def _error(self, what: str) -> PeerError:
        self._stderr.seek(0)
        tail = "".join(self._stderr.readlines()[-12:]).strip()
        return PeerError(f"the peer {self.name} {what}" + (f"\n{tail}" if tail else ""))
