"""A gateway with scripted session services, shared by the tests of a module."""

from collections.abc import AsyncIterator

import httpx
import pytest_asyncio

from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.gateway.session_records import TYPED
from tests.kits.gateway.session_services import SessionServices


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_gateway() -> AsyncIterator[Gateway]:
    async with running_gateway() as running:
        await running.fleet.sessions.stop()
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(shared_gateway: Gateway) -> AsyncIterator[Gateway]:
    """The gateway of this module, with new session services that hold no records."""
    fleet = shared_gateway.fleet
    fleet.sessions, cards = await SessionServices(fleet.bus).start(), fleet.cards
    yield shared_gateway
    await fleet.sessions.stop()
    fleet.cards = cards


@pytest_asyncio.fixture(loop_scope="module")
async def services(gateway: Gateway) -> SessionServices:
    return gateway.fleet.sessions


@pytest_asyncio.fixture(loop_scope="module")
async def http(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=gateway.url, headers=TYPED) as client:
        yield client
