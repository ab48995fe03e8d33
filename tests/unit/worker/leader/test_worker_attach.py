"""Attaching a request to another caller: which requests can be attached, and what each caller then gets."""

import asyncio
from typing import Any

import pytest

from services.worker.domain.generation.retransmit_buffer import RetransmitBuffer
from shared import codec, subjects
from shared.bus.api import Message
from shared.messages import (
    Accepted,
    AnyFrame,
    Attach,
    Attached,
    Cancel,
    Delta,
    Done,
    ErrorReply,
    Failed,
    FrameBatch,
    GenerateRequest,
    Resend,
    ResendReply,
    Tokens,
    Usage,
)
from shared.messages.base import MAX_ATTEMPT
from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, chat, null_engine, text_of

NOTE = b"what it looks like"


def request(**more: Any) -> GenerateRequest:
    return GenerateRequest(**{"request_id": "r", "model": "demo", "prompt": "Hi", "note": NOTE} | more)


def tokens(seq: int) -> Tokens:
    return Tokens(request_id="r", seq=seq, deltas=[Delta(text="x")])


def outbox(*frames: AnyFrame, **more: Any) -> RetransmitBuffer:
    box = RetransmitBuffer(retention_s=10, max_bytes=100_000)
    box.open_attempt("r", 0, 0, request(**more))
    for frame in frames:
        box.add_frame("r", frame, 0.0)
    return box


def test_what_is_given_counts_as_the_new_attempt() -> None:
    box = outbox(Accepted(request_id="r", group="g"), tokens(1))
    box.give_to_reader("r", request(attempt=1), "b", 0.0)
    box.add_frame("r", Tokens(request_id="r", seq=2, attempt=1, deltas=[]), 0.0)
    assert box.frames_from("r", 0, 0) == ResendReply(known=False, attempt=1)
    reply = box.frames_from("r", 1, 0)
    assert [(frame.seq, frame.attempt) for frame in reply.frames] == [(0, 1), (1, 1), (2, 1)]
    assert (reply.attempt, reply.next_seq, reply.known) == (1, 3, True)
    assert box.attempt("r") == 1


def test_an_ended_request_is_kept_for_the_whole_retention_after_it_is_attached() -> None:
    box = outbox(Done(request_id="r", seq=0, usage=Usage()))
    box.open_attempt("s", 0, 0, request(request_id="s"))
    box.add_frame("s", Done(request_id="s", seq=0, usage=Usage()), 5.0)
    box.give_to_reader("r", request(attempt=1), "b", 9.0)
    box.forget_expired(15.0)  # the other one, which ended later, goes first now
    assert box.kept("s") is None
    assert box.frames_from("r", 1, 0).known
    box.forget_expired(19.0)
    assert not box.frames_from("r", 1, 0).known


@pytest.mark.parametrize(
    ("tenant", "more", "frames", "given"),
    [
        ("default", {}, [], True),
        ("default", {}, [Done(request_id="r", seq=0, usage=Usage())], True),
        ("default", {}, [Failed(request_id="r", seq=0, code="internal", message="")], True),
        ("default", {}, [Failed(request_id="r", seq=0, code="cancelled", message="")], False),
        ("default", {"note": b""}, [], False),
        ("other", {}, [], False),
    ],
)
def test_who_can_have_it(tenant: str, more: dict[str, Any], frames: list[AnyFrame], given: bool) -> None:
    kept = outbox(*frames, **more).kept("r")
    assert kept is not None
    assert (kept.offer(tenant) is not None) == given


def test_a_kept_request_counts_and_goes_with_its_frames() -> None:
    box = outbox(prompt="x" * 5000)
    assert 5000 < box.num_bytes < 7000
    box.add_frame("r", Done(request_id="r", usage=Usage()), 0.0)
    box.forget_expired(10.0)
    assert (box.num_bytes, box.kept("r")) == (0, None)
    box.open_attempt("r", 0, 0, request(note=b"", prompt="x" * 5000))
    assert box.num_bytes == 0


class Caller:
    """A caller that asks to attach a request and collects its frames on its own subject."""

    def __init__(self, bus: MemoryBus, name: str) -> None:
        self.bus = bus
        self.name = name
        self.frames: list[AnyFrame] = []
        self.answers: list[Attached] = []

    async def start(self) -> "Caller":
        await self.bus.subscribe(self.name, self._hear)
        await self.bus.subscribe(f"{self.name}-answers", self._answered)
        return self

    async def attach(self, request_id: str = "r", tenant: str = "default", **key: str) -> None:
        question = Attach(request_id=request_id, tenant=tenant, reply_to=self.name, **key)
        await self.bus.publish(subjects.ATTACH, codec.encode(question), reply=f"{self.name}-answers")
        await asyncio.sleep(0.03)

    async def resend(self, attempt: int) -> ResendReply:
        question = Resend(request_id="r", attempt=attempt, from_seq=0)
        answer = await self.bus.request(subjects.resend("g0"), codec.encode(question), timeout_s=1)
        return codec.decode(answer.data, ResendReply)

    async def _hear(self, message: Message) -> None:
        self.frames += codec.decode(message.data, FrameBatch).frames

    async def _answered(self, message: Message) -> None:
        if not message.no_responders:
            self.answers.append(codec.decode(message.data, Attached))


