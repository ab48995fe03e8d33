"""The parts of a gateway that gRPC uses."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from services.gateway.answering.context import GatewayContext
from services.gateway.answering.direct_calls import DirectCalls
from services.gateway.readiness import Readiness
from services.gateway.resources.sessions.tenants import TenantSessions
from services.gateway.served_models import ServedModels


@dataclass(frozen=True, slots=True)
class GrpcNeeds:
    """What gRPC needs of the gateway.

    Attributes:
        context: What all calls share.
        direct: Runs calls.
        models: The models on offer.
        readiness: Whether the gateway can serve now.
        sessions: The sessions of all tenants.
    """

    context: GatewayContext
    direct: DirectCalls
    models: ServedModels
    readiness: Callable[[], Awaitable[Readiness]]
    sessions: TenantSessions
