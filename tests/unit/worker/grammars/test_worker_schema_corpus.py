"""The set of 300 schemas: its instances stand on the right side, and its schemas cover the keywords."""

import json

from tests.kits.schemas.corpus import NUM_CASES, corpus
from tests.kits.schemas.misspelt import MISSPELT
from tests.kits.schemas.schema_case import mistakes, validator

KEYWORDS = (
    "$anchor", "$defs", "$dynamicRef", "$ref", "additionalProperties", "allOf", "anyOf", "const",
    "contains", "dependentRequired", "dependentSchemas", "enum", "exclusiveMaximum", "exclusiveMinimum",
    "format", "if", "items", "maxContains", "maxItems", "maxLength", "maxProperties", "maximum",
    "minContains", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "not", "oneOf",
    "pattern", "patternProperties", "prefixItems", "properties", "propertyNames", "required", "then",
    "type", "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
)  # fmt: skip


def test_the_instances_are_valid_and_invalid_as_the_set_says() -> None:
    assert len(corpus()) == NUM_CASES
    assert len({case.name for case in corpus()}) == NUM_CASES
    assert [problem for case in corpus() for problem in mistakes(case)] == []
    assert sum(not case.invalid for case in corpus()) <= 3


def test_the_schemas_use_all_keywords_that_assert_something() -> None:
    used = json.dumps([case.schema for case in corpus()])
    assert [keyword for keyword in KEYWORDS if f'"{keyword}":' not in used] == []


def test_the_misspelt_texts_do_not_fit() -> None:
    assert [one.text for one in MISSPELT if validator(one.schema).is_valid(json.loads(one.text))] == []
