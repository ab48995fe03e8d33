"""The rank's end of its KV socket: passes the leader's fetches to the mover, and the mover's reports back.

It ends, and the mover with it, when the leader closes the socket.
"""

import socket
import sys
import threading

import msgspec

from services.worker.engine.kv_transfer.kv_mover import KVMover
from services.worker.engine.kv_transfer.store_thread import Report
from services.worker.engine.rank.compute import CacheBlocks
from services.worker.rank_protocol.kv_messages import FetchBlocks, KVStoreConfig
from services.worker.rank_protocol.rank_messages import FrameKind, FrameReader, pack_frame

_RECEIVE_BYTES = 2**16


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
