"""`/v1/realtime` below its messages: frames in any form, in one packet, and many that are not read."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kits.gateway.gateway import WORDS, Gateway, running_gateway
from tests.kits.realtime.frames import (
    PING,
    FrameClient,
    any_frames,
    check_frames,
    frame,
    frame_client,
    right_frames,
    told,
)
from tests.kits.waiting import PATIENCE_S, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
CHAT: dict[str, object] = {"messages": [{"role": "user", "content": "Hello"}], "stream": True}


def resident_mib() -> float:
    """Memory of this process, in which the gateway runs."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    unhandled: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    async with running_gateway(write_timeout_s=5.0, realtime_grace_s=0.2) as running:
        yield running
        assert running.metric("ryz_gateway_realtime_sockets") == 0
    assert not unhandled


@settings(max_examples=50, deadline=None, suppress_health_check=QUIET)
@given(st.lists(right_frames, min_size=1, max_size=8).map(b"".join))
async def test_right_frames_never_end_the_connection(gateway: Gateway, sent: bytes) -> None:
    await check_frames(gateway.port, sent, right=True)


@settings(max_examples=50, deadline=None, suppress_health_check=QUIET)
@given(st.lists(any_frames, min_size=1, max_size=8).map(b"".join))
async def test_wrong_frames_are_the_clients_fault(
    gateway: Gateway, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    with caplog.at_level(logging.ERROR):
        await check_frames(gateway.port, sent, right=False)
    assert caplog.records == []
    await gateway.wait_idle()


async def test_a_cancel_in_the_packet_of_its_request_ends_it(gateway: Gateway) -> None:
    async with frame_client(gateway.port) as client:
        ask = told("request", id="a", body=CHAT | {"model": "slow"})
        for _ in range(3):
            client.writer.write(ask + told("cancel", id="a"))
            assert await client.read_until("cancelled")
        client.writer.write(told("request", id="a", body=CHAT | {"model": "demo"}))
        assert await client.read_until("done")
    await gateway.wait_idle()


async def test_a_slow_client_is_told_and_its_other_requests_go_on(gateway: Gateway) -> None:
    async with frame_client(gateway.port) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.writer.write(told("request", id="flood", body=CHAT | {"model": "flood"}))
        await gateway.fleet.wait_requests(1)
        await asyncio.sleep(0.3)
        for name in "ab":
            client.writer.write(told("request", id=name, body=CHAT | {"model": "demo"}))
        await asyncio.sleep(2.5)  # the buffers of both sockets are full after the first tenths of it
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert await client.read_until("slow")
        client.writer.write(told("cancel", id="flood"))
        assert await client.read_until("cancelled")
        client.writer.write(told("session", session_id="") + told("ping"))
        assert await client.read_until("pong")
        for name in "ab":
            events = [one["data"] for one in client.messages if one["type"] == "event" and one["id"] == name]
            texts = [event["choices"][0]["delta"].get("content") or "" for event in events]
            assert "".join(texts) == "".join(WORDS)
    assert gateway.metric("ryz_gateway_realtime_slow_total") >= 1
    await gateway.wait_idle()


async def test_pings_of_a_client_that_does_not_read_take_no_memory(gateway: Gateway) -> None:
    """Answers to messages wait for the client; those to pings would not."""
    async with frame_client(gateway.port) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.writer.write(told("request", id="flood", body=CHAT | {"model": "flood"}))
        await until(lambda: gateway.running == 1)
        await asyncio.sleep(0.3)
        before = resident_mib()
        many = frame(b"x" * 125, PING) * 1000
        for _ in range(60):  # 8 MB of answers
            client.writer.write(many)
            async with asyncio.timeout(PATIENCE_S):
                await client.writer.drain()
        assert resident_mib() - before < 5
    await gateway.wait_idle()


async def test_a_message_in_very_many_frames_is_one(gateway: Gateway) -> None:
    async with frame_client(gateway.port) as client:
        text = json.dumps({"type": "ping"}).encode()
        empty = frame(b"", 0, fin=False) * 1000
        client.writer.write(frame(text[:3], fin=False) + empty)
        client.writer.write(b"".join(frame(bytes([byte]), 0, fin=False) for byte in text[3:]) + empty)
        client.writer.write(frame(b"", 0))
        assert await client.read_until("pong")


async def test_connections_count_for_the_tenant_that_a_message_names() -> None:
    keys = {name: f"secret-key-of-{name}" for name in ("ada", "bob")}
    listed = ",".join(f"{key}:{name}" for name, key in keys.items())
    async with running_gateway(api_keys=listed, sockets_max=4, tenant_share=0.5) as gateway:

        async def comes_in(name: str) -> FrameClient:
            client = await gateway.stack.enter_async_context(frame_client(gateway.port, known=False))
            client.writer.write(told("auth", api_key=keys[name]))
            await client.read_until("ready")
            return client

        bob = await comes_in("bob")
        ada = [await comes_in("ada") for _ in range(2)]
        for client in ada:
            client.writer.write(told("request", id="a", body=CHAT | {"model": "slow"}))
        await until(lambda: gateway.running == 2)
        refused = await comes_in("ada")
        assert (refused.messages[-1]["type"], refused.close_code) == ("error", 1008)
        bob.writer.write(told("ping"))
        assert await bob.read_until("pong")
        assert (await comes_in("bob")).messages[-1]["type"] == "ready"
