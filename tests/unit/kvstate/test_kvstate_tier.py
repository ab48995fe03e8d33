"""Which blocks the KV tier keeps: quotas, limits, eviction. The store is in memory and has a test clock."""

from collections import Counter
from collections.abc import Callable, Sequence
from uuid import uuid4

import pytest
from prometheus_client import CollectorRegistry

from services.kvstate.blocks.metrics import MAX_TENANT_LABELS, OTHER_TENANTS, TierCollector
from services.kvstate.blocks.store import (
    BlockTotals,
    BlockUsage,
    FoundBlocks,
    RegisteredBlocks,
    WrittenBlocks,
)
from services.kvstate.blocks.sweep import BlockSweeper, SweepRules
from services.kvstate.blocks.tier import BlockTier, TierLimits
from services.kvstate.domain.session_quota import LimitsOf, no_own_limits
from services.kvstate.redis.store_errors import StoreFull
from services.kvstate.sessions.store import SessionFate
from shared.errors import Unavailable
from shared.messages import BlocksCommitted, HeldBlocks, Limits
from tests.kits.kvstate.memory_blocks import MemoryBlockStore

SIZE = 100
NEW = SessionFate(has_record=False, deleted=False)


class FullStore(MemoryBlockStore):
    """Has no memory for the next `refusals` registrations, nor for leases if `no_leases` is set."""

    refusals = 0
    no_leases = False

    async def register_blocks(self, written: Sequence[WrittenBlocks]) -> list[RegisteredBlocks]:
        if self.refusals:
            self.refusals -= 1
            raise StoreFull("full")
        return await super().register_blocks(written)

    async def find_blocks(self, names: Sequence[bytes], lease_ms: int, parts: int = 0) -> FoundBlocks:
        if lease_ms and self.no_leases:
            raise StoreFull("full")
        return await super().find_blocks(names, lease_ms, parts)


class Kit:
    """A tier and its sweeper on a store in memory, whose clock the test sets."""

    def __init__(
        self,
        limits: TierLimits = TierLimits(),  # noqa: B008 (frozen)
        limits_of: LimitsOf = no_own_limits,
    ) -> None:
        self.now_s = 1000.0
        self.store = FullStore(clock=lambda: self.now_s)
        self.gone: Counter[str] = Counter()
        self.fates: dict[tuple[str, str], SessionFate] = {}
        self.after_asking: Callable[[], None] = lambda: None
        self.sessions_away = False
        self.tier = BlockTier(self.store, limits, self.evicted, self.ask_fates, limits_of)
        rules = SweepRules(
            owner="me", every_s=1.0, away_every_s=0.25, grace_s=60.0, orphan_s=900.0, recheck_s=5.0
        )
        self.sweeper = BlockSweeper(self.tier, self.store, rules, self.evicted, self.ask_fates)

    async def ask_fates(self, keys: Sequence[tuple[str, str]]) -> list[SessionFate]:
        if self.sessions_away:
            raise Unavailable("away", reason="session_store")
        found = [self.fates.get(key, NEW) for key in keys]
        self.after_asking()
        return found

    def evicted(self, reason: str, blocks: int) -> None:
        if blocks:
            self.gone[reason] += blocks

    def chain(self, length: int) -> list[bytes]:
        names = [uuid4().bytes for _ in range(length)]
        self.store.data |= {name: {b"0": bytes(SIZE)} for name in names}
        return names

    async def commit(self, *entries: tuple[str, str, list[bytes]]) -> BlocksCommitted:
        self.now_s += 1000
        return await self.tier.commit_blocks(
            [
                HeldBlocks(tenant=tenant, session_id=session_id, names=b"".join(names), parts=1)
                for tenant, session_id, names in entries
            ]
        )

    async def alive(self, names: Sequence[bytes]) -> int:
        return sum([(await self.tier.find_blocks([name], 0)).blocks for name in names])


async def test_a_commit_says_what_is_stored_now() -> None:
    kit = Kit()
    names = kit.chain(4)
    del kit.store.data[names[2]]
    assert await kit.commit(("a", "s", names), ("a", "t", names[:1])) == BlocksCommitted(stored=3)
    assert (await kit.tier.usage_of("a", ["s", "t"]))[0].blocks == 3
    assert not kit.gone


