"""How the benchmark talks to a peer: one JSON object a line, over stdin and stdout.

A peer stays alive between measurements, so that it compiles once and its measurements can be
interleaved with those of the others. Standard library only: every peer's environment imports it.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

Handler = Callable[[dict[str, Any]], dict[str, Any]]


def serve(handlers: Mapping[str, Handler]) -> None:
    """Answer `{"command": name, ...}` lines until `quit` or the end of the input.

    The answer is `{"ok": {...}}` or `{"error": "..."}`. Whatever else prints to stdout, from
    Python or below it, goes to stderr, so that it cannot be taken for an answer.
    """
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as replies:
        os.dup2(2, 1)
        for line in sys.stdin:
            request = json.loads(line)
            command = request.pop("command")
            if command == "quit":
                return
            print(json.dumps(_answer(handlers, command, request)), file=replies, flush=True)


def _answer(
    handlers: Mapping[str, Handler], command: str, request: dict[str, Any]
) -> dict[str, Any]:
    if command not in handlers:
        return {"error": f"unknown command {command!r}; known are {sorted(handlers)}"}
    try:
        return {"ok": handlers[command](request)}
    except Exception as error:  # noqa: BLE001  (the process boundary: the other side raises it)
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
