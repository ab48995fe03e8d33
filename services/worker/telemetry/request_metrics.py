"""What a leader measures of each request when it ends: times in queue, prefill and decode, and tokens.

The histograms are shown under vLLM's names (`vllm_metrics.py`), and as OpenTelemetry's `gen_ai.server.*`. A
leader serves one model, so the number of series is fixed by operations and error codes.
"""

from collections.abc import Iterator

from services.worker.domain.generation.generation import Generation
from shared.telemetry.histograms import HistogramFamily, HistogramView
from shared.telemetry.service_levels import (
    DURATION_BUCKETS,
    FIRST_TOKEN_BUCKETS,
    PER_TOKEN_BUCKETS,
    PROVIDER,
    TOKEN_BUCKETS,
    operation_of,
)

# of vLLM's request times: https://docs.vllm.ai/en/stable/usage/metrics/
REQUEST_BUCKETS = (
    0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
)  # fmt: skip
STEP_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_FINISH_REASONS = ("stop", "length", "abort", "error")


class RequestHistograms:
    """Histograms of the requests of one leader, each under the name that vLLM has for it.

    Attributes:
        finished: Choices by why they ended.
        operations: OpenTelemetry's histograms by operation.
    """

    def __init__(self) -> None:
        def seconds(name: str, text: str) -> HistogramFamily:
            return HistogramFamily(None, name, text, REQUEST_BUCKETS)

        self.finished = dict.fromkeys(_FINISH_REASONS, 0)
        self.queue = seconds("request_queue_time_seconds", "From a request's arrival to its first step.")
        self.prefill = seconds("request_prefill_time_seconds", "From the first step to the first token.")
        self.decode = seconds("request_decode_time_seconds", "From the first token to the last one.")
        self.inference = seconds("request_inference_time_seconds", "From the first step to the last token.")
        self.whole = seconds("e2e_request_latency_seconds", "From a request's arrival to its end.")
        self.per_token = HistogramFamily(
            None, "request_time_per_output_token_seconds", "Mean time of a request between two tokens.",
            PER_TOKEN_BUCKETS,
        )  # fmt: skip
        self.prompt_tokens = HistogramFamily(
            None, "request_prompt_tokens", "Prompt tokens of a request.", TOKEN_BUCKETS
        )
        self.generation_tokens = HistogramFamily(
            None, "request_generation_tokens", "Tokens generated for a request.", TOKEN_BUCKETS
        )
        self.max_tokens = HistogramFamily(
            None, "request_params_max_tokens", "`max_tokens` of a request, if it has it.", TOKEN_BUCKETS
        )
        self.longest_choice = HistogramFamily(
            None,
            "request_max_num_generation_tokens",
            "Tokens generated for the longest choice of a request.",
            TOKEN_BUCKETS,
        )
        self.num_choices = HistogramFamily(
            None, "request_params_n", "Choices of a request.", (1, 2, 5, 10, 20)
        )
        self.step_tokens = HistogramFamily(
            None, "iteration_tokens_total", "Tokens of one engine step.", STEP_BUCKETS
        )
        self.operations = OperationHistograms()

    def families(self) -> tuple[HistogramFamily, ...]:
        """Return all histograms that vLLM has."""
        return (
            self.queue, self.prefill, self.decode, self.inference, self.whole, self.per_token,
            self.prompt_tokens, self.generation_tokens, self.max_tokens, self.longest_choice,
            self.num_choices, self.step_tokens,
        )  # fmt: skip

    def count_end(self, generation: Generation, now: float, code: str = "") -> None:
        """Count a request that has ended.

        Args:
            now: On the leader's clock.
            code: Of the error; empty: it ended well.
        """
        begun, first, last = generation.computing_at, generation.first_token_at, generation.last_token_at
        whole_s = now - generation.arrived
        self.whole.series().observe(whole_s)
        if begun:
            self.queue.series().observe(begun - generation.arrived)
        if begun and first:
            self.prefill.series().observe(first - begun)
            self.decode.series().observe(last - first)
            self.inference.series().observe(last - begun)
        usage, choices = generation.usage, generation.choices
        later_tokens = usage.completion_tokens / max(1, len(choices)) - 1
        per_token_s = (last - first) / later_tokens if first and later_tokens >= 1 else None
        if per_token_s is not None:
            self.per_token.series().observe(per_token_s)
        self.prompt_tokens.series().observe(usage.prompt_tokens)
        self.generation_tokens.series().observe(usage.completion_tokens)
        sampling = generation.request.sampling
        self.num_choices.series().observe(sampling.n)
        if sampling.max_tokens:
            self.max_tokens.series().observe(sampling.max_tokens)
        if choices:
            self.longest_choice.series().observe(max(choice.sequence.num_output for choice in choices))
        for choice in choices:
            reason = choice.finish_reason or ("abort" if code == "cancelled" else "error")
            self.finished["stop" if reason == "tool_calls" else reason] += 1
        first_s = first - generation.arrived if first else None
        self.operations.count_end(operation_of(generation.request), code, whole_s, first_s, per_token_s)


class OperationHistograms:
    """OpenTelemetry's histograms of a model server, by operation."""

    def __init__(self) -> None:
        self.duration = HistogramFamily(
            None,
            "gen_ai_server_request_duration_seconds",
            "OpenTelemetry: from a request's arrival at the group to its end.",
            DURATION_BUCKETS,
            ("gen_ai_operation_name", "error_type"),
        )
        self.first_token = HistogramFamily(
            None,
            "gen_ai_server_time_to_first_token_seconds",
            "OpenTelemetry: from a request's arrival at the group to its first token, if it ended well.",
            FIRST_TOKEN_BUCKETS,
            ("gen_ai_operation_name",),
        )
        self.per_token = HistogramFamily(
            None,
            "gen_ai_server_time_per_output_token_seconds",
            "OpenTelemetry: mean time of a request between two tokens, if it ended well.",
            PER_TOKEN_BUCKETS,
            ("gen_ai_operation_name",),
        )
        for operation in ("chat", "text_completion"):  # shown from the start
            self.duration.series(operation, "")
            self.first_token.series(operation)
            self.per_token.series(operation)

    def count_end(
        self, operation: str, code: str, whole_s: float, first_s: float | None, per_token_s: float | None
    ) -> None:
        """Count a request that has ended; times that it has not are None."""
        self.duration.series(operation, code).observe(whole_s)
        if code:
            return
        if first_s is not None:
            self.first_token.series(operation).observe(first_s)
        if per_token_s is not None:
            self.per_token.series(operation).observe(per_token_s)

    def views(self, model: str) -> Iterator[HistogramView]:
        """Yield what a registry shows, with the name under which the group serves its model."""
        labels = {
            "gen_ai_provider_name": PROVIDER,
            "gen_ai_request_model": model,
            "gen_ai_response_model": model,
        }
        for one in (self.duration, self.first_token, self.per_token):
            yield HistogramView(one, one.name, labels)
