"""Runs the KV state service: `python -m services.kvstate`. Builds its parts and connects them.

The service is ready while the broker is connected and Redis answers. Without Redis it keeps running, and its
calls fail with a reason.
"""

from contextlib import AsyncExitStack, suppress
from typing import Any, cast

from msgspec.structs import asdict

from services.kvstate.accounts.assembly import account_calls, keep_register
from services.kvstate.accounts.metrics import AccountCollector
from services.kvstate.adapters.calls import AdapterCalls
from services.kvstate.blocks.calls import BlockCalls
from services.kvstate.blocks.metrics import BlockMetrics, TierCollector
from services.kvstate.blocks.old_block_cleanup import remove_leftovers
from services.kvstate.blocks.redis_blocks import RedisBlockStore
from services.kvstate.blocks.sweep import BlockSweeper
from services.kvstate.blocks.tier import BlockTier
from services.kvstate.call_server import CallServer
from services.kvstate.domain.session_quota import SessionLives
from services.kvstate.erasure.calls import ErasureCalls
from services.kvstate.erasure.tenant_blocks import TenantBlocks
from services.kvstate.leases.calls import LeaseCalls
from services.kvstate.leases.store import LeaseStore
from services.kvstate.metrics import KVStateMetrics
from services.kvstate.redis.link import RedisLink
from services.kvstate.redis.metrics import MeasuredRedis, RedisCollector, RedisMemory
from services.kvstate.redis.store_errors import SESSION_STORE
from services.kvstate.redis.store_starts import REMEDY, StoreStarts
from services.kvstate.responses.calls import ResponseCalls
from services.kvstate.retention import KeptDays
from services.kvstate.sessions.calls import RecordLimits, SessionCalls
from services.kvstate.sessions.redis_sessions import RedisSessionStore
from services.kvstate.sessions.watch import probe_store, watch_store
from services.kvstate.settings import KVStateSettings
from services.kvstate.usage.assembly import UsageParts, build_usage
from services.kvstate.usage.used import UsedBySums
from services.kvstate.wiring import (
    kv_address,
    limit_calls,
    make_adapter_store,
    make_block_store,
    make_circuit,
    make_closed_mark,
    make_lease_store,
    make_response_store,
    make_session_store,
    own_link,
    sweep_rules,
    tier_limits,
)
from shared.accounts.register import AccountRegister
from shared.bus import Bus
from shared.errors import InvalidRequest, Unavailable
from shared.flow.circuit import Circuit
from shared.lifecycle import Service, run_service
from shared.settings import load

MISCONFIGURED = 2  # exit code of a service whose start makes no sense before a person has mended something


async def setup(service: Service, stack: AsyncExitStack) -> None:
    """Builds the service and starts it; see `shared.lifecycle.run_service`."""
    settings = cast(KVStateSettings, service.settings)
    circuit, kv_circuit = make_circuit(settings), make_circuit(settings)
    register = AccountRegister()
    store = make_session_store(settings, circuit, register)
    starts = StoreStarts(own_link(settings))
    kept_responses = make_response_store(settings, circuit, register)
    leases = make_lease_store(settings, circuit)
    adapters = make_adapter_store(settings, circuit)
    blocks = make_block_store(settings, kv_circuit)
    for opened in (store, starts, kept_responses, leases, adapters, blocks):
        stack.push_async_callback(opened.close)
    bus = await service.connect_bus(stack)
    metrics, counted = KVStateMetrics(service.registry), BlockMetrics(service.registry)
    metrics.store_up.set_function(lambda: 1.0 if circuit.is_closed else 0.0)
    metrics.store_writable.set_function(lambda: 1.0 if store.writable else 0.0)
    metrics.watch(lambda: store.last)
    metrics.watch_starts(lambda: starts.contents, lambda: starts.refused_commands)
    tier = BlockTier(blocks, tier_limits(settings), counted.evicted, store.fates, register.limits)
    service.registry.register(TierCollector(tier, lambda: not kv_circuit.is_closed))
    sweeper = BlockSweeper(tier, blocks, sweep_rules(settings), counted.evicted, store.fates)
    service.registry.register(measured_redis(store, circuit, tier, blocks, kv_circuit))
    server = CallServer(
        bus,
        metrics,
        service.spans,
        max_concurrent=settings.kvstate_max_concurrent,
        max_pending=settings.constants.max_pending,
    )
    limits = RecordLimits(settings.session_max_bytes, settings.part(SessionLives), register.session_days)
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
    probe_s = settings.constants.circuit.open_s
    service.spawn(watch_store(store, settings.constants.check_s, probe_s), "watch session store")
    service.spawn(watching, "watch starts of the session store")
    service.spawn(sweeper.sweep_forever(), "sweep KV blocks")
    if settings.kv_redis_url:
        service.spawn(clear_leftovers(settings), "clear the session store of KV blocks")
    service.add_check("session store", lambda: circuit.is_closed)
    service.set_detail(detail)
    service.on_drain(server.stop)
    await keep_register(bus, register, stack)
    service.registry.register(AccountCollector(register))
    kept = KeptDays(register, {"session_days": store.shorten, "response_days": kept_responses.shorten})
    service.spawn(kept.run_forever(), "shorten what tenants keep")
    accounts = account_calls(bus, stack, make_closed_mark(settings, circuit, stack))
    usage = start_usage(service, settings, bus, leases, register)
    await server.start(
        [
            *sessions.calls(),
            *responses.calls(),
            *LeaseCalls(leases).calls(),
            *AdapterCalls(bus, adapters).calls(),
            *accounts.calls(),
            *usage.calls,
            *BlockCalls(tier, counted).calls(),
            *ErasureCalls(
                sessions,
                store,
                kept_responses,
                TenantBlocks(blocks, counted.evicted),
                accounts.audit,
                usage=usage.erasure,
            ).calls(),
            *limit_calls(settings, circuit, UsedBySums(usage.sums, register), stack).calls(),
        ]
    )
    await service.answer_operators(bus)
    await service.serve_admin(stack)
    service.ready()


def measured_redis(
    store: RedisSessionStore,
    circuit: Circuit,
    tier: BlockTier,
    blocks: RedisBlockStore,
    kv_circuit: Circuit,
) -> RedisCollector:
    """The metrics of both Redis."""
    sessions = MeasuredRedis(
        "sessions",
        store.exchanges,
        lambda: not circuit.is_closed,
        lambda: RedisMemory(store.last.used_memory, store.last.maxmemory),
    )
    kv = MeasuredRedis(
        "kv",
        blocks.exchanges,
        lambda: not kv_circuit.is_closed,
        lambda: RedisMemory(tier.totals.used_memory, tier.totals.maxmemory),
    )
    return RedisCollector([sessions, kv])


def start_usage(
    service: Service, settings: KVStateSettings, bus: Bus, leases: LeaseStore, register: AccountRegister
) -> UsageParts:
    """Begins to add usage up."""
    owner, days = settings.instance_id, settings.usage_days
    usage = build_usage(bus, leases, register, service.registry, owner=owner, days=days)
    service.spawn(usage.rolling, "add usage up")
    return usage


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


def main() -> None:
    """The command."""
    run_service(load(KVStateSettings), "kvstate", setup)


if __name__ == "__main__":
    main()
