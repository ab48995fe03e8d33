"""Session routing: pins, moves that leaders report, deletions, and the query for a route."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from shared import subjects
from shared.bus import Message
from shared.bus.nats import NatsBus
from shared.codec import decode, decode_reply, encode
from shared.errors import InvalidRequest
from shared.identity import named_root
from shared.messages import (
    Accepted,
    GenerateRequest,
    Load,
    PinList,
    Pinned,
    PinPage,
    ServiceStatus,
    SessionGone,
    SessionRoute,
    SessionRouteQuery,
    SessionTurn,
    SessionTurns,
    StatusQuery,
    Wire,
)
from tests.kits.router.live import BEAT_MS, Caller, Leader, router, until_known
from tests.kits.waiting import PATIENCE_S, until


@asynccontextmanager
async def kvstate(bus: NatsBus, *pins: Pinned) -> AsyncIterator[list[PinList]]:
    """Serves the pins of all sessions, one on each page."""
    asked: list[PinList] = []

    async def answer(message: Message) -> None:
        query = decode(message.data, PinList)
        asked.append(query)
        at = int(query.cursor or 0)
        cursor = str(at + 1) if at + 1 < len(pins) else ""
        await bus.publish(message.reply, encode(PinPage(pins=list(pins[at : at + 1]), cursor=cursor)))

    subscription = await bus.subscribe(subjects.PINS, answer)
    yield asked
    await subscription.unsubscribe()
    await bus.flush()


async def publish(bus: NatsBus, subject: str, message: Wire) -> None:
    """Publishes a message and waits until routers on the same broker have received it."""
    await bus.publish(subject, encode(message))
    await bus.flush()
    await asyncio.sleep(0.05)


async def ask_route(bus: NatsBus, session_id: str, model_name: str, tenant: str = "default") -> SessionRoute:
    query = SessionRouteQuery(tenant=tenant, session_id=session_id, model=model_name)
    reply = await bus.request(subjects.SESSION_ROUTE, encode(query), timeout_s=PATIENCE_S)
    return decode_reply(reply.data, SessionRoute)


async def reason_of(caller: Caller, leaders: list[Leader], request: GenerateRequest) -> tuple[str, str, str]:
    """The group, the reason and the last group of the request's route."""
    assert isinstance(await caller.ask(request), Accepted)
    works = [work for leader in leaders for work, _ in leader.taken]
    route = next(work.route for work in works if work.request == encode(request))
    return route.group, route.reason, route.last_group


def other(leaders: list[Leader], group: str) -> Leader:
    return next(leader for leader in leaders if leader.group != group)


@pytest.mark.parametrize("policy", ["hybrid", "round_robin"])
async def test_pins_are_loaded_changed_and_freed(
    nats_url: str, nats_bus: NatsBus, caller: Caller, leaders: list[Leader], policy: str
) -> None:
    groups = [leader.group for leader in leaders]
    stored = [Pinned(tenant="default", session_id=f"s-{i}", group=groups[i % 2]) for i in range(3)]
    async with kvstate(nats_bus, *stored) as asked, router(nats_url, router_policy=policy):
        assert len(asked) >= 3
        for pin in stored:
            for _ in range(2):
                request = caller.request(pin.session_id)
                assert (await reason_of(caller, leaders, request))[:2] == (pin.group, "pinned")
        assert (await reason_of(caller, leaders, caller.request("s-0", tenant="other")))[1] != "pinned"
        moved = Pinned(tenant="default", session_id="s-0", group=groups[1])
        await publish(nats_bus, subjects.SESSION_PINNED, moved)
        assert (await reason_of(caller, leaders, caller.request("s-0")))[0] == groups[1]
        freed = Pinned(tenant="default", session_id="s-0")
        await publish(nats_bus, subjects.SESSION_PINNED, freed)
        assert (await reason_of(caller, leaders, caller.request("s-0")))[1] != "pinned"


