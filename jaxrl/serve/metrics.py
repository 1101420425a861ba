"""Metrics of a server, in the format of Prometheus."""

import functools

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    generate_latest,
)

METRICS_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_ROWS = tuple(float(2**i) for i in range(13))


class Metrics:
    """Counters of one server, apart from those of others in the process."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "jaxrl_serve_requests", "Requests by path and status.", ["path", "status"],
            registry=registry,
        )  # fmt: skip
        self.actions = Counter("jaxrl_serve_actions", "Actions computed.", registry=registry)
        self.latency = Histogram(
            "jaxrl_serve_request_seconds", "Time from a body's arrival to the answer.",
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self.batch_rows = Histogram(
            "jaxrl_serve_batch_rows", "Rows of a batch.", buckets=_ROWS, registry=registry
        )
        self.waiting = Gauge(
            "jaxrl_serve_waiting_rows", "Rows that wait for a batch.", registry=registry
        )
        self.sessions = Gauge(
            "jaxrl_serve_sessions", "Episodes whose memory is kept.", registry=registry
        )
        self.reloads = Counter(
            "jaxrl_serve_reloads", "Reloads of the policy by outcome.", ["outcome"],
            registry=registry,
        )  # fmt: skip
        self.policy = Info("jaxrl_serve_policy", "Policy that is served.", registry=registry)
        self._count = functools.cache(self._requests.labels)

    def count_request(self, path: str, status: int) -> None:
        """Count a request."""
        self._count(path, str(status)).inc()

    def format(self) -> bytes:
        """Return all metrics as text."""
        return generate_latest(self._registry)
