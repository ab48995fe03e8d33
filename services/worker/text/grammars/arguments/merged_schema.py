"""Joins two schemas that both hold into one, where that is possible keyword by keyword."""

from typing import Any

_LARGER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_SMALLER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_OPEN = ("additionalProperties", "patternProperties")
TYPES = {
    "object": (
        "properties", "required", "additionalProperties", "patternProperties", "minProperties",
        "maxProperties",
    ),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "boolean": (),
    "null": (),
}  # fmt: skip


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema whose values satisfy both. Raises `KeyError` with the keyword where it finds none."""
    if one.get("properties", {}).keys() != other.get("properties", {}).keys() and any(
        key in each for each in (one, other) for key in _OPEN
    ):
        raise KeyError("additionalProperties")
    if "prefixItems" in one or "prefixItems" in other:
        raise KeyError("prefixItems")
    made = dict(one)
    for key, value in other.items():
        if key not in made or made[key] == value:
            made[key] = value
        elif key == "required":
            made[key] = [*made[key], *(name for name in value if name not in made[key])]
        elif key == "allOf":
            made[key] = [*made[key], *value]
        elif key == "properties" and not made[key].keys() & value.keys():
            made[key] = {**made[key], **value}
        elif key in _LARGER or key in _SMALLER:
            made[key] = (max if key in _LARGER else min)(made[key], value)
        elif key == "type" and (both := types_of(one) & types_of(other)):
            made[key] = sorted(both)
        else:
            raise KeyError(key)
    return made


def types_of(schema: dict[str, Any]) -> set[str]:
    """Returns the types that a schema names, or that its keywords speak of; all if there are none."""
    named = schema.get("type")
    if named is not None:
        return set(named) if isinstance(named, list) else {named}
    spoken = {kind for kind, keys in TYPES.items() if any(key in schema for key in keys)}
    return spoken or set(TYPES)


def is_of(value: Any, types: set[str]) -> bool:
    """Returns whether a value has one of some types."""
    if isinstance(value, bool):
        return "boolean" in types
    if isinstance(value, int | float):
        return "number" in types or ("integer" in types and float(value).is_integer())
    kinds = {str: "string", list: "array", dict: "object", type(None): "null"}
    return kinds[type(value)] in types
