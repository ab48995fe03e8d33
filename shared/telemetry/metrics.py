"""Metrics of several services: of bus connections, and of requests to the fleet."""

from collections.abc import Callable, Iterator
from dataclasses import fields

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.bus.delivery import BusStats
from shared.client.generation.commands import GenerationStats
from shared.telemetry.service_levels import ServiceLevels

PAUSE_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


_BUS_TEXTS = {
    "published": "Messages published.",
    "received": "Messages received.",
    "dropped": "Messages dropped because too many waited for their handlers: this service is too slow.",
    "throttled": "Times that a subscription with a limit had more messages than it takes a second.",
    "handler_errors": "Messages whose handler failed.",
    "errors": "Errors that the broker reported.",
    "disconnects": "Times that the connection was lost.",
    "reconnects": "Times that the connection was made again.",
    "foreign_brokers": "Connections closed because they were not to a broker of this machine.",
}


class BusCollector(Collector):
    """Exports one connection: its counters as `ryz_bus_<name>_total{connection=...}`, and its state.

    Args:
        num_pending: Returns the number of messages that wait for their handlers.
    """

    def __init__(self, stats: BusStats, connection: str, num_pending: Callable[[], int]) -> None:
        self._stats = stats
        self._connection = connection
        self._num_pending = num_pending

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
        pending = GaugeMetricFamily(
            "ryz_bus_pending_messages", "Messages that wait for their handlers.", labels=["connection"]
        )
        pending.add_metric([self._connection], self._num_pending())
        yield pending
        for field in fields(BusStats):
            if field.name == "connected":
                continue
            family = CounterMetricFamily(
                f"ryz_bus_{field.name}", _BUS_TEXTS[field.name], labels=["connection"]
            )
            family.add_metric([self._connection], getattr(self._stats, field.name))
            yield family


_CLIENT_TEXTS = {
    "republished": "Requests published again because no group had answered.",
    "gaps": "Frames that arrived before one that was missing.",
    "resends": "Questions for missing frames.",
    "duplicates": "Frames that had arrived before.",
    "ignored": "Frames of other attempts, other leaders or unknown requests, and unreadable messages.",
    "lost": "Groups that were lost, counted once for each of their requests.",
    "resumed": "Losses after which the request was published again.",
    "refused": "Publishes that no group could take.",
    "waited": "New requests that waited because nothing could take them.",
    "waits_failed": "New requests that were refused after such a wait.",
}


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
        self.levels = ServiceLevels(registry)
        self.stats = GenerationStats(observe_pause=pauses.observe, observer=self.levels)
        registry.register(self)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """See `prometheus_client`."""
        yield GaugeMetricFamily(
            "ryz_client_waiting_requests",
            "New requests that wait for a broker, a router or a group to come back.",
            value=self.stats.waiting,
        )
        for field in fields(GenerationStats):
            value = getattr(self.stats, field.name)
            if field.name in _CLIENT_TEXTS:
                yield CounterMetricFamily(f"ryz_client_{field.name}", _CLIENT_TEXTS[field.name], value=value)
