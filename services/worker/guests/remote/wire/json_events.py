"""Decodes the JSON of events."""

import json
from typing import Any, TypeVar

import msgspec

from services.worker.guests.remote.wire.server_error import ServerError

T = TypeVar("T")


def read_json(decoder: "msgspec.json.Decoder[T]", data: bytes) -> T:
    """Return the event's value.

    Raises:
        ServerError: It is broken, or has another shape.
    """
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, ValueError):
        pass  # a half of a UTF-16 pair is valid JSON, and no text for that decoder
    try:
        value: Any = json.loads(data.decode())
        return msgspec.convert(value, decoder.type)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise ServerError("sent an event that cannot be read") from error
