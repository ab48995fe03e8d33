"""A leader whose guest follows the forms of answers: what it is told, and what becomes of what it brings."""

import json
from typing import Any

import pytest

from services.worker.guests.engine import GuestEngine
from services.worker.guests.port import Ability, GuestFacts, GuestPart
from services.worker.null.model import END
from services.worker.rank_protocol.plan import Sampled
from shared.messages import Done, Failed
from tests.kits.guests.scripted import FORMED, ScriptedGuest
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, chat, finish_of, text_of

SCHEMA = {
    "type": "object",
    "properties": {"state": {"enum": ["open", "closed"]}, "count": {"type": "integer", "maximum": 9}},
    "required": ["state", "count"],
    "additionalProperties": False,
}
BY_SCHEMA: dict[str, Any] = {"structured": {"kind": "json_schema", "definition": json.dumps(SCHEMA)}}
ANY_NULLS = {"type": "object", "additionalProperties": {"type": "null"}}
KEYS: dict[str, Any] = {"kind": "json_schema", "definition": json.dumps(ANY_NULLS)}
TOOL = {"name": "weather", "parameters": json.dumps({"type": "object", "properties": {}})}
ROOM = {"max_tokens": 200}


def scripted(abilities: frozenset[Ability] = FORMED, *, by_itself: bool = True) -> ScriptedGuest:
    facts = GuestFacts(
        name="scripted 1", fingerprint="s", context_length=2048, vocab_size=257, abilities=abilities
    )
    return ScriptedGuest(facts=facts, by_itself=by_itself)


def guest_kit(bus: MemoryBus, guest: ScriptedGuest, *, reasons: bool = False) -> Kit:
    engine = GuestEngine(guest, max_running=8, start_timeout_s=5.0, reasons=reasons)
    return Kit(bus, engine, prefix_sharing="off")


async def test_an_answer_has_its_form_on_a_guest(memory_bus: MemoryBus) -> None:
    guest = scripted()
    async with guest_kit(memory_bus, guest) as kit:
        frames = await kit.run(chat("r", sampling={**ROOM, "n": 2}, **BY_SCHEMA))
        for choice in range(2):
            assert json.loads(text_of(frames, choice))["state"] in ("open", "closed")
            assert finish_of(frames, choice) == "stop"
        form = guest.opened[0].new.form
        assert form is not None
        assert form.structured is not None
        assert form.lark.startswith("start: %json {")
        await kit.all_free()


async def test_a_required_call_is_enforced_on_a_guest(memory_bus: MemoryBus) -> None:
    guest = scripted()
    async with guest_kit(memory_bus, guest) as kit:
        tools = {"tools": [TOOL], "choice": "required", "parallel": False}
        done = (await kit.run(chat("r", sampling=ROOM, tools=tools)))[-1]
        assert isinstance(done, Done)
        assert guest.opened[0].new.form is not None
        assert guest.opened[0].new.form.structured is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {"tools": [{**TOOL, "strict": True}]}}, "tools"),
        ({"tools": {"tools": [TOOL]}, **BY_SCHEMA}, "structured"),
    ],
)
async def test_calls_that_need_not_come_are_refused_where_they_must_have_a_form(
    memory_bus: MemoryBus, fields: dict[str, Any], param: str
) -> None:
    async with guest_kit(memory_bus, scripted()) as kit:
        failed = await kit.failure(chat("r", **fields))
        assert (failed.data["reason"], failed.data["param"]) == ("guest_cannot", param)


async def test_a_model_that_reasons_gets_no_form_on_a_guest(memory_bus: MemoryBus) -> None:
    async with guest_kit(memory_bus, scripted(), reasons=True) as kit:
        failed = await kit.failure(chat("r", **BY_SCHEMA))
        assert (failed.data["reason"], failed.data["param"]) == ("guest_cannot", "structured")


async def test_a_guest_that_knows_no_expressions_is_asked_for_none(memory_bus: MemoryBus) -> None:
    async with guest_kit(memory_bus, scripted(FORMED - {"grammar"})) as kit:
        failed = await kit.failure(chat("r", structured={"kind": "regex", "definition": "a+"}))
        assert (failed.data["reason"], failed.data["param"]) == ("guest_cannot", "structured")


async def test_a_token_against_the_form_does_not_come_and_the_answer_goes_on_elsewhere(
    memory_bus: MemoryBus,
) -> None:
    guest = scripted(by_itself=False)
    async with guest_kit(memory_bus, guest) as kit:
        await kit.ask(chat("r", sampling=ROOM, **BY_SCHEMA))
        await kit.until(lambda: bool(guest.sequences))
        bring_text(guest, '{"state": "op', "x")
        frames = await kit.end_of("r")
        failed = frames[-1]
        assert isinstance(failed, Failed)
        assert (failed.code, failed.resumable, failed.data["reason"]) == ("group_lost", True, "guest")
        assert "not of the form" in failed.message
        assert text_of(frames).startswith('{"state": "')
        assert "x" not in text_of(frames)


async def test_an_end_before_the_form_may_end_is_no_end(memory_bus: MemoryBus) -> None:
    guest = scripted(by_itself=False)
    async with guest_kit(memory_bus, guest) as kit:
        await kit.ask(chat("r", sampling=ROOM, **BY_SCHEMA))
        await kit.until(lambda: bool(guest.sequences))
        bring_text(guest, '{"state": "open"')
        guest.send(part_of(guest, [END]))
        failed = (await kit.end_of("r"))[-1]
        assert isinstance(failed, Failed)
        assert (failed.code, failed.data["reason"]) == ("group_lost", "guest")


async def test_a_key_that_comes_twice_is_refused(memory_bus: MemoryBus) -> None:
    guest = scripted(by_itself=False)
    async with guest_kit(memory_bus, guest) as kit:
        await kit.ask(chat("r", sampling=ROOM, structured=KEYS))
        await kit.until(lambda: bool(guest.sequences))
        bring_text(guest, '{"a": null, "a": ')
        failed = (await kit.end_of("r"))[-1]
        assert isinstance(failed, Failed)
        assert "a key comes twice" in failed.message


def part_of(guest: ScriptedGuest, tokens: list[int]) -> GuestPart:
    seq_id = max(guest.sequences)
    return GuestPart(seq_id=seq_id, sampled=[Sampled(seq_id=seq_id, token_id=one) for one in tokens])


def bring_text(guest: ScriptedGuest, *texts: str) -> None:
    for text in texts:
        guest.send(part_of(guest, list(text.encode())))
