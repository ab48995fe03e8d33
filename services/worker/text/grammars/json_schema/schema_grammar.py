"""From the text of a JSON Schema to a compiled grammar, with errors that name keyword and pointer.

White space in answers is fixed: one space behind each colon and comma, none elsewhere, as models write JSON.
No model can fill an answer with white space then, and most of what lies between two values is
forced. Properties come in the order of the schema.
"""

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

from llguidance import LLMatcher

from services.worker.text.grammars.compiled_grammar import CompiledGrammar, GrammarRefused
from services.worker.text.grammars.json_schema.combinations import Combinations
from services.worker.text.grammars.json_schema.least_sizes import TOO_LARGE, LeastSizes
from services.worker.text.grammars.json_schema.schema_fault import SchemaFault
from services.worker.text.grammars.json_schema.schema_rewriter import Schema, SchemaRewriter
from services.worker.text.grammars.json_schema.servers_json import servers_json
from services.worker.text.grammars.limits import GrammarLimits
from services.worker.text.grammars.spelling import Unspelled, check_schemas
from services.worker.text.grammars.token_vocabulary import TokenVocabulary

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

# without `\u`: a key could be written so that it gets around `properties` and `patternProperties`
OPTIONS: dict[str, Any] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "json_allowed_escapes": '"\\bfnrt',
}
_TRIALS = 64  # schemas that are compiled alone to find the one at fault
_HINTS = {
    "oneOf": re.compile("oneOf"),
    "pattern": re.compile("regex|Regex|lookaround"),
    "minProperties": re.compile("min/maxProperties"),
    "maxProperties": re.compile("min/maxProperties"),
    "patternProperties": re.compile("patternProperty"),
    "$ref": re.compile("circular|reference"),
    "allOf": re.compile("allOf|Unsatisfiable|too large|[Rr]egex"),
    "anyOf": re.compile("anyOf|too large"),
}


class SchemaGrammar:
    """A schema that is checked and rewritten.

    Args:
        definition: The schema as JSON text.

    Raises:
        SchemaFault: It is no schema, or asks for what is not enforced.
    """

    def __init__(self, definition: str, limits: GrammarLimits) -> None:
        rewriter = SchemaRewriter(_parsed(definition), limits)
        self._root, self._definitions = rewriter.rewrite()
        self._subschemas = rewriter.subschemas
        combinations = Combinations(self._definitions, limits.intersections)
        for pointer, located in self._subschemas:
            combinations.check(pointer, located)
        sizes = LeastSizes(self._definitions)
        for pointer, schema in [*self._subschemas, ("", self._root)]:
            size = sizes.size(schema)
            if size > TOO_LARGE and not _is_never(schema):
                keyword, why = sizes.reason(schema if isinstance(schema, dict) else {})
                raise SchemaFault(why, keyword, pointer)

    @property
    def root(self) -> Schema:
        """The rewritten schema, whose references are to `definitions`."""
        return self._root

    @property
    def definitions(self) -> dict[str, Schema]:
        """Its definitions, by name."""
        return self._definitions

    @property
    def pointers(self) -> dict[int, str]:
        """The pointers of its schemas in the definition, by the `id` of the rewritten schema."""
        return {id(schema): pointer for pointer, schema in self._subschemas}

    @property
    def document(self) -> dict[str, Any]:
        """The rewritten schema with llguidance's options in it, for `%json` in a Lark grammar."""
        return {**_with(self._root, self._definitions), "x-guidance": OPTIONS}

    def check(self) -> None:
        """Checks that llguidance takes the schema, without a vocabulary.

        Raises:
            SchemaFault: It refuses it.
        """
        wrong = LLMatcher.validate_grammar(_text(self._root, self._definitions))
        if wrong and not wrong.startswith("WARNING"):
            raise self._located(wrong)

    def check_spelling(self, unspelled: Unspelled) -> None:
        """Checks that tokens spell its constants, names and patterns.

        Raises:
            SchemaFault: They do not.
        """
        check_schemas(self._subschemas, unspelled)

    def compile(self, vocabulary: TokenVocabulary, *, by_server: bool = False) -> CompiledGrammar:
        """Returns the grammar.

        Args:
            by_server: An engine of others writes the JSON, in its own form.

        Raises:
            SchemaFault: llguidance refuses it, or no tokens spell one of its texts.
        """
        self.check_spelling(vocabulary.unspelled)
        try:
            if by_server:
                text = servers_json(_with(self._root, self._definitions))
                return CompiledGrammar(vocabulary, LLMatcher.grammar_from_lark(text))
            return CompiledGrammar(vocabulary, _text(self._root, self._definitions))
        except GrammarRefused as error:
            raise self._located(str(error)) from error

    def _located(self, message: str) -> SchemaFault:
        """Returns the fault at the smallest schema that is refused."""
        for pointer, schema in self._subschemas[:_TRIALS]:
            wrong = LLMatcher.validate_grammar(_text(schema, self._definitions))
            if wrong and not wrong.startswith("WARNING"):
                return SchemaFault(_short(wrong), _keyword(schema, wrong), pointer)
        root = self._root if isinstance(self._root, dict) else {}
        return SchemaFault(_short(message), _keyword(root, message), "")


def _parsed(definition: str) -> Any:
    def no_constant(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
            raise ValueError(f"an object has the key {twice[:80]!r} twice")
        return made

    try:
        return json.loads(definition, parse_constant=no_constant, object_pairs_hook=once)
    except RecursionError as error:
        raise SchemaFault("the JSON is nested too deep", "", "") from error
    except ValueError as error:
        raise SchemaFault(f"it is no JSON: {error}", "", "") from error


def _with(schema: Schema, definitions: dict[str, Schema]) -> dict[str, Any]:
    if schema is False:
        raise SchemaFault("`false` is satisfied by nothing", "", "")
    made: dict[str, Any] = {} if schema is True else dict(schema)
    return made | {"$defs": definitions} if definitions else made


def _text(schema: Schema, definitions: dict[str, Schema]) -> str:
    options = cast("JsonCompileOptions", OPTIONS)
    return LLMatcher.grammar_from_json_schema(_with(schema, definitions), overrides=options)


def _is_never(schema: Schema) -> bool:
    """Whether `false` is meant: a property that may not come."""
    return schema is False


def _keyword(schema: dict[str, Any], message: str) -> str:
    named = next((key for key, hint in _HINTS.items() if key in schema and hint.search(message)), None)
    if named is None:
        named = next((key for key in schema if key in message), None)
    return named or next(iter(schema), "")


def _short(message: str) -> str:
    return " ".join(message.split())[:240]
