"""Builds the limits of a gateway and keeps their leases."""

from contextlib import AsyncExitStack

from services.gateway.admission.limits.call_limits import CallLimits
from services.gateway.metrics import GatewayMetrics
from shared.accounts.register import AccountRegister
from shared.bus import Bus
from shared.client.calls.limit_leases import kept_leases


async def call_limits(
    bus: Bus, register: AccountRegister, instance_id: str, metrics: GatewayMetrics, stack: AsyncExitStack
) -> CallLimits:
    """Returns limits over the copy of the records; their leases are kept until the stack closes."""
    leases = await kept_leases(bus, register, instance_id, stack)
    metrics.limits_local.set_function(lambda: float(leases.is_local))
    return CallLimits(leases, register)
