"""Attempts of a request in the leader: which one continues, which is stopped, and what is done only once."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from services.worker.null.engine import TEXT
from shared import codec, subjects
from shared.codec import pack_tokens
from shared.messages import (
    Accepted,
    AnyFrame,
    Cancel,
    Done,
    Failed,
    GenerateRequest,
    GroupDown,
    Resend,
    ResendReply,
    Tokens,
)
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, chat, finish_of, null_engine, text_of, tokens_of


def turns_of(frames: Sequence[AnyFrame]) -> int:
    """The turns of the session with this one, as its end tells them.

    `Accepted` has them only if the history was read within 15 ms; else its `session_version` is -1.
    """
    accepted, done = frames[0], frames[-1]
    assert isinstance(accepted, Accepted)
    assert isinstance(done, Done)
    assert done.session is not None
    assert accepted.session_version == -1 or accepted.session_turns == done.session.turns - 1
    return done.session.turns


async def publish(kit: Kit, subject: str, message: Any) -> None:
    await kit.bus.publish(subject, codec.encode(message))
    await kit.bus.flush()


async def test_a_cancel_ends_its_own_attempt_and_no_later_one(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus, null_engine(delay_s=0.01)) as kit:
        await kit.ask(chat("r", attempt=2, sampling={"max_tokens": 12}))
        await publish(kit, subjects.cancel("g0"), Cancel(request_id="r", attempt=1))
        assert isinstance((await kit.end_of("r"))[-1], Done)
        await kit.ask(chat("s", attempt=1, sampling={"max_tokens": 1000}))
        await publish(kit, subjects.cancel("g0"), Cancel(request_id="s", attempt=1))
        assert (await kit.end_of("s"))[-1].code == "cancelled"  # type: ignore[union-attr]
        await kit.all_free()


async def test_a_cancel_that_comes_first_waits_for_its_own_attempt(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus) as kit:
        await publish(kit, subjects.cancel("g0"), Cancel(request_id="r", attempt=0))
        assert isinstance((await kit.run(chat("r", attempt=1)))[-1], Done)
        await publish(kit, subjects.cancel("g0"), Cancel(request_id="s", attempt=3))
        assert (await kit.failure(chat("s", attempt=2))).code == "cancelled"


async def test_an_attempt_that_ended_here_may_be_followed_by_another(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus) as kit:
        await kit.run(chat("r"))
        await publish(kit, subjects.cancel("g0"), Cancel(request_id="r", attempt=0))
        kit.frames.clear()
        assert isinstance((await kit.run(chat("r", attempt=1)))[-1], Done)


async def test_a_leader_that_was_given_up_lets_everything_go(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus, null_engine(delay_s=0.01)) as kit:
        await kit.ask(chat("r", sampling={"max_tokens": 1000}))
        await kit.until(lambda: len(kit.frames["r"]) > 2)
        for other in (("g1", "i"), ("g0", "another")):
            down = GroupDown(group=other[0], instance_id=other[1], reason="silent")
            await publish(kit, subjects.GROUP_DOWN, down)
        await memory_bus.publish(subjects.GROUP_DOWN, b"nonsense")
        count = len(kit.frames["r"])
        await kit.until(lambda: len(kit.frames["r"]) > count)
        await publish(kit, subjects.GROUP_DOWN, GroupDown(group="g0", instance_id="i", reason="silent"))
        frames = await kit.end_of("r")
        last = frames[-1]
        assert isinstance(last, Failed)
        assert (last.code, last.resumable, last.data["reason"]) == ("group_lost", True, "silent")
        await kit.all_free()
        resume = {"token_ids": [pack_tokens(tokens_of(frames))], "next_seq": last.seq}
        await kit.run(chat("r", attempt=1, resume=resume, sampling={"max_tokens": 1000}))
        await kit.all_free()


async def test_who_leaves_refuses_for_itself_and_who_is_full_for_all(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus) as kit:
        assert not (await kit.failure(chat("bad", attempt=1, prompt=""))).resumable
        await kit.leader.drain(1.0)
        refused = await kit.failure(chat("r", attempt=3, resume={"token_ids": [b""], "next_seq": 7}))
        assert (refused.code, refused.resumable, refused.seq) == ("unavailable", True, 7)


async def test_accepted_names_the_instance(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus) as kit:
        first = (await kit.run(chat("r")))[0]
        assert isinstance(first, Accepted)
        assert first.instance_id == "i"


@pytest.mark.parametrize("sent", [0, 3, 16])
@pytest.mark.parametrize("mode", ["auto", "append", "replace"])
async def test_a_turn_whose_answer_got_lost_is_said_again_and_stored_once(
    memory_bus: MemoryBus, mode: str, sent: int
) -> None:
    def turn(name: str, text: str, **more: Any) -> Any:
        return chat(name, text, session={"session_id": "s", "mode": mode}, **more)

    async with Kit(memory_bus) as kit:
        await kit.run(turn("a", "one"))
        whole = await kit.run(turn("b", "two"))
        record = kit.store.records["default", "s"]
        assert record.last_request == "b"
        # as if the group died after storing the turn and before sending its last frames
        tokens = tokens_of(whole)
        resume = {"token_ids": [pack_tokens(tokens[:sent])], "next_seq": 2 + sent}
        kit.frames.clear()
        rest = await kit.run(turn("b", "two", attempt=1, resume=resume))
        assert tokens_of(rest) == tokens[sent:]
        assert isinstance(rest[0], Accepted)
        assert isinstance(rest[-1], Done)
        assert turns_of(rest) == 2
        assert rest[-1].usage.prompt_tokens == whole[-1].usage.prompt_tokens  # type: ignore[union-attr]
        await asyncio.sleep(0.05)
        assert kit.store.records["default", "s"] == record
        third = await kit.run(turn("c", "three"))
        assert turns_of(third) == 3
        assert text_of(third)


@pytest.mark.parametrize(
    ("token_ids", "words"),
    [
        ([b""] * 2, "one entry per choice"),
        ([b"abc"], "four bytes"),
        ([pack_tokens([1] * 17)], "which may have 16"),
        ([pack_tokens([1, 5000])], "token 5000"),
    ],
)
async def test_a_resume_point_that_cannot_be_is_refused(
    memory_bus: MemoryBus, token_ids: list[bytes], words: str
) -> None:
    async with Kit(memory_bus) as kit:
        resume = {"token_ids": token_ids, "next_seq": 5}
        failed = await kit.failure(chat("r", attempt=1, resume=resume))
        assert failed.code == "invalid_request"
        assert words in failed.message
        await kit.all_free()


async def test_other_weights_do_not_go_on_with_an_answer(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus) as kit:
        first = (await kit.run(chat("r")))[0]
        assert isinstance(first, Accepted)
        resume = {"token_ids": [pack_tokens([104])], "next_seq": 2}
        failed = await kit.failure(chat("s", attempt=1, resume={**resume, "fingerprint": "others"}))
        assert (failed.code, failed.data["reason"]) == ("unavailable", "other_weights")
        own = await kit.run(chat("t", attempt=1, resume={**resume, "fingerprint": first.fingerprint}))
        assert isinstance(own[-1], Done)


PROMPT = "user: hello\nassistant: "


def answer(length: int, prompt: str = PROMPT) -> str:
    start = len(prompt)
    return "".join(TEXT[(start + i) % len(TEXT)] for i in range(length))


async def test_a_known_request_is_not_started_twice(kit: Kit) -> None:
    frames = list(await kit.run(chat("r")))
    kit.frames.clear()
    await kit.ask(chat("r"))
    assert await kit.end_of("r") == frames
    assert kit.metric("duplicate_requests_total") == 1
    assert kit.metric("generation_tokens_total") == 16


async def test_missed_frames_come_again(kit: Kit) -> None:
    frames = await kit.run(chat("r"))
    for asked, expected in (
        (Resend(request_id="r", from_seq=15), frames[15:]),
        (Resend(request_id="x", from_seq=0), None),
    ):
        message = await kit.bus.request(subjects.resend("g0"), codec.encode(asked), timeout_s=1)
        reply = codec.decode_reply(message.data, ResendReply)
        assert reply.known == (expected is not None)
        assert reply.frames == (expected or [])


async def test_a_newer_attempt_takes_over(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus, null_engine(delay_s=0.01)) as kit:
        await kit.ask(chat("r", sampling={"max_tokens": 1000}))
        await asyncio.sleep(0.03)
        first = [f for f in kit.frames["r"] if f.attempt == 0]
        done = tokens_of(first)
        resume = {"token_ids": [pack_tokens(done)], "next_seq": first[-1].seq + 1}
        kit.frames.clear()
        await kit.ask(chat("r", attempt=1, resume=resume, sampling={"max_tokens": 8}))
        frames = await kit.end_of("r")
        assert {frame.attempt for frame in frames} == {1}
        assert frames[0].seq == first[-1].seq + 1
        assert tokens_of(first) + tokens_of(frames) == list(answer(8).encode())
        await kit.ask(chat("r"))  # the older attempt again is ignored
        await kit.all_free()
        assert kit.metric("requests_total", outcome="superseded") == 1


async def test_an_attempt_that_gave_way_to_a_refused_one_is_forgotten(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus, null_engine(delay_s=0.01), retention_s=0.1) as kit:
        await kit.ask(chat("r", note=b"n", sampling={"max_tokens": 1000}))
        await kit.until(lambda: len(kit.frames["r"]) > 2)
        await kit.ask(chat("r", attempt=1, note=b"n"), {subjects.HEADER_TIMEOUT: "-1"})
        assert (await kit.end_of("r"))[-1].attempt == 1
        await kit.all_free()
        await kit.until(lambda: kit.leader.detail()["retained_bytes"] == 0)


@pytest.mark.parametrize("cut", range(20))
@pytest.mark.parametrize("stop", ["brown fox", "no such text"])
async def test_a_resumed_run_equals_one_that_was_not_cut(kit: Kit, cut: int, stop: str) -> None:
    def ask(name: str, **more: Any) -> GenerateRequest:
        return chat(name, prompt="x" * 45, sampling={"max_tokens": 25, "stop": [stop], "n": 2}, **more)

    whole = await kit.run(ask("whole"))
    sent = [frame for frame in whole if isinstance(frame, Tokens) and frame.seq <= cut]
    resume = {"token_ids": [pack_tokens(tokens_of(sent, c)) for c in (0, 1)], "next_seq": cut + 1}
    rest = await kit.run(ask("rest", attempt=1, resume=resume))
    assert rest[0].seq == cut + 1
    for choice in (0, 1):
        assert text_of(sent, choice) + text_of(rest, choice) == text_of(whole, choice)
        assert tokens_of(sent, choice) + tokens_of(rest, choice) == tokens_of(whole, choice)
        assert finish_of(sent, choice) or finish_of(rest, choice) == finish_of(whole, choice)
    assert isinstance(whole[-1], Done)
    assert isinstance(rest[-1], Done)
    once, again = whole[-1].usage, rest[-1].usage
    cache = {"cached_tokens": 0, "stored_tokens": 0}  # the run before has left KV
    assert msgspec.structs.replace(again, **cache) == msgspec.structs.replace(once, **cache)
