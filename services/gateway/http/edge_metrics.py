"""Metrics of what comes before a request's body, under `ryz_gateway_...`."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from shared.web.gate import Gate


class EdgeCollector(Collector):
    """Exports what a gate counts as `ryz_gateway_...`."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Called at each scrape."""
        gate, stats = self._gate, self._gate.stats
        yield GaugeMetricFamily("ryz_gateway_connections", "Open HTTP connections.", value=gate.open)
        yield GaugeMetricFamily(
            "ryz_gateway_connections_limit",
            "Open HTTP connections that are allowed.",
            value=gate.limits.max_connections,
        )
        yield GaugeMetricFamily(
            "ryz_gateway_partial_header_bytes", "Headers that have come in part.", value=gate.partial_bytes
        )
        for name, text, counts in (
            ("refused_connections", "Connections that were not admitted.", stats.refused_connections),
            (
                "closed_connections",
                "Connections that lost their place or their time.",
                stats.closed_connections,
            ),
            ("refused_http_requests", "Requests refused before their body.", stats.refused_requests),
        ):
            family = CounterMetricFamily(f"ryz_gateway_{name}", text, labels=["reason"])
            for reason, count in sorted(counts.items()):
                family.add_metric([reason], count)
            yield family
