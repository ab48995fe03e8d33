"""JSON as engines of others write it under a schema, whose white space and order of keys are their own."""

import json
from typing import Any, Final

# between values; llama.cpp's server has a space there, or up to two line breaks and an indent
_SPACE: Final = "[ \\t\\r\\n]{1,64}"
_OPTIONS: Final[dict[str, Any]] = {
    "whitespace_flexible": True,
    "whitespace_pattern": _SPACE,
    "item_separator": ",",
    "key_separator": ":",
    "json_allowed_escapes": '"\\bfnrt',
}


def servers_json(document: dict[str, Any]) -> str:
    """Returns the Lark grammar of texts that satisfy a rewritten schema, in the form of other engines.

    Properties that are required come before the others, as llama.cpp has them; each of the two in the order
    of the schema.
    """
    made = {**_reordered(document), "x-guidance": _OPTIONS}
    text = json.dumps(made, ensure_ascii=False)
    return f"start: SPACE? answer SPACE?\nanswer: %json {text}\nSPACE: /{_SPACE}/\n"


def _reordered(value: Any) -> Any:
    """Returns a value with the properties of all schemas in it in that order; constants stay as they are."""
    if isinstance(value, list):
        return [_reordered(one) for one in value]
    if not isinstance(value, dict):
        return value
    made = {key: one if key in ("const", "enum") else _reordered(one) for key, one in value.items()}
    properties, required = made.get("properties"), made.get("required")
    if isinstance(properties, dict) and isinstance(required, list):
        first = {name: schema for name, schema in properties.items() if name in required}
        made["properties"] = first | properties
    return made
