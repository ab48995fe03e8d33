from collections.abc import AsyncIterator

import httpx
import pytest_asyncio

from tests.kits.gateway.gateway import Gateway


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(shared_gateway: Gateway) -> Gateway:
    """The gateway of a module, with the records of earlier tests removed."""
    shared_gateway.fleet.requests.clear()
    shared_gateway.fleet.headers.clear()
    return shared_gateway


@pytest_asyncio.fixture(loop_scope="module")
async def http(gateway: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as client:
        yield client
