"""The rank's end of its KV socket: moves KV blocks between the rank's cache and the store for the leader.

Fetches and writes have a thread each, so that a fetch, for which a request waits, never waits behind writes.
Failures of the store never fail a step: they are reported to the leader. All ends when the leader closes the
socket.
"""

import socket
import sys
import threading
from collections.abc import Sequence

import msgspec

from services.worker.engine.kv_transfer.kv_reader import KVReader
from services.worker.engine.kv_transfer.kv_writer import KVWriter
from services.worker.engine.kv_transfer.store_thread import Report
from services.worker.engine.rank.compute import CacheBlocks
from services.worker.rank_protocol.kv_messages import FetchBlocks, KVStoreConfig, StoreBlock
from services.worker.rank_protocol.rank_messages import FrameKind, FrameReader, pack_frame

_RECEIVE_BYTES = 2**16


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


def start(sock_fd: int, config: KVStoreConfig, blocks: CacheBlocks, observe: Report | None = None) -> KVMover:
    """Starts the channel; the caller passes the `store` of each plan to the mover.

    Args:
        sock_fd: A connected stream socket, which the channel closes.
        observe: Gets each report that is sent to the leader, from any thread.
    """
    return KVChannel(socket.socket(fileno=sock_fd), config, blocks, observe).mover


class KVChannel:
    """Reads frames in a thread of its own; reports are sent by the thread that makes them."""

    def __init__(
        self, sock: socket.socket, config: KVStoreConfig, blocks: CacheBlocks, observe: Report | None = None
    ) -> None:
        sock.setblocking(True)
        self._sock = sock
        self._observe = observe
        self._sending = threading.Lock()
        self.mover = KVMover(config, blocks, self._report)
        threading.Thread(target=self._run, name="kv-channel", daemon=True).start()

    def _run(self) -> None:
        try:
            self._read()
        except OSError:
            pass  # the same as an orderly end
        except Exception:
            sys.excepthook(*sys.exc_info())  # malformed frames; the leader sees the socket close
        finally:
            self.mover.close()
            self._sock.close()

    def _read(self) -> None:
        frames, decoder = FrameReader(), msgspec.msgpack.Decoder(FetchBlocks)
        while data := self._sock.recv(_RECEIVE_BYTES):
            for kind, body in frames.feed(data):
                if kind is FrameKind.FETCH:
                    self.mover.fetch(decoder.decode(body))

    def _report(self, kind: FrameKind, message: msgspec.Struct) -> None:
        if self._observe is not None:
            self._observe(kind, message)
        frame = pack_frame(kind, message)
        try:
            with self._sending:
                self._sock.sendall(frame)
        except OSError:
            pass  # the leader is gone; the reading thread ends the channel
