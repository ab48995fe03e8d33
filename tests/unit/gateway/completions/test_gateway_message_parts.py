"""The chunks of a stream, folded together, are the message of the whole answer, for any parts."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from services.gateway.answering.envelope import Envelope
from services.gateway.formats.chat.answer import ChatChunkWriter, chat_body, fold_deltas
from shared.client import Completion
from shared.client.generation.results import gather
from shared.messages import (
    AnswerPart,
    Delta,
    ReasoningPart,
    TextPart,
    Tokens,
    ToolCallPart,
    Usage,
)
from tests.kits.gateway.written_events import sse

HEAD = Envelope(answer_id="chatcmpl-r1", created_s=1_700_000_000, model="demo", fingerprint="abc")
TEXTS = st.text(min_size=1, max_size=6)


@st.composite
def answers(draw: st.DrawFn) -> list[list[AnswerPart]]:
    """The parts of an answer, in groups of those that one delta brings."""
    parts: list[AnswerPart] = [ReasoningPart(text=text) for text in draw(st.lists(TEXTS, max_size=3))]
    parts += [TextPart(text=text) for text in draw(st.lists(TEXTS, max_size=3))]
    for index in range(draw(st.integers(0, 3))):
        parts.append(ToolCallPart(index=index, call_id=f"call_{index}", name=draw(TEXTS)))
        parts += [ToolCallPart(index=index, arguments=text) for text in draw(st.lists(TEXTS, max_size=4))]
    groups: list[list[AnswerPart]] = []
    while parts:
        size = draw(st.integers(1, len(parts)))
        groups.append(parts[:size])
        parts = parts[size:]
    return groups


def frames_of(groups: list[list[AnswerPart]]) -> list[Tokens]:
    deltas = [
        Delta(text="".join(part.text for part in parts if isinstance(part, TextPart)), parts=parts)
        for parts in groups
    ]
    deltas.append(Delta(finish_reason="stop"))
    return [
        Tokens(request_id="r1", attempt=0, seq=seq, deltas=[delta]) for seq, delta in enumerate(deltas, 1)
    ]


def chunks_of(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(event[6:]) for event in data.split(b"\n\n") if event and not event.endswith(b"[DONE]")]


@given(answers())
def test_a_stream_is_the_whole_answer(groups: list[list[AnswerPart]]) -> None:
    frames = frames_of(groups)
    completion = Completion("r1", "", "g1", gather(frames, 1), Usage(completion_tokens=3, reasoning_tokens=2))
    whole = json.loads(chat_body(HEAD, [completion], False))
    ChatCompletion.model_validate(whole, strict=True)
    writer = ChatChunkWriter(HEAD, n=1, usage=False, logprobs=False)
    chunks = chunks_of(sse(writer.opening(), *(writer.deltas(frame.deltas) for frame in frames)))
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
        assert chunk["system_fingerprint"] == whole["system_fingerprint"] == "abc"
    assert fold_deltas(chunk["choices"][0]["delta"] for chunk in chunks) == whole["choices"][0]["message"]
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}


def test_the_first_chunk_of_a_call_names_it_and_later_ones_do_not() -> None:
    writer = ChatChunkWriter(HEAD, n=1, usage=False, logprobs=False)
    parts: list[AnswerPart] = [
        ToolCallPart(index=0, call_id="call_1", name="f", arguments="{"),
        ToolCallPart(index=0, arguments="}"),
    ]
    first, second, end = chunks_of(sse(writer.deltas([Delta(parts=parts, finish_reason="tool_calls")])))
    assert first["choices"][0]["delta"] == {
        "tool_calls": [
            {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{"}}
        ]
    }
    assert second["choices"][0]["delta"] == {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}
    assert end["choices"][0]["finish_reason"] == "tool_calls"


def test_content_is_null_beside_calls_only() -> None:
    calls = fold_deltas([{"tool_calls": [{"index": 0, "id": "c", "type": "function",
                                          "function": {"name": "f", "arguments": ""}}]}])  # fmt: skip
    assert calls["content"] is None
    assert fold_deltas([])["content"] == ""
