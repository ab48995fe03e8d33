"""Routers on a real broker, between a caller and leaders that answer at once."""

import asyncio
import json
import os
import signal

import msgpack
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from shared import subjects
from shared.bus import Message
from shared.bus.nats import NatsBus
from shared.client import ClientSettings, InferenceClient
from shared.codec import decode_reply, encode
from shared.errors import InvalidRequest, Unavailable
from shared.messages import (
    Accepted,
    AnyFrame,
    Failed,
    Heartbeat,
    ListModels,
    Load,
    ModelCard,
    ModelList,
    ServiceStatus,
    SessionFound,
    SessionRecord,
    StatusQuery,
    TokenizeQuery,
)
from tests.kits.programs.launch import async_program
from tests.kits.router.live import BEAT_MS, Caller, Leader, router, router_process, until_known
from tests.kits.waiting import PATIENCE_S, until


async def test_a_request_goes_on_with_its_own_bytes_and_headers(
    nats_url: str, caller: Caller, leaders: list[Leader]
) -> None:
    async with router(nats_url, instance_id="router-7"):
        request = caller.request("s-1")
        headers = {"traceparent": "00-1-2-01", "tracestate": "a=b", "Ryz-Timeout-Ms": "5000", "X-Other": "no"}
        frame = await caller.ask(request, **headers)
        assert isinstance(frame, Accepted)
        (work, message), *more = leaders[0].taken + leaders[1].taken
        assert not more
        assert work.request == encode(request)
        assert work.reply_to == request.reply_to
        assert (work.route.group, work.route.reason) == (frame.group, "preferred")
        assert (work.route.preferred_group, work.route.router_id) == (frame.group, "router-7")
        passed = dict(message.headers)
        assert 4000 < int(passed.pop("Ryz-Timeout-Ms")) <= 5000
        assert passed == {"traceparent": "00-1-2-01", "tracestate": "a=b"}


async def test_without_reply_to_the_answer_goes_to_the_reply_subject(
    nats_url: str, caller: Caller, leaders: list[Leader]
) -> None:
    async with router(nats_url):
        assert isinstance(await caller.ask(caller.request(reply_to="")), Accepted)


async def test_a_session_stays_on_its_group_across_routers_and_restarts(
    nats_url: str, caller: Caller, leaders: list[Leader]
) -> None:
    sessions = [f"s-{i}" for i in range(20)]
    async with router(nats_url):
        first = [await caller.group_of(session) for session in sessions]
    async with router(nats_url), router(nats_url):
        for _ in range(3):
            assert [await caller.group_of(session) for session in sessions] == first
        routers = {work.route.router_id for leader in leaders for work, _ in leader.taken}
        assert len(set(first)) == 2
        assert routers


async def test_an_unknown_model_is_refused_with_the_served_ones(
    nats_url: str, caller: Caller, leaders: list[Leader], model_name: str
) -> None:
    async with router(nats_url, reconnect_s=0):
        failed = await caller.failure(caller.request(model="no-such-model"))
        assert failed.code == "model_not_found"
        assert model_name in failed.message


async def test_a_router_that_has_just_started_calls_no_model_unknown(
    nats_url: str, caller: Caller, leaders: list[Leader]
) -> None:
    """It may not have heard the model's group yet, as after a restart of everything."""
    async with router(nats_url, reconnect_s=1.0):
        failed = await caller.failure(caller.request(model="no-such-model"))
        assert (failed.code, failed.data["reason"]) == ("unavailable", "no_group")
        await asyncio.sleep(1.0)
        failed = await caller.failure(caller.request(model="no-such-model"))
        assert failed.code == "model_not_found"


async def test_a_router_without_groups_calls_no_model_unknown(nats_url: str, caller: Caller) -> None:
    """They may all be loading, as in a fresh stack."""
    async with router(nats_url, reconnect_s=0):
        failed = await caller.failure(caller.request(model="no-such-model"))
        assert (failed.code, failed.data["reason"]) == ("unavailable", "no_group")
        async with InferenceClient.connect(nats_url, settings=ClientSettings(wait_s=0.1)) as client:
            with pytest.raises(Unavailable) as refused:
                await client.tokenize(TokenizeQuery(model="no-such-model", prompt="x"), timeout_s=1.0)
            assert refused.value.data["reason"] == "no_group"


