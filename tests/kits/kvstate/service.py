"""The KV state service on a real broker and a real Redis, and a function that writes blocks as ranks do."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import redis.asyncio as aioredis

from services.kvstate.__main__ import setup
from services.kvstate.settings import KVStateSettings
from shared.flow.circuit import store_limits
from shared.kv_hash import data_key, head_field
from shared.lifecycle import Service
from shared.messages import ChatMessage, HeldBlocks, SessionRecord
from tests.kits.constants import settings_with_constants
from tests.kits.servers import RedisServer

PARTS = 2


@asynccontextmanager
async def running(nats_url: str, redis_url: str, **more: object) -> AsyncIterator[Service]:
    """Runs a replica of the service; `more` are its settings and constants."""
    settings = settings_with_constants(
        KVStateSettings,
        {
            "nats_url": nats_url,
            "redis_url": redis_url,
            "redis_timeout_s": 2.0,  # long enough for a busy machine; tests of outages set a shorter one
            "kv_timeout_s": 2.0,
            "circuit": store_limits(probe_s=0.05),
            "check_s": 0.05,
            "sweep_s": 0.05,
            **more,
        },
    )
    service = Service(settings, "kvstate")
    async with AsyncExitStack() as stack:
        await setup(service, stack)
        try:
            yield service
            await service.drain()
        finally:
            await service.finish()


def chain(length: int) -> list[bytes]:
    """Block names that no other test uses."""
    return [uuid4().bytes for _ in range(length)]


async def write(redis: aioredis.Redis, names: Sequence[bytes], part_bytes: int = 1000) -> None:
    """Writes blocks as all ranks of a group would, with a short expiry."""
    pipe = redis.pipeline(transaction=False)
    for name in names:
        values: dict[Any, Any] = {head_field(head): bytes(part_bytes) for head in range(PARTS)}
        pipe.hset(data_key(name), mapping=values)
        pipe.expire(data_key(name), 60)
    await pipe.execute()


def held(tenant: str, session_id: str, names: Sequence[bytes]) -> HeldBlocks:
    """The message entry by which a leader commits blocks of a session."""
    return HeldBlocks(tenant=tenant, session_id=session_id, names=b"".join(names), parts=PARTS)


def record(tenant: str, session_id: str = "s", version: int = 1, text: str = "hello") -> SessionRecord:
    """A session after a turn."""
    return SessionRecord(
        session_id=session_id,
        tenant=tenant,
        model="m",
        version=version,
        messages=[ChatMessage(role="user", content=text)],
        turns=version,
        last_group="g1",
    )


def new_tenant() -> str:
    """A tenant that no other test uses."""
    return f"t{uuid4().hex[:12]}"


MIB = 1024 * 1024


@asynccontextmanager
async def own_redis(folder: Path) -> AsyncIterator[tuple[RedisServer, aioredis.Redis]]:
    server = RedisServer(folder)
    server.start()
    client = aioredis.Redis.from_url(server.url)
    try:
        yield server, client
    finally:
        await client.aclose()
        server.stop(kill=True)


def value(service: Service, name: str, **labels: str) -> float:
    return service.registry.get_sample_value(f"ryz_kvstate_{name}", labels) or 0
