"""What a gateway's settings leave out, because no operator has a reason to change it. Times are in seconds.

Each value is stated once, beside its reason. `GatewaySettings` carries them, so that tests can run a gateway
with others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType

from services.gateway.admission.bodies.json_shape import MAX_VALUES
from shared.gone_settings import RenamedTo
from shared.web.http_limits import HttpLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConstants:
    """The constants of a gateway."""

    http: HttpLimits = field(default_factory=HttpLimits)
    """Limits of connections and headers."""
    max_body_values: int = MAX_VALUES
    """Fields, list entries, objects and lists in one body, token ids included."""
    max_bodies: int = 1024
    """Bodies that may be arriving at the same time. `RYZ_MAX_HELD_BYTES` bounds their memory."""
    body_min_rate: int = 4096
    """Bytes per second that a body must bring after its first five seconds; 0: any. It ends connections that
    are held open on purpose."""
    max_answer_entries: int = 524_288
    """Limit of one request: choices times tokens of each, times its log probabilities per token plus one. It
    bounds the memory of one answer."""
    max_prompts: int = 64
    """Prompts in one completion call. Batches are for more."""
    max_embedding_inputs: int = 2048
    """Inputs of one call of `/v1/embeddings`: as many as OpenAI's API takes."""
    grpc_max_connections: int = 1024
    """Open gRPC connections, each of which carries many calls."""
    grpc_max_requests: int = 256
    """Calls that one gRPC connection may have open, and requests that one gRPC stream may have running; more
    wait."""
    models_timeout_s: float = 2.0
    """Time limit for the list of models, which routers know by heart."""
    sessions_timeout_s: float = 5.0
    """Time limit of a call about a session: longer than those of the store, whose errors say more."""
    holders_wait_s: float = 0.1
    """How long groups may take to tell what they hold of a session. They answer from memory."""
    header_wait_s: float = 2.0
    """How long a stream's status waits for the first text or a failure. Later failures come as an event."""
    idempotency_find_ms: int = 50
    """How long leaders may take to tell that they have a call with that Idempotency-Key. They answer from
    memory, and each call with a key waits for it."""
    response_events_bytes: int = 64 * 2**20
    """Bytes of events of background responses that are kept for readers; beyond it those of ended ones go
    first."""
    response_socket_idle_s: float = 600.0
    """How long a WebSocket of the Responses API may be open without a request."""
    realtime_requests_max: int = 32
    """Requests that may run on one WebSocket of `/v1/realtime` at the same time. A client that needs more
    opens another one."""
    realtime_idle_s: float = 600.0
    """How long a WebSocket of `/v1/realtime` may be open without a request and without a message."""
    realtime_auth_s: float = 5.0
    """How long a client that gave no key when it connected may take to send it."""
    batch_max_lines: int = 50_000
    """Requests in one batch: as many as OpenAI's API takes."""
    batch_max_open: int = 32
    """Batches of one tenant that have not ended. `batch_max_waiting` bounds their requests together."""
    batch_max_waiting: int = 500_000
    """Requests in all batches of one tenant that have not ended."""
    batch_line_max_bytes: int = 512 * 1024
    """Longest line of a batch: half of what a message of the broker holds, for what is put around it. A
    longer one goes to the error file."""


def constant_settings() -> Mapping[str, object]:
    """Return the values of constants that were settings, by their variables; also what was renamed."""
    constants = GatewayConstants()
    names = [each.name for each in fields(constants) if each.name != "http"]
    values = {name: getattr(constants, name) for name in names}
    values |= {each.name: getattr(constants.http, each.name) for each in fields(constants.http)}
    values |= dict.fromkeys(["realtime_sockets_max", "response_sockets_max"], RenamedTo("RYZ_SOCKETS_MAX"))
    return MappingProxyType({f"RYZ_{name.upper()}": value for name, value in values.items()})
