"""Reads answers of messages with channels, the form of gpt-oss (Harmony).

`<|channel|>analysis<|message|>` begins reasoning, `<|channel|>final<|message|>` text, and a recipient
`to=functions.name` in the header makes the message a call. Source: OpenAI's guide to the harmony format.
"""

import re

from services.worker.text.answers.call_block import CallBlock
from services.worker.text.answers.part_writer import PartWriter
from services.worker.text.answers.text_reader import Markers, Reading, TextReader

_MESSAGE = Markers(("<|message|>",))
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_BEGINS = ("<|start|>", "<|channel|>")
_BODY = Markers((*_ENDS, *_BEGINS))
_MAX_HEADER = 512
_RECIPIENT = re.compile(r"to=functions\.([^\s<]+)")
CHANNEL_TEXTS = (*_ENDS, *_BEGINS, "<|message|>", "<|constrain|>")


class ChannelReader:
    """Reads messages one after another.

    Attributes:
        reasoning: The text that comes now is reasoning.
    """

    def __init__(self, reader: TextReader, writer: PartWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.reasoning = False

    def read_answer(self, block: CallBlock) -> Reading[None]:
        """Reads the whole answer; text outside messages is text."""
        marker = yield from self._reader.pass_to(_BODY, self._writer.add_text)
        while marker:
            marker = yield from self._message(block, marker)

    def _message(self, block: CallBlock, marker: str) -> Reading[str]:
        """Reads a message from behind its first marker; returns the marker that ends it."""
        reader, writer = self._reader, self._writer
        if marker in _ENDS:
            return (yield from reader.pass_to(_BODY, writer.add_text))
        reader.record(marker)
        header, _ = yield from reader.take_to(_MESSAGE, _MAX_HEADER)
        recipient = _RECIPIENT.search(header)
        if recipient:
            block.begin(recipient[1])
            marker = yield from reader.pass_to(_BODY, block.add)
            block.end()
            return marker
        self.reasoning = "analysis" in header.partition("<|channel|>")[2] or header.startswith("analysis")
        show = writer.add_reasoning if self.reasoning else writer.add_text
        marker = yield from reader.pass_to(_BODY, show)
        self.reasoning = False
        return marker
