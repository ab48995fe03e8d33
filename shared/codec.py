"""Messages to bytes and back: MessagePack, types and constraints in one pass by `msgspec`.

Decoding checks every field and names the one that is wrong. Encoding is deterministic: the same message
gives the same bytes, which the golden tests rely on; there the `msgpack` package reads them as well.
"""

import re
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

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
    """A `FrameBatch` whose frames are bytes already; the same fields in the same order."""

    frames: list[msgspec.Raw]
    group: str = ""
    instance_id: str = ""


def encode(message: Wire) -> bytes:
    """The message as MessagePack."""
    return _encoder.encode(message)


def encode_batch(frames: Sequence[bytes], group: str = "", instance_id: str = "") -> bytes:
    """The `FrameBatch` of frames that are encoded already, byte for byte as `encode` would make it."""
    return _encoder.encode(_EncodedBatch([msgspec.Raw(frame) for frame in frames], group, instance_id))


def decode(data: bytes, kind: type[M]) -> M:
    """The message of that kind.

    Raises:
        InvalidRequest: the bytes are no MessagePack map, or a field is missing, of the wrong type or out of
            its bounds; `data["param"]` is its path. Or it is longer than its kind may be.
    """
    if kind.max_bytes and len(data) > kind.max_bytes:
        raise InvalidRequest(f"{kind.__name__}: {len(data)} bytes, and may have {kind.max_bytes}")
    try:
        decoder: Decoder[M] = _decoder(kind)
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise _wrong_field(error, kind) from error
    except Exception as error:  # many kinds, all of them mean the same
        raise _no_message_pack(error) from error


def convert(raw: object, kind: type[M]) -> M:
    """The message of that kind from plain dicts and lists; raises like `decode`."""
    try:
        return msgspec.convert(raw, kind, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise _wrong_field(error, kind) from error


class _Address(msgspec.Struct):
    """What tells of whom a message is and how it ends; the rest of a message is skipped, not made."""

    request_id: msgspec.Raw = _ABSENT
    attempt: msgspec.Raw = _ABSENT
    reply_to: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT


def fields_of(data: bytes) -> dict[str, Any]:
    """What can be read of a message that is wrong, unchecked: to find out whom to answer; empty: nothing."""
    try:
        address = _address.decode(data)
        raw = msgspec.structs.asdict(address)
        return {name: _plain.decode(value) for name, value in raw.items() if 0 < len(value) <= _SHORT}
    except Exception:  # many kinds, all of them mean the same
        return {}


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """Token ids as unsigned 32-bit little-endian integers."""
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


def num_packed(data: bytes) -> int:
    """How many token ids are packed there; raises `InvalidRequest` when the length is no multiple of four."""
    if len(data) % 4:
        raise InvalidRequest(f"token ids take four bytes each, got {len(data)} bytes", param="token_ids")
    return len(data) // 4


def unpack_tokens(data: bytes) -> list[int]:
    """The inverse of `pack_tokens`; raises `InvalidRequest` when the length is no multiple of four."""
    return list(struct.unpack(f"<{num_packed(data)}I", data))


def decode_reply(data: bytes, kind: type[M]) -> M:
    """The answer of a request/reply call; raises the error that it carries instead.

    An answer that cannot be read is not the caller's fault: it raises `Internal`.
    """
    try:
        # what has no such word in it has no such field, and need not be read twice
        if b"error" not in data or "error" not in fields_of(data):
            return decode(data, kind)
        failure = decode(data, ErrorReply)
    except InvalidRequest as error:
        raise Internal(f"an answer cannot be read: {error.message}") from error
    raise from_code(failure.error, failure.message, failure.data)


def _refuse_extension(code: int, data: memoryview) -> object:
    raise ValueError(f"an extension of type {code}")


_plain = Decoder(ext_hook=_refuse_extension)
_address = Decoder(_Address)


@cache
def _decoder(kind: type[M]) -> "Decoder[M]":
    return Decoder(kind, ext_hook=_refuse_extension)


def _wrong_field(error: msgspec.ValidationError, kind: type[Wire]) -> InvalidRequest:
    problem, _, place = str(error).partition(" - at `")
    # the place reads `$.field`, or `key` in `$.field`; some problems start with a field of that place
    path = place.rstrip("`").rpartition("$")[2]
    own = _OWN_FIELD.match(problem)
    param = (f"{path}.{own[1]}" if own else path).removeprefix(".")
    where = f"{param}: " if param else ""
    return InvalidRequest(f"{kind.__name__}: {where}{problem}", param=param or None)


def _no_message_pack(error: Exception) -> InvalidRequest:
    reason = str(error) or type(error).__name__
    return InvalidRequest(f"the message is not valid MessagePack: {reason}")
