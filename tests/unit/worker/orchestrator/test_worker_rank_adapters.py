"""The ranks' answers about adapters are joined into one: all have it, or the first reason why not."""

import asyncio
from typing import Any

import msgspec
import pytest

from services.worker.orchestrator.orders.rank_adapters import RankAdapters
from services.worker.rank_protocol.adapters import AdapterLoaded, LoadAdapter
from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.rank_messages import FrameKind, FrameReader


class Link:
    """Notes the frames that a rank is sent."""

    def __init__(self) -> None:
        self.frames: list[tuple[FrameKind, bytes]] = []

    def send_frame(self, frame: bytes) -> None:
        self.frames += FrameReader().feed(frame)


def ordered(adapters: RankAdapters, order_id: int, ranks: int = 2) -> "asyncio.Future[AdapterLoaded]":
    links: list[Any] = [Link() for _ in range(ranks)]
    order = LoadAdapter(order_id=order_id, slot=3, source="/a", fingerprint="0" * 32, after_step=9)
    future = adapters.load_adapter(links, order)
    for link in links:
        ((kind, body),) = link.frames
        assert kind is FrameKind.LOAD_ADAPTER
        assert msgspec.msgpack.decode(body, type=LoadAdapter) == order
    return future


def say(adapters: RankAdapters, **fields: Any) -> None:
    adapters.take_answer(msgspec.msgpack.encode(AdapterLoaded(**fields)))


async def test_an_adapter_is_loaded_when_every_rank_has_it() -> None:
    adapters = RankAdapters()
    first, second = ordered(adapters, 1), ordered(adapters, 2)
    say(adapters, order_id=2, num_bytes=5, seconds=0.5)
    say(adapters, order_id=1, num_bytes=10, seconds=0.1)
    assert not first.done()
    assert not second.done()
    say(adapters, order_id=1, num_bytes=11, seconds=0.3)
    assert first.result() == AdapterLoaded(order_id=1, num_bytes=21, seconds=0.3)
    say(adapters, order_id=2, seconds=0.2, error="there is no room")
    assert second.result() == AdapterLoaded(order_id=2, num_bytes=5, seconds=0.5, error="there is no room")


async def test_a_failed_engine_ends_all_orders() -> None:
    adapters = RankAdapters()
    waiting, given_up = ordered(adapters, 1), ordered(adapters, 2)
    given_up.cancel()
    adapters.fail_all(EngineFailed("rank 1 is gone"))
    with pytest.raises(EngineFailed, match="rank 1 is gone"):
        await waiting
    say(adapters, order_id=1)  # it was on its way


async def test_an_answer_that_nothing_waits_for_is_dropped() -> None:
    adapters = RankAdapters()
    future = ordered(adapters, 1, ranks=1)
    future.cancel()
    say(adapters, order_id=1)
    assert future.cancelled()
