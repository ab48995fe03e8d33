"""Counts requests that a gateway refuses before it asks the fleet; later ends are counted by its client."""

from services.gateway.admission.refusals import HttpRefusal
from services.gateway.answering.request_tracing import OPERATIONS
from shared.errors import Internal, InvalidRequest, RyzError
from shared.telemetry.service_levels import ServiceLevels


def count_refusal(levels: ServiceLevels, route: str, model: str, tenant: str, error: Exception) -> None:
    """Counts a request that ended with an error.

    Args:
        levels: Count it.
        route: Its route; only those that generate count.
        model: What it asked for; empty: that was not read.
        tenant: Whose it was; empty: not known.
        error: Why.
    """
    if route not in OPERATIONS:
        return
    if not isinstance(error, RyzError):
        error = InvalidRequest("refused") if isinstance(error, HttpRefusal) else Internal("a bug")
    levels.count_refusal(model, tenant, error)
