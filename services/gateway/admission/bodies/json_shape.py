"""Reads JSON of a bounded number of values, in a time that the bytes bound. Pure.

The cost of reading and checking a body depends on the number of its values far more than on its bytes. So the
values are counted first, without making any of them.
"""

from typing import Any

from pydantic_core import from_json

from shared.errors import InvalidRequest, RequestTooLarge

MAX_VALUES = 262_144  # a prompt of as many token ids fits; read and refused within about 0.1 s
MANY_VALUES = 4096  # read and checked within about 2 ms; larger bodies take turns
MAX_FIELDS = 256  # of one object; OpenAI's bodies have some 30, and clients add a few of their own
_OPENERS = b",[{"


class NotJson(ValueError):
    """The bytes are not JSON; the text says where they break, and holds none of them."""


def read_json(raw: bytes, *, finite: bool = True, max_values: int = MAX_VALUES, settings: str = "") -> Any:
    """Decodes JSON.

    Args:
        raw: The text, in UTF-8.
        finite: Refuse NaN and infinities.
        max_values: The most values that it may have.
        settings: The setting that bounds `max_values`, for the refusal; empty: none does.

    Raises:
        RequestTooLarge: It has more values than `max_values`.
        NotJson: It is no JSON, is nested more than 200 deep, or has a number of more than 4,300 digits.
    """
    if not _has_at_most(raw, max_values):
        raise RequestTooLarge(
            f"the body has more than {max_values} values (fields, list entries, objects, lists): send less "
            "at once, or text in place of token ids" + (f" ({settings})" if settings else ""),
            reason="body_values",
        )
    try:
        return from_json(raw, allow_inf_nan=not finite)
    except ValueError as error:
        raise NotJson(str(error)) from None


def check_fields(value: Any) -> None:
    """Raises `InvalidRequest` for an object with more than `MAX_FIELDS` fields."""
    if isinstance(value, dict) and len(value) > MAX_FIELDS:
        raise InvalidRequest(f"the body has {len(value)} fields and may have {MAX_FIELDS}")


def may_have_more(raw: bytes, limit: int) -> bool:
    """Returns whether it may have more than `limit` values; counts in its strings, too. False is certain."""
    return len(raw) > limit and _count(raw, _OPENERS) > limit


def _has_at_most(raw: bytes, limit: int) -> bool:
    """Returns whether it has at most `limit` commas and opening brackets outside its strings.

    A body with many of them in its strings may have half as many strings, which keeps the second look cheap.
    """
    if not may_have_more(raw, limit):  # most bodies
        return True
    bare = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    if bare.count(b'"') > limit:
        return False
    return _count(b"".join(bare.split(b'"')[::2]), _OPENERS) <= limit


def _count(raw: bytes, characters: bytes) -> int:
    return 0 if not raw else len(raw) - len(raw.translate(None, characters))
