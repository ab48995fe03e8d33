"""A leader on the in-memory bus with the null engine: what callers get, and what is left behind."""

import asyncio
import random
from collections.abc import AsyncIterator
from itertools import groupby
from typing import Any

import msgpack
import pytest

from services.worker.adapters.null_engine import TEXT, NullEngine
from services.worker.domain.plan import EngineFailed, StepPlan, StepResult
from services.worker.domain.scheduler import Limits
from services.worker.leader import loop as engine_loop
from shared import codec, subjects
from shared.bus.api import Message
from shared.bus.memory import MemoryBus
from shared.codec import pack_tokens
from shared.errors import InvalidRequest
from shared.messages import (
    Accepted,
    Cancel,
    Done,
    ErrorReply,
    Failed,
    GenerateRequest,
    Heartbeat,
    Resend,
    ResendReply,
    Route,
    Tokens,
    Work,
)
from tests.worker_kit import Kit, chat, finish_of, null_engine, text_of, tokens_of

PROMPT = "user: hello\nassistant: "


@pytest.fixture
async def kit(memory_bus: MemoryBus) -> AsyncIterator[Kit]:
    async with Kit(memory_bus) as kit:
        yield kit
        await kit.all_free()


def answer(length: int, prompt: str = PROMPT) -> str:
    start = len(prompt)
    return "".join(TEXT[(start + i) % len(TEXT)] for i in range(length))


@pytest.mark.parametrize("delivery", ["stream", "whole"])
async def test_a_chat_is_answered(kit: Kit, delivery: str) -> None:
    frames = await kit.run(chat("r", delivery=delivery))
    first, last = frames[0], frames[-1]
    assert isinstance(first, Accepted)
    assert isinstance(last, Done)
    assert first.group == "g0"
    assert text_of(frames) == answer(16)
    assert finish_of(frames) == "length"
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (len(PROMPT), 16)
    assert len(frames) == (18 if delivery == "stream" else 3)
    if delivery == "whole":
        assert len(kit.batches) == 1


async def test_prompts_of_all_kinds(kit: Kit) -> None:
    by_text = await kit.run(chat("a", prompt="abc"))
    by_ids = await kit.run(chat("b", prompt_token_ids=pack_tokens(list(b"abc"))))
    assert text_of(by_text) == text_of(by_ids) == answer(16, "abc")
    long = await kit.run(chat("c", prompt="x" * 2000))
    assert text_of(long) == answer(16, "x" * 2000)


async def test_max_tokens_0_fills_the_context(kit: Kit) -> None:
    frames = await kit.run(chat("a", prompt="x" * 2000, sampling={"max_tokens": 0}))
    assert len(tokens_of(frames)) == 48


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"prompt": "x" * 2040}, "context_length_exceeded", "prompt"),
        ({"prompt": "x" * 9000}, "context_length_exceeded", "prompt"),
        ({"prompt": ""}, "invalid_request", "prompt"),
        ({"prompt": "a", "prompt_token_ids": b"1234"}, "invalid_request", "prompt_token_ids"),
        ({"messages": None}, "invalid_request", "messages"),
        ({"prompt_token_ids": pack_tokens([300])}, "invalid_request", "prompt_token_ids"),
        ({"prompt_token_ids": b"123"}, "invalid_request", "token_ids"),
        ({"prompt": "a", "sampling": {"logit_bias": {999: 1.0}}}, "invalid_request", "logit_bias"),
        ({"prompt": "a", "resume": {"token_ids": [], "next_seq": 0}}, "invalid_request", "resume"),
    ],
)
async def test_what_cannot_be_done_is_refused(
    kit: Kit, fields: dict[str, Any], code: str, param: str
) -> None:
    failed = await kit.failure(chat("r", **fields))
    assert (failed.code, failed.data["param"]) == (code, param)
    assert failed.message


async def test_the_numbers_of_a_prompt_that_is_too_long_are_told(kit: Kit) -> None:
    failed = await kit.failure(chat("r", prompt="x" * 2040))
    assert {k: failed.data[k] for k in ("context_length", "prompt_tokens", "max_tokens")} == {
        "context_length": 2048, "prompt_tokens": 2040, "max_tokens": 16}  # fmt: skip


async def test_stop_strings_end_a_choice_without_being_shown(kit: Kit) -> None:
    frames = await kit.run(chat("r", prompt="x" * 45, sampling={"stop": ["brown"], "max_tokens": 99}))
    assert text_of(frames) == "The quick "
    assert finish_of(frames) == "stop"


async def test_characters_are_whole_in_every_delta(memory_bus: MemoryBus) -> None:
    text = "é😀✓ "
    engine = NullEngine(tokens=list(text.encode()), num_blocks=64, vocab_size=257, context_length=2048)
    async with Kit(memory_bus, engine) as kit:
        size = len(text.encode())
        frames = await kit.run(chat("r", prompt="x" * size, sampling={"max_tokens": 3 * size}))
        deltas = [delta.text for frame in frames if isinstance(frame, Tokens) for delta in frame.deltas]
        assert "".join(deltas) == text * 3
        assert set(deltas) == {"", *text}
        cut = await kit.run(chat("cut", prompt="x" * size, sampling={"max_tokens": 4}))
        assert text_of(cut) == "é\ufffd"


