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
from typing import Any

Handler = Callable[[dict[str, Any]], dict[str, Any]]

COMMANDS = ("info", "setup", "run", "evaluate")
"""Commands of every peer that is compared."""


def serve_peer(peer: object, *others: str) -> None:
    """Serve the commands of every peer, and the given others, by the methods of these names."""
    serve({name: getattr(peer, name) for name in (*COMMANDS, *others)})


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


def _make_reply(
    handlers: Mapping[str, Handler], command: str, request: dict[str, Any]
) -> dict[str, Any]:
    if command not in handlers:
        return {"error": f"unknown command {command!r}; known commands are {sorted(handlers)}"}
    try:
        return {"ok": handlers[command](request)}
    except Exception as error:  # noqa: BLE001  (process boundary: the benchmark raises it)
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
