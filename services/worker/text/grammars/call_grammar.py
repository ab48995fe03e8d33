"""Grammars of tool calls, made of the syntax of a model's calls and the schemas of the functions."""

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from services.worker.domain.generation.token_constraint import ConstraintFactory
from services.worker.text.answers.call_layout import block_texts
from services.worker.text.answers.tool_format import CallSyntax
from services.worker.text.grammars.arguments.call_terms import CallTerms
from services.worker.text.grammars.arguments.schema import argument_schema
from services.worker.text.grammars.arguments.value_style import Write
from services.worker.text.grammars.compiled_grammar import CompiledGrammar, GrammarRefused
from services.worker.text.grammars.limits import GrammarLimits
from services.worker.text.grammars.spelling import Unspelled
from services.worker.text.grammars.token_vocabulary import TokenVocabulary
from services.worker.text.grammars.tool_grammar import compile_lark, lark_fixed
from services.worker.text.grammars.triggered_constraint import Trigger, TriggeredConstraint
from services.worker.text.grammars.unique_keys import UniqueKeysGrammar
from shared.errors import InvalidRequest
from shared.messages import ToolDefinition

_JSON_BODIES = ("json", "named")  # forms whose arguments are JSON as it is


@dataclass(frozen=True, slots=True)
class EnforcedCalls:
    """The calls that an answer must have, or may have.

    Attributes:
        syntax: In which they are written.
        tools: All functions of the request.
        control: Control tokens of the syntax, by text.
        many: More than one call may come.
        required: The answer is calls and nothing else; otherwise its text is free up to the first call.
        only: The name of the only function that may be called; empty: any.
        again: Text that may stand before the calls, or before the text in their place.
        text_before: Text that stands before the text in place of calls.
    """

    syntax: CallSyntax
    tools: Sequence[ToolDefinition]
    control: dict[str, int]
    many: bool
    required: bool
    only: str = ""
    again: str = ""
    text_before: str = ""


def compile_calls(
    calls: EnforcedCalls, vocabulary: TokenVocabulary, limits: GrammarLimits
) -> ConstraintFactory:
    """Returns the constraint of an answer. May take a second; thread-safe.

    Raises:
        InvalidRequest: The schema of a strict function is not enforced; `data` has `keyword` and `pointer`.
            Or the functions together are too large.
    """
    grammar = _unique(_twice(functools.partial(_compiled, calls, vocabulary, limits)), calls, vocabulary)
    if calls.required:
        return grammar
    return functools.partial(TriggeredConstraint, vocabulary, _triggers(calls, grammar), repeats=calls.many)


def compile_calls_or_text(
    calls: EnforcedCalls, text: CompiledGrammar, vocabulary: TokenVocabulary, limits: GrammarLimits
) -> ConstraintFactory:
    """Returns the constraint of an answer that is calls or a text of a grammar. Like `compile_calls`."""
    wholly = replace(calls, required=True)

    def compiled(*, proven: bool) -> CompiledGrammar:
        before = lark_fixed(calls.control, calls.text_before)
        rules = _lark(wholly, limits, vocabulary.unspelled, proven=proven, other=f"{before} @answer")
        is_json = text.text.startswith("{")  # or else it is Lark
        first, *rest = json.loads(text.text)["grammars"] if is_json else [{"lark_grammar": text.text}]
        grammars = [{"lark_grammar": rules}, {**first, "name": "answer"}, *rest]
        return CompiledGrammar(vocabulary, json.dumps({"grammars": grammars}), text.items)

    return _unique(_twice(compiled), calls, vocabulary)


def _unique(grammar: CompiledGrammar, calls: EnforcedCalls, vocabulary: TokenVocabulary) -> ConstraintFactory:
    """Lets no key come twice in an object, in forms whose arguments are JSON."""
    return UniqueKeysGrammar(grammar, vocabulary) if calls.syntax.body in _JSON_BODIES else grammar


def _triggers(calls: EnforcedCalls, grammar: ConstraintFactory) -> tuple[Trigger, ...]:
    """Returns what begins a call: the text behind the last control token of its opening, or that token.

    A reader takes the text of that token for the beginning of a call as well.
    """
    opens, end, token_id = calls.syntax.opens[0], 0, -1
    for token, number in calls.control.items():
        at = opens.rfind(token)
        if at >= 0 and at + len(token) > end:
            end, token_id = at + len(token), number
    behind = opens[end:]
    if behind:
        return (Trigger(grammar, marker=behind.encode()),)
    return Trigger(grammar, token_id=token_id), Trigger(grammar, marker=opens.encode())


def _twice(compiled: Callable[..., CompiledGrammar]) -> CompiledGrammar:
    """Compiles once more, with each schema examined, if llguidance refuses the whole."""
    try:
        return compiled(proven=False)
    except GrammarRefused:
        try:
            return compiled(proven=True)
        except GrammarRefused as error:
            raise InvalidRequest(f"the tools are refused: {str(error)[:240]}", param="tools") from error


def _compiled(
    calls: EnforcedCalls, vocabulary: TokenVocabulary, limits: GrammarLimits, *, proven: bool
) -> CompiledGrammar:
    """Compiles the calls, from the first opening text on if they are required, else from behind it."""
    return compile_lark(_lark(calls, limits, vocabulary.unspelled, proven=proven), vocabulary)


def _lark(
    calls: EnforcedCalls, limits: GrammarLimits, unspelled: Unspelled, *, proven: bool, other: str = ""
) -> str:
    """Returns the grammar in Lark; `other` is a term that may stand in place of all calls."""
    text = functools.partial(lark_fixed, calls.control)
    terms = CallTerms(calls.syntax, calls.control, text, unspelled, proven=proven)
    made = [
        argument_schema(tool, index, limits, functools.partial(terms.call, tool, index))
        for index, tool in enumerate(calls.tools)
        if not calls.only or tool.name == calls.only
    ]
    rules = [rule for one in made for rule in one.rules]
    again = f"({text(calls.again)})?" if calls.again and calls.required else ""
    start = f"start: {again} ({' | '.join(filter(None, ('calls' if made else '', other)))})"
    if not made:
        return start
    call = f"call: {' | '.join(one.term for one in made)}"
    return "\n".join([start, f"calls: {_block(calls, text)}", call, *rules])


def _block(calls: EnforcedCalls, text: Write) -> str:
    """Returns the term of all calls."""
    block = block_texts(calls.syntax)
    first = block.opens if calls.required else ""
    more = f"({text(block.between)} call)*" if calls.many else ""
    return f"{text(first + block.line)} call {more} {text(block.end)}"
