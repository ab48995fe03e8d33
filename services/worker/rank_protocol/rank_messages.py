"""What a leader and one of its ranks say to each other over their socket pair, and how it is framed.

Each frame is a 4-byte length, one byte that tells the kind, and MessagePack. The types of a step are in
`plan.py`; this module only adds what starts and ends a rank. Both sides end the talk by closing the socket.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Literal

import msgspec

from services.worker.rank_protocol.kv_messages import KVStoreConfig
from services.worker.rank_protocol.plan import KVParts, RankInfo

MAX_FRAME_BYTES = 256 * 2**20  # a length beyond this means that the stream is broken
SLOT_BYTES = (
    256 * 1024
)  # of a rank in shared memory; larger tensors go in chunks, which stay in a core's cache
SLOTS = 3  # of a rank: one is written, one is read, and one may still be read by others
CACHE_LINE = 64  # bytes; each rank's counter in shared memory has its own
Quantize = Literal["none", "int8"]
Kernels = Literal["auto", "native", "plain"]
KVDtype = Literal["auto", "fp32", "fp16"]
KVCold = Literal["none", "fp8"]
Device = Literal["cpu", "cuda"]
Dtype = Literal["auto", "fp32", "bf16"]
_HEADER = struct.Struct("<IB")
HEADER_BYTES = _HEADER.size


class FrameKind(IntEnum):
    """What a frame holds."""

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


class RankConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a rank needs to start. File descriptors are inherited and go by their numbers in the leader; -1
    where the backend has no use for one.

    quantize: type of the linear layers' weights; `none`: fp32.
    kv_dtype: of the KV cache; `auto`: fp16 beside int8 weights, else fp32.
    kernels: what to compute with; `auto` takes the native kernels where they run, and a GPU has none.
    device: where to compute. dtype: of weights, activations and KV cache on a GPU; `auto`: bf16 there.
    kv_cache_tokens: size of the KV cache; 0: `kv_memory_share` of the memory that is free after loading.
    kv_cold: how blocks are kept that lie at least kv_hot_tokens (in whole blocks) behind the token that is
        computed, in the layers kv_cold_layers: `all`, or like `0-3,8`. max_running: how many sequences may
        have their last blocks in full precision at a time.
    kv_fd: this rank's KV socket (`kv_messages.py`). kv_store: where blocks go; None: nowhere.
    life_fd: a socket on which nothing is sent; its end is the rank's.
    remote: how many of the ranks, the last ones, are on other hosts. address: of this rank's host in the
        network that the ranks meet in, whose interface Gloo takes if none is named; empty: loopback.
    shared_fd: file for the shared-memory collectives. progress_fd: page of `progress.py`. store_*: where the
        ranks meet for Gloo and NCCL.
    """

    model: str
    rank: int
    world: int
    threads: int
    collectives: Literal["shm", "gloo", "nccl"]
    start_timeout_s: float
    step_timeout_s: float
    quantize: Quantize = "none"
    kernels: Kernels = "auto"
    kv_dtype: KVDtype = "auto"
    device: Device = "cpu"
    dtype: Dtype = "auto"
    kv_cache_tokens: int = 0
    kv_memory_share: float = 0.5
    shared_fd: int = -1
    progress_fd: int = -1
    store_fd: int = -1
    store_host: str = ""
    store_port: int = 0
    interface: str = ""
    remote: int = 0
    address: str = ""
    kv_fd: int = -1
    life_fd: int = -1
    kv_store: KVStoreConfig | None = None
    kv_cold: KVCold = "none"
    kv_hot_tokens: int = 16
    kv_cold_layers: str = "all"
    max_running: int = 128


class RankReady(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rank is loaded. The fingerprint is told by rank 0 only, kv_cache_bytes are this rank's.

    kv_format, kv_parts: as in `EngineInfo`.
    """

    info: RankInfo
    num_blocks: int
    vocab_size: int
    context_length: int
    fingerprint: str = ""
    kv_format: str = "fp32"
    kv_cache_bytes: int = 0
    kv_parts: KVParts | None = None


class RankFailed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a rank ends; one sentence for a person.

    refused: the same model and settings would fail again. memory: there was not enough of it. bug: an error
    that is not foreseen, and that what was computed may have caused.
    """

    message: str
    refused: bool = False
    memory: bool = False
    bug: bool = False


def shared_bytes(world: int) -> int:
    """Size of the file for the shared-memory collectives: a count and the slots of each rank."""
    return (CACHE_LINE + SLOTS * SLOT_BYTES) * world


def pack_frame(kind: FrameKind, message: msgspec.Struct) -> bytes:
    """The frame as bytes."""
    body = msgspec.msgpack.encode(message)
    return _HEADER.pack(len(body), kind) + body


def frame_length(header: bytes) -> int:
    """How many bytes follow a frame's first `HEADER_BYTES`."""
    return int(_HEADER.unpack(header)[0])


class FrameReader:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[FrameKind, bytes]]:
        """Takes what was received, gives the frames that are complete now.

        Raises:
            ValueError: the stream holds something that is no frame.
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
