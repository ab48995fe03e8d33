"""Names, labels and buckets of OpenTelemetry's conventions for generative AI, as Prometheus writes them.

Attributes and bucket boundaries: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-metrics/. A dot
becomes an underscore, and the unit is added to the name.
"""

from shared.messages import GenerateRequest

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


def operation_of(request: GenerateRequest) -> str:
    """Return `gen_ai.operation.name` of a request."""
    if request.embedding is not None:
        return "embeddings"
    return "text_completion" if request.messages is None else "chat"
