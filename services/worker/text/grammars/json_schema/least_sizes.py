"""The size of the smallest instance of each schema.

A schema that needs itself has no finite instance. `minItems` inside `minItems` can ask for more than any
answer can have.
"""

import math
from typing import Any

TOO_LARGE = 20_000  # JSON values in the smallest instance
_ROUNDS = 64  # after which what is not settled counts as without end


class LeastSizes:
    """The sizes of the rewritten schemas of one document.

    Args:
        definitions: By name, as in `$defs`.
    """

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._sizes: dict[str, float] = dict.fromkeys(definitions, math.inf)
        for _ in range(_ROUNDS):
            before = dict(self._sizes)
            for name, schema in reversed(
                definitions.items()
            ):  # what a definition needs mostly comes after it
                self._sizes[name] = min(self._sizes[name], self.size(schema))
            if self._sizes == before:
                break

    def size(self, schema: Any) -> float:
        """Returns the number of values in the smallest instance; infinity if there is none."""
        if isinstance(schema, bool):
            return 1 if schema else math.inf
        parts = [1.0, self._own(schema)]
        if "$ref" in schema:
            parts.append(self._sizes[schema["$ref"].rpartition("/")[2]])
        parts += [self.size(part) for part in schema.get("allOf", ())]
        parts += [min(map(self.size, schema[key])) for key in ("anyOf", "oneOf") if key in schema]
        return max(parts)

    def reason(self, schema: dict[str, Any]) -> tuple[str, str]:
        """Returns the keyword that asks for the size of a schema's smallest instance, and words for it."""
        sizes = {
            key: self.size({key: schema[key]}) for key in ("$ref", "allOf", "anyOf", "oneOf") if key in schema
        }
        own = self._own(schema)
        keyword, size = max(sizes.items(), key=lambda each: each[1], default=("", 0.0))
        if own >= size:
            keyword, size = ("required" if "object" in _kinds(schema) else "minItems"), own
        if not math.isinf(size):
            return keyword, f"asks for more than {TOO_LARGE} values"
        if keyword == "required":
            known, other = schema.get("properties", {}), schema.get("additionalProperties", True)
            never = [name for name in schema["required"] if known.get(name, other) is False]
            if never:
                return keyword, f"asks for {never[0][:80]!r}, which the schema does not allow"
        if keyword == "minItems" and schema.get("items", True) is False:
            return keyword, "asks for items, which the schema does not allow"
        if keyword == "$ref" and self._sizes:
            return keyword, "goes round without end: nothing finite satisfies it"
        return keyword, "asks for what nothing finite satisfies"

    def _own(self, schema: dict[str, Any]) -> float:
        """Returns the size that the keywords for objects and arrays ask for."""
        kinds = _kinds(schema)
        if kinds == {"object"}:
            known = schema.get("properties", {})
            other = schema.get("additionalProperties", True)
            return 1 + sum(self.size(known.get(name, other)) for name in schema.get("required", ()))
        if kinds == {"array"}:
            first, least = schema.get("prefixItems", []), schema.get("minItems", 0)
            counted = 1 + sum(map(self.size, first[:least]))
            rest = least - len(first)
            return counted + (rest * self.size(schema.get("items", True)) if rest > 0 else 0)
        return 1


def _kinds(schema: dict[str, Any]) -> set[str]:
    kinds = schema.get("type", ())
    return {kinds} if isinstance(kinds, str) else set(kinds)
