"""Answers of the Messages API: as bytes of server-sent events, and whole."""

from collections.abc import Sequence
from typing import Any

import msgspec

from services.gateway.admission.errors.refusals import ErrorAnswer
from services.gateway.admission.errors.shapes import anthropic_body
from services.gateway.answering.envelope import Envelope
from services.gateway.answering.events.source import StreamEvent
from services.gateway.formats.anthropic.content_blocks import ContentBlocks
from services.gateway.formats.fields.answer_blocks import Event
from shared.messages import Accepted, Delta, SessionOutcome, Usage
from shared.messages.generate import Resumed

_COMMENT: StreamEvent = (b"ping", b"")  # clients expect no other event before `message_start`
_PING: StreamEvent = (b"ping", b'{"type":"ping"}')


class MessageEventWriter:
    """The events of one streamed message; see `EventWriter`.

    Args:
        envelope: Of the answer.
        show_thinking: See `ContentBlocks`.
        shown_id: The request's id as its caller sees it, for errors.
    """

    def __init__(self, envelope: Envelope, *, show_thinking: bool, shown_id: str) -> None:
        self._envelope = envelope
        self._shown_id = shown_id
        self._blocks = ContentBlocks(show_thinking=show_thinking)
        self._begun = False

    def opening(self, accepted: Accepted | None = None) -> list[StreamEvent]:
        """Nothing: the beginning of a message has the tokens of its prompt, which are not counted yet."""
        return []

    def begin(self, prompt: Usage) -> list[StreamEvent]:
        """The beginning of the message, and a `ping`; once."""
        if self._begun:
            return []
        self._begun = True
        message = message_object(self._envelope, [], prompt, ContentBlocks())
        return _encoded([("message_start", {"message": message}), ("ping", {})])

    def deltas(self, deltas: Sequence[Delta], prompt: int = 0) -> list[StreamEvent]:
        """The events of content blocks."""
        return _encoded([event for delta in deltas for event in self._blocks.take(delta)])

    def closing(
        self, usages: list[Usage], session: SessionOutcome | None = None, resumed: Resumed = ""
    ) -> list[StreamEvent]:
        """Why the message ended and its usage, and the end."""
        blocks = self._blocks
        end = {
            "stop_reason": blocks.stop_reason,
            "stop_sequence": blocks.stop_sequence,
            "stop_details": None,
            "container": None,
        }
        more = {"resumed": resumed} if resumed else {}
        events: list[Event] = [
            ("message_delta", {"delta": end, "usage": usage_of(usages[0]), **more}),
            ("message_stop", {}),
        ]
        return _encoded(events)

    def failure(self, answer: ErrorAnswer) -> StreamEvent:
        """See `EventWriter`."""
        return b"error", anthropic_body(answer, self._shown_id)

    def ping(self) -> StreamEvent | None:
        """See `EventWriter`."""
        return _PING if self._begun else _COMMENT


def _encoded(events: Sequence[Event]) -> list[StreamEvent]:
    return [(kind.encode(), msgspec.json.encode({"type": kind, **fields})) for kind, fields in events]


def whole_message(
    envelope: Envelope, output: Delta, usage: Usage, *, show_thinking: bool, resumed: Resumed = ""
) -> bytes:
    """The body of a whole message, from the same translation of parts as a stream.

    Args:
        envelope: Of the answer.
        output: The whole output.
        usage: Its tokens.
        show_thinking: See `ContentBlocks`.
        resumed: As in `Done`.
    """
    blocks = ContentBlocks(show_thinking=show_thinking)
    for _ in blocks.take(output):
        pass
    message = message_object(envelope, blocks.blocks, usage, blocks)
    return msgspec.json.encode(message | {"resumed": resumed} if resumed else message)


def message_object(
    envelope: Envelope, content: list[dict[str, Any]], usage: Usage, blocks: ContentBlocks
) -> dict[str, Any]:
    """A message as Anthropic's clients read it."""
    return {
        "id": envelope.answer_id,
        "type": "message",
        "role": "assistant",
        "model": envelope.model,
        "content": content,
        "stop_reason": blocks.stop_reason,
        "stop_sequence": blocks.stop_sequence,
        "stop_details": None,
        "container": None,
        "usage": usage_of(usage),
    }


def usage_of(usage: Usage) -> dict[str, Any]:
    """Token counts. The three counts of input add up to the prompt; `cached_tokens` is an addition."""
    return {
        "input_tokens": max(0, usage.prompt_tokens - usage.cached_tokens - usage.stored_tokens),
        "output_tokens": usage.completion_tokens,
        "cache_creation_input_tokens": usage.stored_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cached_tokens": usage.cached_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "service_tier": "standard",
    }
