"""Checks the values of single keywords: what JSON Schema allows, and what llguidance 1.9.1 enforces exactly.

Each check returns the value for llguidance, or raises `ValueError` with a reason that reads on after the
keyword.
"""

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from services.worker.text.grammars.json_schema.string_formats import ENFORCED

TYPES = ("null", "boolean", "object", "array", "number", "string", "integer")
_EXACT = 2**53  # integers beyond it are rounded by llguidance
_ESCAPED = frozenset("\b\f\n\r\t")
_MOST_DECIMALS = 9


def natural(value: Any) -> int:
    """Returns a number of things."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
        raise ValueError("needs a whole number, at least 0")
    if value > 2**31:
        raise ValueError("is too large")
    return int(value)


def type_names(value: Any) -> str | list[str]:
    """Returns the types of `type`."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or any(name not in TYPES for name in names):
        raise ValueError(f"needs one or more of {', '.join(TYPES)}")
    return value if isinstance(value, str) else list(dict.fromkeys(names))


def bound(value: Any) -> int | float:
    """Returns a bound of numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("needs a number (a boolean belonged to draft 4)")
    if not abs(value) <= _EXACT:
        raise ValueError("is enforced up to 2 to the power of 53")
    decimals = Decimal(repr(value)).as_tuple().exponent
    if isinstance(decimals, int) and decimals < -_MOST_DECIMALS and value != int(value):
        raise ValueError(f"is enforced with up to {_MOST_DECIMALS} decimals")
    return value


def multiple(value: Any) -> Fraction:
    """Returns the value of `multipleOf`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError("needs a number above 0")
    return Fraction(repr(value))


def names(value: Any) -> list[str]:
    """Returns the names of `required`."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError("needs a list of names")
    for name in value:
        exact(name)
    return list(dict.fromkeys(value))


def format_name(value: Any) -> str:
    """Returns the name of a format."""
    if value not in ENFORCED:
        raise ValueError(f"is enforced for {', '.join(sorted(ENFORCED))}")
    return str(value)


def exact(value: Any) -> Any:
    """Returns a value of `const` or `enum`, or a property's name, if an answer can have exactly that."""
    if isinstance(value, str):
        if any((char < " " and char not in _ESCAPED) or char == "\x7f" for char in value):
            raise ValueError("has a text with a control character, which answers cannot have")
        if any("\ud800" <= char <= "\udfff" for char in value):
            raise ValueError("has a text with half of a surrogate pair")
    elif isinstance(value, list):
        for item in value:
            exact(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            exact(key)
            exact(item)
    elif isinstance(value, int) and abs(value) > _EXACT:
        raise ValueError("has an integer beyond 2 to the power of 53, which would be rounded")
    return value


VALUES: dict[str, Callable[[Any], Any]] = {
    "type": type_names,
    "required": names,
    "format": format_name,
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), bound),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), natural
    ),
}
