"""The number of combinations that intersecting schemas have: llguidance writes all of them out.

`allOf` of three schemas with four alternatives each has 64. Cost grows faster than the number: 4,096 took
llguidance 1.9.1 several seconds.
"""

import math
from typing import Any

from services.worker.text.grammars.json_schema.schema_fault import SchemaFault

MOST = 512
_INSIDE = ("properties", "patternProperties")


class Combinations:
    """Counts combinations.

    Args:
        definitions: By name, as in `$defs`.
    """

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._known: dict[str, float] = {}

    def check(self, pointer: str, schema: dict[str, Any]) -> None:
        """Refuses a schema whose parts have too many combinations.

        Raises:
            SchemaFault: Naming the first of its keywords that combine.
        """
        factors = [(key, count) for key, count in self._factors(schema) if count > 1]
        if len(factors) > 1 and math.prod(count for _, count in factors) > MOST:
            raise SchemaFault(
                f"has more than {MOST} combinations with what stands beside it", factors[0][0], pointer
            )

    def _weight(self, schema: Any) -> float:
        """Returns the most alternatives that a schema has at one place of its instances."""
        if isinstance(schema, bool):
            return 1
        inside = [part for key in _INSIDE for part in schema.get(key, {}).values()]
        inside += schema.get("prefixItems", ())
        inside += [schema[key] for key in ("items", "additionalProperties") if key in schema]
        own = math.prod(count for _, count in self._factors(schema))
        return min(MOST + 1, max([own, *map(self._weight, inside)]))

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
