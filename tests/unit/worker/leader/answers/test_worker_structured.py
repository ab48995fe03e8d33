"""Structured output through a leader with the null engine: enforced, refused, the same after a loss."""

import asyncio
import json
import re
import threading
from typing import Any

import pytest

from services.worker.leader.intake.grammar_options import GrammarOptions
from shared.codec import pack_tokens
from shared.errors import InvalidRequest, Overloaded, RateLimited
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, chat, finish_of, text_of, tokens_of

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["fox", "dog"]}, "legs": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["kind", "legs"],
    "additionalProperties": False,
}


def structured(
    kind: str, definition: str = "", choices: tuple[str, ...] = (), **fields: object
) -> dict[str, Any]:
    return {"structured": {"kind": kind, "definition": definition, "choices": choices}, **fields}


@pytest.mark.parametrize(
    ("asked", "form"),
    [
        (structured("json_schema", json.dumps(SCHEMA)), r'\{"kind": "(fox|dog)", "legs": [1-9]\}'),
        (structured("regex", "[a-c]{2}-[0-9]{3}"), "[a-c]{2}-[0-9]{3}"),
        (structured("choice", choices=("yes", "no, never")), "yes|no, never"),
        (structured("grammar", 'start: "a" "b"+ /[c-e]/'), "ab+[c-e]"),
    ],
)
async def test_answers_have_the_form_that_was_asked(
    memory_bus: MemoryBus, asked: dict[str, Any], form: str
) -> None:
    async with Kit(memory_bus) as kit:
        for name in ("first", "from-the-cache"):
            frames = await kit.run(chat(name, prompt="x", sampling={"max_tokens": 64}, **asked))
            assert re.fullmatch(form, text_of(frames)), text_of(frames)
            assert finish_of(frames) == "stop"
        await kit.all_free()


async def test_an_answer_that_is_resumed_at_any_token_is_the_same(memory_bus: MemoryBus) -> None:
    asked = structured("json_schema", json.dumps(SCHEMA), sampling={"max_tokens": 64})
    async with Kit(memory_bus) as kit:
        frames = await kit.run(chat("whole", prompt="x", **asked))
        whole, tokens = text_of(frames), tokens_of(frames)
        for at in range(1, len(tokens)):
            resume = {"token_ids": [pack_tokens(tokens[:at])], "next_seq": 5}
            again = tokens_of(await kit.run(chat(f"at{at}", prompt="x", resume=resume, attempt=1, **asked)))
            assert tokens[:at] + again == tokens
        assert json.loads(whole)["legs"] > 0
        other = {"token_ids": [pack_tokens(list(b"[1"))], "next_seq": 5}
        failed = await kit.failure(chat("other", prompt="x", resume=other, attempt=1, **asked))
        assert (failed.code, failed.data["param"]) == ("invalid_request", "resume")


async def test_what_is_refused_names_the_field_and_the_keyword(memory_bus: MemoryBus) -> None:
    schema = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}
    async with Kit(memory_bus) as kit:
        failed = await kit.failure(chat("a", prompt="x", **structured("json_schema", json.dumps(schema))))
        assert failed.code == "invalid_request"
        assert failed.data == {"param": "structured", "keyword": "uniqueItems", "pointer": "/properties/tags"}
        failed = await kit.failure(chat("b", prompt="x", **structured("regex", "x" * 10_000)))
        assert failed.data["param"] == "structured"
        endless = chat("c", prompt="x", sampling={"ignore_eos": True}, **structured("regex", "x"))
        assert (await kit.failure(endless)).data["param"] == "ignore_eos"
        assert text_of(await kit.run(chat("d", prompt="x")))


async def test_a_grammar_that_takes_too_long_is_refused_and_others_are_served(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus, grammars=GrammarOptions(grammar_timeout_s=0.05)) as kit:
        released = threading.Event()

        def slow(*_: object) -> object:
            while not released.is_set():
                pass
            raise AssertionError("nothing waits for this any more")

        try:
            compiler = kit.leader.parts.grammars
            overrun = asyncio.create_task(compiler.compile("one", b"slow", slow, "tools"))  # type: ignore[arg-type]
            with pytest.raises(Exception, match=r"not compiled within 0.05 s of CPU time \(RYZ_GRAMMAR_T"):
                await overrun
            with pytest.raises(Exception, match="not compiled"):  # known to be slow: refused at once
                await compiler.compile("other", b"slow", slow, "tools")  # type: ignore[arg-type]
            with pytest.raises(RateLimited, match="of this tenant"):  # its thread still runs
                await compiler.compile("one", b"second", slow, "tools")  # type: ignore[arg-type]
            asked = structured("choice", choices=("yes",))
            assert text_of(await kit.run(chat("other", prompt="x", tenant="other", **asked))) == "yes"
            with pytest.raises(InvalidRequest, match="not compiled"):
                await compiler.compile("two", b"third", slow, "tools")  # type: ignore[arg-type]
            with pytest.raises(Overloaded):  # by other tenants
                await compiler.compile("other", b"fourth", slow, "tools")  # type: ignore[arg-type]
        finally:
            released.set()
