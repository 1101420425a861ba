"""Protocol between the benchmark and a peer: one JSON object per line, over stdin and stdout.

A peer runs until the end of the benchmark, so that it compiles once and its measurements can be
interleaved with those of other peers. Uses the standard library alone, because peers in their own
virtual environments import it too.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

Request = dict[str, Any]
Handler = Callable[[Request], dict[str, Any]]


class Peer:
    """Peer that is compared: it sets up and then measures, continuing from run to run."""

    packages: tuple[str, ...] = ()
    """Packages whose versions are recorded."""

    def info(self, request: Request) -> dict[str, Any]:
        """Return versions and the number of devices."""
        versions = {name: version(name) for name in self.packages}
        return {"versions": versions, "devices": self.count_devices()}

    def count_devices(self) -> int:
        """Return the number of devices, or of threads."""
        return 1

    def setup(self, request: Request) -> dict[str, Any]:
        """Prepare for a setting, and return `compile_s`; None if nothing is compiled."""
        raise NotImplementedError

    def run(self, request: Request) -> dict[str, Any]:
        """Run one measurement, and return `seconds` and, if there are any, `env_steps`."""
        raise NotImplementedError

    def evaluate(self, request: Request) -> dict[str, Any]:
        """Return the mean return of recent episodes; None if nothing learns."""
        return {"return_mean": None}

    def close(self) -> None:
        """Release all that was set up."""


def serve_peer(peer: Peer, *others: str) -> None:
    """Serve the commands of every peer, and the given others, by the methods of these names."""
    try:
        serve({name: getattr(peer, name) for name in ("info", "setup", "run", "evaluate", *others)})
    finally:
        peer.close()


def serve(handlers: Mapping[str, Handler]) -> None:
    """Reply to `{"command": name, ...}` lines until `quit` or the end of the input.

    A reply is `{"ok": {...}}` or `{"error": "..."}`. Any other output to stdout, from Python or
    native code, is redirected to stderr, so that it cannot be mistaken for a reply.
    """
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as replies:
        os.dup2(2, 1)
        for line in sys.stdin:
            request = json.loads(line)
            command = request.pop("command")
            if command == "quit":
                return
            print(json.dumps(_make_reply(handlers, command, request)), file=replies, flush=True)


def _make_reply(handlers: Mapping[str, Handler], command: str, request: Request) -> dict[str, Any]:
    if command not in handlers:
        return {"error": f"unknown command {command!r}; known commands are {sorted(handlers)}"}
    try:
        return {"ok": handlers[command](request)}
    except Exception as error:  # noqa: BLE001  (process boundary: the benchmark raises it)
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
