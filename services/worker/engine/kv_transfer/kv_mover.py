"""Moves KV blocks between a rank's cache and the store: copies out with the steps, reads in beside them.

Two threads, so that a fetch, which a request waits for, never waits behind writes, which nobody waits for.
Nothing that happens to the store reaches the rank: it is told in reports.
"""

import threading
from collections.abc import Sequence

from services.worker.engine.kv_transfer.kv_lane import Report
from services.worker.engine.kv_transfer.kv_reader import KVReader
from services.worker.engine.kv_transfer.kv_writer import KVWriter
from services.worker.engine.rank.compute import CacheBlocks
from services.worker.rank_protocol.kv_messages import FetchBlocks, KVStoreConfig
from services.worker.rank_protocol.plan import StoreBlock


class KVMover:
    """Connects when it is first used.

    config: of the store. blocks: of this rank's cache. report: called from any thread, also from within
        `fetch`, with `Kind.STORED` and `Stored` or `Kind.FETCHED` and `Fetched`; it must not raise.
    """

    def __init__(self, config: KVStoreConfig, blocks: CacheBlocks, report: Report) -> None:
        self._writer = KVWriter(config, blocks, report)
        self._reader = KVReader(config, blocks, report)
        self._lock = threading.Lock()
        self._begun = 0
        self._early: list[FetchBlocks] = []

    def take(self, store: Sequence[StoreBlock]) -> None:
        """Copies what a plan stores, before its step; the writing comes later, and a `Stored` with it.

        For the thread of the steps: never blocks, never raises.
        """
        self._writer.take(store)

    def begin(self, step_id: int) -> None:
        """The steps before this one are done, and its copies are taken: fetches that waited for it may go.

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
        """Reads blocks into places that no step uses until `Fetched`; after that they are not touched.

        Not before its `after_step` has begun.
        """
        with self._lock:
            if request.after_step > self._begun:
                self._early.append(request)
                return
        self._reader.fetch(request)

    def close(self) -> None:
        """Ends both threads, within half a second; what waits is neither done nor told of."""
        for end in (self._writer.close, self._reader.close, self._writer.join, self._reader.join):
            end()
