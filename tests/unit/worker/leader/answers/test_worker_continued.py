"""Answers that go on from a message of the assistant's, through a leader with the null engine."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from services.worker.model_files.load_model import load_model
from services.worker.model_files.model import Model
from services.worker.null.engine import NullEngine
from shared.codec import pack_tokens, unpack_tokens
from shared.messages import AnyFrame, ChatMessage, Done, SessionRef, Tokens, ToolCall, ToolCallPart
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import DictStore, Kit, chat, finish_of, text_of, tokens_of

USER = ChatMessage(role="user", content="Say something.")
SAID = "The weather is remembered in the Garden, extraordinarily often; 7 times — naïve ☕ words.\n\nEnd"
TOOL = {
    "name": "look",
    "parameters": json.dumps(
        {"type": "object", "properties": {"where": {"enum": ["garden", "harbour"]}}, "required": ["where"]}
    ),
    "strict": True,
}


@functools.cache
def demo() -> Model:
    return load_model(Path("models/demo"))


def engine() -> NullEngine:
    """An engine that says SAID, as the demo model's tokens."""
    model = demo()
    tokens = model.tokenizer.encode(SAID, add_special_tokens=False)
    size = model.tokenizer.vocab_size
    return NullEngine(step_delay_s=0.0, tokens=tokens, num_blocks=256, vocab_size=size, context_length=1024)


def begun(content: str = "", **fields: Any) -> ChatMessage:
    return ChatMessage(role="assistant", content=content, **fields)


def continued(request_id: str, last: ChatMessage, *before: ChatMessage, **fields: Any) -> Any:
    messages = [*(before or (USER,)), last]
    return chat(request_id, messages=messages, continues=True, **fields)


def usage_of(frames: list[AnyFrame]) -> tuple[int, int]:
    done = frames[-1]
    assert isinstance(done, Done), done
    return done.usage.prompt_tokens, done.usage.completion_tokens


async def test_an_answer_goes_on_behind_the_last_message(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus, engine(), model=demo()) as kit:
        frames = await kit.run(continued("a", begun("The weather is "), sampling={"max_tokens": 5}))
        prompt = await kit.run(chat("p", messages=[USER], sampling={"max_tokens": 1}))
        assert not text_of(frames).startswith("The weather")
        text = demo().tokenizer.encode("The weather is ", add_special_tokens=False)
        assert usage_of(frames) == (usage_of(prompt)[0] + len(text), 5)
        assert finish_of(frames) == "length"


async def test_a_seam_inside_a_token_is_healed(memory_bus: MemoryBus) -> None:
    """Text and tokens of both parts are those of a text; the first token may reach over the seam."""
    async with Kit(memory_bus, engine(), model=demo()) as kit:
        for cut in range(1, len(SAID)):
            given, request_id = SAID[:cut], f"c{cut}"
            asked = continued(request_id, begun(given), sampling={"max_tokens": 6}, prompt_ids=True)
            frames = await kit.run(asked)
            deltas = [delta for frame in frames if isinstance(frame, Tokens) for delta in frame.deltas]
            prompt = [one for delta in deltas for one in unpack_tokens(delta.prompt_token_ids)]
            whole = demo().tokenizer.decode(prompt + tokens_of(frames))
            assert whole.endswith(given + text_of(frames))
            assert usage_of(frames)[1] == 6


async def test_tokens_that_only_repeat_do_not_count(memory_bus: MemoryBus) -> None:
    """One token is one token of new text, though the first may only spell the end of the given text again."""
    repeated = 0
    async with Kit(memory_bus, engine(), model=demo()) as kit:
        for cut in range(10, 60):
            frames = await kit.run(continued(f"c{cut}", begun(SAID[:cut]), sampling={"max_tokens": 1}))
            assert usage_of(frames)[1] == 1
            tokens = tokens_of(frames)
            repeated += len(tokens) > 1
            assert len(tokens) > 1 or text_of(frames) or demo().tokenizer.token_bytes(tokens[0])[-1] >= 0x80
    assert repeated


async def test_a_continued_answer_is_resumed_at_any_token(memory_bus: MemoryBus) -> None:
    asked = {"sampling": {"max_tokens": 8, "n": 1}}
    async with Kit(memory_bus, engine(), model=demo()) as kit:
        for cut in (21, 27, 33):
            frames = await kit.run(continued(f"w{cut}", begun(SAID[:cut]), **asked))
            whole, tokens = text_of(frames), tokens_of(frames)
            for at in range(1, len(tokens)):
                resume = {"token_ids": [pack_tokens(tokens[:at])], "next_seq": 5}
                again = await kit.run(
                    continued(f"r{cut}-{at}", begun(SAID[:cut]), resume=resume, attempt=1, **asked)
                )
                assert tokens[:at] + tokens_of(again) == tokens
                assert whole.endswith(text_of(again))
                assert usage_of(again) == usage_of(frames)


