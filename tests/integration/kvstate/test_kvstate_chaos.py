"""Failures of the KV tier cost only time: Redis killed, emptied, slow, stalled or full; a replica killed."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
import redis.asyncio as aioredis
from redis.exceptions import OutOfMemoryError

from services.kvstate.redis.link import RedisLink
from services.kvstate.redis.store_errors import StoreFull
from shared import subjects
from shared.bus.nats import NatsBus
from shared.client import SessionsClient
from shared.client.calls.blocks_client import BlocksClient
from shared.codec import decode_reply, encode
from shared.errors import Unavailable
from shared.messages import BlocksFound, ServiceStatus, StatusQuery
from tests.kits.kvstate.service import MIB, chain, held, new_tenant, own_redis, record, running, value, write
from tests.kits.proxies.tcp import TcpProxy
from tests.kits.waiting import PATIENCE_S, until


async def test_redis_killed_and_empty_again_is_an_empty_tier(
    nats_url: str, nats_bus: NatsBus, tmp_path: Path
) -> None:
    tenant, names = new_tenant(), chain(3)
    blocks, sessions = (
        BlocksClient(nats_bus, timeout_s=PATIENCE_S),
        SessionsClient(nats_bus, timeout_s=PATIENCE_S),
    )
    async with own_redis(tmp_path) as (server, redis), running(nats_url, server.url) as service:
        await write(redis, names)
        await sessions.commit([record(tenant)])
        assert (await blocks.commit("g1", [held(tenant, "s", names)])).stored == 3
        server.stop(kill=True)
        for _ in range(5):
            for call in (blocks.find(names), blocks.commit("g1", [held(tenant, "s", names)])):
                with pytest.raises(Unavailable) as caught:  # before the caller's own time is over
                    await call
                assert caught.value.data["reason"] == "kv_store"
        await until(lambda: value(service, "tier_up") == 0)
        server.start()
        await redis.connection_pool.disconnect()
        await until(lambda: value(service, "tier_up") == 1 and service.is_ready)
        assert await blocks.find(names, lease_ms=100) == BlocksFound(count=0)
        await write(redis, names)
        await sessions.commit([record(tenant)])
        assert (await blocks.commit("g1", [held(tenant, "s", names)])).stored == 3
        assert (await sessions.describe(tenant, "s")).kv_blocks == 3
        await until(lambda: value(service, "tier_blocks") == 3)


async def test_a_slow_redis_opens_the_circuit_and_a_fast_one_closes_it(
    nats_url: str, nats_bus: NatsBus, redis_url: str
) -> None:
    names = chain(2)
    blocks, sessions = (
        BlocksClient(nats_bus, timeout_s=PATIENCE_S),
        SessionsClient(nats_bus, timeout_s=PATIENCE_S),
    )
    port = int(redis_url.split(":")[2].split("/", maxsplit=1)[0])
    async with TcpProxy(port) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        async with running(nats_url, url, kv_timeout_s=0.3, redis_timeout_s=5.0) as service:
            assert (await blocks.find(names)).count == 0
            proxy.delay_s = 0.5
            for _ in range(4):
                with pytest.raises(Unavailable):
                    await blocks.find(names)
            await until(lambda: value(service, "tier_up") == 0)
            with pytest.raises(Unavailable, match="is away") as caught:  # refused without asking Redis
                await blocks.find(names)
            assert caught.value.retry_after_s is not None
            # the session store has its own circuit and time limit
            assert value(service, "store_up") == 1
            assert (await sessions.list(new_tenant())).sessions == []
            proxy.delay_s = 0.0
            await until(lambda: value(service, "tier_up") == 1)
            assert (await blocks.find(names)).count == 0


async def test_a_stalled_or_cut_connection_is_over_when_it_is_over(
    nats_url: str, nats_bus: NatsBus, redis_url: str
) -> None:
    names = chain(2)
    blocks = BlocksClient(nats_bus, timeout_s=PATIENCE_S)
    port = int(redis_url.split(":")[2].split("/", maxsplit=1)[0])
    async with TcpProxy(port) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        async with running(nats_url, url, kv_timeout_s=1.0, redis_timeout_s=1.0) as service:
            proxy.stall()
            with pytest.raises(Unavailable):
                await blocks.find(names)
            await until(lambda: value(service, "tier_up") == 0)
            proxy.resume()
            await until(lambda: value(service, "tier_up") == 1)
            proxy.cut(refuse=True)
            await until(lambda: value(service, "tier_up") == 0)
            proxy.resume()
            await until(lambda: value(service, "tier_up") == 1)
            assert (await blocks.find(names)).count == 0


async def test_a_full_redis_loses_blocks_and_no_session(
    nats_url: str, nats_bus: NatsBus, tmp_path: Path
) -> None:
    tenant = new_tenant()
    blocks, sessions = (
        BlocksClient(nats_bus, timeout_s=PATIENCE_S),
        SessionsClient(nats_bus, timeout_s=PATIENCE_S),
    )
    async with (
        own_redis(tmp_path) as (server, redis),
        # sweeps are so rare that only calls can detect the full store
        running(nats_url, server.url, sweep_s=600, kv_max_bytes=100 * MIB) as service,
    ):
        kept = []
        for number in range(60):  # 6 MB of blocks
            names = chain(5)
            await write(redis, names, part_bytes=10_000)
            done = await blocks.commit("g1", [held(tenant, f"s{number}", names)])
            assert (done.stored, done.pause_ms) == (5, 0)
            kept.append(names)
        used = int((await redis.info("memory"))["used_memory"])
        await redis.config_set("maxmemory", used - 100_000)  # as if other data had filled the rest
        with pytest.raises(OutOfMemoryError):
            await redis.set("one more", b"x")
        link = RedisLink(server.url, timeout_s=PATIENCE_S, max_connections=1, name="store", reason="r")
        with pytest.raises(StoreFull, match="maxmemory"):
            await link.pipeline([("SET", "one more", b"x")])
        await link.close()
        answer = await sessions.commit([record(tenant, "important", text="x" * 50_000)])
        assert answer.stale == []
        assert (await sessions.get(tenant, "important")).version == 1
        assert value(service, "blocks_evicted_total", reason="memory") > 0
        counts = [(await blocks.find(names)).count for names in kept]
        assert 60 <= sum(counts) < 300
        assert min(counts) >= 1  # the blocks are of similar age, so eviction removed the tails of sequences


async def test_blocks_are_evicted_before_redis_is_full(
    nats_url: str, nats_bus: NatsBus, tmp_path: Path
) -> None:
    tenant = new_tenant()
    blocks = BlocksClient(nats_bus, timeout_s=PATIENCE_S)
    async with own_redis(tmp_path) as (server, redis):
        await redis.config_set("maxmemory", 12 * MIB)
        async with running(nats_url, server.url, kv_redis_share=0.5) as service:
            assert value(service, "tier_bytes_limit") == 6 * MIB
            for number in range(80):  # 8 MB of blocks
                names = chain(5)
                await write(redis, names, part_bytes=10_000)
                done = await blocks.commit("g1", [held(tenant, f"s{number}", names)])
                assert (done.stored, done.pause_ms) == (5, 0)
            assert (await blocks.find(names)).count == 5
            assert value(service, "blocks_evicted_total", reason="age") > 0
            await until(lambda: 0 < value(service, "tier_bytes") <= 6 * MIB)


async def test_a_second_replica_knows_all_and_goes_on_when_the_first_is_killed(
    nats_url: str, nats_bus: NatsBus, redis_url: str
) -> None:
    tenant, names = new_tenant(), chain(4)
    blocks, sessions = (
        BlocksClient(nats_bus, timeout_s=PATIENCE_S),
        SessionsClient(nats_bus, timeout_s=PATIENCE_S),
    )
    redis = aioredis.Redis.from_url(redis_url)
    env = {"RYZ_NATS_URL": nats_url, "RYZ_REDIS_URL": redis_url, "PATH": os.environ["PATH"]}
    first = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.kvstate", env=env, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await nats_bus.request(subjects.STATUS, encode(StatusQuery()), timeout_s=0.5)
                    break
                except Unavailable:
                    await asyncio.sleep(0.05)
        await write(redis, names)
        await sessions.commit([record(tenant)])
        await blocks.commit("g1", [held(tenant, "s", names)])
        await sessions.pin(tenant, "s", "g7")
        first.kill()
        await first.wait()
        async with running(nats_url, redis_url) as service:
            assert (await blocks.find(names, lease_ms=100)).count == 4
            summary = await sessions.describe(tenant, "s")
            assert (summary.pinned_group, summary.kv_blocks) == ("g7", 4)
            await until(lambda: value(service, "tier_blocks") >= 4)
            reply = await nats_bus.request(subjects.STATUS, encode(StatusQuery()), timeout_s=PATIENCE_S)
            assert decode_reply(reply.data, ServiceStatus).detail["kv_store"] == "up"
            await sessions.delete(tenant, "s")
            assert (await blocks.find(names)).count == 0
    finally:
        if first.returncode is None:
            first.kill()
            await first.wait()
        await redis.aclose()


async def test_a_redis_that_would_delete_sessions_is_reported(
    nats_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with own_redis(tmp_path) as (server, redis):
        await redis.config_set("maxmemory-policy", "allkeys-lru")
        async with running(nats_url, server.url):
            assert capsys.readouterr().out.count("maxmemory-policy to noeviction") == 1
            await asyncio.sleep(0.15)  # several sweeps later
            assert "noeviction" not in capsys.readouterr().out
