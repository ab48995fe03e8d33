"""Builds the stores of the service out of its settings; nothing is connected yet."""

from contextlib import AsyncExitStack
from dataclasses import replace

from services.kvstate.accounts.closed_mark import RedisClosedMark
from services.kvstate.adapters.redis_adapters import RedisAdapterStore
from services.kvstate.blocks.redis_blocks import RedisBlockStore
from services.kvstate.blocks.sweep import SweepRules
from services.kvstate.blocks.tier import TierLimits
from services.kvstate.domain.block_eviction import SESSION_SHARE
from services.kvstate.domain.session_quota import (
    ALONE_SHARE,
    SessionLives,
    SessionQuotas,
)
from services.kvstate.leases.redis_leases import RedisLeaseStore
from services.kvstate.limits.calls import LimitCalls
from services.kvstate.limits.redis_limits import RedisLimitStore
from services.kvstate.limits.used import UsedSoFar
from services.kvstate.redis.link import RedisLink
from services.kvstate.redis.store_errors import KV_STORE, SESSION_STORE
from services.kvstate.responses.redis_responses import RedisResponseStore
from services.kvstate.responses.store import ResponseQuotas
from services.kvstate.sessions.redis_sessions import RedisSessionStore
from services.kvstate.settings import KVStateSettings
from shared.accounts.register import AccountRegister
from shared.flow.circuit import Circuit

SESSION_CALL_KINDS = 7
BLOCK_CALL_KINDS = 2
RESPONSE_CONNECTIONS = 16
LEASE_CONNECTIONS = 2
ADAPTER_CONNECTIONS = 4
LIMIT_CONNECTIONS = 4
MARK_CONNECTIONS = 2


def make_circuit(settings: KVStateSettings) -> Circuit:
    """A circuit for one link."""
    return Circuit(settings.constants.circuit)


def make_session_store(
    settings: KVStateSettings, circuit: Circuit, register: AccountRegister
) -> RedisSessionStore:
    """The session store on Redis."""
    link = RedisLink(
        settings.redis_address(settings.redis_url),
        timeout_s=settings.redis_timeout_s,
        max_connections=SESSION_CALL_KINDS * settings.kvstate_max_concurrent + 1,  # and one for the probe
        name="session store",
        reason=SESSION_STORE,
        circuit=circuit,
    )
    return RedisSessionStore(
        link,
        lives=settings.part(SessionLives),
        tombstone_s=settings.constants.tombstone_s,
        quotas=session_quotas(settings),
        limits_of=register.limits,
        days_of=register.session_days,
    )


def own_link(settings: KVStateSettings) -> RedisLink:
    """A connection to the session store beside those of calls, without a circuit."""
    address = settings.redis_address(settings.redis_url)
    return RedisLink(address, timeout_s=5.0, max_connections=1, name="session store", reason=SESSION_STORE)


def make_response_store(
    settings: KVStateSettings, circuit: Circuit, register: AccountRegister
) -> RedisResponseStore:
    """The store of responses, in the Redis of sessions; both see through one circuit whether it answers."""
    link = shared_link(settings, circuit, RESPONSE_CONNECTIONS)
    quotas, days = settings.part(ResponseQuotas), register.response_days
    return RedisResponseStore(link, ttl_s=settings.response_ttl_s, quotas=quotas, days_of=days)


def make_lease_store(settings: KVStateSettings, circuit: Circuit) -> RedisLeaseStore:
    """The store of leases, in the Redis of sessions."""
    return RedisLeaseStore(shared_link(settings, circuit, LEASE_CONNECTIONS))


def make_adapter_store(settings: KVStateSettings, circuit: Circuit) -> RedisAdapterStore:
    """The register of adapters, in the Redis of sessions."""
    return RedisAdapterStore(shared_link(settings, circuit, ADAPTER_CONNECTIONS))


def make_closed_mark(settings: KVStateSettings, circuit: Circuit, stack: AsyncExitStack) -> RedisClosedMark:
    """Where it is marked that keys are required: in the Redis of sessions, until the stack closes."""
    mark = RedisClosedMark(shared_link(settings, circuit, MARK_CONNECTIONS))
    stack.push_async_callback(mark.close)
    return mark


def limit_calls(
    settings: KVStateSettings, circuit: Circuit, used: UsedSoFar, stack: AsyncExitStack
) -> LimitCalls:
    """The call about limits, which are counted in the Redis of sessions."""
    store = RedisLimitStore(shared_link(settings, circuit, LIMIT_CONNECTIONS))
    stack.push_async_callback(store.close)
    return LimitCalls(store, used)


def shared_link(settings: KVStateSettings, circuit: Circuit, max_connections: int) -> RedisLink:
    """Connections to the Redis of sessions for another store, under the same circuit."""
    return RedisLink(
        settings.redis_address(settings.redis_url),
        timeout_s=settings.redis_timeout_s,
        max_connections=max_connections,
        name="session store",
        reason=SESSION_STORE,
        circuit=circuit,
    )


def make_block_store(settings: KVStateSettings, circuit: Circuit) -> RedisBlockStore:
    """The store of facts about KV blocks, on the same Redis or on another one."""
    link = RedisLink(
        kv_address(settings),
        timeout_s=settings.kv_timeout_s,
        max_connections=(BLOCK_CALL_KINDS + SESSION_CALL_KINDS) * settings.kvstate_max_concurrent + 1,
        name="KV store",
        reason=KV_STORE,
        circuit=circuit,
    )
    return RedisBlockStore(link, data_ttl_s=settings.kv_ttl_s)


def kv_address(settings: KVStateSettings) -> str:
    """The address of the store of KV blocks."""
    if settings.kv_redis_url:
        return settings.redis_address(settings.kv_redis_url, "RYZ_KV_REDIS_URL")
    return settings.redis_address(settings.redis_url)


def tier_limits(settings: KVStateSettings) -> TierLimits:
    """The limits of KV blocks in the settings."""
    return replace(settings.part(TierLimits), with_sessions=not settings.kv_redis_url)


def session_quotas(settings: KVStateSettings) -> SessionQuotas:
    """The quotas of sessions in the settings."""
    share = ALONE_SHARE if settings.kv_redis_url else SESSION_SHARE
    return replace(settings.part(SessionQuotas), share=share)


def sweep_rules(settings: KVStateSettings) -> SweepRules:
    """The rules of the sweep."""
    constants = settings.constants
    return SweepRules(
        owner=settings.instance_id,
        every_s=constants.sweep_s,
        away_every_s=constants.circuit.open_s,
        grace_s=constants.grace_s,
        orphan_s=constants.grace_s,
    )
