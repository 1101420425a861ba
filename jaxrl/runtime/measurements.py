"""Measurements of this machine, stored in a file next to the compiled programs."""

import contextlib
import json
import os
import platform
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from jaxrl.runtime.cores import count_usable_cores

MAX_ENTRIES = 200
"""Maximum number of entries per file; the oldest are removed first."""


def describe_machine() -> dict[str, Any]:
    """Return the machine's part of a measurement's key: processor, devices, JAX's version."""
    devices = jax.local_devices()
    return {
        "cpu": get_cpu_model(),
        "device": devices[0].device_kind,
        "devices": len(devices),
        "cores": count_usable_cores(),
        "jax": jax.__version__,
    }


def read_entries(store: Path | None) -> dict[str, Any]:
    """Read the entries of the file; empty if it is missing or unreadable."""
    if store is None:
        return {}
    try:
        found = json.loads(store.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def add_entries(store: Path | None, entries: Mapping[str, Any]) -> None:
    """Add entries to the file; if it cannot be written, the next process measures again."""
    if store is None:
        return
    newest = dict(list({**read_entries(store), **entries}.items())[-MAX_ENTRIES:])
    with contextlib.suppress(OSError):
        store.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, written = tempfile.mkstemp(dir=store.parent, prefix=f".{store.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(newest, file, indent=1)
        os.replace(written, store)


def get_cpu_model() -> str:
    """Return the processor's model, since machines of several kinds may share a home folder."""
    named: list[str] = []
    with contextlib.suppress(OSError):  # not Linux
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or "unknown"
