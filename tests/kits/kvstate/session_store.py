"""Session stores of every kind for the contract tests, and entries to store."""

import time
from collections.abc import AsyncIterator
from typing import Protocol
from uuid import uuid4

import pytest

from services.kvstate.domain.session_merge import SessionEntry, make_entry
from services.kvstate.domain.session_quota import (
    DaysOf,
    LimitsOf,
    SessionLives,
    SessionQuotas,
    no_own_days,
    no_own_limits,
)
from services.kvstate.redis.link import RedisLink
from services.kvstate.sessions.redis_sessions import RedisSessionStore
from services.kvstate.sessions.store import SessionStore
from shared.flow.circuit import Circuit, store_limits
from shared.messages import ChatMessage, SessionRecord
from tests.kits.kvstate.memory_sessions import MemorySessionStore
from tests.kits.servers import GuardedRedis
from tests.kits.waiting import PATIENCE_S

TTL_MS = 3_600_000
LIVES = SessionLives(3600.0)
DEFAULT_QUOTAS = SessionQuotas()


class MakeStore(Protocol):
    """Makes a store of the kind under test."""

    def __call__(
        self,
        *,
        lives: SessionLives = LIVES,
        tombstone_s: float = 3600.0,
        quotas: SessionQuotas = DEFAULT_QUOTAS,
    ) -> SessionStore: ...


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def open_store(
    url: str,
    *,
    lives: SessionLives = LIVES,
    tombstone_s: float = 3600.0,
    quotas: SessionQuotas = DEFAULT_QUOTAS,
    max_connections: int = 16,
    limits_of: LimitsOf = no_own_limits,
    days_of: DaysOf = no_own_days,
) -> RedisSessionStore:
    circuit = Circuit(store_limits())
    link = RedisLink(
        url,
        timeout_s=PATIENCE_S,
        max_connections=max_connections,
        name="session store",
        reason="session_store",
        circuit=circuit,
    )
    return RedisSessionStore(
        link, lives=lives, tombstone_s=tombstone_s, quotas=quotas, limits_of=limits_of, days_of=days_of
    )


async def put(store: SessionStore, entries: list[SessionEntry]) -> list[bool]:
    return [verdict.stored for verdict in (await store.put_records(entries)).verdicts]


def made_id(number: int) -> str:
    return f"s-{number:016x}-{number:016x}"


def entry(
    tenant: str,
    session_id: str,
    version: int = 1,
    text: str = "",
    *,
    updated_ms: int = 0,
    created_ms: int = 0,
) -> SessionEntry:
    record = SessionRecord(
        session_id=session_id,
        tenant=tenant,
        model="m",
        version=version,
        messages=[ChatMessage(role="user", content=text)],
        token_ids=b"\x01\0\0\0\x02\0\0\0",
        turns=version,
        last_group="g0",
        updated_ms=updated_ms or now_ms(),
        created_ms=created_ms,
        last_request="r-1" if session_id.startswith("s-") else "",
    )
    return make_entry(record, now_ms(), TTL_MS)


def guarded_url(request: pytest.FixtureRequest) -> str:
    """The URL of a Redis where the store has only the rights of the service's user."""
    server: GuardedRedis = request.getfixturevalue("guarded_redis")
    return server.url("kvstate")


@pytest.fixture(params=["memory", "redis"])
async def make_store(request: pytest.FixtureRequest) -> AsyncIterator[MakeStore]:
    kind, made = request.param, []
    url = "" if kind == "memory" else guarded_url(request)

    def make(
        *, lives: SessionLives = LIVES, tombstone_s: float = 3600.0, quotas: SessionQuotas = DEFAULT_QUOTAS
    ) -> SessionStore:
        store: SessionStore
        if kind == "memory":
            store = MemorySessionStore(
                lives=lives, clock=time.monotonic, tombstone_s=tombstone_s, quotas=quotas
            )
        else:
            store = open_store(url, lives=lives, tombstone_s=tombstone_s, quotas=quotas)
        made.append(store)
        return store

    yield make
    for store in made:
        await store.close()
        await store.close()


@pytest.fixture
def store(make_store: MakeStore) -> SessionStore:
    return make_store()


@pytest.fixture
def tenant() -> str:
    return f"t{uuid4().hex[:12]}"
