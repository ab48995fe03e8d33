"""`InferenceClient` against a scripted leader on the memory bus: answers, and failures of every kind."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog

from shared import subjects
from shared.bus import Message
from shared.client import ClientSettings, InferenceClient, list_models
from shared.codec import encode, pack_tokens
from shared.errors import (
    Cancelled,
    DeadlineExceeded,
    GroupLost,
    InvalidRequest,
    Overloaded,
    RequestTooLarge,
    Unavailable,
)
from shared.identity import new_request_id
from shared.messages import (
    Accepted,
    AnyFrame,
    ChatMessage,
    Delta,
    Failed,
    FrameBatch,
    GenerateRequest,
    GroupDown,
    ModelCard,
    ModelList,
    ResumePoint,
    Sampling,
    SessionRef,
    Tokens,
)
from tests.kits.client import client_settings
from tests.kits.memory_bus import MemoryBroker, MemoryBus
from tests.kits.waiting import PATIENCE_S, until
from tests.kits.worker.scripted_leader import ScriptedLeader, answer


def fast(**more: float) -> ClientSettings:
    values = {"accept_timeout_s": 0.03, "max_publishes": 3, "wait_s": 0.5}
    times = {"probe_interval_s": 0.06, "resend_timeout_s": 0.04, "tick_s": 0.005}
    return client_settings(**values, **times, **more)


FAST = fast()
WHOLE = "w0 w1 w2 w3 "


def handled(bus: MemoryBus, subject: str) -> int:
    """How many messages the handlers of a subject have had."""
    return sum(one.handled for one in bus.served if one.subject == subject)


def make_request(model: str = "demo", n: int = 1) -> GenerateRequest:
    return GenerateRequest(
        request_id=new_request_id(),
        model=model,
        messages=[ChatMessage(role="user", content="hello")],
        session=SessionRef(session_id="s1"),
        sampling=Sampling(n=n),
    )


@pytest.fixture
async def client(memory_bus: MemoryBus) -> AsyncIterator[InferenceClient]:
    client = InferenceClient(memory_bus, FAST)
    await client.start()
    yield client
    await client.close()
    assert client.num_open == 0


@pytest.fixture
async def leader(memory_bus: MemoryBus) -> ScriptedLeader:
    return await ScriptedLeader(MemoryBus(memory_bus.broker)).start()


async def test_a_whole_answer(client: InferenceClient, leader: ScriptedLeader) -> None:
    request = make_request()
    done = await client.complete(request, timeout_s=2)
    (choice,) = done.choices
    assert (choice.text, choice.token_ids, choice.finish_reason) == (WHOLE, [0, 1, 2, 3], "length")
    assert (done.request_id, done.session_id, done.group) == (request.request_id, "s1", "g0")
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (3, 4)
    assert len(leader.requests) == 1
    assert 1000 < int(leader.headers[0][subjects.HEADER_TIMEOUT]) <= 2000
    assert leader.cancels == []


async def test_a_stream_arrives_piece_by_piece(client: InferenceClient, leader: ScriptedLeader) -> None:
    leader.pause_s = 0.002
    texts = []
    async with client.submit(make_request(), timeout_s=2) as stream:
        accepted = await stream.wait_accepted()
        assert (accepted.group, stream.group, stream.session_id) == ("g0", "g0", "s1")
        async for deltas in stream:
            texts += [delta.text for delta in deltas]
    assert texts == ["w0 ", "w1 ", "w2 ", "w3 "]
    assert stream.usage.completion_tokens == 4
    assert leader.cancels == []


async def test_a_stream_may_be_awaited_and_read_without_a_block(
    client: InferenceClient, leader: ScriptedLeader
) -> None:
    stream = await client.submit(make_request(), timeout_s=2)
    assert len([deltas async for deltas in stream]) == 4
    assert client.num_open == 0


async def test_many_requests_at_once(memory_bus: MemoryBus, leader: ScriptedLeader) -> None:
    client = InferenceClient(memory_bus, client_settings(accept_timeout_s=10))
    await client.start()
    done = await asyncio.gather(*(client.complete(make_request(), timeout_s=20) for _ in range(200)))
    await client.close()
    assert {completion.choices[0].text for completion in done} == {WHOLE}
    assert len({completion.request_id for completion in done}) == 200


async def test_choices_are_kept_apart(client: InferenceClient, leader: ScriptedLeader) -> None:
    def script(request: GenerateRequest) -> list[AnyFrame]:
        frames = answer(request, 2)
        deltas = [Delta(choice=1, text="b"), Delta(choice=0, text="a"), Delta(choice=1, text="c")]
        frames[1] = Tokens(request_id=request.request_id, seq=1, deltas=deltas)
        return frames

    leader.script = script
    done = await client.complete(make_request(n=2), timeout_s=2)
    assert [choice.text for choice in done.choices] == ["aw1 ", "bc"]


@pytest.mark.parametrize("lost", [{0}, {1}, {2, 3}, {1, 3}, {5}, {4, 5}, {0, 1, 2, 3, 4}, {0, 5}])
async def test_lost_frames_are_asked_for(
    client: InferenceClient, leader: ScriptedLeader, lost: set[int]
) -> None:
    leader.lose = lost
    done = await client.complete(make_request(), timeout_s=3)
    assert done.choices[0].text == WHOLE
    assert leader.resends
    assert leader.cancels == []


@pytest.mark.parametrize("lost", [{0}, {0, 1, 2, 3, 4, 5}])
async def test_without_a_known_group_the_request_is_published_again(
    client: InferenceClient, leader: ScriptedLeader, lost: set[int]
) -> None:
    leader.lose, leader.says_group = lost, False
    task = asyncio.create_task(client.complete(make_request(), timeout_s=3))
    await until(lambda: len(leader.requests) == 1)
    leader.lose = set()
    assert (await task).choices[0].text == WHOLE
    assert len(leader.requests) == 2
    assert leader.requests[0] == leader.requests[1]
    assert client.stats.republished == 1


async def test_a_long_resend_comes_in_parts(client: InferenceClient, leader: ScriptedLeader) -> None:
    leader.script = lambda request: answer(request, 20)
    leader.lose = set(range(1, 21))
    leader.resend_limit = 6
    done = await client.complete(make_request(), timeout_s=3)
    assert done.usage.completion_tokens == 20
    assert len(leader.resends) == 4


@pytest.mark.parametrize("order", [[5, 4, 3, 2, 1, 0], [0, 2, 1, 3, 5, 4], [1, 0, 5, 2, 3, 4]])
async def test_frames_in_any_order_twice(
    client: InferenceClient, leader: ScriptedLeader, order: list[int]
) -> None:
    leader.order, leader.duplicate = order, set(order)
    texts = []
    async with client.submit(make_request(), timeout_s=3) as stream:
        async for deltas in stream:
            texts += [delta.text for delta in deltas]
    assert "".join(texts) == WHOLE


async def test_frames_of_another_attempt_are_ignored(client: InferenceClient, leader: ScriptedLeader) -> None:
    def script(request: GenerateRequest) -> list[AnyFrame]:
        frames = answer(request)
        stale = Tokens(request_id=request.request_id, attempt=7, seq=1, deltas=[Delta(text="old")])
        return [frames[0], stale, *frames[1:]]

    leader.script = script
    assert (await client.complete(make_request(), timeout_s=2)).choices[0].text == WHOLE


async def test_the_first_of_two_groups_has_it_and_the_other_is_told_to_stop(
    client: InferenceClient, leader: ScriptedLeader
) -> None:
    loser = ScriptedLeader(leader.bus, group="g1")
    loser.silent = leader.silent = True
    await loser.start()
    task = asyncio.create_task(client.complete(make_request(), timeout_s=2))
    await until(lambda: len(leader.requests) == 1)
    request = leader.requests[0]
    mine, theirs = answer(request), answer(request, 9, group="g1")
    await leader.send(request, mine[:2])
    await loser.send(request, theirs[:4])
    await leader.send(request, mine[2:])
    await loser.send(request, theirs[4:])
    assert (await task).choices[0].text == WHOLE
    await asyncio.wait_for(loser.cancelled.wait(), PATIENCE_S)
    assert leader.cancels == []


async def test_a_router_refuses(client: InferenceClient, leader: ScriptedLeader) -> None:
    leader.says_group = False
    leader.script = lambda request: [
        Failed(request_id=request.request_id, code="overloaded", message="full", data={"retry_after_s": 2})
    ]
    with pytest.raises(Overloaded, match="full") as caught:
        await client.complete(make_request(), timeout_s=2)
    assert caught.value.retry_after_s == 2
    assert client.num_open == 0


async def test_a_failure_in_mid_stream_comes_after_the_tokens_before_it(
    client: InferenceClient, leader: ScriptedLeader
) -> None:
    leader.script = lambda request: [
        *answer(request)[:3],
        Failed(request_id=request.request_id, seq=3, code="group_lost", message="rank 1 died"),
    ]
    async with client.submit(make_request(), timeout_s=2) as stream:
        got = [await anext(stream), await anext(stream)]
        with pytest.raises(GroupLost, match="rank 1 died"):
            await anext(stream)
    assert [deltas[0].text for deltas in got] == ["w0 ", "w1 "]


async def test_no_router_is_told_after_the_wait(client: InferenceClient) -> None:
    started = asyncio.get_running_loop().time()
    with pytest.raises(Unavailable, match="no router is running") as caught:
        await client.complete(make_request(), timeout_s=5)
    assert (caught.value.data["reason"], caught.value.retry_after_s) == ("no_router", 1.0)
    assert FAST.wait_s - 0.01 <= asyncio.get_running_loop().time() - started < FAST.wait_s + 0.2


async def test_a_request_is_answered_by_what_comes_back(
    client: InferenceClient, memory_bus: MemoryBus
) -> None:
    task = asyncio.create_task(client.complete(make_request(), timeout_s=5))
    await until(lambda: client.stats.waiting == 1)
    leader = await ScriptedLeader(MemoryBus(memory_bus.broker)).start()
    try:
        assert (await task).choices[0].text == WHOLE
    finally:
        await leader.stop()
    assert (client.stats.waiting, client.stats.waited, client.stats.waits_failed) == (0, 1, 0)


async def test_a_caller_that_leaves_waits_no_longer(client: InferenceClient) -> None:
    task = asyncio.create_task(client.complete(make_request(), timeout_s=5))
    await until(lambda: client.stats.waiting == 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (client.stats.waiting, client.num_open) == (0, 0)


async def test_no_leader_takes_it(client: InferenceClient, leader: ScriptedLeader) -> None:
    leader.silent = True
    with pytest.raises(Unavailable, match=r"published \d times \(waited \d\.\d s\)") as caught:
        await client.complete(make_request(), timeout_s=5)
    assert caught.value.data["reason"] == "no_answer"
    assert len(leader.requests) >= 3
    await asyncio.wait_for(leader.cancelled.wait(), PATIENCE_S)


@pytest.mark.parametrize("gone", ["forgot", "dead"])
async def test_a_leader_that_is_gone_loses_the_request_and_another_one_goes_on(
    client: InferenceClient, leader: ScriptedLeader, memory_bus: MemoryBus, gone: str
) -> None:
    leader.lose = {2, 3, 4, 5}
    task = asyncio.create_task(client.complete(make_request(), timeout_s=5))
    await until(lambda: len(leader.kept) == 1)
    other = leader
    if gone == "forgot":
        leader.kept.clear()
        leader.lose.clear()
    else:
        await leader.stop()
        other = await ScriptedLeader(MemoryBus(memory_bus.broker), group="g1").start()
    done = await task
    assert done.choices[0].text == WHOLE
    assert done.choices[0].token_ids == [0, 1, 2, 3]
    again = other.requests[-1]
    assert again.attempt == 1
    assert again.lost_group == "g0"
    assert again.resume == ResumePoint(token_ids=[pack_tokens([0])], next_seq=2)
    assert (client.stats.lost, client.stats.resumed) == (1, 1)


async def test_news_of_a_lost_group_reach_its_streams_only(
    client: InferenceClient, leader: ScriptedLeader, memory_bus: MemoryBus
) -> None:
    leader.script = lambda request: answer(request)[: 2 if request.attempt == 0 else None]
    logged = structlog.testing.LogCapture()
    structlog.configure(processors=[logged])
    streams = [client.submit(make_request(), timeout_s=5) for _ in range(3)]
    firsts = [await anext(await stream) for stream in streams]
    router = MemoryBus(memory_bus.broker)
    for group, reached in (("g9", 0), ("g0", 3)):
        down = GroupDown(group=group, instance_id="", reason="silent")
        await router.publish(subjects.GROUP_DOWN, encode(down))
        await router.publish(subjects.GROUP_DOWN, b"no news")
        await until(lambda: client.stats.ignored >= (1 if group == "g9" else 2))  # noqa: B023
        assert client.stats.lost == reached
    for first, stream in zip(firsts, streams, strict=True):
        rest = [delta.text async for deltas in stream for delta in deltas]
        assert first[0].text + "".join(rest) == WHOLE
        assert [loss.reason for loss in stream.interruptions] == ["silent"]
    structlog.reset_defaults()
    ids = {stream.request_id for stream in streams}
    offers = [line for line in logged.entries if line["event"] == "request offered to another group"]
    taken = [line for line in logged.entries if line["event"] == "request goes on"]
    assert sorted(line["request_id"] for line in taken) == sorted(ids)
    assert all((line["attempt"], line["lost_group"], line["group"]) == (1, "g0", "g0") for line in taken)
    assert {line["request_id"] for line in offers} == ids
    assert all(
        (line["attempt"], line["lost_group"], line["reason"]) == (1, "g0", "silent") for line in offers
    )


async def test_what_a_stream_waits_for_and_who_goes_on_is_logged(
    client: InferenceClient, leader: ScriptedLeader, memory_bus: MemoryBus
) -> None:
    def script(request: GenerateRequest) -> list[AnyFrame]:
        if request.attempt == 0:
            return answer(request)[:2]
        if request.attempt < 3:
            reported: dict[str, Any] = {"code": "unavailable", "message": f"g0 is away ({request.attempt})"}
            return [Failed(request_id=request.request_id, attempt=request.attempt, **reported)]
        return answer(request)

    leader.script = script
    logged = structlog.testing.LogCapture()
    structlog.configure(processors=[logged])
    stream = await client.submit(make_request(), timeout_s=5)
    await anext(stream)
    leader.says_group = False
    down = GroupDown(group="g0", instance_id="", reason="silent")
    await MemoryBus(memory_bus.broker).publish(subjects.GROUP_DOWN, encode(down))
    assert [delta.text async for deltas in stream for delta in deltas] == ["w1 ", "w2 ", "w3 "]
    structlog.reset_defaults()
    trail = [line for line in logged.entries if line.get("request_id") == stream.request_id]
    events = [(line["event"], line["attempt"]) for line in trail]
    assert events == [
        ("request offered to another group", 1), ("request waits for a group", 2), ("request goes on", 3),
    ]  # fmt: skip
    assert trail[1]["why"] == "g0 is away (1)"
    assert trail[2]["waited_s"] > 0


async def test_a_group_that_took_a_request_with_its_last_breath_is_lost(
    client: InferenceClient, leader: ScriptedLeader, memory_bus: MemoryBus
) -> None:
    leader.script = lambda request: answer(request)[: 1 if request.attempt == 0 else None]
    leader.silent = True
    stream = await client.submit(make_request(), timeout_s=5)
    await until(lambda: len(leader.requests) == 1)
    down = GroupDown(group="g0", instance_id="", reason="disconnected")
    await MemoryBus(memory_bus.broker).publish(subjects.GROUP_DOWN, encode(down))
    await until(lambda: handled(memory_bus, subjects.GROUP_DOWN) == 1)
    leader.silent = False
    await leader.send(leader.requests[0], answer(leader.requests[0])[:1])
    assert (await stream.completion()).choices[0].text == WHOLE
    assert [loss.reason for loss in stream.interruptions] == ["disconnected"]


async def test_a_silent_stream_that_still_runs_is_left_alone(
    client: InferenceClient, leader: ScriptedLeader
) -> None:
    leader.silent = True
    task = asyncio.create_task(client.complete(make_request(), timeout_s=5))
    await until(lambda: len(leader.requests) == 1)
    request = leader.requests[0]
    frames = answer(request)
    leader.kept[request.request_id] = frames[:1]
    await leader.send(request, frames[:1])
    await until(lambda: len(leader.resends) >= 3)
    await leader.send(request, frames[1:])
    assert (await task).choices[0].text == WHOLE


@pytest.mark.parametrize("accepted", [True, False])
async def test_the_deadline_ends_it_and_cancels(
    client: InferenceClient, leader: ScriptedLeader, accepted: bool
) -> None:
    leader.script = lambda request: answer(request)[:1] if accepted else []
    with pytest.raises(DeadlineExceeded, match="in group g0" if accepted else "before a group took it"):
        await client.complete(make_request(), timeout_s=0.05)
    await asyncio.wait_for(leader.cancelled.wait(), PATIENCE_S)


@pytest.mark.parametrize("accepted", [True, False])
async def test_leaving_early_cancels(client: InferenceClient, leader: ScriptedLeader, accepted: bool) -> None:
    leader.script = lambda request: answer(request)[:2] if accepted else []
    async with client.submit(make_request(), timeout_s=2) as stream:
        if accepted:
            await anext(stream)
    await asyncio.wait_for(leader.cancelled.wait(), PATIENCE_S)
    assert [cancel.request_id for cancel in leader.cancels] == [stream.request_id]
    with pytest.raises(Cancelled):
        await anext(stream)


async def test_cancelling_the_task_cancels_the_generation(
    client: InferenceClient, leader: ScriptedLeader
) -> None:
    leader.script = lambda request: answer(request)[:2]
    task = asyncio.create_task(client.complete(make_request(), timeout_s=2))
    await until(lambda: len(leader.kept) == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(leader.cancelled.wait(), PATIENCE_S)


async def test_a_cancel_that_is_itself_cancelled_leaves_nothing_behind(
    memory_bus: MemoryBus, client: InferenceClient, leader: ScriptedLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader.script = lambda request: answer(request)[:2]
    stream = await client.submit(make_request(), timeout_s=2)
    await anext(stream)

    async def stuck(*_: object, **__: object) -> None:
        await asyncio.sleep(10)

    monkeypatch.setattr(memory_bus, "publish", stuck)
    leaving = asyncio.create_task(stream.cancel())
    await asyncio.sleep(0.01)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    monkeypatch.undo()
    assert client.num_open == 0


async def test_a_group_that_accepts_what_no_caller_waits_for_is_told_to_stop(
    client: InferenceClient, leader: ScriptedLeader
) -> None:
    leader.silent = True
    async with client.submit(make_request(), timeout_s=2):
        await until(lambda: len(leader.requests) == 1)
    await until(lambda: len(leader.cancels) == 1)
    await leader.send(leader.requests[0], [Accepted(request_id=leader.requests[0].request_id, group="g0")])
    await until(lambda: len(leader.cancels) == 2)


async def test_a_reader_that_is_too_slow_loses_only_its_own_stream(
    memory_bus: MemoryBus, leader: ScriptedLeader
) -> None:
    client = InferenceClient(memory_bus, fast(max_buffered_frames=8))
    await client.start()
    leader.script = lambda request: answer(request, 50)
    async with client.submit(make_request(), timeout_s=2) as slow:
        whole = await client.complete(make_request(), timeout_s=2)
        assert whole.usage.completion_tokens == 50
        await until(lambda: slow.finished)
        for _ in range(9):  # eight buffered frames, and the one beyond the limit
            await anext(slow)
        with pytest.raises(Cancelled, match="fell 8 frames behind") as caught:
            await anext(slow)
        assert caught.value.data["reason"] == "slow_reader"
    await asyncio.wait_for(leader.cancelled.wait(), PATIENCE_S)
    await client.close()


async def test_a_lost_broker_is_waited_for(client: InferenceClient, leader: ScriptedLeader) -> None:
    broker: MemoryBroker = leader.bus.broker  # type: ignore[attr-defined]
    leader.lose = {3, 4, 5}
    task = asyncio.create_task(client.complete(make_request(), timeout_s=5))
    await until(lambda: len(leader.kept) == 1)
    broker.stop()
    await asyncio.sleep(0.3)
    assert not task.done()
    broker.start()
    assert (await task).choices[0].text == WHOLE


async def test_a_leader_that_comes_back_after_us_is_excused(
    client: InferenceClient, leader: ScriptedLeader
) -> None:
    broker: MemoryBroker = leader.bus.broker  # type: ignore[attr-defined]
    leader.lose = {3, 4, 5}
    task = asyncio.create_task(client.complete(make_request(), timeout_s=5))
    await until(lambda: len(leader.kept) == 1)
    broker.stop()
    await leader.stop()
    await asyncio.sleep(0.1)
    broker.start()
    await asyncio.sleep(0.3)
    assert not task.done()
    await leader.start()
    assert (await task).choices[0].text == WHOLE


async def test_without_a_broker_a_request_fails_after_the_wait(
    client: InferenceClient, leader: ScriptedLeader
) -> None:
    broker: MemoryBroker = leader.bus.broker  # type: ignore[attr-defined]
    broker.stop()
    with pytest.raises(Unavailable) as caught:
        await client.complete(make_request(), timeout_s=5)
    assert caught.value.data["reason"] == "broker_unavailable"
    assert client.num_open == 0
    broker.start()


async def test_the_same_id_twice_and_too_many(memory_bus: MemoryBus, leader: ScriptedLeader) -> None:
    client = InferenceClient(memory_bus, fast(max_open_requests=1))
    with pytest.raises(Unavailable, match="not started"):
        await client.complete(make_request(), timeout_s=1)
    await client.start()
    leader.silent = True
    request = make_request()
    async with client.submit(request, timeout_s=1):
        with pytest.raises(InvalidRequest, match="running already"):
            await client.complete(request, timeout_s=1)
        with pytest.raises(Overloaded):
            await client.complete(make_request(), timeout_s=1)
    await client.close()


async def test_a_prompt_that_no_message_can_hold(client: InferenceClient, leader: ScriptedLeader) -> None:
    request = GenerateRequest(request_id="big", model="demo", prompt="x" * 2_000_000)
    with pytest.raises(RequestTooLarge, match=r"^the request has \d+ bytes for the broker, .* shorten"):
        await client.complete(request, timeout_s=1)
    assert client.num_open == 0


async def test_garbage_on_the_inbox_harms_no_request(client: InferenceClient, leader: ScriptedLeader) -> None:
    leader.silent = True
    task = asyncio.create_task(client.complete(make_request(), timeout_s=2))
    await until(lambda: len(leader.requests) == 1)
    request = leader.requests[0]
    await leader.bus.publish(request.reply_to, b"\xc1")
    await leader.bus.publish(request.reply_to, encode(FrameBatch(frames=[])) + b"tail")
    await leader.send(request, answer(request))
    assert (await task).choices[0].text == WHOLE
    assert client.stats.ignored >= 2


async def test_closing_ends_what_runs(memory_bus: MemoryBus, leader: ScriptedLeader) -> None:
    client = InferenceClient(memory_bus, FAST)
    await client.start()
    leader.script = lambda request: answer(request)[:1]
    task = asyncio.create_task(client.complete(make_request(), timeout_s=5))
    await until(lambda: len(leader.kept) == 1)
    await client.close()
    with pytest.raises(Cancelled, match="the client was closed"):
        await task
    await asyncio.wait_for(leader.cancelled.wait(), PATIENCE_S)


async def test_trace_context_travels(client: InferenceClient, leader: ScriptedLeader) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await client.complete(make_request(), timeout_s=2, headers={"traceparent": parent})
    assert leader.headers[0]["traceparent"] == parent


async def test_models_are_listed(memory_bus: MemoryBus) -> None:
    card = ModelCard(name="demo", context_length=2048)

    async def reply(message: Message) -> None:
        await memory_bus.publish(message.reply, encode(ModelList(models=[card])))

    with pytest.raises(Unavailable):
        await list_models(memory_bus)
    await memory_bus.subscribe(subjects.MODELS, reply, queue=subjects.ROUTER_QUEUE)
    assert await list_models(memory_bus) == [card]
