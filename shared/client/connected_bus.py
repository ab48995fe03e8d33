"""Connects a service of its own to the broker, by the settings of its environment and a URL."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import ValidationError

from shared.bus.nats import NatsBus
from shared.errors import InvalidRequest
from shared.settings import BusSettings, describe
from shared.subjects import Caller


@asynccontextmanager
async def connected_bus(
    url: str, tenant: str, *, name: str, connect_wait_s: float
) -> AsyncIterator[tuple[NatsBus, Caller | None]]:
    """Yields the connection and the caller that it belongs to; see `InferenceClient.connect`."""
    try:
        given = {"nats_url": url, "nats_tenant": tenant}
        settings = BusSettings.model_validate({key: value for key, value in given.items() if value})
    except ValidationError as error:
        raise InvalidRequest(describe(error)) from error
    bus = await NatsBus.from_settings(settings, name=name, connect_wait_s=connect_wait_s)
    try:
        yield bus, settings.caller()
    finally:
        await bus.close()
