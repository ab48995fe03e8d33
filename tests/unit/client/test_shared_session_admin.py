"""`SessionAdmin`, with which other Python services read and change sessions. See also the gateway's tests."""

import asyncio
from functools import partial

import msgspec
import pytest

from shared import subjects
from shared.bus.api import Message
from shared.client.calls import session_fleet
from shared.client.calls.session_admin import SessionAdmin
from shared.codec import decode, pack_tokens
from shared.errors import Conflict, InvalidRequest, RateLimited, SessionNotFound, Unavailable
from shared.messages import HoldersQuery, SessionRecord, WarmSession
from tests.kits.gateway.session_services import SessionServices
from tests.kits.memory_bus import MemoryBus
from tests.kits.waiting import PATIENCE_S, until

RECORD = SessionRecord(
    session_id="s1", tenant="acme", model="demo", version=1, token_ids=pack_tokens(range(32))
)


async def test_leaders_are_waited_for_until_all_expected_have_answered(memory_bus: MemoryBus) -> None:
    services = await SessionServices(memory_bus).start()
    services.holdings = {"g1": 16}
    admin = SessionAdmin(memory_bus, gather_s=10 * PATIENCE_S, timeout_s=2.0)
    async with asyncio.timeout(PATIENCE_S):
        held = await admin.fleet.holders("acme", RECORD.token_ids, expected={"g0", "g1"})
    assert [(one.group, one.cached_tokens, one.num_tokens) for one in held] == [("g0", 0, 32), ("g1", 16, 32)]
    hasty = SessionAdmin(memory_bus, gather_s=0.05, timeout_s=2.0)
    for expected in (set[str](), {"g0", "g1", "g2"}):
        assert len(await hasty.fleet.holders("acme", b"", expected=expected)) == 2
    await services.leave(subjects.KV_HOLDERS)
    async with asyncio.timeout(PATIENCE_S):
        assert await admin.fleet.holders("acme", b"") == []


async def test_a_view_joins_what_all_of_them_know(memory_bus: MemoryBus) -> None:
    services = await SessionServices(memory_bus).start()
    services.holdings = {"g1": 16}
    admin = SessionAdmin(memory_bus, timeout_s=2.0, gather_s=0.1)
    assert (await admin.create(RECORD, pinned_group="g1")).pinned_group == "g1"
    view = await admin.view("acme", "s1")
    assert (view.summary.pinned_group, view.record) == ("g1", RECORD)
    assert view.route is not None
    assert view.route.home == "g0"
    assert [one.group for one in view.holdings] == ["g1"]
    with pytest.raises(SessionNotFound):
        await admin.view("other", "s1")


async def test_what_is_refused_has_changed_nothing(memory_bus: MemoryBus) -> None:
    services = await SessionServices(memory_bus).start()
    admin = SessionAdmin(memory_bus, timeout_s=2.0, gather_s=0.1)
    await admin.create(RECORD)
    with pytest.raises(Conflict):
        await admin.create(msgspec.structs.replace(RECORD, turns=9))
    with pytest.raises(InvalidRequest, match=r"there are g0 \(ready\), g1 \(ready\)"):
        await admin.pin("acme", "s1", "g9")
    services.groups = {}
    with pytest.raises(InvalidRequest, match="none does at the moment"):
        await admin.move("acme", "s1", "g0")
    assert services.records == {("acme", "s1"): RECORD}
    assert (services.pins, services.warmed) == ({}, [])


async def test_an_error_says_who_is_away_and_when_to_come_back(memory_bus: MemoryBus) -> None:
    with pytest.raises(Unavailable, match="the router does not answer") as caught:
        await SessionAdmin(memory_bus, timeout_s=2.0, gather_s=0.1).fleet.route("acme", "s1", "demo")
    assert caught.value.data == {"reason": "no_router", "retry_after_s": 1.0}
    services = await SessionServices(memory_bus).start()
    services.failing[subjects.SESSION_LIST] = Unavailable(
        "Redis is away", reason="session_store", retry_after_s=7
    )
    with pytest.raises(Unavailable, match="Redis is away") as caught:
        await SessionAdmin(memory_bus, timeout_s=2.0, gather_s=0.1).page("acme")
    assert caught.value.retry_after_s == 7


@pytest.mark.parametrize("how", ["view", "move"])
async def test_a_tenant_asks_leaders_about_two_sessions_at_a_time(memory_bus: MemoryBus, how: str) -> None:
    """A view makes every leader send a whole sequence, and a move makes one leader fetch it."""
    services = await SessionServices(memory_bus).start()
    admin, asked = SessionAdmin(memory_bus, gather_s=30.0, timeout_s=30.0), list[str]()
    for tenant in ("acme", "other"):
        await admin.create(msgspec.structs.replace(RECORD, tenant=tenant))
    subject = subjects.KV_HOLDERS if how == "view" else subjects.warm("g0")
    await services.leave(subject)

    async def silent(message: Message) -> None:
        if how == "view":
            asked.append(decode(message.data, HoldersQuery).tenant)
        else:
            asked.append(decode(message.data, WarmSession).tenant)

    def calls(tenant: str, count: int) -> list[asyncio.Task[object]]:
        ask = admin.view if how == "view" else partial(admin.move, group="g0")
        return [asyncio.create_task(ask(tenant, "s1")) for _ in range(count)]

    await memory_bus.subscribe(subject, silent)
    flood = calls("acme", 48)
    await until(lambda: len(asked) >= 2)
    await asyncio.sleep(0.1)
    assert asked == ["acme"] * 2
    beside = calls("other", 1)
    await until(lambda: len(asked) > 2)
    assert asked == ["acme"] * 2 + ["other"]
    more = calls("acme", session_fleet.MAX_WAITING)
    done, _ = await asyncio.wait(more, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
    refusal = done.pop().exception()
    assert isinstance(refusal, RateLimited)
    assert refusal.data["reason"] == "session_calls"
    for task in (*flood, *beside, *more):
        task.cancel()
    await asyncio.gather(*flood, *beside, *more, return_exceptions=True)
    asked.clear()
    again = calls("acme", 1)
    await until(lambda: asked == ["acme"])
    again[0].cancel()
    await asyncio.gather(*again, return_exceptions=True)
