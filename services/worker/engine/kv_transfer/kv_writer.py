"""Copies blocks out of the cache at once, and writes the copies to the store in a thread of its own.

With a host tier the copy goes into this rank's segment, and the store is written from there, after a while
(`write_lag.py`).
A block that cannot be written is dropped and reported. That may cost a later request the time to compute it
again, and never its answer.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from redis.exceptions import ResponseError

from services.worker.engine.kv_transfer.host_copies import HostCopy, open_copies
from services.worker.engine.kv_transfer.kv_link import Command, ConnectionLost, StoreUnreachable
from services.worker.engine.kv_transfer.kv_values import HEADER_BYTES, BlockEncoder
from services.worker.engine.kv_transfer.store_thread import Report, StoreThread
from services.worker.engine.kv_transfer.write_lag import WriteLag
from services.worker.engine.rank.compute import CacheBlocks
from services.worker.rank_protocol.kv_messages import KVStoreConfig, StoreBlock, StoreResult
from services.worker.rank_protocol.rank_messages import FrameKind
from shared.kv_hash import data_key, head_field

_BATCH_BYTES = 2**20  # sent before the replies are read
_KEPT_BYTES = 32 * 2**20  # of buffers that are kept, so that the next burst causes no page faults
_LINGER_S = 0.01  # wait for further blocks while decoding: a few together cost a third less than one by one
_POLL_S = 0.02  # between checks whether a block that waits is due
_REPLIES = 4  # to the commands of one block


class Buffers:
    """A pool of buffers of one shape, [rows, row_bytes]; at most `limit_bytes` are lent at a time, or one."""

    def __init__(self, rows: int, row_bytes: int, limit_bytes: int) -> None:
        self._shape = rows, row_bytes
        self.num_bytes = rows * row_bytes
        each = max(1, self.num_bytes)
        self.limit = max(1, limit_bytes // each)
        self._lendable = threading.BoundedSemaphore(self.limit)
        self._free: deque[NDArray[np.uint8]] = deque(maxlen=max(1, _KEPT_BYTES // each))

    def reserve(self) -> bool:
        """Counts a buffer of the host tier as lent; False if all are lent. Never blocks."""
        return self._lendable.acquire(blocking=False)

    def end_reserve(self) -> None:
        """Returns what `reserve` took; for any thread."""
        self._lendable.release()

    def lend(self) -> NDArray[np.uint8] | None:
        """A buffer with arbitrary contents; None if all are lent. Never blocks."""
        if not self.reserve():
            return None
        try:
            return self._free.pop()
        except IndexError:
            return np.empty(self._shape, np.uint8)

    def give_back(self, buffer: NDArray[np.uint8]) -> None:
        """Returns a lent buffer to the pool; for any thread."""
        self._free.append(buffer)
        self._lendable.release()


@dataclass(slots=True, eq=False)
class _Copy:
    """A block's bytes, [heads, HEADER_BYTES + head_bytes], or why they were not copied or written.

    With `on_host` they are those of the host tier, which have their headers already.
    """

    name: bytes
    rows: NDArray[np.uint8] | None = None
    error: str = ""
    crowded: bool = False  # there was no buffer for it
    num_bytes: int = 0  # of its values
    on_host: HostCopy | None = None
    copied_at: float = 0.0  # set with `on_host`


class KVWriter:
    """Writes blocks to the store. `report` gets a `StoreResult` for every batch; it must not raise."""

    def __init__(self, config: KVStoreConfig, blocks: CacheBlocks, report: Report) -> None:
        self._blocks = blocks
        self._report = report
        self._ttl_s = max(1, round(config.ttl_s))
        self._queue_bytes = config.queue_bytes
        self._encoder = BlockEncoder(config.compression)
        self._fields = [(head, head_field(head)) for head in blocks.writes]
        self._buffers = Buffers(len(blocks.writes), HEADER_BYTES + blocks.head_bytes, config.queue_bytes)
        self._host = open_copies(config, blocks)
        most = 0 if self._host is None else self._host.num_slots
        self._lag = WriteLag(config.host_lag_s, min(most, self._buffers.limit) // 2)
        self._compresses = config.compression != "none"
        self._batch: list[_Copy] = []
        prepare = None if self._host is None else self._prepare
        self._thread: StoreThread[_Copy] = StoreThread("kv-writer", config, self._handle, prepare)

    def copy_out(self, store: Sequence[StoreBlock]) -> None:
        """Copies blocks, which may be overwritten when it returns. Never blocks, never raises."""
        for order in store:
            self._thread.enqueue(self._copy(order))

    def note_step(self, *, hurry: bool) -> None:
        """A step begins; with `hurry` copies that wait are written at once."""
        now = time.monotonic()
        self._lag.note_step(now)
        if hurry:
            self._lag.hurry(now)

    def close(self) -> None:
        """Ends the thread; what is queued is neither written nor reported."""
        self._thread.close()

    def join(self) -> None:
        """Waits for the thread after `close`, half a second at most."""
        self._thread.join()

    def _copy(self, order: StoreBlock) -> _Copy:
        on_host = self._copy_to_host(order) if self._host is not None else None
        if on_host is not None:
            return on_host
        if away := self._thread.link.away:
            return _Copy(order.name, error=away)
        rows = self._buffers.lend()
        if rows is None:
            return self._crowded(order)
        try:
            self._blocks.copy_out(order.block, rows[:, HEADER_BYTES:], order.sliding)
        except Exception as error:  # a copy that fails must not fail the step
            self._buffers.give_back(rows)
            return _Copy(
                order.name, error=f"block {order.block} was not copied: {type(error).__name__}: {error}"
            )
        return _Copy(order.name, rows)

    def _copy_to_host(self, order: StoreBlock) -> _Copy | None:
        """Copies a block into the segment; None if that has no room: the store gets it all the same."""
        assert self._host is not None
        try:
            copy = self._host.copy(order)
        except Exception as error:  # a copy that fails must not fail the step
            return _Copy(
                order.name, error=f"block {order.block} was not copied: {type(error).__name__}: {error}"
            )
        if copy is None:
            return None
        away = self._thread.link.away
        if away or not self._buffers.reserve():
            self._host.release(copy)
            return _Copy(order.name, error=away) if away else self._crowded(order)
        return _Copy(order.name, copy.rows, on_host=copy, copied_at=time.monotonic())

    def _crowded(self, order: StoreBlock) -> _Copy:
        waiting = f"{self._queue_bytes} bytes are waiting to be written already"
        return _Copy(order.name, error=waiting, crowded=True)

    def _give_back(self, copy: _Copy) -> None:
        assert copy.rows is not None
        if copy.on_host is None:
            self._buffers.give_back(copy.rows)
            return
        assert self._host is not None
        self._buffers.end_reserve()
        self._host.release(copy.on_host)

    def _prepare(self) -> float | None:
        assert self._host is not None
        return 0.0 if self._host.reserve_ahead() else None

    def _handle(self, copy: _Copy) -> None:
        while copy.on_host is not None and not self._thread.closed:
            wait_s = self._lag.wait_s(copy.copied_at, self._thread.num_waiting, time.monotonic())
            if not wait_s:
                break
            time.sleep(min(wait_s, _POLL_S))
        self._batch.append(copy)
        full = len(self._batch) * self._buffers.num_bytes >= _BATCH_BYTES
        if not full and self._thread.idle:
            time.sleep(_LINGER_S)
        if full or self._thread.idle:
            batch, self._batch = self._batch, []
            self._write(batch)

    def _write(self, batch: list[_Copy]) -> None:
        """Writes a batch, returns its buffers to the pool, and reports every copy."""
        began = time.perf_counter()
        copies = [copy for copy in batch if copy.rows is not None]
        try:
            self._exchange(copies)
        except Exception as error:
            for copy in copies:
                copy.error = (
                    str(error) if isinstance(error, StoreUnreachable) else f"{type(error).__name__}: {error}"
                )
        for copy in copies:
            self._give_back(copy)
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
        """Sends copies, and sets the error of those that the store did not take.

        Raises:
            StoreUnreachable: The connection failed.
        """
        if not copies or not self._fields:
            return  # lower ranks write all of this rank's heads
        link = self._thread.link
        if away := link.away:
            raise StoreUnreachable(away)
        commands = [command for copy in copies for command in self._commands(copy)]
        try:
            replies = self._replies(commands)
        except ConnectionLost:
            replies = self._replies(commands)  # writing is idempotent
        for copy, at in zip(copies, range(0, len(replies), _REPLIES), strict=True):
            copy.error = self._error(replies[at : at + _REPLIES])

    def _commands(self, copy: _Copy) -> list[Command]:
        """The commands that write a block, as a transaction: a key without a TTL would never expire."""
        assert copy.rows is not None
        key = data_key(copy.name)
        values: list[bytes | memoryview] = []
        for row, (head, field) in zip(copy.rows, self._fields, strict=True):
            if copy.on_host is None:
                value = self._encoder.encode(row, copy.name, head)
            elif self._compresses:  # the host's rows stay as they are
                value = self._encoder.encode(row.copy(), copy.name, head)
            else:
                value = row.data
            values += (field, value)
            copy.num_bytes += len(value)
        return [("MULTI",), ("HSET", key, *values), ("EXPIRE", key, self._ttl_s), ("EXEC",)]

    def _replies(self, commands: list[Command]) -> list[object]:
        self._thread.link.send(commands)
        return [self._thread.link.receive() for _ in commands]

    def _error(self, replies: list[object]) -> str:
        """Why a block was not written, from the replies to its commands; empty if it was."""
        *queued, executed = replies
        if isinstance(executed, list):
            bad = [str(reply) for reply in executed if isinstance(reply, ResponseError)]
            return f"the KV store did not take a block: {bad[0]}" if bad else ""
        # the commands are well formed, so the store refuses all writes: no memory, read-only and the like
        refusals = [str(reply) for reply in queued if isinstance(reply, ResponseError)]
        why = f"the KV store refuses writes: {refusals[0] if refusals else executed}"
        self._thread.link.refuse(why)
        return why