async def test_every_router_takes_what_was_not_answered_and_answers_queries(
    nats_url: str, nats_bus: NatsBus, caller: Caller, leaders: list[Leader], model_name: str
) -> None:
    """One of two routers stands still."""
    async with router_process(nats_url, nats_bus, "frozen") as frozen, router(nats_url):
        frozen.send_signal(signal.SIGSTOP)
        async with InferenceClient.connect(nats_url) as client:
            for _ in range(20):
                assert [card.name for card in await client.list_models(timeout_s=2.0)]
        for _ in range(10):
            request = caller.request()
            await nats_bus.publish(subjects.again(model_name), encode(request))
            assert isinstance(await caller.answer(request.request_id), Accepted)


async def test_a_known_model_without_a_ready_group_is_unavailable(
    nats_url: str, caller: Caller, leaders: list[Leader]
) -> None:
    leaders[0].state = leaders[1].state = "starting"
    async with router(nats_url) as service:
        failed = await caller.failure(caller.request())
        assert (failed.code, failed.data["reason"]) == ("unavailable", "no_group")
        assert 0.8 <= failed.data["retry_after_s"] <= 1.2
        leaders[0].state = "ready"
        await until_known(service, leaders[0])
        assert await caller.group_of("s") == leaders[0].group


async def test_a_router_that_did_not_send_the_attempt_before_avoids_the_lost_group_and_logs_the_move(
    nats_url: str, caller: Caller, leaders: list[Leader]
) -> None:
    """The broker gives each attempt to any of several routers; the lost group may still look ready."""
    for leader, other in (leaders, leaders[::-1]):
        with capture_logs() as lines:
            async with router(nats_url):
                for _ in range(10):
                    request = caller.request(attempt=1, lost_group=leader.group)
                    frame = await caller.ask(request)
                    assert isinstance(frame, Accepted)
                    assert frame.group == other.group
        moved = [line for line in lines if line["event"] == "session moved"]
        assert {(line["group"], line["last_group"], line["reason"]) for line in moved} == {
            (other.group, leader.group, "resumed")
        }
        assert len(moved) == 10


async def test_a_group_that_does_not_listen_is_passed_over(
    nats_url: str, caller: Caller, leaders: list[Leader]
) -> None:
    async with router(nats_url) as service:
        for leader in leaders:
            await caller.group_of("warm-" + leader.group)
        await leaders[0].deafen()
        groups = [await caller.group_of(f"s-{i}") for i in range(20)]
        assert set(groups) == {leaders[1].group}
        await leaders[1].deafen()
        failed = await caller.failure(caller.request("s-0"))
        assert (failed.code, failed.data["reason"]) == ("unavailable", "no_group")
        events = {"event": "undelivered"}
        assert (service.registry.get_sample_value("ryz_router_events_total", events) or 0) >= 2


async def test_a_silent_group_is_lost_and_welcome_again(
    nats_url: str, caller: Caller, leaders: list[Leader]
) -> None:
    async with router(nats_url) as service:
        groups = {f"s-{i}": await caller.group_of(f"s-{i}") for i in range(12)}
        session, other = [session for session, group in groups.items() if group == leaders[0].group][:2]
        leaders[0].beating = False
        await until(lambda: [one["lost"] for one in service.status().detail["groups"]] == ["silent", ""])
        taken = len(leaders[0].taken)
        assert await caller.group_of(session) == leaders[1].group
        assert len(leaders[0].taken) == taken
        leaders[0].beating = True
        await until_known(service, leaders[0])
        assert await caller.group_of(other) == leaders[0].group
        assert await caller.group_of(session) == leaders[1].group  # the group that now holds its KV


async def test_a_full_fleet_refuses_with_a_time(nats_url: str, caller: Caller, leaders: list[Leader]) -> None:
    for leader in leaders:
        leader.load = Load(running=4, waiting=2, max_running=4, max_waiting=2)
    await asyncio.sleep(2 * BEAT_MS / 1000)
    async with router(nats_url):
        failed = await caller.failure(caller.request())
        assert (failed.code, failed.data["reason"]) == ("overloaded", "all_full")
        assert 0.08 <= failed.data["retry_after_s"] <= 36


