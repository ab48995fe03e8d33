"""Translates what gRPC says beside a message (metadata, deadline, peer) into headers of HTTP routes. Pure."""

import math
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

from services.gateway.admission.request_headers import SESSION_HEADERS
from services.gateway.transports.grpc.translation.inference_request import InferenceCall
from shared.errors import InvalidRequest

Headers = dict[bytes, bytes]
Metadata = Iterable[tuple[str, str | bytes]]
_OF_CALLS = frozenset(
    {
        "authorization",
        "traceparent",
        "tracestate",
        "x-session-mode",
        "x-session-must-exist",
        *(name.decode() for name in SESSION_HEADERS),
    }
)
_OF_SINGLE_REQUESTS = frozenset(
    {"idempotency-key", "if-match", "if-none-match", "x-request-id", "x-request-timeout"}
)
# headers of answers that become trailing metadata
SHOWN = (
    "x-request-id",
    "x-session-id",
    "x-ryz-group",
    "x-ryz-session",
    "x-ryz-ignored",
    "idempotent-replayed",
)
_LONGEST_ID = 64


def headers_of(metadata: Metadata, *, single: bool) -> Headers:
    """The headers of the HTTP route that metadata stands for.

    Args:
        metadata: Of the call.
        single: The call has one request. Ids of requests mean nothing for a call that has many.

    Raises:
        InvalidRequest: A name comes twice. Of two, a proxy might have read the other one.
    """
    wanted = _OF_CALLS | _OF_SINGLE_REQUESTS if single else _OF_CALLS
    found: Headers = {}
    for name, value in metadata:
        if name not in wanted:
            continue
        key = name.encode()
        if key in found and name != "tracestate":  # which W3C allows to be cut into several
            raise InvalidRequest(f"the metadata {name} came twice; send it once", param=name)
        found[key] = value if isinstance(value, bytes) else value.encode()
    return found


def add_request_headers(headers: Headers, call: InferenceCall, remaining_s: float | None) -> None:
    """Adds what one request says: its id, its place in a sequence, and its time limit.

    Args:
        headers: Of the call; changed.
        call: The request.
        remaining_s: Seconds to the deadline of the call; None: it has none.
    """
    limits_s = [limit_s for limit_s in (call.timeout_s, remaining_s) if limit_s and math.isfinite(limit_s)]
    given = headers.get(b"x-request-timeout")
    if limits_s and given is None:
        headers[b"x-request-timeout"] = b"%.6f" % max(min(limits_s), 1e-6)
    name = call.request_id
    if name and name.isascii() and name.isprintable() and len(name) <= _LONGEST_ID:
        headers.setdefault(b"x-request-id", name.encode())
    if call.begins_session and call.is_chat:
        headers[b"x-session-mode"] = b"replace"


def shown_metadata(fields: Mapping[bytes, bytes], names: Iterable[str]) -> list[tuple[str, str]]:
    """Those headers of an answer as metadata; a value that is not printable ASCII is none, and left out."""
    found = []
    for name in names:
        value = fields.get(name.encode(), b"").decode("latin-1")
        if value and value.isascii() and value.isprintable():
            found.append((name, value))
    return found


def peer_address(peer: str) -> tuple[str, int] | None:
    """Address and port of a peer as gRPC names it, such as `ipv4:127.0.0.1:40000`; None: it has no such."""
    kind, _, rest = peer.partition(":")
    host, _, port = unquote(rest).rpartition(":")
    if kind not in {"ipv4", "ipv6"} or not port.isdigit():
        return None
    return host.strip("[]"), int(port)
