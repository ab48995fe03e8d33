"""Refusals of an HTTP server before an application sees the request. Pure.

Has the check for headers that may be read in two ways, and the bytes of an answer in OpenAI's error shape.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

from shared.web.http_limits import HttpLimits

# Headers that a request may have once: of two, a proxy might read the first and this server the last.
SINGLE_HEADERS = frozenset(
    {
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"expect",
        b"host",
        b"origin",
        b"sec-fetch-site",
        b"transfer-encoding",
    }
)


@dataclass(frozen=True, slots=True)
class Fault:
    """The reason for refusing a request or a connection."""

    status: int
    code: str
    message: str


MALFORMED = Fault(400, "malformed_http", "this is not valid HTTP/1.1; check what the client sends")
SLOW_HEADERS = Fault(408, "headers_timeout", "the headers did not arrive in time")
FRAMING = Fault(
    400,
    "chunk_overhead",
    "the body's chunks are too small, or carry too much besides the body; use larger ones",
)
ADDRESS_FULL = Fault(
    429,
    "address_connections",
    "your address has too many connections whose requests are under way; retry when one has ended "
    "(RYZ_HTTP_MAX_CONNECTIONS_PER_ADDRESS, RYZ_HTTP_TRUSTED_PROXIES)",
)
ALL_FULL = Fault(503, "connections", "too many open connections; retry in a moment (RYZ_MAX_CONNECTIONS)")
PARTIAL_FULL = Fault(503, "partial_headers", "too many requests are incomplete; retry in a moment")


def headers_too_large(limits: HttpLimits) -> Fault:
    """For headers that are over the limit in bytes, as far as they have come."""
    limit = limits.http_max_header_bytes
    return Fault(431, "headers_too_large", f"the headers may have {limit} bytes together")


def too_many_headers(limits: HttpLimits) -> Fault:
    """For more headers, or trailers, than allowed."""
    limit = limits.http_max_headers
    return Fault(431, "too_many_headers", f"a request may have {limit} headers")


def target_too_long(limits: HttpLimits) -> Fault:
    """For a path and query over their limit."""
    limit = limits.http_max_target_bytes
    return Fault(414, "uri_too_long", f"path and query may have {limit} bytes")


def too_many_pipelined(limits: HttpLimits) -> Fault:
    """For a connection that has sent too many requests ahead."""
    limit = limits.http_max_pipelined
    return Fault(429, "pipelined", f"a connection may send {limit} requests ahead of their answers")


def ambiguity(
    headers: Sequence[tuple[bytes, bytes]], target: bytes, version: str, single: frozenset[bytes]
) -> Fault | None:
    """The reason why a request could mean different things to two readers; None if it is clear.

    The parser refuses other ambiguities: two lengths, a length beside chunks, folded lines, control
    characters.

    Args:
        headers: Headers of the request, names in lower case.
        target: The target as it stands in the request's line.
        version: The version of HTTP, such as `1.1`.
        single: Names of headers that may come once.
    """
    if version not in ("1.0", "1.1"):
        return Fault(505, "http_version", "HTTP/1.0 and HTTP/1.1 are spoken here")
    seen = set()
    for name, value in headers:
        if name not in single:
            continue
        if name in seen:
            return _ambiguous(f"the header {name.decode('latin-1')} came twice; send it once")
        seen.add(name)
        if name == b"transfer-encoding" and (value.strip().lower() != b"chunked" or version != "1.1"):
            return _ambiguous("Transfer-Encoding may be `chunked`, in HTTP/1.1")
    if b"host" not in seen and version == "1.1":
        return _ambiguous("the header Host is missing")
    if (not target.startswith(b"/") and target != b"*") or b"#" in target:
        # for some readers a fragment begins at #, for others the path goes on
        return _ambiguous("the request's line needs a path that begins with / and has no # (in a name: %23)")
    return None


def _ambiguous(message: str) -> Fault:
    return Fault(400, "ambiguous_request", message)


def answer(fault: Fault) -> bytes:
    """The whole answer on the wire; the connection closes after it."""
    kind = "server_error" if fault.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    kind = "rate_limit_error" if fault.status == HTTPStatus.TOO_MANY_REQUESTS else kind
    error = {"message": fault.message, "type": kind, "param": None, "code": fault.code}
    body = json.dumps({"error": error}).encode()
    retry = "retry-after: 1\r\n" if fault.status in (429, 503) else ""
    head = (
        f"HTTP/1.1 {fault.status} {HTTPStatus(fault.status).phrase}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\nx-ryz-reason: {fault.code}\r\n"
        f"x-content-type-options: nosniff\r\ncache-control: no-store\r\n{retry}connection: close\r\n\r\n"
    )
    return head.encode("ascii") + body
