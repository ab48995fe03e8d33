"""Frames between a leader and a rank on their socket pair, and the messages that start and end a rank.

A frame is a 4-byte length, one byte for the kind, and MessagePack. The messages of a step are in `plan.py`.
Either side ends the connection by closing the socket.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum

import msgspec

from services.worker.rank_protocol.engine_info import RankInfo
from services.worker.rank_protocol.kv_messages import KVParts, KVStoreConfig
from services.worker.rank_protocol.run_config import STRETCH, EngineRunConfig

MAX_FRAME_BYTES = 256 * 2**20  # a greater length means that the stream is broken
SLOT_BYTES = (
    256 * 1024
)  # of a rank in shared memory; larger tensors go in chunks, which stay in a core's cache
SLOTS = 3  # of a rank: one is written, one is read, and one may still be read by others
CACHE_LINE = 64  # bytes; each rank's counter in shared memory has its own
_HEADER = struct.Struct("<IB")
HEADER_BYTES = _HEADER.size


class FrameKind(IntEnum):
    """The kind of a frame: its sender and its message."""

    CONFIG = 1  # leader: RankConfig, the first frame
    PLAN = 2  # leader: StepPlan
    READY = 3  # rank: RankReady, its first frame when all went well
    RESULT = 4  # rank 0: StepResult
    FAILED = 5  # rank: RankFailed, its last frame; leader: the same to a rank that may not join
    CHALLENGE = 6  # leader, to a rank of another host: Challenge
    HELLO = 7  # such a rank: Hello
    WELCOME = 8  # leader, to such a rank: Welcome
    FETCH = 9  # leader, on the rank's KV socket: FetchBlocks
    FETCHED = 10  # rank, on its KV socket: Fetched
    STORED = 11  # rank, on its KV socket: Stored
    MASKS = 12  # leader, to rank 0: StepMasks
    PING = 13  # leader, to a rank of another host: Ping
    PONG = 14  # such a rank: Pong
    TRACE = 15  # leader: TraceOrder
    TRACED = 16  # rank: TracePiece
    LOAD_ADAPTER = 17  # leader: LoadAdapter
    ADAPTER_LOADED = 18  # rank: AdapterLoaded


class RankConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a rank needs to start. A file descriptor is inherited and has its number in the leader; -1: none.

    Attributes:
        run: How the model is computed, with `threads` and `collectives` worked out.
        address: This host's in the network where the ranks meet; Gloo takes its interface if none is named.
            Empty: loopback.
        shared_fd: File of the shared-memory collectives.
        progress_fd: Page of `progress_page.py`.
        times_fd: Page of `step_times.py`.
        store_fd: File or listening socket of the rendezvous for Gloo and NCCL.
        store_host: Host of that socket.
        kv_fd: This rank's KV socket (`kv_messages.py`).
        life_fd: A socket that closes when the rank ends; on it the rank answers pings of its clock.
        kv_store: Where KV blocks go; None: nowhere.
        group: The group's name, for the rank's log lines.
        instance_id: The leader's, for the same.
        restarted: The group served before with this KV cache, which may have been limited since: others may
            have the rest of its memory, so the longest request has to fit, and not all of it.
    """

    run: EngineRunConfig
    rank: int = 0
    address: str = ""
    shared_fd: int = -1
    progress_fd: int = -1
    times_fd: int = -1
    store_fd: int = -1
    store_host: str = ""
    store_port: int = 0
    kv_fd: int = -1
    life_fd: int = -1
    kv_store: KVStoreConfig | None = None
    group: str = ""
    instance_id: str = ""
    restarted: bool = False

    @property
    def collective_timeout_s(self) -> float:
        """Time limit of one collective operation; longer than the leader's where it watches progress."""
        return self.run.collective_timeout_s * (STRETCH if self.progress_fd >= 0 else 1.0)

    @property
    def meeting_timeout_s(self) -> float:
        """Time limit of operations while the model loads; longer than the leader's on one host."""
        return self.run.engine_start_timeout_s * (1.0 if self.run.remote_ranks else STRETCH)


class RankReady(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rank is loaded; fields as in `EngineInfo`.

    Attributes:
        fingerprint: Set by rank 0 only.
        kv_cache_bytes: Size of this rank's part of the KV cache.
        block_bytes: Memory of one of its blocks that it gives back when it is vacated.
        sliding_bytes: The same of a sliding block.
        adapters: Whether it computes with adapters.
    """

    info: RankInfo
    num_blocks: int
    vocab_size: int
    context_length: int
    fingerprint: str = ""
    kv_format: str = "fp32"
    kv_cache_bytes: int = 0
    kv_parts: KVParts | None = None
    hidden_size: int = 0
    num_sliding_blocks: int = 0
    window: int = 0
    block_bytes: int = 0
    sliding_bytes: int = 0
    adapters: bool = False


class RankFailed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a rank ends.

    Attributes:
        message: One sentence for a person.
        refused: The same model and settings would fail again.
        memory: There was not enough memory.
        bug: An unexpected error, which the computation may have caused.
    """

    message: str
    refused: bool = False
    memory: bool = False
    bug: bool = False


def shared_bytes(world: int) -> int:
    """Return the size of the file of the shared-memory collectives: a count and the slots of each rank."""
    return (CACHE_LINE + SLOTS * SLOT_BYTES) * world


def pack_frame(kind: FrameKind, message: msgspec.Struct) -> bytes:
    """Encode a frame."""
    body = msgspec.msgpack.encode(message)
    return _HEADER.pack(len(body), kind) + body


def frame_length(header: bytes) -> int:
    """Return how many bytes follow a frame's first `HEADER_BYTES`."""
    return int(_HEADER.unpack(header)[0])


class FrameReader:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[FrameKind, bytes]]:
        """Add received bytes, and yield the frames that are complete now.

        Raises:
            ValueError: The stream holds something that is no frame.
        """
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            length, kind = _HEADER.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            yield FrameKind(kind), body
