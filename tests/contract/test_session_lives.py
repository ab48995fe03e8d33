"""How long sessions live, in every session store: spare ones for a short time, others for a long one."""

import asyncio

from services.kvstate.domain.session_merge import PageCursor
from services.kvstate.domain.session_quota import SessionLives, SessionQuotas
from services.kvstate.sessions.store import PinOutcome, SessionStore
from tests.kits.kvstate.session_store import MakeStore, entry, made_id, make_store, now_ms, put, tenant

__all__ = ["make_store", "tenant"]
LIVES = SessionLives(session_ttl_s=3600.0, session_spare_ttl_s=60.0)
SPARE = made_id(7)


async def left_s(store: SessionStore, tenant: str, session_id: str) -> int:
    summary = await store.describe_session(tenant, session_id)
    assert summary is not None
    return summary.ttl_s


async def test_a_session_that_no_caller_named_lives_shortly_until_its_second_turn(
    make_store: MakeStore, tenant: str
) -> None:
    store = make_store(lives=LIVES)
    assert await put(store, [entry(tenant, SPARE), entry(tenant, "named")]) == [True, True]
    assert 50 <= await left_s(store, tenant, SPARE) <= 60
    assert 3590 <= await left_s(store, tenant, "named") <= 3600
    assert await put(store, [entry(tenant, SPARE, 2)]) == [True]
    assert 3590 <= await left_s(store, tenant, SPARE) <= 3600


async def test_a_pin_makes_the_life_of_a_session_long(make_store: MakeStore, tenant: str) -> None:
    store = make_store(lives=LIVES)
    await store.put_records([entry(tenant, SPARE)])
    assert await store.pin_session(tenant, SPARE, "g1") is PinOutcome.DONE
    assert 3590 <= await left_s(store, tenant, SPARE) <= 3600
    assert await store.pin_session(tenant, SPARE, "") is PinOutcome.DONE
    assert 3590 <= await left_s(store, tenant, SPARE) <= 3600


async def test_spare_sessions_expire_and_leave_list_and_account(make_store: MakeStore, tenant: str) -> None:
    store = make_store(lives=SessionLives(3600.0, 0.2), quotas=SessionQuotas(session_max_per_tenant=3))
    spare = [entry(tenant, made_id(number)) for number in range(2)]
    assert await put(store, [*spare, entry(tenant, "named")]) == [True] * 3
    await asyncio.sleep(0.25)
    assert [s.session_id for s in (await store.list_page(tenant, 10, None)).sessions] == ["named"]
    outcome = await store.put_records([entry(tenant, f"later{number}") for number in range(2)])
    assert all(verdict.stored for verdict in outcome.verdicts)
    assert outcome.dropped == 0, "they had expired before"


async def test_a_spare_session_never_lives_longer_than_others(make_store: MakeStore, tenant: str) -> None:
    store = make_store(lives=SessionLives(session_ttl_s=30.0, session_spare_ttl_s=60.0))
    await store.put_records([entry(tenant, SPARE)])
    assert 20 <= await left_s(store, tenant, SPARE) <= 30


async def test_a_list_may_leave_out_spare_sessions(make_store: MakeStore, tenant: str) -> None:
    store, base, many = make_store(lives=LIVES), now_ms() - 10_000, 1100
    spare = [entry(tenant, made_id(number), updated_ms=base + number) for number in range(many)]
    named = [entry(tenant, f"named{number}", updated_ms=base + 500 * number) for number in range(3)]
    pinned, second = made_id(many), made_id(many + 1)
    others = [entry(tenant, pinned, updated_ms=base - 2), entry(tenant, second, 2, updated_ms=base - 3)]
    await store.put_records([*spare, *named, *others, entry(tenant + "x", "foreign")])
    await store.pin_session(tenant, pinned, "g1")
    seen: list[str] = []
    after: PageCursor | None = None
    for _ in range(5):
        page = await store.list_page(tenant, 2, after, spare=False)
        seen += [summary.session_id for summary in page.sessions]
        after = page.last
        if after is None:
            break
    assert seen == ["named2", "named1", "named0", pinned, second]
    assert len((await store.list_page(tenant, 1000, None)).sessions) == 1000
