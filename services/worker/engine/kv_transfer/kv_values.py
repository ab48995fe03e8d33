"""The format of a field of a stored block: a KV head's bytes behind a header with a checksum.

The header: version, codec, planes and a zero, one byte each;
the size before compression as 4 bytes and a checksum as 8 bytes, both little-endian; the payload. The
checksum is XXH3-64 of the payload, seeded with the XXH3-64 of the header's first 8 bytes, the block's name
and the head as 4 bytes little-endian, so a value is valid only for its own block and head. Codec 0 is the
bytes unchanged. Codec 1 is a Zstandard frame (RFC 8878) of the bytes in planes: of 4 planes the first has
bytes 0, 4, 8, ..., the second bytes 1, 5, 9, ... In fp32 that brings signs and exponents together, in fp16
and bf16 too.
"""

import struct
from typing import Final

import numpy as np
import xxhash
import zstandard
from numpy.typing import NDArray

from services.worker.rank_protocol.kv_messages import Compression

VERSION: Final = 1
RAW: Final = 0
ZSTD: Final = 1
_FIXED = struct.Struct("<BBBxI")
_CHECKSUM = struct.Struct("<Q")
_HEAD = struct.Struct("<I")
HEADER_BYTES: Final = _FIXED.size + _CHECKSUM.size
PLANES: Final = 4
_LEVEL = 1
_KEPT_ABOVE = 0.95  # of the size: bytes that do not compress below that are stored unchanged


class DamagedBlock(Exception):
    """A value is not the one that was stored for this head of this block; the text says why."""


class BlockEncoder:
    """Makes values in place. For one thread.

    Args:
        compression: As in `KVStoreConfig`.
    """

    def __init__(self, compression: Compression) -> None:
        # the cheapest level; others do not compress floats noticeably better
        self._zstd = zstandard.ZstdCompressor(_LEVEL) if compression == "zstd" else None

    def encode(self, row: NDArray[np.uint8], name: bytes, head: int) -> memoryview:
        """Puts the header before a head's bytes.

        Args:
            row: Contiguous, [HEADER_BYTES + head_bytes]; the bytes follow a gap for the header. They are
                replaced by the compressed ones if these are smaller.
            head: Counted in the whole model.

        Returns:
            The value: a part of `row`.
        """
        size = row.size - HEADER_BYTES
        packed = self._packed(row[HEADER_BYTES:]) if self._zstd is not None else None
        if packed is None:
            fixed, end = _FIXED.pack(VERSION, RAW, 1, size), row.size
        else:
            fixed, end = _FIXED.pack(VERSION, ZSTD, PLANES, size), HEADER_BYTES + len(packed)
            row[HEADER_BYTES:end] = np.frombuffer(packed, np.uint8)
        value = row.data[:end]
        value[: _FIXED.size] = fixed
        value[_FIXED.size : HEADER_BYTES] = _CHECKSUM.pack(_checksum(fixed, value[HEADER_BYTES:], name, head))
        return value

    def _packed(self, data: NDArray[np.uint8]) -> bytes | None:
        """The bytes compressed; None if that saves too little."""
        assert self._zstd is not None
        if data.size % PLANES:
            return None
        stream = self._zstd.compressobj(size=data.size)
        parts: list[bytes] = []
        for plane in np.ascontiguousarray(data.reshape(-1, PLANES).T):
            # a Zstandard block for each plane, which then has its own Huffman table: half of the savings
            parts += (stream.compress(plane.data), stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
        packed = b"".join((*parts, stream.flush()))
        return packed if len(packed) <= data.size * _KEPT_ABOVE else None


class BlockDecoder:
    """Checks and unpacks values of `head_bytes`, of any codec. For one thread."""

    def __init__(self, head_bytes: int) -> None:
        self._head_bytes = head_bytes
        self._raw_header = _FIXED.pack(VERSION, RAW, 1, head_bytes)
        self._zstd = zstandard.ZstdDecompressor()

    def decode(self, value: bytes | memoryview, name: bytes, head: int) -> NDArray[np.uint8]:
        """A head's bytes, [head_bytes], read-only; a view of `value` if it is not compressed.

        Args:
            head: Counted in the whole model.

        Raises:
            DamagedBlock: These are not the bytes that were stored there.
        """
        if len(value) < HEADER_BYTES:
            raise DamagedBlock(f"{len(value)} bytes are less than a header of {HEADER_BYTES}")
        data = memoryview(value)
        fixed, payload = data[: _FIXED.size], data[HEADER_BYTES:]
        (expected,) = _CHECKSUM.unpack_from(data, _FIXED.size)
        if _checksum(fixed, payload, name, head) != expected:
            raise DamagedBlock("the checksum is another")
        version, codec, planes, size = _FIXED.unpack(fixed)
        if version != VERSION:
            raise DamagedBlock(f"version {version} is not {VERSION}")
        if size != self._head_bytes:
            raise DamagedBlock(f"{size} bytes of a head, where the model has {self._head_bytes}")
        if codec == RAW and len(payload) == size:
            return np.frombuffer(payload, np.uint8)
        if codec == ZSTD and planes > 0 and size % planes == 0:
            return self._unpacked(payload, planes)
        raise DamagedBlock(f"codec {codec} and {planes} planes with {len(payload)} bytes for {size}")

    def check_rows(self, rows: NDArray[np.uint8], name: bytes, first_head: int) -> None:
        """Checks heads of a block that are not compressed.

        Args:
            rows: [heads, HEADER_BYTES + head_bytes], each row contiguous.
            first_head: Of the rows, counted in the whole model.

        Raises:
            DamagedBlock: A row is not what was stored for its head.
        """
        for head, row in enumerate(rows, first_head):
            data = row.data
            checksum = _checksum(self._raw_header, data[HEADER_BYTES:], name, head)
            if data[:HEADER_BYTES] != self._raw_header + _CHECKSUM.pack(checksum):
                raise DamagedBlock(f"head {head} is another, or compressed")

    def _unpacked(self, payload: memoryview, planes: int) -> NDArray[np.uint8]:
        try:
            # the size that the frame claims is checked before memory of that size is allocated
            if zstandard.frame_content_size(payload) != self._head_bytes:
                raise DamagedBlock(f"the compressed bytes are not those of {self._head_bytes}")
            data = np.frombuffer(self._zstd.decompress(payload), np.uint8)
        except zstandard.ZstdError as error:
            raise DamagedBlock(f"not to be decompressed: {error}") from error
        return np.ascontiguousarray(data.reshape(planes, -1).T).reshape(-1)


def _checksum(fixed: bytes | memoryview, payload: memoryview, name: bytes, head: int) -> int:
    seed = xxhash.xxh3_64_intdigest(b"".join((fixed, name, _HEAD.pack(head))))
    return xxhash.xxh3_64_intdigest(payload, seed)
