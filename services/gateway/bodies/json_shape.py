"""JSON of a bounded size in values, read in a time that its bytes bound.

What a body costs to read and check depends on how many values it has, far more than on its bytes. So they are
counted first, without making any of them. Pure.
"""

from typing import Any

from pydantic_core import from_json

from shared.errors import RequestTooLarge

MAX_VALUES = 262_144  # a prompt of so many token ids fits; read and refused in some 0.1 s at most
MANY_VALUES = 4096  # read and checked in some 2 ms; bodies of more go by turns
_OPENERS = b",[{"


class NotJson(ValueError):
    """What came is no JSON; the text says where it breaks, and holds nothing of it."""


def read_json(
    raw: bytes, *, finite: bool = True, max_values: int = MAX_VALUES, settings: str = "RYZ_MAX_BODY_VALUES"
) -> Any:
    """The value that `raw` stands for. finite: NaN and infinities are refused. settings: of `max_values`.

    Raises:
        RequestTooLarge: it has more values than `max_values`.
        NotJson: it is none, is nested more than 200 deep, or has a number of more than 4,300 digits.
    """
    if not _has_at_most(raw, max_values):
        raise RequestTooLarge(
            f"the body has more than {max_values} values (fields, list entries, objects, lists): send less "
            f"at once, or text in place of token ids ({settings})",
            reason="body_values",
        )
    try:
        return from_json(raw, allow_inf_nan=not finite)
    except ValueError as error:
        raise NotJson(str(error)) from None


def may_have_more(raw: bytes, limit: int) -> bool:
    """Whether it has more commas and opening brackets, also in its strings. False is certain."""
    return len(raw) > limit and _count(raw, _OPENERS) > limit


def _has_at_most(raw: bytes, limit: int) -> bool:
    """Whether it has at most so many commas and opening brackets outside its strings.

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
