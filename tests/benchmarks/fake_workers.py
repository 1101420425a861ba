"""Peers for tests that start none."""

from collections.abc import Mapping
from typing import Any

import pytest

from benchmarks.peers import launch


class FakeLimits:
    """Answers like it: a step has 1,000 operations, products 2 GFLOP/s, environments 120,000 steps/s."""

    def __init__(self) -> None:
        self.probes: list[str] = []

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        if command == "setup":
            work = arguments["setting"]["work"]
            named = [item[kind] for item in work.values() for kind in ("arithmetic", "stepping")]
            self.probes = [name for name in dict.fromkeys([*named, "triad"]) if name]
            flops = {name: 1000.0 if item["arithmetic"] else None for name, item in work.items()}
            return {"work": work, "flops_per_step": flops, "compile_s": 1.0}
        if command == "run":
            rate = {"stepping": 120_000.0, "matmul": 2e9, "triad": 5e9}
            return {"rates": {name: rate[name.split()[0]] for name in self.probes}}
        assert command == "info", command
        return {"versions": {"fake": "1"}, "devices": 2}


class FakeWorker:
    """Answers like a peer of a known rate, and notes what it was asked."""

    def __init__(self, name: str, rate: float, log: list[tuple[str, str]]) -> None:
        self.name, self.rate, self.log = name, rate, log
        self.limits, self.env_steps = FakeLimits(), 60_000

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        self.log.append((self.name, command))
        if self.name == launch.LIMITS:
            return self.limits.ask(command, **arguments)
        if command in ("run", "flow"):
            return {"seconds": self.env_steps / self.rate, "env_steps": self.env_steps}
        return {"compile_s": 2.5, "return_mean": 100.0, "versions": {"fake": "1"}, "devices": 1}

    def __enter__(self) -> "FakeWorker":
        return self

    def __exit__(self, *_: object) -> None:
        self.log.append((self.name, "end"))


def start_fakes(
    monkeypatch: pytest.MonkeyPatch,
    rates: Mapping[str, float],
    kind: type[FakeWorker] = FakeWorker,
) -> list[tuple[str, str]]:
    """Lets fakes be started in place of peers, and returns what they are asked for."""
    log: list[tuple[str, str]] = []

    def start(name: str, env: dict[str, str], *, stop_when_idle: bool = False) -> FakeWorker:
        assert env["JAX_COMPILATION_CACHE_DIR"]
        assert stop_when_idle
        return kind(name, rates.get(name, 1.0), log)

    monkeypatch.setattr(launch, "start", start)
    return log
