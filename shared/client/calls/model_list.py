"""Asks the routers what they serve."""

from shared import subjects
from shared.bus import Bus
from shared.bus.endpoint import call
from shared.messages import ListModels, ModelCard, ModelList


async def list_models(bus: Bus, *, timeout_s: float = 2.0) -> list[ModelCard]:
    """The models that a router can route to now.

    Raises:
        Unavailable: no router runs, or none answered in time.
    """
    return (await call(bus, subjects.MODELS, ListModels(), ModelList, timeout_s=timeout_s)).models
