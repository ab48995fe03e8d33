"""A `ClientContext` for tests that build generation states without a client."""

from shared.client.generation.client_context import ClientContext
from shared.client.generation.commands import GenerationStats
from shared.client.settings import ClientSettings
from tests.kits.constants import settings_with_constants


def client_settings(**values: float) -> ClientSettings:
    """Settings and constants of a client."""
    return settings_with_constants(ClientSettings, values)


def client_context(settings: ClientSettings, stats: GenerationStats | None = None) -> ClientContext:
    """A new context with a full retry budget."""
    return ClientContext.make(settings, stats or GenerationStats())
