"""Routers on a real broker, between a caller and leaders that answer at once."""

import asyncio
import signal

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from shared import subjects
from shared.bus.nats import NatsBus
from shared.client import ClientSettings, InferenceClient
from shared.codec import encode
from shared.errors import Unavailable
from shared.host.cpu_pressure import CpuPressure
from shared.messages import (
    Accepted,
    Load,
    TokenizeQuery,
)
from tests.kits.router.live import Caller, Leader, router, router_process, until_known
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
        async with asyncio.timeout(PATIENCE_S):  # on a busy machine it is longer than a second
            while failed.code == "unavailable":
                await asyncio.sleep(0.2)
                failed = await caller.failure(caller.request(model="no-such-model"))
        assert failed.code == "model_not_found"


async def test_on_a_busy_machine_a_new_router_waits_longer_for_what_is_late(
    nats_url: str, caller: Caller, leaders: list[Leader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuPressure, "read", lambda *_: 1.0)
    async with router(nats_url, reconnect_s=0.1):
        await asyncio.sleep(0.5)
        failed = await caller.failure(caller.request(model="no-such-model"))
        assert (failed.code, failed.data["reason"]) == ("unavailable", "no_group")


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
                assert [card.name for card in await client.list_models(timeout_s=PATIENCE_S)]
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
        await until_known(service, *leaders)
        groups = {f"s-{i}": await caller.group_of(f"s-{i}") for i in range(30)}
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
    async with router(nats_url) as service:
        await until_known(service, *leaders)
        failed = await caller.failure(caller.request())
        assert (failed.code, failed.data["reason"]) == ("overloaded", "all_full")
        assert 0.08 <= failed.data["retry_after_s"] <= 36


async def test_a_fast_small_fleet_is_not_refused(
    nats_url: str, caller: Caller, leaders: list[Leader]
) -> None:
    """Between two heartbeats there are more requests than queue places, and each one is done at once."""
    for leader in leaders:
        leader.load = Load(max_running=8, max_waiting=24)
    async with router(nats_url) as service:
        await until_known(service, *leaders)

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
