"""vLLM's KV events over real ZeroMQ: gaps, replays, restarts; and an index of others fed by them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from services.worker.guests.kv_events.contents import VllmContents
from services.worker.guests.kv_events.subscriber import VllmKVSubscriber
from shared.bus.nats import NatsBus
from shared.client.kv_events import KVEventFollower, block_names
from tests.kits.kv.vllm_publisher import CLEARED, VllmPublisher, removed, stored
from tests.kits.servers import free_port
from tests.kits.waiting import PATIENCE_S, until
from tests.kits.worker.leader import Kit


@asynccontextmanager
async def engine(port: int, **options: Any) -> AsyncIterator[VllmPublisher]:
    """One start of a vLLM."""
    publisher = VllmPublisher(port, **options)
    replays = asyncio.create_task(publisher.serve_replays())
    try:
        yield publisher
    finally:
        replays.cancel()
        await asyncio.gather(replays, return_exceptions=True)
        publisher.kill()


class Listener:
    """A subscriber with its contents."""

    def __init__(self, port: int, *, replays: bool = True) -> None:
        self.contents = VllmContents("f00d", sharing="all")
        replay = f"tcp://127.0.0.1:{port + 1}" if replays else ""
        self.subscriber = VllmKVSubscriber(self.contents, f"tcp://127.0.0.1:{port}", replay, topic="kv")

    async def __aenter__(self) -> "Listener":
        self._task = asyncio.create_task(self.subscriber.run_forever())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def has(self, blocks: int) -> None:
        """Waits until it claims so many blocks."""
        await until(lambda: self._task.done() or self.contents.num_names() == blocks)
        assert not self._task.done(), self._task.exception()


def one(number: int) -> dict[str, Any]:
    """A prompt of one block."""
    return stored([number], None, [number] * 16)


@pytest.fixture
def port() -> int:
    return free_port()


async def test_what_was_published_before_it_listened_is_replayed(port: int) -> None:
    async with engine(port) as vllm:
        await vllm.publish(one(1))
        await vllm.publish(one(2), arrays=True)
        async with Listener(port) as listener:
            await listener.has(2)
            await vllm.publish(one(3), removed([1]))
            await vllm.publish(stored([4], 3, [7] * 16))
            await listener.has(3)
            await vllm.publish(CLEARED)
            await listener.has(0)
            assert listener.subscriber.num_resets == 0


async def test_lost_batches_are_replayed(port: int) -> None:
    async with engine(port) as vllm, Listener(port) as listener:
        await vllm.publish(one(1))
        await listener.has(1)
        for number in (2, 3, 4):
            await vllm.publish(one(number), lost=True)
        await vllm.publish(one(5), removed([2]))
        await listener.has(4)
        assert (vllm.num_replays, listener.subscriber.num_resets) == (2, 0)


@pytest.mark.parametrize("batches", [1, 3, 4, 9])
async def test_a_restart_is_never_taken_for_continuity(port: int, batches: int) -> None:
    """Also if the next number that is heard is the expected one, or a later one."""
    async with AsyncExitStack() as stack:
        listener = Listener(port)
        async with engine(port) as vllm:
            for number in (1, 2, 3):
                await vllm.publish(one(number))
            await stack.enter_async_context(listener)
            await listener.has(3)
        async with engine(port) as vllm:
            for number in range(100, 100 + batches):
                await vllm.publish(one(number))
            await until(lambda: listener.subscriber.num_resets > 0)
            await listener.has(batches)
            await vllm.publish(one(200))
            await listener.has(batches + 1)
            fresh = Listener(port)
            await stack.enter_async_context(fresh)
            await fresh.has(batches + 1)
            assert set(fresh.contents.names()) == set(listener.contents.names())


async def test_a_connection_that_was_cut_is_no_restart(port: int) -> None:
    async with engine(port) as vllm, Listener(port) as listener:
        await vllm.publish(one(1))
        await listener.has(1)
        vllm.drop_connections()
        await vllm.publish(one(2), lost=True)
        await listener.has(2)
        assert listener.subscriber.num_resets == 0


async def test_batches_that_are_not_kept_any_more_make_the_cache_unknown(port: int) -> None:
    async with engine(port, kept=2) as vllm, Listener(port) as listener:
        await vllm.publish(one(1))
        await listener.has(1)
        for number in range(2, 7):
            await vllm.publish(one(number), lost=True)
        await vllm.publish(one(7), stored([8], 1, [8] * 16))  # its parent is not known any more
        await listener.has(2)
        assert (listener.subscriber.num_resets, listener.contents.num_unnamed) == (1, 1)


async def test_without_replays_a_gap_makes_the_cache_unknown(port: int) -> None:
    async with engine(port) as vllm, Listener(port, replays=False) as listener:

        async def heard() -> bool:
            await vllm.publish(one(1))
            return listener.contents.num_names() == 1

        await until(heard)
        await vllm.publish(one(2), lost=True)
        await vllm.publish(one(3))
        await until(lambda: listener.subscriber.num_resets == 1)
        await listener.has(1)


async def test_a_batch_that_cannot_be_read_makes_the_cache_unknown(port: int) -> None:
    async with engine(port) as vllm, Listener(port) as listener:
        await vllm.publish(one(1))
        await listener.has(1)
        await vllm.publish({"type": "BlockStored", "block_hashes": "?"})
        await listener.has(0)
        await vllm.publish(one(2))
        await listener.has(1)


async def test_a_foreign_router_follows_vllm_through_restarts(nats_bus: NatsBus, port: int) -> None:
    async with AsyncExitStack() as stack:
        listener = await stack.enter_async_context(Listener(port))
        kit = Kit(nats_bus, group="vllm-0", kv_contents=listener.contents)
        await stack.enter_async_context(kit)
        follower = await stack.enter_async_context(KVEventFollower(nats_bus))
        for start in range(4):
            async with engine(port) as vllm:
                prompt = list(range(1000 * start, 1000 * start + 64))
                await vllm.publish(stored([1, 2, 3, 4], None, prompt))
                await vllm.publish(removed([4]), one(9))
                await finds(follower, prompt, 3)
                await follower.until_current(PATIENCE_S)
                assert follower.index.names("vllm-0") == set(listener.contents.names())
                if start:
                    assert await leading(follower, list(range(1000 * start - 1000, 1000 * start))) == 0


async def leading(follower: KVEventFollower, prompt: list[int]) -> int:
    """How many leading blocks of a prompt a router of others knows at the guest."""
    group = follower.index.groups.get("vllm-0")
    names = [] if group is None else block_names(group, prompt, "acme")
    return follower.index.find(names).get("vllm-0", 0)


async def finds(follower: KVEventFollower, prompt: list[int], count: int) -> None:
    async def found() -> bool:
        return await leading(follower, prompt) == count

    await until(found)
