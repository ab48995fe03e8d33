"""Answers and chunks have OpenAI's shapes: the models of the official SDK accept them."""

import json
from typing import Any

import msgspec
from openai.types import Completion as Completed
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from services.gateway.admission.errors.refusals import answer_for, error_event
from services.gateway.answering.envelope import Envelope
from services.gateway.answering.events.ports import DONE
from services.gateway.formats.chat.answer import ChatChunkWriter, chat_body
from services.gateway.formats.text.answer import CompletionChunkWriter, completion_body
from shared.client import Choice, Completion
from shared.errors import GroupLost
from shared.messages import Delta, TokenLogprob, TopLogprob, Usage
from tests.kits.gateway.written_events import sse

CHAT = Envelope(answer_id="chatcmpl-r1", created_s=1_700_000_000, model="demo", session_id="s-1")
TEXT = Envelope(answer_id="cmpl-r1", created_s=1_700_000_000, model="demo")
USAGE = Usage(prompt_tokens=5, completion_tokens=2, cached_tokens=4)
LOGPROBS = [
    TokenLogprob(
        token_id=1,
        token="é",
        logprob=-0.5,
        offset=0,
        top=[
            TopLogprob(token_id=1, token="é", logprob=-0.5),
            TopLogprob(token_id=2, token="e", logprob=float("-inf")),
        ],
    ),
    TokenLogprob(token_id=3, token="t", logprob=-1.0, offset=1),
]


def events(raw: bytes) -> list[Any]:
    parts = raw.decode().split("\n\n")
    assert parts.pop() == ""
    assert all(part.startswith("data: ") for part in parts)
    return [part[6:] if part == "data: [DONE]" else json.loads(part[6:]) for part in parts]


def part(*choices: Choice) -> Completion:
    return Completion(request_id="r1", session_id="", group="g0", choices=list(choices), usage=USAGE)


def test_a_chat_answer() -> None:
    hello = Choice(0, text='Hello "you"', finish_reason="stop", logprobs=LOGPROBS)
    raw = chat_body(CHAT, [part(hello, Choice(1, text="Bye", finish_reason="length"))], logprobs=True)
    parsed = ChatCompletion.model_validate_json(raw, strict=True)
    assert [(c.message.content, c.finish_reason) for c in parsed.choices] == [
        ('Hello "you"', "stop"),
        ("Bye", "length"),
    ]
    first = parsed.choices[0].logprobs
    assert first is not None
    assert first.content is not None
    assert (first.content[0].bytes, first.content[0].top_logprobs[1].logprob) == ([0xC3, 0xA9], -9999.0)
    assert parsed.usage is not None
    assert (parsed.usage.total_tokens, parsed.usage.prompt_tokens) == (7, 5)
    assert json.loads(raw)["session_id"] == "s-1"


def test_a_text_answer_numbers_choices_over_the_prompts_and_sums_the_usage() -> None:
    parts = [
        part(
            Choice(0, text=f"ét{prompt}", finish_reason="stop", logprobs=LOGPROBS),
            Choice(1, text=f"{prompt}1", finish_reason="stop"),
        )
        for prompt in range(2)
    ]
    raw = completion_body(TEXT, parts, logprobs=True)
    parsed = Completed.model_validate_json(raw, strict=True)
    assert [choice.text for choice in parsed.choices] == ["ét0", "01", "ét1", "11"]
    logprobs = parsed.choices[0].logprobs
    assert logprobs is not None
    assert (logprobs.tokens, logprobs.text_offset) == (["é", "t"], [0, 1])
    assert logprobs.top_logprobs == [{"é": -0.5, "e": -9999.0}, {"t": -1.0}]
    assert parsed.usage is not None
    assert parsed.usage.total_tokens == 14
    assert "session_id" not in json.loads(raw)


def test_chat_chunks_start_with_the_role_and_end_with_the_reason() -> None:
    writer = ChatChunkWriter(CHAT, n=2, usage=True, logprobs=False)
    raw = sse(
        writer.opening(),
        writer.deltas([Delta(text='a"\n'), Delta(choice=1, text="b", finish_reason="length")]),
        writer.deltas([Delta(finish_reason="stop")]),
        writer.closing([USAGE]),
    )
    *chunks, done = events(raw)
    assert done == "[DONE]"
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    assert chunks[0]["session_id"] == "s-1"
    assert all("session_id" not in chunk for chunk in chunks[1:])
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["total_tokens"]) == ([], 7)
    seen = [
        (choice["index"], choice["delta"], choice["finish_reason"])
        for chunk in chunks
        for choice in chunk["choices"]
    ]
    role = {"role": "assistant", "content": "", "refusal": None}
    assert seen == [
        (0, role, None),
        (1, role, None),
        (0, {"content": 'a"\n'}, None),
        (1, {"content": "b"}, None),
        (1, {}, "length"),
        (0, {}, "stop"),
    ]


def test_chat_chunks_without_usage_have_none_and_logprobs_travel_with_their_text() -> None:
    writer = ChatChunkWriter(CHAT, n=1, usage=False, logprobs=True)
    raw = sse(writer.deltas([Delta(text="ét", logprobs=LOGPROBS)]))
    (chunk,) = events(raw)
    assert "usage" not in chunk
    parsed = ChatCompletionChunk.model_validate(chunk, strict=True)
    logprobs = parsed.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [entry.token for entry in logprobs.content] == ["é", "t"]
    assert writer.closing([USAGE]) == [DONE]


def test_text_chunks_keep_their_offsets_and_skip_empty_deltas() -> None:
    envelope = Envelope(answer_id="cmpl-r1", created_s=1, model="demo", session_id="s-2")
    writer = CompletionChunkWriter(envelope, prompts=2, n=1, usage=False, logprobs=True)
    assert writer.opening() == []
    raw = sse(writer.deltas([Delta(text="ét", logprobs=LOGPROBS)], prompt=1))
    raw += sse(writer.deltas([Delta(text="", token_ids=b"\1\0\0\0")], prompt=1))
    last = msgspec.structs.replace(LOGPROBS[1], offset=2)
    raw += sse(writer.deltas([Delta(text="t", logprobs=[last], finish_reason="stop")], prompt=1))
    first, second = events(raw)
    assert (first["session_id"], first["choices"][0]["index"]) == ("s-2", 1)
    assert "session_id" not in second
    assert second["choices"][0]["logprobs"]["text_offset"] == [2]
    Completed.model_validate(second, strict=True)
    assert second["choices"][0]["finish_reason"] == "stop"


def test_a_failure_in_a_stream_is_one_event_with_openais_error() -> None:
    (event,) = events(error_event(answer_for(GroupLost("group g1 is gone; send the request again"))))
    assert event["error"]["code"] == "group_lost"
