"""What is counted, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Metrics:
    def __init__(self) -> None:
        disable_created_metrics()
        own = self._registry = CollectorRegistry()
        ProcessCollector(registry=own)
        self._requests = Counter("tacit_requests", "answered requests", ("route", "status"), registry=own)
        self._seconds = Histogram("tacit_request_seconds", "from request to answer", ("route",), buckets=SECONDS, registry=own)
        self._turns = Counter("tacit_turns", "actions taken", ("module", "by"), registry=own)
        self._tokens = Counter("tacit_tokens", "tokens of the model", ("module", "kind"), registry=own)
        self._begun = Counter("tacit_sessions_begun", "sessions begun", ("module",), registry=own)
        self._ended = Counter("tacit_sessions_ended", "sessions over", ("module", "outcome"), registry=own)
        self._rows = Histogram("tacit_batch_rows", "requests under way whenever the model goes on", buckets=ROWS, registry=own)

    def read_off(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        """A number that is somebody else's to keep."""
        Gauge(f"tacit_{name}", meaning, registry=self._registry).set_function(value)

    def request(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def turn(self, module: str, by: str, read: int, wrote: int) -> None:
        self._turns.labels(module, by).inc()
        self.tokens(module, read, wrote)

    def tokens(self, module: str, read: int, wrote: int) -> None:
        self._tokens.labels(module, "read").inc(read)
        self._tokens.labels(module, "written").inc(wrote)

    def begun(self, module: str) -> None:
        self._begun.labels(module).inc()

    def ended(self, module: str, outcome: str) -> None:
        self._ended.labels(module, outcome).inc()

    def batch(self, rows: int) -> None:
        self._rows.observe(rows)

    def text(self) -> bytes:
        return generate_latest(self._registry)
