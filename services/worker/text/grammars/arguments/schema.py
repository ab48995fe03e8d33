"""The schema that a grammar enforces for the arguments of a function.

JSON Schema allows arguments that the function does not declare; where the schema says nothing of them, none
are written. Of a function that is not strict, a keyword that is not enforced is left out and logged; the rest
is enforced.
"""

import copy
import json
from collections.abc import Callable
from typing import Any, TypeVar

import structlog

from services.worker.text.grammars.json_schema.schema_fault import SchemaFault
from services.worker.text.grammars.json_schema.schema_grammar import SchemaGrammar
from services.worker.text.grammars.limits import GrammarLimits
from services.worker.text.grammars.structured_grammar import refused, schema_refused
from services.worker.text.tool_prompt import parameters_of
from shared.errors import InvalidRequest
from shared.messages import ToolDefinition

log = structlog.get_logger(__name__)
Made = TypeVar("Made")
_ANY = {"type": "object"}
_MOST_LEFT_OUT = 32  # keywords of one schema
_COMBINING = ("anyOf", "oneOf", "allOf", "$ref", "patternProperties", "if", "not", "unevaluatedProperties")
_ALSO = {  # keywords that mean more when another is left out
    "properties": ("additionalProperties", "unevaluatedProperties"),
    "patternProperties": ("additionalProperties", "unevaluatedProperties"),
    "prefixItems": ("items", "unevaluatedItems"),
    "items": ("additionalItems",),
    "contains": ("minContains", "maxContains", "unevaluatedItems"),
    "if": ("then", "else"),
} | dict.fromkeys(("anyOf", "oneOf", "allOf", "$ref"), ("unevaluatedProperties", "unevaluatedItems"))


def argument_schema(
    tool: ToolDefinition, index: int, limits: GrammarLimits, use: Callable[[SchemaGrammar], Made]
) -> Made:
    """Returns what is made of the schema for the arguments of a function.

    Args:
        index: Its index in the request.
        limits: On the size of its schema.
        use: Makes it; raises `SchemaFault` for what cannot be enforced.

    Raises:
        InvalidRequest: The function is strict, and something of its schema is not enforced; `data` has
            `keyword`, `pointer`, and `index`.
    """
    document = _closed({"type": "object", **parameters_of(tool)})
    left_out: list[str] = []
    while True:
        text = json.dumps(document)
        try:
            if len(text) > limits.definition_bytes:
                reason = f"has {len(text)} characters, at most {limits.definition_bytes} are taken"
                if tool.strict:
                    raise _with_index(refused(reason, "json_schema", "tools"), index)
                raise SchemaFault(reason, "", "")
            made = use(SchemaGrammar(text, limits))
        except SchemaFault as fault:
            if tool.strict:
                raise _with_index(schema_refused(fault, "tools"), index) from fault
            if document == _ANY:
                raise _with_index(schema_refused(fault, "tools"), index) from fault
            left_out.append(f"{fault.pointer}/{fault.keyword}"[:80])
            last = len(left_out) >= _MOST_LEFT_OUT or not _leave_out(document, fault)
            document = dict(_ANY) if last else document
            continue
        if left_out:
            log.warning("tool schema enforced in part", tool=tool.name, left_out=left_out)
        return made


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema of an object that lets only the declared properties pass, if it is one that can."""
    names = schema.get("properties")
    required = schema.get("required", [])
    if not isinstance(names, dict) or not isinstance(required, list) or "additionalProperties" in schema:
        return copy.deepcopy(schema)
    if schema.keys() & set(_COMBINING) or not set(map(str, required)) <= names.keys():
        return copy.deepcopy(schema)
    if isinstance(schema.get("minProperties", 0), int) and schema.get("minProperties", 0) > len(names):
        return copy.deepcopy(schema)
    return copy.deepcopy(schema) | {"additionalProperties": False}


def _leave_out(document: dict[str, Any], fault: SchemaFault) -> bool:
    """Removes a keyword, and what would mean more without it; returns whether it was there."""
    at: Any = document
    for step in fault.pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(at, list):
            at = at[int(name)] if name.isdigit() and int(name) < len(at) else None
        else:
            at = at.get(name) if isinstance(at, dict) else None
    if not isinstance(at, dict) or fault.keyword not in at:
        return False
    for keyword in (fault.keyword, *_ALSO.get(fault.keyword, ())):
        at.pop(keyword, None)
    return True


def _with_index(error: InvalidRequest, index: int) -> InvalidRequest:
    return InvalidRequest(error.message, **{**error.data, "index": index})
