"""Grammars of tool calls, made of the syntax of a model's calls and the schemas of the functions."""

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from services.worker.domain.generation.token_constraint import ConstraintFactory
from services.worker.text.answers.tool_format import CallSyntax
from services.worker.text.grammars.compiled_grammar import GrammarRefused
from services.worker.text.grammars.grammar_limits import GrammarLimits
from services.worker.text.grammars.token_vocabulary import TokenVocabulary
from services.worker.text.grammars.tool_grammar import compile_lark, lark_schema, lark_text, lark_token
from services.worker.text.grammars.triggered_constraint import Trigger, TriggeredConstraint
from services.worker.text.tool_prompt import parameters_of
from shared.errors import InvalidRequest
from shared.messages import ToolDefinition


@dataclass(frozen=True, slots=True)
class EnforcedCalls:
    """The calls that an answer must have, or may have.

    Attributes:
        syntax: In which they are written.
        tools: Functions that may be called.
        control: Control tokens of the syntax, by text.
        many: More than one call may come.
        required: The answer is calls and nothing else; otherwise its text is free up to the first call.
    """

    syntax: CallSyntax
    tools: Sequence[ToolDefinition]
    control: dict[str, int]
    many: bool
    required: bool


def compile_calls(
    calls: EnforcedCalls, vocabulary: TokenVocabulary, limits: GrammarLimits
) -> ConstraintFactory:
    """Returns the constraint of an answer. May take a second; thread-safe.

    Raises:
        InvalidRequest: The schema of a strict function is not enforced; `data` has `keyword` and `pointer`.
            Or the functions together are too large.
    """
    rules = [f"args_{number}: {_schema(tool, limits)}" for number, tool in enumerate(calls.tools)]
    try:
        if calls.required:
            return compile_lark(_lark(calls, rules, opening=True), vocabulary)
        grammar = compile_lark(_lark(calls, rules, opening=False), vocabulary)
    except GrammarRefused as error:
        raise InvalidRequest(f"the tools are refused: {str(error)[:240]}", param="tools") from error
    opens = calls.syntax.opens[0]
    last = next((token_id for token, token_id in calls.control.items() if opens.endswith(token)), None)
    marker = Trigger(grammar, marker=opens.encode())
    trigger = marker if last is None else Trigger(grammar, token_id=last)  # control tokens have no bytes
    return functools.partial(TriggeredConstraint, vocabulary, (trigger,), repeats=calls.many)


def _schema(tool: ToolDefinition, limits: GrammarLimits) -> str:
    """Returns the arguments of a function as a term; any object if it is neither enforced nor strict."""
    try:
        return lark_schema(json.dumps({"type": "object", **parameters_of(tool)}), limits, "tools")
    except InvalidRequest:
        if tool.strict:
            raise
        return lark_schema('{"type": "object"}', limits, "tools")


def _lark(calls: EnforcedCalls, rules: list[str], *, opening: bool) -> str:
    """Returns the grammar in Lark; without `opening`, of what follows the first opening text."""
    syntax, text = calls.syntax, functools.partial(_literal, calls.control)
    opens, closes = syntax.opens[:1], syntax.closes[:1]
    first = "".join(opens) if opening else ""
    if syntax.enforced == "each":
        line = "\n" if opens else ""
        items = _alternatives(calls.tools, functools.partial(_object, syntax, text))
        more = f"({text(f'{line}{closes[0]}{line}{opens[0]}{line}') if opens else text('; ')} call)*"
        body = f"{text(first + line)} call {more if calls.many else ''} {text(line + ''.join(closes))}"
    elif syntax.enforced == "list":
        items = _alternatives(calls.tools, functools.partial(_object, syntax, text))
        more = '(", " call)*' if calls.many else ""
        body = f'{text(first)} "[" call {more} "]" {text("".join(closes))}'
    else:
        items = _alternatives(calls.tools, functools.partial(_named, syntax, text))
        again = "" if syntax.items else "".join(opens)
        more = f"({text(again)} call)*" if calls.many else ""
        body = f"{text(first)} call {more} {text(''.join(closes))}"
    return "\n".join([f"start: {body}", f"call: {items}", *rules])


def _alternatives(tools: Sequence[ToolDefinition], one: Callable[[str, int], str]) -> str:
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
