"""Spans as the bytes of OTLP's `ExportTraceServiceRequest` (opentelemetry-proto 1.9, protocol buffers).

The SDK's objects and the generated classes take five times as long, and a recorded request has some sixty
spans. The tests compare both encodings.
"""

import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from shared.telemetry.spans.facts import Attribute, SpanFacts

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_KINDS = {"internal": 1, "server": 2, "client": 3}  # Span.SpanKind
_ERROR = 2  # Status.StatusCode
_SAMPLED = 0x101  # flags: the trace is recorded, and it is known that the parent is not remote
_fixed64 = struct.Struct("<Q").pack
_double = struct.Struct("<d").pack


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _tag(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _field(tag: bytes, body: bytes) -> bytes:
    """A field of bytes, text or a message."""
    return tag + _varint(len(body)) + body


# fields of Span
_TRACE_ID: Final = _tag(1, _BYTES) + b"\x10"
_SPAN_ID: Final = _tag(2, _BYTES) + b"\x08"
_PARENT_ID: Final = _tag(4, _BYTES) + b"\x08"
_NAME: Final = _tag(5, _BYTES)
_KIND: Final = {name: _tag(6, _VARINT) + _varint(number) for name, number in _KINDS.items()}
_START: Final = _tag(7, _FIXED64)
_END: Final = _tag(8, _FIXED64)
_ATTRIBUTE: Final = _tag(9, _BYTES)
_EVENT: Final = _tag(11, _BYTES)
_STATUS: Final = _tag(15, _BYTES)
_FLAGS: Final = _tag(16, _FIXED32) + struct.pack("<I", _SAMPLED)
_FIRST: Final = _tag(1, _BYTES)  # the first field of a message, if it is bytes, text or a message
_SECOND: Final = _tag(2, _BYTES)
_EVENT_TIME: Final = _tag(1, _FIXED64)
_STATUS_CODE: Final = _tag(3, _VARINT) + _varint(_ERROR)
# fields of AnyValue
_BOOL: Final = _tag(2, _VARINT)
_INT: Final = _tag(3, _VARINT)
_DOUBLE: Final = _tag(4, _FIXED64)
_ARRAY: Final = _tag(5, _BYTES)


def _any_value(value: Attribute) -> bytes:
    if isinstance(value, bool):
        return _BOOL + _varint(value)
    if isinstance(value, int):
        return _INT + _varint(value & (1 << 64) - 1)  # negative numbers in two's complement
    if isinstance(value, float):
        return _DOUBLE + _double(value)
    if isinstance(value, str):
        return _field(_FIRST, value.encode())
    return _field(_ARRAY, b"".join(_field(_FIRST, _any_value(one)) for one in value))


@lru_cache(512)
def _key(key: str) -> bytes:
    return _field(_FIRST, key.encode())


@lru_cache(4096, typed=True)
def _known_attribute(key: str, value: str | int) -> bytes:
    return _field(_ATTRIBUTE, _key(key) + _field(_SECOND, _any_value(value)))


@lru_cache(512)
def _float_attribute(key: str) -> bytes:
    """An attribute with a float, up to its eight bytes."""
    return _field(_ATTRIBUTE, _key(key) + _field(_SECOND, _DOUBLE + bytes(8)))[:-8]


def _attribute(key: str, value: Attribute) -> bytes:
    if isinstance(value, float):
        return _float_attribute(key) + _double(value)
    if isinstance(value, list):
        return _field(_ATTRIBUTE, _key(key) + _field(_SECOND, _any_value(value)))
    return _known_attribute(key, value)


@lru_cache(512)
def _name(name: str) -> bytes:
    return _field(_NAME, name.encode())


def encode_span(facts: SpanFacts, offset_ns: int) -> bytes:
    """A span as a field of `ScopeSpans`.

    Args:
        offset_ns: From its clock to the time since 1970.
    """
    parts = [
        _TRACE_ID,
        bytes.fromhex(facts.trace_id),
        _SPAN_ID,
        bytes.fromhex(facts.span_id),
        _name(facts.name),
        _KIND[facts.kind],
        _START,
        _fixed64(facts.begin_ns + offset_ns),
        _END,
        _fixed64(facts.end_ns + offset_ns),
        _FLAGS,
    ]
    if facts.parent_id:
        parts += (_PARENT_ID, bytes.fromhex(facts.parent_id))
    for key, value in facts.attributes.items():
        parts.append(_attribute(key, value))
    for name, at_ns in facts.events:
        event = _EVENT_TIME + _fixed64(at_ns + offset_ns) + _field(_SECOND, name.encode())
        parts.append(_field(_EVENT, event))
    if facts.error:
        parts.append(_field(_STATUS, _field(_SECOND, facts.error.encode()) + _STATUS_CODE))
    return _field(_SECOND, b"".join(parts))


def encode_request(resource: Mapping[str, Attribute], scope: str, spans: Iterable[bytes]) -> bytes:
    """The whole request.

    Args:
        resource: Attributes of the service.
        scope: Name of what made the spans.
        spans: As `encode_span` makes them.
    """
    attributes = [
        _field(_FIRST, _key(key) + _field(_SECOND, _any_value(value))) for key, value in resource.items()
    ]
    scoped = _field(_FIRST, _field(_FIRST, scope.encode())) + b"".join(spans)
    return _field(_FIRST, _field(_FIRST, b"".join(attributes)) + _field(_SECOND, scoped))
