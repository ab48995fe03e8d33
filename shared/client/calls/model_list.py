"""Asks the routers what they serve."""

from shared import subjects
from shared.bus import Bus
from shared.bus.endpoint import call
from shared.messages import ListModels, ModelCard, ModelList
from shared.subjects import Caller


async def list_models(bus: Bus, *, timeout_s: float = 2.0, caller: Caller | None = None) -> list[ModelCard]:
    """The models that a router can route to now; `caller` is the name of a service outside.

    Raises:
        Unavailable: no router runs, or none answered in time.
    """
    return (await call(bus, subjects.models(caller), ListModels(), ModelList, timeout_s=timeout_s)).models
