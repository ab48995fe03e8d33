"""Messages of Anthropic's API from random parts, cut at random: the events joined are the whole message."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.answering.envelope import Envelope
from services.gateway.formats.anthropic.events import MessageEventWriter, whole_message
from shared.messages import AnswerPart, Delta, FinishReason, ReasoningPart, TextPart, ToolCallPart, Usage
from tests.kits.gateway.written_events import numbered, sse

ENVELOPE = Envelope("msg_1", 5, "demo")
USAGE = Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=2)
TEXTS = st.text(min_size=1, max_size=20)
INPUTS = st.dictionaries(st.text(max_size=8), st.text(max_size=20) | st.integers() | st.none(), max_size=3)


@st.composite
def answers(draw: st.DrawFn) -> list[AnswerPart]:
    """Whole parts, no two of a kind beside each other but calls."""
    parts: list[AnswerPart] = []
    calls = 0
    for kind in draw(st.lists(st.sampled_from("trc"), max_size=5)):
        if kind == "c":
            arguments = json.dumps(draw(INPUTS), ensure_ascii=False)
            name = draw(st.text(min_size=1, max_size=8))
            parts.append(ToolCallPart(index=calls, call_id=f"c{calls}", name=name, arguments=arguments))
            calls += 1
        elif not parts or not isinstance(parts[-1], TextPart if kind == "t" else ReasoningPart):
            parts.append((TextPart if kind == "t" else ReasoningPart)(text=draw(TEXTS)))
    return parts


def cut(draw: st.DrawFn, parts: list[AnswerPart]) -> list[AnswerPart]:
    """The same parts in pieces."""
    pieces: list[AnswerPart] = []
    for part in parts:
        text = part.arguments if isinstance(part, ToolCallPart) else part.text
        borders = sorted(draw(st.sets(st.integers(0, len(text)), max_size=4)) | {0, len(text)})
        for first, (begin, end) in enumerate(zip(borders, borders[1:] or [len(text)], strict=False)):
            if isinstance(part, ToolCallPart):
                named = {} if first else {"call_id": part.call_id, "name": part.name}
                pieces.append(ToolCallPart(index=part.index, arguments=text[begin:end], **named))
            else:
                pieces.append(type(part)(text=text[begin:end]))
    return pieces


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[AnswerPart], list[Delta], FinishReason, str]:
    """An answer, its deltas, why it ended, and the stop string that ended it."""
    whole = draw(answers())
    pieces, deltas = cut(draw, whole), list[Delta]()
    while pieces:
        count = draw(st.integers(1, len(pieces)))
        taken, pieces = pieces[:count], pieces[count:]
        text = "".join(part.text for part in taken if isinstance(part, TextPart))
        plain = all(isinstance(part, TextPart) for part in taken) and draw(st.booleans())
        deltas.append(Delta(text=text, parts=[] if plain else taken))
    reason: FinishReason = draw(st.sampled_from(("stop", "length", "tool_calls")))
    stop = draw(st.sampled_from(("", "\n"))) if reason == "stop" else ""
    deltas.append(Delta(finish_reason=reason, stop=stop))
    return whole, deltas, reason, stop


def events_of(data: bytes) -> list[dict[str, Any]]:
    events = []
    for block in data.decode().split("\n\n")[:-1]:
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        events.append(json.loads(lines["data"]))
        assert lines["event"] == events[-1]["type"]
    return events


def joined(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client makes of events; checks their order."""
    first, ping, *rest = events
    assert (first["type"], ping["type"], rest[-1]["type"]) == ("message_start", "ping", "message_stop")
    message: dict[str, Any] = first["message"]
    open_block: dict[str, Any] | None = None
    raw = ""
    for event in rest[:-1]:
        if event["type"] == "content_block_start":
            assert open_block is None
            assert event["index"] == len(message["content"])
            open_block, raw = event["content_block"], ""
            message["content"].append(open_block)
        elif event["type"] == "content_block_delta":
            assert open_block is not None
            assert event["index"] == len(message["content"]) - 1
            delta = event["delta"]
            match delta.pop("type"):
                case "text_delta":
                    open_block["text"] += delta["text"]
                case "thinking_delta":
                    open_block["thinking"] += delta["thinking"]
                case "signature_delta":
                    open_block["signature"] = delta["signature"]
                case "input_json_delta":
                    raw += delta["partial_json"]
        elif event["type"] == "content_block_stop":
            assert open_block is not None
            if raw:
                open_block["input"] = json.loads(raw)
            open_block = None
        else:
            assert (event["type"], open_block) == ("message_delta", None)
            message |= event["delta"] | {"usage": event["usage"]}
    return message


@settings(max_examples=300, deadline=None)
@given(streams(), st.booleans())
def test_streamed_equals_whole(
    stream: tuple[list[AnswerPart], list[Delta], FinishReason, str], show_thinking: bool
) -> None:
    whole, deltas, reason, stop = stream
    writer = MessageEventWriter(ENVELOPE, show_thinking=show_thinking, shown_id="r")
    frames = [writer.begin(Usage()), *(writer.deltas([delta]) for delta in deltas), writer.closing([USAGE])]
    message = joined(events_of(sse(writer.opening(), *frames)))

    text = "".join(part.text for part in whole if isinstance(part, TextPart))
    output = Delta(text=text, finish_reason=reason, stop=stop, parts=whole)
    body = whole_message(ENVELOPE, output, USAGE, show_thinking=show_thinking)
    assert message == json.loads(body)
    assert [block["type"] for block in message["content"]] == [
        {"text": "text", "reasoning": "thinking", "tool_call": "tool_use"}[part.__struct_config__.tag]  # type: ignore[index]
        for part in whole
    ]
    reasons = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
    assert message["stop_reason"] == ("stop_sequence" if stop else reasons[reason])
    assert message["stop_sequence"] == (stop or None)


def test_a_call_that_was_cut_keeps_what_is_whole() -> None:
    part = ToolCallPart(index=0, call_id="c", name="f", arguments='{"city": "Oslo", "unit": "cel')
    output = Delta(finish_reason="length", parts=[part])
    body = whole_message(ENVELOPE, output, USAGE, show_thinking=True)
    message = json.loads(body)
    assert message["content"][0]["input"] == {"city": "Oslo"}
    assert message["stop_reason"] == "max_tokens"


def test_events_have_ids_by_frame() -> None:
    writer = MessageEventWriter(ENVELOPE, show_thinking=True, shown_id="r")
    assert writer.opening() == []  # the counts of the prompt come with the first text
    assert numbered((0, writer.begin(USAGE))).startswith(b"id: 0.1\nevent: message_start\ndata: {")
    assert writer.begin(USAGE) == []
    data = numbered((3, writer.deltas([Delta(text="a", finish_reason="stop")])))
    assert [line for line in data.split(b"\n") if line.startswith(b"id")] == [
        b"id: 3.2",
        b"id: 3.1",
        b"id: 3.0",
    ]
