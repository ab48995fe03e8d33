"""Runs the KV state service: `python -m services.kvstate`. Builds its parts and connects them.

The service is ready while the broker is connected and Redis answers. Without Redis it keeps running, and its
calls fail with a reason.
"""

from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Any, cast

from msgspec.structs import asdict

from services.kvstate.accounts.calls import AccountCalls
from services.kvstate.accounts.stream_accounts import StreamAccounts
from services.kvstate.accounts.stream_audit import StreamAudit
from services.kvstate.adapters.calls import AdapterCalls
from services.kvstate.adapters.redis_adapters import RedisAdapterStore
from services.kvstate.blocks.calls import BlockCalls
from services.kvstate.blocks.metrics import BlockMetrics, TierCollector
from services.kvstate.blocks.old_block_cleanup import remove_leftovers
from services.kvstate.blocks.redis_blocks import RedisBlockStore
from services.kvstate.blocks.sweep import BlockSweeper, SweepRules
from services.kvstate.blocks.tier import BlockTier, TierLimits
from services.kvstate.call_server import CallServer
from services.kvstate.domain.block_eviction import SESSION_SHARE
from services.kvstate.domain.session_quota import ALONE_SHARE, SessionLives, SessionQuotas
from services.kvstate.erasure.calls import ErasureCalls
from services.kvstate.leases.calls import LeaseCalls
from services.kvstate.leases.redis_leases import RedisLeaseStore
from services.kvstate.limits.calls import LimitCalls
from services.kvstate.limits.redis_limits import RedisLimitStore
from services.kvstate.limits.used import NothingUsed
from services.kvstate.metrics import KVStateMetrics
from services.kvstate.redis.link import RedisLink
from services.kvstate.redis.metrics import MeasuredRedis, RedisCollector, RedisMemory
from services.kvstate.redis.store_errors import KV_STORE, SESSION_STORE
from services.kvstate.redis.store_starts import REMEDY, StoreStarts
from services.kvstate.responses.calls import ResponseCalls
from services.kvstate.responses.redis_responses import RedisResponseStore
from services.kvstate.responses.store import ResponseQuotas
from services.kvstate.sessions.calls import RecordLimits, SessionCalls
from services.kvstate.sessions.redis_sessions import RedisSessionStore
from services.kvstate.sessions.watch import probe_store, watch_store
from services.kvstate.settings import KVStateSettings
from shared.bus import Bus
from shared.bus.jetstream.jetstream import JetStream
from shared.errors import InvalidRequest, Unavailable
from shared.flow.circuit import Circuit
from shared.lifecycle import Service, run_service
from shared.settings import load

SESSION_CALL_KINDS = 7
BLOCK_CALL_KINDS = 2
RESPONSE_CONNECTIONS = 16
LEASE_CONNECTIONS = 2
ADAPTER_CONNECTIONS = 4
STREAM_CALL_S = 2.0  # a call that went out when the broker was lost has no answer; others wait for it
LIMIT_CONNECTIONS = 4
MISCONFIGURED = 2  # exit code of a service whose start makes no sense before a person has mended something


async def setup(service: Service, stack: AsyncExitStack) -> None:
    """Builds the service and starts it; see `shared.lifecycle.run_service`."""
    settings = cast(KVStateSettings, service.settings)
    circuit, kv_circuit = make_circuit(settings), make_circuit(settings)
    store = make_session_store(settings, circuit)
    stack.push_async_callback(store.close)
    starts = StoreStarts(own_link(settings))
    stack.push_async_callback(starts.close)
    kept_responses = make_response_store(settings, circuit)
    stack.push_async_callback(kept_responses.close)
    leases = make_lease_store(settings, circuit)
    stack.push_async_callback(leases.close)
    adapters = RedisAdapterStore(shared_link(settings, circuit, ADAPTER_CONNECTIONS))
    stack.push_async_callback(adapters.close)
    blocks = make_block_store(settings, kv_circuit)
    stack.push_async_callback(blocks.close)
    bus = await service.connect_bus(stack)
    metrics, counted = KVStateMetrics(service.registry), BlockMetrics(service.registry)
    metrics.store_up.set_function(lambda: 1.0 if circuit.is_closed else 0.0)
    metrics.store_writable.set_function(lambda: 1.0 if store.writable else 0.0)
    metrics.watch(lambda: store.last)
    metrics.watch_starts(lambda: starts.contents, lambda: starts.refused_commands)
    tier = BlockTier(blocks, tier_limits(settings), counted.evicted, store.fates)
    service.registry.register(TierCollector(tier, lambda: not kv_circuit.is_closed))
    sweeper = BlockSweeper(tier, blocks, sweep_rules(settings), counted.evicted, store.fates)
    sessions_redis = MeasuredRedis(
        "sessions",
        store.exchanges,
        lambda: not circuit.is_closed,
        lambda: RedisMemory(store.last.used_memory, store.last.maxmemory),
    )
    kv_redis = MeasuredRedis(
        "kv",
        blocks.exchanges,
        lambda: not kv_circuit.is_closed,
        lambda: RedisMemory(tier.totals.used_memory, tier.totals.maxmemory),
    )
    service.registry.register(RedisCollector([sessions_redis, kv_redis]))
    server = CallServer(
        bus,
        metrics,
        service.spans,
        max_concurrent=settings.kvstate_max_concurrent,
        max_pending=settings.constants.max_pending,
    )
    limits = RecordLimits(settings.session_max_bytes, settings.session_ttl_s)
    sessions = SessionCalls(bus, store, tier, metrics, limits)

    responses = ResponseCalls(kept_responses, tier.make_room_for, settings.session_max_bytes)

    def detail() -> dict[str, Any]:
        return {
            "store": ("up" if store.writable else "disk full") if circuit.is_closed else "away",
            "sessions": store.last.sessions,
            "session_bytes": store.last.num_bytes,
            "tenants_nearly_full": store.last.nearly_full,
            "store_losses": circuit.opened_total,
            "store_read": asdict(starts.contents) if starts.contents else None,
            "store_refused_commands": starts.refused_commands,
            "kv_store": ("full" if tier.full else "up") if kv_circuit.is_closed else "away",
            "kv_blocks": tier.totals.total.blocks,
            "kv_bytes": tier.totals.total.num_bytes,
            "kv_limit_bytes": tier.marks.limit,
            "kv_holders": tier.totals.holders,
            "kv_store_losses": kv_circuit.opened_total,
        }

    await probe_store(store)
    if circuit.is_closed:
        await refuse_incomplete(starts)
    watching = starts.watch(settings.constants.check_s, lambda: service.stop(MISCONFIGURED))
    await sweeper.sweep_once()
    check_s, probe_s = settings.constants.check_s, settings.constants.circuit.open_s
    service.spawn(watch_store(store, check_s, probe_s), "watch session store")
    service.spawn(watching, "watch starts of the session store")
    service.spawn(sweeper.sweep_forever(), "sweep KV blocks")
    if settings.kv_redis_url:
        service.spawn(clear_leftovers(settings), "clear the session store of KV blocks")
    service.add_check("session store", lambda: circuit.is_closed)
    service.set_detail(detail)
    service.on_drain(server.stop)
    await server.start(
        [
            *sessions.calls(),
            *responses.calls(),
            *LeaseCalls(leases).calls(),
            *AdapterCalls(bus, adapters).calls(),
            *account_calls(bus, stack).calls(),
            *BlockCalls(tier, counted).calls(),
            *ErasureCalls(sessions, store, kept_responses, tier).calls(),
            *limit_calls(settings, circuit, stack).calls(),
        ]
    )
    await service.answer_operators(bus)
    await service.serve_admin(stack)
    service.ready()


