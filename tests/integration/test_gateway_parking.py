"""Streams without a client: how many are kept, for how long, and what a stopping gateway does with them."""

import asyncio

import pytest

from tests.gateway_kit import Gateway, eventually, running_gateway

BODY = b'{"model":"slow","stream":true,"messages":[{"role":"user","content":"x"}]}'


async def begin_and_leave(gateway: Gateway, grace: str = "") -> None:
    """Starts a stream, reads some of it and hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    header = f"X-Stream-Grace: {grace}\r\n" if grace else ""
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"{header}Content-Length: {len(BODY)}\r\n\r\n"
    )
    writer.write(head.encode() + BODY)
    await reader.readuntil(b"word")
    writer.close()
    await writer.wait_closed()


def parked(gateway: Gateway) -> float:
    return gateway.metric("ryz_gateway_parked_streams")


async def test_a_parked_stream_holds_a_place_until_its_time_is_over() -> None:
    async with running_gateway() as gateway:
        await begin_and_leave(gateway, "1")
        await eventually(lambda: parked(gateway) == 1)
        assert gateway.running == 1
        request = gateway.fleet.requests[0]
        assert not gateway.fleet.cancel_of(request.request_id).is_set()
        async with asyncio.timeout(5):
            await gateway.fleet.cancel_of(request.request_id).wait()
        await gateway.wait_idle()
        assert parked(gateway) == 0
        assert gateway.metric("ryz_gateway_expired_streams_total") == 1


@pytest.mark.parametrize(("settings", "grace"), [({}, ""), ({}, "0"), ({"stream_max_grace_s": 0}, "30")])
async def test_without_a_grace_it_is_cancelled_at_once(settings: dict[str, int], grace: str) -> None:
    async with running_gateway(**settings) as gateway:
        await begin_and_leave(gateway, grace)
        await gateway.wait_idle()
        await gateway.wait_cancelled()
        assert parked(gateway) == 0


async def test_a_default_grace_and_a_bound_on_parked_streams() -> None:
    async with running_gateway(stream_grace_s=30, stream_max_parked=1) as gateway:
        await begin_and_leave(gateway)
        await eventually(lambda: parked(gateway) == 1)
        await begin_and_leave(gateway)
        first, second = (one.request_id for one in gateway.fleet.requests)
        async with asyncio.timeout(5):
            await gateway.fleet.cancel_of(second).wait()
        assert not gateway.fleet.cancel_of(first).is_set()
        assert (parked(gateway), gateway.running) == (1, 1)


async def test_a_stopping_gateway_does_not_wait_for_parked_streams_and_leaves_them() -> None:
    async with running_gateway(drain_timeout_s=10) as gateway:
        await begin_and_leave(gateway, "30")
        await eventually(lambda: parked(gateway) == 1)
        async with asyncio.timeout(5):
            await gateway.service.drain()
        await gateway.stack.aclose()
        request = gateway.fleet.requests[0]
        assert not gateway.fleet.cancel_of(request.request_id).is_set()
        assert parked(gateway) == 0


@pytest.mark.parametrize("grace", ["x", "-1", "nan", "inf"])
async def test_a_grace_that_is_none_is_refused(grace: str) -> None:
    async with running_gateway() as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Stream-Grace: {grace}\r\n"
            f"Content-Type: application/json\r\nConnection: close\r\nContent-Length: {len(BODY)}\r\n\r\n"
        )
        writer.write(head.encode() + BODY)
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 400")
        assert b"x-stream-grace" in answer
