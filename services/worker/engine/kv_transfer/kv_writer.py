"""Copies blocks out of the cache at once and writes the copies to the store behind the steps.

The rank's own thread only copies; a thread of its own seals, sends and tells. What cannot be written is
dropped and told: the leader stored nothing then, which costs time some day and never an answer.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from redis.exceptions import ResponseError

from services.worker.engine.kv_transfer.kv_lane import Lane, Report
from services.worker.engine.kv_transfer.kv_link import Command, ConnectionLost, StoreAway
from services.worker.engine.kv_transfer.kv_values import HEADER_BYTES, Encoder
from services.worker.engine.rank.compute import CacheBlocks
from services.worker.rank_protocol.kv_messages import KVStoreConfig, StoreResult
from services.worker.rank_protocol.plan import StoreBlock
from services.worker.rank_protocol.rank_messages import FrameKind
from shared.kv_store import data_key, head_field

_BATCH_BYTES = 2**20  # sent before the replies are read
_KEPT_BYTES = 32 * 2**20  # of buffers that wait for the next burst, so that it meets no page faults
_LINGER_S = 0.01  # decoding fills a block now and then; a few together cost a third less than one by one
_REPLIES = 4  # to what is sent for a block


class Buffers:
    """Buffers of one shape, [rows, row_bytes], of which `limit_bytes` may be lent at a time, or just one."""

    def __init__(self, rows: int, row_bytes: int, limit_bytes: int) -> None:
        self._shape = rows, row_bytes
        self.num_bytes = rows * row_bytes
        each = max(1, self.num_bytes)
        self._lendable = threading.BoundedSemaphore(max(1, limit_bytes // each))
        self._free: deque[NDArray[np.uint8]] = deque(maxlen=max(1, _KEPT_BYTES // each))

    def lend(self) -> NDArray[np.uint8] | None:
        """A buffer with anything in it; None: all are lent. Never blocks."""
        if not self._lendable.acquire(blocking=False):
            return None
        try:
            return self._free.pop()
        except IndexError:
            return np.empty(self._shape, np.uint8)

    def give_back(self, buffer: NDArray[np.uint8]) -> None:
        """Any thread, once for each that was lent."""
        self._free.append(buffer)
        self._lendable.release()


@dataclass(slots=True, eq=False)
class _Copy:
    """A block's bytes, [heads, HEADER_BYTES + head_bytes]; or why there are none, or were not written."""

    name: bytes
    rows: NDArray[np.uint8] | None = None
    error: str = ""
    crowded: bool = False  # there was no buffer for it
    num_bytes: int = 0  # of its values


