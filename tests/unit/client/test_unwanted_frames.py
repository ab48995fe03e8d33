"""Frames for requests that a client does not have: when the client tells their leader to stop."""

import asyncio

import pytest

from shared import subjects
from shared.bus import Message
from shared.client import InferenceClient
from shared.client.generation.frames import unwanted as unwanted_frames
from shared.client.generation.frames.unwanted import MAX_KNOWN, PATIENCE_S, UnwantedFrames
from shared.codec import decode, encode
from shared.messages import Accepted, AnyFrame, Cancel, Delta, FrameBatch, GenerateRequest, Tokens
from tests.kits.memory_bus import MemoryBus
from tests.kits.waiting import until


def test_only_what_goes_on_is_cancelled_and_not_too_often() -> None:
    known = UnwantedFrames()
    times = [0.0, PATIENCE_S / 2, PATIENCE_S, PATIENCE_S * 1.5, PATIENCE_S * 2, PATIENCE_S * 2.5]
    assert [known.must_cancel("r", now) for now in times] == [False, False, True, False, True, False]
    assert not known.must_cancel("other", 100.0)


def test_what_others_want_is_not_cancelled() -> None:
    known = UnwantedFrames()
    known.must_cancel("r", 0.0)
    with known.attaching():
        assert not known.must_cancel("r", 50.0)
    known.leave_request("r")
    assert not known.must_cancel("r", 50.0)
    known.take_request("r")
    assert not known.must_cancel("r", 50.0)
    assert known.must_cancel("r", 50.0 + PATIENCE_S)


def test_what_is_known_is_bounded() -> None:
    known = UnwantedFrames()
    for number in range(2 * MAX_KNOWN):
        known.leave_request(f"left {number}")
        known.must_cancel(f"r {number}", 0.0)
    assert not known.may_cancel(f"left {2 * MAX_KNOWN - 1}")
    assert known.may_cancel("left 0")
    assert not known.must_cancel("r 0", 10.0)
    assert known.must_cancel(f"r {2 * MAX_KNOWN - 1}", 10.0)


def tokens(seq: int) -> AnyFrame:
    return Tokens(request_id="r", seq=seq, attempt=4, deltas=[Delta(text="x")])


async def test_a_leader_that_computes_for_no_caller_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader missed a cancel. The new one names attempt and instance, so it cannot stop a later owner."""
    monkeypatch.setattr(unwanted_frames, "PATIENCE_S", 0.02)
    bus = MemoryBus()
    client = InferenceClient(bus)
    await client.start()
    cancels: list[Cancel] = []

    async def on_cancel(message: Message) -> None:
        cancels.append(decode(message.data, Cancel))

    await bus.subscribe(subjects.cancel("g1"), on_cancel)
    try:
        for seq in range(1000):
            batch = FrameBatch(frames=[tokens(seq)], group="g1", instance_id="i")
            await bus.publish(client.reply_to, encode(batch))
            await asyncio.sleep(0.005)
            assert len(cancels) <= seq
            if cancels:
                break
        assert (cancels[0].request_id, cancels[0].attempt, cancels[0].instance_id) == ("r", 4, "i")
    finally:
        await client.close()
        await bus.close()


async def test_what_was_left_runs_on_and_what_is_accepted_for_no_caller_ends() -> None:
    bus = MemoryBus()
    client = InferenceClient(bus)
    await client.start()
    cancels: list[Cancel] = []

    async def on_cancel(message: Message) -> None:
        cancels.append(decode(message.data, Cancel))

    await bus.subscribe(subjects.cancel("g1"), on_cancel)
    try:
        request = GenerateRequest(request_id="r", model="m", prompt="p", reply_to=client.reply_to)
        stream = await client.submit(request, timeout_s=5)
        stream.leave()
        for name in ("r", "gone"):
            accepted = Accepted(request_id=name, attempt=2, group="g1", instance_id="i")
            await bus.publish(client.reply_to, encode(FrameBatch(frames=[accepted], group="g1")))
        await until(lambda: bool(cancels))
        assert [(one.request_id, one.attempt, one.instance_id) for one in cancels] == [("gone", 2, "i")]
    finally:
        await client.close()
        await bus.close()
