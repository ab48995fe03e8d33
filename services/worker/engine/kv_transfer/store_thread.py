"""A thread with a queue and a link to the store of its own, which handles items in order.

`kv_writer.py` and `kv_reader.py` each have one, and say how an item is handled.
"""

import math
import sys
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

import msgspec

from services.worker.engine.kv_transfer.kv_link import StoreLink
from services.worker.rank_protocol.kv_messages import KVStoreConfig
from services.worker.rank_protocol.rank_messages import FrameKind

Report = Callable[[FrameKind, msgspec.Struct], None]
_END_S = 0.5  # only connecting may take longer; the thread is a daemon, so the process can end
Item = TypeVar("Item")


class StoreThread(Generic[Item]):
    """Starts at once.

    Args:
        handle: Runs in the thread, for one item at a time; it reports its own failures.
        prepare: Runs in the thread while the queue is empty, for about a millisecond at a time; returns
            in how many seconds it is to run again, None: after the next item.
    """

    def __init__(
        self,
        name: str,
        config: KVStoreConfig,
        handle: Callable[[Item], None],
        prepare: Callable[[], float | None] | None = None,
    ) -> None:
        self.link = StoreLink(config.url, config.timeout_s)
        self._handle = handle
        self._prepare = prepare
        self._prepare_at = 0.0 if prepare is not None else math.inf
        self._queue: SimpleQueue[Item | None] = SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def enqueue(self, item: Item) -> None:
        """Queues an item, from any thread, without blocking; after `close` it is dropped."""
        self._queue.put(item)

    @property
    def idle(self) -> bool:
        """Whether the queue is empty."""
        return self._queue.empty()

    @property
    def num_waiting(self) -> int:
        """Items in the queue."""
        return self._queue.qsize()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Ends the thread, also during an exchange, and drops what is queued. For any thread."""
        self._closed = True
        self._queue.put(None)
        self.link.close()

    def join(self) -> None:
        """Waits for the thread after `close`, half a second at most."""
        self._thread.join(_END_S)

    def _run(self) -> None:
        while not self._closed:
            try:
                self._next()
            except Exception:  # a bug: it is logged, and the next item is handled
                if not self._closed:
                    sys.excepthook(*sys.exc_info())
        self.link.close()  # it may have connected again since `close`

    def _next(self) -> None:
        probe_s = self.link.probe_in_s
        if probe_s == 0.0:
            self.link.probe()
            return
        prepare_s = max(0.0, self._prepare_at - time.monotonic())
        due_s = min(prepare_s, math.inf if probe_s is None else probe_s)
        try:
            item = self._queue.get(timeout=None if due_s == math.inf else due_s)
        except Empty:
            if prepare_s <= due_s:
                self._run_prepare()
            return
        if item is not None:
            self._handle(item)
            if self._prepare is not None:
                self._prepare_at = min(self._prepare_at, time.monotonic())

    def _run_prepare(self) -> None:
        assert self._prepare is not None
        self._prepare_at = math.inf  # also if it raises
        again_s = self._prepare()
        if again_s is not None:
            self._prepare_at = time.monotonic() + again_s
