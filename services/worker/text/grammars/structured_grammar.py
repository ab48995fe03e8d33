"""Compiles what a request demands of the form of its answer."""

import re

from llguidance import LLMatcher, regex_to_lark

from services.worker.text.grammars.compiled_grammar import CompiledGrammar, GrammarRefused
from services.worker.text.grammars.json_schema.schema_fault import SchemaFault
from services.worker.text.grammars.json_schema.schema_grammar import SchemaGrammar
from services.worker.text.grammars.lark_grammar import caller_grammar, lark_text
from services.worker.text.grammars.limits import CALLERS_ITEMS, GrammarLimits
from services.worker.text.grammars.repetition_bound import check_repetitions
from services.worker.text.grammars.spelling import check_definition, check_texts
from services.worker.text.grammars.token_vocabulary import TokenVocabulary
from shared.errors import InvalidRequest
from shared.messages import StructuredOutput

_ANY_OBJECT = '{"type":"object"}'

# "at 1(8): invalid regex ... regex parse error: ( ^ error: unclosed group 1 | start: /(/ ^"
_REGEX_FAULT = re.compile(r"regex parse error: .* error: (.+?)(?: \d+ \| .*)?$")


def check_structured(structured: StructuredOutput, limits: GrammarLimits) -> None:
    """Refuses what is too large; takes microseconds.

    Raises:
        InvalidRequest: A limit is exceeded, or a field has nothing that the kind needs.
    """
    kind, choices = structured.kind, structured.choices
    size = len(structured.definition.encode()) + sum(len(choice.encode()) for choice in choices)
    if size > limits.definition_bytes:
        raise refused(f"has {size} bytes, at most {limits.definition_bytes} are taken", kind)
    if kind == "choice":
        if not choices:
            raise refused("needs at least one choice", kind)
        longest = max(map(len, choices))
        if longest > limits.literal_chars:
            raise refused(
                f"has a choice of {longest} characters, at most {limits.literal_chars} are taken", kind
            )
        if len(choices) > limits.choices:
            raise refused(f"has {len(choices)} choices, at most {limits.choices} are taken", kind)
    elif choices:
        raise refused("has no use for `choices`; give a `definition`", kind)
    elif kind != "json_object" and not structured.definition:
        raise refused("needs a `definition`", kind)
    elif kind == "regex" and len(structured.definition) > limits.regex_chars:
        raise refused(
            f"has {len(structured.definition)} characters, at most {limits.regex_chars} are taken", kind
        )


def compile_structured(
    structured: StructuredOutput,
    vocabulary: TokenVocabulary,
    limits: GrammarLimits,
    *,
    by_server: bool = False,
) -> CompiledGrammar:
    """Returns the grammar of a demand that `check_structured` has let pass. May take a second; thread-safe.

    Args:
        by_server: See `SchemaGrammar.compile`.

    Raises:
        InvalidRequest: It is wrong, or asks for what is not enforced; `data` has `keyword` and `pointer` for
            schemas.
    """
    kind, definition = structured.kind, structured.definition
    try:
        if kind in ("json_schema", "json_object"):
            schema = SchemaGrammar(definition if kind == "json_schema" else _ANY_OBJECT, limits)
            return schema.compile(vocabulary, by_server=by_server)
        if kind == "grammar":
            check_definition(definition, vocabulary.unspelled)
            return _callers_own(vocabulary, caller_grammar(definition, limits))
        if kind == "choice":
            check_texts(structured.choices, vocabulary.unspelled)
            return CompiledGrammar(vocabulary, LLMatcher.grammar_from_lark(_alternatives(structured.choices)))
        check_repetitions(definition, limits)
        return CompiledGrammar(vocabulary, _regex(definition, vocabulary.unwritten))
    except SchemaFault as fault:
        raise schema_refused(fault) from fault
    except (GrammarRefused, ValueError) as error:
        raise refused(f"is not served: {_reason(str(error))}", kind) from error


def _callers_own(vocabulary: TokenVocabulary, text: str) -> CompiledGrammar:
    """Compiles a caller's grammar, with the tightest limit that its beginning needs."""
    least, most = CALLERS_ITEMS
    try:
        return CompiledGrammar(vocabulary, text, least)
    except GrammarRefused:
        return CompiledGrammar(vocabulary, text, most)


def refused(reason: str, kind: str, param: str = "structured") -> InvalidRequest:
    """Returns the error of a demand; the reason reads on after "`structured` (regex)".

    Gateways put the caller's name of the field into the backquotes.
    """
    return InvalidRequest(f"`{param}` ({kind}) {reason}", param=param, keyword=kind)


def schema_refused(fault: SchemaFault, param: str = "structured") -> InvalidRequest:
    """Returns the error of a schema."""
    where = f"`{fault.keyword}` at {fault.pointer or 'the root'}: " if fault.keyword else ""
    return InvalidRequest(
        f"the JSON schema is refused: {where}{fault.reason}",
        param=param,
        keyword=fault.keyword,
        pointer=fault.pointer,
    )


def _reason(text: str) -> str:
    """The reason in one line; of a regular expression without the grammar that it was put into."""
    line = " ".join(text.split())
    found = _REGEX_FAULT.search(line)
    return (found[1] if found is not None else line)[:240]


def _regex(definition: str, unwritten: str) -> str:
    """Returns the grammar of a regular expression, without texts that no tokens spell.

    Args:
        unwritten: `TokenVocabulary.unwritten`.
    """
    if not unwritten:
        return LLMatcher.grammar_from_regex(definition)
    spelled = f"(?s:[^{unwritten}])*"
    return LLMatcher.grammar_from_lark(f"start: TEXT\nTEXT: /{regex_to_lark(definition, '')}/ & /{spelled}/")


def _alternatives(choices: list[str]) -> str:
    return "start: " + " | ".join(map(lark_text, dict.fromkeys(choices)))
