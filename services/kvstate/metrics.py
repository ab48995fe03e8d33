"""The metrics of the KV state service, apart from those of KV blocks (`blocks/metrics.py`)."""

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.kvstate.redis.store_starts import StoreContents
from services.kvstate.sessions.store import SessionTally
from shared.messages import SessionCommitted
from shared.telemetry.histograms import Children

_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)


class KVStateMetrics:
    """All metrics of one instance."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        requests = counter(
            "ryz_kvstate_requests_total",
            "Calls by kind and outcome; the outcome is `ok` or an error code.",
            ["call", "outcome"],
        )
        seconds = Histogram(
            "ryz_kvstate_request_seconds",
            "Time from a call's arrival to its answer.",
            ["call"],
            buckets=_SECONDS,
            registry=registry,
        )
        commits = counter(
            "ryz_kvstate_session_commits_total",
            "Committed records: `stored`, `stale` (a newer version was there), `deleted` (the session was, "
            "before its turn ended), `too_large` or `over_quota` (of the tenant).",
            ["outcome"],
        )
        self.requests, self.seconds, self.commits = Children(requests), Children(seconds), Children(commits)
        for outcome in ("stored", "stale", "deleted", "too_large", "over_quota"):
            self.commits.labels(outcome)  # shown from the start
        self.dropped = counter(
            "ryz_kvstate_spare_sessions_dropped_total",
            "Sessions without a second turn and without a name of the caller's that went for a newer one, "
            "because their tenant was at its quota.",
        )
        self.pins_refused = counter(
            "ryz_kvstate_pins_refused_total",
            "Pins that were refused: `tenant_full` (the tenant has too many) or `all_full` (all together).",
            ["reason"],
        )
        self.sessions = gauge("ryz_kvstate_sessions", "Sessions in the store.")
        self.session_bytes = gauge("ryz_kvstate_session_bytes", "Bytes of sessions' records in the store.")
        self.tenants_nearly_full = gauge(
            "ryz_kvstate_tenants_nearly_full",
            "Tenants that have come within a tenth of a quota of sessions or of their bytes.",
        )
        self.store_up = gauge(
            "ryz_kvstate_store_up", "1 while the session store answers, 0 while it is away."
        )
        self.store_writable = gauge(
            "ryz_kvstate_store_writable",
            "1 while the session store takes writes, 0 while its disk is full or fails.",
        )

        self.store_read = gauge(
            "ryz_kvstate_store_read",
            "What the session store had when this service had started, or after a later start of Redis: "
            "`sessions`, `pins`, `responses` and `tombstones` of deleted sessions.",
            ["kind"],
        )
        self.store_refused = gauge(
            "ryz_kvstate_store_refused_commands",
            "Commands of its append-only log that the session store refused at its last start; what they "
            "stored is missing.",
        )

    def committed(self, answer: SessionCommitted, records: int, dropped: int) -> None:
        """Counts the outcomes of one commit.

        Args:
            records: How many records the commit had.
            dropped: How many spare sessions were dropped for them.
        """
        counts = {
            "stale": len(answer.stale) - len(answer.deleted),
            "deleted": len(answer.deleted),
            "too_large": len(answer.too_large),
            "over_quota": len(answer.over_quota),
        }
        for outcome, count in {"stored": records - sum(counts.values()), **counts}.items():
            if count:
                self.commits.labels(outcome).inc(count)
        self.dropped.inc(dropped)

    def watch(self, last: Callable[[], SessionTally]) -> None:
        """Exports the last tally of the session store."""
        self.sessions.set_function(lambda: last().sessions)
        self.session_bytes.set_function(lambda: last().num_bytes)
        self.tenants_nearly_full.set_function(lambda: last().nearly_full)

    def watch_starts(self, contents: Callable[[], StoreContents | None], refused: Callable[[], int]) -> None:
        """Exports what `StoreStarts` counted, and the commands that Redis refused at its last start."""

        def count(kind: str) -> Callable[[], float]:
            return lambda: getattr(contents() or StoreContents(), kind)

        for kind in ("sessions", "pins", "responses", "tombstones"):
            self.store_read.labels(kind).set_function(count(kind))
        self.store_refused.set_function(refused)
