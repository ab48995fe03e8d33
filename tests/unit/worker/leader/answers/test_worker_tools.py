"""Tool calls through a leader with the null engine: enforced, refused, the same after a loss."""

import json
from typing import Any

import pytest

from shared.codec import pack_tokens
from shared.messages import AnswerPart, Done, TextPart, Tokens, ToolCallPart
from shared.messages.answer_parts import join_parts
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, chat, finish_of, tokens_of

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rom", "Wien"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {"name": "weather", "parameters": json.dumps(SCHEMA), "strict": True}
NOW = {"name": "now", "parameters": '{"type": "object", "properties": {}, "additionalProperties": false}'}
NOT = '{"properties": {"a": {"not": {}}}}'
SAID = [{"role": "user", "content": "hello"}]


def asking(name: str, choice: str = "auto", **fields: Any) -> Any:
    tools = {"tools": [WEATHER, NOW], "choice": choice, **fields.pop("use", {})}
    return chat(name, messages=fields.pop("messages", SAID), tools=tools, **fields)


def parts_of(frames: list[Any]) -> list[AnswerPart]:
    deltas = [delta for frame in frames if isinstance(frame, Tokens) for delta in frame.deltas]
    return join_parts(
        part
        for delta in deltas
        for part in delta.parts or ([TextPart(text=delta.text)] if delta.text else [])
    )


@pytest.mark.parametrize("use", [{"choice": "named", "name": "weather"}, {"parallel": False}])
async def test_a_required_call_comes_and_another_group_goes_on_with_it(
    memory_bus: MemoryBus, use: dict[str, Any]
) -> None:
    asked: dict[str, Any] = {"choice": "required", "use": use, "sampling": {"max_tokens": 200}}
    async with Kit(memory_bus) as kit:
        frames = await kit.run(asking("r", **asked))
        (call,) = parts_of(frames)
        assert isinstance(call, ToolCallPart)
        assert call.call_id.startswith("call_")
        assert call.name in ("weather", "now")
        assert json.loads(call.arguments) == {} or set(json.loads(call.arguments)) == {"city", "days"}
        assert finish_of(frames) == "tool_calls"
        done = frames[-1]
        assert isinstance(done, Done)
        assert done.usage.reasoning_tokens == 0
        tokens = tokens_of(frames)
    for at in range(1, len(tokens), 7):
        async with Kit(memory_bus) as kit:
            resume = {"token_ids": [pack_tokens(tokens[:at])], "next_seq": 5}
            again = await kit.run(asking("r", resume=resume, attempt=1, **asked))
            assert tokens[:at] + tokens_of(again) == tokens
            rest = [part for part in parts_of(again) if isinstance(part, ToolCallPart)]
            assert call.arguments.endswith("".join(part.arguments for part in rest))


@pytest.mark.parametrize("use", [{"choice": "named", "name": "weather"}, {}])
async def test_a_required_call_that_is_cut_is_no_text(memory_bus: MemoryBus, use: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"choice": "required", "use": use}
    async with Kit(memory_bus) as kit:
        whole = parts_of(await kit.run(asking("r", sampling={"max_tokens": 200}, **asked)))
        first = whole[0]
        assert isinstance(first, ToolCallPart)
        for count in range(1, 60):
            frames = await kit.run(asking(f"r{count}", sampling={"max_tokens": count}, **asked))
            parts = parts_of(frames)
            assert not [part for part in parts if isinstance(part, TextPart)], count
            if parts:
                assert isinstance(parts[0], ToolCallPart)
                assert first.arguments.startswith(parts[0].arguments)
            assert finish_of(frames) in {"length", "tool_calls"}


async def test_a_session_keeps_the_call_and_goes_on_with_its_result(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus) as kit:
        session = {"session_id": "s"}
        asked: dict[str, Any] = {"use": {"parallel": False}, "sampling": {"max_tokens": 200}}
        (call,) = parts_of(await kit.run(asking("one", "required", session=session, **asked)))
        assert isinstance(call, ToolCallPart)
        result = {"role": "tool", "content": "sunny", "tool_call_id": call.call_id}
        few = {"max_tokens": 5}
        frames = await kit.run(asking("two", messages=[result], session=session, sampling=few))
        assert finish_of(frames) == "length"
        failed = await kit.failure(asking("three", messages=[result], sampling=few))
        assert failed.data["param"] == "messages"


async def test_an_answer_that_may_call_a_tool_is_free(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus) as kit:
        frames = await kit.run(asking("a", sampling={"max_tokens": 20}))
        assert [type(part) for part in parts_of(frames)] == [TextPart]
        assert finish_of(frames) == "length"
        await kit.all_free()


@pytest.mark.parametrize(
    ("fields", "param", "data"),
    [
        ({"use": {"tools": [NOW, NOW]}}, "tools", {"index": 1}),
        ({"choice": "named", "use": {"name": "nothing"}}, "tools", {}),
        (
            {"use": {"tools": [{"name": "f", "strict": True, "parameters": NOT}]}},
            "tools",
            {"keyword": "not", "pointer": "/properties/a", "index": 0},
        ),
        ({"choice": "required", "sampling": {"ignore_eos": True}}, "ignore_eos", {}),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "c"}]}, "messages", {"index": 0}),
        ({"template": {"variables": '{"tools": 1}'}}, "template", {"variable": "tools"}),
    ],
)  # fmt: skip
async def test_what_cannot_be_is_refused_by_its_field(
    memory_bus: MemoryBus, fields: dict[str, Any], param: str, data: dict[str, Any]
) -> None:
    async with Kit(memory_bus) as kit:
        failed = await kit.failure(asking("f", **fields))
        assert failed.code == "invalid_request"
        assert failed.data == {"param": param, **data}
