"""What a schema asks is enforced exactly, or refused by its keyword and place."""

import json
import time
from typing import Any

import pytest

from shared.errors import InvalidRequest
from tests.kits.grammars.walks import compiled, compiled_schema, takes


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """The first compilation of a process imports what compiles schemas; the bounds are on the others."""
    compiled_schema({"type": "boolean"})


def nested(depth: int) -> dict[str, Any]:
    return {"items": nested(depth - 1)} if depth else {}


def patterns(number: int) -> list[dict[str, Any]]:
    return [{"type": "string", "pattern": f"^.*p{index}.*$"} for index in range(number)]


def cycles() -> dict[str, Any]:
    """Rings of different lengths, which meet in a product of places, and forks that double each time."""
    made: dict[str, Any] = {}
    for ring in (31, 37, 41):
        for at in range(ring):
            made[f"r{ring}_{at}"] = {
                "type": "object",
                "properties": {"a": {"$ref": f"#/$defs/r{ring}_{(at + 1) % ring}"}},
            }
    for at in range(40):
        following = {"$ref": f"#/$defs/f{at + 1}"}
        made[f"f{at}"] = {"allOf": [{"type": "object", "properties": {"a": following, "b": following}}]}
    return made | {"f40": {"type": "object"}}


def chained(number: int) -> dict[str, Any]:
    """Definitions that each add a pattern to the one after it."""
    links = [{"allOf": [one, {"$ref": f"#/$defs/d{at + 1}"}]} for at, one in enumerate(patterns(number))]
    return {f"d{at}": one for at, one in enumerate(links)} | {f"d{number}": {"type": "string"}}


