"""A thread with an inbox and a link of its own: it handles items in order, whatever the store does.

What they mean is up to whoever opens the lane (`kv_writer.py`, `kv_reader.py`).
"""

import sys
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

import msgspec

from services.worker.engine.kv_transfer.kv_link import Link
from services.worker.rank_protocol.kv_messages import KVStoreConfig
from services.worker.rank_protocol.rank_messages import FrameKind

Report = Callable[[FrameKind, msgspec.Struct], None]
_END_S = 0.5  # only connecting may take longer; the thread is a daemon, so it does not keep a process
Item = TypeVar("Item")


class Lane(Generic[Item]):
    """Starts at once. `handle` runs in the lane's thread and tells of its own failures.

    put: any thread; never blocks. idle: whether nothing waits behind what is being handled.
    """

    def __init__(self, name: str, config: KVStoreConfig, handle: Callable[[Item], None]) -> None:
        self.link = Link(config.url, config.timeout_s)
        self._handle = handle
        self._inbox: SimpleQueue[Item | None] = SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, item: Item) -> None:
        """Queues an item; after `close` it is forgotten."""
        self._inbox.put(item)

    @property
    def idle(self) -> bool:
        """Nothing is waiting."""
        return self._inbox.empty()

    def close(self) -> None:
        """Makes the thread end, also in the midst of an exchange; what waits is forgotten. For any thread."""
        self._closed = True
        self._inbox.put(None)
        self.link.close()

    def join(self) -> None:
        """Waits for the end of a closed lane, for half a second at most."""
        self._thread.join(_END_S)

    def _run(self) -> None:
        while not self._closed:
            try:
                self._next()
            except Exception:  # a bug; it is told, and the next item gets its chance
                if not self._closed:
                    sys.excepthook(*sys.exc_info())
        self.link.close()  # it may have connected again since `close`

    def _next(self) -> None:
        due_s = self.link.probe_in_s
        if due_s == 0.0:
            self.link.probe()
            return
        try:
            item = self._inbox.get(timeout=due_s)
        except Empty:
            return
        if item is not None:
            self._handle(item)
