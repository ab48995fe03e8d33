"""Reports of all ranks about KV blocks are merged into one result."""

import asyncio
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from services.worker.orchestrator.orders.rank_blocks import RankBlocks
from services.worker.rank_protocol.failures import EngineFailed
from services.worker.rank_protocol.kv_messages import FetchBlocks, FetchResult, StoreBlock, StoreResult
from services.worker.rank_protocol.rank_messages import FrameKind, FrameReader, pack_frame
from tests.kits.held_objects import num_held
from tests.kits.waiting import until

A, B, C = (letter * 16 for letter in (b"a", b"b", b"c"))


class Ranks:
    """Both ends of the KV sockets of `world` ranks."""

    def __init__(self, world: int) -> None:
        self.ends: list[socket.socket] = []
        self.lost: list[str] = []
        self.stored: list[StoreResult] = []
        self.blocks = RankBlocks(lambda _, reason: self.lost.append(reason))
        self.blocks.watch_store(self.stored.append)
        processes: list[Any] = [SimpleNamespace(rank=world, kv_sock=None)]
        for rank in range(world):
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            theirs.setblocking(False)
            self.ends.append(theirs)
            processes.append(SimpleNamespace(rank=rank, kv_sock=ours, sock=None))
        self._processes = processes
        self.blocks.attach_ranks(processes)

    async def say(self, rank: int, message: FetchResult | StoreResult) -> None:
        kind = FrameKind.FETCHED if isinstance(message, FetchResult) else FrameKind.STORED
        self.ends[rank].send(pack_frame(kind, message))
        await asyncio.sleep(0.01)

    async def say_all(self, message: StoreResult) -> None:
        for rank in range(len(self.ends)):
            await self.say(rank, message)

    def heard(self, rank: int) -> list[FrameKind]:
        return [kind for kind, _ in FrameReader().feed(self.ends[rank].recv(65536))]

    def close(self) -> None:
        self.blocks.detach_ranks(EngineFailed("over"))
        for one in (*self.ends, *(process.kv_sock for process in self._processes[1:])):
            one.close()


@pytest.fixture
async def ranks() -> AsyncIterator[Ranks]:
    made = Ranks(2)
    yield made
    made.close()


async def test_a_fetch_has_what_all_ranks_have(ranks: Ranks) -> None:
    future = ranks.blocks.fetch_blocks(FetchBlocks(fetch_id=7, blocks=[1, 2, 3], names=A + B + C))
    assert ranks.heard(0) == ranks.heard(1) == [FrameKind.FETCH]
    await ranks.say(1, FetchResult(fetch_id=7, count=3, num_bytes=30, seconds=0.1))
    assert not future.done()
    await ranks.say(0, FetchResult(fetch_id=7, count=1, num_bytes=10, seconds=0.3, corrupt=B, error="slow"))
    assert future.result() == FetchResult(
        fetch_id=7, count=1, num_bytes=40, seconds=0.3, corrupt=B, error="slow"
    )
    await ranks.say(0, FetchResult(fetch_id=7, count=1))  # of a fetch that has ended


async def test_a_fetch_that_no_sequence_waits_for_ends_all_the_same(ranks: Ranks) -> None:
    future = ranks.blocks.fetch_blocks(FetchBlocks(fetch_id=1, blocks=[1], names=A))
    future.cancel()
    futures: list[object] = [future]
    del future
    assert num_held(futures) == 1
    for rank in (0, 1):
        await ranks.say(rank, FetchResult(fetch_id=1, count=1))
    assert num_held(futures) == 0


async def test_a_block_is_stored_when_every_rank_has_written_it(ranks: Ranks) -> None:
    ranks.blocks.expect_copies([StoreBlock(1, A), StoreBlock(2, B)])
    await ranks.say(0, StoreResult(names=A + B, num_bytes=20))
    assert [(one.names, one.dropped, one.num_bytes) for one in ranks.stored] == [(b"", b"", 20)]
    await ranks.say(1, StoreResult(names=A, dropped=B, num_bytes=10, error="no memory"))
    last = ranks.stored[-1]
    assert (last.names, last.dropped, last.num_bytes, last.error) == (A, B, 10, "no memory")
    await ranks.say(1, StoreResult(names=C))  # an unexpected copy
    assert ranks.stored[-1].names == b""
    await ranks.say_all(StoreResult(names=A + B))  # nothing is left of them either
    assert [(one.names, one.dropped) for one in ranks.stored[-2:]] == [(b"", b"")] * 2


async def test_a_rank_that_is_gone_is_reported(ranks: Ranks) -> None:
    ranks.ends[1].shutdown(socket.SHUT_RDWR)
    await until(lambda: bool(ranks.lost))
    assert ranks.lost == ["rank 1 closed its KV socket"]


async def test_what_is_under_way_ends_with_the_engine(ranks: Ranks) -> None:
    future = ranks.blocks.fetch_blocks(FetchBlocks(fetch_id=1, blocks=[1], names=A))
    cancelled = ranks.blocks.fetch_blocks(FetchBlocks(fetch_id=2, blocks=[1], names=A))
    cancelled.cancel()
    ranks.blocks.expect_copies([StoreBlock(1, A)])
    ranks.blocks.detach_ranks(EngineFailed("rank 1 died"))
    with pytest.raises(EngineFailed, match="rank 1 died"):
        await future
    await ranks.say(0, StoreResult(names=A))
    assert ranks.stored == []


async def test_no_listener_is_needed(ranks: Ranks) -> None:
    ranks.blocks.watch_store(None)
    ranks.blocks.expect_copies([StoreBlock(1, A)])
    await ranks.say_all(StoreResult(names=A))
    ranks.blocks.watch_store(ranks.stored.append)
    await ranks.say_all(StoreResult(names=A))
    assert [one.names for one in ranks.stored] == [b"", b""]
