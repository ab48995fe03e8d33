"""Reads an answer, in pieces of any size, and gives its parts in order.

The parts joined do not depend on the pieces: all reading goes through `TextReader`. No text is lost or
repeated. What begins like a call and is none becomes the text that the model wrote; a call that ends too
early keeps the arguments that it has, and is left out if the answer is cut before it has any. White space
directly around calls and reasoning belongs to the syntax, and so does half a closing mark at the end of an
answer, behind a call.
"""

import re

from services.worker.text.answers.call_block import CallBlock, ToolSchemas
from services.worker.text.answers.channels import CHANNEL_TEXTS, ChannelReader
from services.worker.text.answers.json_calls import read_json_calls, read_named_calls
from services.worker.text.answers.part_writer import CallIds, PartWriter
from services.worker.text.answers.plain_key_calls import read_plain_key_calls
from services.worker.text.answers.python_calls import read_python_calls
from services.worker.text.answers.tagged_calls import read_tagged_calls
from services.worker.text.answers.text_reader import Malformed, Markers, Reading, TextReader
from services.worker.text.answers.tool_format import AnswerFormat, CallSyntax, ReasoningMarks, ToolFormat
from shared.messages.answer_parts import AnswerPart
from shared.messages.conversation import MAX_TOOL_CALLS

_BODIES = {
    "json": read_json_calls,
    "named": read_named_calls,
    "tagged": read_tagged_calls,
    "python": read_python_calls,
    "plain_keys": read_plain_key_calls,
}
_SYNTAX_ONLY = re.compile(r"[\s,;\]]*")
_CHANNEL_SYNTAX = CallSyntax(body="json", opens=("<|channel|>",))


def fixed_texts(form: AnswerFormat) -> frozenset[str]:
    """Returns the texts that the parser of a form has to see, control tokens or not."""
    texts: set[str] = set()
    if form.tools is not None:
        texts.update(text for syntax in form.tools.calls for text in syntax.texts())
        texts.update(CHANNEL_TEXTS if form.tools.channels else ())
    if form.reasoning is not None:
        texts.update((form.reasoning.opens, form.reasoning.closes))
    return frozenset(texts)