async def test_no_caller_takes_a_request_to_where_no_frame_can_go() -> None:
    bus = MemoryBus()
    async with Kit(bus, null_engine(delay_s=0.01)) as kit:
        await kit.ask(chat("r", note=NOTE, sampling={"max_tokens": 20}))
        await kit.until(lambda: len(kit.frames["r"]) > 2)
        question = codec.encode(Attach(request_id="r", tenant="default", reply_to="a b"))
        answer = await bus.request(subjects.ATTACH, question, timeout_s=1)
        assert codec.decode(answer.data, ErrorReply).error == "invalid_request"
        assert isinstance((await kit.end_of("r"))[-1], Done)


async def test_a_running_request_changes_hands() -> None:
    bus = MemoryBus()
    async with Kit(bus, null_engine(delay_s=0.01)) as kit:
        await kit.ask(chat("r", note=NOTE, sampling={"max_tokens": 200}))
        await kit.until(lambda: len(kit.frames["r"]) > 2)
        second = await Caller(bus, "second").start()
        await second.attach()
        await second.attach()  # a repeated question is answered and changes nothing
        assert [codec.decode(one.request, GenerateRequest).attempt for one in second.answers] == [1, 1]
        answer = second.answers[0]
        assert (answer.group, answer.instance_id, answer.first_seq) == ("g0", "i", 0)
        assert answer.next_seq > 1
        await bus.publish(subjects.cancel("g0"), codec.encode(Cancel(request_id="r", attempt=0)))
        await kit.all_free(5.0)
        await asyncio.sleep(0.05)
        last = kit.frames["r"][-1]
        assert isinstance(last, Failed)
        assert (last.code, last.data["reason"], last.attempt) == ("cancelled", "attached_elsewhere", 0)
        assert {frame.attempt for frame in second.frames} == {1}
        assert isinstance(second.frames[-1], Done)
        assert await second.resend(0) == ResendReply(known=False, attempt=1)
        whole = (await second.resend(1)).frames
        assert [frame.seq for frame in whole] == list(range(len(whole)))
        assert len(text_of(whole)) == 200
        third = await Caller(bus, "third").start()
        await third.attach()  # the request has ended, but is still retained
        assert codec.decode(third.answers[0].request, GenerateRequest).attempt == 2
        assert third.answers[0].next_seq == len(whole)


async def test_a_call_whose_question_comes_after_it_keeps_its_own_request() -> None:
    """A gateway publishes a keyed call when no leader has answered its question in time."""
    bus = MemoryBus()
    async with Kit(bus, null_engine(delay_s=0.01)) as kit:
        key = {"call_key": "k", "call_digest": "d"}
        await kit.ask(chat("r", note=NOTE, sampling={"max_tokens": 20}, **key))
        await kit.until(lambda: len(kit.frames["r"]) > 2)
        own = await Caller(bus, "own").start()
        await own.attach("r", **key)
        assert own.answers == []
        assert isinstance((await kit.end_of("r"))[-1], Done)
        again = await Caller(bus, "again").start()
        await again.attach("r2", **key)  # the call is repeated
        assert [codec.decode(one.request, GenerateRequest).attempt for one in again.answers] == [1]


async def test_who_gets_no_answer() -> None:
    bus = MemoryBus()
    async with Kit(bus, null_engine(delay_s=0.01)) as kit:
        await kit.ask(chat("r", note=NOTE, sampling={"max_tokens": 1000}))
        await kit.ask(chat("bare"))
        await kit.ask(chat("late", note=NOTE, attempt=MAX_ATTEMPT))
        await kit.until(lambda: len(kit.frames) == 3)
        other = await Caller(bus, "other").start()
        await other.attach("r", "stranger")
        for request_id in ("bare", "late", "unknown"):
            await other.attach(request_id)
        await bus.publish(subjects.ATTACH, b"\xc1", reply="other-nonsense")
        await bus.publish(subjects.cancel("g0"), codec.encode(Cancel(request_id="r")))
        await kit.all_free(5.0)
        await other.attach("r")
        assert other.answers == []
        assert other.frames == []
