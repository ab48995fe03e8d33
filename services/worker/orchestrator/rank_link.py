"""The leader's end of one rank's socket on the event loop: sends frames, receives frames and the end.

A frame is written to the socket at once, so a plan costs one system call; the rest is written as the socket
drains. The end of the rank's life socket, which mostly comes first, ends the link after all frames received
before it are delivered.
"""

import asyncio
import socket
from collections.abc import Callable

from services.worker.orchestrator.process_group_manager import RankProcess
from services.worker.rank_protocol.rank_messages import FrameKind, FrameReader

OnFrame = Callable[[RankProcess, FrameKind, bytes], None]
OnEnd = Callable[[RankProcess, str], None]

_READ_BYTES = 1 << 18
_WINDOW_BYTES = 256 * 2**20  # unsent bytes; beyond it the rank counts as not reading


class RankLink:
    """Calls `on_frame` for each frame of a rank, and `on_end` once with a reason when the stream ends.

    Args:
        on_frame: Called with the rank, the kind of frame and its body.
        on_end: Called with the rank and the reason; empty: the socket was closed.
        sock: Which of the rank's sockets; None: the one for its steps, which ends with the life socket as
            well.
    """

    def __init__(
        self, rank: RankProcess, on_frame: OnFrame, on_end: OnEnd, sock: socket.socket | None = None
    ) -> None:
        self.rank = rank
        self._sock = rank.sock if sock is None else sock
        self._life = rank.life_sock if sock is None else None
        self._on_frame = on_frame
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader()
        self._unsent = bytearray()
        self._open = True
        self._loop.add_reader(self._sock, self._read)
        if self._life is not None:
            self._loop.add_reader(self._life, self._read_life)

    def send_frame(self, frame: bytes) -> None:
        """Send or queue a frame; a link that has ended drops it."""
        if not self._open:
            return
        if self._unsent:
            self._unsent += frame
            if len(self._unsent) > _WINDOW_BYTES:
                self._end("it does not read its socket")
            return
        try:
            sent = self._sock.send(frame)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # the reader sees the end as well
        if sent < len(frame):
            self._unsent += frame[sent:]
            self._loop.add_writer(self._sock, self._writable)

    def close(self) -> None:
        """Stop reading and writing, without calling `on_end`. The sockets stay open."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
            if self._life is not None:
                self._loop.remove_reader(self._life)

    def _end(self, reason: str) -> None:
        self.close()
        self._on_end(self.rank, reason)

    def _read_life(self) -> None:
        """End the link when the life socket has ended; an answer to a ping that came too late is dropped."""
        assert self._life is not None
        try:
            late = self._life.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            late = b""
        if not late:
            self._end_dead()

    def _end_dead(self) -> None:
        """Read what the ended process has sent, which may give the reason, and end the link."""
        while self._open and self._read():
            pass
        if self._open:
            self._end("")

    def _read(self) -> bool:
        """Read what has arrived; returns False if nothing has."""
        try:
            data = self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""  # it ended before it had read everything
        except OSError as error:
            self._end(f"its socket broke: {error}")
            return True
        if not data:
            self._end("")
            return True
        try:
            for kind, body in self._reader.feed(data):
                self._on_frame(self.rank, kind, body)
        except ValueError as error:
            self._end(f"it sent what is no frame: {error}")
        return True

    def _writable(self) -> None:
        try:
            sent = self._sock.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._unsent)  # the reader sees the end as well
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self._sock)
