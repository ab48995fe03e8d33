"""Parked streams: their limit, their grace period, and a gateway that stops."""

import asyncio
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from services.gateway.answering.resumption.resume_token import VERSION, ResumeToken
from shared import subjects
from shared.bus import Message
from shared.codec import decode, encode
from shared.messages import Attach, Attached, Cancel, GenerateRequest
from tests.kits.gateway.gateway import GROUP, Gateway, running_gateway
from tests.kits.waiting import PATIENCE_S, until

BODY = b'{"model":"slow","stream":true,"messages":[{"role":"user","content":"x"}]}'


class Keeper:
    """A leader with a running request that has its own grace, and that answers when `answers` is set."""

    def __init__(self, gateway: Gateway, grace_s: float, kind: str = "chat") -> None:
        self.gateway = gateway
        self.request = GenerateRequest(
            request_id="r-kept",
            model="slow",
            prompt="x",
            attempt=3,
            note=ResumeToken(VERSION, kind, 1, False, grace_s).encode(),
        )
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()
        self.cancels: list[Cancel] = []

    async def start(self) -> "Keeper":
        await self.gateway.fleet.bus.subscribe(subjects.ATTACH, self._attach, max_concurrent=9)
        await self.gateway.fleet.bus.subscribe(subjects.cancel(GROUP), self._cancel)
        return self

    async def _attach(self, message: Message) -> None:
        asked = decode(message.data, Attach)
        self.request = replace(self.request, call_key=asked.call_key, call_digest=asked.call_digest)
        self.asked.set()
        await self.answers.wait()
        answer = Attached(request=encode(self.request), group=GROUP, next_seq=1)
        await self.gateway.fleet.bus.publish(message.reply, encode(answer))

    async def _cancel(self, message: Message) -> None:
        self.cancels.append(decode(message.data, Cancel))


async def test_a_stream_whose_format_this_gateway_does_not_know_is_gone_and_ends() -> None:
    async with running_gateway() as gateway:
        run = await Keeper(gateway, 30, "another").start()
        run.answers.set()
        async with httpx.AsyncClient(base_url=gateway.url) as http:
            answer = await http.get("/v1/streams/r-kept")
        assert (answer.status_code, answer.json()["error"]["code"]) == (410, "stream_gone")
        await until(lambda: bool(run.cancels))


@pytest.mark.parametrize("mode", ["stream", "repeat"])
@pytest.mark.parametrize("grace_s", [0, 30])
async def test_a_client_that_leaves_while_its_stream_is_looked_for(mode: str, grace_s: float) -> None:
    """The leader has detached the stream by then: it is cancelled or parked, as if it had been read."""
    async with running_gateway(idempotency_find_ms=2000) as gateway:
        run = await Keeper(gateway, grace_s).start()
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        head = "GET /v1/streams/r-kept HTTP/1.1\r\nHost: localhost\r\n\r\n"
        if mode == "repeat":
            head = (
                "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Idempotency-Key: k\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY.decode()}"
            )
        writer.write(head.encode())
        await run.asked.wait()
        writer.close()
        await writer.wait_closed()
        await asyncio.sleep(0.05)  # the gateway notices the disconnect while the search runs
        run.answers.set()
        if grace_s and mode == "stream":
            await until(lambda: parked(gateway) == 1)
            assert run.cancels == []
            return
        await until(lambda: bool(run.cancels))
        assert (run.cancels[0].request_id, run.cancels[0].attempt) == ("r-kept", 3)
        await gateway.wait_idle()
        assert gateway.fleet.requests == []


async def test_a_stopping_gateway_leaves_a_stream_whose_answer_has_not_begun() -> None:
    """The client gets a 503; it knows the id and can resume the stream at another gateway."""
    async with running_gateway(header_wait_s=30) as gateway:
        run = await Keeper(gateway, 30).start()
        run.answers.set()
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(b"GET /v1/streams/r-kept HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        await until(lambda: gateway.metric("ryz_gateway_attached_streams_total") == 1)
        await gateway.service.drain()
        await gateway.stack.aclose()
        assert (await reader.read()).startswith(b"HTTP/1.1 503")
        writer.close()
        assert run.cancels == []


async def begin_and_leave(gateway: Gateway, grace: str = "") -> None:
    """Starts a stream, reads part of it and disconnects."""
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


async def test_a_parked_stream_holds_a_slot_until_its_time_is_over() -> None:
    async with running_gateway() as gateway:
        await begin_and_leave(gateway, "1")
        await until(lambda: parked(gateway) == 1)
        assert gateway.running == 1
        request = gateway.fleet.requests[0]
        assert not gateway.fleet.cancel_of(request.request_id).is_set()
        async with asyncio.timeout(PATIENCE_S):
            await gateway.fleet.cancel_of(request.request_id).wait()
        await gateway.wait_idle()
        assert parked(gateway) == 0
        assert gateway.metric("ryz_gateway_expired_streams_total") == 1


@pytest.mark.parametrize(("settings", "grace"), [({}, ""), ({}, "0"), ({"stream_max_grace_s": 0}, "30")])
async def test_without_a_grace_it_is_cancelled_at_once(settings: dict[str, Any], grace: str) -> None:
    async with running_gateway(**settings) as gateway:
        await begin_and_leave(gateway, grace)
        await gateway.wait_idle()
        await gateway.wait_cancelled()
        assert parked(gateway) == 0


async def test_a_default_grace_and_a_bound_on_parked_streams() -> None:
    async with running_gateway(stream_grace_s=30, stream_max_parked=1) as gateway:
        await begin_and_leave(gateway)
        await until(lambda: parked(gateway) == 1)
        await begin_and_leave(gateway)
        first, second = (one.request_id for one in gateway.fleet.requests)
        async with asyncio.timeout(20):  # less than the grace
            await gateway.fleet.cancel_of(second).wait()
        assert not gateway.fleet.cancel_of(first).is_set()
        assert (parked(gateway), gateway.running) == (1, 1)


async def test_a_stopping_gateway_does_not_wait_for_parked_streams_and_leaves_them() -> None:
    async with running_gateway(drain_timeout_s=60) as gateway:
        await begin_and_leave(gateway, "30")
        await until(lambda: parked(gateway) == 1)
        async with asyncio.timeout(20):  # less than the grace
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
