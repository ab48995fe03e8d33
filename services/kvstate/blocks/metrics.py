"""Metrics of KV blocks: counters of this replica, and gauges of the store that all replicas share."""

from collections.abc import Callable, Iterable
from functools import partial

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.kvstate.blocks.store import BlockTotals
from services.kvstate.blocks.tier import BlockTier
from shared.kv_hash import BLOCK_TOKENS

MAX_TENANT_LABELS = 32
OTHER_TENANTS = "_other"


class BlockMetrics:
    """Counters of one replica."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        self._evicted = counter(
            "ryz_kvstate_blocks_evicted_total",
            "KV blocks that this replica deleted, by reason: `age`, `memory` (Redis had none left), "
            "`tenant_quota`, `session_quota`, `session_deleted`, `session_expired`, `tenant_erased`, "
            "`lost` (bytes gone).",
            ["reason"],
        )
        self._found = counter(
            "ryz_kvstate_find_tokens_total",
            "Tokens whose KV was asked for, by whether it was stored: `hit` or `miss`.",
            ["outcome"],
        )
        self._committed = counter(
            "ryz_kvstate_blocks_committed_total",
            "KV blocks in commits: `stored`, or `passed_over` (incomplete, over quota, session deleted).",
            ["outcome"],
        )

    def evicted(self, reason: str, blocks: int) -> None:
        """Counts blocks that this replica deleted."""
        self._evicted.labels(reason).inc(blocks)

    def found(self, blocks: int, asked: int) -> None:
        """Counts the blocks that a find asked for and found."""
        self._found.labels("hit").inc(blocks * BLOCK_TOKENS)
        self._found.labels("miss").inc((asked - blocks) * BLOCK_TOKENS)

    def committed(self, stored: int, asked: int) -> None:
        """Counts the blocks of a commit, and those of them that are in the store now."""
        self._committed.labels("stored").inc(stored)
        self._committed.labels("passed_over").inc(max(0, asked - stored))


class TenantLabels:
    """Gives the first `limit` tenants a label each, and all later tenants one common label."""

    def __init__(self, limit: int = MAX_TENANT_LABELS) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def label(self, tenant: str) -> str:
        """Returns the label of a tenant."""
        if len(self._known) < self._limit:
            self._known.add(tenant)
        return tenant if tenant in self._known else OTHER_TENANTS


class TierCollector(Collector):
    """Gauges from the totals that the sweep read last. Replicas show the same values: take the maximum."""

    def __init__(self, tier: BlockTier, is_away: Callable[[], bool]) -> None:
        self._tier = tier
        self._is_away = is_away
        self._labels = TenantLabels()

    def collect(self) -> Iterable[Metric]:
        """See `prometheus_client`."""
        totals = self._tier.totals
        for name, text, value in (
            ("blocks", "KV blocks in the store.", totals.total.blocks),
            ("bytes", "Bytes of KV blocks in the store.", totals.total.num_bytes),
            ("bytes_limit", "Bytes that KV blocks may take; 0: no limit.", self._tier.marks.limit),
            ("holders", "Sessions that hold KV blocks.", totals.holders),
            ("leases", "KV blocks that are leased.", totals.leases),
            ("full", "1 while nothing can be freed for new KV blocks.", int(self._tier.full)),
            ("up", "1 while the KV store answers, 0 while it is away.", int(not self._is_away())),
        ):
            yield GaugeMetricFamily(f"ryz_kvstate_tier_{name}", text, value=value)
        yield from self._accounts(totals)

    def _accounts(self, totals: BlockTotals) -> Iterable[Metric]:
        size: dict[str, float] = {}
        seconds: dict[str, float] = {}
        largest_first = sorted(totals.accounts.items(), key=lambda one: -one[1].byte_seconds)
        for tenant, account in largest_first:
            label = self._labels.label(tenant)
            size[label] = size.get(label, 0) + account.num_bytes
            seconds[label] = seconds.get(label, 0) + account.byte_seconds
        gauge = GaugeMetricFamily(
            "ryz_kvstate_tenant_bytes", "Bytes of KV blocks, by tenant.", labels=["tenant"]
        )
        counter = CounterMetricFamily(
            "ryz_kvstate_tenant_byte_seconds",
            "Bytes of KV blocks times the seconds they were kept, by tenant.",
            labels=["tenant"],
        )
        for label, num_bytes in size.items():
            gauge.add_metric([label], num_bytes)
            counter.add_metric([label], seconds[label])
        yield gauge
        yield counter
