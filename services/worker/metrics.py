"""Metrics of a worker group with the prefix `ryz_worker_`.

Gauges are computed from the group's state when they are scraped. `telemetry/` has what is measured of
each request, and shows the same under the names of vLLM.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.worker.domain.generation.failure_owners import all_owners
from services.worker.domain.generation.request_counts import Control
from services.worker.domain.speculation.speculation import DraftCounts
from services.worker.rank_protocol.failures import FailureKind
from services.worker.telemetry.adapter_metrics import AdapterMetrics
from services.worker.telemetry.request_metrics import RequestHistograms
from shared.messages import KVRates, Load
from shared.telemetry.histograms import Children, HistogramFamily

PREFIX = "ryz_worker_"
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_TOKEN_SECONDS = tuple(sorted((*_SECONDS, 0.03)))  # the service levels are 30 and 50 ms per token


class DraftMetrics:
    """What came of draft tokens, see `DraftCounts`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._all = [
            Counter(f"{PREFIX}spec_decode_{name}", text, registry=registry)
            for name, text in (
                ("num_drafts", "Chunks with draft tokens."),
                ("num_draft_tokens", "Draft tokens that were checked."),
                ("num_accepted_tokens", "Draft tokens that were right, and so were sent."),
                ("num_model_draft_tokens", "Those of the draft tokens that the draft model guessed."),
                ("num_model_accepted_tokens", "Those of the draft model that were right."),
            )
        ]
        self.drafts, self.draft_tokens, self.accepted_tokens = self._all[:3]
        self.model_draft_tokens, self.model_accepted_tokens = self._all[3:]

    def add(self, counts: DraftCounts) -> None:
        """Counts more of them."""
        for counter, count in zip(self._all, counts, strict=True):
            counter.inc(count)


class FaultMetrics:
    """Whose fault the failures of requests are, see `failure_owners.py`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, labels: Iterable[str] = ()) -> Counter:
            return Counter(PREFIX + name, text, tuple(labels), registry=registry)

        self.requests = counter("request_faults", "Requests that failed, by whose fault it is.", ["owner"])
        for owner in all_owners():
            self.requests.labels(owner)  # alerts measure their growth, from 0 on
        self.confined = counter(
            "confined_failures", "Unexpected failures of requests while the group could serve others."
        )
        self.controls = counter(
            "control_runs", "The group's own requests after unexpected failures.", ["outcome"]
        )
        for outcome in get_args(Control):
            self.controls.labels(outcome)


def _shown(made: Counter, labels: Iterable[str]) -> Counter:
    """Shows a counter's series from the start."""
    for label in labels:
        made.labels(label)
    return made


