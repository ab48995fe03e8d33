"""From the bytes of a body to a checked model of it.

Two readers: a strict and fast one, and a lenient one that only runs after the first failed, to find the
field that holds a NaN.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from services.gateway.bodies.json_shape import MAX_VALUES, NotJson, read_json
from services.gateway.completions.completion_schema import check_fields
from services.gateway.http.errors import HttpRefusal, invalid_body
from shared.errors import InvalidRequest

B = TypeVar("B", bound=BaseModel)


def check_content_type(headers: Mapping[bytes, bytes]) -> None:
    """Raises a 415 `HttpRefusal` unless the body says that it is plain JSON, or there is none.

    A page of another site can have a browser send any type but this one without asking us first.
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


def parse(raw: bytes, kind: type[B], max_values: int = MAX_VALUES) -> B:
    """The body as a model.

    Raises:
        InvalidRequest: names the field, or where the JSON breaks.
        RequestTooLarge: it has more values than a body may have.
    """
    try:
        value = read_json(raw, max_values=max_values)
    except NotJson as error:
        _explain_non_finite(raw, kind, max_values)
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    return _validate(value, kind)


def _validate(value: Any, kind: type[B]) -> B:
    try:
        check_fields(value)  # before the validator, which collects every error before it tells the first
        return kind.model_validate(value)
    except ValidationError as error:
        raise invalid_body(error) from None


def _explain_non_finite(raw: bytes, kind: type[B], max_values: int) -> None:
    """Raises `InvalidRequest` when the only trouble is a NaN or an infinity in a field that we know."""
    try:
        value = read_json(raw, finite=False, max_values=max_values)
    except NotJson:
        return
    _validate(value, kind)
