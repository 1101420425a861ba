"""A peer that measures nothing, for the tests of the protocol."""

import os
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


if __name__ == "__main__":
    serve({"echo": echo, "noisy": noisy, "fail": fail, "die": die, "hang": hang})
