"""Routers on a real broker: time limits, bad messages, status, and the process."""

import asyncio
import json
import os
import signal

import msgpack
import pytest

from shared import subjects
from shared.bus import Message
from shared.bus.nats import NatsBus
from shared.codec import decode_reply, encode
from shared.errors import InvalidRequest
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
)
from tests.kits.programs.launch import async_program
from tests.kits.router.live import Caller, Leader, router, until_known
from tests.kits.waiting import PATIENCE_S, until


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
                answer = await nats_bus.request(subject, data, timeout_s=PATIENCE_S)
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
    async with router(nats_url) as service:
        await until_known(service, *leaders)
        reply = await nats_bus.request(subjects.MODELS, encode(ListModels()), timeout_s=PATIENCE_S)
        assert [card.name for card in decode_reply(reply.data, ModelList).models] == [model_name]
        for query in (b"{}", b' {"verbose": true}'):  # in JSON
            reply = await nats_bus.request(subjects.MODELS, query, timeout_s=PATIENCE_S)
            assert [card["name"] for card in json.loads(reply.data)["models"]] == [model_name]
        reply = await nats_bus.request(subjects.STATUS, encode(StatusQuery()), timeout_s=PATIENCE_S)
        status = decode_reply(reply.data, ServiceStatus)
        states = {group["group"]: group["state"] for group in status.detail["groups"]}
        assert states == {leaders[0].group: "ready", leaders[1].group: "draining"}
        assert all(group["heartbeat_age_s"] < PATIENCE_S for group in status.detail["groups"])


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
    async with router(nats_url, router_policy="state_server", lookup_timeout_s=PATIENCE_S):
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
