"""Takes typed values from the head of a GGUF file, and refuses every length and count that cannot be true.

The format's numbers are little endian; a text is its length in 8 bytes and then UTF-8. `gguf_file.py` knows
the order of the values.
"""

import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gguf import GGUFValueType

LONGEST_HEADER = 64 * 2**20  # bytes; a vocabulary of 262 thousand tokens with its merges takes 15 MiB
MOST_VALUES = 2**22  # in all arrays together; that vocabulary has 1.3 million
CHUNK = 2**20  # bytes of one read
_SHORTEST_TEXT = 8  # bytes: its length

_NUMBERS: dict[GGUFValueType, np.dtype[Any]] = {
    GGUFValueType.UINT8: np.dtype("<u1"),
    GGUFValueType.INT8: np.dtype("<i1"),
    GGUFValueType.UINT16: np.dtype("<u2"),
    GGUFValueType.INT16: np.dtype("<i2"),
    GGUFValueType.UINT32: np.dtype("<u4"),
    GGUFValueType.INT32: np.dtype("<i4"),
    GGUFValueType.FLOAT32: np.dtype("<f4"),
    GGUFValueType.BOOL: np.dtype("<u1"),
    GGUFValueType.UINT64: np.dtype("<u8"),
    GGUFValueType.INT64: np.dtype("<i8"),
    GGUFValueType.FLOAT64: np.dtype("<f8"),
}
_UINT32, _UINT64 = struct.Struct("<I"), struct.Struct("<Q")


class BadGguf(Exception):
    """A GGUF file that is refused; the text is one sentence that names the file, the thing and the remedy."""


def damaged(path: Path, reason: str) -> BadGguf:
    """The refusal of a file that contradicts itself or ends early."""
    return BadGguf(f"{path} is no complete GGUF file ({reason}); download or convert it again")


class HeaderBytes:
    """The head of an open file, read piece by piece as far as it is needed.

    Attributes:
        path: Of the file, for refusals.
        size: Of the file, in bytes.
    """

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path = path
        self.size = size
        self.position = 0
        self._file = file
        self._data = bytearray()
        self._values_left = MOST_VALUES

    def uint32(self, what: str) -> int:
        """The next 4 bytes as a number; `what` they are, for a refusal."""
        return self._number(_UINT32, what)

    def uint64(self, what: str) -> int:
        """The next 8 bytes as a number."""
        return self._number(_UINT64, what)

    def raw(self, count: int, what: str) -> bytes:
        """The next bytes."""
        begin = self._advance(count, what)
        return bytes(self._data[begin : self.position])

    def name(self, most: int, what: str) -> str:
        """A text of 1 to `most` bytes."""
        length = self.uint64(f"the length of {what}")
        if not 0 < length <= most:
            raise damaged(self.path, f"{what} has {length} bytes, 1 to {most} are allowed")
        return self._decode(self._advance(length, what), what)

    def values(self, kind: GGUFValueType, count: int, what: str) -> list[Any]:
        """So many values of one type that is no array.

        Raises:
            BadGguf: They do not fit into the file or into the limits, or are no values of that type.
        """
        self._count_values(count, what)
        if kind == GGUFValueType.STRING:
            return self._texts(count, what)
        dtype = _NUMBERS[kind]
        begin = self._advance(count * dtype.itemsize, what)
        numbers = np.frombuffer(bytes(self._data[begin : self.position]), dtype)
        if kind == GGUFValueType.BOOL:
            if numbers.size and numbers.max() > 1:
                raise damaged(self.path, f"{what} is neither true nor false")
            numbers = numbers.astype(np.bool_)
        found: list[Any] = numbers.tolist()
        return found

    def skip_values(self, kind: GGUFValueType, count: int, what: str) -> None:
        """Passes over what `values` would return; texts are not decoded."""
        self._count_values(count, what)
        if kind == GGUFValueType.STRING:
            self._texts(count, what, keep=False)
        else:
            self._advance(count * _NUMBERS[kind].itemsize, what)

    def _count_values(self, count: int, what: str) -> None:
        self._values_left -= count
        if self._values_left < 0:
            raise BadGguf(
                f"{self.path}: its metadata has more than {MOST_VALUES} values with {what}, and that is the "
                "limit; use a file with a smaller vocabulary"
            )

    def _texts(self, count: int, what: str, *, keep: bool = True) -> list[str]:
        """So many texts; not `keep`: past them. A vocabulary has 100 thousand, so the loop is tight."""
        self._require(self.position + count * _SHORTEST_TEXT, what)
        data, position, loaded = self._data, self.position, len(self._data)
        texts: list[str] = []
        try:
            for _ in range(count):
                if position + _SHORTEST_TEXT > loaded:
                    loaded = self._load(position + _SHORTEST_TEXT, what)
                begin = position + _SHORTEST_TEXT
                position = begin + _UINT64.unpack_from(data, position)[0]
                if position > loaded:
                    loaded = self._load(position, what)
                if keep:
                    texts.append(data[begin:position].decode())
        except UnicodeDecodeError:
            raise damaged(self.path, f"{what} is no UTF-8") from None
        self.position = position
        return texts

    def _decode(self, begin: int, what: str) -> str:
        try:
            return self._data[begin : self.position].decode()
        except UnicodeDecodeError:
            raise damaged(self.path, f"{what} is no UTF-8") from None

    def _number(self, kind: struct.Struct, what: str) -> int:
        number: int = kind.unpack_from(self._data, self._advance(kind.size, what))[0]
        return number

    def _advance(self, count: int, what: str) -> int:
        """Loads so many bytes and returns where they begin."""
        begin, end = self.position, self.position + count
        if end > len(self._data):
            self._load(end, what)
        self.position = end
        return begin

    def _require(self, end: int, what: str) -> None:
        if end > self.size:
            raise damaged(self.path, f"{what} would end at byte {end}, the file has {self.size}")
        if end > LONGEST_HEADER:
            raise BadGguf(
                f"{self.path}: its header with {what} is longer than the limit of {LONGEST_HEADER} bytes; "
                "use a file with a smaller vocabulary"
            )

    def _load(self, end: int, what: str) -> int:
        """Reads the file up to `end` at least, and returns how much of it is there."""
        self._require(end, what)
        while len(self._data) < end:
            part = self._file.read(max(CHUNK, end - len(self._data)))
            if not part:
                raise damaged(self.path, f"it ends within {what}")
            self._data += part
        return len(self._data)
