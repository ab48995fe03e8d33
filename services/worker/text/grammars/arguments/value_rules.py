"""Rules in Lark for the values of a schema, in a style of writing.

What the rules let pass satisfies the schema; not all that satisfies it can be written. Objects have their
declared properties only, in order. Of several ways to satisfy a schema, impossible ones fall away.
"""

import itertools
import json
from collections.abc import Callable
from typing import Any

from services.worker.text.grammars.arguments.merged_schema import TYPES, is_of, merged, types_of
from services.worker.text.grammars.arguments.pair_rules import PairRules
from services.worker.text.grammars.arguments.raw_text import RawText
from services.worker.text.grammars.arguments.value_style import ValueStyle, Write
from services.worker.text.grammars.json_schema.schema_fault import SchemaFault
from services.worker.text.grammars.json_schema.schema_grammar import OPTIONS, SchemaGrammar
from services.worker.text.grammars.json_schema.schema_rewriter import Schema

_NO_TAG = "^(?:[^<]|<+[^<\\x{2f}])*<*$"  # a text without `</`


class NothingFits(SchemaFault):
    """No value satisfies a schema, or none can have its name."""


class ValueRules:
    """Makes the rules of one schema.

    Args:
        style: In which values are written.
        write: Writes fixed texts.
        raw: Makes texts without quotes.
        prefix: Of the names of rules.
    """

    def __init__(
        self, grammar: SchemaGrammar, style: ValueStyle, write: Write, raw: RawText, prefix: str
    ) -> None:
        self.rules: list[str] = []
        self.pairs = PairRules(self)
        self.style, self.write = style, write
        self._raw, self._prefix = raw, prefix
        self._definitions, self._pointers = grammar.definitions, grammar.pointers
        self._numbers = itertools.count()
        self._references: dict[str, str] = {}
        self._any = ""

    def name(self) -> str:
        """Returns a name for a rule."""
        return f"{self._prefix}_{next(self._numbers)}"

    def attempt(self, make: Callable[[], str]) -> str | SchemaFault:
        """Returns what is made; or why nothing satisfies it, and then the rules are as before.

        Raises:
            SchemaFault: Something does, and it cannot be written.
        """
        count, known = len(self.rules), dict(self._references)
        try:
            return make()
        except NothingFits as fault:
            del self.rules[count:]
            self._references = known
            return fault

    def value(self, schema: Schema, pointer: str) -> str:
        """Returns the name of a rule for the values of a schema.

        Args:
            pointer: Its JSON pointer, if it is not known.

        Raises:
            SchemaFault: They cannot be written; it has the keyword and the pointer.
        """
        if schema is False:
            raise self.nothing("", pointer)
        if schema is True or not schema:
            return self._any_value()
        pointer = self._pointers.get(id(schema), pointer)
        if set(schema) == {"$ref"}:
            return self._referred(schema["$ref"], pointer)
        name = self.name()
        self.rules.append(f"{name}: {' | '.join(self._forms(schema, pointer, 0))}")
        return name

    def fault(self, reason: str, keyword: str, pointer: str) -> SchemaFault:
        """Returns what is wrong with a schema for this form."""
        return SchemaFault(f"{reason} in the tool format", keyword, pointer)

    def nothing(self, keyword: str, pointer: str) -> SchemaFault:
        """Returns the fault of a schema that no value satisfies."""
        return NothingFits("is satisfied by nothing", keyword, pointer)

    def unnamed(self, pointer: str) -> SchemaFault:
        """Returns the fault of a property whose name the form cannot write."""
        return NothingFits("has a name that the tool format cannot write", "required", pointer)

    def resolved(self, schema: Schema) -> dict[str, Any]:
        """Returns a schema without a reference at its top, as an object."""
        for _ in range(len(self._definitions) + 1):
            if not isinstance(schema, dict) or set(schema) != {"$ref"}:
                break
            schema = self._definitions[schema["$ref"].rpartition("/")[2]]
        return schema if isinstance(schema, dict) else {} if schema else {"enum": []}

    def root(self, schema: Schema) -> dict[str, Any]:
        """Returns the schema of an object that is written without brackets: one without alternatives.

        Raises:
            SchemaFault: It has some.
        """
        made = self.resolved(schema)
        for _ in range(len(self._definitions) + 8):
            key = next((key for key in ("$ref", "allOf", "anyOf", "oneOf") if key in made), "")
            if not key:
                return made
            branches = [{"$ref": made[key]}] if key == "$ref" else made[key]
            made = {name: value for name, value in made.items() if name != key}
            if key not in ("$ref", "allOf") and len(branches) > 1:
                break
            try:
                for branch in branches:
                    made = merged(made, self.resolved(branch))
            except KeyError as error:
                raise self.fault(f"cannot be joined with `{error.args[0]}`", key, "") from error
        raise self.fault("is not enforced at the root", key, "")

    def text(self, schema: dict[str, Any], pointer: str) -> str:
        """Returns a term for a string."""
        if not self.style.quote:
            made = {key: schema[key] for key in TYPES["string"] if key in schema} | {"type": "string"}
            if self.style.avoids:
                made["allOf"] = [{"pattern": _NO_TAG}]
            return f"%json {json.dumps(made | {'x-guidance': OPTIONS})}"
        quote = self.style.quote
        return f"{self.write(quote)} {self.raw(schema, quote, pointer)}"

    def raw(self, schema: dict[str, Any], mark: str, pointer: str, before: str = "") -> str:
        """Returns a term for a text as it is, up to a mark and with it; see `RawText`."""
        try:
            return self._raw.term(schema, mark, before)
        except KeyError as error:
            raise self.fault("is not enforced", error.args[0], pointer) from error

    def _referred(self, reference: str, pointer: str) -> str:
        known = self._references.get(reference)
        if known is None:
            schema = self._definitions[reference.rpartition("/")[2]]
            known = self._references[reference] = self.name()
            alternatives = [self.value(schema, pointer)] if not isinstance(schema, dict) else None
            alternatives = alternatives or self._forms(schema, self._pointers.get(id(schema), pointer), 0)  # type: ignore[arg-type]
            self.rules.append(f"{known}: {' | '.join(alternatives)}")
        return known

    def _forms(self, schema: dict[str, Any], pointer: str, depth: int) -> list[str]:
        """Returns terms for the ways to satisfy a schema, at least one."""
        if depth > len(self._definitions) + 8:
            raise self.fault("is nested too deep", "$ref", pointer)
        key = next((key for key in ("$ref", "allOf", "anyOf", "oneOf") if key in schema), "")
        if not key:
            return self._plain(schema, pointer)
        rest = {name: value for name, value in schema.items() if name != key}
        try:
            if key == "$ref":
                return self._forms(merged(rest, self.resolved({"$ref": schema[key]})), pointer, depth + 1)
            if key == "allOf":
                for branch in schema[key]:
                    rest = merged(rest, self.resolved(branch))
                return self._forms(rest, pointer, depth + 1)
        except KeyError as error:
            raise self.fault(f"cannot be joined with `{error.args[0]}`", key, pointer) from error
        return self._branches(schema[key], rest, key, pointer)

    def _branches(self, branches: list[Schema], rest: dict[str, Any], key: str, pointer: str) -> list[str]:
        if key == "oneOf" and not _are_disjoint([self.resolved(branch) for branch in branches]):
            raise self.fault("is enforced for branches of different types", key, pointer)
        alternatives, fault = list[str](), None
        for branch in branches:
            if branch is False:
                continue
            try:
                joined = merged(rest, self.resolved(branch)) if rest else branch
            except KeyError as error:
                if error.args[0] != "type":
                    raise self.fault(f"cannot be joined with `{error.args[0]}`", key, pointer) from error
                continue  # both cannot hold
            made = self.attempt(lambda joined=joined: self.value(joined, pointer))  # type: ignore[misc]
            if isinstance(made, str):
                alternatives.append(made)
            else:
                fault = made
        if not alternatives:
            raise fault or self.nothing(key, pointer)
        return alternatives

    def _plain(self, schema: dict[str, Any], pointer: str) -> list[str]:
        types = types_of(schema)
        if "const" in schema or "enum" in schema:
            key = "const" if "const" in schema else "enum"
            if schema.keys() - {"const", "enum", "type"} or {"const", "enum"} <= schema.keys():
                raise self.fault("is not enforced beside other keywords", key, pointer)
            values = [schema["const"]] if key == "const" else schema["enum"]
            return self._constants([value for value in values if is_of(value, types)], key, pointer)
        alternatives, fault = list[str](), None
        for kind in sorted(types):
            made = self.attempt(lambda kind=kind: self._of_type(kind, schema, pointer))  # type: ignore[misc]
            if isinstance(made, str):
                alternatives.append(made)
            else:
                fault = made
        if fault is not None and not alternatives:
            raise fault
        return alternatives

    def _constants(self, values: list[Any], key: str, pointer: str) -> list[str]:
        if not values:
            raise self.nothing(key, pointer)
        try:
            return [self.write(self.style.literal(value)) for value in values]
        except ValueError as error:
            raise self.fault(str(error), key, pointer) from error

    def _of_type(self, kind: str, schema: dict[str, Any], pointer: str) -> str:
        if kind == "object":
            return self.pairs.nested(schema, pointer)
        if kind == "array":
            return self._array(schema, pointer)
        name = self.name()
        if kind == "boolean":
            self.rules.append(f"{name}: {' | '.join(map(self.write, self.style.words[:2]))}")
        elif kind == "null":
            self.rules.append(f"{name}: {self.write(self.style.words[2])}")
        elif kind == "string":
            self.rules.append(f"{name}: {self.text(schema, pointer)}")
        else:
            made = {key: schema[key] for key in TYPES["number"] if key in schema} | {"type": kind}
            self.rules.append(f"{name}: %json {json.dumps(made | {'x-guidance': OPTIONS})}")
        return name

    def _array(self, schema: dict[str, Any], pointer: str) -> str:
        first, least = schema.get("prefixItems", []), schema.get("minItems", 0)
        most = schema.get("maxItems", -1)
        first = first if most < 0 else first[:most]
        comma, name = self.write(self.style.comma), self.name()
        terms = [self.value(item, pointer) for item in first]
        if schema.get("items") is not False and most != len(first):
            item = self.value(schema.get("items", True), pointer)
            more = f"{max(0, least - len(first))},{'' if most < 0 else most - len(first)}"
            if terms:
                terms[-1] += f" ({comma} {item}){{{more}}}"
            else:
                more = f" ({comma} {item}){{{max(least - 1, 0)},{'' if most < 0 else most - 1}}}"
                filled = item + ("" if most == 1 else more)
                terms = [filled if least else f"({filled})?"]
        elif least > len(first):
            raise self.nothing("minItems", pointer)
        self.rules.append(f'{name}: "[" {f" {comma} ".join(terms)} "]"')
        return name

    def _any_value(self) -> str:
        if not self._any:
            self._any = self.name()
            comma = self.write(self.style.comma)
            scalars = [self._of_type(kind, {}, "") for kind in ("string", "number", "boolean", "null")]
            pair = f"{self.pairs.free_key({}, '')} {self._any}"
            self.rules.append(
                f"{self._any}: {' | '.join(scalars)}"
                f' | "[" ({self._any} ({comma} {self._any})*)? "]" | "{{" ({pair} ({comma} {pair})*)? "}}"'
            )
        return self._any


def _are_disjoint(branches: list[dict[str, Any]]) -> bool:
    """Whether no value has the type of two of some schemas, as far as these say it."""
    seen: set[str] = set()
    for branch in branches:
        if "type" not in branch:
            return False
        types = {"number" if kind == "integer" else kind for kind in types_of(branch)}
        if types & seen:
            return False
        seen |= types
    return True
