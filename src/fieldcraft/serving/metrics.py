"""Metrics reported by /metrics, in the Prometheus format."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

LATENCY_BUCKETS_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100, 300)  # seconds


class ServiceMetrics:
    """Counters of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "fieldcraft_agent_requests",
            "Finished requests, by interface and outcome",
            ["interface", "outcome"],
            registry=self.registry,
        )
        self.rejected = Counter(
            "fieldcraft_agent_refused",
            "Rejected requests, by response status",
            ["status"],
            registry=self.registry,
        )
        self.tokens = Counter(
            "fieldcraft_agent_tokens",
            "Tokens of rollouts, by author",
            ["author"],
            registry=self.registry,
        )
        self.tool_calls = Counter(
            "fieldcraft_agent_tool_calls",
            "Tool calls, by outcome",
            ["outcome"],
            registry=self.registry,
        )
        self.unrecorded = Counter(
            "fieldcraft_agent_unrecorded",
            "Requests that could not be logged, for example because the disk is full",
            registry=self.registry,
        )
        self.request_seconds = Histogram(
            "fieldcraft_agent_seconds",
            "Time from the arrival of a request to its end",
            buckets=LATENCY_BUCKETS_SECONDS,
            registry=self.registry,
        )

    def add_gauge(self, name: str, description: str, read_value: Callable[[], int]) -> None:
        """Add a gauge whose value is read whenever metrics are requested."""
        Gauge(name, description, registry=self.registry).set_function(read_value)

    def render(self) -> bytes:
        return generate_latest(self.registry)
