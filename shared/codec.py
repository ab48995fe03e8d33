"""Messages to bytes and back: MessagePack by `msgpack`, types and constraints by `msgspec`.

Decoding checks every field and names the one that is wrong. Encoding is deterministic: the same message
gives the same bytes, which the golden tests rely on.
"""

import re
import struct
from collections.abc import Sequence
from typing import Any, TypeVar

import msgpack
import msgspec

from shared.errors import Internal, InvalidRequest, from_code
from shared.messages import ErrorReply, Wire

M = TypeVar("M", bound=Wire)
MAX_ITEMS = 65_536  # of one array or map
_OWN_FIELD = re.compile(r"(?:Object missing required field )?`(\w+)`")


def encode(message: Wire) -> bytes:
    """The message as MessagePack."""
    packed: bytes = msgpack.packb(msgspec.to_builtins(message, builtin_types=(bytes,)), use_bin_type=True)
    return packed


def encode_batch(frames: Sequence[bytes], group: str = "", instance_id: str = "") -> bytes:
    """The `FrameBatch` of frames that are encoded already, byte for byte as `encode` would make it."""
    packer = msgpack.Packer(autoreset=False)
    packer.pack_map_header(1 + bool(group) + bool(instance_id))
    packer.pack("frames")
    packer.pack_array_header(len(frames))
    head = packer.bytes()
    packer.reset()
    for name, value in (("group", group), ("instance_id", instance_id)):
        if value:
            packer.pack(name)
            packer.pack(value)
    return b"".join((head, *frames, packer.bytes()))


def decode(data: bytes, kind: type[M]) -> M:
    """The message of that kind.

    Raises:
        InvalidRequest: the bytes are no MessagePack map, or a field is missing, of the wrong type or out of
            its bounds; `data["param"]` is its path. Or it is longer than its kind may be.
    """
    if kind.max_bytes and len(data) > kind.max_bytes:
        raise InvalidRequest(f"{kind.__name__}: {len(data)} bytes, and may have {kind.max_bytes}")
    return convert(_unpack(data), kind)


def convert(raw: object, kind: type[M]) -> M:
    """The message of that kind from plain dicts and lists; raises like `decode`."""
    try:
        return msgspec.convert(raw, kind, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `")
        # the place reads `$.field`, or `key` in `$.field`; some problems start with a field of that place
        path = place.rstrip("`").rpartition("$")[2]
        own = _OWN_FIELD.match(problem)
        param = (f"{path}.{own[1]}" if own else path).removeprefix(".")
        where = f"{param}: " if param else ""
        raise InvalidRequest(f"{kind.__name__}: {where}{problem}", param=param or None) from error


def fields_of(data: bytes) -> dict[Any, Any]:
    """What can be read of a message that is wrong, unchecked: to find out whom to answer; empty: nothing."""
    try:
        raw = _unpack(data)
    except InvalidRequest:
        return {}
    return raw if isinstance(raw, dict) else {}


def pack_tokens(token_ids: Sequence[int]) -> bytes:
    """Token ids as unsigned 32-bit little-endian integers."""
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


def unpack_tokens(data: bytes) -> list[int]:
    """The inverse of `pack_tokens`; raises `InvalidRequest` when the length is no multiple of four."""
    if len(data) % 4:
        raise InvalidRequest(f"token ids take four bytes each, got {len(data)} bytes", param="token_ids")
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def decode_reply(data: bytes, kind: type[M]) -> M:
    """The answer of a request/reply call; raises the error that it carries instead.

    An answer that cannot be read is not the caller's fault: it raises `Internal`.
    """
    try:
        raw = _unpack(data)
        if not (isinstance(raw, dict) and "error" in raw):
            return convert(raw, kind)
        failure = convert(raw, ErrorReply)
    except InvalidRequest as error:
        raise Internal(f"an answer cannot be read: {error.message}") from error
    raise from_code(failure.error, failure.message, failure.data)


def _unpack(data: bytes) -> object:
    try:
        # msgpack makes room for as many items as a length announces, at each of up to 1,024 levels, before it
        # sees that they are not there; the payload bounds what is
        most = min(len(data), MAX_ITEMS)
        return msgpack.unpackb(data, raw=False, strict_map_key=False, max_array_len=most, max_map_len=most)
    except Exception as error:  # msgpack raises many kinds, all of them mean the same
        reason = str(error) or type(error).__name__
        raise InvalidRequest(f"the message is not valid MessagePack: {reason}") from error
