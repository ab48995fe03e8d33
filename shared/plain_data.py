"""Reads and writes MessagePack that no struct describes, with the `msgpack` package.

Messages have structs, and `shared/codec.py` checks them with msgspec. What is read here is of unknown or of
several forms: fields of a message that does not fit its struct, summaries that another release has stored.
Both packages write the same bytes for the same plain value.
"""

from typing import Any

import msgpack


def pack(value: object) -> bytes:
    """Returns a value of dicts, lists, texts, bytes, numbers, booleans and None as MessagePack."""
    packed: bytes = msgpack.packb(value)
    return packed


def unpack(data: bytes | memoryview) -> Any:
    """Returns the value in `data`. Keys of maps may be numbers; a timestamp becomes a `msgpack.Timestamp`.

    Raises:
        ValueError: The bytes are not exactly one value, or have a type of extension, or a key that is a list
            or a map.
    """
    try:
        return msgpack.unpackb(data, strict_map_key=False, ext_hook=_refuse_extension)
    except (ValueError, TypeError) as error:  # TypeError: such a key
        raise ValueError(f"no plain MessagePack: {str(error) or type(error).__name__}") from error


def _refuse_extension(code: int, data: bytes) -> object:
    raise ValueError(f"an extension of type {code}")
