"""The typed parts of an answer, and what a request demands of its form.

A leader makes the parts once, from tokens; every API translates them. The parts of a stream joined in
order are the whole answer: texts and arguments are concatenated, nothing is repeated.
"""

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from shared.messages.base import Wire

MAX_STRUCTURE_CHOICES = 10_000
Resumed = Literal["", "text"]  # see `Done`


class TextPart(Wire, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """A piece of the text that the user is to see."""

    text: str


class ReasoningPart(Wire, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """A piece of what the model thinks before its answer."""

    text: str


class ToolCallPart(Wire, frozen=True, kw_only=True, tag_field="type", tag="tool_call"):
    """A piece of a tool call. The first piece of a call has its id and whole name; later ones have neither.

    Attributes:
        index: Number of the call in the choice, from 0.
        arguments: A piece of the JSON text of the arguments.
    """

    index: Annotated[int, msgspec.Meta(ge=0)]
    call_id: str = ""
    name: str = ""
    arguments: str = ""


AnswerPart = TextPart | ReasoningPart | ToolCallPart


class StructuredOutput(Wire, frozen=True, kw_only=True):
    """The form that the text of an answer must have; a grammar enforces it at every token.

    Attributes:
        kind: `json_object`: any JSON object. `json_schema`, `regex`, `grammar`: `definition` has the schema
            as JSON text, the regular expression, or the grammar in Lark or EBNF. `choice`: one of `choices`.
    """

    kind: Literal["json_object", "json_schema", "regex", "choice", "grammar"]
    definition: str = ""
    choices: Annotated[list[str], msgspec.Meta(max_length=MAX_STRUCTURE_CHOICES)] = []


class EmbeddingOptions(Wire, frozen=True, kw_only=True):
    """Asks for the embedding of the prompt instead of an answer.

    Attributes:
        pooling: The hidden state of the last token, or the mean over all tokens.
        normalize: Scales the vector to length 1.
        dimensions: Keeps so many first components, before it is normalised; 0: all.
    """

    pooling: Literal["last", "mean"] = "last"
    normalize: bool = True
    dimensions: Annotated[int, msgspec.Meta(ge=0)] = 0


def join_parts(parts: Iterable[AnswerPart]) -> list[AnswerPart]:
    """Returns parts with neighbours of one kind, or of one call, made one."""
    groups: list[tuple[AnswerPart, list[str]]] = []
    for part in parts:
        if groups and _goes_on(groups[-1][0], part):
            groups[-1][1].append(_piece(part))
        else:
            groups.append((part, [_piece(part)]))
    return [first if len(pieces) == 1 else _with(first, "".join(pieces)) for first, pieces in groups]


def _goes_on(first: AnswerPart, part: AnswerPart) -> bool:
    if isinstance(first, ToolCallPart):
        return isinstance(part, ToolCallPart) and part.index == first.index and not part.name
    return type(first) is type(part)


def _piece(part: AnswerPart) -> str:
    return part.arguments if isinstance(part, ToolCallPart) else part.text


def _with(first: AnswerPart, text: str) -> AnswerPart:
    if isinstance(first, ToolCallPart):
        return ToolCallPart(index=first.index, call_id=first.call_id, name=first.name, arguments=text)
    return TextPart(text=text) if isinstance(first, TextPart) else ReasoningPart(text=text)
