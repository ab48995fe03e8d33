"""Encodes messages as MessagePack and decodes them, with `msgspec`.

Decoding checks types and bounds of every field, and names the one that is wrong. Encoding is deterministic,
as the golden tests require.

Values that no struct describes are packed and unpacked with the `msgpack` package: fields of a message that
does not fit its struct, summaries that another release has stored. Both packages write the same bytes for the
same plain value.
"""

import re
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

import msgpack
import msgspec
from msgspec.msgpack import Decoder, Encoder

from shared.errors import Internal, InvalidRequest, from_code
from shared.messages import ErrorReply, Wire

M = TypeVar("M", bound=Wire)
_encoder = Encoder()
_ABSENT = msgspec.Raw(b"")
_SHORT = 1024  # bytes: ids, subjects and codes are shorter
_OWN_FIELD = re.compile(r"(?:Object missing required field )?`(\w+)`")


class _EncodedBatch(msgspec.Struct, omit_defaults=True):
    """A `FrameBatch` whose frames are encoded already; the same fields in the same order."""

    frames: list[msgspec.Raw]
    group: str = ""
    instance_id: str = ""


def encode(message: Wire) -> bytes:
    """Returns the message as MessagePack."""
    return _encoder.encode(message)


def encode_batch(frames: Sequence[bytes], group: str = "", instance_id: str = "") -> bytes:
    """Returns the `FrameBatch` of encoded frames, byte for byte as `encode` would."""
    return _encoder.encode(_EncodedBatch([msgspec.Raw(frame) for frame in frames], group, instance_id))


def decode(data: bytes, kind: type[M]) -> M:
    """Decodes a message of that kind.

    Raises:
        InvalidRequest: The bytes are not a MessagePack map, or more than `kind.max_bytes`; or a field is
            missing, of the wrong type or out of its bounds, and `data["param"]` is its path.
    """
    if kind.max_bytes and len(data) > kind.max_bytes:
        raise InvalidRequest(f"{kind.__name__}: {len(data)} bytes, and may have {kind.max_bytes}")
    try:
        decoder: Decoder[M] = _decoder(kind)
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise _wrong_field(error, kind) from error
    except Exception as error:  # of many kinds, all with this meaning
        raise _no_message_pack(error) from error


def convert(raw: object, kind: type[M]) -> M:
    """Returns a message of that kind from plain dicts and lists; raises like `decode`."""
    try:
        return msgspec.convert(raw, kind, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise _wrong_field(error, kind) from error


class _Address(msgspec.Struct):
    """The fields that show the sender of a message and whether it is an error; other fields are skipped."""

    request_id: msgspec.Raw = _ABSENT
    attempt: msgspec.Raw = _ABSENT
    reply_to: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT


def fields_of(data: bytes) -> dict[str, Any]:
    """Returns the readable fields of `_Address` in a bad message, unchecked, for an answer to it."""
    try:
        address = _address.decode(data)
        raw = msgspec.structs.asdict(address)
        return {name: unpack_plain(value) for name, value in raw.items() if 0 < len(value) <= _SHORT}
    except Exception:  # of many kinds, all with this meaning
        return {}


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """Returns token ids as unsigned 32-bit little-endian integers."""
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


def num_packed(data: bytes) -> int:
    """Returns the number of packed token ids; raises `InvalidRequest` if the length is no multiple of 4."""
    if len(data) % 4:
        raise InvalidRequest(f"token ids take four bytes each, got {len(data)} bytes", param="token_ids")
    return len(data) // 4


def unpack_tokens(data: bytes) -> list[int]:
    """Returns packed token ids; raises `InvalidRequest` if the length is no multiple of 4."""
    return list(struct.unpack(f"<{num_packed(data)}I", data))


def decode_reply(data: bytes, kind: type[M]) -> M:
    """Decodes the reply of a call.

    Raises:
        RyzError: The reply is an `ErrorReply`; the error in it.
        Internal: The reply cannot be decoded, which is not the fault of the caller.
    """
    try:
        # without that word there is no such field, and nothing is decoded twice
        if b"error" not in data or "error" not in fields_of(data):
            return decode(data, kind)
        failure = decode(data, ErrorReply)
    except InvalidRequest as error:
        raise Internal(f"an answer cannot be read: {error.message}") from error
    raise from_code(failure.error, failure.message, failure.data)


def _refuse_extension(code: int, data: memoryview) -> object:
    raise ValueError(f"an extension of type {code}")


_address = Decoder(_Address)


@cache
def _decoder(kind: type[M]) -> "Decoder[M]":
    return Decoder(kind, ext_hook=_refuse_extension)


def _wrong_field(error: msgspec.ValidationError, kind: type[Wire]) -> InvalidRequest:
    problem, _, prefix = str(error).partition(" - at `")
    # the place reads `$.field`, or `key` in `$.field`; some problems start with a field of that place
    path = prefix.rstrip("`").rpartition("$")[2]
    own = _OWN_FIELD.match(problem)
    param = (f"{path}.{own[1]}" if own else path).removeprefix(".")
    where = f"{param}: " if param else ""
    return InvalidRequest(f"{kind.__name__}: {where}{problem}", param=param or None)


def _no_message_pack(error: Exception) -> InvalidRequest:
    reason = str(error) or type(error).__name__
    return InvalidRequest(f"the message is not valid MessagePack: {reason}")


def pack_plain(value: object) -> bytes:
    """Returns a value of dicts, lists, texts, bytes, numbers, booleans and None as MessagePack."""
    packed: bytes = msgpack.packb(value)
    return packed


def unpack_plain(data: bytes | memoryview) -> Any:
    """Returns the value in `data`. Keys of maps may be numbers; a timestamp becomes a `msgpack.Timestamp`.

    Raises:
        ValueError: The bytes are not exactly one value, or have a type of extension, or a key that is a list
            or a map.
    """
    try:
        return msgpack.unpackb(data, strict_map_key=False, ext_hook=_refuse_extension)
    except (ValueError, TypeError) as error:  # TypeError: such a key
        raise ValueError(f"no plain MessagePack: {str(error) or type(error).__name__}") from error