async def test_pins_stand_while_kvstate_is_away_and_are_asked_for_again(
    nats_url: str, nats_bus: NatsBus, caller: Caller, leaders: list[Leader]
) -> None:
    group = leaders[0].group
    pins = [Pinned(tenant="default", session_id=f"s-{i}", group=group) for i in range(4)]
    async with router(nats_url, pins_refresh_s=0.1) as service:
        async with kvstate(nats_bus, *pins) as asked:
            await until(lambda: len(asked) >= 12)
        await asyncio.sleep(0.3)
        for pin in pins:
            assert (await reason_of(caller, leaders, caller.request(pin.session_id)))[1] == "pinned"
        assert service.registry.get_sample_value("ryz_router_pins") == 4
        missed = service.registry.get_sample_value("ryz_router_events_total", {"event": "pins_not_loaded"})
        assert missed is not None
        async with kvstate(nats_bus):  # without pins, as if all were removed meanwhile
            await until(lambda: service.registry.get_sample_value("ryz_router_pins") == 0)


async def test_a_pinned_group_that_is_full_refuses_and_one_that_drains_gives_way(
    nats_url: str, nats_bus: NatsBus, caller: Caller, leaders: list[Leader]
) -> None:
    pinned = leaders[0]
    async with kvstate(nats_bus, Pinned(tenant="default", session_id="s", group=pinned.group)):
        pinned.load = Load(running=4, waiting=2, max_running=4, max_waiting=2)
        async with router(nats_url) as service:
            await until_known(service, pinned)
            failed = await caller.failure(caller.request("s"))
            assert (failed.code, failed.data["reason"]) == ("overloaded", "pin_full")
            assert 0.08 <= failed.data["retry_after_s"] <= 36
            pinned.load, pinned.state = Load(max_running=64, max_waiting=64), "draining"
            await until_known(service, pinned)
            route = await reason_of(caller, leaders, caller.request("s"))
            assert route[:2] == (leaders[1].group, "pin_away")
            pinned.state = "ready"
            await until_known(service, pinned)
            assert (await reason_of(caller, leaders, caller.request("s")))[1] == "pinned"


async def test_all_routers_follow_a_session_that_leaders_say_has_moved(
    nats_url: str, nats_bus: NatsBus, caller: Caller, leaders: list[Leader], model_name: str
) -> None:
    async with router(nats_url), router(nats_url):
        home = await caller.group_of("s")
        there = other(leaders, home).group
        turn = SessionTurn(tenant="default", session_id="s", group=there, num_tokens=500)
        await publish(nats_bus, subjects.SESSION_TURNS, SessionTurns(turns=[turn]))
        for _ in range(6):
            assert await reason_of(caller, leaders, caller.request("s")) == (there, "last_group", there)
        assert await caller.group_of("s") == there
        await publish(nats_bus, subjects.SESSION_GONE, SessionGone(tenant="default", session_id="s"))
        routes = [await ask_route(nats_bus, "s", model_name) for _ in range(6)]
        assert {(route.home, route.last_group) for route in routes} == {(home, "")}
        assert await caller.group_of("s") == home


async def test_a_busy_group_is_left_and_the_session_stays_where_it_went(
    nats_url: str, nats_bus: NatsBus, caller: Caller, leaders: list[Leader]
) -> None:
    async with router(nats_url) as service:
        home = await caller.group_of("s")
        busy = next(leader for leader in leaders if leader.group == home)
        there = other(leaders, home).group
        turn = SessionTurn(tenant="default", session_id="s", group=home, num_tokens=100)
        await publish(nats_bus, subjects.SESSION_TURNS, SessionTurns(turns=[turn]))
        busy.load = Load(running=64, waiting=8, max_running=64, max_waiting=64, queued_tokens=9000,
                         tokens_per_s=100.0)  # fmt: skip
        await until_known(service, busy)
        assert await reason_of(caller, leaders, caller.request("s")) == (there, "spill_wait", home)
        busy.load = Load(max_running=64, max_waiting=64)
        await until_known(service, busy)
        assert await reason_of(caller, leaders, caller.request("s")) == (there, "last_group", there)
        assert service.registry.get_sample_value("ryz_router_move_seconds_count") == 1


