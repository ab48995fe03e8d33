"""Translates what gRPC says beside a message (metadata, deadline, peer) into headers of HTTP routes. Pure."""

import math
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

from services.gateway.admission.answer_headers import SHOWN_HEADERS
from services.gateway.admission.request_headers import CALL_HEADERS
from services.gateway.transports.grpc.translation.inference_request import InferenceCall
from shared.errors import InvalidRequest
from shared.telemetry.trace_context import TRACE_HEADERS

Headers = dict[bytes, bytes]
Metadata = Iterable[tuple[str, str | bytes]]
_OF_CALLS = frozenset(("authorization", *(name.decode() for name in CALL_HEADERS), *TRACE_HEADERS))
_OF_STREAMS = _OF_CALLS - {"x-request-id"}  # each request of a stream has its own id
# headers of answers that become trailing metadata
SHOWN = tuple(name.decode() for name in SHOWN_HEADERS)
_LONGEST_ID = 64


def headers_of(metadata: Metadata, *, single: bool) -> Headers:
    """The headers of the HTTP route that metadata stands for.

    Args:
        metadata: Of the call.
        single: The call has one request. What metadata say of a stream holds for each of its requests.

    Raises:
        InvalidRequest: A name comes twice. Of two, a proxy might have read the other one.
    """
    wanted = _OF_CALLS if single else _OF_STREAMS
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
    """Adds what one request says: its headers, its id, its position in a sequence, and its time limit.

    Args:
        headers: Of the call; changed.
        call: The request.
        remaining_s: Seconds to the deadline of the call; None: it has none.
    """
    headers.update(call.headers)
    limits_s = [limit_s for limit_s in (call.timeout_s, remaining_s) if limit_s and math.isfinite(limit_s)]
    if limits_s and min(limits_s) < _given_s(headers):
        headers[b"x-request-timeout"] = b"%.6f" % max(min(limits_s), 1e-6)
    name = call.request_id
    if name and name.isascii() and name.isprintable() and len(name) <= _LONGEST_ID:
        headers.setdefault(b"x-request-id", name.encode())
    if call.begins_session and call.is_chat:
        headers[b"x-session-mode"] = b"replace"


def _given_s(headers: Headers) -> float:
    """The time limit that metadata name in seconds; 0 for what is no number, which the core refuses."""
    try:
        return float(headers.get(b"x-request-timeout", b"inf"))
    except ValueError:
        return 0.0


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
