"""The memory that a leader shares with the process that sends its heartbeats.

The leader writes the newest description, the process writes what it sent. Each region has one writer. Nothing
is locked and no process is woken: a region has a checksum. A reader that meets a half-written one keeps
what it has. Times are monotonic seconds, which processes of one machine share.
"""

import mmap
import os
import struct
import zlib
from typing import NamedTuple

import msgspec

from shared.codec import decode, encode
from shared.messages import Heartbeat

_HEAD = struct.Struct("=II")  # checksum and length of what follows
_DESCRIPTION = struct.Struct("=dQ")  # then the encoded heartbeat
_SENT = struct.Struct("=Qdd")
_REGION_BYTES = 16 * 1024
_OPTIONS, _DESCRIBED, _SENDING = 0, 1, 2  # the regions
PAGE_BYTES = 3 * _REGION_BYTES


class HeartbeatProcessOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the process that sends heartbeats needs to know.

    Attributes:
        nats_url: The broker, with user and password.
        nats_inbox: See `BusSettings`, as for the next four.
        nats_ca: Path of the file with it.
        nats_cert: Path of the file with it.
        nats_key: Path of the file with it.
        nats_local: Whether the broker must belong to this user.
        connect_wait_s: How long it tries to connect.
        connection: Name of the connection in the broker.
        group: The leader's group, for log lines.
        interval_s: Seconds between two heartbeats.
        stale_s: How long the leader's event loop may stand still.
        log_level: Lowest level that is logged.
        log_format: `json` or `console`.
        log_burst: See `CommonSettings`.
    """

    nats_url: str
    nats_inbox: str
    nats_ca: str
    nats_cert: str
    nats_key: str
    nats_local: bool
    connect_wait_s: float
    connection: str
    instance_id: str
    interval_s: float
    stale_s: float
    log_level: str
    log_format: str
    log_burst: int
    group: str = ""


class Description(NamedTuple):
    """What the leader writes.

    Attributes:
        described_at: When it was described.
        least_seq: The leader has sent heartbeats itself up to this number; the process goes on above it.
    """

    heartbeat: Heartbeat
    described_at: float
    least_seq: int


class SentHeartbeats(NamedTuple):
    """What the process writes.

    Attributes:
        next_seq: Number of its next heartbeat.
        turned_at: When its event loop turned last.
        sent_at: When it gave the last heartbeat to a connection.
    """

    next_seq: int
    turned_at: float
    sent_at: float


NOTHING_SENT = SentHeartbeats(0, 0.0, 0.0)


class HeartbeatPage:
    """One page, mapped. Make it with `create` or `of_file`, and close it.

    Args:
        fd: The file, which the page closes.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._memory = mmap.mmap(fd, PAGE_BYTES)
        self._described: Description | None = None
        self._described_bytes = b""
        self._sent = NOTHING_SENT

    @classmethod
    def create(cls, options: HeartbeatProcessOptions) -> "HeartbeatPage":
        """Makes a page for a process with these options; its file has no name."""
        fd = os.memfd_create("ryz-heartbeats")
        os.ftruncate(fd, PAGE_BYTES)
        page = cls(fd)
        page._write(_OPTIONS, msgspec.msgpack.encode(options))
        return page

    def close(self) -> None:
        """Unmaps the page and closes its file."""
        self._memory.close()
        os.close(self.fd)

    def options(self) -> HeartbeatProcessOptions:
        """Returns the options that it was created with."""
        return msgspec.msgpack.decode(self._read(_OPTIONS) or b"", type=HeartbeatProcessOptions)

    def write_description(self, description: Description) -> None:
        """Replaces the description."""
        head = _DESCRIPTION.pack(description.described_at, description.least_seq)
        self._write(_DESCRIBED, head + encode(description.heartbeat))

    def description(self) -> Description | None:
        """Returns the newest description; None if there is none yet."""
        data = self._read(_DESCRIBED)
        if data is not None:
            described_at, least_seq = _DESCRIPTION.unpack_from(data)
            encoded = data[_DESCRIPTION.size :]
            if self._described is None or encoded != self._described_bytes:
                heartbeat = decode(encoded, Heartbeat)
            else:
                heartbeat = self._described.heartbeat
            self._described, self._described_bytes = Description(heartbeat, described_at, least_seq), encoded
        return self._described

    def write_sent(self, sent: SentHeartbeats) -> None:
        """Replaces what the process has sent."""
        self._write(_SENDING, _SENT.pack(*sent))

    def sent(self) -> SentHeartbeats:
        """Returns what the process has sent."""
        data = self._read(_SENDING)
        if data is not None:
            self._sent = SentHeartbeats(*_SENT.unpack(data))
        return self._sent

    def _write(self, region: int, data: bytes) -> None:
        start = region * _REGION_BYTES
        if _HEAD.size + len(data) > _REGION_BYTES:
            raise ValueError(f"{len(data)} bytes are too many for a page of heartbeats")
        head = _HEAD.pack(zlib.crc32(data), len(data))
        self._memory[start : start + _HEAD.size + len(data)] = head + data

    def _read(self, region: int) -> bytes | None:
        start = region * _REGION_BYTES
        checksum, length = _HEAD.unpack_from(self._memory, start)
        begin = start + _HEAD.size
        data = self._memory[begin : begin + min(length, _REGION_BYTES - _HEAD.size)]
        return data if length and zlib.crc32(data) == checksum else None