async def test_several_choices_are_numbered_and_end_together(kit: Kit) -> None:
    frames = await kit.run(chat("r", sampling={"n": 3, "max_tokens": 5}))
    assert {text_of(frames, choice) for choice in range(3)} == {answer(5)}
    assert [finish_of(frames, choice) for choice in range(3)] == ["length"] * 3
    last = frames[-1]
    assert isinstance(last, Done)
    assert last.usage.completion_tokens == 15
    assert last.usage.prompt_tokens == len(PROMPT)


async def test_logprobs_carry_the_text_of_tokens(kit: Kit) -> None:
    frames = await kit.run(chat("r", prompt="x" * 45, sampling={"logprobs": 1, "max_tokens": 2}))
    logprobs = [lp for f in frames if isinstance(f, Tokens) for d in f.deltas for lp in d.logprobs]
    assert [(lp.token, lp.logprob, lp.top[0].token) for lp in logprobs] == [("T", 0.0, "T"), ("h", 0.0, "h")]


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
        await kit.ask(chat("r"))  # the older one again: ignored
        await kit.all_free()
        assert kit.metric("requests_total", outcome="superseded") == 1


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
    assert rest[-1].usage == whole[-1].usage


async def test_deadlines_end_requests_that_wait_or_run(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus, null_engine(delay_s=0.005), steps=Limits(64, 1, 4)) as kit:
        headers = {subjects.HEADER_TIMEOUT: "40"}
        await kit.ask(chat("runs", sampling={"max_tokens": 500}), headers)
        await kit.ask(chat("waits", sampling={"max_tokens": 500}), headers)
        for name in ("runs", "waits"):
            last = (await kit.end_of(name))[-1]
            assert isinstance(last, Failed)
            assert last.code == "deadline_exceeded"
        await kit.all_free()
        late = await kit.failure(chat("late"), {subjects.HEADER_TIMEOUT: "0"})
        assert late.code == "deadline_exceeded"
        odd = await kit.failure(chat("odd"), {subjects.HEADER_TIMEOUT: "soon"})
        assert odd.data["param"] == subjects.HEADER_TIMEOUT


async def test_a_full_queue_refuses_with_a_retry_time(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus, null_engine(delay_s=0.002), steps=Limits(64, 2, 2)) as kit:
        for number in range(6):
            await kit.ask(chat(f"r{number}"))
        lasts = [(await kit.end_of(f"r{number}"))[-1] for number in range(6)]
        assert [isinstance(last, Done) for last in lasts] == [True] * 4 + [False] * 2
        assert isinstance(lasts[-1], Failed)
        assert lasts[-1].code == "overloaded"
        assert lasts[-1].data["retry_after_s"] > 0


async def test_a_cancel_ends_what_runs_and_what_has_not_come_yet(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus, null_engine(delay_s=0.005)) as kit:
        await kit.ask(chat("r", sampling={"max_tokens": 1000}))
        await asyncio.sleep(0.02)
        await kit.bus.publish(subjects.cancel("g0"), codec.encode(Cancel(request_id="r", reason="bye")))
        await kit.all_free(0.2)
        last = (await kit.end_of("r"))[-1]
        assert isinstance(last, Failed)
        assert last.code == "cancelled"
        await kit.bus.publish(subjects.CANCEL_ALL, codec.encode(Cancel(request_id="early")))
        await asyncio.sleep(0.01)
        assert (await kit.failure(chat("early"))).code == "cancelled"


async def test_many_callers_a_third_of_them_leaves(memory_bus: MemoryBus) -> None:
    chance = random.Random(1)
    async with Kit(memory_bus, null_engine(blocks=120, delay_s=0.0005), steps=Limits(256, 64, 200)) as kit:
        names = [f"r{number}" for number in range(200)]
        leaving = set(chance.sample(names, 67))

        async def call(name: str) -> None:
            await asyncio.sleep(chance.random() * 0.1)
            await kit.ask(
                chat(name, name * chance.randint(1, 30), sampling={"max_tokens": chance.randint(1, 40)})
            )
            if name in leaving:
                await asyncio.sleep(chance.random() * 0.05)
                await kit.bus.publish(subjects.cancel("g0"), codec.encode(Cancel(request_id=name)))

        await asyncio.gather(*map(call, names))
        for name in names:
            last = (await kit.end_of(name))[-1]
            assert isinstance(last, Done) or name in leaving
        await kit.all_free()
        assert kit.metric("engine_failures_total") == 0


