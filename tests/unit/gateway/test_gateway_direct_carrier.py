"""A call by a transport without HTTP waits for its transport, and ends when its caller leaves."""

import asyncio

import pytest

from services.gateway.answering.direct_carrier import PIECE, DirectCarrier


async def test_a_call_waits_while_its_transport_does_not_take_what_it_has() -> None:
    carrier, sent = DirectCarrier(), list[bytes]()

    async def send(part: bytes) -> None:
        sent.append(part)

    await carrier.put([b"a"], PIECE)
    assert (carrier.started, carrier.waits_since) == (True, 0.0)
    waiting = asyncio.create_task(carrier.put([b"b", b"c"], 1))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert carrier.waits_since > 0
    sending = asyncio.create_task(carrier.send_all(send))
    await waiting
    assert (carrier.unsent, carrier.waits_since, carrier.bytes_sent) == (0, 0.0, PIECE + 1)
    carrier.end()
    await sending
    assert sent == [b"a", b"b", b"c"]


async def test_a_call_that_waits_goes_on_when_its_caller_leaves() -> None:
    carrier, reported = DirectCarrier(), list[str]()
    carrier.on_gone = lambda: reported.append("gone")
    waiting = asyncio.create_task(carrier.put([b"a"], PIECE + 1))
    await asyncio.sleep(0)
    carrier.leave()
    carrier.leave()
    await waiting
    assert (reported, carrier.gone, carrier.waits_since) == (["gone"], True, 0.0)


async def test_what_the_transport_raises_is_raised() -> None:
    carrier = DirectCarrier()

    async def send(part: bytes) -> None:
        raise TimeoutError("the client does not read")

    await carrier.put([b"a"], 1)
    with pytest.raises(TimeoutError):
        await carrier.send_all(send)
