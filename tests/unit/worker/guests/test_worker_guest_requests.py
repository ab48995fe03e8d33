"""What a leader refuses because of its guest, and how answers and sessions change engines."""

import dataclasses
from typing import Any

import pytest

from services.worker.guests.engine import GuestEngine
from services.worker.guests.port import GuestFacts
from services.worker.model_files.sampling_defaults import parse_sampling
from services.worker.null.model import null_model
from shared import codec, subjects
from shared.bus.api import Message
from shared.codec import pack_tokens
from shared.guests.needs import guest_fingerprint, is_guest
from shared.messages import Accepted, Done, Heartbeat
from tests.kits.guests.scripted import ABLE, LETTERS, ScriptedGuest
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import DictStore, Kit, chat, text_of, tokens_of


def scripted(**facts: Any) -> ScriptedGuest:
    given: dict[str, Any] = {
        "name": "scripted 1",
        "fingerprint": "demo on scripted",
        "context_length": 2048,
        "vocab_size": 257,
    }
    return ScriptedGuest(facts=GuestFacts(**{**given, "abilities": ABLE, **facts}), by_itself=True)


def guest_kit(
    bus: MemoryBus, guest: ScriptedGuest | None = None, *, reasons: bool = False, **options: Any
) -> Kit:
    engine = GuestEngine(guest or scripted(), max_running=8, start_timeout_s=5.0, reasons=reasons)
    return Kit(bus, engine, prefix_sharing="off", **options)


TOOL = {"name": "weather"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"sampling": {"seed": 7}}, "seed"),
        ({"sampling": {"top_k": 3}}, "top_k"),
        ({"sampling": {"min_p": 0.2}}, "min_p"),
        ({"sampling": {"presence_penalty": 1.0}}, "presence_penalty"),
        ({"sampling": {"repetition_penalty": 1.2}}, "repetition_penalty"),
        ({"sampling": {"logit_bias": {5: 2.0}}}, "logit_bias"),
        ({"sampling": {"ignore_eos": True}}, "ignore_eos"),
        ({"sampling": {"prompt_logprobs": 1}}, "prompt_logprobs"),
        ({"structured": {"kind": "json_object"}}, "structured"),
        ({"tools": {"tools": [TOOL], "choice": "required"}}, "tools"),
        ({"embedding": {}, "prompt": "x"}, "embedding"),
    ],
)
async def test_what_the_guest_cannot_do_is_refused_by_name(
    memory_bus: MemoryBus, fields: dict[str, Any], param: str
) -> None:
    guest = scripted()
    async with guest_kit(memory_bus, guest) as kit:
        failed = await kit.failure(chat("r", **fields))
        assert (failed.code, failed.data["reason"], failed.data["param"]) == (
            "invalid_request", "guest_cannot", param
        )  # fmt: skip
        assert "scripted 1" in failed.message
        assert guest.opened == []
        await kit.all_free()


async def test_what_it_can_do_is_served(memory_bus: MemoryBus) -> None:
    async with guest_kit(memory_bus) as kit:
        frames = await kit.run(chat("r", sampling={"logprobs": 1, "seed": 5, "seed_given": False}))
        accepted, done = frames[0], frames[-1]
        assert isinstance(accepted, Accepted)
        assert isinstance(done, Done)
        assert (accepted.resumed, done.resumed) == ("", "")
        assert is_guest(accepted.fingerprint)
        assert len(text_of(frames)) == 16


async def test_tools_that_the_model_may_call_are_served_without_the_grammar_that_helps(
    memory_bus: MemoryBus,
) -> None:
    async with guest_kit(memory_bus) as kit:
        frames = await kit.run(chat("r", tools={"tools": [TOOL]}))
        assert isinstance(frames[-1], Done)


async def test_defaults_of_the_model_that_the_guest_cannot_take_are_left_out(memory_bus: MemoryBus) -> None:
    guest = scripted()
    model = dataclasses.replace(null_model("demo", 2048), sampling=parse_sampling("temperature=0.5,top_k=20"))
    async with guest_kit(memory_bus, guest, model=model) as kit:
        accepted = (await kit.run(chat("r")))[0]
        assert isinstance(accepted, Accepted)
        assert accepted.sampling is not None
        assert (accepted.sampling.temperature, accepted.sampling.top_k) == (0.5, None)
        assert guest.opened[0].new.sampling.top_k == 0


