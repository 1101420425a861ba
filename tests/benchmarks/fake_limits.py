"""The peer of the machine's limits, for tests that start none."""

from typing import Any


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
