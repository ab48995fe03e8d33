"""Answers of the Messages API: as bytes of server-sent events, and whole."""

from collections.abc import Sequence
from typing import Any

import msgspec

from services.gateway.admission.error_shapes import anthropic_body
from services.gateway.admission.refusals import ErrorAnswer
from services.gateway.answering.envelope import Envelope
from services.gateway.answering.event_ids import UNNUMBERED, numbered
from services.gateway.messages.content_blocks import ContentBlocks, Event
from shared.messages import Accepted, Delta, SessionOutcome, Usage

_COMMENT = b": ping\n\n"  # clients expect no other event before `message_start`
_PING = b'event: ping\ndata: {"type":"ping"}\n\n'


class MessageEventWriter:
    """The events of one streamed message; see `EventWriter`.

    Args:
        envelope: Of the answer.
        ids: Events carry ids.
        show_thinking: See `ContentBlocks`.
        shown_id: The request's id as its caller sees it, for errors.
    """

    def __init__(self, envelope: Envelope, *, ids: bool, show_thinking: bool, shown_id: str) -> None:
        self._envelope = envelope
        self._ids = ids
        self._shown_id = shown_id
        self._blocks = ContentBlocks(show_thinking=show_thinking)
        self._begun = False

    def opening(self, accepted: Accepted | None = None) -> bytes:
        """Nothing: the beginning of a message has the tokens of its prompt, which are not counted yet."""
        return b""

    def begin(self, prompt: Usage) -> bytes:
        """The beginning of the message, and a `ping`; once."""
        if self._begun:
            return b""
        self._begun = True
        message = message_object(self._envelope, [], prompt, ContentBlocks())
        return self._join([("message_start", {"message": message}), ("ping", {})], 0)

    def deltas(self, deltas: Sequence[Delta], prompt: int = 0, seq: int = UNNUMBERED) -> bytes:
        """The events of content blocks."""
        begin = self.begin(Usage())  # of a leader that does not tell the counts of the prompt
        return begin + self._join([event for delta in deltas for event in self._blocks.take(delta)], seq)

    def closing(
        self, usages: list[Usage], seq: int = UNNUMBERED, session: SessionOutcome | None = None
    ) -> bytes:
        """Why the message ended and its usage, and the end."""
        blocks = self._blocks
        end = {
            "stop_reason": blocks.stop_reason,
            "stop_sequence": blocks.stop_sequence,
            "stop_details": None,
            "container": None,
        }
        told: list[Event] = [
            ("message_delta", {"delta": end, "usage": usage_of(usages[0])}),
            ("message_stop", {}),
        ]
        return self.begin(usages[0]) + self._join(told, seq)

    def failure(self, answer: ErrorAnswer) -> bytes:
        """See `EventWriter`."""
        return b"event: error\ndata: " + anthropic_body(answer, self._shown_id) + b"\n\n"

    def ping(self) -> bytes:
        """See `EventWriter`."""
        return _PING if self._begun else _COMMENT

    def _join(self, events: Sequence[Event], seq: int) -> bytes:
        encoded = [
            b"event: %b\ndata: %b\n\n" % (kind.encode(), msgspec.json.encode({"type": kind, **fields}))
            for kind, fields in events
        ]
        return numbered(encoded, seq) if self._ids else b"".join(encoded)


def whole_message(envelope: Envelope, output: Delta, usage: Usage, *, show_thinking: bool) -> bytes:
    """The body of a whole message, from the same translation of parts as a stream.

    Args:
        envelope: Of the answer.
        output: The whole output.
        usage: Its tokens.
        show_thinking: See `ContentBlocks`.
    """
    blocks = ContentBlocks(show_thinking=show_thinking)
    for _ in blocks.take(output):
        pass
    return msgspec.json.encode(message_object(envelope, blocks.blocks, usage, blocks))


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
