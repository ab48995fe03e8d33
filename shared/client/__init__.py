"""The client side of the protocol: generations, sessions and models, for gateways and for other services.

`InferenceClient` is what to use; `assembly.py` holds its decisions.
"""

from shared.client.client import InferenceClient
from shared.client.fleet import list_models
from shared.client.results import Choice, Completion
from shared.client.sessions import SessionsClient
from shared.client.settings import ClientSettings
from shared.client.stream import GenerationStream

__all__ = [
    "Choice",
    "ClientSettings",
    "Completion",
    "GenerationStream",
    "InferenceClient",
    "SessionsClient",
    "list_models",
]
