"""Measures what callers of an `InferenceClient` get: times to the first token, between tokens, to the end.

The times are those of the caller: they include router, queue, retries and moves to another group. Series are
by model, tenant and class of priority. Their number is bounded: a model counts as known once a group has
answered for it, the first `MAX_SERIES` combinations are shown as they are, later ones as `other`. The same
requests are shown under OpenTelemetry's names for clients of generative AI.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter

from shared.errors import RyzError
from shared.messages import GenerateRequest, Usage
from shared.telemetry.histograms import OTHER, Children, HistogramFamily, LabelBound, Labels, TokenHistogram

PROVIDER = "ryzanstein"
REQUEST_LABELS = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")
DURATION_BUCKETS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
PER_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
TOKEN_BUCKETS = (
    1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864,
)  # fmt: skip
MAX_SERIES = 24  # combinations of model, tenant and priority; the common ones come on top
MAX_MODELS = 8
LEVEL_LABELS = ("model", "tenant", "priority")
FIRST_TOKEN_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
BETWEEN_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 10.0)
WHOLE_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
OUTCOMES = ("ok", "failed", "refused", "cancelled")
# codes of errors for which the caller is not to blame
_FAULTS = frozenset({"overloaded", "unavailable", "group_lost", "deadline_exceeded", "internal"})


def operation_of(request: GenerateRequest) -> str:
    """Return `gen_ai.operation.name` of a request."""
    if request.embedding is not None:
        return "embeddings"
    return "text_completion" if request.messages is None else "chat"


def priority_class(priority: int) -> str:
    """Return the class of a priority, -10 to 10."""
    return "normal" if not priority else "high" if priority > 0 else "background"


def outcome_of(error: RyzError | None) -> str:
    """Return how a request ended: `ok`, `failed` by the service, `refused` or `cancelled` by its caller."""
    if error is None:
        return "ok"
    if error.code == "cancelled":
        return "cancelled"
    return "failed" if error.code in _FAULTS else "refused"


class ServiceLevels:
    """The `RequestObserver` of a service. Its histograms are fed on one event loop."""

    def __init__(self, registry: CollectorRegistry) -> None:
        text = "by model, tenant and priority; as the caller sees it."
        self.first_token = HistogramFamily(
            registry,
            "ryz_slo_time_to_first_token_seconds",
            f"From a streamed request to its first tokens, {text}",
            FIRST_TOKEN_S,
            LEVEL_LABELS,
        )
        self.between = HistogramFamily(
            registry,
            "ryz_slo_inter_token_seconds",
            f"Between two deliveries of tokens of a streamed request, pauses of a failover included, {text}",
            BETWEEN_S,
            LEVEL_LABELS,
        )
        self.whole = HistogramFamily(
            registry,
            "ryz_slo_request_seconds",
            f"From a request to its end, requests that ended well, {text}",
            WHOLE_S,
            LEVEL_LABELS,
        )
        self._outcomes = Children(
            Counter(
                "ryz_slo_requests",
                "Requests by how they ended: `ok`, `failed` (by the service), `refused` (the request was "
                "wrong or over a limit), `cancelled`.",
                [*LEVEL_LABELS, "outcome"],
                registry=registry,
            )
        )
        self._duration = HistogramFamily(
            registry,
            "gen_ai_client_operation_duration_seconds",
            "OpenTelemetry: duration of a request to the fleet.",
            DURATION_BUCKETS,
            (*REQUEST_LABELS, "error_type"),
        )
        self._first_chunk = HistogramFamily(
            registry,
            "gen_ai_client_operation_time_to_first_chunk_seconds",
            "OpenTelemetry: from a streamed request to its first tokens.",
            FIRST_TOKEN_BUCKETS,
            REQUEST_LABELS,
        )
        self._tokens = HistogramFamily(
            registry,
            "gen_ai_client_token_usage",
            "OpenTelemetry: tokens of a request, by kind.",
            TOKEN_BUCKETS,
            (*REQUEST_LABELS, "gen_ai_token_type"),
        )
        self.label_of: Callable[[str], str] = str  # maps an adapter to its base
        self._models = LabelBound(MAX_MODELS, lambda values: (OTHER,))
        self._served: set[str] = set()
        self._levels = LabelBound(MAX_SERIES, lambda values: (OTHER, OTHER, values[2]))
        self._errors = LabelBound(MAX_SERIES, lambda values: (values[0], PROVIDER, OTHER, OTHER))

    def begin(self, request: GenerateRequest, now: float) -> "ObservedLevels":
        """Return what measures one request, which begins now."""
        return ObservedLevels(self, request, now)

    def model_label(self, model: str, *, served: bool) -> str:
        """Return the label of a model; `served`: a group has answered for it."""
        model = self.label_of(model)
        if served:
            (label,) = self._models.fit((model,))
            if label == model:
                self._served.add(model)
            return label
        return model if model in self._served else OTHER

    def level_labels(self, model: str, tenant: str, priority: str) -> Labels:
        """Return the labels under which a request is counted."""
        labels = self._levels.fit((model, tenant, priority))
        for outcome in OUTCOMES:  # from 0 on: to Prometheus a counter that appears with 1 has not grown
            self._outcomes.labels(*labels, outcome)
        return labels

    def count_refusal(self, model: str, tenant: str, error: RyzError) -> None:
        """Count a request that ended before the fleet was asked; its priority is not known.

        Args:
            model: What it asked for; empty: that was not read.
            tenant: Whose it was; empty: not known.
        """
        labels = self.level_labels(self.model_label(model, served=False), tenant or OTHER, "normal")
        self._outcomes.labels(*labels, outcome_of(error)).inc()

    def count_first(self, model: str, operation: str, seconds: float) -> None:
        """Count the first tokens of a stream."""
        self._first_chunk.series(operation, PROVIDER, model).observe(seconds)

    def count_end(
        self, labels: Labels, operation: str, seconds: float | None, error: RyzError | None, usage: Usage
    ) -> None:
        """Count a request that has ended; `seconds` None: its beginning is not known."""
        model = labels[0]
        self._outcomes.labels(*labels, outcome_of(error)).inc()
        if seconds is not None:
            code = "" if error is None else error.code
            self._duration.series(*self._errors.fit((operation, PROVIDER, model, code))).observe(seconds)
            if error is None:
                self.whole.series(*labels).observe(seconds)
        if usage.prompt_tokens:
            self._tokens.series(operation, PROVIDER, model, "input").observe(usage.prompt_tokens)
        if usage.completion_tokens:
            self._tokens.series(operation, PROVIDER, model, "output").observe(usage.completion_tokens)


class ObservedLevels:
    """One request that `ServiceLevels` measures; see `ObservedRequest`."""

    __slots__ = (
        "_begun", "_between", "_labels", "_levels", "_model", "_newest", "_operation", "_priority",
        "_streamed", "_tenant",
    )  # fmt: skip

    def __init__(self, levels: ServiceLevels, request: GenerateRequest, now: float) -> None:
        self._levels = levels
        self._begun: float | None = now
        self._newest = 0.0
        self._model, self._tenant = request.model, request.tenant
        self._priority = priority_class(request.priority)
        self._operation = operation_of(request)
        self._streamed = request.delivery == "stream" and self._operation != "embeddings"
        self._labels: Labels = ()  # not known before a group has answered
        self._between: TokenHistogram | None = None

    def add_tokens(self, now: float) -> None:
        """Measure the time since the tokens before; called for each frame."""
        if self._between is not None:
            self._between.observe(now - self._newest)
        elif not self._labels:
            self._take_first(now)
        self._newest = now

    def adopt(self) -> None:
        """Count the request's end only."""
        self._begun = None

    def end(self, now: float, error: RyzError | None, usage: Usage) -> None:
        """Count the request."""
        labels = self._labels or self._named(served=error is None)
        seconds = None if self._begun is None else now - self._begun
        self._levels.count_end(labels, self._operation, seconds, error, usage)

    def _take_first(self, now: float) -> None:
        levels = self._levels
        self._labels = self._named(served=True)
        if not self._streamed:
            return
        self._between = levels.between.series(*self._labels)
        if self._begun is not None:
            levels.first_token.series(*self._labels).observe(now - self._begun)
            levels.count_first(self._labels[0], self._operation, now - self._begun)

    def _named(self, *, served: bool) -> Labels:
        model = self._levels.model_label(self._model, served=served)
        return self._levels.level_labels(model, self._tenant, self._priority)
