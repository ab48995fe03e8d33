"""Only what Redis does counts as its time: a call that waits in this process is no sign of trouble there."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from services.kvstate.redis.redis_link import RedisLink
from services.kvstate.redis.store_guard import Guard
from services.kvstate.sessions.session_store import StoreAway
from shared.circuit import Circuit, CircuitLimits
from tests.kits.tcp_proxy import TcpProxy

LIMIT_S = 0.3
SLOW = ("BLPOP", "no such list", "0.1")


def link_to(url: str, *, max_connections: int = 1) -> RedisLink:
    return RedisLink(
        url, timeout_s=LIMIT_S, max_connections=max_connections, name="store", reason="session_store"
    )


def guard() -> Guard:
    circuit = Circuit(CircuitLimits(failures=1))
    return Guard(circuit, clock=time.monotonic, name="store", reason="session_store")


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_an_answer_that_came_while_the_loop_was_busy_is_taken(
    redis_url: str, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    async def story() -> None:
        link, watched = link_to(redis_url), guard()
        try:
            await link.pipeline([("PING",)])
            call = asyncio.ensure_future(watched.call(lambda: link.pipeline([SLOW])))
            await asyncio.sleep(0.02)  # sent, and the answer comes while nothing is read
            for _ in range(3):
                time.sleep(1.2 * LIMIT_S)  # noqa: ASYNC251 (another call of this process computes)
                await asyncio.sleep(0)
            assert await call == [None]
            assert not watched.circuit.open
        finally:
            await link.close()

    run(story())


async def test_waiting_for_a_connection_of_the_pool_is_not_redis_time(redis_url: str) -> None:
    link, watched = link_to(redis_url), guard()
    answers = await asyncio.gather(
        *(watched.call(lambda: link.pipeline([SLOW])) for _ in range(8))  # one after another: 0.8 s
    )
    assert answers == [[None]] * 8
    assert not watched.circuit.open
    await link.close()


async def test_a_redis_that_does_not_answer_in_time_is_away(redis_url: str) -> None:
    port = int(redis_url.split(":")[2].split("/", maxsplit=1)[0])
    async with TcpProxy(port) as proxy:
        link, watched = link_to(f"redis://127.0.0.1:{proxy.port}/0"), guard()
        await watched.call(lambda: link.pipeline([("PING",)]))
        proxy.stall()
        began = time.monotonic()
        with pytest.raises(StoreAway, match="did not answer in time") as caught:
            await watched.call(lambda: link.pipeline([("PING",)]))
        assert LIMIT_S <= time.monotonic() - began < 4 * LIMIT_S
        assert not caught.value.refused
        assert watched.circuit.opened_total == 1
        proxy.resume()
        assert await watched.probe(link.pipeline([("PING",)])) == [True]  # on a connection that is new
        assert not watched.circuit.open
        await link.close()