class KVWriter:
    """Writes blocks to the store. `report` gets a `StoreResult` for every batch; it must not raise."""

    def __init__(self, config: KVStoreConfig, blocks: CacheBlocks, report: Report) -> None:
        self._blocks = blocks
        self._report = report
        self._ttl_s = max(1, round(config.ttl_s))
        self._queue_bytes = config.queue_bytes
        self._encoder = Encoder(config.compression)
        self._fields = [(head, head_field(head)) for head in blocks.writes]
        self._buffers = Buffers(len(blocks.writes), HEADER_BYTES + blocks.head_bytes, config.queue_bytes)
        self._batch: list[_Copy] = []
        self._lane: Lane[_Copy] = Lane("kv-writer", config, self._handle)

    def take(self, store: Sequence[StoreBlock]) -> None:
        """Copies blocks, which are free for others when it returns. Never blocks, never raises."""
        for order in store:
            self._lane.put(self._copy(order))

    def close(self) -> None:
        """Ends the thread; what waits is neither written nor told of."""
        self._lane.close()

    def join(self) -> None:
        """Waits for the thread after `close`, half a second at most."""
        self._lane.join()

    def _copy(self, order: StoreBlock) -> _Copy:
        if away := self._lane.link.away:
            return _Copy(order.name, error=away)
        rows = self._buffers.lend()
        if rows is None:
            waiting = f"{self._queue_bytes} bytes are waiting to be written already"
            return _Copy(order.name, error=waiting, crowded=True)
        try:
            self._blocks.copy_out(order.block, rows[:, HEADER_BYTES:])
        except Exception as error:  # a step does not fail for want of a copy
            self._buffers.give_back(rows)
            return _Copy(
                order.name, error=f"block {order.block} was not copied: {type(error).__name__}: {error}"
            )
        return _Copy(order.name, rows)

    def _handle(self, copy: _Copy) -> None:
        self._batch.append(copy)
        full = len(self._batch) * self._buffers.num_bytes >= _BATCH_BYTES
        if not full and self._lane.idle:
            time.sleep(_LINGER_S)
        if full or self._lane.idle:
            batch, self._batch = self._batch, []
            self._write(batch)

    def _write(self, batch: list[_Copy]) -> None:
        """Writes a batch, gives its buffers back and tells what became of every copy."""
        began = time.perf_counter()
        copies = [copy for copy in batch if copy.rows is not None]
        try:
            self._exchange(copies)
        except Exception as error:
            for copy in copies:
                copy.error = (
                    str(error) if isinstance(error, StoreAway) else f"{type(error).__name__}: {error}"
                )
        for copy in copies:
            assert copy.rows is not None
            self._buffers.give_back(copy.rows)
        failed = [copy for copy in batch if copy.error]
        stored = StoreResult(
            names=b"".join(copy.name for copy in batch if not copy.error),
            dropped=b"".join(copy.name for copy in failed),
            num_bytes=sum(copy.num_bytes for copy in batch if not copy.error),
            seconds=time.perf_counter() - began,
            error=next((copy.error for copy in failed), ""),
            crowded=bool(failed) and all(copy.crowded for copy in failed),
        )
        self._report(FrameKind.STORED, stored)

    def _exchange(self, copies: list[_Copy]) -> None:
        """Sends copies, and notes with each why it was not taken. Raises `StoreAway`."""
        if not copies or not self._fields:
            return  # where none of the heads is this rank's to write, nothing is to be done
        link = self._lane.link
        if away := link.away:
            raise StoreAway(away)
        commands = [command for copy in copies for command in self._commands(copy)]
        try:
            replies = self._replies(commands)
        except ConnectionLost:
            replies = self._replies(commands)  # writing twice is writing once
        for copy, at in zip(copies, range(0, len(replies), _REPLIES), strict=True):
            copy.error = self._error(replies[at : at + _REPLIES])

    def _commands(self, copy: _Copy) -> list[Command]:
        """What writes a block. A transaction: a key without a time to live would never go away."""
        assert copy.rows is not None
        key = data_key(copy.name)
        values: list[bytes | memoryview] = []
        for row, (head, field) in zip(copy.rows, self._fields, strict=True):
            value = self._encoder.encode(row, copy.name, head)
            values += (field, value)
            copy.num_bytes += len(value)
        return [("MULTI",), ("HSET", key, *values), ("EXPIRE", key, self._ttl_s), ("EXEC",)]

    def _replies(self, commands: list[Command]) -> list[object]:
        self._lane.link.send(commands)
        return [self._lane.link.receive() for _ in commands]

    def _error(self, replies: list[object]) -> str:
        """Why a block was not written, by the replies to its commands; empty: it was."""
        *queued, executed = replies
        if isinstance(executed, list):
            bad = [str(reply) for reply in executed if isinstance(reply, ResponseError)]
            return f"the KV store did not take a block: {bad[0]}" if bad else ""
        # the commands are right, so the store takes none at all: no memory, read-only and the like
        refusals = [str(reply) for reply in queued if isinstance(reply, ResponseError)]
        why = f"the KV store refuses writes: {refusals[0] if refusals else executed}"
        self._lane.link.refuse(why)
        return why
