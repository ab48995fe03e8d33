"""One schema of the set, with instances whose validity the `jsonschema` package confirms."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

Schema = dict[str, Any] | bool


class SchemaCase(NamedTuple):
    """A schema with instances.

    Attributes:
        name: Names the case in messages; unique in the set.
        schema: The JSON schema, draft 2020-12.
        valid: Instances that fit it, members in the order of `properties`, additional members last.
        invalid: Instances that do not fit it.
    """

    name: str
    schema: Schema
    valid: tuple[Any, ...]
    invalid: tuple[Any, ...]


def validator(schema: Schema) -> "Draft202012Validator":
    """Returns a validator that also checks `format`."""
    from jsonschema import Draft202012Validator  # noqa: PLC0415  # its grammars of `format` take 2.5 s

    return Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)


def mistakes(case: SchemaCase) -> Iterator[str]:
    """Yields the instances that stand on the wrong side, according to the `jsonschema` package."""
    judge = validator(case.schema)
    for instance in case.valid:
        if not judge.is_valid(instance):
            yield f"{case.name}: {instance!r} is not valid"
    for instance in case.invalid:
        if judge.is_valid(instance):
            yield f"{case.name}: {instance!r} is valid"


def spellings(instance: Any) -> list[str]:
    """Returns an instance as JSON, without and with spaces between its parts."""
    return [
        json.dumps(instance, ensure_ascii=False, separators=(",", ":")),
        json.dumps(instance, ensure_ascii=False),
        json.dumps(instance, ensure_ascii=False, indent=2),
    ]
