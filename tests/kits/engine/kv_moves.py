"""Helpers for tests of KV block transfers: a cache of plain bytes, collected reports, a stalling store."""

import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec
import numpy as np
import redis
from numpy.typing import NDArray

from services.worker.engine.kv_transfer.kv_channel import KVMover
from services.worker.rank_protocol.kv_messages import (
    FetchBlocks,
    FetchResult,
    KVStoreConfig,
    StoreBlock,
    StoreResult,
)
from services.worker.rank_protocol.rank_messages import FrameKind
from tests.kits.waiting import PATIENCE_S

HEAD_BYTES = 4096


class FakeBlocks:
    """Implements `CacheBlocks` over an array, [num_blocks, heads of the rank, head_bytes]."""

    def __init__(
        self, heads: range, *, writes: range | None = None, head_bytes: int = HEAD_BYTES, num_blocks: int = 64
    ) -> None:
        self.heads = heads
        self.writes = heads if writes is None else writes
        self.head_bytes = head_bytes
        self.data = np.zeros((num_blocks, len(heads), head_bytes), np.uint8)

    def copy_out(self, block: int, out: NDArray[np.uint8], sliding: int = -1) -> None:
        """See `CacheBlocks`."""
        first = self.writes.start - self.heads.start
        out[:, : self.head_bytes] = self.data[block, first : first + len(self.writes)]

    def copy_in(self, block: int, first: int, rows: NDArray[np.uint8], sliding: int = -1) -> None:
        """See `CacheBlocks`."""
        at = self.heads.index(first)
        self.data[block, at : at + len(rows)] = rows

    def fill(self, seed: int) -> None:
        """Fills the cache with fp32 values that depend on seed, block and head only, not on the rank."""
        for block in range(len(self.data)):
            for at, head in enumerate(self.heads):
                rng = np.random.default_rng((seed, block, head))
                self.data[block, at] = rng.normal(size=self.head_bytes // 4).astype(np.float32).view(np.uint8)


class Reports:
    """Collects what a mover reports."""

    def __init__(self) -> None:
        self.stored: list[StoreResult] = []
        self.fetched: dict[int, FetchResult] = {}
        self._changed = threading.Condition()

    def __call__(self, kind: FrameKind, message: msgspec.Struct) -> None:
        with self._changed:
            if isinstance(message, StoreResult):
                assert kind is FrameKind.STORED
                self.stored.append(message)
            else:
                assert isinstance(message, FetchResult)
                assert kind is FrameKind.FETCHED
                assert message.fetch_id not in self.fetched, "told twice"
                self.fetched[message.fetch_id] = message
            self._changed.notify_all()

    @property
    def written(self) -> bytes:
        """Names, in the order of the reports."""
        return b"".join(message.names for message in self.stored)

    @property
    def dropped(self) -> bytes:
        """Names, in the order of the reports."""
        return b"".join(message.dropped for message in self.stored)

    def until(self, true: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        """Waits until `true()` holds, checked after every report."""
        with self._changed:
            assert self._changed.wait_for(true, timeout_s), (self.stored, self.fetched)

    def copies(self, count: int) -> None:
        """Waits until `count` copies were written or dropped."""
        self.until(lambda: len(self.written) + len(self.dropped) >= 16 * count)


class Rank:
    """The mover, cache and reports of one rank."""

    def __init__(self, config: KVStoreConfig, blocks: FakeBlocks) -> None:
        self.blocks = blocks
        self.reports = Reports()
        self.mover = KVMover(config, blocks, self.reports)
        self._fetches = 0

    def store(self, names: list[bytes], first: int = 0) -> None:
        """Stores blocks first, first + 1, ... under these names, and waits for the reports."""
        before = (len(self.reports.written) + len(self.reports.dropped)) // 16
        self.take(names, first)
        self.reports.copies(before + len(names))

    def take(self, names: list[bytes], first: int = 0) -> None:
        """As `store`, without waiting for the reports."""
        self.mover.copy_out([StoreBlock(first + at, name) for at, name in enumerate(names)])

    def fetch(self, names: list[bytes], first: int = 0) -> FetchResult:
        """Reads these names into blocks first, first + 1, ..."""
        self._fetches += 1
        positions = list(range(first, first + len(names)))
        self.mover.fetch(FetchBlocks(fetch_id=self._fetches, blocks=positions, names=b"".join(names)))
        self.reports.until(lambda: self._fetches in self.reports.fetched)
        return self.reports.fetched[self._fetches]


@contextmanager
def rank(config: KVStoreConfig, blocks: FakeBlocks) -> Iterator[Rank]:
    """A rank, closed on exit."""
    made = Rank(config, blocks)
    try:
        yield made
    finally:
        made.mover.close()


def names(count: int) -> list[bytes]:
    """Unique block names, in order."""
    common = secrets.token_bytes(12)
    return [common + at.to_bytes(4, "big") for at in range(count)]


def said(fetched: FetchResult) -> dict[str, object]:
    """The nonempty fields of a `FetchResult`, without its id, bytes and time."""
    fields = msgspec.structs.asdict(fetched)
    return {name: fields[name] for name in ("count", "missing", "corrupt", "error") if fields[name]}


def client(url: str) -> redis.Redis:
    """A client to inspect and damage what was stored."""
    return redis.Redis.from_url(url)


@contextmanager
def server(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Runs a server in place of Redis and yields its URL; `answer` handles each connection in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connections.append(connection)
                threading.Thread(target=_quietly, args=(answer, connection), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            for connection in connections:
                connection.close()


def _quietly(answer: Callable[[socket.socket], None], connection: socket.socket) -> None:
    with suppress(OSError):  # the peer or the test has closed it
        answer(connection)