async def test_the_route_of_a_session_names_home_pin_last_and_groups(
    nats_url: str, nats_bus: NatsBus, caller: Caller, leaders: list[Leader], model_name: str
) -> None:
    async with router(nats_url) as service:
        home = await caller.group_of("s")
        there = other(leaders, home)
        await publish(
            nats_bus, subjects.SESSION_PINNED, Pinned(tenant="default", session_id="s", group=there.group)
        )
        there.state = "draining"
        await until_known(service, there)
        route = await ask_route(nats_bus, "s", model_name)
        assert (route.home, route.pinned_group, route.last_group) == (home, there.group, home)
        assert route.groups == {home: "ready", there.group: "draining"}
        stranger = await ask_route(nats_bus, "s", model_name, tenant="other")
        assert (stranger.pinned_group, stranger.last_group) == ("", "")
        assert await ask_route(nats_bus, "new", "no-such-model") == SessionRoute()


async def test_bad_news_is_counted_and_nothing_dies(
    nats_url: str, nats_bus: NatsBus, caller: Caller, leaders: list[Leader]
) -> None:
    async with router(nats_url) as service:
        for subject in (subjects.SESSION_TURNS, subjects.SESSION_PINNED, subjects.SESSION_GONE):
            await nats_bus.publish(subject, b"\xc1")
        reply = await nats_bus.request(subjects.SESSION_ROUTE, b"\xc1", timeout_s=PATIENCE_S)
        with pytest.raises(InvalidRequest):
            decode_reply(reply.data, SessionRoute)
        events = {"event": "bad_session_news"}
        await until(lambda: service.registry.get_sample_value("ryz_router_events_total", events) == 4)
        assert await caller.group_of("s") in {leader.group for leader in leaders}


async def test_status_and_metrics_show_sessions_and_pins(
    nats_url: str, nats_bus: NatsBus, caller: Caller, leaders: list[Leader], model_name: str
) -> None:
    async with router(nats_url) as service:
        await caller.group_of("s")
        await publish(
            nats_bus, subjects.SESSION_PINNED, Pinned(tenant="t", session_id="x", group=leaders[0].group)
        )
        reply = await nats_bus.request(subjects.STATUS, encode(StatusQuery()), timeout_s=PATIENCE_S)
        detail = decode_reply(reply.data, ServiceStatus).detail
        assert (detail["sessions"], detail["pins"]) == (1, 1)
        assert service.registry.get_sample_value("ryz_router_sessions") == 1
        assert service.registry.get_sample_value("ryz_router_work_imbalance", {"model": model_name}) == 0
        for leader, rate in zip(leaders, (300.0, 100.0), strict=True):
            leader.load = Load(max_running=64, tokens_per_s=rate)
        await asyncio.sleep(10 * BEAT_MS / 1000)
        uneven = service.registry.get_sample_value("ryz_router_work_imbalance", {"model": model_name})
        assert uneven is not None
        assert 0.3 < uneven < 0.7  # three quarters of the work instead of half


async def test_a_key_of_the_body_leads_to_one_group_also_after_a_router_restarts(
    nats_url: str, nats_bus: NatsBus, caller: Caller, leaders: list[Leader]
) -> None:
    """Requests without a session, each of another text: eight keys, so none shares a group by its text."""

    def request(number: int, turn: int) -> GenerateRequest:
        key = named_root("default", "prompt_cache_key", f"agent-{number}")
        return caller.request(prompt=f"{turn} of {number}", route_key=key)

    async def groups(turn: int) -> list[str]:
        async with router(nats_url) as service:
            await until_known(service, *leaders)
            return [(await reason_of(caller, leaders, request(number, turn)))[0] for number in range(8)]

    first = await groups(0)
    assert len(set(first)) == 2
    assert [await groups(turn) for turn in (1, 2)] == [first, first]
