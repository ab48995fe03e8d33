"""Rules in Lark for the pairs of an object: declared properties in order, those that are optional or not."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from services.worker.text.grammars.json_schema.schema_rewriter import Schema

if TYPE_CHECKING:
    from services.worker.text.grammars.arguments.value_rules import ValueRules

Pair = Callable[[str, Schema, str], str]  # name, schema and index of a property: the term of the whole pair


class PairRules:
    """Makes the rules of objects.

    Args:
        values: Makes those of their values.
    """

    def __init__(self, values: "ValueRules") -> None:
        self._values = values

    def nested(self, schema: dict[str, Any], pointer: str) -> str:
        """Returns the name of a rule for an object in brackets."""
        name, pairs = self._values.name(), self.nested_pairs(schema, pointer)
        self._values.rules.append(f'{name}: "{{" {pairs} "}}"')
        return name

    def nested_pairs(self, schema: dict[str, Any], pointer: str) -> str:
        """Returns a term for what stands in the brackets of an object."""
        comma = self._values.write(self._values.style.comma)
        if schema.get("properties") or schema.get("required"):
            return self.members(schema, pointer, self._pair, comma)
        return self._free(schema, pointer, comma)

    def members(self, schema: dict[str, Any], pointer: str, pair: Pair, comma: str) -> str:
        """Returns a term for the declared properties of an object.

        Args:
            pair: Makes the term of a property; raises `SchemaFault` if it cannot be written. Optional ones
                whose name cannot be written, or that nothing satisfies, are left out.
            comma: A term between two of them, perhaps empty.

        Raises:
            SchemaFault: Not all that the object needs can be written.
        """
        names, required = self._chosen(schema, pointer)
        made: list[tuple[str, bool]] = []
        for name, value in names.items():
            term = self._values.attempt(lambda name=name, value=value: pair(name, value, pointer))  # type: ignore[misc]
            if isinstance(term, str):
                made.append((term, name in required))
            elif name in required:
                raise term
        return self._in_order(made, comma)

    def free_key(self, schema: dict[str, Any], pointer: str) -> str:
        """Returns a term for any key, with its colon."""
        values = self._values
        return f"{values.text(schema, pointer)} {values.write(values.style.colon)}"

    def _chosen(self, schema: dict[str, Any], pointer: str) -> tuple[dict[str, Schema], set[str]]:
        """Returns the properties that may be written, and the names of those that must be."""
        values = self._values
        names: dict[str, Schema] = dict(schema.get("properties", {}))
        required = list(schema.get("required", ()))
        if "patternProperties" in schema and (names or required):
            raise values.fault("is not enforced beside properties", "patternProperties", pointer)
        for name in required:
            names.setdefault(name, schema.get("additionalProperties", True))
        least, most = schema.get("minProperties", 0), schema.get("maxProperties", len(names))
        optional = [name for name in names if name not in required]
        needed = {*required, *optional[: max(0, least - len(set(required)))]}
        if len(needed) < least or most < len(needed):
            keyword = "minProperties" if len(needed) < least else "maxProperties"
            raise values.fault("is not enforced here", keyword, pointer)
        spare = [name for name in optional if name not in needed][: most - len(needed)]
        return {name: value for name, value in names.items() if name in needed or name in spare}, needed

    def _in_order(self, made: list[tuple[str, bool]], comma: str) -> str:
        """Returns a term for some of the pairs in their order; all that are required are among them."""
        values = self._values
        first, later = '""', '""'  # what may follow if nothing was written yet, and if something was
        for term, required in reversed(made):
            before, after = values.name(), values.name()
            skip = "" if required else f" | {first}"
            values.rules.append(f"{before}: {term} {later}{skip}")
            skip = "" if required else f" | {later}"
            values.rules.append(f"{after}: {comma} {term} {later}{skip}")
            first, later = before, after
        return first

    def _pair(self, name: str, schema: Schema, pointer: str) -> str:
        values = self._values
        try:
            key = values.style.key(name)
        except ValueError as error:
            raise values.unnamed(pointer) from error
        return f"{values.write(key)} {values.value(schema, pointer)}"

    def _free(self, schema: dict[str, Any], pointer: str, comma: str) -> str:
        """Returns a term for the pairs of an object that declares none."""
        values = self._values
        least, most = schema.get("minProperties", 0), schema.get("maxProperties", -1)
        patterns, value = schema.get("patternProperties", {}), schema.get("additionalProperties", True)
        if least > 1 or len(patterns) > 1:
            keyword = "minProperties" if least > 1 else "patternProperties"
            raise values.fault("is not enforced here", keyword, pointer)
        key: dict[str, Any] = {}
        for pattern, under in patterns.items():
            key, value = {"pattern": pattern}, under
        if value is False or not most:
            if least:
                raise values.nothing("minProperties", pointer)
            return '""'
        pair = f"{self.free_key(key, pointer)} {values.value(value, pointer)}"
        more = f"({comma} {pair})*" if most < 0 else f"({comma} {pair}){{0,{most - 1}}}"
        filled = pair if most == 1 else f"{pair} {more}"
        return filled if least else f"({filled})?"
