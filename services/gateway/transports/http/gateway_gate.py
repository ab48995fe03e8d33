"""The gate of the gateway's HTTP server: limits of connections and headers, and their metrics."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from services.gateway.admission.quota import Quota
from services.gateway.admission.request_headers import CALL_HEADERS, PROGRESS, STREAM_GRACE
from services.gateway.settings import GatewaySettings
from shared.web.faults import MALFORMED, SINGLE_HEADERS
from shared.web.gate import Gate
from shared.web.open_files import raise_limit

# our own headers that a request may have once
_OWN_HEADERS = CALL_HEADERS | {b"last-event-id", b"traceparent", b"x-api-key", STREAM_GRACE, PROGRESS}


def gateway_gate(settings: GatewaySettings, registry: CollectorRegistry) -> Gate:
    """Makes the gate, and raises the limit of open files as far as its connections need."""
    fitting = raise_limit(settings.max_connections)
    connections = settings.model_copy(update={"max_connections": fitting})
    gate = Gate(connections, settings.constants.http, SINGLE_HEADERS | _OWN_HEADERS)
    registry.register(GateCollector(gate))
    return gate


class GateCollector(Collector):
    """Exports the counts of a gate as `ryz_gateway_...`."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Called at each scrape."""
        gate, stats = self._gate, self._gate.stats
        yield GaugeMetricFamily("ryz_gateway_connections", "Open HTTP connections.", value=gate.open)
        yield GaugeMetricFamily(
            "ryz_gateway_connections_limit",
            "Open HTTP connections that are allowed.",
            value=gate.connections.max_connections,
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
            (
                "refused_http_requests",
                "Requests refused before their body.",
                {MALFORMED.code: 0, **stats.refused_requests},
            ),
        ):
            family = CounterMetricFamily(f"ryz_gateway_{name}", text, labels=["reason"])
            for reason, count in sorted(counts.items()):
                family.add_metric([reason], count)
            yield family


class QuotaCollector(Collector):
    """Exports how much of what requests share is taken, as `ryz_gateway_<name>` and `..._limit`.

    Args:
        quotas: By name, with what a unit is.
    """

    def __init__(self, quotas: Mapping[str, tuple[Quota, str]]) -> None:
        self._quotas = quotas

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """See `prometheus_client`."""
        for name, (quota, text) in self._quotas.items():
            yield GaugeMetricFamily(f"ryz_gateway_{name}", f"{text}, now.", value=quota.taken)
            yield GaugeMetricFamily(f"ryz_gateway_{name}_limit", f"{text}, at most.", value=quota.limit)
