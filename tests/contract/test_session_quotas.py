"""Quotas of a tenant, in every session store: counts and bytes stay exact, also under concurrent commits."""

import asyncio
from collections import Counter

from msgspec.structs import replace

from services.kvstate.domain.session_merge import SessionEntry, Verdict
from services.kvstate.domain.session_quota import SessionLives, SessionQuotas, size_of
from services.kvstate.sessions.store import PinOutcome, SessionStore
from shared.messages import Limits
from tests.kits.kvstate.session_store import (
    MakeStore,
    entry,
    made_id,
    make_store,
    now_ms,
    open_store,
    put,
    tenant,
)
from tests.kits.servers import GuardedRedis

__all__ = ["make_store", "tenant"]
OVER, STORE = Verdict.OVER_QUOTA, Verdict.STORE


def size(one: SessionEntry) -> int:
    return size_of(one)


async def listed(store: SessionStore, tenant: str) -> set[str]:
    return {summary.session_id for summary in (await store.list_page(tenant, 1000, None)).sessions}


async def test_a_new_session_over_the_count_is_refused(make_store: MakeStore, tenant: str) -> None:
    store = make_store(quotas=SessionQuotas(session_max_per_tenant=3))
    done = await store.put_records([entry(tenant, f"s{n}") for n in range(5)])
    assert done.verdicts == [STORE, STORE, STORE, OVER, OVER]
    assert await put(store, [entry(tenant, "s1", 2)]) == [True]  # existing sessions take further commits
    assert (await store.put_records([entry(tenant + "x", "s9")])).verdicts == [STORE]
    assert await listed(store, tenant) == {"s0", "s1", "s2"}
    assert await store.delete_session(tenant, "s0")
    assert (await store.put_records([entry(tenant, "s3"), entry(tenant, "s4")])).verdicts == [STORE, OVER]


async def test_a_tenants_own_limit_comes_before_that_of_the_settings(
    guarded_redis: GuardedRedis, tenant: str
) -> None:
    own = {tenant: Limits(sessions=2), tenant + "y": Limits()}
    store = open_store(
        guarded_redis.url("kvstate"), quotas=SessionQuotas(session_max_per_tenant=3), limits_of=own.get
    )
    names = [tenant, tenant + "x", tenant + "y"]
    mixed = [entry(name, f"s{number}") for number in range(4) for name in names]
    done = await store.put_records(mixed)
    assert done.verdicts == [STORE] * 6 + [OVER, STORE, STORE] + [OVER] * 3, "in the order of the entries"
    await store.close()


async def test_sessions_live_as_long_as_their_tenant_says(guarded_redis: GuardedRedis, tenant: str) -> None:
    own = {tenant: 1, tenant + "y": 30}
    store = open_store(
        guarded_redis.url("kvstate"), lives=SessionLives(3600.0 * 48), days_of=lambda name: own.get(name, 0)
    )
    names = [tenant, tenant + "x", tenant + "y"]
    assert await put(store, [entry(name, "s") for name in names]) == [True] * 3
    for name, days in zip(names, (1, 2, 30), strict=True):
        described = await store.describe_session(name, "s")
        assert described is not None
        assert (days - 1) * 86_400 < described.ttl_s <= days * 86_400
        assert await listed(store, name) == {"s"}
    await store.close()


async def test_a_shorter_time_holds_for_sessions_that_are_there(
    guarded_redis: GuardedRedis, tenant: str
) -> None:
    store = open_store(guarded_redis.url("kvstate"), lives=SessionLives(3600.0 * 24 * 60))
    day_ms, at_ms = 86_400_000, now_ms()
    names, other = [f"s{number:03}" for number in range(300)], tenant + "x"  # more than a page
    ages = {name: index % 10 for index, name in enumerate(names)}  # days
    for name, days in ages.items():
        one = entry(tenant, name)
        assert await put(store, [replace(one, score_ms=at_ms - days * day_ms)]) == [True]
    assert await put(store, [replace(entry(other, "s000"), score_ms=at_ms - 9 * day_ms)]) == [True]
    assert await store.pin_session(tenant, "s009", "g1") == PinOutcome.DONE
    assert await store.shorten(tenant, 7) == 89, "those of 7, 8 and 9 days, but for the pinned one"
    left = await listed(store, tenant)
    assert left == {name for name, days in ages.items() if days < 7} | {"s009"}
    for name in left:
        described = await store.describe_session(tenant, name)
        assert described is not None
        assert round(described.ttl_s / 86_400, 2) == (7 if name == "s009" else 7 - ages[name])
    assert await listed(store, other) == {"s000"}
    assert await store.shorten(tenant, 7) == 0
    await store.close()


