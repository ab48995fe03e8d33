"""The forms in which models write reasoning and tool calls, as data.

`known_formats.py` lists them; `answers/parser.py` reads all of them.
"""

from dataclasses import dataclass
from typing import Literal

Body = Literal["json", "named", "tagged", "python", "plain_keys"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """How a block of calls is written.

    Attributes:
        body: `json`: objects with a name and arguments, alone or in an array. `named`: a name, then the
            arguments as a JSON object. `tagged`: a name, then each argument between tags. `python`: calls
            with keyword arguments, in brackets. `plain_keys`: a name, then an object with bare keys.
        opens: Texts that begin a block. Empty: the answer begins with the body itself, and only calls of
            functions that the request has count.
        closes: Texts that may end a block.
        name_keys: Keys of the function's name, of `json`.
        argument_keys: Keys of the arguments, of `json`.
        items: Text before each call of a block, of `named`, `tagged` and `plain_keys`; a block without it has
            one call.
        name_ends: Texts that end the name.
        name_pattern: What of the written name is the function's, as group 1.
        before_arguments: Texts that may stand between name and arguments.
        after_arguments: Texts that may stand behind the arguments.
        keys: Texts before and behind the name of an argument, of `tagged`.
        values: Texts before and behind its value. Of `plain_keys`: the quotes of a string.
        trims: One line break at either end of a value belongs to the syntax.
        value_lines: The model writes a line break at either end of a value, of those with `trims`.
        enforced: How a grammar lets calls be written: `each` in a block of its own, as a `list` or one below
            the other, `named`. Empty: the generic form is enforced where a call is required.
        name_prefix: Text before the name of an enforced call.
    """

    body: Body
    opens: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()
    name_keys: tuple[str, ...] = ("name",)
    argument_keys: tuple[str, ...] = ("arguments", "parameters")
    items: str = ""
    name_ends: tuple[str, ...] = ()
    name_pattern: str = r"\s*(.*?)\s*"
    before_arguments: tuple[str, ...] = ()
    after_arguments: tuple[str, ...] = ()
    keys: tuple[str, str] = ("", "")
    values: tuple[str, str] = ("", "")
    trims: bool = False
    value_lines: bool = False
    enforced: Literal["", "each", "list", "named"] = ""
    name_prefix: str = ""

    def texts(self) -> tuple[str, ...]:
        """Returns all fixed texts of the syntax."""
        fixed = (
            *self.opens, *self.closes, self.items, *self.name_ends, *self.before_arguments,
            *self.after_arguments, *self.keys, *self.values,
        )  # fmt: skip
        return tuple(text for text in fixed if text)


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """The texts around a model's reasoning."""

    opens: str
    closes: str


REASONING = (
    ReasoningMarks("<think>", "</think>"),
    ReasoningMarks("<seed:think>", "</seed:think>"),
    ReasoningMarks("[THINK]", "[/THINK]"),
    ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningMarks("◁think▷", "◁/think▷"),
    ReasoningMarks("<thinking>", "</thinking>"),
    ReasoningMarks("<reasoning>", "</reasoning>"),
)


def reasoning_of(template: str) -> ReasoningMarks | None:
    """Returns the marks of the reasoning that a chat template names; None if it has none."""
    return next((marks for marks in REASONING if marks.closes in template or marks.opens in template), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """A form in which a model calls tools.

    Attributes:
        name: By which requests and settings choose it.
        models: Families that write so.
        signs: Texts of a chat template that show it: all of one of these tuples.
        calls: Its syntaxes; the first one is enforced where a call is required.
        channels: The answer consists of messages with channels (Harmony), with at most one call.
        reasoning: Marks of the reasoning in such an answer.
        text_before: Text before the text in such an answer.
        again: Text before a further message.
    """

    name: str
    models: str
    signs: tuple[tuple[str, ...], ...] = ()
    calls: tuple[CallSyntax, ...] = ()
    channels: bool = False
    reasoning: ReasoningMarks | None = None
    text_before: str = ""
    again: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFormat:
    """What an answer may consist of.

    Attributes:
        tools: Form of its tool calls; None: it has none.
        reasoning: Marks of its reasoning; None: it has none.
    """

    tools: ToolFormat | None = None
    reasoning: ReasoningMarks | None = None