async def test_a_fast_small_fleet_is_not_refused(
    nats_url: str, caller: Caller, leaders: list[Leader]
) -> None:
    """Between two heartbeats there are more requests than queue places, and each one is done at once."""
    for leader in leaders:
        leader.load = Load(max_running=8, max_waiting=24)
    await asyncio.sleep(2 * BEAT_MS / 1000)
    async with router(nats_url):

        async def client(number: int) -> None:
            for turn in range(30):
                assert isinstance(await caller.ask(caller.request(f"s-{number}-{turn}")), Accepted)

        await asyncio.gather(*(client(number) for number in range(16)))


async def test_a_copy_goes_to_the_same_group(nats_url: str, caller: Caller, leaders: list[Leader]) -> None:
    async with router(nats_url, router_policy="round_robin"):
        request = caller.request()
        for _ in range(4):
            await caller.publish(request)
        await until(lambda: sum(len(leader.taken) for leader in leaders) == 4)
        assert [len(leader.started) for leader in leaders].count(0) == 1
        await caller.publish(replace(request, attempt=1))  # no copy; nor is another tenant's request
        await caller.publish(replace(request, tenant="other"))
        await until(lambda: sum(len(leader.taken) for leader in leaders) == 6)
        reasons = [work.route.reason for leader in leaders for work, _ in leader.taken]
        assert reasons.count("duplicate") == 3


async def test_time_limits_that_are_over_or_no_numbers(
    nats_url: str, caller: Caller, leaders: list[Leader]
) -> None:
    async with router(nats_url):
        late = await caller.failure(caller.request(), **{"Ryz-Timeout-Ms": "0"})
        assert late.code == "deadline_exceeded"
        wrong = await caller.failure(caller.request(), **{"Ryz-Timeout-Ms": "soon"})
        assert (wrong.code, wrong.data["param"]) == ("invalid_request", "Ryz-Timeout-Ms")
        assert not leaders[0].taken + leaders[1].taken


async def test_a_request_that_grows_over_the_limit_is_reported_by_how_much(
    nats_url: str, caller: Caller, leaders: list[Leader]
) -> None:
    async with router(nats_url):
        empty = len(encode(caller.request(prompt="")))
        request = caller.request(prompt="x" * (caller.bus.max_payload - empty - 40))
        failed = await caller.failure(request)
        assert failed.code == "request_too_large"
        assert failed.data["size"] == len(encode(request)) > failed.data["limit"]


async def test_bad_messages_on_every_subject_are_answered_and_nothing_dies(
    nats_url: str, nats_bus: NatsBus, caller: Caller, leaders: list[Leader]
) -> None:
    bad = (b"", b"\xc1", b"\x93\x01\x02\x03", os.urandom(64), b"\x81\xa5model\x07", b"\xdf\xff\xff\xff\xff")
    async with router(nats_url) as service:
        for number, data in enumerate(bad):
            request_id = f"bad-{number}"
            reply = f"{caller.inbox}.{request_id}"
            await nats_bus.publish(subjects.generate("any"), data, reply=reply)
            frame = await caller.answer(request_id)
            assert isinstance(frame, Failed)
            assert frame.code == "invalid_request"
            # unknown fields are ignored, so one of the messages is a valid query for models
            queries = () if b"model" in data else (subjects.MODELS,)
            for subject in (subjects.heartbeat("g0"), *queries):
                answer = await nats_bus.request(subject, data, timeout_s=2.0)
                with pytest.raises(InvalidRequest):
                    decode_reply(answer.data, ModelList)
            await nats_bus.publish(subjects.generate("any"), data)
        readable = msgpack.packb({"request_id": "mine", "attempt": 4, "model": 7})
        await nats_bus.publish(subjects.generate("any"), readable, reply=f"{caller.inbox}.other")
        frame = await caller.answer("mine")
        assert isinstance(frame, Failed)
        assert (frame.attempt, frame.data["param"]) == (4, "model")
        beat = Heartbeat(
            group="elsewhere", instance_id="i", seq=1, interval_ms=100, state="ready",
            model=ModelCard(name="m", context_length=1), load=Load(),
        )  # fmt: skip
        await nats_bus.publish(subjects.heartbeat("g0"), encode(beat))
        assert (await caller.group_of("s")) in {leader.group for leader in leaders}
        labels = {"code": "invalid_request", "reason": "invalid"}
        assert service.registry.get_sample_value("ryz_router_refusals_total", labels) == 2 * len(bad) + 1
        assert service.is_ready