async def test_a_session_over_its_quota_keeps_its_beginning() -> None:
    kit = Kit(TierLimits(kv_session_bytes=3 * SIZE))
    names = kit.chain(5)
    done = await kit.commit(("a", "s", names), ("a", "t", kit.chain(3)), ("a", "", kit.chain(9)))
    assert done == BlocksCommitted(stored=15, over_quota=[0])
    assert (await kit.tier.find_blocks(names, 0)).blocks == 3
    assert names[4] not in kit.store.data
    assert kit.gone == {"session_quota": 2}


async def test_another_sessions_blocks_outlive_a_session_over_its_quota() -> None:
    kit = Kit(TierLimits(kv_session_bytes=3 * SIZE))
    names = kit.chain(5)
    await kit.commit(("a", "", names))
    assert (await kit.commit(("a", "s", names))).over_quota == [0]
    assert await kit.alive(names) == 5
    assert (await kit.tier.usage_of("a", ["s"]))[0].blocks == 3


async def test_a_tenant_over_its_quota_loses_its_oldest_first() -> None:
    kit = Kit(TierLimits(kv_tenant_bytes=5 * SIZE))
    old, new, other = kit.chain(3), kit.chain(4), kit.chain(9)
    await kit.commit(("a", "s", old))
    await kit.commit(("b", "s", other[:5]))
    assert await kit.commit(("a", "t", new)) == BlocksCommitted(stored=4, evicted=2)
    assert (await kit.tier.find_blocks(old, 0)).blocks == 1
    assert kit.gone == {"tenant_quota": 2}


async def test_a_tenants_own_limit_comes_before_that_of_the_settings() -> None:
    own = {"a": Limits(kv_bytes=3 * SIZE), "b": Limits()}
    kit = Kit(TierLimits(kv_tenant_bytes=5 * SIZE), own.get)
    assert (await kit.commit(("a", "s", kit.chain(4)))).stored == 3
    assert (await kit.commit(("b", "s", kit.chain(6)))).stored == 5
    assert (await kit.commit(("c", "s", kit.chain(6)))).stored == 5


async def test_a_tenant_whose_blocks_are_leased_gets_no_new_ones() -> None:
    kit = Kit(TierLimits(kv_tenant_bytes=5 * SIZE))
    old, new = kit.chain(3), kit.chain(4)
    await kit.commit(("a", "s", old))
    await kit.tier.find_blocks(old, 10_000_000)
    assert await kit.commit(("a", "t", new)) == BlocksCommitted(stored=2, over_quota=[0])
    assert (await kit.tier.find_blocks(new, 0)).blocks == 2
    assert await kit.alive(old) == 3
    assert (await kit.tier.usage_of("a", ["t"]))[0].num_bytes == 2 * SIZE


async def test_above_the_high_mark_the_oldest_go() -> None:
    kit = Kit(TierLimits(kv_max_bytes=20 * SIZE))
    old, new = kit.chain(10), kit.chain(10)
    await kit.commit(("a", "s", old))
    done = await kit.commit(("b", "s", new))
    assert done == BlocksCommitted(stored=10, evicted=3)
    assert (await kit.tier.find_blocks(old, 0)).blocks == 7
    assert kit.gone == {"age": 3}
    assert not kit.tier.full


async def test_when_nothing_can_go_the_new_ones_do_and_leaders_pause() -> None:
    kit = Kit(TierLimits(kv_max_bytes=20 * SIZE, pause_ms=77))
    old, new = kit.chain(15), kit.chain(10)
    await kit.commit(("a", "s", old))
    await kit.tier.find_blocks(old, 10_000_000)
    done = await kit.commit(("b", "s", new))
    assert done == BlocksCommitted(stored=5, pause_ms=77)
    assert kit.tier.full
    assert (await kit.tier.find_blocks(new, 0)).blocks == 5
    assert await kit.alive(old) == 15
    kit.now_s += 20_000
    assert (await kit.commit(("b", "s", new[:5]))).pause_ms == 0
    assert not kit.tier.full


async def test_a_full_redis_makes_room_once_and_then_asks_for_a_pause() -> None:
    kit = Kit()
    old, new = kit.chain(10), kit.chain(2)
    await kit.commit(("a", "s", old))
    await kit.tier.refresh_totals()
    kit.store.refusals = 1
    assert await kit.commit(("b", "s", new)) == BlocksCommitted(stored=2, evicted=2)
    assert kit.gone == {"memory": 2}
    kit.store.refusals = 2
    assert (await kit.commit(("b", "t", kit.chain(1)))).pause_ms == 1000
    assert kit.tier.full