class WorkerMetrics:
    """All metrics of a worker group, in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, labels: Iterable[str] = ()) -> Counter:
            return Counter(PREFIX + name, text, tuple(labels), registry=registry)

        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of requests that were started.")
        self.generation_tokens = counter("generation_tokens", "Tokens generated.")
        self.requests = Children(counter("requests", "Requests by how they ended.", ["outcome"]))
        self.shed_requests = counter(
            "shed_requests", "Waiting requests that gave their places to others, of more right to them."
        )
        self.duplicates = counter("duplicate_requests", "Requests published again that were known already.")
        self.attached = counter("attached_requests", "Requests given to another caller who asked for them.")
        self.bad_messages = counter("bad_messages", "Messages that could not be decoded.", ["subject"])
        self.bad_messages.labels("work")  # alerts measure its growth, from 0 on
        self.misdirected = counter(
            "misdirected_messages", "Messages for another leader that has this group's name.", ["subject"]
        )
        self.refused_resends = counter(
            "refused_resends", "Questions for lost frames of users outside that asked for too much."
        )
        self.preemptions = counter("num_preemptions", "Sequences put back because blocks ran short.")
        self.prefix_cache_queries = counter("prefix_cache_queries", "Tokens looked up in the prefix cache.")
        self.prefix_cache_hits = counter("prefix_cache_hits", "Tokens of them that need not be computed.")
        self.failed_sequences = counter("failed_sequences", "Sequences for which the model gave no token.")
        self.faults = FaultMetrics(registry)
        self.unsent_frames = counter(
            "unsent_frames", "Frames kept for retransmission while the bus was away."
        )
        self.engine_failures = counter(
            "engine_failures", "Times the engine failed and was started again, by what failed.", ["kind"]
        )
        for kind in get_args(FailureKind):
            self.engine_failures.labels(kind)  # alerts measure their growth, from 0 on
        self.session_commits = Children(
            counter("session_commits", "Session records by what became of them.", ["outcome"])
        )
        self.session_lookups = Children(
            counter("session_lookups", "Lookups of session records.", ["outcome"])
        )
        self.kv_lookups = Children(
            counter("kv_lookups", "Questions to the store for a prompt's blocks.", ["outcome"])
        )
        self.slow_prompts = counter(
            "slow_prompts", "Prompts that were not tokenized in RYZ_TOKENIZE_TIMEOUT_S."
        )
        self.grammar_seconds = Histogram(
            PREFIX + "grammar_seconds",
            "One compilation of a grammar, in its thread.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.grammar_trials = _shown(
            counter("grammar_trials", "Grammars compiled on trial, by what came of it.", ["outcome"]),
            ("passed", "refused", "slow", "large", "starved", "unclear", "unavailable"),
        )
        self.kv_sources = Children(counter("kv_sources", "Prompts by where their KV came from.", ["source"]))
        self.kv_fetches = _shown(
            counter("kv_fetches", "Fetches from the store by what came.", ["outcome"]),
            ("whole", "part", "nothing", "given_up"),
        )
        self.kv_fetched_blocks = counter("kv_fetched_blocks", "KV blocks fetched from the store.")
        self.kv_fetched_bytes = counter("kv_fetched_bytes", "Bytes of them, as they were stored.")
        self.kv_host_blocks = counter("kv_host_blocks", "Those that came from the memory of the host.")
        self.kv_host_lookups = counter(
            "kv_host_lookups", "Prompts that the memory of the host had, so that the store was not asked."
        )
        self.kv_stored_blocks = counter("kv_stored_blocks", "KV blocks written to the store.")
        self.kv_stored_bytes = counter("kv_stored_bytes", "Bytes of them, as they were stored.")
        self.kv_dropped_blocks = counter("kv_dropped_blocks", "KV blocks that could not be written.")
        self.kv_corrupt_blocks = counter("kv_corrupt_blocks", "Stored blocks that were damaged.")
        self.kv_evicted = counter("kv_evicted_blocks", "Blocks that went to make room for this group's.")
        self.kv_over_quota = counter("kv_over_quota", "Times that a tenant or session had too many blocks.")
        self.kv_commits_failed = counter("kv_commits_failed", "Times that blocks could not be told.")
        self.kv_fetch_seconds = Histogram(
            PREFIX + "kv_fetch_seconds", "One fetch from the store.", buckets=_SECONDS, registry=registry
        )
        self.kv_store_up = Gauge(
            PREFIX + "kv_store_up", "1 while the KV store is used, 0 while it is away.", registry=registry
        )
        self.requests_ended = RequestHistograms()
        self.prefill_cut_steps = counter(
            "prefill_cut_steps", "Steps with fewer tokens of prompts than there were, for RYZ_ITL_TARGET_MS."
        )
        self.prefill_budget = Gauge(
            PREFIX + "prefill_budget_tokens",
            "Tokens of prompts in the last step that RYZ_ITL_TARGET_MS cut.",
            registry=registry,
        )
        self.speculation, self.adapters = DraftMetrics(registry), AdapterMetrics(registry)
        self.steps = HistogramFamily(registry, PREFIX + "step_seconds", "One engine step.", _SECONDS)
        self.step = self.steps.series()
        self.first_tokens = HistogramFamily(
            registry,
            PREFIX + "time_to_first_token_seconds",
            "From the request's arrival to its first token.",
            _SECONDS,
        )
        self.inter_tokens = HistogramFamily(
            registry,
            PREFIX + "inter_token_latency_seconds",
            "Between two tokens of a request.",
            _TOKEN_SECONDS,
        )
        self.first_token, self.inter_token = self.first_tokens.series(), self.inter_tokens.series()
        self._info = Gauge(
            PREFIX + "info", "Always 1; says whose leader this is.", ["group", "model"], registry=registry
        )

    def name_group(self, group: str, model: str) -> None:
        """Exports the names of the group and of its model."""
        self._info.labels(group, model).set(1)


class HasLoad(Protocol):
    """An object with a load."""

    def load(self) -> Load:
        """Return the load now."""
        ...


def used_share(load: Load) -> float:
    """Return the share of the KV blocks in use, 0 to 1."""
    return (load.total_blocks - load.free_blocks) / max(1, load.total_blocks)


class LoadCollector(Collector):
    """The group's load as gauges."""

    def __init__(self, group: HasLoad) -> None:
        self._group = group

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, for the registry."""
        load = self._group.load()
        for name, text, value in (
            ("num_requests_running", "Requests whose tokens are being computed.", load.running),
            ("num_requests_waiting", "Requests in the queue.", load.waiting),
            ("max_running", "Requests that may be computed at the same time.", load.max_running),
            ("max_waiting", "Requests that the queue holds at most.", load.max_waiting),
            ("queued_tokens", "Prompt tokens that are not computed yet.", load.queued_tokens),
            ("kv_blocks", "KV blocks of the group.", load.total_blocks),
            ("kv_free_blocks", "KV blocks that are free or can be freed at once.", load.free_blocks),
            ("kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1.", used_share(load)),
        ):
            yield GaugeMetricFamily(PREFIX + name, text, value=value)


class HasRates(Protocol):
    """An object with measured rates of computing and fetching KV."""

    def rates(self) -> KVRates:
        """Return the measured rates."""
        ...


class RatesCollector(Collector):
    """The rates by which the leader decides between fetching and computing; 0: not measured yet."""

    def __init__(self, tier: HasRates) -> None:
        self._tier = tier

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, for the registry."""
        rates = self._tier.rates()
        for name, text, value in (
            ("kv_recompute_tokens_per_s", "Tokens of a prompt computed.", rates.recompute_tokens_per_s),
            ("kv_fetch_tokens_per_s", "Tokens whose KV is fetched.", rates.fetch_tokens_per_s),
            ("kv_fetch_fixed_seconds", "What a fetch takes besides.", rates.fetch_s),
        ):
            yield GaugeMetricFamily(PREFIX + name, text, value=value)
