"""Moves KV blocks between a rank's cache and the store: copies out between steps, fetches during them.

Fetches and writes have a thread each, so that a fetch, for which a request waits, never waits behind writes.
Failures of the store never fail a step: they are reported to the leader.
"""

import threading
from collections.abc import Sequence

from services.worker.engine.kv_transfer.kv_reader import KVReader
from services.worker.engine.kv_transfer.kv_writer import KVWriter
from services.worker.engine.kv_transfer.store_thread import Report
from services.worker.engine.rank.compute import CacheBlocks
from services.worker.rank_protocol.kv_messages import FetchBlocks, KVStoreConfig, StoreBlock


class KVMover:
    """Connects when it is first used.

    Args:
        report: Called from any thread, also from within `fetch`, with `FrameKind.STORED` and a `StoreResult`,
            or `FrameKind.FETCHED` and a `FetchResult`; it must not raise.
    """

    def __init__(self, config: KVStoreConfig, blocks: CacheBlocks, report: Report) -> None:
        self._writer = KVWriter(config, blocks, report)
        self._reader = KVReader(config, blocks, report)
        self._lock = threading.Lock()
        self._begun = 0
        self._early: list[FetchBlocks] = []

    def copy_out(self, store: Sequence[StoreBlock]) -> None:
        """Copies the blocks that a plan stores, before its step; they are written and reported later.

        For the thread of the steps: never blocks, never raises.
        """
        self._writer.copy_out(store)

    def note_step(self, *, hurry: bool) -> None:
        """A step begins; with `hurry` copies that wait are written at once. Never blocks."""
        self._writer.note_step(hurry=hurry)

    def start_due_fetches(self, step_id: int) -> None:
        """Starts the fetches that waited for this step: those before it are done, and its copies are made.

        For the thread of the steps: never blocks for long, never raises.
        """
        with self._lock:
            self._begun = step_id
            due = [request for request in self._early if request.after_step <= step_id]
            if due:
                self._early = [request for request in self._early if request.after_step > step_id]
        for request in due:
            self._reader.fetch(request)

    def fetch(self, request: FetchBlocks) -> None:
        """Reads blocks from the store into blocks of the cache, once its `after_step` has begun.

        No step uses these blocks until the fetch is reported; after that they are not written.
        """
        with self._lock:
            if request.after_step > self._begun:
                self._early.append(request)
                return
        self._reader.fetch(request)

    def close(self) -> None:
        """Ends both threads, within half a second; what is queued is neither done nor reported."""
        for end in (self._writer.close, self._reader.close, self._writer.join, self._reader.join):
            end()