async def test_a_deleted_session_holds_and_registers_nothing() -> None:
    kit = Kit()
    gone, other = kit.chain(2), kit.chain(1)
    kit.fates["a", "s"] = SessionFate(has_record=False, deleted=True)
    assert (await kit.commit(("a", "s", gone), ("a", "t", other))).stored == 1
    assert await kit.alive(gone) == 0
    assert await kit.store.due_holders(9) == [("a", "t")]


async def test_a_session_deleted_in_the_middle_of_a_commit_loses_its_blocks_by_the_sweep() -> None:
    kit = Kit()
    names = kit.chain(2)
    kit.after_asking = lambda: kit.fates.update({("a", "s"): SessionFate(has_record=False, deleted=True)})
    assert (await kit.commit(("a", "s", names))).stored == 2
    assert await kit.sweeper.sweep_once()
    assert kit.gone == {"session_expired": 2}
    assert await kit.alive(names) == 0


async def test_without_the_session_store_no_session_is_taken_for_deleted_or_over() -> None:
    kit = Kit()
    names = kit.chain(2)
    kit.sessions_away = True
    assert (await kit.commit(("a", "s", names))).stored == 2
    kit.now_s += 100  # longer than a session without a record may hold blocks
    assert await kit.sweeper.sweep_once()
    assert await kit.alive(names) == 2
    kit.sessions_away = False
    kit.now_s += 100
    assert await kit.sweeper.sweep_once()
    assert await kit.alive(names) == 0


async def test_a_full_redis_still_finds() -> None:
    kit = Kit()
    names = kit.chain(3)
    await kit.commit(("a", "s", names))
    kit.store.no_leases = True
    assert (await kit.tier.find_blocks(names, 5000)).blocks == 3
    assert (await kit.store.read_totals()).leases == 0


async def test_a_sweep_ends_holdings_mends_facts_and_evicts() -> None:
    kit = Kit(TierLimits(kv_max_bytes=20 * SIZE))
    kept, expired, lost = kit.chain(2), kit.chain(2), kit.chain(2)
    kit.fates["a", "kept"] = SessionFate(has_record=True, deleted=False)
    await kit.commit(("a", "kept", kept), ("a", "expired", expired), ("a", "", lost))
    del kit.store.data[lost[0]]
    kit.now_s += 100
    assert await kit.sweeper.sweep_once()
    assert kit.gone == {"session_expired": 2, "lost": 1}
    assert await kit.alive(kept + expired + lost) == 3
    assert kit.tier.totals.total.blocks == 3
    kit.tier.totals = BlockTotals(BlockUsage(30 * SIZE, 30), {}, maxmemory=100, used_memory=200)
    await kit.tier.keep_below()
    assert kit.gone["age"] == 3


async def test_one_replica_sweeps_and_the_other_looks_on() -> None:
    kit = Kit()
    names = kit.chain(1)
    await kit.commit(("a", "s", names))
    assert await kit.store.become_sweeper("other", 10_000)
    kit.now_s += 5
    del kit.store.data[names[0]]
    assert await kit.sweeper.sweep_once()
    assert not kit.gone
    kit.now_s += 10
    assert await kit.sweeper.sweep_once()
    assert kit.gone == {"lost": 1}


async def test_metrics_name_few_tenants_and_lose_no_tenants_bytes() -> None:
    kit = Kit()
    for number in range(MAX_TENANT_LABELS + 5):
        await kit.commit((f"t{number}", "s", kit.chain(1)))
    kit.now_s += 10
    await kit.tier.refresh_totals()
    registry = CollectorRegistry()
    registry.register(TierCollector(kit.tier, lambda: False))

    def value(name: str, tenant: str = "") -> float:
        found = registry.get_sample_value(f"ryz_kvstate_{name}", {"tenant": tenant} if tenant else {})
        assert found is not None
        return found

    assert value("tier_blocks") == MAX_TENANT_LABELS + 5
    assert value("tenant_bytes", "t0") == SIZE
    assert value("tenant_bytes", OTHER_TENANTS) == 5 * SIZE
    assert value("tenant_byte_seconds_total", "t0") == pytest.approx(
        (MAX_TENANT_LABELS + 4) * 1000 * SIZE + 10 * SIZE
    )
    assert value("tier_up") == 1
