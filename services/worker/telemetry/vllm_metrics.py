"""Shows a group's metrics under the names and labels of vLLM, so that boards made for vLLM find them.

Names: https://docs.vllm.ai/en/stable/usage/metrics/. Nothing is counted here; values are read at each scrape.
"""

from collections.abc import Iterator

from prometheus_client import Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.worker.metrics import HasLoad, WorkerMetrics, used_share
from shared.telemetry.histograms import HistogramView

PREFIX = "vllm:"
_LIKE_OURS = "As in vLLM: "


def vllm_histograms(metrics: WorkerMetrics, model: str) -> Iterator[HistogramView]:
    """Yield a group's histograms as vLLM has them; `model` is a label of all series."""
    labels = labels_of(model)
    yield HistogramView(metrics.first_tokens, f"{PREFIX}time_to_first_token_seconds", labels)
    yield HistogramView(metrics.inter_tokens, f"{PREFIX}inter_token_latency_seconds", labels)
    for one in metrics.requests_ended.families():
        yield HistogramView(one, PREFIX + one.name, labels)


def labels_of(model: str) -> dict[str, str]:
    """Return vLLM's labels."""
    return {"model_name": model, "engine": "0"}


class VllmCollector(Collector):
    """What vLLM's gauges and counters show, for this group.

    Args:
        model: Label of all series.
        block_tokens: Tokens of a KV block.
    """

    def __init__(self, group: HasLoad, metrics: WorkerMetrics, model: str, block_tokens: int) -> None:
        self._group, self._metrics = group, metrics
        self._labels = labels_of(model)
        self._block_tokens = block_tokens

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics, for the registry."""
        yield from self._gauges()
        yield from self._counters()

    def _gauges(self) -> Iterator[Metric]:
        load = self._group.load()
        names, values = list(self._labels), list(self._labels.values())
        for name, text, value in (
            ("num_requests_running", "requests whose tokens are being computed.", load.running),
            ("num_requests_waiting", "requests in the queue.", load.waiting),
            ("kv_cache_usage_perc", "share of the KV blocks in use, 0 to 1.", used_share(load)),
        ):
            gauge = GaugeMetricFamily(PREFIX + name, _LIKE_OURS + text, labels=names)
            gauge.add_metric(values, value)
            yield gauge
        facts = {"block_size": str(self._block_tokens), "num_gpu_blocks": str(load.total_blocks)}
        info = GaugeMetricFamily(
            PREFIX + "cache_config_info", _LIKE_OURS + "size of the KV cache.", labels=[*names, *facts]
        )
        info.add_metric([*values, *facts.values()], 1)
        yield info

    def _counters(self) -> Iterator[Metric]:
        metrics = self._metrics
        names, values = list(self._labels), list(self._labels.values())
        for name, text, ours in (
            ("prompt_tokens", "prompt tokens of requests that were started.", metrics.prompt_tokens),
            ("generation_tokens", "tokens generated.", metrics.generation_tokens),
            ("num_preemptions", "sequences put back because blocks ran short.", metrics.preemptions),
            ("prefix_cache_queries", "tokens looked up in the prefix cache.", metrics.prefix_cache_queries),
            ("prefix_cache_hits", "tokens found in the prefix cache.", metrics.prefix_cache_hits),
            ("spec_decode_num_drafts", "chunks with draft tokens.", metrics.speculation.drafts),
            (
                "spec_decode_num_draft_tokens",
                "draft tokens that were checked.",
                metrics.speculation.draft_tokens,
            ),
            (
                "spec_decode_num_accepted_tokens",
                "draft tokens that were right.",
                metrics.speculation.accepted_tokens,
            ),
        ):
            family = CounterMetricFamily(PREFIX + name, _LIKE_OURS + text, labels=names)
            family.add_metric(values, value_of(ours))
            yield family
        text = _LIKE_OURS + "choices that ended, by why."
        ended = CounterMetricFamily(PREFIX + "request_success", text, labels=[*names, "finished_reason"])
        for reason, count in metrics.requests_ended.finished.items():
            ended.add_metric([*values, reason], count)
        yield ended


def value_of(counter: Counter) -> float:
    """Return the value of a counter without labels."""
    samples = (sample for family in counter.collect() for sample in family.samples)
    return next(sample.value for sample in samples if sample.name.endswith("_total"))