REFUSED: list[tuple[Any, str, str]] = [
    ({"type": "array", "uniqueItems": True}, "uniqueItems", ""),
    ({"type": "array", "contains": {"const": 1}}, "contains", ""),
    ({"properties": {"a": {"not": {"type": "null"}}}}, "not", "/properties/a"),
    ({"if": {}, "then": {"type": "null"}}, "if", ""),
    ({"dependentRequired": {"a": ["b"]}}, "dependentRequired", ""),
    ({"dependentSchemas": {"a": {}}}, "dependentSchemas", ""),
    ({"propertyNames": {"maxLength": 3}}, "propertyNames", ""),
    ({"anyOf": [{}], "unevaluatedProperties": False}, "unevaluatedProperties", ""),
    ({"$dynamicRef": "#x"}, "$dynamicRef", ""),
    ({"items": {"type": "string", "format": "ipv5"}}, "format", "/items"),
    ({"type": "string", "contentEncoding": "base64"}, "contentEncoding", ""),
    ({"type": "string", "nullable": True}, "nullable", ""),
    ({"typ": "string"}, "typ", ""),
    ({"x-guidance": {"lenient": True}, "uniqueItems": True}, "x-guidance", ""),
    ({"type": "text"}, "type", ""),
    ({"minLength": -1}, "minLength", ""),
    ({"minLength": 10**9}, "minLength", ""),
    ({"minimum": 3, "exclusiveMinimum": True}, "exclusiveMinimum", ""),
    ({"minimum": 2**60}, "minimum", ""),
    ({"enum": [2**60]}, "enum", ""),
    ({"const": "\x01"}, "const", ""),
    ({"enum": []}, "enum", ""),
    ({"anyOf": []}, "anyOf", ""),
    ({"multipleOf": 99991}, "multipleOf", ""),
    ({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}, "multipleOf", "/allOf/1"),
    ({"type": "object", "minProperties": 2}, "minProperties", ""),
    ({"type": "object", "properties": {"a": {}, "b": {}}, "maxProperties": 1}, "maxProperties", ""),
    ({"pattern": "a(?=b)"}, "pattern", ""),
    ({"pattern": r"(a)\1"}, "pattern", ""),
    ({"pattern": r"\bx"}, "pattern", ""),
    ({"pattern": "(?i)x"}, "pattern", ""),
    ({"pattern": "a^b"}, "pattern", ""),
    ({"pattern": "(a{1000}){1000}"}, "pattern", ""),
    ({"patternProperties": {"^a": {"type": "string"}, "b$": {"type": "null"}}}, "patternProperties", ""),
    ({"allOf": patterns(40)}, "allOf", ""),
    ({"$ref": "#/$defs/d0", "$defs": chained(40)}, "allOf", "/$defs/d0"),
    ({"allOf": [{"$ref": f"#/$defs/r{ring}_0"} for ring in (31, 37, 41)], "$defs": cycles()}, "allOf", ""),
    ({"allOf": [{"properties": {"a": one}} for one in patterns(40)]}, "allOf", ""),
    ({"allOf": [{"items": {"anyOf": [one, {"const": 1}]}} for one in patterns(40)]}, "allOf", ""),
    ({"$ref": "#/$defs/none"}, "$ref", ""),
    ({"$ref": "https://example.com/schema"}, "$ref", ""),
    ({"$ref": "#none"}, "$ref", ""),
    ({"$ref": "#"}, "$ref", ""),
    ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "$ref", ""),
    (
        {"type": "object", "properties": {"c": {"$ref": "#"}}, "required": ["c"]},
        "$ref",
        "/properties/c",
    ),
    (
        {"items": {"type": "array", "items": {"type": "array", "minItems": 300}, "minItems": 300}},
        "minItems",
        "/items",
    ),
    (
        {"type": "object", "properties": {"a": {}}, "required": ["b"], "additionalProperties": False},
        "required",
        "",
    ),
    ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "required", ""),
    (
        {"type": "object", "properties": {"a": {"type": "array", "items": False, "minItems": 1}}},
        "minItems",
        "/properties/a",
    ),
    ({"type": "array", "prefixItems": [False], "minItems": 1}, "minItems", ""),
    ({"anyOf": [False, False]}, "anyOf", ""),
    ({"allOf": [{"type": "string"}, False]}, "allOf", ""),
    (
        {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/n"}, "b": {"type": "string"}},
            "required": ["c"],
            "additionalProperties": False,
            "$defs": {"n": {"type": "object"}},
        },
        "required",
        "",
    ),
    (
        {
            "type": "object",
            "required": [f"p{number}" for number in range(100)],
            "additionalProperties": {"type": "array", "items": {"type": "null"}, "minItems": 250},
        },
        "required",
        "",
    ),
    ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf", ""),
    ({"allOf": [{"minimum": 5, "maximum": 3, "type": "number"}]}, "minimum", "/allOf/0"),
    ({"$schema": "http://json-schema.org/draft-04/schema#"}, "$schema", ""),
    ({"properties": {"a": {"$id": "https://example.com/a"}}}, "$id", "/properties/a"),
    (nested(60), "items", "/items" * 41),
    ({"enum": [f"v{number}" for number in range(10_000)]}, "enum", ""),
    ({"properties": {f"p{number}": {} for number in range(1001)}}, "properties", ""),
    ({"const": "x" * 10_000}, "const", ""),
    ({"patternProperties": {f"^{number}:": {} for number in range(40)}}, "patternProperties", ""),
    ({"allOf": [{"anyOf": [{"minimum": 10 * a + b} for b in range(4)]} for a in range(6)]}, "allOf", ""),
    ({"allOf": [{"properties": {"p": {"anyOf": [{"minimum": b} for b in range(4)]}}}] * 6}, "allOf", ""),
    ("no schema", "", ""),
    (False, "", ""),
]


