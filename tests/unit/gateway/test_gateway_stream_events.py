"""The events listed in docs/compatibility.md are what the encoders of streams can write, all of them."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from services.gateway.admission.errors.refusals import HttpRefusal, answer_for
from services.gateway.answering.envelope import Envelope
from services.gateway.answering.events.ports import EventWriter
from services.gateway.formats.anthropic.events import MessageEventWriter
from services.gateway.formats.chat.answer import ChatChunkWriter
from services.gateway.formats.responses.events import ResponseEvents
from services.gateway.formats.text.answer import CompletionChunkWriter
from shared.errors import Cancelled, GroupLost, RyzError
from shared.messages import AnswerPart, Delta, FinishReason, ReasoningPart, TextPart, ToolCallPart, Usage
from tests.kits.clients.stream_events import CHAT_EVENTS, MESSAGE_EVENTS, RESPONSE_EVENTS
from tests.kits.gateway.written_events import sse

GATEWAY = Path(__file__).resolve().parents[3] / "services" / "gateway"
ENVELOPE = Envelope("a-1", 0, "demo")
PARTS: list[AnswerPart] = [
    ReasoningPart(text="Hm."),
    TextPart(text="Well"),
    ToolCallPart(index=0, call_id="c", name="f", arguments="{}"),
]
CUSTOM = ToolCallPart(index=1, call_id="d", name="patch", arguments='{"input":"x"}')


def written(room: str, pattern: str) -> set[str]:
    """The names of events that are spelled in the code of a room."""
    texts = (path.read_text() for path in (GATEWAY / room).glob("*.py"))
    return {name for text in texts for name in re.findall(pattern, text)}


def names(data: bytes) -> set[str]:
    """The names of the events in a stream: their types, or what their data says."""
    found = set(re.findall(r"^event: (\S+)$", data.decode(), re.MULTILINE))
    found |= set(re.findall(r'"object":"([^"]+)"', data.decode()))
    found |= {"[DONE]"} & {line.removeprefix("data: ") for line in data.decode().splitlines()}
    return found | ({"error"} if b'data: {"error"' in data else set())


def everything(writer: EventWriter) -> bytes:
    deltas = [Delta(parts=PARTS), Delta(text="more"), Delta(finish_reason="stop")]
    failed = writer.failure(answer_for(HttpRefusal(500, "internal", "x")))
    ping = writer.ping()
    return sse(
        writer.opening(),
        writer.begin(Usage()),
        writer.deltas(deltas),
        [] if ping is None else [ping],
        [*writer.closing([Usage()]), failed],
    )


def test_events_of_completions() -> None:
    chat = ChatChunkWriter(ENVELOPE, n=1, usage=True, logprobs=False)
    text = CompletionChunkWriter(ENVELOPE, prompts=1, n=1, usage=True, logprobs=False)
    assert names(everything(chat)) | names(everything(text)) == set(CHAT_EVENTS)


def test_events_of_messages() -> None:
    writer = MessageEventWriter(ENVELOPE, show_thinking=True, shown_id="r")
    assert names(everything(writer)) == set(MESSAGE_EVENTS)
    spelled = written("formats/anthropic", r'"(message_(?:start|delta|stop)|content_block_[a-z_]+|ping)"')
    assert spelled | {"error"} == set(MESSAGE_EVENTS)


def response_events(status: str, ends: Iterable[RyzError | str]) -> set[str]:
    found: set[str] = set()
    for end in ends:
        fields: dict[str, Any] = {
            "id": "resp_x",
            "status": status,
            "output": [],
            "usage": None,
            "error": None,
        }
        events = ResponseEvents(fields, custom=["patch"])
        made = [*events.opening(), *events.deltas([Delta(parts=[*PARTS, CUSTOM])])]
        if isinstance(end, RyzError):
            events.fail(end)
        else:
            reason: FinishReason = "length" if end == "length" else "stop"
            made += [*events.deltas([Delta(finish_reason=reason)]), *events.finish(Usage(), 1)]
        found |= {event.kind for event in [*made, events.last()]}
    return found


def test_events_of_responses() -> None:
    made = response_events("queued", ["stop", "length", GroupLost("gone"), Cancelled("ended")])
    assert made | {"error"} == set(RESPONSE_EVENTS)
    spelled = written("formats/responses", r'"(response\.[a-z_]+(?:\.[a-z_]+)*)"') - {"response.create"}
    last = {"response.completed", "response.incomplete", "response.failed"}  # made of the status
    assert spelled | last | {"error"} == set(RESPONSE_EVENTS)
