"""The gateway's limits before a request's body, as its HTTP server needs them."""

from prometheus_client import CollectorRegistry

from services.gateway.http.edge_metrics import EdgeCollector
from services.gateway.sessions.session_headers import SESSION_HEADERS, STREAM_GRACE
from services.gateway.settings import GatewaySettings
from shared.web.faults import SINGLE_HEADERS
from shared.web.gate import Gate
from shared.web.open_files import raise_limit

# our own that say one thing
_OWN_HEADERS = frozenset(
    {
        b"idempotency-key",
        b"if-match",
        b"if-none-match",
        b"last-event-id",
        b"traceparent",
        b"x-request-id",
        b"x-request-timeout",
        *SESSION_HEADERS,
        b"x-session-mode",
        b"x-session-must-exist",
        STREAM_GRACE,
    }
)


def gateway_gate(settings: GatewaySettings, registry: CollectorRegistry) -> Gate:
    """The gateway's connections; raises the limit of open files as far as they need it."""
    fitting = raise_limit(settings.max_connections)
    gate = Gate(settings.model_copy(update={"max_connections": fitting}), SINGLE_HEADERS | _OWN_HEADERS)
    registry.register(EdgeCollector(gate))
    return gate