async def test_a_schema_holds_for_the_whole(memory_bus: MemoryBus) -> None:
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["fox", "hound"]}, "legs": {"type": "integer", "maximum": 9}},
        "required": ["kind", "legs"],
        "additionalProperties": False,
    }
    asked = {"structured": {"kind": "json_schema", "definition": json.dumps(schema)}}
    async with Kit(memory_bus, engine(), model=demo()) as kit:
        for cut in range(29):
            given = '{"kind": "hound", "legs": 4}'[:cut]
            last = begun(given)
            frames = await kit.run(continued(f"c{cut}", last, sampling={"max_tokens": 64}, **asked))
            assert set(json.loads(given + text_of(frames))) == {"kind", "legs"}
            assert finish_of(frames) == "stop"
        failed = await kit.failure(continued("b", begun('{"sort'), sampling={"max_tokens": 64}, **asked))
        assert (failed.code, failed.data["param"]) == ("invalid_request", "messages")


@pytest.mark.parametrize("choice", ["required", "auto"])
async def test_a_call_goes_on_inside_its_arguments(memory_bus: MemoryBus, choice: str) -> None:
    tools = {"tools": [TOOL], "choice": choice, "parallel": False}
    async with Kit(memory_bus, engine(), model=demo()) as kit:
        for cut in range(len('{"where": "harbour"}') + 1):
            arguments = '{"where": "harbour"}'[:cut]
            call = ToolCall(call_id="call_7", name="look", arguments=arguments)
            last = ChatMessage(role="assistant", content="", tool_calls=[call])
            frames = await kit.run(continued(f"c{cut}", last, tools=tools, sampling={"max_tokens": 64}))
            parts = [
                part for f in frames if isinstance(f, Tokens) for delta in f.deltas for part in delta.parts
            ]
            calls = [part for part in parts if isinstance(part, ToolCallPart)]
            assert len(calls) == len(parts)
            assert [(one.index, one.call_id, one.name) for one in calls if one.name] == [
                (0, "call_7", "look")
            ]
            new = "".join(part.arguments for part in calls)
            assert json.loads(arguments + new)["where"] in ("garden", "harbour")
            assert finish_of(frames) == "tool_calls"


async def test_the_session_keeps_one_message(memory_bus: MemoryBus) -> None:
    session = SessionRef(session_id="s")
    store = DictStore()
    async with Kit(memory_bus, engine(), model=demo(), store=store) as kit:
        asked = continued("a", begun("The wea"), session=session, sampling={"max_tokens": 4})
        frames = await kit.run(asked)
        (record,) = store.records.values()
        assert [one.content for one in record.messages] == [USER.content, "The wea" + text_of(frames)]
        again = ChatMessage(role="user", content="And then?")
        await kit.run(chat("b", messages=[again], session=session, sampling={"max_tokens": 2}))
        (record,) = store.records.values()
        assert [one.role for one in record.messages] == ["user", "assistant", "user", "assistant"]
        assert record.recent[0].size == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [USER]}, "messages"),
        ({"messages": [begun("x")]}, "messages"),
        ({"prompt": "x"}, "messages"),
        ({"messages": [USER, begun("x")], "truncate_prompt_tokens": 4}, "truncate_prompt_tokens"),
        ({"messages": [USER, begun(tool_calls=[{"call_id": "c", "name": "look"}])]}, "tools"),
    ],
)
async def test_what_cannot_be_continued_is_refused(
    memory_bus: MemoryBus, fields: dict[str, Any], param: str
) -> None:
    async with Kit(memory_bus, engine(), model=demo()) as kit:
        failed = await kit.failure(chat("a", continues=True, **fields))
        assert (failed.code, failed.data["param"]) == ("invalid_request", param)


async def test_a_prompt_may_end_with_its_messages(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus, engine(), model=demo()) as kit:
        closed = await kit.run(chat("a", messages=[USER], sampling={"max_tokens": 1}))
        bare = await kit.run(chat("b", messages=[USER], generation_prompt=False, sampling={"max_tokens": 1}))
        assert usage_of(bare)[0] < usage_of(closed)[0]
