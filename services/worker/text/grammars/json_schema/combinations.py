"""What intersecting schemas multiply to: combinations, which llguidance writes out, and patterns of a text.

`allOf` of three schemas with four alternatives each has 64. Cost grows faster than the number: 4,096 took
llguidance 1.9.1 several seconds.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from services.worker.text.grammars.json_schema.schema_fault import SchemaFault

MOST = 512
_MOST_COMBINATIONS = 20_000  # where different schemas hold together
_INSIDE = ("properties", "patternProperties")


class Combinations:
    """Counts combinations.

    Args:
        definitions: By name, as in `$defs`.
        most_patterns: That one text has to match.
    """

    def __init__(self, definitions: dict[str, Any], most_patterns: int) -> None:
        self._definitions = definitions
        self._most_patterns = most_patterns
        self._known: dict[str, float] = {}
        self._alternatives: dict[tuple[int, ...], int] = {}  # patterns by the schemas at one pointer

    def check(self, pointer: str, schema: dict[str, Any]) -> None:
        """Refuses a schema whose parts have too many combinations.

        Raises:
            SchemaFault: Naming the first of its keywords that combine.
        """
        if "allOf" in schema and self._patterns([schema], frozenset()) > self._most_patterns:
            raise SchemaFault(f"has more than {self._most_patterns} patterns for one text", "allOf", pointer)
        if len(self._alternatives) > _MOST_COMBINATIONS:
            raise SchemaFault("is combined with others in too many places", "allOf", pointer)
        factors = [(key, count) for key, count in self._factors(schema) if count > 1]
        if len(factors) > 1 and math.prod(count for _, count in factors) > MOST:
            raise SchemaFault(
                f"has more than {MOST} combinations with what stands beside it", factors[0][0], pointer
            )

    def _weight(self, schema: Any) -> float:
        """Returns the most alternatives that a schema has at one pointer of its instances."""
        if isinstance(schema, bool):
            return 1
        inside = [part for key in _INSIDE for part in schema.get(key, {}).values()]
        inside += schema.get("prefixItems", ())
        inside += [schema[key] for key in ("items", "additionalProperties") if key in schema]
        own = math.prod(count for _, count in self._factors(schema))
        return min(MOST + 1, max([own, *map(self._weight, inside)]))

    def _patterns(self, schemas: Sequence[Any], inside: frozenset[str]) -> int:
        """Returns the most patterns that one text has to match if all of some schemas hold.

        Args:
            inside: Names of the definitions that they are parts of.
        """
        together = tuple(sorted({id(schema) for schema in schemas}))
        if together in self._alternatives or len(self._alternatives) > _MOST_COMBINATIONS:
            return self._alternatives.get(together, 0)
        self._alternatives[together] = 0  # while it is counted: a recursion ends here
        waiting, number = list(schemas), 0
        parts = defaultdict[tuple[str, str], list[Any]](list)
        while waiting:
            schema = waiting.pop()
            if isinstance(schema, bool):
                continue
            number += "pattern" in schema
            waiting += schema.get("allOf", ())
            for key in ("anyOf", "oneOf"):
                number += max((self._patterns([one], inside) for one in schema.get(key, ())), default=0)
            name = schema["$ref"].rpartition("/")[2] if "$ref" in schema else ""
            if name and name not in inside:
                inside |= {name}
                waiting.append(self._definitions[name])
            for key in _INSIDE:
                for property_name, part in schema.get(key, {}).items():
                    parts[key, property_name].append(part)
            for index, part in enumerate(schema.get("prefixItems", ())):
                parts["prefixItems", str(index)].append(part)
            for key in ("items", "additionalProperties"):
                if key in schema:
                    parts[key, ""].append(schema[key])
        self._alternatives[together] = max(
            [number, *(self._patterns(part, inside) for part in parts.values())]
        )
        return self._alternatives[together]

    def _factors(self, schema: dict[str, Any]) -> list[tuple[str, float]]:
        found = [("allOf", self._weight(part)) for part in schema.get("allOf", ())]
        found += [(key, sum(map(self._weight, schema[key]))) for key in ("anyOf", "oneOf") if key in schema]
        if "$ref" in schema:
            found.append(("$ref", self._of_definition(schema["$ref"].rpartition("/")[2])))
        return found

    def _of_definition(self, name: str) -> float:
        if name not in self._known:
            self._known[name] = 1  # while it is counted: a recursion ends here
            self._known[name] = self._weight(self._definitions[name])
        return self._known[name]
