"""What the KV state service counts and measures, under the names that dashboards know."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)


class Metrics:
    """All metrics of one instance."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "ryz_kvstate_requests_total",
            "Calls by kind and outcome; the outcome is `ok` or an error code.",
            ["call", "outcome"],
            registry=registry,
        )
        self.seconds = Histogram(
            "ryz_kvstate_request_seconds",
            "Time from a call's arrival to its answer.",
            ["call"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.commits = Counter(
            "ryz_kvstate_session_commits_total",
            "Committed records: `stored`, `stale` (a newer version was there) or `too_large`.",
            ["outcome"],
            registry=registry,
        )
        self.store_up = Gauge(
            "ryz_kvstate_store_up",
            "1 while the session store answers, 0 while it is away.",
            registry=registry,
        )
        self.store_writable = Gauge(
            "ryz_kvstate_store_writable",
            "1 while the session store takes writes, 0 while its disk is full or fails.",
            registry=registry,
        )
