"""Only time in Redis counts toward a limit: a call that waits in this process does not open the circuit."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from services.kvstate.redis.link import RedisLink
from services.kvstate.redis.store_errors import StoreAway
from shared.errors import Unavailable
from shared.flow.circuit import Circuit, store_limits
from tests.kits.proxies.tcp import TcpProxy
from tests.kits.waiting import PATIENCE_S

LIMIT_S = 0.3
SLOW = ("BLPOP", "no such list", "0.1")


def link_to(url: str) -> tuple[RedisLink, Circuit]:
    circuit = Circuit(store_limits(failures=1))
    link = RedisLink(
        url, timeout_s=LIMIT_S, max_connections=1, name="store", reason="session_store", circuit=circuit
    )
    return link, circuit


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_an_answer_that_came_while_the_loop_was_busy_is_taken(
    redis_url: str, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    async def story() -> None:
        link, circuit = link_to(redis_url)
        try:
            await link.pipeline([("PING",)])
            call = asyncio.ensure_future(link.pipeline([SLOW]))
            await asyncio.sleep(0.02)  # the command is sent, and its answer arrives while the loop is blocked
            for _ in range(3):
                time.sleep(1.2 * LIMIT_S)  # noqa: ASYNC251 (another call of this process computes)
                await asyncio.sleep(0)
            assert await call == [None]
            assert circuit.is_closed
        finally:
            await link.close()

    run(story())


async def test_waiting_for_a_connection_of_the_pool_is_not_redis_time(redis_url: str) -> None:
    link, circuit = link_to(redis_url)
    answers = await asyncio.gather(
        *(link.pipeline([SLOW]) for _ in range(8))  # one after another: 0.8 s
    )
    assert answers == [[None]] * 8
    assert circuit.is_closed
    await link.close()


async def test_a_redis_that_does_not_answer_in_time_is_away(redis_url: str) -> None:
    port = int(redis_url.split(":")[2].split("/", maxsplit=1)[0])
    async with TcpProxy(port) as proxy:
        link, circuit = link_to(f"redis://127.0.0.1:{proxy.port}/0")
        await link.pipeline([("PING",)])
        proxy.stall()
        began = time.monotonic()
        with pytest.raises(StoreAway, match="did not answer in time") as caught:
            async with asyncio.timeout(PATIENCE_S):
                await link.pipeline([("PING",)])
        assert time.monotonic() - began >= LIMIT_S
        assert not caught.value.refused
        assert circuit.opened_total == 1
        with pytest.raises(Unavailable, match="is away") as refused:  # refused without asking Redis
            await link.pipeline([("PING",)])
        assert refused.value.data["reason"] == "session_store"
        proxy.resume()
        assert await link.pipeline([("PING",)], probe=True) == [True]  # on a new connection
        assert circuit.is_closed
        await link.close()