class Flaky:
    """An engine that fails at a step, and the first times it is started again."""

    def __init__(self, failing_step: int, failing_starts: int) -> None:
        self.inner = null_engine()
        self.failing_step, self.failing_starts = failing_step, failing_starts
        self.stops = 0
        self.steps = 0
        self.start_again = False

    async def start(self) -> object:
        if self.start_again and self.failing_starts:
            self.failing_starts -= 1
            raise EngineFailed("rank 1 did not come up")
        self.start_again = True
        return await self.inner.start()

    async def step(self, plan: StepPlan) -> StepResult:
        self.steps += 1
        if self.steps == self.failing_step:
            raise EngineFailed("rank 1 died")
        return await self.inner.step(plan)

    def status(self) -> list[dict[str, object]]:
        return self.inner.status()

    async def stop(self) -> None:
        self.stops += 1
        await self.inner.stop()


async def test_a_failed_engine_fails_its_requests_and_comes_back(
    memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_loop, "RESTART_PAUSE_S", (0.05, 0.1))
    engine = Flaky(failing_step=5, failing_starts=1)
    states: list[str] = []

    async def on_heartbeat(message: Message) -> None:
        states.append(codec.decode(message.data, Heartbeat).state)

    await memory_bus.subscribe(subjects.HEARTBEAT_ALL, on_heartbeat)
    async with Kit(memory_bus, engine, heartbeat_interval_s=0.01) as kit:  # type: ignore[arg-type]
        kit.expected_errors = {"the engine failed"}
        await asyncio.gather(kit.ask(chat("a")), kit.ask(chat("b")))
        for name in ("a", "b"):
            last = (await kit.end_of(name))[-1]
            assert isinstance(last, Failed)
            assert last.code == "group_lost"
            assert "rank 1 died" in last.message
        assert (await kit.failure(chat("c"))).code == "unavailable"
        await kit.until(lambda: kit.leader.state == "ready")
        assert text_of(await kit.run(chat("d"))) == answer(16)
        assert kit.metric("engine_failures_total") == 2
        assert engine.stops == 2
        assert [state for state, _ in groupby(states)] == ["starting", "ready", "failed", "ready"]


async def test_an_engine_that_does_not_come_up_is_an_error_at_start(memory_bus: MemoryBus) -> None:
    engine = Flaky(failing_step=0, failing_starts=1)
    engine.start_again = True
    kit = Kit(memory_bus, engine)  # type: ignore[arg-type]
    with pytest.raises(EngineFailed, match="rank 1"):
        await kit.leader.start()
    await kit.leader.stop()


async def test_drain_lets_running_ones_end_and_refuses_new_ones(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus, null_engine(delay_s=0.002)) as kit:
        await kit.ask(chat("short", sampling={"max_tokens": 20}))
        await kit.ask(chat("endless", sampling={"max_tokens": 1900}))
        await asyncio.sleep(0.01)
        draining = asyncio.create_task(kit.leader.drain(0.2))
        await asyncio.sleep(0.01)
        refused = await kit.failure(chat("new"))
        assert (refused.code, refused.data["reason"]) == ("unavailable", "draining")
        assert isinstance((await kit.end_of("short"))[-1], Done)
        await draining
        last = (await kit.end_of("endless"))[-1]
        assert isinstance(last, Failed)
        assert last.data["reason"] == "draining"


@pytest.mark.parametrize("kind", ["work", "cancel", "resend"])
@pytest.mark.parametrize("data", [b"", b"\xc1", b"\xff" * 100, b"\x93\x01\x02\x03", b"\x81\xa1a\x01"])
async def test_nonsense_is_answered_and_survived(kit: Kit, kind: str, data: bytes) -> None:
    subject = getattr(subjects, kind)("g0")
    message = await kit.bus.request(subject, data, timeout_s=1)
    with pytest.raises(InvalidRequest):
        codec.decode_reply(message.data, Done)
    assert codec.decode(message.data, ErrorReply).error == "invalid_request"
    await kit.bus.publish(subject, data)
    assert text_of(await kit.run(chat("r"))) == answer(16)
    assert kit.metric("bad_messages_total", subject=kind) == 2


async def test_a_wrong_request_inside_right_work_gets_its_failed_frame(kit: Kit) -> None:

    bad = msgpack.packb({"request_id": "r", "model": "demo", "sampling": {"temperature": -1}})
    work = Work(request=bad, route=Route(group="g0", reason=""), reply_to=kit.inbox)
    await kit.bus.publish(subjects.work("g0"), codec.encode(work))
    last = (await kit.end_of("r"))[-1]
    assert isinstance(last, Failed)
    assert last.data["param"] == "sampling.temperature"


async def test_the_status_tells_queues_blocks_and_ranks(kit: Kit) -> None:
    await kit.run(chat("r"))
    detail = kit.leader.detail()
    assert detail["group"] == "g0"
    assert detail["free_blocks"] == detail["total_blocks"] == 256
    assert detail["ranks"][0]["state"] == "ready"  # type: ignore[index]
