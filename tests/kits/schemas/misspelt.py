"""JSON texts that a parser reads as something else than a grammar might: escapes and repeated names."""

from typing import Any, NamedTuple

_INTEGER = {"type": "integer"}


class MisspeltText(NamedTuple):
    """A JSON text that does not fit its schema once it is parsed."""

    schema: dict[str, Any]
    text: str


MISSPELT = (
    MisspeltText({"type": "object", "properties": {"a": _INTEGER}}, r'{"\u0061":"x"}'),
    MisspeltText({"type": "object", "properties": {"a": _INTEGER}}, r'{"a":1,"\u0061":"x"}'),
    MisspeltText({"type": "object", "properties": {"a": _INTEGER}}, '{"a":1,"a":"x"}'),
    MisspeltText({"type": "object", "properties": {"a": _INTEGER}}, '{"b":1,"a":"x"}'),
    MisspeltText({"type": "object", "patternProperties": {"^x": _INTEGER}}, r'{"\u0078":"x"}'),
    MisspeltText({"type": "object", "additionalProperties": _INTEGER, "minProperties": 2}, '{"a":1,"a":2}'),
    MisspeltText(
        {"type": "object", "required": ["k"], "additionalProperties": _INTEGER}, r'{"k":1,"\u006b":"x"}'
    ),
    MisspeltText({"type": "string", "minLength": 2}, r'"\ud83d\ude00"'),
    MisspeltText({"type": "string", "pattern": "^[a-z]$"}, r'"\u0041"'),
    MisspeltText({"enum": ["a"]}, r'"\u0062"'),
    MisspeltText({"type": "number", "exclusiveMinimum": 0}, "1e-500"),
    MisspeltText({"type": "integer", "maximum": 5}, "1e1"),
)
