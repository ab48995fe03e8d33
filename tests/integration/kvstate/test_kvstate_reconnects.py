"""A restart of Redis between calls fails none of them: dead connections are replaced."""

import asyncio
from pathlib import Path

import pytest

from services.kvstate.redis.link import RedisLink
from services.kvstate.redis.store_errors import StoreAway
from tests.kits.servers import RedisServer
from tests.kits.waiting import PATIENCE_S


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
