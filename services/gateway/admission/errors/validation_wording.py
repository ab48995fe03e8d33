"""Words for the errors of the validator, in the terms of JSON.

The validator's own texts speak of its types. An error of a type that is not listed here is told with its
field and the value that was given, without the validator's text.
"""

from collections.abc import Mapping
from typing import Any

_PLAIN = {
    "missing": "is required",
    "extra_forbidden": "is not known",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "is too large a number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be a string",
    "string_unicode": "must be valid Unicode",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "greater_than": "must be greater than {gt:.19g}",
    "greater_than_equal": "must be at least {ge:.19g}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le:.19g}",
    "literal_error": "must be {expected}",
    "string_too_long": "must have at most {max_length} characters",
    # the pattern of names
    "string_pattern_mismatch": "must not have spaces, control characters or marks of text direction",
}


_ENTRIES = {"messages": ("one message", "messages"), "tools": ("one tool", "tools")}


def problem_of(kind: str, message: str, context: Mapping[str, Any], param: str = "") -> str:
    """The error in words that follow the name of the field.

    Args:
        kind: The validator's type of error.
        message: The validator's text; used only for `wrong`, whose text is the body's own.
        context: The values that the text names.
        param: The path of the field, for the name of its entries.
    """
    if kind == "wrong":
        return message
    if kind == "string_too_short":
        return (
            "must not be empty" if context["min_length"] == 1 else f"is shorter than {context['min_length']}"
        )
    if kind == "too_short":
        return f"must have at least {_entries(context['min_length'], param)}"
    if kind == "too_long":
        return f"must have at most {_entries(context['max_length'], param)}, got {context['actual_length']}"
    return _PLAIN.get(kind, "is not valid").format(**context)


def _entries(count: int, param: str) -> str:
    one, many = _ENTRIES.get(param, ("one entry", "entries"))
    return one if count == 1 else f"{count} {many}"
