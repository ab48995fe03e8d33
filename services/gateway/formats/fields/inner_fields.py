"""Finds unknown fields inside bodies: those that the documented schema of the body does not have. Pure.

The schema is that of `/openapi.json`. Its objects may list under `x-accepted` what is taken and changes
nothing, such as fields of an answer that clients send back. An object without listed properties is free.
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

ACCEPTED = "x-accepted"
MAX_UNKNOWN = 16  # of one body that are named
_LONGEST = 64  # characters of a name that are shown


@dataclass(slots=True)
class ObjectFields:
    """The fields that an object may have.

    Attributes:
        known: Their names.
        inner: Of fields that are objects or lists of objects.
    """

    known: set[str] = field(default_factory=set)
    inner: dict[str, "ObjectFields"] = field(default_factory=dict)

    def add(self, other: "ObjectFields") -> None:
        """Takes what another form of the same object may have."""
        self.known |= other.known
        for name, shape in other.inner.items():
            self.inner.setdefault(name, ObjectFields()).add(shape)


@functools.cache
def shape_of(model: type[BaseModel]) -> ObjectFields:
    """The shape of a body."""
    schema = model.model_json_schema(by_alias=True)
    return _object(schema, schema.get("$defs", {})) or ObjectFields()


def _object(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> ObjectFields | None:
    """The shape of an object's schema; None if its fields are free."""
    if "properties" not in schema:
        return None
    shape = ObjectFields({*schema["properties"], *schema.get(ACCEPTED, ())})
    for name, one in schema["properties"].items():
        for form in _forms(one, definitions):
            found = _object(form, definitions)
            if found is not None:
                shape.inner.setdefault(name, ObjectFields()).add(found)
    return shape


def _forms(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The schemas that a value, or the entries of a list in its place, may have."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    forms = schema.get("anyOf")
    if forms is None:
        forms = [schema["items"]] if "items" in schema else None
    if forms is None:
        yield schema
        return
    for form in forms:
        yield from _forms(form, definitions)


def unknown_in(value: Any, shape: ObjectFields) -> tuple[str, ...]:
    """The places of unknown fields below the top, in their order, `MAX_UNKNOWN` at most."""
    found: list[str] = []
    for name, inner in shape.inner.items():
        _collect(value.get(name), inner, name, found)
    return tuple(found)


def _collect(value: Any, shape: ObjectFields, at: str, found: list[str]) -> None:
    if isinstance(value, list):
        for index, item in enumerate(value):
            if isinstance(item, dict):
                _collect(item, shape, f"{at}[{index}]", found)
        return
    if not isinstance(value, dict) or len(found) >= MAX_UNKNOWN:
        return
    if not value.keys() <= shape.known:
        unknown = [name for name in value if name not in shape.known]
        found += [f"{at}.{name[:_LONGEST]}" for name in unknown[: MAX_UNKNOWN - len(found)]]
    for name, inner in shape.inner.items():
        if name in value:
            _collect(value[name], inner, f"{at}.{name}", found)