class AnswerParser:
    """The parts of one choice.

    Args:
        form: What the answer may consist of.
        schemas: The functions that may be called, with the JSON Schema of their arguments.
        call_ids: Returns the id of a call by its number.
        in_reasoning: The prompt ends with the mark that begins reasoning.
        max_calls: Calls that the answer may have.

    Attributes:
        reasoning: The text that comes now is reasoning.
        ended: The answer has all the calls that it may have.
    """

    def __init__(
        self,
        form: AnswerFormat,
        schemas: ToolSchemas,
        call_ids: CallIds,
        *,
        in_reasoning: bool = False,
        max_calls: int = MAX_TOOL_CALLS,
    ) -> None:
        self._form = form
        self._schemas = schemas
        self._max_calls = max_calls
        self._cut = False
        self._reader = TextReader()
        self._writer = PartWriter(call_ids)
        self._channels = ChannelReader(self._reader, self._writer)
        tools, marks = form.tools or ToolFormat(name="", models=""), form.reasoning
        self._by_opening = {text: syntax for syntax in tools.calls for text in syntax.opens}
        self._bare = next((syntax for syntax in tools.calls if not syntax.opens), None)
        self._markers = Markers((*self._by_opening, *((marks.opens,) if marks else ())))
        self._reasoning = in_reasoning and marks is not None
        self._reading = self._channel_answer() if tools.channels else self._answer()
        next(self._reading)

    @property
    def reasoning(self) -> bool:
        """The text that comes now is reasoning."""
        return self._reasoning or self._channels.reasoning

    @property
    def ended(self) -> bool:
        """The answer has all the calls that it may have, and the last one is complete."""
        return self._writer.num_calls >= self._max_calls and not self._writer.in_call

    @property
    def num_calls(self) -> int:
        """Calls that were begun."""
        return self._writer.num_calls

    def feed(self, text: str) -> list[AnswerPart]:
        """Takes the next piece, and returns the parts that are certain with it."""
        self._reader.add(text)
        next(self._reading)
        return self._writer.take_parts()

    def finish(self, *, cut: bool = False) -> list[AnswerPart]:
        """Returns the rest, once no more text comes.

        Args:
            cut: The model did not end the answer. A call that has not begun is left out then, for its marks
                are no text of the answer.
        """
        self._reader.closed, self._cut = True, cut
        next(self._reading, None)
        return self._writer.take_parts()

    def _answer(self) -> Reading[None]:
        marks = self._form.reasoning
        fresh = True
        if self._reasoning and marks is not None:
            yield from self._read_reasoning(marks)
        while True:
            if fresh and self._bare is not None and (yield from self._read_bare(self._bare)):
                continue
            marker, shown = yield from self._read_text()
            if marks is not None and marker == marks.opens:
                fresh = fresh and not shown
                if fresh:
                    self._writer.drop_space()
                    yield from self._read_reasoning(marks)
                else:
                    self._writer.add_text(marker)
            elif marker:
                fresh = yield from self._read_block(self._by_opening[marker], marker)
            else:
                self._writer.release_space()
                return

    def _read_text(self) -> Reading[tuple[str, bool]]:
        """Passes text on up to the next marker; returns that, and whether there was text."""
        shown = False
        writer = self._writer

        def show(piece: str) -> None:
            nonlocal shown
            text = piece.rstrip()
            shown = shown or bool(text)
            writer.add_text(text)
            writer.add_space(piece[len(text) :])

        marker = yield from self._reader.pass_to(self._markers, show)
        return marker, shown

    def _read_reasoning(self, marks: ReasoningMarks) -> Reading[None]:
        self._reasoning = True
        writer, begun = self._writer, False

        def show(piece: str) -> None:
            nonlocal begun
            text = piece.rstrip()
            space = piece[len(text) :]
            if not begun:
                text = text.lstrip()
            writer.add_reasoning(text)
            begun = begun or bool(text)
            if begun:
                writer.add_space(space)

        yield from self._reader.pass_to(Markers((marks.closes,)), show)
        writer.drop_space()
        self._reasoning = False
        yield from self._reader.skip_space()

    def _read_bare(self, syntax: CallSyntax) -> Reading[bool]:
        """Reads calls without a marker; returns whether there are some. What was no call is text by now."""
        self._reader.record()
        begins = ("[",) if syntax.body == "python" else ("{", "[")
        char = yield from self._reader.skip_space()
        if not char or char not in begins:
            self._writer.add_space(self._reader.recorded)
            return False
        return (yield from self._read_calls(syntax))

    def _read_block(self, syntax: CallSyntax, marker: str) -> Reading[bool]:
        """Reads a block of calls from behind its marker; returns whether it has some."""
        self._reader.record(marker)
        return (yield from self._read_calls(syntax))

    def _read_calls(self, syntax: CallSyntax) -> Reading[bool]:
        reader, writer = self._reader, self._writer
        block = CallBlock(reader, writer, syntax, self._schemas, self._max_calls)
        try:
            yield from _BODIES[syntax.body](block)
        except Malformed:
            if writer.in_call:
                writer.end_call()
            elif self._cut and syntax.opens and reader.take_cut():
                writer.drop_space()
                return True
            elif not block.calls or not _SYNTAX_ONLY.fullmatch(reader.recorded):
                writer.add_text(reader.recorded)
                return False
        if not block.closed:
            yield from reader.skip_space()
            if not (yield from reader.match(*syntax.closes)):
                yield from reader.skip_cut(*(text for text in syntax.texts() if text not in syntax.opens))
        yield from reader.skip_space()
        return True

    def _channel_answer(self) -> Reading[None]:
        while True:
            block = CallBlock(self._reader, self._writer, _CHANNEL_SYNTAX, self._schemas, self._max_calls)
            try:
                yield from self._channels.read_answer(block)
                return
            except Malformed:
                if not (self._cut and self._reader.take_cut()):
                    self._writer.add_text(self._reader.recorded)
