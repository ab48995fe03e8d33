"""WebSockets that are only held open give way, per address and in all; those with a request do not.

Real sockets of several addresses of this machine.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.kits.gateway.gateway import Gateway, running_gateway
from tests.kits.gateway.raw_http import RawAnswer, raw_connection
from tests.kits.waiting import PATIENCE_S, until

LIMIT = 8
PATHS = ("/v1/realtime", "/v1/responses")
HOLDER, OTHER = "127.0.0.2", "127.0.0.3"
BODY = b'{"model":"demo","messages":[{"role":"user","content":"Hello"}]}'
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


def opened(gateway: Gateway, path: str, source: str = HOLDER) -> connect:
    return connect(f"ws://127.0.0.1:{gateway.port}{path}", local_addr=(source, 0), close_timeout=1)


@asynccontextmanager
async def held(gateway: Gateway, path: str, count: int) -> AsyncIterator[list[ClientConnection]]:
    """So many sockets of one address that send nothing; they answer pings, as every client does."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(opened(gateway, path)) for _ in range(count)]


async def chat(gateway: Gateway, source: str = HOLDER) -> RawAnswer:
    async with raw_connection(gateway.port, source) as connection:
        await connection.send(POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
        return await connection.answer()


async def begin(gateway: Gateway, path: str, socket: ClientConnection) -> None:
    """Begins a request that does not end by itself."""
    count = len(gateway.fleet.requests) + 1
    asked: dict[str, Any] = {"type": "response.create", "model": "slow", "input": "Hello"}
    if path == "/v1/realtime":
        body = json.loads(BODY) | {"model": "slow", "stream": True}
        asked = {"type": "request", "id": "a", "body": body}
    await socket.send(json.dumps(asked))
    await gateway.fleet.wait_requests(count)


async def close_code(socket: ClientConnection) -> int:
    """The code with which the gateway closes a socket."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                await socket.recv()
    except ConnectionClosed as closed:
        return closed.rcvd.code if closed.rcvd is not None else 0


@pytest.mark.parametrize("path", PATHS)
async def test_silent_sockets_do_not_lock_their_address_out(path: str) -> None:
    async with running_gateway(http_max_connections_per_address=LIMIT) as gateway:
        async with held(gateway, path, LIMIT) as sockets:
            for _ in range(3):
                assert (await chat(gateway)).status == 200
            assert await close_code(sockets[0]) == 1013
            assert gateway.metric("ryz_gateway_closed_connections_total", reason="address_gave_way") >= 1
            await until(lambda: gateway.metric("ryz_gateway_connections") == LIMIT - 1)
            await (await sockets[1].ping())  # one was enough
        await until(lambda: gateway.metric("ryz_gateway_connections") == 0)


@pytest.mark.parametrize("path", PATHS)
async def test_silent_sockets_do_not_lock_other_addresses_out(path: str) -> None:
    async with running_gateway(max_connections=LIMIT) as gateway, held(gateway, path, LIMIT) as sockets:
        assert (await chat(gateway, OTHER)).status == 200
        assert await close_code(sockets[0]) == 1013


@pytest.mark.parametrize("path", PATHS)
async def test_a_socket_with_a_request_does_not_give_way(path: str) -> None:
    async with running_gateway(http_max_connections_per_address=LIMIT) as gateway:
        async with held(gateway, path, LIMIT) as sockets:
            await begin(gateway, path, sockets[0])
            assert (await chat(gateway)).status == 200
            assert await close_code(sockets[1]) == 1013
            for socket in sockets[2:]:
                await begin(gateway, path, socket)
            async with opened(gateway, path) as last:
                await begin(gateway, path, last)
                refused = await chat(gateway)
                assert (refused.status, refused.error["code"]) == (429, "address_connections")
                assert gateway.running == LIMIT
        await gateway.wait_idle()


@pytest.mark.parametrize("path", PATHS)
async def test_silent_sockets_give_way_to_another_socket(path: str) -> None:
    async with running_gateway(sockets_max=LIMIT) as gateway:
        async with held(gateway, path, LIMIT) as sockets:
            async with opened(gateway, path, OTHER) as newcomer:
                assert await close_code(sockets[0]) == 1013
                await begin(gateway, path, newcomer)
                for socket in sockets[2:]:
                    await begin(gateway, path, socket)
                async with opened(gateway, path, OTHER) as second:  # in place of the last one that is idle
                    assert await close_code(sockets[1]) == 1013
                    await begin(gateway, path, second)
                    with pytest.raises(InvalidStatus) as refused:
                        async with opened(gateway, path, OTHER):
                            pass
                    assert refused.value.response.status_code == 503
            assert gateway.metric("ryz_gateway_closed_connections_total", reason="socket_gave_way") == 2
        await gateway.wait_idle()


async def test_an_address_does_not_take_all_sockets_with_requests() -> None:
    path = "/v1/realtime"
    async with running_gateway(sockets_max=LIMIT) as gateway:
        async with held(gateway, path, LIMIT - 1) as sockets:
            for socket in sockets:
                await begin(gateway, path, socket)
            with pytest.raises(InvalidStatus) as refused:
                async with opened(gateway, path):
                    pass
            assert refused.value.response.status_code == 429
            async with opened(gateway, path, OTHER) as newcomer:
                await begin(gateway, path, newcomer)
        await gateway.wait_idle()


async def test_a_socket_that_was_used_outlives_those_that_were_not() -> None:
    path = "/v1/realtime"
    async with (
        running_gateway(http_max_connections_per_address=LIMIT) as gateway,
        held(gateway, path, LIMIT) as sockets,
    ):
        await sockets[0].send(json.dumps({"type": "request", "id": "a", "body": json.loads(BODY)}))
        while json.loads(await sockets[0].recv())["type"] != "answer":
            pass
        for socket in sockets[1:]:
            await socket.send('{"type": "ping"}')  # no request: it does not make a socket younger
        for _ in range(LIMIT - 1):
            async with opened(gateway, path) as newcomer:
                await newcomer.send('{"type": "ping"}')
        assert await close_code(sockets[1]) == 1013
        await sockets[0].send('{"type": "ping"}')
        assert json.loads(await sockets[0].recv())["type"] == "pong"


async def test_a_socket_whose_client_answers_no_close_frame_gives_way_as_well() -> None:
    async with (
        running_gateway(http_max_connections_per_address=1) as gateway,
        raw_connection(gateway.port, HOLDER) as silent,
    ):
        await silent.send(
            b"GET /v1/realtime HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            b"Sec-WebSocket-Version: 13\r\n\r\n"
        )
        await until(lambda: gateway.metric("ryz_gateway_realtime_sockets") == 1)
        assert (await chat(gateway)).status == 200
        assert await silent.closed(5)
