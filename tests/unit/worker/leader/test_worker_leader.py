"""A leader on the in-memory bus with the null engine: answers, refusals, frames, status and metrics."""

from typing import Any

import msgpack
import pytest

from services.worker.null.engine import TEXT, NullEngine
from shared import codec, subjects
from shared.codec import pack_tokens
from shared.errors import InvalidRequest
from shared.messages import (
    Accepted,
    AnyFrame,
    Done,
    ErrorReply,
    Failed,
    FrameBatch,
    ResumePoint,
    Route,
    TokenLogprob,
    Tokens,
    Work,
)
from tests.kits.memory_bus import MemoryBus
from tests.kits.waiting import PATIENCE_S
from tests.kits.worker.leader import Kit, chat, finish_of, null_engine, text_of, tokens_of

PROMPT = "user: hello\nassistant: "


def answer(length: int, prompt: str = PROMPT) -> str:
    start = len(prompt)
    return "".join(TEXT[(start + i) % len(TEXT)] for i in range(length))


@pytest.mark.parametrize("delivery", ["stream", "whole"])
async def test_a_chat_is_answered(kit: Kit, delivery: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for held in ("intake.preparation.ACCEPT_S", "token_output.WHOLE_FLUSH_S"):
        monkeypatch.setattr(f"services.worker.leader.{held}", PATIENCE_S)
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


async def test_the_numbers_of_a_prompt_that_is_too_long_are_reported(kit: Kit) -> None:
    failed = await kit.failure(chat("r", prompt="x" * 2040))
    assert {k: failed.data[k] for k in ("context_length", "prompt_tokens", "max_tokens")} == {
        "context_length": 2048, "prompt_tokens": 2040, "max_tokens": 16}  # fmt: skip


@pytest.mark.parametrize(
    ("length", "max_tokens", "message"),
    [
        (2040, 16, "the prompt has 2040 and max_tokens is 16: lower max_tokens, or shorten the prompt"),
        (5004, 0, "the prompt has 5004: shorten the prompt"),
        (5004, 16, "the prompt has 5004: shorten the prompt"),
        (2048, 0, "the prompt has 2048: shorten the prompt"),
    ],
)
async def test_only_remedies_that_help_are_named(
    kit: Kit, length: int, max_tokens: int, message: str
) -> None:
    failed = await kit.failure(chat("r", prompt="x" * length, sampling={"max_tokens": max_tokens}))
    assert failed.message == f"the maximum context length is 2048 tokens for model demo, {message}"


@pytest.mark.parametrize("length", [40, 400])
async def test_a_kv_cache_that_is_shorter_than_the_context_is_named(
    memory_bus: MemoryBus, length: int
) -> None:
    async with Kit(memory_bus, null_engine(blocks=2)) as kit:
        failed = await kit.failure(chat("r", prompt="x" * length))
    assert failed.message == (
        f"the maximum context length is 32 tokens for model demo, the prompt has {length}: shorten the "
        "prompt. The KV cache of the group holds no more (RYZ_KV_CACHE_TOKENS); the model takes 2048"
    )


async def test_stop_strings_end_a_choice_without_being_shown(kit: Kit) -> None:
    frames = await kit.run(chat("r", prompt="x" * 45, sampling={"stop": ["brown"], "max_tokens": 99}))
    assert text_of(frames) == "The quick "
    assert finish_of(frames) == "stop"


async def test_characters_are_whole_in_every_delta(memory_bus: MemoryBus) -> None:
    text = "é😀✓ "
    engine = NullEngine(
        step_delay_s=0.0, tokens=list(text.encode()), num_blocks=64, vocab_size=257, context_length=2048
    )
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


def logprobs_of(frames: list[AnyFrame]) -> list[TokenLogprob]:
    return [lp for f in frames if isinstance(f, Tokens) for d in f.deltas for lp in d.logprobs]


async def test_logprobs_carry_the_text_of_tokens(kit: Kit) -> None:
    frames = await kit.run(chat("r", prompt="x" * 45, sampling={"logprobs": 1, "max_tokens": 2}))
    logprobs = logprobs_of(frames)
    assert [(lp.token, lp.logprob, lp.top[0].token) for lp in logprobs] == [("T", 0.0, "T"), ("h", 0.0, "h")]


async def test_logprobs_have_the_bytes_and_the_slots_of_parts_of_characters(memory_bus: MemoryBus) -> None:
    """By NATS; an attempt that goes on inside a character tells the same."""
    said = "aé😀b".encode()
    engine = NullEngine(
        step_delay_s=0.0, tokens=list(said), num_blocks=64, vocab_size=257, context_length=256
    )
    sampling = {"logprobs": 1, "max_tokens": len(said)}
    async with Kit(memory_bus, engine) as kit:
        whole = logprobs_of(await kit.run(chat("a", prompt="x" * len(said), sampling=sampling)))
        point = ResumePoint(token_ids=[pack_tokens(list(said[:4]))], next_seq=3)
        again = chat("b", prompt="x" * len(said), sampling=sampling, attempt=1, resume=point)
        resumed = logprobs_of(await kit.run(again))
    raw = [None, b"\xc3", b"\xa9", b"\xf0", b"\x9f", b"\x98", b"\x80", None]
    assert [one.raw for one in whole] == [one.top[0].raw for one in whole] == raw
    assert [one.offset for one in whole] == [0, 1, 1, 2, 2, 2, 2, 3]
    assert resumed == whole[4:]


async def test_the_token_that_ends_a_sequence_adds_no_bytes(memory_bus: MemoryBus) -> None:
    engine = NullEngine(
        step_delay_s=0.0, tokens=[97, 98, 256], num_blocks=64, vocab_size=257, context_length=256
    )
    async with Kit(memory_bus, engine) as kit:
        frames = await kit.run(chat("a", prompt="xxx", sampling={"logprobs": 0}))
    assert (text_of(frames), finish_of(frames)) == ("ab", "stop")
    assert [(one.raw, one.offset) for one in logprobs_of(frames)] == [(None, 0), (None, 1), (b"", 2)]


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


@pytest.mark.parametrize("reply_to", ["", "a b", "a.*", ">", "a..b"])
async def test_work_whose_answer_can_go_nowhere_is_not_begun(kit: Kit, reply_to: str) -> None:
    work = Work(request=codec.encode(chat("lost")), route=Route(group="g0", reason=""), reply_to=reply_to)
    reply = await kit.bus.request(subjects.work("g0"), codec.encode(work), timeout_s=1)
    assert codec.decode(reply.data, ErrorReply).error == "invalid_request"
    assert text_of(await kit.run(chat("r"))) == answer(16)
    assert kit.metric("bad_messages_total", subject="work") == 1
    assert kit.metric("unsent_frames_total") == 0


async def test_gathered_frames_fit_into_messages(
    memory_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.worker.leader.token_output.WHOLE_FLUSH_S", 60.0)
    async with Kit(memory_bus) as kit:
        wanted = {"n": 16, "max_tokens": 400, "logprobs": 1}
        frames = await kit.run(chat("r", delivery="whole", sampling=wanted))
        assert isinstance(frames[-1], Done)
        assert len(tokens_of(frames, 15)) == 400
        assert max(len(codec.encode(FrameBatch(frames=[frame]))) for frame in frames) < 256 * 1024


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


async def test_metrics_count_tokens_times_and_load(kit: Kit) -> None:
    await kit.run(chat("r"))
    assert kit.metric("generation_tokens_total") == 16
    assert kit.metric("prompt_tokens_total") == len(PROMPT)
    assert kit.metric("time_to_first_token_seconds_count") == 1
    assert kit.metric("inter_token_latency_seconds_count") == 15
    assert kit.metric("inter_token_latency_seconds_bucket", le="+Inf") == 15
    assert kit.metric("step_seconds_count") >= 16
    assert kit.metric("requests_total", outcome="done") == 1
    assert kit.metric("num_requests_running") == kit.metric("kv_cache_usage_perc") == 0