async def test_models_and_status_show_the_fleet(
    nats_url: str, nats_bus: NatsBus, leaders: list[Leader], model_name: str
) -> None:
    leaders[1].state = "draining"
    async with router(nats_url):
        await asyncio.sleep(2 * BEAT_MS / 1000)
        reply = await nats_bus.request(subjects.MODELS, encode(ListModels()), timeout_s=2.0)
        assert [card.name for card in decode_reply(reply.data, ModelList).models] == [model_name]
        for query in (b"{}", b' {"verbose": true}'):  # in JSON
            reply = await nats_bus.request(subjects.MODELS, query, timeout_s=2.0)
            assert [card["name"] for card in json.loads(reply.data)["models"]] == [model_name]
        reply = await nats_bus.request(subjects.STATUS, encode(StatusQuery()), timeout_s=2.0)
        status = decode_reply(reply.data, ServiceStatus)
        states = {group["group"]: group["state"] for group in status.detail["groups"]}
        assert states == {leaders[0].group: "ready", leaders[1].group: "draining"}
        assert all(group["heartbeat_age_s"] < 1 for group in status.detail["groups"])


async def test_state_server_asks_where_the_session_was(
    nats_url: str, nats_bus: NatsBus, caller: Caller, leaders: list[Leader]
) -> None:
    asked = 0

    async def answer(message: Message) -> None:
        nonlocal asked
        asked += 1
        record = SessionRecord(
            session_id="s", tenant="default", model="m", version=1, last_group=leaders[asked % 2].group
        )
        await nats_bus.publish(message.reply, encode(SessionFound(record=record)))

    kvstate = await nats_bus.subscribe(subjects.SESSION_GET, answer)
    async with router(nats_url, router_policy="state_server"):
        for turn in range(1, 5):
            assert await caller.group_of("s") == leaders[turn % 2].group
        await kvstate.unsubscribe()
        await nats_bus.flush()
        assert await caller.group_of("s") == leaders[0].group  # no answer: the router's own record


async def test_a_router_leaves_and_returns_in_mid_traffic_and_no_caller_notices(
    nats_url: str, caller: Caller, leaders: list[Leader]
) -> None:
    done: list[AnyFrame] = []

    async def client(number: int) -> None:
        for turn in range(60):
            request = caller.request(f"s-{number}-{turn}")
            for _ in range(10):
                await caller.publish(request)  # repeated, as `InferenceClient` does without an answer
                try:
                    await until(lambda: request.request_id in caller.frames, timeout_s=0.2)  # noqa: B023
                except TimeoutError:
                    continue
                break
            done.append(await caller.answer(request.request_id))
            await asyncio.sleep(0.005)

    async with router(nats_url):
        clients = asyncio.gather(*(client(number) for number in range(8)))
        for _ in range(3):
            async with router(nats_url):
                await asyncio.sleep(0.05)
        await clients
    assert len(done) == 8 * 60
    assert all(isinstance(frame, Accepted) for frame in done)
    assert not caller.no_responders
    assert not leaders[0].started & leaders[1].started
    assert len({work.route.router_id for leader in leaders for work, _ in leader.taken}) > 1  # all took part


async def test_the_process_starts_routes_and_stops(
    nats_url: str, caller: Caller, leaders: list[Leader]
) -> None:
    env = {"RYZ_NATS_URL": nats_url, "RYZ_ROUTER_POLICY": "hybrid", "PATH": os.environ["PATH"]}
    async with async_program("services.router", env=env) as process:
        request = caller.request()
        async with asyncio.timeout(PATIENCE_S):
            while request.request_id not in caller.frames:
                await caller.publish(request)
                await asyncio.sleep(0.05)
        assert isinstance(caller.frames[request.request_id][0], Accepted)  # never "no such model" before this
        process.send_signal(signal.SIGTERM)
        _, log = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        assert process.returncode == 0
        assert b"Traceback" not in log


async def test_a_wrong_setting_ends_the_start_with_one_line(nats_url: str) -> None:
    env = {"RYZ_NATS_URL": nats_url, "RYZ_ROUTER_POLICY": "best", "PATH": os.environ["PATH"]}
    async with async_program("services.router", env=env) as process:
        _, log = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode == 2
    assert log.count(b"\n") == 1
    assert b"RYZ_ROUTER_POLICY='best'" in log