def account_calls(bus: Bus, stack: AsyncExitStack) -> AccountCalls:
    """The calls about tenants, keys and prices, which are in streams of the broker."""
    jetstream = JetStream(bus, timeout_s=STREAM_CALL_S)
    stack.push_async_callback(jetstream.stop)
    return AccountCalls(bus, StreamAccounts(bus, jetstream), StreamAudit(jetstream))


def make_circuit(settings: KVStateSettings) -> Circuit:
    """A circuit for one link."""
    return Circuit(settings.constants.circuit)


def make_session_store(settings: KVStateSettings, circuit: Circuit) -> RedisSessionStore:
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
    )


def own_link(settings: KVStateSettings) -> RedisLink:
    """A connection to the session store beside those of calls, without a circuit."""
    address = settings.redis_address(settings.redis_url)
    return RedisLink(address, timeout_s=5.0, max_connections=1, name="session store", reason=SESSION_STORE)


async def refuse_incomplete(starts: StoreStarts) -> None:
    """Ends the start of the service if the store lacks a part of its log: turns would be written onto it.

    Raises:
        InvalidRequest: Redis refused commands of its log.
    """
    with suppress(Unavailable):  # then the watch looks again
        if await starts.check():
            raise InvalidRequest(
                f"the session store refused {starts.refused_commands} commands of its log when it started, "
                f"and lacks what they stored. {REMEDY}. To go on without them: `CONFIG RESETSTAT` in Redis"
            )


def make_response_store(settings: KVStateSettings, circuit: Circuit) -> RedisResponseStore:
    """The store of responses, in the Redis of sessions; both see through one circuit whether it answers."""
    link = shared_link(settings, circuit, RESPONSE_CONNECTIONS)
    return RedisResponseStore(link, ttl_s=settings.response_ttl_s, quotas=settings.part(ResponseQuotas))


def make_lease_store(settings: KVStateSettings, circuit: Circuit) -> RedisLeaseStore:
    """The store of leases, in the Redis of sessions."""
    return RedisLeaseStore(shared_link(settings, circuit, LEASE_CONNECTIONS))


def limit_calls(settings: KVStateSettings, circuit: Circuit, stack: AsyncExitStack) -> LimitCalls:
    """The call about limits, which are counted in the Redis of sessions."""
    store = RedisLimitStore(shared_link(settings, circuit, LIMIT_CONNECTIONS))
    stack.push_async_callback(store.close)
    return LimitCalls(store, NothingUsed())


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


async def clear_leftovers(settings: KVStateSettings) -> None:
    """Removes KV blocks that an earlier version kept in the session store, on connections of its own."""
    async with AsyncExitStack() as stack:
        links = []
        addresses = {
            "session store": settings.redis_address(settings.redis_url),
            "KV store": kv_address(settings),
        }
        for name, address in addresses.items():
            link = RedisLink(address, timeout_s=5.0, max_connections=1, name=name, reason=SESSION_STORE)
            stack.push_async_callback(link.close)
            links.append(link)
        await remove_leftovers(*links)


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


def main() -> None:
    """The command."""
    run_service(load(KVStateSettings), "kvstate", setup)


if __name__ == "__main__":
    main()
