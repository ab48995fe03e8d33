"""Connects a service of its own to the broker, by the settings of its environment and a URL."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from pydantic import ValidationError

from shared import subjects
from shared.bus import NoResponders, RequestTimedOut
from shared.bus.nats import NatsBus
from shared.codec import encode
from shared.errors import InvalidRequest, Unavailable
from shared.messages import ListModels
from shared.settings import BusSettings, describe
from shared.subjects import OutsideService

CHECK_S = 1.0


@asynccontextmanager
async def connected_bus(
    url: str, tenant: str, *, name: str, connect_wait_s: float
) -> AsyncIterator[tuple[NatsBus, OutsideService | None]]:
    """Yields the connection and the caller that it belongs to; see `InferenceClient.connect`."""
    try:
        given = {"nats_url": url, "nats_tenant": tenant}
        settings = BusSettings.model_validate({key: value for key, value in given.items() if value})
    except ValidationError as error:
        raise InvalidRequest(describe(error)) from error
    bus = await NatsBus.from_settings(settings, name=name, connect_wait_s=connect_wait_s)
    try:
        caller = settings.caller()
        if caller is not None:
            await _check_tenant(bus, caller)
        yield bus, caller
    finally:
        await bus.close()


async def _check_tenant(bus: NatsBus, caller: OutsideService) -> None:
    """Raises `InvalidRequest` if the broker does not let this user ask for this tenant.

    The broker answers what is forbidden beside the conversation, so each request would only time out.
    """
    with suppress(NoResponders, RequestTimedOut, Unavailable):
        await bus.request(subjects.models(caller), encode(ListModels()), timeout_s=CHECK_S)
    if any(f'"{subjects.models(caller)}"' in message for message in bus.forbidden):
        raise InvalidRequest(
            f"the broker does not let its user {caller.user!r} ask for the tenant {caller.tenant!r}: give "
            "the user's tenant as `tenant=` or RYZ_NATS_TENANT; `ryz keys list` shows it",
            param="tenant",
        )
