"""The client side of the protocol: generations, sessions and models, for gateways and for other services.

Use `InferenceClient`. `generation/generation_state.py` is the state machine of one request.
"""

from shared.client.calls.adapters_client import AdaptersClient
from shared.client.calls.model_list import list_models
from shared.client.calls.models_client import ModelsClient, ModelWish
from shared.client.calls.sessions_client import SessionsClient
from shared.client.generation.generation_stream import GenerationStream
from shared.client.generation.results import Choice, Completion, Embedding
from shared.client.inference_client import InferenceClient
from shared.client.request_forms import chat_request, text_request, tool
from shared.client.settings import ClientSettings

__all__ = [
    "AdaptersClient",
    "Choice",
    "ClientSettings",
    "Completion",
    "Embedding",
    "GenerationStream",
    "InferenceClient",
    "ModelWish",
    "ModelsClient",
    "SessionsClient",
    "chat_request",
    "list_models",
    "text_request",
    "tool",
]
