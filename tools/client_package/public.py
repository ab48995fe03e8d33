"""A client for Ryzanstein's services over NATS.

`InferenceClient.connect` connects; `chat_request` and `text_request` make requests. Every error is a
`RyzError` with a `code`.
"""

from shared.client.calls.model_list import list_models
from shared.client.generation.generation_stream import GenerationStream
from shared.client.generation.results import Choice, Completion, Embedding
from shared.client.inference_client import InferenceClient
from shared.client.kv_events import KVEventFollower, KVEventIndex, block_names
from shared.client.request_forms import chat_request, text_request, tool
from shared.client.settings import ClientSettings
from shared.errors import (
    Cancelled,
    Conflict,
    ContextLengthExceeded,
    DeadlineExceeded,
    GroupLost,
    Internal,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    Poison,
    RateLimited,
    RequestTooLarge,
    RyzError,
    SessionNotFound,
    Unavailable,
)
from shared.messages import (
    ChatMessage,
    Delta,
    DetokenizeQuery,
    EmbeddingOptions,
    GenerateRequest,
    ModelCard,
    Sampling,
    SamplingDefaults,
    SessionRef,
    StructuredOutput,
    TokenizeQuery,
    ToolDefinition,
    ToolUse,
    Usage,
)

__all__ = [
    "Cancelled",
    "ChatMessage",
    "Choice",
    "ClientSettings",
    "Completion",
    "Conflict",
    "ContextLengthExceeded",
    "DeadlineExceeded",
    "Delta",
    "DetokenizeQuery",
    "Embedding",
    "EmbeddingOptions",
    "GenerateRequest",
    "GenerationStream",
    "GroupLost",
    "InferenceClient",
    "Internal",
    "InvalidRequest",
    "KVEventFollower",
    "KVEventIndex",
    "ModelCard",
    "ModelNotFound",
    "Overloaded",
    "Poison",
    "RateLimited",
    "RequestTooLarge",
    "RyzError",
    "Sampling",
    "SamplingDefaults",
    "SessionNotFound",
    "SessionRef",
    "StructuredOutput",
    "TokenizeQuery",
    "ToolDefinition",
    "ToolUse",
    "Unavailable",
    "Usage",
    "block_names",
    "chat_request",
    "list_models",
    "text_request",
    "tool",
]
