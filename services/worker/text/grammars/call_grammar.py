"""Grammars of tool calls, made of the syntax of a model's calls and the schemas of the functions."""

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.worker.domain.generation.token_constraint import ConstraintFactory
from services.worker.text.answers.tool_format import CallSyntax
from services.worker.text.grammars.argument_schema import ArgumentSchema, argument_schema
from services.worker.text.grammars.compiled_grammar import CompiledGrammar, GrammarRefused
from services.worker.text.grammars.grammar_limits import GrammarLimits
from services.worker.text.grammars.token_vocabulary import TokenVocabulary
from services.worker.text.grammars.tool_grammar import compile_lark, lark_text, lark_token
from services.worker.text.grammars.triggered_constraint import Trigger, TriggeredConstraint
from shared.errors import InvalidRequest
from shared.messages import ToolDefinition


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
    """

    syntax: CallSyntax
    tools: Sequence[ToolDefinition]
    control: dict[str, int]
    many: bool
    required: bool
    only: str = ""


def compile_calls(
    calls: EnforcedCalls, vocabulary: TokenVocabulary, limits: GrammarLimits
) -> ConstraintFactory:
    """Returns the constraint of an answer. May take a second; thread-safe.

    Raises:
        InvalidRequest: The schema of a strict function is not enforced; `data` has `keyword` and `pointer`.
            Or the functions together are too large.
    """
    try:
        grammar = _compiled(calls, vocabulary, limits, proven=False)
    except GrammarRefused:
        try:
            grammar = _compiled(calls, vocabulary, limits, proven=True)
        except GrammarRefused as error:
            raise InvalidRequest(f"the tools are refused: {str(error)[:240]}", param="tools") from error
    if calls.required:
        return grammar
    opens = calls.syntax.opens[0]
    last = next((token_id for token, token_id in calls.control.items() if opens.endswith(token)), None)
    marker = Trigger(grammar, marker=opens.encode())
    trigger = marker if last is None else Trigger(grammar, token_id=last)  # control tokens have no bytes
    return functools.partial(TriggeredConstraint, vocabulary, (trigger,), repeats=calls.many)


def _compiled(
    calls: EnforcedCalls, vocabulary: TokenVocabulary, limits: GrammarLimits, *, proven: bool
) -> CompiledGrammar:
    """Compiles the calls, from the first opening text on if they are required, else from behind it."""
    tools = [
        argument_schema(tool, place, limits, proven=proven)
        for place, tool in enumerate(calls.tools)
        if not calls.only or tool.name == calls.only
    ]
    return compile_lark(_lark(calls, tools), vocabulary)


def _lark(calls: EnforcedCalls, tools: Sequence[ArgumentSchema]) -> str:
    """Returns the grammar in Lark."""
    syntax, text = calls.syntax, functools.partial(_literal, calls.control)
    opens, closes = syntax.opens[:1], syntax.closes[:1]
    first = "".join(opens) if calls.required else ""
    if syntax.enforced == "each":
        line = "\n" if opens else ""
        items = _alternatives(tools, functools.partial(_object, syntax, text))
        more = f"({text(f'{line}{closes[0]}{line}{opens[0]}{line}') if opens else text('; ')} call)*"
        body = f"{text(first + line)} call {more if calls.many else ''} {text(line + ''.join(closes))}"
    elif syntax.enforced == "list":
        items = _alternatives(tools, functools.partial(_object, syntax, text))
        more = '(", " call)*' if calls.many else ""
        body = f'{text(first)} "[" call {more} "]" {text("".join(closes))}'
    else:
        items = _alternatives(tools, functools.partial(_named, syntax, text))
        again = "" if syntax.items else "".join(opens)
        more = f"({text(again)} call)*" if calls.many else ""
        body = f"{text(first)} call {more} {text(''.join(closes))}"
    rules = [f"args_{at}: %json {json.dumps(tool.grammar.document)}" for at, tool in enumerate(tools)]
    return "\n".join([f"start: {body}", f"call: {items}", *rules])


def _alternatives(tools: Sequence[ArgumentSchema], one: Callable[[str, int], str]) -> str:
    return " | ".join(one(tool.name, number) for number, tool in enumerate(tools))


def _object(syntax: CallSyntax, text: Callable[[str], str], name: str, number: int) -> str:
    key = syntax.argument_keys[0]
    return f'{text(f"""{{"{syntax.name_keys[0]}": "{name}", "{key}": """)} args_{number} "}}"'


def _named(syntax: CallSyntax, text: Callable[[str], str], name: str, number: int) -> str:
    fence = "\n" if syntax.before_arguments else ""
    before = f"{syntax.items}{syntax.name_prefix}{name}{syntax.name_ends[0]}"
    before += "".join(part + fence for part in syntax.before_arguments)
    return f"{text(before)} args_{number} {text(fence + ''.join(syntax.after_arguments))}"


def _literal(control: dict[str, int], text: str) -> str:
    """Returns a text as Lark writes it, control tokens by their ids."""
    if not text:
        return ""
    for token, token_id in control.items():
        before, found, after = text.partition(token)
        if found:
            return f"{_literal(control, before)} {lark_token(token_id)} {_literal(control, after)}"
    return lark_text(text)
