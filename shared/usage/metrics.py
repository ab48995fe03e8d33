"""Exports what became of the records of usage that a service has written."""

from collections.abc import Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.usage.ledger import LedgerCounts


class MeasuredLedger(Protocol):
    """What is exported of a ledger."""

    @property
    def counts(self) -> LedgerCounts:
        """What became of records."""
        ...

    @property
    def num_waiting(self) -> int:
        """Records without an acknowledgement."""
        ...


class LedgerCollector(Collector):
    """The metrics `<prefix>usage_...` of one ledger."""

    def __init__(self, prefix: str, ledger: MeasuredLedger) -> None:
        self._prefix = f"{prefix}usage_"
        self._ledger = ledger

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client`."""
        prefix, counts = self._prefix, self._ledger.counts
        records = CounterMetricFamily(
            f"{prefix}records",
            "Records of usage: `written` to the ledger, published `again`, or `dropped`, and so not counted.",
            labels=["outcome"],
        )
        for outcome in ("written", "again", "dropped"):
            records.add_metric([outcome], getattr(counts, outcome))
        yield records
        yield GaugeMetricFamily(
            f"{prefix}waiting",
            "Records that the ledger has not acknowledged.",
            value=self._ledger.num_waiting,
        )
        yield GaugeMetricFamily(
            f"{prefix}ledger_missing", "1 while the broker has no ledger of usage.", value=counts.missing
        )
