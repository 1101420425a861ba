"""A peer that measures nothing, for the tests of the protocol."""

import os
import subprocess
import sys
import time
from typing import Any

from benchmarks.peers.protocol import serve


def echo(request: dict[str, Any]) -> dict[str, Any]:
    return {"got": request}


def noisy(request: dict[str, Any]) -> dict[str, Any]:
    print("a library prints")
    os.write(1, b"so does the C below it\n")
    return {"quiet": True}


def fail(request: dict[str, Any]) -> dict[str, Any]:
    raise ValueError("the setting is too large")


def die(request: dict[str, Any]) -> dict[str, Any]:
    print("out of memory", file=sys.stderr, flush=True)
    os._exit(3)


def hang(request: dict[str, Any]) -> dict[str, Any]:
    time.sleep(60)
    return {}


CHILDREN: list[subprocess.Popen[bytes]] = []


def start_child(request: dict[str, Any]) -> dict[str, Any]:
    """A process that ends with this one's."""
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    CHILDREN.append(subprocess.Popen(command, stdin=subprocess.PIPE))
    return {"child": CHILDREN[-1].pid}


if __name__ == "__main__":
    serve(
        {
            "echo": echo,
            "noisy": noisy,
            "fail": fail,
            "die": die,
            "hang": hang,
            "start_child": start_child,
        }
    )
