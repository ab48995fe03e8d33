"""Terms and rules in Lark for a call of one function, from behind what opens its block."""

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from services.worker.text.answers.call_layout import json_call_texts
from services.worker.text.answers.json_text import is_text
from services.worker.text.answers.tagged_calls import MAX_KEY
from services.worker.text.answers.tool_format import CallSyntax
from services.worker.text.grammars.arguments.raw_text import RawText
from services.worker.text.grammars.arguments.value_rules import ValueRules
from services.worker.text.grammars.arguments.value_style import JSON_IN_TAGS, PYTHON, ValueStyle, Write
from services.worker.text.grammars.json_schema.schema_grammar import SchemaGrammar
from services.worker.text.grammars.json_schema.schema_rewriter import Schema
from services.worker.text.grammars.spelling import Unspelled
from services.worker.text.grammars.tool_grammar import as_plain_text
from services.worker.text.tool_prompt import parameters_of
from shared.messages import ToolDefinition


@dataclass(frozen=True, slots=True)
class CallTerm:
    """A call in Lark.

    Attributes:
        rules: What the term refers to.
    """

    term: str
    rules: list[str]


class CallTerms:
    """Makes the terms of one form.

    Args:
        control: Control tokens of the syntax, by text.
        write: Writes fixed texts.
        unspelled: Finds the first character of a text that no tokens spell.
        proven: Also what llguidance does not enforce of a schema is found, which takes milliseconds.
    """

    def __init__(
        self,
        syntax: CallSyntax,
        control: dict[str, int],
        write: Write,
        unspelled: Unspelled,
        *,
        proven: bool,
    ) -> None:
        self._syntax, self._control, self._write, self._proven = syntax, control, write, proven
        self._unspelled = unspelled
        self._terminals = itertools.count()

    def call(self, tool: ToolDefinition, number: int, schema: SchemaGrammar) -> CallTerm:
        """Returns the call of a function.

        Args:
            number: Of the function, for names of rules.

        Raises:
            SchemaFault: The form, or llguidance, does not enforce it.
        """
        schema.check_spelling(self._unspelled)
        make: dict[str, Callable[[ToolDefinition, int, SchemaGrammar], CallTerm]] = {
            "tagged": self._tagged,
            "python": self._python,
            "plain_keys": self._plain_keys,
        }
        return make.get(self._syntax.body, self._json)(tool, number, schema)

    def _json(self, tool: ToolDefinition, number: int, schema: SchemaGrammar) -> CallTerm:
        if self._proven:
            schema.check()
        name = f"args_{number}"
        before, after = json_call_texts(self._syntax, tool.name)
        rule = f"{name}: %json {json.dumps(schema.document)}"
        return CallTerm(f"{self._write(before)} {name} {self._write(after)}", [rule])

    def _tagged(self, tool: ToolDefinition, number: int, schema: SchemaGrammar) -> CallTerm:
        syntax, (values, raw) = self._syntax, self._values(number, schema, JSON_IN_TAGS)
        declared = parameters_of(tool).get("properties", {})
        gap, end = "\n" if syntax.values[0] else "", "\n" if syntax.value_lines else ""

        def pair(name: str, value: Schema, pointer: str) -> str:
            if any(mark in name for mark in syntax.keys) or name != name.strip() or len(name) > MAX_KEY:
                raise values.unnamed(pointer)
            key = self._write(
                f"{syntax.keys[0]}{self._plain(name)}{syntax.keys[1]}{gap}{syntax.values[0]}{end}"
            )
            written = declared.get(name)
            if is_text(written if isinstance(written, dict) else {}):
                term = self._tagged_text(values, value, pointer, end)
            else:
                term = f"{values.value(value, pointer)} {self._write(end + syntax.values[1])}"
            return f"{key} {term} {self._write(chr(10))}"

        pairs = values.pairs.members(values.root(schema.root), "", pair, '""')
        line = "\n" if syntax.items else ""
        before = self._write(f"{syntax.items}{syntax.name_prefix}{tool.name}{syntax.name_ends[0]}{line}")
        after = self._write("".join(syntax.after_arguments[:1]))
        return CallTerm(f"{before} {pairs} {after}", [*values.rules, *raw.terminals])

    def _tagged_text(self, values: ValueRules, schema: Schema, pointer: str, end: str) -> str:
        """Returns a term for a string that is written as it is, and the mark behind it."""
        mark, plain = self._syntax.values[1], values.resolved(schema)
        if not plain.keys() & {"const", "enum"}:
            if wrong := next((key for key in plain if key not in _OF_TEXT), ""):
                raise values.fault("is not enforced for a text", wrong, pointer)
            return values.raw(plain, mark, pointer, end)
        if wrong := next((key for key in plain if key not in ("const", "enum", "type")), ""):
            raise values.fault("is not enforced beside constants", wrong, pointer)
        texts = [plain["const"]] if "const" in plain else plain["enum"]
        alternatives = [
            self._write(self._plain(text) + end + mark)
            for text in texts
            if isinstance(text, str) and mark not in text
        ]
        if not alternatives:
            raise values.fault("has no text that can be written", "enum", pointer)
        return f"({' | '.join(alternatives)})"

    def _python(self, tool: ToolDefinition, number: int, schema: SchemaGrammar) -> CallTerm:
        values, raw = self._values(number, schema, PYTHON)

        def pair(name: str, value: Schema, pointer: str) -> str:
            if not name.isidentifier():
                raise values.unnamed(pointer)
            return f"{self._write(name + '=')} {values.value(value, pointer)}"

        pairs = values.pairs.members(values.root(schema.root), "", pair, self._write(", "))
        return CallTerm(f'{self._write(tool.name + "(")} {pairs} ")"', [*values.rules, *raw.terminals])

    def _plain_keys(self, tool: ToolDefinition, number: int, schema: SchemaGrammar) -> CallTerm:
        style = ValueStyle(comma=",", colon=":", quote=self._syntax.values[0])
        values, raw = self._values(number, schema, style)
        pairs = values.pairs.nested_pairs(values.root(schema.root), "")
        before = f"{self._syntax.items}{tool.name}{self._syntax.name_ends[0]}"
        return CallTerm(f'{self._write(before)} {pairs} "}}"', [*values.rules, *raw.terminals])

    def _plain(self, text: str) -> str:
        return as_plain_text(self._control, text)

    def _values(self, number: int, schema: SchemaGrammar, style: ValueStyle) -> tuple[ValueRules, RawText]:
        raw = RawText(self._write, self._control, self._terminals)
        style = replace(style, control=tuple(self._control))
        return ValueRules(schema, style, self._write, raw, f"v{number}"), raw


_OF_TEXT = ("type", "minLength", "maxLength", "pattern", "format")
