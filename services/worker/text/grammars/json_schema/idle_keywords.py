"""Keywords that ask for nothing, and those that ask for what another keyword says as well.

Annotations are ignored by definition. A keyword that is neither an annotation nor enforced is refused by
`schema_rewriter.py`, a misspelt one as well.
"""

from typing import Any

from services.worker.text.grammars.json_schema.schema_fault import SchemaFault, joined

_DRAFTS = (
    "json-schema.org/draft/2020-12/schema",
    "json-schema.org/draft/2019-09/schema",
    "json-schema.org/draft-07/schema",
    "json-schema.org/draft-06/schema",
)
# `discriminator` is OpenAPI's hint at the keys of a `oneOf` that stands beside it
_ANNOTATIONS = frozenset(
    {
        "title",
        "description",
        "default",
        "example",
        "examples",
        "$comment",
        "deprecated",
        "readOnly",
        "writeOnly",
    }
    | {"discriminator", "externalDocs", "xml"}
)
# keywords with definitions, which count only where they are referred to
_DEFINITIONS = frozenset({"$defs", "definitions", "$anchor", "$id", "$schema"})
IGNORED = _ANNOTATIONS | _DEFINITIONS
_IDLE_VALUES: dict[str, tuple[Any, ...]] = {
    "nullable": (False,),
    "not": (False,),
    "unevaluatedProperties": (True,),
    "unevaluatedItems": (True,),
    "propertyNames": (True, {}, {"type": "string"}),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "dependencies"), ({},)),
}
# what they say is about these
_NEEDS = {
    "if": {"then", "else"},
    "then": {"if"},
    "else": {"if"},
    "minContains": {"contains"},
    "maxContains": {"contains"},
}
_IN_PLACE = frozenset({"allOf", "anyOf", "oneOf", "$ref", "if", "then", "else", "dependentSchemas"})


def normal_form(schema: dict[str, Any], pointer: str) -> dict[str, Any]:
    """Returns a schema of equal meaning without the keywords that ask for nothing.

    Raises:
        SchemaFault: `$schema` or `$id` is one that is not followed.
    """
    _check_identity(schema, pointer)
    made = {
        key: value
        for key, value in schema.items()
        if not _is_idle(key, value, schema) and not _is_extension(key)
    }
    if isinstance(made.get("items"), list):  # draft 7
        made["prefixItems"] = made.pop("items")
        if "additionalItems" in made:
            made["items"] = made["additionalItems"]
    made.pop("additionalItems", None)  # without a list, it asks for nothing
    for name, other in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
        if made.get(name) is False and not _IN_PLACE & made.keys():
            del made[name]
            made.setdefault(other, False)
    return made


def _is_extension(key: str) -> bool:
    return key.startswith("x-") and key != "x-guidance"


def _is_idle(key: str, value: Any, schema: dict[str, Any]) -> bool:
    if key in _IDLE_VALUES:
        return any(value is idle or (isinstance(idle, dict) and value == idle) for idle in _IDLE_VALUES[key])
    if key in _NEEDS:
        return not _NEEDS[key] & schema.keys()
    return key == "uniqueItems" and (value is False or (value is True and schema.get("maxItems") in (0, 1)))


def _check_identity(schema: dict[str, Any], pointer: str) -> None:
    draft = schema.get("$schema")
    if draft is not None:
        named = (
            draft.removeprefix("https://").removeprefix("http://").rstrip("#")
            if isinstance(draft, str)
            else ""
        )
        if named not in _DRAFTS:
            raise SchemaFault("names a draft that is not followed; leave it out", "$schema", pointer)
    if pointer and isinstance(schema.get("$id"), str):
        raise SchemaFault("is followed at the root only", "$id", joined(pointer))
