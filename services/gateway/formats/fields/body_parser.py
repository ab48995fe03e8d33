"""Parses the bytes of a body into a checked model.

There are two readers: a strict and fast one, and a lenient one that only runs after the first has failed, to
find the field that holds a NaN.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from services.gateway.admission.bodies.json_shape import MAX_VALUES, NotJson, check_fields, read_json
from services.gateway.admission.errors.refusals import HttpRefusal, invalid_body
from services.gateway.formats.fields.body_types import RequestBody
from shared.errors import InvalidRequest

B = TypeVar("B", bound=BaseModel)


def check_content_type(headers: Mapping[bytes, bytes]) -> None:
    """Checks that the body is announced as plain JSON, or that there is none.

    The page of another site can make a browser send any other type without asking this server first.

    Raises:
        HttpRefusal: 415, for another type or an encoding.
    """
    announced = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if (kind or announced) and kind != b"application/json":
        raise HttpRefusal(
            415,
            "unsupported_media_type",
            f"set the header Content-Type: application/json, not {kind.decode('latin-1')[:64]!r}",
        )
    encoding = headers.get(b"content-encoding", b"identity").strip().lower()
    if encoding != b"identity":
        raise HttpRefusal(
            415,
            "unsupported_media_type",
            f"bodies are taken as they are, not with Content-Encoding {encoding.decode('latin-1')[:64]!r}",
        )


def parse_body(raw: bytes, kind: type[B], max_values: int = MAX_VALUES) -> B:
    """Parses a body.

    Raises:
        InvalidRequest: The body is wrong; names the field, or where the JSON breaks.
        RequestTooLarge: The body has more values than `max_values`.
    """
    try:
        value = read_json(raw, max_values=max_values)
    except NotJson as error:
        _explain_non_finite(raw, kind, max_values)
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    return _validate(value, kind)


def _validate(value: Any, kind: type[B]) -> B:
    try:
        check_fields(value)  # first, since the validator collects every error before it raises one
        body = kind.model_validate(value)
    except ValidationError as error:
        raise invalid_body(error) from None
    if isinstance(body, RequestBody):
        body.note_unknown(value)
    return body


def _explain_non_finite(raw: bytes, kind: type[B], max_values: int) -> None:
    """Raises `InvalidRequest` if the only fault is a NaN or an infinity in a known field."""
    try:
        value = read_json(raw, finite=False, max_values=max_values)
    except NotJson:
        return
    _validate(value, kind)
