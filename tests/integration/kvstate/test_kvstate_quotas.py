"""A tenant that fills the store, on a real broker and Redis: its commits are refused, others lose nothing."""

import asyncio
from pathlib import Path

import pytest

from services.kvstate.domain.block_eviction import SESSION_SHARE
from shared.bus.nats import NatsBus
from shared.client import SessionsClient
from shared.client.calls.blocks_client import BlocksClient
from shared.client.calls.session_admin import SessionAdmin
from shared.errors import Overloaded, RateLimited, SessionNotFound, Unavailable
from tests.kits.kvstate.service import MIB, chain, held, new_tenant, own_redis, record, running, value, write
from tests.kits.waiting import PATIENCE_S, until


async def test_a_flood_of_sessions_costs_no_other_tenant_anything(
    nats_url: str, nats_bus: NatsBus, tmp_path: Path
) -> None:
    loud, quiet = new_tenant(), new_tenant()
    blocks, sessions = (
        BlocksClient(nats_bus, timeout_s=PATIENCE_S),
        SessionsClient(nats_bus, timeout_s=PATIENCE_S),
    )
    async with own_redis(tmp_path) as (server, redis):
        await redis.config_set("maxmemory", 24 * MIB)
        async with running(nats_url, server.url) as service:
            names = chain(700)  # 14 MB, as much as fits
            for first in range(0, len(names), 100):
                await write(redis, names[first : first + 100], part_bytes=10_000)
            assert (await blocks.commit("g1", [held(quiet, "s0", names)])).stored == 700
            mine = [record(quiet, f"s{n}", text="x" * 1000) for n in range(20)]
            assert (await sessions.commit(mine)).over_quota == []
            refused = 0
            for first in range(0, 1500, 50):  # 30 MB
                records = [record(loud, f"s{first + n}", text="x" * 20_000) for n in range(50)]
                refused += len((await sessions.commit(records)).over_quota)
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)  # wait for sweeps
            assert (await blocks.find(names)).count == 700
            for one in mine:
                assert await sessions.get(quiet, one.session_id) == one
            answer = await sessions.commit([record(quiet, "another", text="x" * 50_000)])
            assert (answer.stale, answer.over_quota) == ([], [])
            assert refused > 1000
            used = int(await redis.hget(f"ryz:session-sizes:{loud}", ""))  # type: ignore[arg-type]
            assert 0.9 * 2 / 3 * SESSION_SHARE * 24 * MIB < used <= SESSION_SHARE * 24 * MIB  # of two tenants
            assert value(service, "session_commits_total", outcome="over_quota") == refused
            await until(lambda: value(service, "tenants_nearly_full") == 1)
            assert value(service, "session_bytes") >= used


async def test_a_record_over_the_quota_is_reported_where_it_is_created_and_committed(
    nats_url: str, redis_url: str, nats_bus: NatsBus
) -> None:
    tenant, admin = new_tenant(), SessionAdmin(nats_bus, timeout_s=PATIENCE_S, gather_s=0.1)
    sessions = SessionsClient(nats_bus, timeout_s=PATIENCE_S)
    async with running(nats_url, redis_url, session_max_per_tenant=2):
        assert (await admin.create(record(tenant, "a"))).session_id == "a"
        answer = await sessions.commit([record(tenant, "b"), record(tenant, "c"), record(tenant, "a", 2)])
        assert (answer.over_quota, answer.stale, answer.too_large) == ([1], [], [])
        for store in (admin.create, admin.replace):
            with pytest.raises(RateLimited, match="RYZ_SESSION_MAX_PER_TENANT") as caught:
                await store(record(tenant, "c"))
            assert caught.value.data == {"reason": "session_quota"}
        with pytest.raises(SessionNotFound):
            await sessions.get(tenant, "c")
        await admin.delete(tenant, "b")
        answer = await sessions.commit([record(tenant, "b", 2)])
        assert (answer.stale, answer.deleted) == ([0], [0])
        assert (await admin.create(record(tenant, "c"))).session_id == "c"


async def test_a_pin_over_a_quota_is_refused_with_its_reason(
    nats_url: str, redis_url: str, nats_bus: NatsBus
) -> None:
    tenant, sessions = new_tenant(), SessionsClient(nats_bus, timeout_s=PATIENCE_S)
    async with running(nats_url, redis_url, session_pins_per_tenant=1) as service:
        await sessions.commit([record(tenant, "a"), record(tenant, "b")])
        assert (await sessions.pin(tenant, "a", "g1")).pinned_group == "g1"
        with pytest.raises(RateLimited, match="RYZ_SESSION_PINS_PER_TENANT") as caught:
            await sessions.pin(tenant, "b", "g1")
        assert caught.value.data == {"reason": "pin_quota"}
        assert (await sessions.describe(tenant, "b")).pinned_group == ""
        assert value(service, "pins_refused_total", reason="tenant_full") == 1
    async with running(nats_url, redis_url, router_pins_max=1):
        with pytest.raises(Overloaded, match="RYZ_ROUTER_PINS_MAX") as full:
            await sessions.pin(tenant, "b", "g1")
        assert full.value.data == {"reason": "pins_full"}


async def test_sessions_in_a_full_redis_cost_their_own_tenants_blocks_only(
    nats_url: str, nats_bus: NatsBus, tmp_path: Path
) -> None:
    loud, quiet = new_tenant(), new_tenant()
    blocks, sessions = (
        BlocksClient(nats_bus, timeout_s=PATIENCE_S),
        SessionsClient(nats_bus, timeout_s=PATIENCE_S),
    )
    async with (
        own_redis(tmp_path) as (server, redis),
        # the operator's quota is too high: one tenant's sessions and a few blocks fill Redis
        running(nats_url, server.url, sweep_s=600, session_bytes_per_tenant=1 << 30),
    ):
        mine, others = chain(20), chain(20)
        await write(redis, mine + others, part_bytes=10_000)
        await blocks.commit("g1", [held(loud, "s0", mine), held(quiet, "s0", others)])
        for first in range(0, 400, 50):
            records = [record(loud, f"s{first + n}", text="x" * 20_000) for n in range(50)]
            assert (await sessions.commit(records)).over_quota == []
        used = int((await redis.info("memory"))["used_memory"])
        await redis.config_set("maxmemory", used - 200_000)

        async def fill() -> None:
            for number in range(200):
                await sessions.commit([record(loud, f"more-{number}", text="x" * 20_000)])

        with pytest.raises(Unavailable, match="maxmemory"):
            await fill()
        assert (await blocks.find(others)).count == 20
        assert (await blocks.find(mine)).count == 0