async def test_bytes_are_counted_over_overwrites_and_deletions(make_store: MakeStore, tenant: str) -> None:
    first = entry(tenant, "a", text="x" * 1000)
    store = make_store(quotas=SessionQuotas(session_bytes_per_tenant=2 * size(first) + 500))
    assert await put(store, [first, entry(tenant, "b", text="x" * 1000)]) == [True, True]
    grown = entry(tenant, "a", 2, text="x" * 2000)
    assert (await store.put_records([grown, entry(tenant, "c")])).verdicts == [OVER, OVER]
    assert await store.get_record(tenant, "a") == first.record
    assert await put(store, [entry(tenant, "a", 3, text="x")]) == [True]  # smaller than before
    assert await put(store, [entry(tenant, "b", 2, text="x" * 2000)]) == [True]
    await store.delete_session(tenant, "b")
    assert await put(store, [entry(tenant, "d", text="x" * 2000)]) == [True]


async def test_what_expired_leaves_the_account(make_store: MakeStore, tenant: str) -> None:
    one = entry(tenant, "s0")
    quotas = SessionQuotas(session_max_per_tenant=2, session_bytes_per_tenant=2 * size(one) + 10)
    store = make_store(lives=SessionLives(0.2), quotas=quotas)
    for _ in range(3):
        done = await store.put_records([entry(tenant, f"s{n}") for n in range(3)])
        assert done.verdicts == [STORE, STORE, OVER]
        await asyncio.sleep(0.25)
    assert await listed(store, tenant) == set()


async def test_an_expired_session_that_begins_anew_at_the_quota_counts_once(
    make_store: MakeStore, tenant: str
) -> None:
    one = entry(tenant, "s0", text="x" * 1000)
    store = make_store(
        lives=SessionLives(1.0), quotas=SessionQuotas(session_bytes_per_tenant=size(one) + 300)
    )
    assert await put(store, [one]) == [True]
    await asyncio.sleep(1.1)
    larger = entry(tenant, "s0", text="x" * 1600)
    assert (await store.put_records([larger])).verdicts == [OVER]
    assert await put(store, [entry(tenant, "s0", text="x" * 1200)]) == [True]
    assert (await store.put_records([entry(tenant, "s1")])).verdicts == [OVER]


async def test_sessions_that_no_caller_wanted_go_first(make_store: MakeStore, tenant: str) -> None:
    store = make_store(quotas=SessionQuotas(session_max_per_tenant=4))
    began = now_ms()
    await put(store, [entry(tenant, made_id(n), created_ms=began) for n in range(3)])
    await put(store, [entry(tenant, "named")])
    await put(store, [entry(tenant, made_id(0), 2, created_ms=began)])  # the caller's second turn
    await store.pin_session(tenant, made_id(1), "g1")
    done = await store.put_records([entry(tenant, "new")])
    assert (done.verdicts, done.dropped) == ([STORE], 1)
    assert await listed(store, tenant) == {made_id(0), made_id(1), "named", "new"}
    assert (await store.put_records([entry(tenant, "newer")])).verdicts == [OVER]
    assert (await store.put_records([entry(tenant, made_id(9))])).verdicts == [OVER]
    assert await store.get_record(tenant, made_id(2)) is None
    assert await store.deleted_ms(tenant, made_id(2)) is None  # no tombstone, as after an expiry


async def test_no_session_goes_for_one_that_does_not_fit_all_the_same(
    make_store: MakeStore, tenant: str
) -> None:
    store = make_store(quotas=SessionQuotas(session_bytes_per_tenant=10_000))
    await put(store, [entry(tenant, made_id(n)) for n in range(3)])
    done = await store.put_records([entry(tenant, "large", text="x" * 20_000)])
    assert (done.verdicts, done.dropped) == ([OVER], 0)
    done = await store.put_records([entry(tenant, "middle", text="x" * 7_500)])
    assert done.verdicts == [STORE]
    assert 1 <= done.dropped <= 3
    assert len(await listed(store, tenant)) == 4 - done.dropped


async def test_racing_puts_do_not_pass_the_quota(make_store: MakeStore, tenant: str) -> None:
    quotas = SessionQuotas(session_max_per_tenant=25)
    stores = [make_store(quotas=quotas), make_store(quotas=quotas)]
    if (await stores[0].put_records([entry(tenant, "s0")])) and await stores[1].get_record(
        tenant, "s0"
    ) is None:
        stores = stores[:1]  # two stores in memory share nothing
    puts = [
        stores[n % len(stores)].put_records([entry(tenant, f"s{n}"), entry(tenant, f"t{n}")])
        for n in range(100)
    ]
    verdicts = Counter(v for done in await asyncio.gather(*puts) for v in done.verdicts)
    assert verdicts[STORE] + verdicts[Verdict.STALE] + verdicts[Verdict.KEEP] + verdicts[OVER] == 200
    assert len(await listed(stores[0], tenant)) == 25


async def test_a_tally_tells_who_is_nearly_full(make_store: MakeStore, tenant: str) -> None:
    store = make_store(quotas=SessionQuotas(session_max_per_tenant=10))
    before = await store.tally()
    await store.put_records([entry(tenant, f"s{n}") for n in range(9)])
    after = await store.tally()
    assert after.nearly_full == before.nearly_full + 1
    assert after.num_bytes >= 9 * size(entry(tenant, "s0")) - 100


