"""Metrics of several services: of bus connections, and of requests to the fleet."""

from collections.abc import Iterator
from dataclasses import fields

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.bus.delivery import BusStats
from shared.client.generation.commands import GenerationStats
from shared.telemetry.service_levels import ServiceLevels

PAUSE_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class BusCollector(Collector):
    """Exports the counters of one connection as `ryz_bus_<name>_total{connection=...}` and its state."""

    def __init__(self, stats: BusStats, connection: str) -> None:
        self._stats = stats
        self._connection = connection

    def register(self, registry: CollectorRegistry) -> None:
        """Adds it to a registry."""
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client`."""
        up = GaugeMetricFamily(
            "ryz_bus_connected",
            "1 while there is a connection to the broker, 0 while there is none.",
            labels=["connection"],
        )
        up.add_metric([self._connection], self._stats.connected)
        yield up
        for field in fields(BusStats):
            if field.name == "connected":
                continue
            family = CounterMetricFamily(
                f"ryz_bus_{field.name}", f"Bus: {field.name.replace('_', ' ')}.", labels=["connection"]
            )
            family.add_metric([self._connection], getattr(self._stats, field.name))
            yield family


class ClientCollector(Collector):
    """Exports a client's counters as `ryz_client_<name>_total`, and `ryz_client_stream_pause_seconds`.

    Attributes:
        stats: For the client to count in.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        pauses = Histogram(
            "ryz_client_stream_pause_seconds",
            "From the last frame of a lost group to the first tokens of another one.",
            buckets=PAUSE_BUCKETS,
            registry=registry,
        )
        self.stats = GenerationStats(observe_pause=pauses.observe, observer=ServiceLevels(registry))
        registry.register(self)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """See `prometheus_client`."""
        for field in fields(GenerationStats):
            value = getattr(self.stats, field.name)
            if isinstance(value, int):
                text = f"Requests to the fleet: {field.name}."
                yield CounterMetricFamily(f"ryz_client_{field.name}", text, value=value)
