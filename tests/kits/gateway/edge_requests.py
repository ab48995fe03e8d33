"""Raw requests and short limits for tests of the gateway's HTTP server."""

from typing import Any

from tests.kits.gateway.gateway import Gateway
from tests.kits.gateway.raw_http import ask

HEAD = b"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\n"


BODY = b'{"model":"demo","messages":[{"role":"user","content":"Hello"}]}'


POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


QUICK: dict[str, Any] = {
    "http_first_byte_s": 0.3,
    "http_headers_s": 0.4,
    "http_unread_s": 0.3,
    "http_tls_handshake_s": 0.4,
    "keep_alive_s": 1,
}


async def serves(port: int) -> None:
    answer = await ask(port, POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
    assert answer.status == 200, answer


def refused(gateway: Gateway, reason: str) -> float:
    return gateway.metric("ryz_gateway_refused_http_requests_total", reason=reason)
