"""What was measured on a machine before, in a file beside the compiled programs."""

import contextlib
import json
import os
import platform
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from jaxrl.runtime.devices import usable_cores

MAX_ENTRIES = 200
"""Of a file; the oldest go first."""


def machine() -> dict[str, Any]:
    """What a measurement depends on beside the program: processor, devices, JAX's version."""
    devices = jax.local_devices()
    return {
        "cpu": cpu_model(),
        "device": devices[0].device_kind,
        "devices": len(devices),
        "cores": usable_cores(),
        "jax": jax.__version__,
    }


def read_entries(store: Path | None) -> dict[str, Any]:
    """What the file has; nothing where there is no file, or none that can be read."""
    if store is None:
        return {}
    try:
        found = json.loads(store.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def keep_entries(store: Path | None, entries: Mapping[str, Any]) -> None:
    """Add entries; where that cannot be written the next process measures again."""
    if store is None:
        return
    newest = dict(list({**read_entries(store), **entries}.items())[-MAX_ENTRIES:])
    with contextlib.suppress(OSError):
        store.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, written = tempfile.mkstemp(dir=store.parent, prefix=f".{store.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(newest, file, indent=1)
        os.replace(written, store)


def cpu_model() -> str:
    """The processor, as a home folder may be shared by machines of several kinds."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        return named[0] if named else platform.processor()
    return platform.processor()  # no Linux
