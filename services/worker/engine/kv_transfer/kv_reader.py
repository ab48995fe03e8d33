"""Reads blocks into the cache, with checksums: those of the host tier, then those of the store.

The store is asked for some blocks ahead of copying.

A fetch ends at the first block that is missing or damaged; the leader computes from there on.
"""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from redis.exceptions import ResponseError

from services.worker.engine.kv_transfer.host_copies import open_reads
from services.worker.engine.kv_transfer.kv_link import ConnectionLost, StoreUnreachable
from services.worker.engine.kv_transfer.kv_values import HEADER_BYTES, BlockDecoder, DamagedBlock
from services.worker.engine.kv_transfer.store_thread import Report, StoreThread
from services.worker.engine.rank.compute import CacheBlocks
from services.worker.rank_protocol.kv_messages import FetchBlocks, FetchResult, KVStoreConfig
from services.worker.rank_protocol.rank_messages import FrameKind
from shared.kv_hash import data_key, head_field, split

_BATCH_BLOCKS = 8
# Requested at once: enough to keep the store busy while the last batch is copied, and little enough that both
# stay in the processor's caches; with 2 MiB a fetch takes half as long again.
_BATCH_BYTES = 640 * 2**10
_AHEAD = 2  # batches that are requested before the first of them is read
_MAP_AGAIN_S = 0.5  # between checks for new blocks on the host, which are mapped before they are asked for
_PATIENCE = 4  # a fetch of any length may last this many times the limit of an exchange


class _Target(NamedTuple):
    """Where the block of that name goes."""

    block: int
    sliding: int
    name: bytes


@dataclass(slots=True)
class _Progress:
    """How far a fetch has come; once `ended`, further replies are ignored."""

    count: int = 0
    from_host: int = 0
    num_bytes: int = 0
    missing: bool = False
    corrupt: list[bytes] = field(default_factory=list)
    error: str = ""

    @property
    def ended(self) -> bool:
        return bool(self.missing or self.corrupt or self.error)


class KVReader:
    """Reads blocks from the store. `report` gets one `FetchResult` for every fetch; it must not raise."""

    def __init__(self, config: KVStoreConfig, blocks: CacheBlocks, report: Report) -> None:
        self._blocks = blocks
        self._report = report
        self._limit_s = _PATIENCE * config.timeout_s
        self._decoder = BlockDecoder(blocks.head_bytes)
        self._host = open_reads(config, blocks)
        self._fields = [head_field(head) for head in blocks.heads]
        block_bytes = max(1, len(blocks.heads) * (HEADER_BYTES + blocks.head_bytes))
        self._batch = min(_BATCH_BLOCKS, max(1, _BATCH_BYTES // block_bytes))
        prepare = None if self._host is None else self._prepare
        self._thread: StoreThread[FetchBlocks] = StoreThread("kv-reader", config, self._handle, prepare)

    def fetch(self, request: FetchBlocks) -> None:
        """Queues a fetch, from any thread.

        Without a host tier it is reported as failed at once while the circuit is open.
        """
        if self._host is None and (away := self._thread.link.away):
            self._report(FrameKind.FETCHED, FetchResult(fetch_id=request.fetch_id, count=0, error=away))
        else:
            self._thread.enqueue(request)

    def close(self) -> None:
        """Ends the thread; what is queued is neither read nor reported."""
        self._thread.close()

    def join(self) -> None:
        """Waits for the thread after `close`, half a second at most."""
        self._thread.join()

    def _prepare(self) -> float:
        assert self._host is not None
        return 0.0 if self._host.map_ahead() else _MAP_AGAIN_S

    def _handle(self, request: FetchBlocks) -> None:
        began, progress = time.perf_counter(), _Progress()
        try:
            self._read(request, progress, time.monotonic() + self._limit_s)
        except StoreUnreachable as error:
            progress.error = str(error)
        except Exception as error:  # the leader waits for a report of every fetch
            self._thread.link.close()  # unread replies must not be taken for those of the next fetch
            progress.error = f"{type(error).__name__}: {error}"
        fetched = FetchResult(
            fetch_id=request.fetch_id,
            count=progress.count,
            num_bytes=progress.num_bytes,
            seconds=time.perf_counter() - began,
            missing=progress.missing,
            corrupt=b"".join(progress.corrupt),
            error=progress.error,
            from_host=progress.from_host,
        )
        self._report(FrameKind.FETCHED, fetched)

    def _read(self, request: FetchBlocks, progress: _Progress, deadline: float) -> None:
        """Reads all blocks, continuing once over a new connection.

        Raises:
            StoreUnreachable: The connection failed.
        """
        sliding = request.sliding_blocks or [-1] * len(request.blocks)
        todo = [
            _Target(*target) for target in zip(request.blocks, sliding, split(request.names), strict=True)
        ]
        rest = self._copy_from_host(todo, progress)
        if todo and not rest:
            return
        if away := self._thread.link.away:
            raise StoreUnreachable(away)
        if not todo:
            self._thread.link.send([("PING",)])
            self._thread.link.receive()
            return
        try:
            self._pipeline(rest, progress, deadline)
        except ConnectionLost:
            self._pipeline(todo[progress.count :], progress, deadline)

    def _copy_from_host(self, todo: list[_Target], progress: _Progress) -> list[_Target]:
        """Copies the leading blocks that the host has; returns the others."""
        if self._host is not None and todo:
            refreshed = False
            for target in todo:
                num_bytes = self._host.copy_in(target.name, target.block, target.sliding)
                if not num_bytes and not refreshed:  # a check for new blocks takes as long as some copies
                    self._host.refresh()
                    refreshed = True
                    num_bytes = self._host.copy_in(target.name, target.block, target.sliding)
                if not num_bytes:
                    break
                progress.num_bytes += num_bytes
                progress.count += 1
            progress.from_host = progress.count
        return todo[progress.count :]

    def _pipeline(self, todo: list[_Target], progress: _Progress, deadline: float) -> None:
        batches = deque(todo[at : at + self._batch] for at in range(0, len(todo), self._batch))
        requested: deque[list[_Target]] = deque()
        while requested or (batches and not progress.ended):
            while batches and len(requested) < _AHEAD and not progress.ended:
                self._request(target.name for target in batches[0])
                requested.append(batches.popleft())
            for target in requested.popleft():
                reply = self._thread.link.receive()  # also if it is ignored: the next one is behind it
                if not progress.ended:
                    self._copy_in(target, reply, progress)
            if batches and not progress.ended and time.monotonic() > deadline:
                progress.error = f"the KV store is slow: {progress.count} blocks in {self._limit_s:g} s"

    def _request(self, names: Iterable[bytes]) -> None:
        self._thread.link.send([("HMGET", data_key(name), *self._fields) for name in names])

    def _copy_in(self, target: _Target, reply: object, progress: _Progress) -> None:
        """Copies the heads of one reply into the cache, or ends the fetch before this block."""
        if isinstance(reply, ResponseError) or not isinstance(reply, list):
            progress.error = f"the KV store did not give a block: {reply}"
            return
        if None in reply:
            progress.missing = True
            return
        rows: list[NDArray[np.uint8]] = []
        for head, value in zip(self._blocks.heads, reply, strict=True):
            try:
                rows.append(self._decoder.decode(value, target.name, head))
            except DamagedBlock:
                progress.corrupt.append(target.name)
                return
        data = rows[0][None] if len(rows) == 1 else np.stack(rows)
        self._blocks.copy_in(target.block, self._blocks.heads.start, data, target.sliding)
        progress.num_bytes += sum(len(value) for value in reply)
        progress.count += 1
