"""The totals of usage for Prometheus: each request once, in few series."""

from prometheus_client import CollectorRegistry, Counter

from services.kvstate.usage.stored_sums import COUNTED, Counts

MAX_MODELS = 64  # series of more models are one, `other`; tenants and keys are in `ryz tenants usage`
_KINDS = {
    name: name.removesuffix("_tokens") for name in COUNTED if name.endswith("_tokens")
}  # fmt: skip


class UsageMetrics:
    """Counts what is added to sums."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._tokens = Counter(
            "ryz_usage_tokens_total",
            "Tokens that requests have used, each request once: `prompt`, of these `cached`, `completion`, "
            "of these `reasoning`, and `embedded`. Models beyond 64 are `other`.",
            ["kind", "model"],
            registry=registry,
        )
        self._requests = Counter(
            "ryz_usage_requests_total", "Requests in the sums of usage.", ["model"], registry=registry
        )
        self._models = set[str]()

    def count(self, model: str, counts: Counts) -> None:
        """Counts what was added to a sum; a correction downwards is left out."""
        if model not in self._models:
            if len(self._models) >= MAX_MODELS:
                model = "other"
            self._models.add(model)
        for name, count in zip(COUNTED, counts, strict=False):
            if count > 0 and name in _KINDS:
                self._tokens.labels(_KINDS[name], model).inc(count)
        if counts[0] > 0:
            self._requests.labels(model).inc(counts[0])
