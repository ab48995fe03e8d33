"""Connections to Redis: dead ones are replaced between calls, and none is left once the link is closed."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest
import redis.asyncio as aioredis

from services.kvstate.redis.link import RedisLink
from services.kvstate.redis.store_errors import StoreAway
from tests.kits.proxies.tcp import TcpProxy
from tests.kits.servers import RedisServer
from tests.kits.waiting import PATIENCE_S, until


async def test_a_restart_between_calls_fails_none_of_them(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    link = RedisLink(
        server.url, timeout_s=PATIENCE_S, max_connections=8, name="store", reason="session_store"
    )
    try:
        # open as many connections as there will be calls
        await asyncio.gather(*(link.pipeline([("SET", "key", number)]) for number in range(8)))
        server.stop(kill=True)
        server.start()
        await asyncio.sleep(0.05)
        for calls in (1, 8):
            answers = await asyncio.gather(*(link.pipeline([("GET", "key")]) for _ in range(calls)))
            assert answers == [[None]] * calls  # the restarted store is empty
        server.stop(kill=True)
        with pytest.raises(StoreAway, match="cannot be reached") as caught:
            await link.pipeline([("GET", "key")])
        assert caught.value.refused
    finally:
        await link.close()
        server.stop(kill=True)


@pytest.mark.parametrize("calls_before", [0, 1])
async def test_calls_under_way_leave_no_connection_behind_a_closed_link(
    tmp_path: Path, calls_before: int
) -> None:
    server = RedisServer(tmp_path)
    server.start()
    looking = aioredis.Redis.from_url(server.url)

    async def connections() -> int:
        return len(await looking.client_list()) - 1  # without its own

    try:
        async with TcpProxy(server.port) as proxy:
            url = f"redis://127.0.0.1:{proxy.port}/0"
            link = RedisLink(url, timeout_s=PATIENCE_S, max_connections=4, name="store", reason="r")
            for _ in range(calls_before):
                await link.pipeline([("SET", "key", 1)])
            proxy.stall()
            calls = [asyncio.create_task(link.pipeline([("GET", "key")])) for _ in range(4)]
            await asyncio.sleep(0)  # they are connecting, or wait for their answers
            await link.close()
            proxy.resume()
            ended = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(end, StoreAway) or end == [None] for end in ended)
            with pytest.raises(StoreAway):
                await link.pipeline([("GET", "key")])
            await until(lambda: none_of(connections()))
    finally:
        await looking.aclose()
        server.stop(kill=True)


async def none_of(counting: Awaitable[int]) -> bool:
    return await counting == 0
