"""What a figure was measured on."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.settings import available_cores
from benchmarks.worker import ROOT

RESULTS = ROOT / "benchmarks" / "results"
"""A folder for each kind of machine."""


def describe() -> dict[str, Any]:
    """The machine and what may change its speed; no names of hosts, users or folders."""
    settings = ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "JAX_PLATFORMS", "OMP_NUM_THREADS")
    return {
        "cpu": _cpu_model(),
        "cores": available_cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "environment": {name: os.environ[name] for name in settings if name in os.environ},
    }


def folder_name(machine: Mapping[str, Any]) -> str:
    """A folder's name for the results of machines of one kind, `amd-epyc-2-cores`."""
    words = re.sub(r"\((r|tm)\)|processor|cpu", " ", f"{machine['cpu']}".lower())
    return "-".join([*re.findall(r"[a-z0-9]+", words), f"{machine['cores']}-cores"])


def results_folder(*, whole: bool) -> Path:
    """Where results go: beside those of machines of the same kind, unless they are not the whole."""
    return RESULTS / folder_name(describe()) if whole else ROOT / ".benchmarks"


def load_average() -> float:
    """Jobs that ran or waited, mean of the last minute."""
    return round(os.getloadavg()[0], 2)


def _cpu_model() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"