async def test_pins_over_the_quota_are_refused_and_say_so(make_store: MakeStore, tenant: str) -> None:
    store = make_store(quotas=SessionQuotas(session_pins_per_tenant=2))
    other = tenant + "x"
    await store.put_records([entry(owner, f"s{n}") for owner in (tenant, other) for n in range(4)])
    outcomes = [await store.pin_session(tenant, f"s{n}", "g1") for n in range(3)]
    assert outcomes == [PinOutcome.DONE, PinOutcome.DONE, PinOutcome.TENANT_FULL]
    summary = await store.describe_session(tenant, "s2")
    assert summary is not None
    assert summary.pinned_group == ""
    assert await store.pin_session(tenant, "s1", "g2") is PinOutcome.DONE  # a pin may change
    assert await store.pin_session(other, "s0", "g1") is PinOutcome.DONE
    assert await store.pin_session(tenant, "s0", "") is PinOutcome.DONE
    assert await store.pin_session(tenant, "s2", "g1") is PinOutcome.DONE
    await store.delete_session(tenant, "s2")
    assert await store.pin_session(tenant, "s3", "g1") is PinOutcome.DONE


async def test_pins_of_expired_sessions_do_not_count(make_store: MakeStore, tenant: str) -> None:
    store = make_store(lives=SessionLives(1.0), quotas=SessionQuotas(session_pins_per_tenant=1))
    await store.put_records([entry(tenant, "s0")])
    assert await store.pin_session(tenant, "s0", "g1") is PinOutcome.DONE
    await asyncio.sleep(1.1)
    await store.put_records([entry(tenant, "s1")])
    assert await store.pin_session(tenant, "s1", "g1") is PinOutcome.DONE


async def test_pins_of_all_tenants_are_bounded(make_store: MakeStore, tenant: str) -> None:
    everything = make_store()
    store = make_store(quotas=SessionQuotas(router_pins_max=1))
    pinned = len((await everything.list_pins(1000, "")).pins)  # pins of other tests, in the same Redis
    await store.put_records([entry(tenant, "s0"), entry(tenant + "x", "s0")])
    if not pinned:
        assert await store.pin_session(tenant, "s0", "g1") is PinOutcome.DONE
    assert await store.pin_session(tenant + "x", "s0", "g1") is PinOutcome.ALL_FULL


async def test_a_late_turn_does_not_overwrite_the_session_that_has_the_id_now(
    make_store: MakeStore, tenant: str
) -> None:
    store, began = make_store(), now_ms() - 5000
    await store.put_records([entry(tenant, "s", 5, "secret", created_ms=began)])
    await store.delete_session(tenant, "s")
    again = entry(tenant, "s", 1, "new", created_ms=now_ms() + 1000)
    assert await put(store, [again]) == [True]
    late = entry(tenant, "s", 6, "secret, and more", created_ms=began)
    assert (await store.put_records([late])).verdicts == [Verdict.DELETED]
    assert await store.get_record(tenant, "s") == again.record
    assert await put(store, [entry(tenant, "s", 2, "new", created_ms=again.created_ms)]) == [True]
    assert (await store.put_records([late])).verdicts == [Verdict.DELETED]


async def test_a_turn_that_comes_later_than_deletions_are_remembered_is_not_stored(
    make_store: MakeStore, tenant: str
) -> None:
    store, began = make_store(tombstone_s=2.0), now_ms() - 5000
    await store.put_records([entry(tenant, "s", 5, created_ms=began)])
    late = entry(tenant, "s", 6, created_ms=began)
    await store.delete_session(tenant, "s")
    assert (await store.put_records([late])).verdicts == [Verdict.DELETED]
    await asyncio.sleep(2.2)
    assert (await store.put_records([late])).verdicts == [Verdict.DELETED]
    lost = entry(tenant, "lost", 6, created_ms=began)  # after a loss, the store takes recent sessions
    assert (await store.put_records([lost])).verdicts == [STORE]


async def test_deletions_of_a_tenant_are_remembered_in_bounded_memory(
    make_store: MakeStore, tenant: str
) -> None:
    store, began = make_store(quotas=SessionQuotas(session_max_per_tenant=5)), now_ms() - 5000
    for number in range(20):
        assert await put(store, [entry(tenant, f"s{number}", created_ms=began)]) == [True] or number > 5
        await store.delete_session(tenant, f"s{number}")
    late = [entry(tenant, f"s{number}", 2, created_ms=began) for number in range(20)]
    assert {verdict for one in late for verdict in (await store.put_records([one])).verdicts} == {
        Verdict.DELETED
    }
    assert (await store.put_records([entry(tenant + "x", "s0", 2, created_ms=began)])).verdicts == [STORE]
    later = now_ms() + 1000
    assert (await store.put_records([entry(tenant, "s0", created_ms=later)])).verdicts == [STORE]
