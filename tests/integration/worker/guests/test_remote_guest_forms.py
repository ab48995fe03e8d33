"""A leader, a remote guest and a false server: answers that have a form, in each server's own way."""

import json
from typing import Any

import pytest

from services.worker.guests.engine import GuestEngine
from shared.messages import Failed
from tests.integration.worker.guests.conftest import StartServer, make_guest, make_voice
from tests.kits.guests.false_server.scripts import Style
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, chat, finish_of, text_of

SCHEMA = {
    "type": "object",
    "properties": {
        "note": {"type": "string", "maxLength": 3},
        "state": {"enum": ["open", "closed"]},
        "rows": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "boolean"}},
    },
    "required": ["state", "rows"],
    "additionalProperties": False,
}
BY_SCHEMA: dict[str, Any] = {"kind": "json_schema", "definition": json.dumps(SCHEMA)}
ROOM = {"max_tokens": 200, "temperature": 0.0}


def guest_kit(bus: MemoryBus, engine: GuestEngine) -> Kit:
    return Kit(bus, engine, prefix_sharing="off")


@pytest.mark.parametrize("style", ["vllm", "llama.cpp"])
async def test_a_server_follows_a_schema(
    style: Style, memory_bus: MemoryBus, start_server: StartServer
) -> None:
    server = await start_server(style)
    engine = GuestEngine(make_guest(server), max_running=4, start_timeout_s=30.0)
    async with guest_kit(memory_bus, engine) as kit:
        frames = await kit.run(chat("r", sampling=ROOM, structured=BY_SCHEMA))
        assert finish_of(frames) == "stop"
        assert json.loads(text_of(frames))["state"] in ("open", "closed")
        assert ("\n" in text_of(frames)) == (style == "llama.cpp"), "white space is the server's"
        sent = server.bodies[-1]
        assert sent.get("json_schema") == (SCHEMA if style == "llama.cpp" else None)
        frames = await kit.run(
            chat("s", sampling=ROOM, structured={"kind": "choice", "choices": ["a b", "c"]})
        )
        assert text_of(frames) in ("a b", "c")


@pytest.mark.parametrize("style", ["vllm", "llama.cpp"])
async def test_a_server_that_leaves_the_form_is_left_before_anything_wrong_has_come(
    style: Style, memory_bus: MemoryBus, start_server: StartServer
) -> None:
    server = await start_server(style, voice=make_voice(style))
    engine = GuestEngine(make_guest(server), max_running=4, start_timeout_s=30.0)
    async with guest_kit(memory_bus, engine) as kit:
        server.voice.follows = False
        await kit.ask(chat("r", sampling=ROOM, structured=BY_SCHEMA))
        frames = await kit.end_of("r")
        failed = frames[-1]
        assert isinstance(failed, Failed)
        assert (failed.code, failed.resumable, failed.data["reason"]) == ("group_lost", True, "guest")
        assert "not of the form" in failed.message
        assert text_of(frames) == ""


async def test_what_a_server_has_no_grammar_for_is_refused_by_name(
    memory_bus: MemoryBus, start_server: StartServer
) -> None:
    server = await start_server("llama.cpp")
    engine = GuestEngine(make_guest(server), max_running=4, start_timeout_s=30.0)
    async with guest_kit(memory_bus, engine) as kit:
        failed = await kit.failure(chat("r", structured={"kind": "regex", "definition": "a+"}))
        assert (failed.data["reason"], failed.data["param"]) == ("guest_cannot", "structured")
