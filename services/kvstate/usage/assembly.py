"""Builds what the service does about usage."""

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry

from services.kvstate.call_server import CallKind
from services.kvstate.leases.store import LeaseStore
from services.kvstate.usage.calls import UsageCalls
from services.kvstate.usage.metrics import UsageMetrics
from services.kvstate.usage.roller import UsageRoller
from services.kvstate.usage.roller_lease import RollerLease
from services.kvstate.usage.streams import UsageStreams
from services.kvstate.usage.sums import UsageSums
from services.kvstate.usage.tenant_usage import TenantUsage
from shared.accounts.register import AccountRegister
from shared.bus.api import Bus
from shared.bus.jetstream.jetstream import JetStream


@dataclass(frozen=True, slots=True)
class UsageParts:
    """The parts.

    Attributes:
        calls: Calls of the bus.
        rolling: Adds usage up, until it is cancelled.
        erasure: Takes the names of erased tenants off usage.
        sums: What is used so far; half a second old at most while the broker is there.
    """

    calls: tuple[CallKind, ...]
    rolling: Coroutine[Any, Any, None]
    sums: UsageSums
    erasure: TenantUsage


def build_usage(
    bus: Bus,
    leases: LeaseStore,
    register: AccountRegister,
    registry: CollectorRegistry,
    *,
    owner: str,
    days: int,
) -> UsageParts:
    """Builds the parts.

    Args:
        bus: The broker with the streams.
        leases: Decides which replica works.
        register: Knows time zones and prices; nothing is added up before it is read.
        registry: For the totals.
        owner: This replica.
        days: How long sums are kept.
    """
    sums, streams = UsageSums(), UsageStreams(JetStream(bus), days)
    roller = UsageRoller(streams, sums, register, UsageMetrics(registry), keep_days=days)
    lease = RollerLease(leases, owner)

    async def may_roll() -> bool:
        return register.is_current and await lease.hold()

    rolling = roller.run_forever(lambda: bus.restored_at, may_roll)
    return UsageParts(UsageCalls(streams, sums, register).calls(), rolling, sums, TenantUsage(streams))
