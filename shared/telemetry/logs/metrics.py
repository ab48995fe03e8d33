"""Exports how many log lines a process wrote and left out."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from shared.telemetry.logs.limits import LogLimiter


class LogCollector(Collector):
    """Exports `ryz_log_lines_total{level}` and `ryz_log_suppressed_total{level}`."""

    def __init__(self, limiter: LogLimiter) -> None:
        self._limiter = limiter

    def register(self, registry: CollectorRegistry) -> None:
        """Adds it to a registry."""
        registry.register(self)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """See `prometheus_client`."""
        lines = CounterMetricFamily("ryz_log_lines", "Log lines written.", labels=["level"])
        for level, count in self._limiter.written.items():
            lines.add_metric([level], count)
        yield lines
        text = "Log lines left out, because too many of one kind came within ten seconds."
        left_out = CounterMetricFamily("ryz_log_suppressed", text, labels=["level"])
        for level, count in self._limiter.left_out.items():
            left_out.add_metric([level], count)
        yield left_out
