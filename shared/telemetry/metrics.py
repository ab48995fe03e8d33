"""Metrics that every service has: what happened on its bus connections. The rest is each service's own."""

from collections.abc import Iterator
from dataclasses import fields

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from shared.bus.delivery import BusStats


class BusCollector(Collector):
    """Exports the counters of one connection as `ryz_bus_<name>_total{connection=...}`."""

    def __init__(self, stats: BusStats, connection: str) -> None:
        self._stats = stats
        self._connection = connection

    def register(self, registry: CollectorRegistry) -> None:
        """Adds it to a registry."""
        registry.register(self)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Called at each scrape."""
        for field in fields(BusStats):
            family = CounterMetricFamily(
                f"ryz_bus_{field.name}", f"Bus: {field.name.replace('_', ' ')}.", labels=["connection"]
            )
            family.add_metric([self._connection], getattr(self._stats, field.name))
            yield family