async def test_heartbeats_and_status_tell_the_guest_and_what_it_lacks(memory_bus: MemoryBus) -> None:
    beats: list[Heartbeat] = []

    async def hear(message: Message) -> None:
        beats.append(codec.decode(message.data, Heartbeat))

    await memory_bus.subscribe(subjects.HEARTBEAT_ALL, hear)
    async with guest_kit(memory_bus) as kit:
        await kit.until(lambda: bool(beats) and beats[-1].guest is not None)
        guest = beats[-1].guest
        assert guest is not None
        assert guest.name == "scripted 1"
        assert {"seed", "grammar", "rebuilt_state"} <= set(guest.lacks)
        assert not ABLE & set(guest.lacks)
        assert beats[-1].model.fingerprint == guest_fingerprint("demo on scripted")
        detail = kit.leader.detail()["guest"]
        assert detail == {"name": "scripted 1", "can": sorted(ABLE), "lacks": guest.lacks}


def resume_of(text: str, fingerprint: str, **fields: Any) -> dict[str, Any]:
    return {
        "token_ids": [pack_tokens(list(text.encode()))],
        "next_seq": 2,
        "fingerprint": fingerprint,
        **fields,
    }


@pytest.mark.parametrize(
    ("fingerprint", "deterministic", "resumed"),
    [
        ("null/fp32", True, "text"),
        (f"{guest_fingerprint('demo on scripted')}/guest", True, ""),
        (f"{guest_fingerprint('demo on scripted')}/guest", False, "text"),
    ],
)
async def test_a_guest_goes_on_behind_the_tokens_so_far(
    memory_bus: MemoryBus, fingerprint: str, resumed: str, *, deterministic: bool
) -> None:
    guest = scripted(abilities=ABLE if deterministic else ABLE - {"deterministic"})
    async with guest_kit(memory_bus, guest) as kit:
        frames = await kit.run(chat("r", attempt=1, resume=resume_of("What", fingerprint)))
        accepted, done = frames[0], frames[-1]
        assert isinstance(accepted, Accepted)
        assert isinstance(done, Done)
        assert (accepted.resumed, done.resumed) == (resumed, resumed)
        new = guest.opened[0].new
        assert bytes(new.token_ids[new.prompt_len :]) == b"What"
        assert len(tokens_of(frames)) == 12
        assert frames[0].seq == 2


async def test_an_own_engine_goes_on_behind_a_guest_and_says_so(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus) as kit:
        fingerprint = f"{guest_fingerprint('x')}/guest"
        done = (await kit.run(chat("r", attempt=1, resume=resume_of("What", fingerprint))))[-1]
        assert isinstance(done, Done)
        assert done.resumed == "text"


@pytest.mark.parametrize(
    ("abilities", "sampling", "param"),
    [
        (ABLE - {"continuation"}, {}, "resume"),
        (ABLE | {"seed"}, {"seed": 7, "temperature": 0.7}, "seed"),
        (ABLE | {"penalties"}, {"frequency_penalty": 0.5}, "frequency_penalty"),
    ],
)
async def test_an_answer_that_the_guest_cannot_go_on_with_is_one_honest_error(
    memory_bus: MemoryBus, abilities: frozenset[Any], sampling: dict[str, Any], param: str
) -> None:
    async with guest_kit(memory_bus, scripted(abilities=abilities)) as kit:
        point = resume_of("What", "null/fp32")
        failed = await kit.failure(chat("r", attempt=1, resume=point, sampling=sampling))
        assert (failed.code, failed.data["reason"], failed.data["param"]) == (
            "unavailable", "guest_cannot", param
        )  # fmt: skip
        assert not failed.resumable
        new = await kit.run(chat("s", sampling=sampling))  # from its beginning the guest can
        assert isinstance(new[-1], Done)


async def test_a_session_keeps_its_context_from_an_own_group_to_a_guest_and_back(
    memory_bus: MemoryBus,
) -> None:
    store, guest = DictStore(), scripted()
    session = {"session_id": "s"}
    async with Kit(memory_bus, group="g0", store=store) as own:
        first = text_of(await own.run(chat("r1", "one", session=session)))
        await own.until(lambda: ("default", "s") in store.records)
    async with guest_kit(memory_bus, guest, group="g1", store=store) as other:
        second = text_of(await other.run(chat("r2", "two", session=session)))
        prompt = bytes(guest.opened[0].new.token_ids).decode()
        assert prompt == f"user: one\nassistant: {first}\nuser: two\nassistant: "
        await other.until(lambda: store.records["default", "s"].version == 2)
    async with Kit(memory_bus, group="g2", store=store) as back:
        done = (await back.run(chat("r3", "three", session=session)))[-1]
        assert isinstance(done, Done)
        assert done.session is not None
        assert (done.session.turns, done.session.state) == (3, "continued")
        text = f"user: one\nassistant: {first}\nuser: two\nassistant: {second}\nuser: three\nassistant: "
        assert done.usage.prompt_tokens == len(text)
    assert second == bytes(LETTERS * 20)[len(prompt) : len(prompt) + 16].decode()
