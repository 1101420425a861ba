"""Peers that start no process."""

from collections.abc import Mapping
from typing import Any

import pytest

from benchmarks.peers import launch
from benchmarks.settings import LIMITS, ReplaySetting, Setting


class FakeWorker:
    """Answer like a peer of a known rate, and note the commands.

    The peer of limits says that a step has 1,000 operations, and that products make 2 GFLOP/s and
    environments 120,000 steps/s.
    """

    def __init__(self, name: str, rate: float, log: list[tuple[str, str]]) -> None:
        self.name, self.rate, self.log = name, rate, log
        self.probes: list[str] = []
        self.env_steps, self.staleness = 60_000, 0

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        self.log.append((self.name, command))
        setting = arguments.get("setting", {})
        if command == "info":
            return {"versions": {"fake": "1"}, "devices": 1}
        if command == "setup" and self.name == LIMITS:
            work = setting["work"]
            named = [item[kind] for item in work.values() for kind in ("arithmetic", "stepping")]
            self.probes = [name for name in dict.fromkeys([*named, "triad"]) if name]
            flops = {name: 1000.0 if item["arithmetic"] else None for name, item in work.items()}
            return {"work": work, "flops_per_step": flops, "compile_s": 1.0}
        if command == "run" and self.name == LIMITS:
            rate = {"stepping": 120_000.0, "matmul": 2e9, "triad": 5e9}
            return {"rates": {name: rate[name.split()[0]] for name in self.probes}}
        if command == "setup" and "steps_per_update" in setting:
            self.env_steps = ReplaySetting.from_dict(setting).env_steps
        if command == "setup" and "num_minibatches" in setting and "task" not in setting:
            self.env_steps = Setting.from_dict(setting).env_steps
        if command in ("run", "bare"):
            seconds = self.env_steps / self.rate / (1.0 if command == "run" else 1.02)
            return {"seconds": seconds, "env_steps": self.env_steps}
        if command == "flow":
            self.staleness += 1
            names = ("learner_wait_fraction", "env_runners_wait_fraction", "staleness_mean")
            waits = {**dict.fromkeys(names, 0.25), "num_env_steps_discarded": 0}
            steps = {"seconds": self.env_steps / self.rate, "env_steps": self.env_steps}
            return {**steps, **waits, "staleness_max": self.staleness}
        return {"compile_s": 2.5, "program_s": 2.0, "return_mean": 100.0}

    def __enter__(self) -> "FakeWorker":
        return self

    def __exit__(self, *_: object) -> None:
        self.log.append((self.name, "end"))


def start_fakes(
    monkeypatch: pytest.MonkeyPatch, rates: Mapping[str, float]
) -> list[tuple[str, str]]:
    """Let fakes be started in place of peers, and return the commands that they will get."""
    log: list[tuple[str, str]] = []

    def start(name: str, env: dict[str, str], *, stop_when_idle: bool = False) -> FakeWorker:
        assert env["JAX_COMPILATION_CACHE_DIR"]
        return FakeWorker(name, rates.get(name, 1.0), log)

    monkeypatch.setattr(launch, "start", start)
    return log
