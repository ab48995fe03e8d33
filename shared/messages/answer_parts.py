"""The typed parts of an answer, and what a request demands of its form.

A leader makes the parts once, from tokens; every API translates them. The parts of a stream joined in
order are the whole answer: texts and arguments are concatenated, nothing is repeated.
"""

from typing import Annotated, Literal

import msgspec

from shared.messages.base import Wire

MAX_STRUCTURE_CHOICES = 10_000


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