@pytest.mark.parametrize(("schema", "keyword", "pointer"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_is_not_enforced_is_refused_by_keyword_and_position(
    schema: Any, keyword: str, pointer: str
) -> None:
    began = time.process_time()
    with pytest.raises(InvalidRequest) as refused:
        compiled_schema(schema)
    assert time.process_time() - began < 2.0
    data = refused.value.data
    assert (data["param"], data["keyword"], data["pointer"]) == ("structured", keyword, pointer)
    assert f"`{keyword}`" in refused.value.message or not keyword


@pytest.mark.parametrize(
    "definition", ["", "{", '{"a": NaN}', '{"type": "null", "type": "array"}', "[" * 100_000]
)
def test_what_is_no_json_is_refused(definition: str) -> None:
    with pytest.raises(InvalidRequest, match=r"JSON|definition") as refused:
        compiled("json_schema", definition)
    assert refused.value.data["param"] == "structured"


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, '{"\\u0061":"x"}'),
        ({"type": "object", "patternProperties": {"^x": {"type": "integer"}}}, '{"\\u0078":"x"}'),
        ({"type": "string", "format": "date"}, '"2023-02-29"'),
        ({"type": "string", "format": "date"}, '"1900-02-29"'),
        ({"type": "string", "format": "date"}, '"0000-01-01"'),
        ({"type": "string", "format": "date-time"}, '"2024-01-01T23:59:60Z"'),
        ({"type": "string", "format": "date", "pattern": "^2024"}, '"2025-01-01"'),
        ({"type": "string", "format": "hostname"}, f'"{".".join(["a" * 60] * 5)}"'),
        ({"type": "string", "pattern": "^.$"}, '"\u2028"'),
        ({"type": "string", "pattern": "^[a&&b]$"}, '"c"'),
        ({"type": "string", "pattern": "^\\d$"}, '"٣"'),
        ({"items": [{"type": "null"}], "additionalItems": False, "type": "array"}, "[1]"),
        ({"type": "object", "unevaluatedProperties": False}, '{"a":1}'),
        ({"oneOf": [{"const": 1}, {"const": 2}]}, "3"),
    ],
)
def test_what_llguidance_takes_too_widely_is_not_taken(schema: Any, text: str) -> None:
    assert not takes(compiled_schema(schema), text)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string", "format": "date"}, '"2024-02-29"'),
        ({"type": "string", "format": "date"}, '"2000-02-29"'),
        ({"type": "string", "format": "date", "pattern": "^2024"}, '"2024-12-31"'),
        ({"type": "string", "format": "date-time"}, '"2024-01-01T23:59:59.5+01:00"'),
        ({"type": "string", "pattern": "^[a&&b]$"}, '"&"'),
        ({"type": "string", "pattern": "^[[a-c]{2}$"}, '"[c"'),
        ({"type": "string", "pattern": "^a{$"}, '"a{"'),
        ({"type": "string", "pattern": "^[\\w.-]+@(?<host>x|\\u00e4)\\.\\S$"}, '"a-b@ä.ö"'),
        ({"type": "string", "uniqueItems": False, "nullable": False, "not": False}, '"x"'),
        ({"type": "array", "uniqueItems": True, "maxItems": 1, "items": {"type": "null"}}, "[null]"),
        ({"title": "t", "description": "d", "default": 1, "examples": [1], "$comment": "c", "const": 5}, "5"),
        ({"x-ui": 1, "deprecated": True, "const": 5}, "5"),
        ({"$id": "https://e.com/s", "$ref": "https://e.com/s#/$defs/a", "$defs": {"a": {"const": 1}}}, "1"),
        ({"$ref": "#here", "$defs": {"a": {"$anchor": "here", "const": 1}}}, "1"),
        ({"$ref": "#/$defs/x~1y%20z", "$defs": {"x/y z": {"const": 1}}}, "1"),
        ({"$defs": {"bad": {"uniqueItems": True}}, "const": 1}, "1"),
        ({"items": [{"const": 1}], "additionalItems": {"const": 2}, "type": "array"}, "[1, 2, 2]"),
        ({"oneOf": [{"const": 1, "title": "one"}, {"const": 2}]}, "2"),
        ({"type": "object", "properties": {"c": {"$ref": "#"}}}, '{"c": {"c": {}}}'),
        ({"type": "integer", "multipleOf": 7, "minimum": 0}, "49"),
        ({"type": "string", "maxLength": 100_000}, '"x"'),
    ],
)  # fmt: skip
def test_what_is_enforced_lets_what_fits_pass(schema: Any, text: str) -> None:
    assert takes(compiled_schema(schema), text)


def test_a_large_schema_is_compiled_and_a_larger_one_refused() -> None:
    names = {f"property{number}": {"type": "string", "maxLength": 10} for number in range(300)}
    assert takes(compiled_schema({"type": "object", "properties": names}), '{"property299": "x"}')
    with pytest.raises(InvalidRequest, match="131072"):
        compiled("json_schema", json.dumps({"description": "x" * 2**20}))
