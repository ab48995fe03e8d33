"""Rewrites a JSON Schema so that llguidance enforces all of it, or refuses a keyword that it cannot enforce.

The result has only keywords that are checked here, and refers only to its own `$defs`. Rewritten are
formats that llguidance takes too widely, patterns (`ecma_pattern.py`), lists in `items` (draft 7), `oneOf`
of constants, and keywords that ask for nothing (`idle_keywords.py`).
"""

import json
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from services.worker.text.grammars.json_schema import keyword_values
from services.worker.text.grammars.json_schema.ecma_pattern import rust_pattern
from services.worker.text.grammars.json_schema.idle_keywords import IGNORED, normal_form
from services.worker.text.grammars.json_schema.reference_table import ReferenceTable
from services.worker.text.grammars.json_schema.schema_fault import SchemaFault, joined
from services.worker.text.grammars.json_schema.string_formats import MOST_CHARS, PATTERNS
from services.worker.text.grammars.limits import GrammarLimits
from services.worker.text.grammars.repetition_bound import check_repetitions

Schema = dict[str, Any] | bool
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties")
_SINGLE = ("items", "additionalProperties")


class SchemaRewriter:
    """Rewrites one document; used once.

    Attributes:
        places: Pointer and result of each schema, those inside others first.
    """

    def __init__(self, document: Any, limits: GrammarLimits) -> None:
        self.subschemas: list[tuple[str, dict[str, Any]]] = []
        self._document = document
        self._limits = limits
        self._references = ReferenceTable(document)
        self._nodes = self._enum_values = self._properties = self._patterns = 0
        self._multiples = Fraction(1, 10**9)  # divides all
        self._scalars: dict[str, Callable[[Any], Any]] = keyword_values.VALUES | {
            "$ref": self._references.local,
            "pattern": self._pattern,
            "multipleOf": self._multiple,
            "const": self._constant,
            "enum": self._enum,
        }

    def rewrite(self) -> tuple[Schema, dict[str, Schema]]:
        """Returns the root and the definitions.

        Raises:
            SchemaFault: Something in it is wrong or not enforced.
        """
        root = self._schema(self._document, "", 0)
        definitions: dict[str, Schema] = {}
        waiting = self._references.waiting
        while waiting:
            name, pointer, target = waiting.pop()
            definitions[name] = self._schema(target, pointer, 0)
        return root, definitions

    def _schema(self, schema: Any, pointer: str, depth: int) -> Schema:
        keyword = pointer.rpartition("/")[2]
        self._nodes += 1
        if self._nodes > self._limits.schema_nodes:
            raise SchemaFault(f"has more than {self._limits.schema_nodes} schemas", keyword, pointer)
        if depth > self._limits.schema_depth:
            raise SchemaFault(f"is nested deeper than {self._limits.schema_depth} schemas", keyword, pointer)
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise SchemaFault("needs a schema: an object, true or false", keyword, pointer)
        made: dict[str, Any] = {}
        asked = normal_form(schema, pointer)
        for key, value in asked.items():
            if key in IGNORED:
                continue
            try:
                made[key] = self._value(key, value, joined(pointer, key), depth + 1)
            except ValueError as error:
                raise SchemaFault(str(error), key, pointer) from error
        self._check_counts(made, pointer)
        _use_own_patterns(made)
        if "oneOf" in made and "anyOf" not in made and _are_distinct(made["oneOf"]):
            made["anyOf"] = made.pop("oneOf")
        self.subschemas.append((pointer, made))
        return made

    def _value(self, key: str, value: Any, pointer: str, depth: int) -> Any:
        if key in _LISTS:
            return self._schemas(key, value, pointer, depth)
        if key in _SINGLE:
            return self._schema(value, pointer, depth)
        if key in _MAPS:
            return self._schemas_by_name(key, value, pointer, depth)
        if key in self._scalars:
            return self._scalars[key](value)
        raise ValueError("is not enforced")

    def _schemas(self, key: str, value: Any, pointer: str, depth: int) -> list[Schema]:
        if not isinstance(value, list) or not (value or key == "allOf"):
            raise ValueError("needs a list of schemas")
        return [self._schema(item, joined(pointer, index), depth) for index, item in enumerate(value)]

    def _schemas_by_name(self, key: str, value: Any, pointer: str, depth: int) -> dict[str, Schema]:
        if not isinstance(value, dict):
            raise ValueError("needs an object of schemas")
        self._properties += len(value)
        if len(value) > self._limits.properties or self._properties > self._limits.all_properties:
            raise ValueError(
                f"is enforced for up to {self._limits.properties} properties of an object, and "
                f"{self._limits.all_properties} of all"
            )
        if key == "patternProperties":
            self._patterns += len(value)
            if self._patterns > self._limits.patterns:
                raise ValueError(f"is enforced for up to {self._limits.patterns} patterns in a schema")
        made: dict[str, Schema] = {}
        for name, schema in value.items():
            to = self._pattern(name) if key == "patternProperties" else keyword_values.exact(name)
            if to in made:
                raise ValueError("has two patterns of equal meaning")
            made[to] = self._schema(schema, joined(pointer, name), depth)
        return made

    def _pattern(self, value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError("needs a text")
        if len(value) > self._limits.regex_chars:
            raise ValueError(f"is enforced up to {self._limits.regex_chars} characters")
        check_repetitions(value, self._limits)
        return rust_pattern(value)

    def _multiple(self, value: Any) -> int | float:
        """Returns a value of `multipleOf`; the automaton of all grows with their common multiple."""
        exact, before = keyword_values.multiple(value), self._multiples
        scale = math.lcm(exact.denominator, before.denominator)
        self._multiples = Fraction(math.lcm(int(exact * scale), int(before * scale)), scale)
        if self._multiples.numerator > self._limits.multiple:
            raise ValueError(
                f"is enforced up to {self._limits.multiple} as the common multiple of all in the schema, "
                "decimal point aside"
            )
        return value  # type: ignore[no-any-return]  # it was checked

    def _enum(self, value: Any) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise ValueError("needs a list of values")
        self._enum_values += len(value)
        if self._enum_values > self._limits.enum_values:
            raise ValueError(f"is enforced for up to {self._limits.enum_values} values in a schema")
        return [self._constant(item) for item in value]

    def _constant(self, value: Any) -> Any:
        if len(json.dumps(keyword_values.exact(value))) > self._limits.literal_chars:
            raise ValueError(f"is enforced for values of up to {self._limits.literal_chars} characters")
        return value

    def _check_counts(self, made: dict[str, Any], pointer: str) -> None:
        """Refuses counts that names given twice, or forced texts, would get around."""
        least = made.get("minProperties", 0)
        if least > len(made.get("required", ())) + 1:
            raise SchemaFault(
                "is enforced up to one more than `required` has in the same schema", "minProperties", pointer
            )
        if made.get("minLength", 0) > self._limits.least_chars:
            raise SchemaFault(f"is enforced up to {self._limits.least_chars}", "minLength", pointer)
        if "pattern" in made and made.get("minLength", 0) > self._limits.repetitions:
            raise SchemaFault(
                f"is enforced up to {self._limits.repetitions} beside `pattern`", "minLength", pointer
            )


def _are_distinct(branches: list[Schema]) -> bool:
    """Whether each of some schemas has constants, and none has those of another."""
    values: list[Any] = []
    for branch in branches:
        if isinstance(branch, bool) or not branch.keys() & {"const", "enum"}:
            return False
        values += [branch["const"]] if "const" in branch else branch["enum"]
    # 1, 1.0 and true are one value here, which at worst refuses a schema
    texts = [json.dumps(float(value) if isinstance(value, int | float) else value) for value in values]
    return len(set(texts)) == len(texts)


def _use_own_patterns(made: dict[str, Any]) -> None:
    """Replaces a format by a pattern, or bounds its length, where llguidance's is too wide."""
    name = made.get("format", "")
    if name in PATTERNS:
        del made["format"]
        if "pattern" in made:
            made["allOf"] = [*made.get("allOf", ()), {"pattern": PATTERNS[name]}]
        else:
            made["pattern"] = PATTERNS[name]
    elif name in MOST_CHARS:
        made["maxLength"] = min(made.get("maxLength", MOST_CHARS[name]), MOST_CHARS[name])
